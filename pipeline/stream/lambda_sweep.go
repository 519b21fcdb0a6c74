package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"telemetrylake/pipeline"
)

// A Swept is what a sweep did.
type Swept struct {
	Shards    int `json:"shards"`    // looked at
	Tips      int `json:"tips"`      // read to their tips
	Finished  int `json:"finished"`  // committed to their ends
	Busy      int `json:"busy"`      // left to the mapping, which has yet to deliver records
	Waiting   int `json:"waiting"`   // not begun: their parents are not finished
	Unreached int `json:"unreached"` // not done when the time ran out: the next sweep begins with them
	Records   int `json:"records"`   // taken: removals by TTL, and what was overdue
}

// atOnce is how many open shards a sweep looks at side by side, and as many closed ones. A tip
// takes ten seconds, of which a shard needs few for itself; with all at once, none would be done
// when the time runs out.
const atOnce = 32

// unreachedFor is how long ago a shard may have been read to its tip when a sweep does not come to
// it. Half of what the stream holds: there is time left for somebody to do something.
const unreachedFor = retention / 2

// Sweep looks at every shard that is not finished, also at those that no listing names any more. A
// mapping says nothing of a shard that is at rest or has ended, and delivers no removal by TTL if
// its filter drops them: the sweep notes tips, takes such removals and commits ends. What a mapping
// will deliver it leaves alone, unless that is overdue: it must be read before it ages out. A shard
// that fails does not keep the others from being looked at. Shards are looked at side by side,
// those first that have waited longest.
func (f *Function) Sweep(ctx context.Context) (Swept, error) {
	s := sweeping{f: f, queued: map[pipeline.ShardID]bool{}, waiting: map[pipeline.ShardID][]pipeline.Shard{}}
	if err := f.list(ctx); err != nil {
		return s.sum, err
	}
	if err := s.plan(ctx); err != nil {
		return s.sum, err
	}
	for s.admit(ctx); ; {
		l := s.next()
		if l == nil || ctx.Err() != nil || f.late(ctx) {
			break
		}
		if d := l.due.Sub(f.o.Now()); d > 0 {
			if err := f.o.Wait(ctx, d); err != nil {
				break
			}
		}
		if done, err := s.page(ctx, l); err != nil || done {
			s.done(l, err)
			s.admit(ctx)
		}
	}
	s.leave()
	return s.sum, errors.Join(append(s.errs, ctx.Err())...)
}

// Listed returns the shards of the last listing and when it was made, by the server's clock.
func (f *Function) Listed() ([]pipeline.ShardID, time.Time) {
	return slices.Sorted(maps.Keys(f.shards)), f.at
}

// A sweeping is a sweep under way.
type sweeping struct {
	f       *Function
	sum     Swept
	known   map[pipeline.ShardID]pipeline.Position // when it began; nil: not asked
	queued  map[pipeline.ShardID]bool              // ever
	queue   []pipeline.Shard
	waiting map[pipeline.ShardID][]pipeline.Shard // by the parent that has to be finished
	under   []*look
	errs    []error
}

// A look is what a sweep sees of one shard.
type look struct {
	pipeline.Shard
	c       *cursor
	pos     pipeline.Position
	closed  bool
	due     time.Time         // not to be read before, by FunctionOptions.Now
	missing *pipeline.Missing // where no record is
	overdue bool
}

// plan queues the shards, those first that were looked at longest ago.
func (s *sweeping) plan(ctx context.Context) error {
	f := s.f
	if f.o.All != nil {
		var err error
		if s.known, err = f.o.All(ctx); err != nil {
			return fmt.Errorf("read positions of stream %s: %w", f.o.StreamARN, err)
		}
	}
	for id, l := range f.shards {
		if !s.known[id].End {
			s.put(l.Shard)
		}
	}
	for id, pos := range s.known {
		if _, listed := f.shards[id]; !listed && !pos.End {
			s.put(pipeline.Shard{Stream: f.o.StreamARN, ID: id, Parent: pos.Parent})
		}
	}
	depth := f.depths()
	slices.SortFunc(s.queue, func(a, b pipeline.Shard) int {
		return cmp.Or(later(f.looked[a.ID], s.known[a.ID].TipAt).Compare(later(f.looked[b.ID], s.known[b.ID].TipAt)),
			cmp.Compare(depth[a.ID], depth[b.ID]), cmp.Compare(a.ID, b.ID))
	})
	for id := range f.looked {
		if !s.queued[id] {
			delete(f.looked, id)
		}
	}
	return nil
}

