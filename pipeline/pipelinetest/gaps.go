package pipelinetest

import (
	"fmt"
	"testing"
	"time"

	"telemetrylake/pipeline"
)

// TestGaps is what every gap ledger keeps, and how windows are given up.
func TestGaps(t *testing.T, newStore func(testing.TB) Memory) {
	for name, test := range map[string]func(*testing.T, Memory){
		"begin opens the gaps of its shards":                      beginOpens,
		"a gap without records is found once":                     foundOnce,
		"an open gap grows, a closed one does not":                gapsBehindOnePosition,
		"shards and gaps fit one transaction":                     manyGaps,
		"a lost window is a gap before it is committed":           lostWindow,
		"a lost window that was landed leaves no gap":             lostAndLanded,
		"a window is given up 25 hours after its landing":         givenUp,
		"a landing again puts giving up off":                      landedAgain,
		"what was claimed is not given up":                        claimedStays,
		"a given-up window is void for ever":                      voidForEver,
		"gaps go from open to repairing to closed, by one repair": gapStates,
		"discarded records are a gap behind the position":         discarded,
		"discarded records that were read close their gap":        readAfterAll,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newStore(t))
		})
	}
}

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func missing(from, to time.Time) *pipeline.Missing {
	return &pipeline.Missing{Cause: pipeline.GapTrimmed, From: from, To: to}
}

