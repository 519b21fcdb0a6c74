package observe_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/observe"
)

// through tells a fresh Observer of a book and of the shards that a complete listing names, in
// that order, and returns what it makes of it.
func through(t *testing.T, b observe.Book, listed ...observe.Shard) observe.Integrity {
	t.Helper()
	o, clock := watched(observe.Options{})
	if err := o.Refresh(t.Context(), func(context.Context) (observe.Book, error) { return b, nil }); err != nil {
		t.Fatal(err)
	}
	clock.pass(time.Hour) // a while after whatever ended has ended
	o.Round(observe.Round{Began: clock.now, Listed: true, Pages: 1, Shards: listed})
	return o.Integrity()
}

func TestCompleteThroughIsTheLeastOfWhatIsKnown(t *testing.T) {
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	shards := func(p ...observe.Point) observe.Book { return observe.Book{Shards: p} }
	tests := []struct {
		name                string
		book                observe.Book
		listed              []observe.Shard
		committed, complete time.Time
	}{
		{"nothing is known", observe.Book{}, nil, time.Time{}, time.Time{}},
		{"a shard that was never read", shards(observe.Point{ID: "a"}), nil, time.Time{}, time.Time{}},
		{"the last committed record, less what may lie out of order", shards(observe.Point{ID: "a", Created: at(100)}), nil, at(95), at(95)},
		{"the tip, if it was read later", shards(observe.Point{ID: "a", Created: at(100), TipAt: at(200).Add(999 * time.Millisecond)}), nil, at(195), at(195)},
		{"the slowest shard", shards(observe.Point{ID: "a", TipAt: at(200)}, observe.Point{ID: "b", Created: at(50)}), nil, at(45), at(45)},
		{"a child that waits has its parent's time", shards(observe.Point{ID: "a", Created: at(100)}, observe.Point{ID: "b", Parent: "a"}), nil, at(95), at(95)},
		{"a grandchild too", shards(observe.Point{ID: "a", Created: at(100), End: true}, observe.Point{ID: "b", Parent: "a"}, observe.Point{ID: "c", Parent: "b"}), nil, at(95), at(95)},
		{"a shard that ended holds nothing back once its child is read", shards(observe.Point{ID: "a", Created: at(100), End: true}, observe.Point{ID: "b", Parent: "a", TipAt: at(300)}), nil, at(295), at(295)},
		{"a tip of a shard that has children says nothing about them", shards(observe.Point{ID: "a", Created: at(100), TipAt: at(400)}, observe.Point{ID: "b", Parent: "a"}), nil, at(95), at(95)},
		{"a tip of a shard that ended neither", shards(observe.Point{ID: "a", Created: at(100), TipAt: at(400), End: true}, observe.Point{ID: "b", TipAt: at(300)}), nil, at(95), at(95)},
		{"a shard that ended without a child does", shards(observe.Point{ID: "a", Created: at(100), End: true}, observe.Point{ID: "b", TipAt: at(300)}), nil, at(95), at(95)},
		{"a child that is listed and not stored yet", shards(observe.Point{ID: "a", Created: at(100), End: true}, observe.Point{ID: "b", TipAt: at(300)}), []observe.Shard{{ID: "c", Parent: "a", State: "waiting"}}, at(95), at(95)},
		{"a root that is listed and not stored yet", shards(observe.Point{ID: "b", TipAt: at(300)}), []observe.Shard{{ID: "c", State: "reading"}}, time.Time{}, time.Time{}},
		{"an orphan that was never read", shards(observe.Point{ID: "a", TipAt: at(300)}, observe.Point{ID: "b", Parent: "gone"}), nil, time.Time{}, time.Time{}},
		{"shards that are each other's parents", shards(observe.Point{ID: "a", Parent: "b"}, observe.Point{ID: "b", Parent: "a"}), nil, time.Time{}, time.Time{}},
		{"a window that is not sealed", observe.Book{Shards: []observe.Point{{ID: "a", TipAt: at(300)}}, Windows: []observe.Window{{Oldest: at(7)}, {Oldest: at(8)}}}, nil, at(295), at(7)},
		{"a window of unknown age", observe.Book{Shards: []observe.Point{{ID: "a", TipAt: at(300)}}, Windows: []observe.Window{{Oldest: at(7)}, {}}}, nil, at(295), time.Time{}},
		{"an open gap", observe.Book{Shards: []observe.Point{{ID: "a", TipAt: at(300)}}, Gaps: []pipeline.Gap{{State: pipeline.GapOpen, Missing: pipeline.Missing{From: at(20)}}}}, nil, at(295), at(15)},
		{"a gap being repaired", observe.Book{Shards: []observe.Point{{ID: "a", TipAt: at(300)}}, Gaps: []pipeline.Gap{{State: pipeline.GapRepairing, Missing: pipeline.Missing{From: at(20)}}}}, nil, at(295), at(15)},
		{"a gap without a lower bound", observe.Book{Shards: []observe.Point{{ID: "a", TipAt: at(300)}}, Gaps: []pipeline.Gap{{State: pipeline.GapOpen}}}, nil, at(295), time.Time{}},
		{"a closed gap", observe.Book{Shards: []observe.Point{{ID: "a", TipAt: at(300)}}, Gaps: []pipeline.Gap{{State: pipeline.GapClosed}}}, nil, at(295), at(295)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := through(t, tt.book, tt.listed...)
			if !got.CommittedThrough.Equal(tt.committed) || !got.CompleteThrough.Equal(tt.complete) {
				t.Errorf("committed through %v, complete through %v; want %v and %v", got.CommittedThrough, got.CompleteThrough, tt.committed, tt.complete)
			}
		})
	}
}