func (s *sweeping) put(sh pipeline.Shard) {
	if !s.queued[sh.ID] {
		s.queued[sh.ID] = true
		s.queue = append(s.queue, sh)
	}
}

// depths counts the listed ancestors of each listed shard.
func (f *Function) depths() map[pipeline.ShardID]int {
	depth := map[pipeline.ShardID]int{}
	for id := range f.shards {
		for at, n := id, 0; n <= len(f.shards); n++ {
			s, ok := f.shards[at]
			if !ok {
				break
			}
			depth[id], at = n, s.Parent
		}
	}
	return depth
}

// admit begins with as many of the queued shards as there is room for.
func (s *sweeping) admit(ctx context.Context) {
	room := map[bool]int{true: atOnce, false: atOnce}
	for _, l := range s.under {
		room[l.closed]--
	}
	for i := 0; i < len(s.queue) && room[true]+room[false] > 0 && !s.f.late(ctx); {
		sh := s.queue[i]
		closed := s.f.closed(sh.ID)
		if room[closed] <= 0 {
			i++
			continue
		}
		s.queue = slices.Delete(s.queue, i, i+1)
		l, err := s.begin(ctx, sh)
		switch {
		case err != nil:
			s.done(&look{Shard: sh}, err)
		case l != nil:
			l.closed = closed
			s.under = append(s.under, l)
			room[closed]--
		}
	}
}

// begin returns nil for a shard that is finished, or has to wait.
func (s *sweeping) begin(ctx context.Context, sh pipeline.Shard) (*look, error) {
	f := s.f
	pos, known, err := f.o.Shards.Position(ctx, sh.ID)
	if err != nil {
		return nil, err
	}
	if pos.End {
		s.release(sh.ID)
		return nil, nil
	}
	s.sum.Shards++
	if sh.Parent != "" && pos.Seq == "" {
		parent, ok, err := f.o.Shards.Position(ctx, sh.Parent)
		if err != nil {
			return nil, err
		}
		if _, listed := f.shards[sh.Parent]; (ok || listed) && !parent.End {
			s.waiting[sh.Parent] = append(s.waiting[sh.Parent], sh)
			s.put(pipeline.Shard{Stream: sh.Stream, ID: sh.Parent, Parent: parent.Parent}) // unless it was, as a listed one is
			return nil, nil
		} else if !ok {
			if err := f.finishParents(ctx, &sh); err != nil {
				return nil, err
			}
		}
	}
	if !known {
		// What its ancestors held and nobody read is known from here on.
		if pos, err = f.o.Shards.Own(ctx, sh); err != nil {
			return nil, err
		}
	}
	return &look{Shard: sh, pos: pos, c: f.cursor(sh.ID, pos), due: f.o.Now()}, nil
}

// next is the look that is due, or will be first; nil if there is none.
func (s *sweeping) next() *look {
	if len(s.under) == 0 {
		return nil
	}
	return slices.MinFunc(s.under, func(a, b *look) int { return a.due.Compare(b.due) })
}

