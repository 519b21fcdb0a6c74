package pipelinetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/schemas"
)

// A Memory is all that remembers, as the contract suites see it: one store, seen by a process.
type Memory struct {
	pipeline.Checkpoints
	pipeline.Contracts
	pipeline.Ledger
	// Own makes a shard the lane's, and says up to where it is committed.
	Own func(ctx context.Context, lane pipeline.LaneID, stream string, s pipeline.Shard) (pipeline.Position, error)
	// Fold seals windows that are done and advances the lane's watermark.
	Fold func(ctx context.Context, lane pipeline.LaneID) error
	// Halt stops the lane from beginning windows.
	Halt func(ctx context.Context, lane pipeline.LaneID, why string) error
	// Void gives up a part without a claim.
	Void func(ctx context.Context, p pipeline.PartID) (pipeline.Claim, error)
	// GiveUp gives up the parts of a window that nobody claimed, and says how many; Landed notes
	// that it was landed again.
	GiveUp func(ctx context.Context, w pipeline.WindowID) (int, error)
	Landed func(ctx context.Context, w pipeline.WindowID) error
	// Later moves the server's clock.
	Later func(time.Duration)

	pipeline.Gaps
	// ListGaps lists the gaps of a stream, or of all for "".
	ListGaps func(ctx context.Context, stream string) ([]pipeline.Gap, error)
	// OpenGap opens one for what lies after the shard's position, MoveGap moves one on, SettleGaps
	// closes those of which the records were read after all.
	OpenGap    func(ctx context.Context, g pipeline.Gap) (pipeline.Gap, bool, error)
	MoveGap    func(ctx context.Context, g pipeline.Gap, to pipeline.GapState, evidence string) error
	SettleGaps func(ctx context.Context, stream string) (int, error)
}

// Names that the suites use.
const (
	Stream = "arn:aws:dynamodb:us-east-1:000000000000:table/readings/stream/1"
	Lane   = pipeline.LaneID("run-readings")
	Shard  = pipeline.ShardID("shardId-1")
)

// A Sequence makes windows of one lane and shard, each following the one before.
type Sequence struct {
	M    Memory
	Hold pipeline.Hold
	next int64
	at   pipeline.SequenceNumber
}

// Begun opens the lane on an empty store and owns the shard.
func Begun(t testing.TB, m Memory) *Sequence {
	t.Helper()
	if _, err := m.Own(t.Context(), Lane, Stream, pipeline.Shard{Stream: Stream, ID: Shard}); err != nil {
		t.Fatal(err)
	}
	st, err := m.Acquire(t.Context(), Lane, false)
	if err != nil {
		t.Fatal(err)
	}
	return &Sequence{M: m, Hold: st.Hold, next: st.Next}
}

// Manifest is the next window's, with so many parts.
func (s *Sequence) Manifest(parts int) *pipeline.Manifest {
	seq := pipeline.SequenceNumber(fmt.Sprint(s.next * 100))
	m := &pipeline.Manifest{
		Format: pipeline.FormatVersion, Layout: pipeline.LayoutVersion, Stream: Stream, Contract: "c0ffee",
		Window: pipeline.WindowID{Lane: Lane, Incarnation: s.Hold.Incarnation, N: s.next},
		Shards: []pipeline.ShardRange{{
			Range: pipeline.Range{Shard: Shard, First: seq, Last: seq}, After: s.at, Counts: pipeline.Counts{Rows: parts},
		}},
	}
	for range parts {
		m.Parts = append(m.Parts, pipeline.PartSpec{Table: "readings", Partition: "dt=2026-11-30", Rows: 1})
	}
	return m
}

// Begin begins the next window.
func (s *Sequence) Begin(t testing.TB, parts int) *pipeline.Manifest {
	t.Helper()
	m := s.Manifest(parts)
	if err := s.M.Begin(t.Context(), s.Hold, m); err != nil {
		t.Fatal(err)
	}
	return m
}

// Commit commits the window that was begun.
func (s *Sequence) Commit(t testing.TB, m *pipeline.Manifest) {
	t.Helper()
	if err := s.M.Commit(t.Context(), s.Hold, m); err != nil {
		t.Fatal(err)
	}
	s.next, s.at = m.Window.N+1, m.Shards[0].Last
}

// Window begins and commits the next window.
func (s *Sequence) Window(t testing.TB, parts int) *pipeline.Manifest {
	t.Helper()
	m := s.Begin(t, parts)
	s.Commit(t, m)
	return m
}