func TestAnEndedShardCountsUntilALaterListingNamesItsChildren(t *testing.T) {
	o, clock := watched(observe.Options{})
	tip := clock.now
	ended := false
	refresh := func() {
		t.Helper()
		err := o.Refresh(t.Context(), func(context.Context) (observe.Book, error) {
			return observe.Book{Shards: []observe.Point{{ID: "a", Created: tip, End: ended}, {ID: "b", TipAt: tip.Add(time.Hour)}}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	child := []observe.Shard{{ID: "b", Parent: "a", State: "reading"}}
	holdsBack := func(when string, want bool) {
		t.Helper()
		if got := o.Integrity().CompleteThrough.Before(tip); got != want {
			t.Errorf("%s: the ended shard holds complete_through back: %v, want %v", when, got, want)
		}
	}
	round := func(r observe.Round) {
		r.Began = clock.now
		clock.pass(time.Second)
		o.Round(r)
	}
	refresh()
	round(observe.Round{Listed: true, Shards: child})
	ended = true
	refresh()
	holdsBack("no listing since its end", true)
	clock.pass(20 * time.Second)
	round(observe.Round{Listed: true, Shards: child})
	holdsBack("a listing right after its end may not name all children", true)
	clock.pass(8 * time.Second)
	round(observe.Round{Listed: true, Shards: child})
	holdsBack("the listing began too early, whenever it ended", true)
	clock.pass(time.Second)
	round(observe.Round{Shards: child})
	holdsBack("a round without a listing", true)
	round(observe.Round{Listed: true})
	holdsBack("a listing without a child", true)
	round(observe.Round{Listed: true, Shards: child})
	holdsBack("a listing with its child", false)
	refresh()
	holdsBack("the state is read again", false)
}

func TestADisabledStreamIsCompleteThroughItsLastRecord(t *testing.T) {
	o, _ := watched(observe.Options{})
	book := observe.Book{Shards: []observe.Point{{ID: "a", Created: start, End: true}, {ID: "b", Created: start.Add(time.Minute), End: true}}}
	if err := o.Refresh(t.Context(), func(context.Context) (observe.Book, error) { return book, nil }); err != nil {
		t.Fatal(err)
	}
	o.Round(observe.Round{Disabled: true, Listed: true})
	if got, want := o.Integrity().CompleteThrough, start.Add(55*time.Second); !got.Equal(want) {
		t.Errorf("complete through %v, want %v", got, want)
	}
}

// A world is a stream and the lane that reads it, as far as complete_through depends on them.
type world struct {
	rng     *rand.Rand
	now     time.Time
	shards  []*worldShard
	records []*worldRecord
	windows []*worldWindow
	gaps    []pipeline.Gap
	held    []*worldShard // shards in the window that is gathered
}

type worldRecord struct {
	created time.Time // whole seconds, rounded down
	visible time.Time
	window  *worldWindow // nil until one was begun
	gap     bool
}

type worldShard struct {
	id, parent  pipeline.ShardID
	records     []*worldRecord
	born        time.Time
	closed      bool
	closedAt    time.Time
	listed      bool // a listing named it
	owned       bool // and the lane has it
	read        int  // records read
	ended       bool // its end was read
	committed   int
	end         bool
	created     time.Time
	tipAt       time.Time
	gathered    bool
	gatheredEnd bool
}

type worldWindow struct {
	oldest time.Time
	sealed bool
}

func newWorld(seed uint64) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 1)), now: start}
	for i := range 1 + w.rng.IntN(3) {
		w.shards = append(w.shards, &worldShard{id: pipeline.ShardID(fmt.Sprint("root", i))})
	}
	return w
}

