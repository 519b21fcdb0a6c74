package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/pipelinetest"
)

// Scenes of the exhaustive test beside writers and seals: who gives up, repairs, lands again, takes
// a claim or a lease over, and what a message says.

// runScene runs a phase of their programs.
func (m *recall) runScene(phase string, e *execution, s *Store) (string, error) {
	switch phase {
	case "give":
		return giveWindow(e, s)
	case "again":
		return againBegin(s, m)
	case "again land":
		return againLand(e, m)
	case "again end":
		return ifLost(s.EndLanding(context.Background(), *m.Begun, true), phase, "stop")
	case "succeed":
		return succeed(s, m)
	case "lose":
		return after(s.Lose(context.Background(), m.Hold, m.M), "commit")
	case "look":
		return lookForGap(e, s, m)
	case "repair":
		return repairGap(e, m)
	case "repaired":
		return ifLost(s.MoveGap(context.Background(), *m.Gap, pipeline.GapClosed, "repaired"), phase, "stop")
	case "watch":
		return watchLane(s, m)
	case "take":
		return takeLane(s, m)
	case "reopen":
		return reopenLane(s, m)
	case "renew":
		return renewLease(s, m)
	case "message":
		return openGapOf(s, m)
	case "tell":
		_, err := s.SettleGaps(context.Background(), arn)
		return ifLost(err, phase, phase)
	case "take over":
		return takeOverClaims(e, s, m)
	}
	return "", fmt.Errorf("there is no phase %q", phase)
}

// ifLost sorts the outcome of a call that is simply made again when its answer was lost.
func ifLost(err error, again, next string) (string, error) {
	switch {
	case errors.Is(err, errAsleep):
		return "", nil
	case errors.Is(err, errCut):
		return again, nil
	}
	return next, err
}

func firstWindow(u *shared) pipeline.WindowID {
	return pipeline.WindowID{Lane: pipelinetest.Lane, Incarnation: u.table["lane#"+string(pipelinetest.Lane)+"\x00lane"]["inc"].text, N: 1}
}

func giveWindow(e *execution, s *Store) (string, error) {
	_, err := s.GiveUp(context.Background(), firstWindow(e.u))
	switch {
	case errors.Is(err, ErrTooEarly), err != nil && strings.Contains(err.Error(), "it is pending"):
		return "give", nil
	case errors.Is(err, pipeline.ErrWindowClosed):
		return "stop", nil
	}
	return ifLost(err, "give", "stop")
}

// againBegin takes the turn to land the window again.
func againBegin(s *Store, m *recall) (string, error) {
	open, err := s.Unsealed(context.Background(), pipelinetest.Lane)
	if err != nil {
		return ifLost(err, "again", "")
	}
	if len(open) == 0 {
		return "stop", nil
	}
	begun, err := s.BeginLanding(context.Background(), open[0])
	if errors.Is(err, ErrLandedElsewhere) {
		return "stop", nil
	}
	m.Begun = &begun
	return ifLost(err, "again", "again land")
}

func againLand(e *execution, m *recall) (string, error) {
	_, err := e.own(func() any {
		e.u.staging["late"] = slices.Clone(e.u.manifestParts(m.Begun.ID))
		return nil
	})
	return ifLost(err, "again land", "again end")
}

// manifestParts are the parts that a window's stored manifest has.
func (u *shared) manifestParts(w pipeline.WindowID) []pipeline.PartID {
	k := windowKey(w)
	text := u.table[k.pk+"\x00"+k.sk]["manifest"].text
	m, err := pipeline.DecodeManifest([]byte(text))
	if err != nil {
		return nil
	}
	return partsOf(m)
}

// succeed takes the lane whose pending window has aged out.
func succeed(s *Store, m *recall) (string, error) {
	st, err := s.Acquire(context.Background(), pipelinetest.Lane, m.Held)
	if err == nil {
		m.Held, m.Hold, m.M, m.Once = true, st.Hold, st.Pending, true
		if m.M == nil {
			return "stop", nil
		}
	}
	if errors.Is(err, errCut) {
		return "succeed", nil
	}
	return after(err, "lose")
}