// NeedsPerson fails the test unless err is for a person.
func NeedsPerson(t testing.TB, what string, err error) {
	t.Helper()
	var p *pipeline.PersonError
	if !errors.As(err, &p) || p.Do == "" {
		t.Errorf("%s: %v, want an error that says what a person must do", what, err)
	}
}

func wants(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func works(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// TestCheckpoints is what every implementation of pipeline.Checkpoints and Contracts keeps.
// newStore gives an empty store.
func TestCheckpoints(t *testing.T, newStore func(testing.TB) Memory) {
	for name, test := range map[string]func(*testing.T, Memory){
		"a new lane begins with window 1":               newLane,
		"begin and commit succeed again":                idempotent,
		"begin and commit of an older token are fenced": fenced,
		"a lane finds its pending window again":         findsPending,
		"a pending window blocks the next":              pendingBlocks,
		"another manifest under the same number":        otherManifest,
		"a window out of turn":                          outOfTurn,
		"shards are owned and followed exactly":         shardChecks,
		"a shard ends once":                             shardEnds,
		"a halted lane begins nothing":                  haltedLane,
		"90 shards fit one window":                      manyShards,
		"what was created last is remembered":           created,
		"contracts come back as they were":              contracts,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newStore(t))
		})
	}
}

func newLane(t *testing.T, m Memory) {
	a, err := m.Acquire(t.Context(), Lane, false)
	works(t, "acquire", err)
	if a.Next != 1 || a.Pending != nil || a.Incarnation == "" || a.Lane != Lane {
		t.Errorf("state %+v", a)
	}
	b, err := m.Acquire(t.Context(), Lane, false)
	works(t, "acquire again", err)
	if b.Token <= a.Token || b.Incarnation != a.Incarnation {
		t.Errorf("token %d then %d, incarnation %s then %s", a.Token, b.Token, a.Incarnation, b.Incarnation)
	}
	other, err := m.Acquire(t.Context(), "other", false)
	works(t, "acquire another", err)
	if other.Incarnation == a.Incarnation {
		t.Error("two lanes have one incarnation")
	}
}

func idempotent(t *testing.T, m Memory) {
	s := Begun(t, m)
	w := s.Begin(t, 2)
	works(t, "begin again", m.Begin(t.Context(), s.Hold, w))
	s.Commit(t, w)
	works(t, "commit again", m.Commit(t.Context(), s.Hold, w))
	p, err := m.Position(t.Context(), s.Hold, Stream, Shard)
	works(t, "position", err)
	if p != (pipeline.Position{Seq: "100"}) {
		t.Errorf("position %+v", p)
	}
	s.Window(t, 1)
	if state, _, err := m.Window(t.Context(), w.Window); err != nil || state != pipeline.WindowCommitted {
		t.Errorf("window is %s, %v", state, err)
	}
	if err := m.Commit(t.Context(), s.Hold, w); err == nil {
		t.Error("a window is committed again after the next one was")
	}
}

func fenced(t *testing.T, m Memory) {
	old := Begun(t, m)
	pending := old.Begin(t, 1)
	st, err := m.Acquire(t.Context(), Lane, false)
	works(t, "acquire", err)
	wants(t, "commit of the old", m.Commit(t.Context(), old.Hold, pending), pipeline.ErrFenced)
	wants(t, "begin of the old", m.Begin(t.Context(), old.Hold, pending), pipeline.ErrFenced)
	if p, err := m.Position(t.Context(), st.Hold, Stream, Shard); err != nil || p.Seq != "" {
		t.Errorf("position %+v, %v: a fenced commit moved it", p, err)
	}
	works(t, "commit of the new", m.Commit(t.Context(), st.Hold, st.Pending))
	// The old one's window is committed by now, and not by it.
	wants(t, "commit of the old", m.Commit(t.Context(), old.Hold, pending), pipeline.ErrFenced)
	old.next, old.at = 2, "100"
	wants(t, "begin of the old", m.Begin(t.Context(), old.Hold, old.Manifest(1)), pipeline.ErrFenced)
	if state, _, err := m.Window(t.Context(), pipeline.WindowID{Lane: Lane, Incarnation: old.Hold.Incarnation, N: 2}); err != nil || state != pipeline.WindowUnknown {
		t.Errorf("window 2 is %s, %v: a fenced begin stored it", state, err)
	}
	reset := old.Hold
	reset.Token, reset.Incarnation = st.Token, "another"
	wants(t, "begin of another incarnation", m.Begin(t.Context(), reset, old.Manifest(1)), pipeline.ErrFenced)
}