// gaps lists the gaps of the suites' stream and fails the test unless there are so many.
func (m Memory) gaps(t testing.TB, want int) []pipeline.Gap {
	t.Helper()
	all, err := m.ListGaps(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	ours, err := m.ListGaps(t.Context(), Stream)
	if err != nil {
		t.Fatal(err)
	}
	if len(ours) != want || len(all) != want {
		t.Fatalf("%d gaps of the stream, %d of all, want %d: %+v", len(ours), len(all), want, ours)
	}
	return ours
}

// bounds is what a gap says, without its name and when it was found.
func bounds(g pipeline.Gap) string {
	at := func(x time.Time) string {
		if x.IsZero() {
			return "?"
		}
		return x.UTC().Format("02T15:04:05")
	}
	return fmt.Sprintf("%s %s: after %q before %q, %q to %q, %s to %s", g.State, g.Cause, g.After, g.Before, g.First, g.Last, at(g.From), at(g.To))
}

func wantBounds(t testing.TB, g pipeline.Gap, want string) {
	t.Helper()
	if got := bounds(g); got != want {
		t.Errorf("gap is %s\nwant   %s", got, want)
	}
	if g.Stream != Stream || g.ID == "" || g.Lane != Lane || g.Detected.IsZero() {
		t.Errorf("gap %+v", g)
	}
}

// miss begins and commits a window that misses records before its own, or has none.
func (s *Sequence) miss(t testing.TB, miss *pipeline.Missing, records bool) *pipeline.Manifest {
	t.Helper()
	w := s.Manifest(0)
	w.Shards[0].Missing = miss
	if !records {
		w.Shards[0].Range = pipeline.Range{Shard: Shard}
	}
	for range 2 {
		if err := s.M.Begin(t.Context(), s.Hold, w); err != nil {
			t.Fatal(err)
		}
	}
	at := s.at
	s.Commit(t, w)
	if !records {
		s.at = at
	}
	return w
}

func beginOpens(t *testing.T, m Memory) {
	s := Begun(t, m)
	s.Window(t, 1)
	s.miss(t, missing(noon, noon.Add(time.Hour+time.Millisecond)), true)
	g := m.gaps(t, 1)[0]
	wantBounds(t, g, `open trimmed: after "100" before "200", "" to "", 30T12:00:00 to 30T13:00:01`)
	if g.Shard != Shard {
		t.Errorf("gap of shard %s", g.Shard)
	}
	if p, err := m.Position(t.Context(), s.Hold, Stream, Shard); err != nil || p != (pipeline.Position{Seq: "200"}) {
		t.Errorf("position %+v, %v", p, err)
	}
	// A stale begin opens none.
	if _, err := m.Acquire(t.Context(), Lane, false); err != nil {
		t.Fatal(err)
	}
	late := s.Manifest(0)
	late.Shards[0].Missing = missing(noon, noon)
	wants(t, "begin of the old", m.Begin(t.Context(), s.Hold, late), pipeline.ErrFenced)
	m.gaps(t, 1)
}

func foundOnce(t *testing.T, m Memory) {
	s := Begun(t, m)
	s.Window(t, 1)
	s.miss(t, missing(noon, noon.Add(time.Hour)), false)
	wantBounds(t, m.gaps(t, 1)[0], `open trimmed: after "100" before "", "" to "", 30T12:00:00 to 30T13:00:00`)
	p, err := m.Position(t.Context(), s.Hold, Stream, Shard)
	works(t, "position", err)
	if want := (pipeline.Position{Seq: "100", TipAt: noon.Add(time.Hour)}); p != want {
		t.Errorf("position %+v, want %+v", p, want)
	}
	s.Window(t, 1) // goes on behind the old position
	m.gaps(t, 1)
}

func gapsBehindOnePosition(t *testing.T, m Memory) {
	s := Begun(t, m)
	s.Window(t, 1)
	s.miss(t, missing(noon, noon.Add(time.Hour)), false)
	s.miss(t, missing(noon.Add(time.Hour), noon.Add(2*time.Hour)), false) // it begins where the first ends
	wantBounds(t, m.gaps(t, 1)[0], `open trimmed: after "100" before "", "" to "", 30T12:00:00 to 30T14:00:00`)
	s.miss(t, missing(noon.Add(9*time.Hour), noon.Add(10*time.Hour)), false) // between them all was read
	gs := m.gaps(t, 2)
	wantBounds(t, gs[0], `open trimmed: after "100" before "", "" to "", 30T12:00:00 to 30T14:00:00`)
	wantBounds(t, gs[1], `open trimmed: after "100" before "", "" to "", 30T21:00:00 to 30T22:00:00`)
	works(t, "close", m.MoveGap(t.Context(), gs[0], pipeline.GapClosed, "found in the table"))
	works(t, "repair", m.MoveGap(t.Context(), repairBy(gs[1], "r1"), pipeline.GapRepairing, ""))
	s.miss(t, missing(noon.Add(10*time.Hour), noon.Add(11*time.Hour)), true)
	gs = m.gaps(t, 3)
	wantBounds(t, gs[0], `closed trimmed: after "100" before "", "" to "", 30T12:00:00 to 30T14:00:00`)
	wantBounds(t, gs[1], `repairing trimmed: after "100" before "", "" to "", 30T21:00:00 to 30T22:00:00`)
	wantBounds(t, gs[2], fmt.Sprintf(`open trimmed: after "100" before "%s", "" to "", 30T22:00:00 to 30T23:00:00`, s.at))
}

func manyGaps(t *testing.T, m Memory) {
	s := Begun(t, m)
	w := s.Manifest(1)
	w.Shards = nil
	for i := range pipeline.MaxShardsPerWindow / 2 {
		id := pipeline.ShardID(fmt.Sprintf("s-%02d", i))
		if _, err := m.Own(t.Context(), Lane, Stream, pipeline.Shard{Stream: Stream, ID: id}); err != nil {
			t.Fatal(err)
		}
		w.Shards = append(w.Shards, pipeline.ShardRange{
			Range: pipeline.Range{Shard: id, First: "1", Last: "2"}, Missing: missing(noon, noon.Add(time.Minute)),
		})
	}
	works(t, "begin", m.Begin(t.Context(), s.Hold, w))
	works(t, "commit", m.Commit(t.Context(), s.Hold, w))
	m.gaps(t, pipeline.MaxShardsPerWindow/2)
}

// aged is a window that is begun, of records that are so old.
func (s *Sequence) aged(t testing.TB, parts int) *pipeline.Manifest {
	t.Helper()
	w := s.Manifest(parts)
	w.Shards[0].Oldest, w.Shards[0].Newest = noon, noon.Add(time.Minute)
	if err := s.M.Begin(t.Context(), s.Hold, w); err != nil {
		t.Fatal(err)
	}
	return w
}

const windowBounds = `open window: after "" before "", "100" to "100", 30T12:00:00 to 30T12:01:00`

func lostWindow(t *testing.T, m Memory) {
	s := Begun(t, m)
	w := s.aged(t, 2)
	st, err := m.Acquire(t.Context(), Lane, false)
	works(t, "acquire", err)
	wants(t, "lose with an old token", m.Lose(t.Context(), s.Hold, w), pipeline.ErrFenced)
	m.gaps(t, 0)
	s.Hold = st.Hold
	for range 2 {
		works(t, "lose", m.Lose(t.Context(), s.Hold, w))
		g := m.gaps(t, 1)[0]
		wantBounds(t, g, windowBounds)
		if g.Window == nil || *g.Window != w.Window {
			t.Errorf("gap of window %v", g.Window)
		}
	}
	// Its parts may be on their way: they cannot be repaired yet.
	if err := m.MoveGap(t.Context(), repairBy(m.gaps(t, 1)[0], "r1"), pipeline.GapRepairing, ""); err == nil {
		t.Error("the gap of a pending window is repaired")
	}
	s.Commit(t, w)
	works(t, "lose after commit", m.Lose(t.Context(), s.Hold, w))
	m.gaps(t, 1)
	m.fold(t)
	m.state(t, pipeline.WindowCommitted, w)
	if err := m.MoveGap(t.Context(), repairBy(m.gaps(t, 1)[0], "r1"), pipeline.GapRepairing, ""); err == nil {
		t.Error("the gap of a window with unclaimed parts is repaired")
	}
	m.Later(25*time.Hour + time.Second)
	if n, err := m.GiveUp(t.Context(), w.Window); err != nil || n != 2 {
		t.Errorf("gave %d parts up, %v", n, err)
	}
	m.fold(t)
	m.void(t, w)
	works(t, "repair", m.MoveGap(t.Context(), repairBy(m.gaps(t, 1)[0], "r1"), pipeline.GapRepairing, ""))
}

func lostAndLanded(t *testing.T, m Memory) {
	s := Begun(t, m)
	w := s.aged(t, 2)
	works(t, "lose", m.Lose(t.Context(), s.Hold, w))
	s.Commit(t, w)
	m.publish(t, m.claim(t, ClaimOf(w, 0, "a"), ClaimOf(w, 1, "a"))...)
	m.fold(t)
	m.state(t, pipeline.WindowFolded, w)
	g := m.gaps(t, 1)[0]
	if g.State != pipeline.GapClosed || g.Evidence == "" {
		t.Errorf("gap %+v", g)
	}
}

func givenUp(t *testing.T, m Memory) {
	s := Begun(t, m)
	w := s.aged(t, 120)
	if _, err := m.GiveUp(t.Context(), w.Window); err == nil {
		t.Error("a pending window is given up")
	}
	s.Commit(t, w)
	m.publish(t, m.claim(t, ClaimOf(w, 3, "a"))...)
	m.Later(25*time.Hour - 2*time.Second)
	if n, err := m.GiveUp(t.Context(), w.Window); err == nil || n != 0 {
		t.Errorf("%d parts are given up after less than 25 hours", n)
	}
	m.gaps(t, 0)
	m.Later(4 * time.Second)
	if n, err := m.GiveUp(t.Context(), w.Window); err != nil || n != 119 {
		t.Errorf("gave %d parts up, %v", n, err)
	}
	wantBounds(t, m.gaps(t, 1)[0], windowBounds)
	if n, err := m.GiveUp(t.Context(), w.Window); err != nil || n != 0 {
		t.Errorf("again: %d, %v", n, err)
	}
	if got := m.claim(t, ClaimOf(w, 5, "late"))[0]; !got.Void {
		t.Errorf("a late copy gets %+v", got)
	}
	m.fold(t)
	m.void(t, w)
	if n, err := m.GiveUp(t.Context(), w.Window); err != nil || n != 0 {
		t.Errorf("folded: %d, %v", n, err)
	}
	never := s.Manifest(1)
	if _, err := m.GiveUp(t.Context(), never.Window); err == nil {
		t.Error("a window never begun is given up")
	}
	if g := m.gaps(t, 1)[0]; g.State != pipeline.GapOpen {
		t.Errorf("gap %+v", g)
	}
}

func landedAgain(t *testing.T, m Memory) {
	s := Begun(t, m)
	w := s.aged(t, 1)
	s.Commit(t, w)
	m.Later(20 * time.Hour)
	works(t, "landed", m.Landed(t.Context(), w.Window))
	m.Later(20 * time.Hour)
	if _, err := m.GiveUp(t.Context(), w.Window); err == nil {
		t.Error("it is given up 20 hours after a landing")
	}
	m.Later(6 * time.Hour)
	if n, err := m.GiveUp(t.Context(), w.Window); err != nil || n != 1 {
		t.Errorf("gave %d parts up, %v", n, err)
	}
	m.fold(t)
	wants(t, "landed when it is folded", m.Landed(t.Context(), w.Window), pipeline.ErrWindowClosed)
}

func claimedStays(t *testing.T, m Memory) {
	s := Begun(t, m)
	w := s.aged(t, 2)
	s.Commit(t, w)
	held := m.claim(t, ClaimOf(w, 0, "a"), ClaimOf(w, 1, "a"))
	m.Later(26 * time.Hour)
	if n, err := m.GiveUp(t.Context(), w.Window); err != nil || n != 0 {
		t.Errorf("gave %d parts up, %v", n, err)
	}
	m.gaps(t, 0)
	m.fold(t)
	m.state(t, pipeline.WindowCommitted, w)
	m.publish(t, held...)
	m.fold(t)
	m.state(t, pipeline.WindowFolded, w)
}

func voidForEver(t *testing.T, m Memory) {
	s := Begun(t, m)
	var ws []*pipeline.Manifest
	for i := range 6 {
		w := s.Window(t, 1)
		ws = append(ws, w)
		if i == 1 || i == 5 {
			m.publish(t, m.claim(t, ClaimOf(w, 0, "a"))...)
		}
	}
	m.Later(26 * time.Hour)
	for _, i := range []int{4, 2, 0} { // out of order, with folds between
		if n, err := m.GiveUp(t.Context(), ws[i].Window); err != nil || n != 1 {
			t.Errorf("gave %d parts of window %d up, %v", n, i+1, err)
		}
		m.fold(t)
	}
	m.void(t, ws[0], ws[2])
	m.state(t, pipeline.WindowCommitted, ws[3])
	m.state(t, pipeline.WindowVoid, ws[4])
	m.state(t, pipeline.WindowSealed, ws[5])
	if _, err := m.GiveUp(t.Context(), ws[3].Window); err != nil {
		t.Fatal(err)
	}
	m.fold(t)
	m.fold(t)
	m.void(t, ws[0], ws[2], ws[3], ws[4])
	m.state(t, pipeline.WindowFolded, ws[1], ws[5])
	_, err := m.Claim(t.Context(), []pipeline.Claim{ClaimOf(ws[3], 0, "late")})
	wants(t, "claim in a window that was given up", err, pipeline.ErrWindowClosed)
}

// repairBy is g as a repair of that name takes it.
func repairBy(g pipeline.Gap, name string) pipeline.Gap {
	g.Repair = name
	return g
}

func gapStates(t *testing.T, m Memory) {
	s := Begun(t, m)
	s.miss(t, missing(noon, noon.Add(time.Hour)), true)
	ctx := t.Context()
	open := m.gaps(t, 1)[0]
	refused := func(what string, g pipeline.Gap, to pipeline.GapState, evidence string) {
		t.Helper()
		before := m.gaps(t, 1)[0]
		if err := m.MoveGap(ctx, g, to, evidence); err == nil {
			t.Errorf("%s", what)
		}
		if after := m.gaps(t, 1)[0]; after != before {
			t.Errorf("%s: it was %+v and is %+v", what, before, after)
		}
	}
	refused("a gap is closed without evidence", open, pipeline.GapClosed, "")
	refused("an open gap is opened", open, pipeline.GapOpen, "")
	refused("a repair without a name takes a gap", open, pipeline.GapRepairing, "")
	first, second := repairBy(open, "first"), repairBy(open, "second")
	wrong := first
	wrong.To = wrong.To.Add(time.Minute)
	refused("a gap with other bounds is repaired", wrong, pipeline.GapRepairing, "")
	wrong = first
	wrong.ID += "9"
	refused("a gap that is not there is repaired", wrong, pipeline.GapRepairing, "")
	works(t, "repair", m.MoveGap(ctx, first, pipeline.GapRepairing, ""))
	works(t, "repair again after a lost answer", m.MoveGap(ctx, first, pipeline.GapRepairing, ""))
	refused("two repairs have one gap", second, pipeline.GapRepairing, "")
	refused("a gap that is repaired is closed as one that is open", open, pipeline.GapClosed, "found")
	repairing := m.gaps(t, 1)[0]
	if repairing != at(first, pipeline.GapRepairing) {
		t.Errorf("the first has %+v", repairing)
	}
	refused("a repair ends another's", repairBy(repairing, "second"), pipeline.GapClosed, "found")
	works(t, "break off", m.MoveGap(ctx, repairing, pipeline.GapOpen, ""))
	works(t, "break off again after a lost answer", m.MoveGap(ctx, repairing, pipeline.GapOpen, ""))
	refused("a gap that is open is closed as one that is repaired", repairing, pipeline.GapClosed, "found")
	works(t, "the second repairs", m.MoveGap(ctx, second, pipeline.GapRepairing, ""))
	refused("one that was broken off ends the repair of another", repairing, pipeline.GapClosed, "found")
	refused("one that was broken off opens the gap under another", repairing, pipeline.GapOpen, "")
	repairing = m.gaps(t, 1)[0]
	works(t, "close", m.MoveGap(ctx, repairing, pipeline.GapClosed, "3 rows from the table"))
	works(t, "close again after a lost answer", m.MoveGap(ctx, repairing, pipeline.GapClosed, "3 rows from the table"))
	refused("it is closed with other evidence", repairing, pipeline.GapClosed, "4 rows from the table")
	closed := m.gaps(t, 1)[0]
	if closed.State != pipeline.GapClosed || closed.Evidence != "3 rows from the table" || closed.Repair != "second" {
		t.Errorf("gap %+v", closed)
	}
	refused("a closed gap is opened again", closed, pipeline.GapOpen, "")
	refused("a closed gap is repaired", closed, pipeline.GapRepairing, "")
}

func at(g pipeline.Gap, state pipeline.GapState) pipeline.Gap {
	g.State = state
	return g
}

func (m Memory) discard(t testing.TB, first, last pipeline.SequenceNumber, want bool) pipeline.Gap {
	t.Helper()
	g, open, err := m.OpenGap(t.Context(), pipeline.Gap{
		Stream: Stream, Shard: Shard, First: first, Last: last,
		Missing: pipeline.Missing{Cause: pipeline.GapDiscarded, From: noon, To: noon.Add(time.Minute)},
	})
	if err != nil || open != want {
		t.Fatalf("open %v, %v, want %v", open, err, want)
	}
	return g
}

func discarded(t *testing.T, m Memory) {
	s := Begun(t, m)
	s.Window(t, 1)
	m.discard(t, "90", "100", false) // committed
	m.gaps(t, 0)
	for range 2 { // a message comes again
		g := m.discard(t, "150", "170", true)
		if g.After != "100" || g.ID == "" {
			t.Errorf("gap %+v", g)
		}
		wantBounds(t, m.gaps(t, 1)[0], `open discarded: after "100" before "", "150" to "170", 30T12:00:00 to 30T12:01:00`)
	}
	m.discard(t, "90", "120", true) // partly committed
	m.discard(t, "171", "180", true)
	g := m.gaps(t, 1)[0]
	wantBounds(t, g, `open discarded: after "100" before "", "90" to "180", 30T12:00:00 to 30T12:01:00`)
	works(t, "repair", m.MoveGap(t.Context(), repairBy(g, "r1"), pipeline.GapRepairing, ""))
	m.discard(t, "150", "170", true)
	m.gaps(t, 1)
	m.discard(t, "181", "190", true)
	gs := m.gaps(t, 2)
	wantBounds(t, gs[1], `open discarded: after "100" before "", "181" to "190", 30T12:00:00 to 30T12:01:00`)
	if _, _, err := m.OpenGap(t.Context(), pipeline.Gap{Stream: Stream, Shard: Shard, First: "7", Last: "6"}); err == nil {
		t.Error("a gap that ends before it begins")
	}
}

func readAfterAll(t *testing.T, m Memory) {
	s := Begun(t, m)
	s.Window(t, 1)
	m.discard(t, "150", "190", true)
	settle := func(want int) {
		t.Helper()
		if n, err := m.SettleGaps(t.Context(), Stream); err != nil || n != want {
			t.Errorf("settled %d, %v, want %d", n, err, want)
		}
	}
	settle(0)
	s.Window(t, 1) // 200 follows 100: what lies between was read, or is a gap of its own
	settle(1)
	settle(0)
	if g := m.gaps(t, 1)[0]; g.State != pipeline.GapClosed || g.Evidence == "" {
		t.Errorf("gap %+v", g)
	}
	// Of those that aged out before they were read after all the reader's own gap stays open, which
	// has bounds of its own.
	m.discard(t, "250", "290", true)
	s.miss(t, missing(noon, noon.Add(time.Hour)), true)
	settle(1)
	gs := m.gaps(t, 3)
	wantBounds(t, gs[1], `open trimmed: after "200" before "300", "" to "", 30T12:00:00 to 30T13:00:00`)
}