func (w *world) shard(id pipeline.ShardID) *worldShard {
	i := slices.IndexFunc(w.shards, func(s *worldShard) bool { return s.id == id })
	if i < 0 {
		return nil
	}
	return w.shards[i]
}

// step lets one thing happen, to the stream or to the lane.
func (w *world) step() {
	s := w.shards[w.rng.IntN(len(w.shards))]
	switch w.rng.IntN(12) {
	case 0:
		w.now = w.now.Add(time.Duration(w.rng.Int64N(int64(20 * time.Second))))
	case 1, 2, 3:
		w.write(s)
	case 4:
		if !s.closed && len(w.shards) < 12 && w.rng.IntN(3) == 0 {
			s.closed, s.closedAt = true, w.now
			for i := range 1 + w.rng.IntN(2) {
				w.shards = append(w.shards, &worldShard{id: pipeline.ShardID(fmt.Sprint(s.id, ".", i)), parent: s.id, born: w.now})
			}
		}
	case 5, 6, 7:
		w.read(s)
	case 8:
		w.commit()
	case 9:
		if len(w.windows) > 0 {
			w.windows[w.rng.IntN(len(w.windows))].sealed = true
		}
	case 10:
		w.lose(s)
	case 11:
		w.now = w.now.Add(time.Duration(w.rng.Int64N(int64(2 * time.Second))))
	}
}

func (w *world) write(s *worldShard) {
	if s.closed {
		return
	}
	r := &worldRecord{created: w.now.Truncate(time.Second), visible: w.now.Add(time.Duration(w.rng.Int64N(int64(time.Second))))}
	s.records = append(s.records, r)
	w.records = append(w.records, r)
}

// read reads what a shard shows, if it may be read.
func (w *world) read(s *worldShard) {
	if !s.owned || s.ended || s.parent != "" && !w.shard(s.parent).end {
		return
	}
	to := s.read
	for to < len(s.records) && !s.records[to].visible.After(w.now) {
		to++
	}
	to = s.read + min(to-s.read, 1+w.rng.IntN(3))
	ended := s.closed && to == len(s.records) && (!w.looksOpen(s) || w.rng.IntN(2) == 0)
	if to == s.read && !ended {
		// The tip: what was read is committed, or is not.
		if s.committed == s.read && !s.gathered && (len(s.records) == s.read || s.records[s.read].visible.After(w.now)) {
			s.tipAt = w.now
		}
		return
	}
	s.read, s.ended = to, ended
	s.gathered, s.gatheredEnd = true, ended
	if !slices.Contains(w.held, s) {
		w.held = append(w.held, s)
	}
}