func findsPending(t *testing.T, m Memory) {
	s := Begun(t, m)
	s.Window(t, 1)
	w := s.Begin(t, 3)
	for range 2 {
		st, err := m.Acquire(t.Context(), Lane, false)
		works(t, "acquire", err)
		if st.Next != 2 || st.Pending == nil {
			t.Fatalf("state %+v", st)
		}
		got, _ := st.Pending.Encode()
		if want, _ := w.Encode(); string(got) != string(want) {
			t.Errorf("pending window is %s, was begun as %s", got, want)
		}
		s.Hold = st.Hold
	}
	s.Commit(t, w)
	st, err := m.Acquire(t.Context(), Lane, false)
	works(t, "acquire", err)
	if st.Next != 3 || st.Pending != nil {
		t.Errorf("state %+v", st)
	}
}

func pendingBlocks(t *testing.T, m Memory) {
	s := Begun(t, m)
	w := s.Begin(t, 1)
	s.next, s.at = 2, "100"
	next := s.Manifest(1)
	NeedsPerson(t, "begin of the next", m.Begin(t.Context(), s.Hold, next))
	NeedsPerson(t, "commit of the next", m.Commit(t.Context(), s.Hold, next))
	s.Commit(t, w)
	works(t, "begin of the next after commit", m.Begin(t.Context(), s.Hold, next))
}

func otherManifest(t *testing.T, m Memory) {
	s := Begun(t, m)
	w := s.Begin(t, 1)
	other := s.Manifest(2)
	NeedsPerson(t, "begin", m.Begin(t.Context(), s.Hold, other))
	_, stored, err := m.Window(t.Context(), w.Window)
	works(t, "window", err)
	if len(stored.Parts) != 1 {
		t.Errorf("the stored manifest has %d parts, was begun with 1", len(stored.Parts))
	}
}

func outOfTurn(t *testing.T, m Memory) {
	s := Begun(t, m)
	for _, n := range []int64{0, 2, 7} {
		s.next = n
		NeedsPerson(t, fmt.Sprintf("begin of window %d first", n), m.Begin(t.Context(), s.Hold, s.Manifest(1)))
	}
	s.next = 1
	NeedsPerson(t, "commit of a window never begun", m.Commit(t.Context(), s.Hold, s.Manifest(1)))
}

func shardChecks(t *testing.T, m Memory) {
	ctx := t.Context()
	s := Begun(t, m)
	p, err := m.Own(ctx, Lane, Stream, pipeline.Shard{Stream: Stream, ID: Shard})
	works(t, "own again", err)
	if p != (pipeline.Position{}) {
		t.Errorf("position %+v", p)
	}
	_, err = m.Own(ctx, "thief", Stream, pipeline.Shard{Stream: Stream, ID: Shard})
	NeedsPerson(t, "own another's", err)
	thief, err := m.Acquire(ctx, "thief", false)
	works(t, "acquire", err)
	_, err = m.Position(ctx, thief.Hold, Stream, Shard)
	NeedsPerson(t, "position of another's", err)
	stolen := s.Manifest(1)
	stolen.Window = pipeline.WindowID{Lane: "thief", Incarnation: thief.Incarnation, N: 1}
	NeedsPerson(t, "begin with another's", m.Begin(ctx, thief.Hold, stolen))

	if _, err := m.Position(ctx, s.Hold, Stream, "never owned"); err == nil {
		t.Error("a shard without item has a position")
	}
	unowned := s.Manifest(1)
	unowned.Shards[0].Shard = "never owned"
	if err := m.Begin(ctx, s.Hold, unowned); err == nil {
		t.Error("begin with a shard that nobody owns")
	}
	ahead := s.Manifest(1)
	ahead.Shards[0].After = "50"
	NeedsPerson(t, "begin after a position it does not have", m.Begin(ctx, s.Hold, ahead))
	s.Window(t, 1)
	behind := s.Manifest(1)
	behind.Shards[0].After = ""
	NeedsPerson(t, "begin from the start again", m.Begin(ctx, s.Hold, behind))
	s.Window(t, 1) // none of the refused left anything behind
}