// lookForGap takes a gap to repair, if there is one that nobody has.
func lookForGap(e *execution, s *Store, m *recall) (string, error) {
	gaps, err := s.Gaps(context.Background(), arn)
	if err != nil {
		return ifLost(err, "look", "")
	}
	for _, g := range gaps {
		name := fmt.Sprint("repair ", m.N)
		if g.State == pipeline.GapRepairing && g.Repair == name { // it took it, and heard nothing
			m.Gap = &g
			return "repair", nil
		}
		if g.State != pipeline.GapOpen {
			continue
		}
		g.Repair = name
		if err := s.repairable(context.Background(), g.Window); err != nil {
			return ifLost(nil, "", "look")
		}
		err := s.MoveGap(context.Background(), g, pipeline.GapRepairing, "")
		if errors.Is(err, ErrGapMoved) {
			return "look", nil
		}
		if err == nil {
			g.State = pipeline.GapRepairing
			m.Gap = &g
		}
		return ifLost(err, "look", "repair")
	}
	return "look", nil
}

// repairGap puts what is missing into the lake by another way.
func repairGap(e *execution, m *recall) (string, error) {
	_, err := e.own(func() any {
		for id := range e.u.notes {
			if part, gone := strings.CutPrefix(id, "void "); gone && strings.Contains(part, "partition "+string(m.Gap.Shard)) {
				// One repair that hears no answer does it again, and finds that it has.
				if did := "repair of " + part + " by " + m.Gap.Repair; e.u.notes[did] == 0 {
					e.u.notes[did] = 1
					e.u.notes["repaired "+part]++
				}
			}
		}
		return nil
	})
	return ifLost(err, "repair", "repaired")
}

func watchLane(s *Store, m *recall) (string, error) {
	h, there, err := s.Holder(context.Background(), pipelinetest.Lane)
	if err != nil {
		return ifLost(err, "watch", "")
	}
	if was := m.Seen; there && h.Lease != 0 && (was == nil || *was != h) {
		m.Seen = &h
		return "watch", nil
	}
	m.Seen = &h
	return "take", nil
}

func takeLane(s *Store, m *recall) (string, error) {
	st, err := s.acquire(context.Background(), pipelinetest.Lane, sighting{*m.Seen, true}.unchanged())
	if errors.Is(err, pipeline.ErrFenced) || errors.Is(err, errCut) {
		m.Seen = nil
		return "watch", nil
	}
	return tookLane(m, st, err)
}

func tookLane(m *recall, st pipeline.State, err error) (string, error) {
	if err == nil {
		m.Held, m.Hold, m.Next, m.M = true, st.Hold, st.Next, st.Pending
		if m.M != nil {
			return "land", nil
		}
	}
	return after(err, "read")
}

// reopenLane is the holder's own, after an answer was lost.
func reopenLane(s *Store, m *recall) (string, error) {
	st, err := s.acquire(context.Background(), pipelinetest.Lane, taking{condition: "fmt <= :fmt AND holder = :me", lease: true})
	return tookLane(m, st, err)
}

// renewLease keeps the lease three times, and then gives it back.
func renewLease(s *Store, m *recall) (string, error) {
	const often = 3
	if m.N == often {
		err := s.Release(context.Background(), m.Hold)
		if errors.Is(err, pipeline.ErrFenced) {
			err = nil
		}
		return ifLost(err, "renew", "stop")
	}
	err := s.Renew(context.Background(), m.Hold)
	if errors.Is(err, pipeline.ErrFenced) {
		return "stop", nil
	}
	if err == nil {
		m.N++
	}
	return ifLost(err, "renew", "renew")
}

