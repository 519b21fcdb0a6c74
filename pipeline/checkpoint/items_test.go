package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/pipelinetest"
	"telemetrylake/schemas"
)

var update = flag.Bool("update", false, "write the golden files")

// stored fills a table with one item of each kind and form.
func stored(t *testing.T) *Store {
	embedded, clock := newClocked(t)
	s := New(embedded.client, "checkpoint", Options{Rand: bytes.NewReader(bytes.Repeat([]byte{0xab}, 64)), Host: "machine/17"})
	seq := pipelinetest.Begun(t, memory(s))
	if _, err := s.Shards(pipelinetest.Stream, pipelinetest.Lane, Run).Own(t.Context(), pipeline.Shard{ID: "shardId-2", Parent: pipelinetest.Shard}); err != nil {
		t.Fatal(err)
	}
	w := seq.Manifest(3)
	w.Shards[0].Oldest, w.Shards[0].Newest = today.Add(-time.Minute), today
	w.Shards[0].Missing = &pipeline.Missing{Cause: pipeline.GapTrimmed, From: today.Add(-30 * time.Hour), To: today.Add(-time.Hour)}
	if err := s.Begin(t.Context(), seq.Hold, w); err != nil {
		t.Fatal(err)
	}
	seq.Commit(t, w)
	if err := s.Landed(t.Context(), w.Window); err != nil {
		t.Fatal(err)
	}
	held, err := s.Claim(t.Context(), []pipeline.Claim{pipelinetest.ClaimOf(w, 0, "a"), pipelinetest.ClaimOf(w, 1, "a")})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Publish(t.Context(), held[:1]); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Void(t.Context(), pipeline.PartID{Window: w.Window, Index: 2}); err != nil {
		t.Fatal(err)
	}
	end := seq.Manifest(0)
	end.Shards[0].End = true
	if err := s.Begin(t.Context(), seq.Hold, end); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), seq.Hold, end); err != nil {
		t.Fatal(err)
	}
	storedGaps(t, s)
	storedLives(t, s, clock.Advance)
	shards := s.Shards(pipelinetest.Stream, pipelinetest.Lane, Run)
	if err := shards.Forget(t.Context(), []pipeline.ShardID{pipelinetest.Shard}, today); err != nil {
		t.Fatal(err)
	}
	if err := s.Halt(t.Context(), pipelinetest.Lane, "for a reason"); err != nil {
		t.Fatal(err)
	}
	c, err := schemas.Parse("small", []byte(smallContract))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.PutContract(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	// A window that is begun, in a lane of its own.
	st, err := s.Acquire(t.Context(), "backfill", false)
	if err != nil {
		t.Fatal(err)
	}
	b := seq.Manifest(1)
	b.Window, b.Shards = pipeline.WindowID{Lane: "backfill", Incarnation: st.Incarnation, N: 1}, nil
	if err := s.Begin(t.Context(), st.Hold, b); err != nil {
		t.Fatal(err)
	}
	return s
}

// storedGaps is a gap of each form.
func storedGaps(t *testing.T, s *Store) {
	t.Helper()
	discarded, _, err := s.OpenGap(t.Context(), pipeline.Gap{
		Stream: pipelinetest.Stream, Shard: "shardId-2", First: "5", Last: "9", Missing: pipeline.Missing{Cause: pipeline.GapDiscarded, From: today},
	})
	if err != nil {
		t.Fatal(err)
	}
	discarded.Repair = "repair-1"
	works(t, "repair", s.MoveGap(t.Context(), discarded, pipeline.GapRepairing, ""))
	discarded.State = pipeline.GapRepairing
	works(t, "close", s.MoveGap(t.Context(), discarded, pipeline.GapClosed, "found in the table"))
}

