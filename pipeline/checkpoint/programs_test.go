package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/pipelinetest"
)

// The programs of the exhaustive test's processes: what the lane and seal do, on the real store.

// recall is what a process remembers between phases.
type recall struct {
	Held   bool
	Hold   pipeline.Hold
	Next   int64
	M      *pipeline.Manifest // writer: window under way
	Object string             // seal: staging object at hand
	Last   string             // seal: the object before
	Claims []pipeline.Claim   // seal: what the ledger holds of each copy in the object
	Done   []bool             // seal: which of them are settled
	Listed []pipeline.PartID  // seal: what the lake object of the round lists
	Once   bool               // writer: it ends when the window under way is committed
	Seen   *Holder            // standby: what it saw last; nil before
	N      int                // how often it has done what it does
	Gap    *pipeline.Gap      // repair: which it has
	Begun  *WindowStatus      // landing again
}

func (m recall) clone() recall {
	m.Claims, m.Done, m.Listed = slices.Clone(m.Claims), slices.Clone(m.Done), slices.Clone(m.Listed)
	return m
}

// run runs a phase of a program, and returns the phase that follows.
func (m *recall) run(phase string, e *execution, s *Store) (string, error) {
	switch phase {
	case "open":
		return openLane(e, s, m)
	case "read":
		return readShards(e, s, m)
	case "begin":
		return beginWindow(e, s, m)
	case "land":
		return landWindow(e, m)
	case "commit":
		return commitWindow(e, s, m)
	case "pick":
		return pickObject(e, m)
	case "claim":
		return claimParts(s, m)
	case "create":
		return createObject(e, m)
	case "publish":
		return publishParts(s, m)
	case "settle":
		return settleParts(e, s, m)
	case "remove":
		return removeObject(e, m)
	case "fold":
		return foldLane(e, s, m)
	}
	return m.runScene(phase, e, s)
}

// records are the stream: the numbers of each shard.
var records = map[pipeline.ShardID][]pipeline.SequenceNumber{"a": {"1", "2"}, "b": {"1"}}

// after sorts the outcome of a writer's call: a fenced writer ends, one that heard nothing opens
// the lane again.
func after(err error, next string) (string, error) {
	switch {
	case err == nil:
		return next, nil
	case errors.Is(err, errAsleep):
		return "", nil
	case errors.Is(err, pipeline.ErrFenced):
		return "stop", nil
	case errors.Is(err, errCut):
		return "open", nil
	}
	return "", err
}

func openLane(e *execution, s *Store, m *recall) (string, error) {
	st, err := s.Acquire(context.Background(), pipelinetest.Lane, m.Held)
	if err == nil {
		m.Held, m.Hold, m.Next, m.M = true, st.Hold, st.Next, st.Pending
		if m.M != nil {
			return "land", nil
		}
		if m.Once {
			return "stop", nil
		}
	}
	return after(err, "read")
}

// readShards takes the next record of each shard. It is one step: begin checks what it read.
func readShards(e *execution, s *Store, m *recall) (string, error) {
	e.whole = true
	w := &pipeline.Manifest{
		Format: 1, Layout: 1, Stream: arn, Contract: "c0ffee", Window: pipeline.WindowID{Lane: pipelinetest.Lane, Incarnation: m.Hold.Incarnation, N: m.Next},
	}
	for _, id := range slices.Sorted(maps.Keys(records)) {
		p, err := s.Position(context.Background(), m.Hold, arn, id)
		if err != nil {
			return after(err, "")
		}
		for _, n := range records[id] {
			if n.Compare(p.Seq) > 0 {
				w.Shards = append(w.Shards, pipeline.ShardRange{Range: pipeline.Range{Shard: id, First: n, Last: n}, After: p.Seq})
				w.Parts = append(w.Parts, pipeline.PartSpec{Table: "readings", Partition: fmt.Sprintf("%s-%s", id, n), Rows: 1})
				break
			}
		}
	}
	if len(w.Shards) == 0 {
		return "stop", nil
	}
	m.M = w
	return "begin", nil
}

func beginWindow(e *execution, s *Store, m *recall) (string, error) {
	return after(s.Begin(context.Background(), m.Hold, m.M), "land")
}