func openGapOf(s *Store, m *recall) (string, error) {
	_, _, err := s.OpenGap(context.Background(), *m.Gap)
	return ifLost(err, "message", "stop")
}

// takeOverClaims publishes what another copy had claimed that is gone: its name is created with the
// copies at hand, or its object says what was published under it.
func takeOverClaims(e *execution, s *Store, m *recall) (string, error) {
	for i, c := range m.Claims {
		if m.Done[i] || c.Copy.Key == m.Object {
			continue
		}
		text, err := e.own(func() any {
			if e.u.staging[c.Copy.Key] != nil {
				return nil
			}
			if e.u.lake[c.Name] == nil {
				for j, o := range m.Claims {
					if !m.Done[j] && o.Name == c.Name && !slices.Contains(e.u.lake[c.Name], o.Part) {
						e.u.lake[c.Name] = append(e.u.lake[c.Name], o.Part)
					}
				}
			}
			return e.u.lake[c.Name]
		})
		if err != nil {
			return sweep(err, "")
		}
		var listed []pipeline.PartID
		if err := json.Unmarshal([]byte(text), &listed); err != nil {
			return "", err
		}
		switch {
		case len(listed) == 0:
			return m.next(), nil // its copy is still there, and is sealed from there
		case slices.Contains(listed, c.Part):
			if err := s.Publish(context.Background(), []pipeline.Claim{c}); err != nil {
				return sweep(err, "")
			}
			m.Done[i] = true
			continue
		}
		to := pipeline.Claim{Part: c.Part, Copy: m.copyAt(i), Round: c.Round + 1, Name: lakeName(m.Object, c.Round+1)}
		held, err := s.Move(context.Background(), c, to)
		switch {
		case errors.Is(err, pipeline.ErrWindowClosed):
			m.Done[i] = true
		case err != nil:
			return sweep(err, "")
		default:
			m.take(i, held)
		}
	}
	return "create", nil
}

// tell explores a scene that has a start of its own, with a rule switched off; nil: all are on.
func tell(t *testing.T, start func(*testing.T) (*model, universe), off func(*memRequest)) *search {
	t.Helper()
	m, u := start(t)
	m.off, m.writers = off, len(u.procs)
	for _, p := range u.procs {
		p.setName()
	}
	u.shared.setName()
	return explore(m, u)
}

// committed is began, with the first window landed and committed; nothing of it is in staging.
func committed(t *testing.T) (*model, universe, *Store) {
	t.Helper()
	m, u := began(t, 0, 0)
	delete(m.windows, 2)
	table := &memTable{items: u.table, now: func() time.Time { return today }}
	s := table.store(nil, Options{Now: func() time.Time { return today }, Rand: bytes.NewReader(bytes.Repeat([]byte{9}, 1<<10))})
	zombie := u.procs[0].mem
	works(t, "commit", s.Commit(t.Context(), zombie.Hold, zombie.M))
	u.shared.landed[1]++
	u.procs = nil
	return m, u, s
}

// noteVoid remembers which parts were given up: their items go when the window is folded.
func noteVoid(u *shared, in memRequest, status int) {
	if status != 200 {
		return
	}
	reqs := []memRequest{in}
	for _, x := range in.TransactItems {
		for _, r := range x {
			reqs = append(reqs, r)
		}
	}
	for _, r := range reqs {
		if strings.HasPrefix(r.Item["sk"].text, "part#") && r.Item["void"].text == "true" {
			u.notes["void "+u.partText(r.Item["pk"].text, r.Item["sk"].text)] = 1
		}
	}
}

// partText names a part with its partition, which begins with its shard.
func (u *shared) partText(pk, sk string) string {
	for _, id := range u.manifestParts(firstWindow(u)) {
		if k := partKey(id); k.pk == pk && k.sk == sk {
			return u.named(id)
		}
	}
	return pk + sk
}

func (u *shared) named(id pipeline.PartID) string {
	return fmt.Sprintf("%d partition %s", id.Index, slices.Sorted(maps.Keys(records))[id.Index])
}