// storedLives is a lane that was rebuilt, whose past has a window that was given up, and one that
// is held under a lease and was handed over.
func storedLives(t *testing.T, s *Store, later func(time.Duration)) {
	t.Helper()
	ctx := t.Context()
	const stream = "arn:another"
	if _, err := s.Shards(stream, "old", Run).Own(ctx, pipeline.Shard{ID: "s", MetAt: today, StartAt: today}); err != nil {
		t.Fatal(err)
	}
	l := &Leased{Store: s, For: time.Minute}
	st, err := l.Acquire(ctx, "old", false)
	if err != nil {
		t.Fatal(err)
	}
	m := &pipeline.Manifest{
		Format: 1, Layout: 1, Window: pipeline.WindowID{Lane: "old", Incarnation: st.Incarnation, N: 1}, Stream: stream, Contract: "c0ffee",
		Shards: []pipeline.ShardRange{{Range: pipeline.Range{Shard: "s", First: "1", Last: "2"}, Oldest: today, Newest: today}},
		Parts:  []pipeline.PartSpec{{Table: "readings", Partition: "dt=2026-11-30", Rows: 2}},
	}
	for _, step := range []func() error{
		func() error { return s.Begin(ctx, st.Hold, m) },
		func() error { return s.Lose(ctx, st.Hold, m) },
		func() error { return s.Commit(ctx, st.Hold, m) },
		func() error { later(26 * time.Hour); return s.Fold(ctx, "old") },
		func() error { _, err := s.GiveUp(ctx, m.Window); return err },
		func() error { return s.Fold(ctx, "old") },
		func() error {
			_, err := s.Rebuild(ctx, Rebuilt{Lane: "old", Stream: stream, Side: Run, Shards: []RebuiltShard{{ID: "s", At: pipeline.Position{Seq: "2"}}}})
			return err
		},
		func() error { _, err := l.Acquire(ctx, "old", false); return err },
		func() error {
			_, err := s.Handover(ctx, Handover{Stream: stream, To: Lambda, Lane: func(id pipeline.ShardID) pipeline.LaneID { return LambdaLane("readings", id) }})
			return err
		},
		func() error { _, err := l.Acquire(ctx, "leased", false); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
}

const smallContract = `format: 1
name: readings
table: readings
description: readings
mode: append
keys:
  partition: {attribute: pk, type: S, pattern: "D#{d}"}
  sort: {attribute: sk, type: S, pattern: "T#{event_time}"}
columns:
  - {name: d, key: d, type: string, description: device}
  - {name: at, key: event_time, type: timestamp, encoding: iso8601, description: taken}
event_time: at
layout: {partition_by: day, first_partition: 2026-01-01}
`

// The names and forms of what is stored are for ever: a change here needs a new format version
// and a way to read the old one.
func TestStoredItems(t *testing.T) {
	all := items(t, stored(t))
	var lines []string
	for _, k := range slices.Sorted(maps.Keys(all)) {
		m := map[string]any{}
		for name, v := range all[k] {
			if name == "text" {
				continue // the contract's, as it is
			}
			m[name] = plain(t, v)
		}
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(b))
	}
	got := strings.Join(lines, "\n") + "\n"
	file := filepath.Join("testdata", "items.golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("stored items are\n%s\nwant\n%s", got, want)
	}
}

func plain(t *testing.T, v types.AttributeValue) any {
	switch v := v.(type) {
	case *types.AttributeValueMemberS:
		return v.Value
	case *types.AttributeValueMemberN:
		return json.Number(v.Value)
	case *types.AttributeValueMemberBOOL:
		return v.Value
	}
	t.Fatalf("no stored item has a %T", v)
	return nil
}

// A binary that meets a newer format stops and says so, whatever it was about to do.
func TestNewerItemsNeedAPerson(t *testing.T) {
	ctx := t.Context()
	hash := func() string {
		c, err := schemas.Parse("small", []byte(smallContract))
		if err != nil {
			t.Fatal(err)
		}
		return c.Hash()
	}()
	type seen struct {
		s     *Store
		seq   *pipelinetest.Sequence
		w, w2 *pipeline.Manifest // the second is pending
	}
	lane := laneKey(pipelinetest.Lane)
	shard := shardKey(pipelinetest.Stream, pipelinetest.Shard)
	window := func(x seen) key { return windowKey(x.w.Window) }
	part := func(x seen) key { return partKey(pipeline.PartID{Window: x.w.Window}) }
	claim := func(x seen) pipeline.Claim { return pipelinetest.ClaimOf(x.w, 0, "a") }
	for name, c := range map[string]struct {
		key func(seen) key
		do  map[string]func(seen) error
	}{
		"contract": {func(seen) key { return contractKey(hash) }, map[string]func(seen) error{
			"read": func(x seen) error { _, err := x.s.Contract(ctx, hash); return err },
		}},
		"side": {func(seen) key { return sideKey(pipelinetest.Stream) }, map[string]func(seen) error{
			"own": func(x seen) error {
				_, err := x.s.Shards(pipelinetest.Stream, pipelinetest.Lane, Run).Own(ctx, pipeline.Shard{ID: "new"})
				return err
			},
		}},
		"shard": {func(seen) key { return shard }, map[string]func(seen) error{
			"position": func(x seen) error {
				_, err := x.s.Position(ctx, x.seq.Hold, pipelinetest.Stream, pipelinetest.Shard)
				return err
			},
			"own": func(x seen) error {
				_, err := x.s.Shards(pipelinetest.Stream, pipelinetest.Lane, Run).Own(ctx, pipeline.Shard{ID: pipelinetest.Shard})
				return err
			},
			"status": func(x seen) error { _, _, err := x.s.StreamStatus(ctx, pipelinetest.Stream); return err },
		}},
		"lane": {func(seen) key { return lane }, map[string]func(seen) error{
			"acquire": func(x seen) error { _, err := x.s.Acquire(ctx, pipelinetest.Lane, false); return err },
			"fold":    func(x seen) error { return x.s.Fold(ctx, pipelinetest.Lane) },
			"status":  func(x seen) error { _, err := x.s.Lane(ctx, pipelinetest.Lane); return err },
			"begin": func(x seen) error {
				old := x.seq.Hold
				if _, err := x.s.client.UpdateItem(ctx, nextToken(x.s)); err != nil {
					return err
				}
				return x.s.Begin(ctx, old, x.seq.Manifest(1))
			},
			"window": func(x seen) error {
				_, _, err := x.s.Window(ctx, pipeline.WindowID{Lane: pipelinetest.Lane, Incarnation: x.seq.Hold.Incarnation, N: 99})
				return err
			},
		}},
		"window": {window, map[string]func(seen) error{
			"read":   func(x seen) error { _, _, err := x.s.Window(ctx, x.w.Window); return err },
			"fold":   func(x seen) error { return x.s.Fold(ctx, pipelinetest.Lane) },
			"status": func(x seen) error { _, err := x.s.Lane(ctx, pipelinetest.Lane); return err },
		}},
		"pending window": {func(x seen) key { return windowKey(x.w2.Window) }, map[string]func(seen) error{
			"acquire": func(x seen) error { _, err := x.s.Acquire(ctx, pipelinetest.Lane, false); return err },
		}},
		"part": {part, map[string]func(seen) error{
			"claim": func(x seen) error { _, err := x.s.Claim(ctx, []pipeline.Claim{claim(x)}); return err },
			"move": func(x seen) error {
				other := claim(x)
				other.Round = 5
				_, err := x.s.Move(ctx, other, claim(x))
				return err
			},
			"publish": func(x seen) error {
				other := claim(x)
				other.Name = "other"
				return x.s.Publish(ctx, []pipeline.Claim{other})
			},
			"fold": func(x seen) error { return x.s.Fold(ctx, pipelinetest.Lane) },
		}},
	} {
		for op, do := range c.do {
			for form, v := range map[string]types.AttributeValue{"newer": num(pipeline.FormatVersion + 1), "none": nil} {
				t.Run(name+"/"+op+"/"+form, func(t *testing.T) {
					t.Parallel()
					_, s := newService(t)
					x := seen{s: s, seq: pipelinetest.Begun(t, memory(s))}
					small, err := schemas.Parse("small", []byte(smallContract))
					if err != nil {
						t.Fatal(err)
					}
					if err := s.PutContract(ctx, small); err != nil {
						t.Fatal(err)
					}
					x.w = x.seq.Window(t, 2)
					if _, err := s.Claim(ctx, []pipeline.Claim{claim(x)}); err != nil {
						t.Fatal(err)
					}
					x.w2 = x.seq.Begin(t, 1)
					set(t, s, c.key(x), "fmt", v)
					pipelinetest.NeedsPerson(t, "with that item", do(x))
				})
			}
		}
	}
}

// nextToken is what a binary of any version does when it takes the lane over.
func nextToken(s *Store) *dynamodb.UpdateItemInput {
	expr := "SET #t = #t + :one"
	return &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: laneKey(pipelinetest.Lane).av(), UpdateExpression: &expr,
		ExpressionAttributeNames:  map[string]string{"#t": "token"},
		ExpressionAttributeValues: map[string]types.AttributeValue{":one": num(1)},
	}
}

