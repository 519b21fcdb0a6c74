package observe

import (
	"context"
	"time"

	"telemetrylake/pipeline"
)

// A Book is what is stored of a stream and of its windows.
type Book struct {
	Shards  []Point
	Windows []Window // those that are not sealed, folded or void
	Gaps    []pipeline.Gap
	Halted  string // why the lane may begin no window; "" if it may
}

// A BookReader reads the stored state. The parts may be of different moments, but each must be
// read after the one before it ended: shards, windows, gaps. A window begun in between holds only
// records behind the positions that were read.
type BookReader func(context.Context) (Book, error)

// A Point is how far a shard is committed. Its times are the stream's clock, zero if unknown.
type Point struct {
	ID      pipeline.ShardID
	Parent  pipeline.ShardID // "" for a root
	End     bool             // committed to its end
	Created time.Time        // of the last committed record
	TipAt   time.Time        // all that the shard held then is committed
}

// A Window is one of which some part is not known to be in the lake.
type Window struct {
	Oldest time.Time // a time before which none of its records was created; zero if unknown
	Since  time.Time // when it was last landed; zero if it is not yet, or unknown
}

const (
	// settle is how much later than its creation a record may show in the stream, how far the
	// creation times of one shard may lie out of order, and how long a closed shard may look open.
	// AWS states none of them; records show within less than a second.
	settle = 5 * time.Second
	// lineage is how long after a shard's end was committed a complete listing must begin for the
	// children that are known then to be all: listings may name a new shard late, and of two
	// children only one. AWS states no bound; they are in step within seconds.
	lineage = 30 * time.Second
)

// A view is the stored state with what the reader knows beside it.
type view struct {
	Book
	byID     map[pipeline.ShardID]*Point
	hasChild map[pipeline.ShardID]bool
	followed map[pipeline.ShardID]bool // ended, and all children are known, or none will be
	listed   time.Time                 // when the last complete listing began
}

// committed is the time T such that every record of the stream with a creation time before T is
// committed in a window, or lies in a gap; zero if there is none that is known.
//
// It is the least over all shards, without those that are committed to their end and whose
// children are all known. What a shard gives is a little (settle) before
//   - for one that is open as far as is known: its last committed record, or the moment when it was
//     last read to its tip with all committed, but of such moments none that is later than the last
//     complete listing, which would have named its children had it been closed by then;
//   - for one that has children, or ended: its last committed record, since what its unknown
//     children hold may be as old as that;
//   - for one of which nothing is committed: its parent's last committed record, since all records
//     of a shard are younger than its parent's, or that of the parent's parent.
//
// Records from before the stream was first read are not meant: those are a backfill's.
func (v *view) committed() time.Time {
	var least, latest time.Time
	open := false
	for i := range v.Shards {
		p := &v.Shards[i]
		t := v.inherited(p)
		if !p.End && !v.hasChild[p.ID] {
			t = later(t, earlier(p.TipAt, v.listed))
		}
		if v.followed[p.ID] {
			latest = later(latest, t)
			continue
		}
		if t.IsZero() {
			return t
		}
		if !open || t.Before(least) {
			least, open = t, true
		}
	}
	if !open {
		least = latest // nothing more comes
	}
	if least.IsZero() {
		return least
	}
	return before(least)
}

// before is a little earlier than t, as a creation time: they are whole seconds, rounded down.
func before(t time.Time) time.Time { return t.Add(-settle).Truncate(time.Second) }

// inherited is a time before which neither the shard nor any child of it has a record that is not
// committed; zero if none is known.
func (v *view) inherited(p *Point) time.Time {
	for range len(v.Shards) { // a lineage that runs in a circle ends too
		if !p.Created.IsZero() {
			return p.Created
		}
		if p = v.byID[p.Parent]; p == nil {
			break
		}
	}
	return time.Time{}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// complete is the time T such that every record of the stream with a creation time before T is
// sealed: each is in the lake as a row, change, tombstone or quarantined record, or is one that
// leaves no row. Zero if there is none that is known. It is committed, but no later than the
// oldest record of any window that is not sealed, nor than a little before the lower bound of any
// gap that is not closed. A window or gap that does not say how far back it goes leaves it unknown.
func (v *view) complete(committed time.Time) time.Time {
	t := committed
	for _, w := range v.Windows {
		t = earlier(t, w.Oldest)
	}
	for _, g := range v.Gaps {
		switch {
		case g.State == pipeline.GapClosed:
		case g.From.IsZero():
			return time.Time{}
		default:
			t = earlier(t, before(g.From))
		}
	}
	return t
}

// stored is the last state that was read.
type stored struct {
	book  Book
	at    time.Time                      // when reading it began; zero if it never was read
	err   string                         // of the last attempt, if it failed
	ended map[pipeline.ShardID]time.Time // when each shard was first found committed to its end

	// What was ever found. What is sealed stays so: later knowledge of less takes nothing back, as
	// when an idle shard closes and its children were not read yet.
	committed, complete time.Time
}

func newStored() stored { return stored{ended: map[pipeline.ShardID]time.Time{}} }

// Refresh reads the stored state again.
func (o *Observer) Refresh(ctx context.Context, read BookReader) error {
	begun := o.o.Now()
	book, err := read(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	s := &o.state
	if err != nil {
		s.err = clip(err.Error())
		return err
	}
	s.book, s.at, s.err = book, begun, ""
	now, ended := o.o.Now(), make(map[pipeline.ShardID]time.Time, len(s.ended))
	for _, p := range book.Shards {
		if p.End {
			at, known := s.ended[p.ID]
			if !known {
				at = now
			}
			ended[p.ID] = at
		}
	}
	s.ended = ended
	o.judge()
	return nil
}

// judge finds out through which time the stream is committed and complete, after the stored state
// or what the reader knows has changed. o.mu is held.
func (o *Observer) judge() {
	v := o.view()
	t := v.committed()
	o.state.committed = later(o.state.committed, t)
	o.state.complete = later(o.state.complete, v.complete(t))
}

func (o *Observer) view() *view {
	b := o.state.book
	v := &view{
		Book: b, byID: make(map[pipeline.ShardID]*Point, len(b.Shards)),
		hasChild: make(map[pipeline.ShardID]bool, len(b.Shards)), followed: map[pipeline.ShardID]bool{}, listed: o.read.listed,
	}
	known := make(map[pipeline.ShardID]bool, len(b.Shards))
	for _, p := range b.Shards {
		known[p.ID] = true
	}
	// Those that are listed and not the lane's yet.
	v.Shards = append(make([]Point, 0, len(b.Shards)+len(o.read.round.Shards)), b.Shards...)
	for _, s := range o.read.round.Shards {
		v.hasChild[s.Parent] = true
		if !known[s.ID] && s.State != "finished" {
			v.Shards = append(v.Shards, Point{ID: s.ID, Parent: s.Parent})
		}
	}
	for i := range v.Shards {
		p := &v.Shards[i]
		v.byID[p.ID] = p
		v.hasChild[p.Parent] = true
	}
	for id, at := range o.state.ended {
		v.followed[id] = o.read.round.Disabled || v.hasChild[id] && !o.read.listed.Before(at.Add(lineage))
	}
	return v
}