// gapsOf are the gaps of a window's records, by shard.
func (u *shared) gapsOf(w pipeline.WindowID) map[string]memItem {
	out := map[string]memItem{}
	for k, it := range u.table {
		if strings.Contains(k, "\x00gap#") && it["window"].text == w.String() {
			out[it["shard"].text] = it
		}
	}
	return out
}

// judgeGivenUp: each part is in the lake, or was given up and its gap is open until it is repaired,
// and never both.
func (u *shared) judgeGivenUp(windows map[int64]*pipeline.Manifest) (wrong string, finished bool) {
	in := map[pipeline.PartID]int{}
	for _, parts := range u.lake {
		for _, id := range parts {
			in[id]++
		}
	}
	m, gaps := windows[1], u.gapsOf(windows[1].Window)
	state := u.state(m.Window)
	over := state == pipeline.WindowSealed || state == pipeline.WindowFolded || state == pipeline.WindowVoid
	finished = len(u.staging) == 0 && state == pipeline.WindowFolded
	for i, id := range partsOf(m) {
		void, repaired := u.notes["void "+u.named(id)], u.notes["repaired "+u.named(id)]
		gap := gaps[string(m.Shards[i].Shard)]["state"].text
		switch {
		case in[id]+repaired > 1:
			return fmt.Sprintf("part %s is in the lake %d times, and repaired %d times", id, in[id], repaired), false
		case void > 0 && in[id] > 0:
			return fmt.Sprintf("part %s is given up and in the lake", id), false
		case void > 0 && gap == "":
			return fmt.Sprintf("part %s is given up without a gap", id), false
		case void > 0 && gap == string(pipeline.GapClosed) && repaired == 0:
			return fmt.Sprintf("part %s is given up and its gap is closed", id), false
		case over && void == 0 && in[id] == 0:
			return fmt.Sprintf("part %s is neither in the lake nor given up, and its window is %s", id, state), false
		}
		left := gap == string(pipeline.GapOpen) || gap == string(pipeline.GapRepairing)
		if void == 0 && left && !u.anyVoid() || u.notes["repairs"] > 0 && left {
			finished = false
		}
	}
	return "", finished
}

func (u *shared) anyVoid() bool {
	for k := range u.notes {
		if strings.HasPrefix(k, "void ") {
			return true
		}
	}
	return false
}

func givingUp(jumps int) func(*testing.T) (*model, universe) {
	return func(t *testing.T) (*model, universe) {
		m, u, _ := committed(t)
		m.judged, m.heed, m.fine = (*shared).judgeGivenUp, noteVoid, true
		u.copies, u.jumps = 1, jumps
		for _, phase := range []string{"give", "again", "pick"} {
			u.procs = append(u.procs, &proc{phase: phase})
		}
		return m, u
	}
}

func losing(repairs, losses int) func(*testing.T) (*model, universe) {
	return func(t *testing.T) (*model, universe) {
		m, u := began(t, 0, 1)
		delete(m.windows, 2)
		m.judged, m.heed = (*shared).judgeGivenUp, noteVoid
		u.procs[0].mem.Once = true
		u.jumps, u.losses = 1, losses
		u.procs = append(u.procs, &proc{phase: "succeed"}, &proc{phase: "give"})
		for i := range repairs {
			u.procs = append(u.procs, &proc{phase: "look", mem: recall{N: i}})
			u.notes["repairs"] = 1
		}
		return m, u
	}
}