// The manifest inside a window's item has a version of its own.
func TestNewerManifestsNeedAPerson(t *testing.T) {
	for name, change := range map[string][2]string{
		"format": {`"format":1`, `"format":2`}, "layout": {`"layout":1`, `"layout":2`},
	} {
		t.Run(name, func(t *testing.T) {
			_, s := newService(t)
			seq := pipelinetest.Begun(t, memory(s))
			w := seq.Window(t, 0)
			text, err := w.Encode()
			if err != nil {
				t.Fatal(err)
			}
			newer := strings.Replace(string(text), change[0], change[1], 1)
			set(t, s, windowKey(w.Window), "manifest", str(newer))
			_, _, err = s.Window(t.Context(), w.Window)
			pipelinetest.NeedsPerson(t, "window", err)
			pipelinetest.NeedsPerson(t, "fold", s.Fold(t.Context(), pipelinetest.Lane))
			_, err = s.Lane(t.Context(), pipelinetest.Lane)
			pipelinetest.NeedsPerson(t, "status", err)
			if !errors.Is(err, pipeline.ErrNewerFormat) {
				t.Errorf("status: %v", err)
			}
		})
	}
}

func TestOneSideReadsAStream(t *testing.T) {
	_, s := newService(t)
	a, b := pipeline.Shard{ID: "a"}, pipeline.Shard{ID: "b"}
	if _, err := s.Shards("arn", "one", Run).Own(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	_, err := s.Shards("arn", "two", Lambda).Own(t.Context(), b)
	pipelinetest.NeedsPerson(t, "own by the other side", err)
	if _, ok, err := s.Shards("arn", "two", Lambda).Position(t.Context(), "b"); ok || err != nil {
		t.Errorf("the refused shard has an item: %v, %v", ok, err)
	}
	if _, err := s.Shards("arn", "two", Run).Own(t.Context(), b); err != nil {
		t.Errorf("another lane of the same side: %v", err)
	}
	if _, err := s.Shards("arn2", "two", Lambda).Own(t.Context(), b); err != nil {
		t.Errorf("the other side on another stream: %v", err)
	}
	_, _, err = s.Shards("arn", "one", Run).Position(t.Context(), "b")
	pipelinetest.NeedsPerson(t, "position of another lane's shard", err)
}

func TestALaneWhosePendingWindowIsGoneNeedsAPerson(t *testing.T) {
	_, s := newService(t)
	w := pipelinetest.Begun(t, memory(s)).Begin(t, 1)
	if err := s.remove(t.Context(), []key{windowKey(w.Window)}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Acquire(t.Context(), pipelinetest.Lane, false)
	pipelinetest.NeedsPerson(t, "acquire", err)
}

func TestALaneThatIsGoneOrRestoredNeedsAPerson(t *testing.T) {
	_, s := newService(t)
	seq := pipelinetest.Begun(t, memory(s))
	set(t, s, laneKey(pipelinetest.Lane), "token", num(0))
	pipelinetest.NeedsPerson(t, "begin with a token from the future", s.Begin(t.Context(), seq.Hold, seq.Manifest(1)))
	if err := s.remove(t.Context(), []key{laneKey(pipelinetest.Lane)}); err != nil {
		t.Fatal(err)
	}
	pipelinetest.NeedsPerson(t, "begin in a lane that is gone", s.Begin(t.Context(), seq.Hold, seq.Manifest(1)))
	pipelinetest.NeedsPerson(t, "commit in a lane that is gone", s.Commit(t.Context(), seq.Hold, seq.Manifest(1)))
}

// A window item that vanished above the watermark holds the watermark back: nothing says that
// its parts are in the lake.
func TestTheWatermarkStopsAtAMissingWindow(t *testing.T) {
	_, s := newService(t)
	m := memory(s)
	seq := pipelinetest.Begun(t, m)
	var ws []*pipeline.Manifest
	for range 4 {
		ws = append(ws, seq.Window(t, 0))
	}
	if err := s.remove(t.Context(), []key{windowKey(ws[1].Window)}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Fold(t.Context(), pipelinetest.Lane); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []pipeline.WindowState{pipeline.WindowFolded, pipeline.WindowUnknown, pipeline.WindowSealed, pipeline.WindowSealed} {
		if got, _, err := s.Window(t.Context(), ws[i].Window); err != nil || got != want {
			t.Errorf("window %d is %s, %v, want %s", i+1, got, err, want)
		}
	}
}

// A window that was given up folds like a sealed one.
func TestAVoidWindowFolds(t *testing.T) {
	_, s := newService(t)
	seq := pipelinetest.Begun(t, memory(s))
	w := seq.Window(t, 2)
	next := seq.Window(t, 0)
	set(t, s, windowKey(w.Window), "state", str(string(pipeline.WindowVoid)))
	if _, err := s.Claim(t.Context(), []pipeline.Claim{pipelinetest.ClaimOf(w, 0, "a")}); !errors.Is(err, pipeline.ErrWindowClosed) {
		t.Errorf("claim in a void window: %v", err)
	}
	if err := s.Fold(t.Context(), pipelinetest.Lane); err != nil {
		t.Fatal(err)
	}
	for w, want := range map[*pipeline.Manifest]pipeline.WindowState{w: pipeline.WindowVoid, next: pipeline.WindowFolded} {
		if got, _, err := s.Window(t.Context(), w.Window); err != nil || got != want {
			t.Errorf("window %d is %s, %v", w.Window.N, got, err)
		}
	}
}

func TestStatusTellsALane(t *testing.T) {
	_, s := newService(t)
	if st, err := s.Lane(t.Context(), pipelinetest.Lane); err != nil || st.Exists {
		t.Errorf("a lane that never was: %+v, %v", st, err)
	}
	seq := pipelinetest.Begun(t, memory(s))
	seq.Window(t, 0)
	if err := s.Fold(t.Context(), pipelinetest.Lane); err != nil {
		t.Fatal(err)
	}
	seq.Window(t, 2)
	seq.Begin(t, 3)
	st, err := s.Lane(t.Context(), pipelinetest.Lane)
	if err != nil {
		t.Fatal(err)
	}
	if !st.Exists || st.Next != 3 || st.Pending != 3 || st.Watermark != 1 || st.Unsealed() != 2 || len(st.Windows) != 2 || st.Windows[1].Parts != 3 {
		t.Errorf("status %+v", st)
	}
	shards, gaps, err := s.StreamStatus(t.Context(), pipelinetest.Stream)
	if err != nil || gaps != 0 || len(shards) != 1 || shards[0].Lane != pipelinetest.Lane || shards[0].At.Seq != "200" {
		t.Errorf("shards %+v, %d gaps, %v", shards, gaps, err)
	}
}

func TestAProcessReopensItsLaneButNotItsSuccessors(t *testing.T) {
	cfg, _ := newService(t)
	process := func(name byte) *Store {
		return New(dynamodb.NewFromConfig(cfg), "checkpoint", Options{Rand: bytes.NewReader(bytes.Repeat([]byte{name}, 1<<10))})
	}
	first, second := process(1), process(2)
	a, err := first.Acquire(t.Context(), pipelinetest.Lane, false)
	if err != nil {
		t.Fatal(err)
	}
	again, err := first.Acquire(t.Context(), pipelinetest.Lane, true)
	if err != nil || again.Token <= a.Token || again.Incarnation != a.Incarnation {
		t.Fatalf("reopened with %+v, %v, after %+v", again.Hold, err, a.Hold)
	}
	b, err := second.Acquire(t.Context(), pipelinetest.Lane, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Acquire(t.Context(), pipelinetest.Lane, true); !errors.Is(err, pipeline.ErrFenced) {
		t.Errorf("a process takes the lane back from its successor: %v", err)
	}
	if c, err := second.Acquire(t.Context(), pipelinetest.Lane, true); err != nil || c.Token != b.Token+1 {
		t.Errorf("the successor reopens with %+v, %v", c.Hold, err)
	}
}