// page reads a page of a shard, and reports whether the sweep is done with it.
func (s *sweeping) page(ctx context.Context, l *look) (done bool, err error) {
	f := s.f
	p, again, err := l.c.once(ctx)
	switch {
	case err != nil:
		return false, err
	case again != nil:
		l.due = f.o.Now().Add(l.c.backoff())
		return false, nil
	}
	for _, r := range p.batch.Records {
		if r.Expired || l.overdue {
			continue
		}
		if p.at.Sub(r.Created) < f.o.Overdue {
			s.sum.Busy++
			return true, nil
		}
		l.overdue = true
	}
	if len(p.batch.Records) == 0 && p.batch.Missing != nil {
		l.missing = p.batch.Missing
	}
	tip := !p.tipAt.IsZero() && !l.c.ended && !l.closed // of a closed shard only the end tells that there is no more
	if !tip && !l.c.ended && !l.overdue {
		l.due = f.o.Now().Add(l.c.pause(l.closed))
		return false, nil
	}
	read := l.pos.Seq
	if l.c.read > 0 {
		read = l.c.last
	}
	if l.c.read > 0 || l.missing != nil || l.c.ended {
		if taken, err := s.take(ctx, l); err != nil || !taken {
			return true, err
		}
	}
	if tip {
		s.sum.Tips++
		return true, f.o.Shards.MarkTip(ctx, l.ID, read, p.tipAt)
	}
	return true, nil
}

// take commits what a look has seen. It returns false if somebody else has meanwhile, and the look
// says nothing any more.
func (s *sweeping) take(ctx context.Context, l *look) (bool, error) {
	f := s.f
	if l.overdue {
		f.log.Error("records are overdue, reading them without the mapping", "shard", l.ID, "after", l.pos.Seq)
	}
	w, err := f.open(ctx, l.Shard, l.pos)
	if err != nil {
		return false, err
	}
	if w.pos.End {
		s.finished(l)
		return true, nil
	}
	if l.missing != nil && w.pos.Seq != l.pos.Seq {
		s.sum.Busy++
		return false, nil
	}
	ended := false
	if l.c.read > 0 && (w.pos.Seq.Compare(l.c.last) < 0 || l.overdue) {
		c := f.cursor(l.ID, w.pos)
		n, err := f.drain(ctx, w, c, goal{seq: l.c.last, more: l.overdue})
		if s.sum.Records += n; err != nil {
			return false, err
		}
		ended = c.ended
	}
	// Behind the last record it has seen the end, or its tip: they need not be walked to again.
	if !ended && (l.c.ended || l.missing != nil) {
		if err := w.g.Add(ctx, pipeline.Batch{Shard: l.ID, Missing: l.missing, End: l.c.ended}); err != nil {
			return false, err
		}
		if err := w.g.Flush(ctx); err != nil {
			return false, err
		}
		ended = l.c.ended
	}
	if ended {
		s.finished(l)
	}
	return true, nil
}

func (s *sweeping) finished(l *look) {
	s.sum.Finished++
	s.release(l.ID)
}

// release queues the shards that waited for a parent.
func (s *sweeping) release(parent pipeline.ShardID) {
	free := s.waiting[parent]
	delete(s.waiting, parent)
	s.sum.Shards -= len(free) // they are counted again
	s.queue = append(free, s.queue...)
}

func (s *sweeping) done(l *look, err error) {
	s.under = slices.DeleteFunc(s.under, func(o *look) bool { return o == l })
	s.f.looked[l.ID] = s.f.serverNow()
	if err != nil {
		s.errs = append(s.errs, fmt.Errorf("sweep shard %s: %w", l.ID, err))
	}
}

// leave counts what was not come to. It is an error once a shard was not read to its tip for so long
// that what it holds may age out unseen.
func (s *sweeping) leave() {
	now := s.f.serverNow()
	var old []pipeline.ShardID
	left := slices.Clone(s.queue)
	for _, l := range s.under {
		if l.closed {
			l.c.keep()
		}
		left = append(left, l.Shard)
	}
	for _, sh := range left {
		if at := held(s.known[sh.ID]); !at.IsZero() && now.Sub(at) >= unreachedFor {
			old = append(old, sh.ID)
		}
	}
	for _, children := range s.waiting {
		s.sum.Waiting += len(children)
	}
	s.sum.Unreached = len(left)
	if len(old) > 0 {
		s.errs = append(s.errs, fmt.Errorf("the time ran out with %d shards that were not read to their tips for %s, among them %s; if it stays so, give the function more time, a minute or more, or have the schedule invoke it more often", len(old), unreachedFor, old[0]))
	}
}