// takingOver is a claim whose copy is gone. Who claimed it is about to publish it, or dead, and two
// others have three copies.
func takingOver(t *testing.T) (*model, universe) {
	m, u, s := committed(t)
	m.gone, u.shared.landed[1] = true, 0
	parts := partsOf(m.windows[1])
	first := recall{Object: "gone", Done: make([]bool, len(parts))}
	for i, id := range parts {
		first.Claims = append(first.Claims, pipeline.Claim{Part: id, Copy: first.copyAt(i), Name: lakeName("gone", 0)})
	}
	_, err := s.Claim(t.Context(), first.Claims)
	works(t, "claim", err)
	// Whoever has one part alone creates the name without the other, which two copies then want.
	u.shared.staging["again0"], u.shared.staging["again1"], u.shared.staging["again2"] = parts[1:], parts, parts[:1]
	u.procs = []*proc{{phase: "create", mem: first}, {phase: "pick"}, {phase: "pick", mem: recall{Last: "again1"}}}
	return m, u
}

func leases(standbys, losses int) func(*testing.T) (*model, universe) {
	return func(t *testing.T) (*model, universe) {
		m, u := began(t, 0, 0)
		holder := u.procs[0].mem
		// What it holds it holds under a lease.
		k := laneKey(pipelinetest.Lane)
		it := maps.Clone(u.table[k.pk+"\x00"+k.sk])
		it["lease"] = memValue{"N", "1"}
		u.table[k.pk+"\x00"+k.sk] = it
		u.losses = losses
		u.procs = []*proc{{phase: "land", mem: holder}, {phase: "renew", mem: recall{Hold: holder.Hold}}}
		for range standbys {
			u.procs = append(u.procs, &proc{phase: "watch"})
		}
		u.procs = append(u.procs, &proc{phase: "pick"})
		u.notes["lease"] = 1
		m.heed = func(u *shared, in memRequest, status int) {
			if seen, takes := in.ExpressionAttributeValues[":lease"]; takes && status == 200 && seen.text != fmt.Sprint(u.notes["lease"]) {
				u.notes["a lane was taken whose lease had been renewed"] = 1
			}
			delete(u.notes, "lease")
			if is, leased := u.table[k.pk+"\x00"+k.sk]["lease"]; leased {
				u.notes["lease"] = int(number(is).Int64())
			}
		}
		m.judged = func(u *shared, windows map[int64]*pipeline.Manifest) (string, bool) {
			if wrong := "a lane was taken whose lease had been renewed"; u.notes[wrong] > 0 {
				return wrong, false
			}
			return u.judge(windows)
		}
		return m, u
	}
}

func messages(losses int) func(*testing.T) (*model, universe) {
	return func(t *testing.T) (*model, universe) {
		m, u := began(t, 1, 0)
		u.losses = losses
		for _, r := range [][2]pipeline.SequenceNumber{{"1", "1"}, {"2", "2"}} {
			g := pipeline.Gap{Stream: arn, Shard: "a", First: r[0], Last: r[1], Missing: pipeline.Missing{Cause: pipeline.GapDiscarded, From: today, To: today}}
			u.procs = append(u.procs, &proc{phase: "message", mem: recall{Gap: &g}})
		}
		u.procs = append(u.procs, &proc{phase: "tell"})
		m.heed, m.judged = noteOpened, (*shared).judgeDiscarded
		return m, u
	}
}

// at is the committed position of the shard that the messages are of.
func (u *shared) at() pipeline.SequenceNumber {
	return pipeline.SequenceNumber(u.table["stream#"+arn+"\x00shard#a"]["seq"].text)
}

const openedBehind = "a gap was opened of what was committed"

// noteOpened remembers whether a gap was opened of records that were committed by then.
func noteOpened(u *shared, in memRequest, status int) {
	for _, x := range in.TransactItems {
		put := x["Put"].Item
		if status == 200 && strings.HasPrefix(put["sk"].text, "gap#") && pipeline.SequenceNumber(put["last"].text).Compare(u.at()) <= 0 {
			u.notes[openedBehind] = 1
		}
	}
}