func partsOf(w *pipeline.Manifest) []pipeline.PartID {
	var ids []pipeline.PartID
	for i := range w.Parts {
		ids = append(ids, pipeline.PartID{Window: w.Window, Index: i})
	}
	return ids
}

func landWindow(e *execution, m *recall) (string, error) {
	_, err := e.own(func() any {
		n := m.M.Window.N
		e.u.landed[n]++
		e.u.staging[fmt.Sprintf("%d.%d", n, e.u.landed[n])] = partsOf(m.M)
		return nil
	})
	return after(err, "commit")
}

func commitWindow(e *execution, s *Store, m *recall) (string, error) {
	err := s.Commit(context.Background(), m.Hold, m.M)
	if err == nil {
		m.Next, m.M = m.M.Window.N+1, nil
		if m.Once {
			return "stop", nil
		}
	}
	return after(err, "read")
}

// sweep sorts the outcome of a seal's call: one that heard nothing begins the sweep anew.
func sweep(err error, next string) (string, error) {
	switch {
	case errors.Is(err, errAsleep):
		return "", nil
	case errors.Is(err, errCut):
		return "pick", nil
	}
	return next, err
}

// pickObject looks at the next object in staging, and folds behind the last.
func pickObject(e *execution, m *recall) (string, error) {
	last := m.Last
	text, err := e.own(func() any {
		for _, key := range slices.Sorted(maps.Keys(e.u.staging)) {
			if key > last {
				return struct {
					Key   string
					Parts []pipeline.PartID
				}{key, e.u.staging[key]}
			}
		}
		return nil
	})
	if err != nil {
		*m = recall{}
		return sweep(err, "")
	}
	var o struct {
		Key   string
		Parts []pipeline.PartID
	}
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return "", err
	}
	*m = recall{Object: o.Key, Done: make([]bool, len(o.Parts))}
	if o.Key == "" {
		return "fold", nil
	}
	for i, id := range o.Parts {
		m.Claims = append(m.Claims, pipeline.Claim{Part: id, Copy: pipeline.Copy{Key: o.Key, ETag: "e", Offset: int64(i)}, Name: lakeName(o.Key, 0)})
	}
	return "claim", nil
}

func lakeName(object string, round int) string { return fmt.Sprintf("%s-r%d", object, round) }

func (m *recall) copyAt(i int) pipeline.Copy {
	return pipeline.Copy{Key: m.Object, ETag: "e", Offset: int64(i)}
}

func (m *recall) take(i int, c pipeline.Claim) {
	m.Claims[i] = c
	m.Done[i] = c.Void || c.Published
}

// next is the seal's next object, behind this one.
func (m *recall) next() string {
	*m = recall{Last: m.Object}
	return "pick"
}

func claimParts(s *Store, m *recall) (string, error) {
	seen := map[pipeline.WindowID]pipeline.WindowState{}
	var open []pipeline.Claim
	var at []int
	for i, c := range m.Claims {
		state, known := seen[c.Part.Window]
		if !known {
			var err error
			if state, _, err = s.Window(context.Background(), c.Part.Window); err != nil {
				return sweep(err, "")
			}
			seen[c.Part.Window] = state
		}
		switch state {
		case pipeline.WindowUnknown:
			return "", errors.New("a part is in staging and its window was never begun")
		case pipeline.WindowSealed, pipeline.WindowFolded, pipeline.WindowVoid:
			m.Done[i] = true
		default:
			open, at = append(open, c), append(at, i)
		}
	}
	if len(open) == 0 {
		return "remove", nil
	}
	held, err := s.Claim(context.Background(), open)
	if errors.Is(err, pipeline.ErrWindowClosed) {
		return "claim", nil
	}
	if err != nil {
		return sweep(err, "")
	}
	for j, i := range at {
		m.take(i, held[j])
	}
	return "create", nil
}

// round are the copies that go into the next lake object: the lowest round's.
func (m *recall) round() []int {
	var is []int
	for i, c := range m.Claims {
		if m.Done[i] || c.Copy != m.copyAt(i) {
			continue
		}
		if len(is) > 0 && c.Round < m.Claims[is[0]].Round {
			is = nil
		}
		if len(is) == 0 || c.Round == m.Claims[is[0]].Round {
			is = append(is, i)
		}
	}
	return is
}