// looksOpen reports whether a shard gives empty pages behind its records. A closed one may do so
// for a little.
func (w *world) looksOpen(s *worldShard) bool {
	return !s.closed || w.now.Sub(s.closedAt) < 4*time.Second
}

// lose drops records of a shard before they were read; the gap opens before the position moves.
func (w *world) lose(s *worldShard) {
	if !s.owned || s.gathered || s.ended || s.read == len(s.records) || s.parent != "" && !w.shard(s.parent).end {
		return
	}
	from := s.created
	if s.tipAt.After(from) {
		from = s.tipAt.Add(-time.Second) // what shows later than it was created may be among them
	}
	n := 1 + w.rng.IntN(len(s.records)-s.read)
	for _, r := range s.records[s.read : s.read+n] {
		if r.visible.After(w.now) {
			return
		}
	}
	for _, r := range s.records[s.read : s.read+n] {
		r.gap = true
	}
	w.gaps = append(w.gaps, pipeline.Gap{State: pipeline.GapOpen, Missing: pipeline.Missing{From: from}})
	s.read += n
	s.committed = s.read
	if s.read == len(s.records) && w.looksOpen(s) {
		s.tipAt = w.now
	}
}

// commit makes a window of what is gathered.
func (w *world) commit() {
	if len(w.held) == 0 {
		return
	}
	win := &worldWindow{}
	for _, s := range w.held {
		for _, r := range s.records[s.committed:s.read] {
			r.window = win
			if win.oldest.IsZero() || r.created.Before(win.oldest) {
				win.oldest = r.created
			}
			if r.created.After(s.created) {
				s.created = r.created
			}
		}
		s.committed, s.end, s.gathered = s.read, s.gatheredEnd, false
	}
	w.held = nil
	if win.oldest.IsZero() {
		return // nothing but ends: folded at once
	}
	w.windows = append(w.windows, win)
}

// round is what the reader tells after a round; a listing may not name the newest shards.
func (w *world) round() observe.Round {
	r := observe.Round{Began: w.now, Pages: 1, Listed: w.rng.IntN(2) == 0}
	for i, s := range w.shards {
		if r.Listed && !s.listed && (s.parent == "" || w.now.Sub(s.born) > 20*time.Second || w.rng.IntN(2) == 0) {
			s.listed = true
			if w.rng.IntN(3) > 0 {
				s.owned = true
			}
		} else if s.listed && w.rng.IntN(2) == 0 {
			s.owned = true
		}
		if w.shards[i].listed {
			state := "reading"
			if s.end {
				state = "finished"
			}
			r.Shards = append(r.Shards, observe.Shard{ID: s.id, Parent: s.parent, State: state})
		}
	}
	return r
}

// book reads the stored state, and lets things happen between its parts.
func (w *world) book(busy bool) observe.Book {
	var b observe.Book
	meanwhile := func() {
		for busy && w.rng.IntN(3) > 0 {
			w.step()
		}
	}
	for _, s := range w.shards {
		if s.owned {
			b.Shards = append(b.Shards, observe.Point{ID: s.id, Parent: s.parent, End: s.end, Created: s.created, TipAt: s.tipAt})
		}
	}
	meanwhile()
	for _, win := range w.windows {
		if !win.sealed {
			b.Windows = append(b.Windows, observe.Window{Oldest: win.oldest, Since: w.now})
		}
	}
	meanwhile()
	b.Gaps = slices.Clone(w.gaps)
	return b
}

// unsealed is the oldest record that is not sealed.
func (w *world) unsealed() (oldest time.Time) {
	for _, r := range w.records {
		if (r.window == nil || !r.window.sealed) && (oldest.IsZero() || r.created.Before(oldest)) {
			oldest = r.created
		}
	}
	return oldest
}