// judgeDiscarded: a gap is of what is not committed, and closed when that is.
func (u *shared) judgeDiscarded(map[int64]*pipeline.Manifest) (wrong string, finished bool) {
	if u.notes[openedBehind] > 0 {
		return openedBehind, false
	}
	finished = u.at() == "2"
	for _, it := range u.table {
		if !strings.HasPrefix(it["sk"].text, "gap#") {
			continue
		}
		last := pipeline.SequenceNumber(it["last"].text)
		switch open := it["state"].text == string(pipeline.GapOpen); {
		case !open && last.Compare(u.at()) > 0:
			return fmt.Sprintf("a gap up to %s is closed and the shard is committed up to %q", last, u.at()), false
		case open:
			finished = false
		}
	}
	return "", finished
}

// Whoever gives up, takes over, repairs and tells: in every order each record is in the lake once,
// or in a gap that is not closed before it is, and there is an end.
func TestEveryOrderOfGivingUpTakingOverAndRepairing(t *testing.T) {
	stories := map[string]func(*testing.T) (*model, universe){
		"a window is given up, landed again, and its copy comes after all": givingUp(1),
		"a lost window, its zombie, and two repairs of its gaps":           losing(2, 0),
		"a claim whose copy is gone, its seal, and two others":             takingOver,
		"a holder, its lease, and a standby":                               leases(1, 0),
		"messages, a writer, and who settles":                              messages(0),
	}
	if os.Getenv("STREAMER_TEST_EXHAUSTIVE") != "" {
		stories["a window is given up, landed again after a day, and its copy comes after all"] = givingUp(2)
		stories["messages, a writer, and who settles, an answer lost"] = messages(1)
		stories["a lost window, two repairs, an answer lost"] = losing(2, 1)
		stories["a holder, its lease, two standbys"] = leases(2, 0)
		stories["a holder, its lease, a standby, an answer lost"] = leases(1, 1)
	}
	states := 0
	for _, what := range slices.Sorted(maps.Keys(stories)) {
		if underRace && !strings.HasPrefix(what, "a claim") && !strings.HasPrefix(what, "a lost") {
			continue // ten times slower, and the search shares little
		}
		t.Run(what, func(t *testing.T) {
			s := tell(t, stories[what], nil)
			if s.wrong != "" {
				t.Error(s.wrong)
			}
			states += len(s.index)
			t.Logf("%d states, %d steps, %d of them different", len(s.index), len(s.from), len(s.taken))
		})
	}
	t.Logf("states %d", states)
}

// As TestTheSearchNoticesRulesThatAreOff, for these scenes.
func TestTheSearchNoticesRulesOfGivingUpThatAreOff(t *testing.T) {
	for what, c := range map[string]struct {
		start func(*testing.T) (*model, universe)
		off   func(*memRequest)
	}{
		"what is claimed is not given up": {givingUp(1), eachOf(func(r *memRequest) {
			if r.Item["void"].text == "true" {
				r.ConditionExpression = ""
			}
		})},
		"what is published does not move": {takingOver, eachOf(func(r *memRequest) {
			if strings.HasPrefix(r.UpdateExpression, "SET #k = :k2") {
				r.ConditionExpression = ""
			}
		})},
		"one repair has a gap": {losing(2, 0), eachOf(func(r *memRequest) {
			if r.ExpressionAttributeValues[":state"].text == string(pipeline.GapRepairing) {
				r.ConditionExpression = ""
			}
		})},
		"a lease that changed is not taken over": {leases(1, 0), replaced("lease = :lease", "attribute_exists(lease) AND :lease = :lease")},
		"a message is of what is not committed":  {messages(0), replaced("seq = :seq AND attribute_not_exists(#end)", "attribute_not_exists(#end) AND :seq = :seq")},
	} {
		t.Run(what, func(t *testing.T) {
			if underRace && what != "one repair has a gap" {
				return
			}
			s := tell(t, c.start, c.off)
			if s.wrong == "" {
				t.Errorf("it finds nothing wrong in %d states", len(s.index))
			}
			t.Logf("after %d states: %s", len(s.index), s.wrong)
		})
	}
}