func shardEnds(t *testing.T, m Memory) {
	ctx := t.Context()
	s := Begun(t, m)
	s.Window(t, 1)
	end := s.Manifest(0)
	end.Shards[0] = pipeline.ShardRange{Range: pipeline.Range{Shard: Shard, End: true}, After: s.at}
	works(t, "begin", m.Begin(ctx, s.Hold, end))
	works(t, "commit", m.Commit(ctx, s.Hold, end))
	p, err := m.Position(ctx, s.Hold, Stream, Shard)
	works(t, "position", err)
	if p != (pipeline.Position{Seq: "100", End: true}) {
		t.Errorf("position %+v", p)
	}
	s.next = 3
	NeedsPerson(t, "begin after the end", m.Begin(ctx, s.Hold, s.Manifest(1)))

	// A child that never had a record, and one that ends with its only record.
	for i, r := range []pipeline.Range{{Shard: "empty", End: true}, {Shard: "short", First: "7", Last: "7", End: true}} {
		if _, err := m.Own(ctx, Lane, Stream, pipeline.Shard{Stream: Stream, ID: r.Shard, Parent: Shard}); err != nil {
			t.Fatal(err)
		}
		w := s.Manifest(0)
		w.Window.N = int64(3 + i)
		w.Shards[0] = pipeline.ShardRange{Range: r}
		works(t, "begin", m.Begin(ctx, s.Hold, w))
		works(t, "commit", m.Commit(ctx, s.Hold, w))
		want := w.Shards[0].Position()
		want.Parent = Shard
		if p, err := m.Position(ctx, s.Hold, Stream, r.Shard); err != nil || p != want {
			t.Errorf("position of %s is %+v, %v", r.Shard, p, err)
		}
	}
}

func haltedLane(t *testing.T, m Memory) {
	ctx := t.Context()
	s := Begun(t, m)
	w := s.Begin(t, 1)
	works(t, "halt", m.Halt(ctx, Lane, "for a reason"))
	works(t, "halt again", m.Halt(ctx, Lane, "for another"))
	// What is begun is begun: saying so again is no new window.
	works(t, "begin again", m.Begin(ctx, s.Hold, w))
	s.Commit(t, w)
	works(t, "commit again", m.Commit(ctx, s.Hold, w))
	NeedsPerson(t, "begin of the next", m.Begin(ctx, s.Hold, s.Manifest(1)))
	_, err := m.Acquire(ctx, Lane, false)
	NeedsPerson(t, "acquire", err)
	if err := m.Halt(ctx, "never seen", "why"); err == nil {
		t.Error("a lane that does not exist is halted")
	}
	if st, err := m.Acquire(ctx, "never seen", false); err != nil || st.Next != 1 {
		t.Errorf("acquire after it: %+v, %v", st, err)
	}
}

func manyShards(t *testing.T, m Memory) {
	ctx := t.Context()
	s := Begun(t, m)
	w := s.Manifest(1)
	w.Shards = nil
	for i := range pipeline.MaxShardsPerWindow {
		id := pipeline.ShardID(fmt.Sprintf("s-%02d", i))
		if _, err := m.Own(ctx, Lane, Stream, pipeline.Shard{Stream: Stream, ID: id}); err != nil {
			t.Fatal(err)
		}
		w.Shards = append(w.Shards, pipeline.ShardRange{Range: pipeline.Range{Shard: id, First: "1", Last: "2"}})
	}
	works(t, "begin", m.Begin(ctx, s.Hold, w))
	works(t, "commit", m.Commit(ctx, s.Hold, w))
	for _, r := range w.Shards {
		if p, err := m.Position(ctx, s.Hold, Stream, r.Shard); err != nil || p.Seq != "2" {
			t.Errorf("position of %s is %+v, %v", r.Shard, p, err)
		}
	}
}

func created(t *testing.T, m Memory) {
	s := Begun(t, m)
	at := time.Date(2026, 11, 30, 11, 0, 7, 0, time.UTC)
	w := s.Manifest(1)
	w.Shards[0].Oldest, w.Shards[0].Newest = at.Add(-time.Minute), at
	works(t, "begin", m.Begin(t.Context(), s.Hold, w))
	works(t, "begin again", m.Begin(t.Context(), s.Hold, w))
	s.Commit(t, w)
	end := s.Manifest(0) // a window without records leaves it as it is
	end.Shards[0] = pipeline.ShardRange{Range: pipeline.Range{Shard: Shard, End: true}, After: s.at}
	works(t, "begin", m.Begin(t.Context(), s.Hold, end))
	works(t, "commit", m.Commit(t.Context(), s.Hold, end))
	p, err := m.Position(t.Context(), s.Hold, Stream, Shard)
	works(t, "position", err)
	if want := (pipeline.Position{Seq: "100", End: true, Created: at}); p != want {
		t.Errorf("position %+v, want %+v", p, want)
	}
}

func contracts(t *testing.T, m Memory) {
	c, err := schemas.Load("sensor_readings")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		works(t, "put", m.PutContract(t.Context(), c))
	}
	got, err := m.Contract(t.Context(), c.Hash())
	works(t, "get", err)
	if got == nil || string(got.Text()) != string(c.Text()) {
		t.Error("the text differs")
	}
	_, err = m.Contract(t.Context(), "0000")
	NeedsPerson(t, "get of one that is not there", err)
}