func createObject(e *execution, m *recall) (string, error) {
	is := m.round()
	if len(is) == 0 {
		return "settle", nil
	}
	name := m.Claims[is[0]].Name
	text, err := e.own(func() any {
		if e.u.lake[name] == nil {
			for _, i := range is {
				e.u.lake[name] = append(e.u.lake[name], m.Claims[i].Part)
			}
		}
		return e.u.lake[name]
	})
	if err != nil {
		return sweep(err, "")
	}
	return "publish", json.Unmarshal([]byte(text), &m.Listed)
}

func publishParts(s *Store, m *recall) (string, error) {
	is := m.round()
	var in []pipeline.Claim
	for _, i := range is {
		if slices.Contains(m.Listed, m.Claims[i].Part) {
			in = append(in, m.Claims[i])
		}
	}
	if err := s.Publish(context.Background(), in); err != nil {
		return sweep(err, "")
	}
	for _, i := range is {
		c := m.Claims[i]
		if slices.Contains(m.Listed, c.Part) {
			m.Done[i] = true
			continue
		}
		to := c
		to.Round, to.Name = c.Round+1, lakeName(m.Object, c.Round+1)
		held, err := s.Move(context.Background(), c, to)
		if errors.Is(err, pipeline.ErrWindowClosed) {
			m.Done[i] = true
			continue
		}
		if err != nil {
			return sweep(err, "")
		}
		m.take(i, held)
	}
	m.Listed = nil
	return "create", nil
}

func settleParts(e *execution, s *Store, m *recall) (string, error) {
	for i := range m.Claims {
		if m.Done[i] {
			continue
		}
		held, err := s.Claim(context.Background(), m.Claims[i:i+1])
		switch {
		case errors.Is(err, pipeline.ErrWindowClosed):
			m.Done[i] = true
		case err != nil:
			return sweep(err, "")
		default:
			m.take(i, held[0])
		}
	}
	if slices.Contains(m.Done, false) && e.gone {
		return "take over", nil
	}
	if slices.Contains(m.Done, false) {
		return m.next(), nil // it waits for the other copy
	}
	return "remove", nil
}

func removeObject(e *execution, m *recall) (string, error) {
	_, err := e.own(func() any { delete(e.u.staging, m.Object); return nil })
	if err != nil {
		return sweep(err, "")
	}
	return m.next(), nil
}

func foldLane(e *execution, s *Store, m *recall) (string, error) {
	e.whole = !e.fine
	if err := s.Fold(context.Background(), pipelinetest.Lane); err != nil {
		return sweep(err, "")
	}
	*m = recall{}
	return "pick", nil
}

// state reads what the table says of a window.
func (u *shared) state(w pipeline.WindowID) pipeline.WindowState {
	k := windowKey(w)
	if it, ok := u.table[k.pk+"\x00"+k.sk]; ok {
		return pipeline.WindowState(it["state"].text)
	}
	lane := u.table["lane#"+string(w.Lane)+"\x00lane"]
	if number(lane["watermark"]).Int64() >= w.N {
		return pipeline.WindowFolded
	}
	return pipeline.WindowUnknown
}

// judge says what is wrong with a state, "" if nothing is, and whether all is in the lake and
// nothing is left to do.
func (u *shared) judge(windows map[int64]*pipeline.Manifest) (wrong string, finished bool) {
	in := map[pipeline.PartID]int{}
	for _, parts := range u.lake {
		for _, id := range parts {
			if in[id]++; in[id] > 1 {
				return fmt.Sprintf("part %s is in the lake twice", id), false
			}
		}
	}
	finished = len(u.staging) == 0
	for _, m := range windows {
		state := u.state(m.Window)
		finished = finished && state == pipeline.WindowFolded
		for _, id := range partsOf(m) {
			done := state == pipeline.WindowSealed || state == pipeline.WindowFolded
			if done && in[id] == 0 {
				return fmt.Sprintf("part %s is not in the lake and its window is %s", id, state), false
			}
			if state != pipeline.WindowCommitted || in[id] > 0 {
				continue
			}
			waits := false
			for _, parts := range u.staging {
				waits = waits || slices.Contains(parts, id)
			}
			if !waits {
				return fmt.Sprintf("part %s is committed, and neither in the lake nor in staging", id), false
			}
		}
	}
	return "", finished
}