var seeds = flag.Int("seeds", 800, "histories of a stream to look at")

// Whatever happens, no record from before complete_through is anywhere but in the lake; and when
// all is sealed it comes up to the present.
func TestNoRecordFromBeforeCompleteThroughIsUnsealed(t *testing.T) {
	known, gaps := 0, 0
	for seed := range uint64(*seeds) {
		w := newWorld(seed)
		o := observe.New(observe.Options{Now: func() time.Time { return w.now }})
		refresh := func(busy bool) {
			if err := o.Refresh(t.Context(), func(context.Context) (observe.Book, error) { return w.book(busy), nil }); err != nil {
				t.Fatal(err)
			}
		}
		refresh(false)
		o.Round(w.round())
		lossless := seed%3 != 0
		for range 60 {
			for range 4 {
				w.step()
			}
			if w.rng.IntN(2) == 0 {
				o.Round(w.round())
			}
			if w.rng.IntN(2) == 0 {
				refresh(true)
			}
			at := o.Integrity().CompleteThrough
			if oldest := w.unsealed(); !at.IsZero() && !oldest.IsZero() && oldest.Before(at) {
				t.Fatalf("seed %d: complete through %v, and a record of %v is not sealed", seed, at, oldest)
			}
			if !at.IsZero() {
				known++
			}
			if lossless && len(w.gaps) > 0 {
				// Repaired: its records are in the lake.
				for _, r := range w.records {
					if r.gap {
						r.window = &worldWindow{sealed: true}
					}
				}
				for i := range w.gaps {
					w.gaps[i].State = pipeline.GapClosed
				}
			}
			gaps += len(w.gaps)
		}
		if !lossless {
			continue
		}
		w.now = w.now.Add(time.Minute)
		for range 40 { // everybody does his work
			o.Round(w.round())
			for _, s := range w.shards {
				for range 20 {
					w.read(s)
				}
			}
			w.commit()
		}
		for _, win := range w.windows {
			win.sealed = true
		}
		for i := range w.gaps {
			w.gaps[i].State = pipeline.GapClosed
		}
		for _, s := range w.shards {
			w.read(s)
		}
		refresh(false)
		w.now = w.now.Add(3 * time.Second)
		for range 20 {
			r := w.round()
			r.Listed = true
			o.Round(r)
			w.now = w.now.Add(3 * time.Second)
		}
		for _, s := range w.shards {
			w.read(s)
		}
		refresh(false)
		if at := o.Integrity().CompleteThrough; w.now.Sub(at) > 45*time.Second {
			t.Errorf("seed %d: all is sealed at %v, and it is complete through %v", seed, w.now, at)
		}
	}
	if known == 0 || gaps == 0 {
		t.Errorf("complete_through was known %d times, with %d gaps: the histories are too tame", known, gaps)
	}
}

func TestAStateThatCannotBeReadIsNoGoodNews(t *testing.T) {
	o, clock := watched(observe.Options{})
	broken := func(context.Context) (observe.Book, error) { return observe.Book{}, errBroken }
	if err := o.Refresh(t.Context(), broken); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	if in := o.Integrity(); in.OK || !slices.Equal(in.Reasons, []string{"the stored state was not read yet: broken"}) {
		t.Errorf("before the state was read: %+v", in)
	}
	if err := o.Refresh(t.Context(), func(context.Context) (observe.Book, error) { return observe.Book{}, nil }); err != nil {
		t.Fatal(err)
	}
	if in := o.Integrity(); !in.OK {
		t.Errorf("an empty state is not ok: %v", in.Reasons)
	}
	clock.pass(6 * time.Minute)
	if err := o.Refresh(t.Context(), broken); err == nil {
		t.Fatal("no error")
	}
	if in := o.Integrity(); in.OK || !slices.Equal(in.Reasons, []string{"the stored state was not read for 6m0s: broken"}) {
		t.Errorf("after six minutes: %+v", in)
	}
}
