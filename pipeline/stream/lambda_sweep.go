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

// maxEmptyTip is how many empty pages in a row, each behind the one before, are taken for an
// open shard's tip. The service may give a few though records lie ahead.
const maxEmptyTip = 5

// finishParents reads every ancestor of a shard that is not committed to its end up to there. If one
// is gone that nobody ever began, the shard is an orphan from then on.
func (f *Function) finishParents(ctx context.Context, s *pipeline.Shard) error {
	if s.Parent == "" {
		return nil
	}
	pos, known, err := f.o.Shards.Position(ctx, s.Parent)
	if err != nil {
		return fmt.Errorf("look up position of shard %s, parent of %s: %w", s.Parent, s.ID, err)
	}
	if known && pos.End {
		return nil
	}
	p, ok := f.shards[s.Parent]
	if !ok {
		p.Shard = pipeline.Shard{Stream: s.Stream, ID: s.Parent}
		if !known {
			// A listing can leave a shard out for a while; if it is gone, nobody ever began it.
			c := f.cursor(p.ID, pos)
			if _, err := c.next(ctx); err != nil {
				return fmt.Errorf("look for shard %s, parent of %s: %w", p.ID, s.ID, err)
			} else if c.gone {
				s.Orphan = true
				return nil
			}
		}
	}
	if err := f.finishParents(ctx, &p.Shard); err != nil {
		return err
	}
	r, err := f.readOut(ctx, p.Shard, "")
	if err != nil {
		return fmt.Errorf("finish shard %s before its child %s: %w", p.ID, s.ID, err)
	}
	if !r.ended {
		return fmt.Errorf("shard %s has records and its parent %s has not ended", s.ID, p.ID)
	}
	f.log.Info("shard finished before its child", "shard", p.ID, "child", s.ID, "records", r.records)
	return nil
}

// A readOut says how far a shard was read.
type readOut struct {
	records int
	ended   bool
	tip     time.Time // when its tip was found
}

// readOut makes windows of all that a shard holds behind its position: up to a number, or for
// "" to its end or its tip.
func (f *Function) readOut(ctx context.Context, s pipeline.Shard, to pipeline.SequenceNumber) (readOut, error) {
	var r readOut
	pos, err := f.o.Shards.Own(ctx, s)
	if err != nil {
		return r, err
	}
	if pos.End {
		return readOut{ended: true}, nil
	}
	w, err := f.open(ctx, s, pos)
	if err != nil {
		return r, err
	}
	if w.pos.End {
		return readOut{ended: true}, nil
	}
	c := f.cursor(s.ID, w.pos)
	for empty := 0; ; {
		p, err := c.next(ctx)
		if err != nil {
			return r, err
		}
		n := len(p.batch.Records)
		if n > 0 || p.batch.End || p.batch.Missing != nil {
			if err := w.g.Add(ctx, p.batch); err != nil {
				return r, err
			}
		}
		r.records += n
		if n > 0 {
			empty = 0
		} else if empty++; empty == 1 {
			r.tip = p.at
		}
		if c.ended || empty == maxEmptyTip || to != "" && c.last.Compare(to) >= 0 {
			r.ended = c.ended
			if empty < maxEmptyTip {
				r.tip = time.Time{}
			}
			return r, w.g.Flush(ctx)
		}
		if w.windows > 0 && f.late(ctx) {
			return r, errors.Join(w.g.Flush(ctx), fmt.Errorf("shard %s: the time ran out after %q", s.ID, c.last))
		}
	}
}

// A Swept is what a sweep did.
type Swept struct {
	Shards   int `json:"shards"`   // looked at
	Tips     int `json:"tips"`     // read to their tips
	Finished int `json:"finished"` // committed to their ends
	Busy     int `json:"busy"`     // left to the mapping, which has yet to deliver records
	Waiting  int `json:"waiting"`  // not begun: their parents are not finished
	Records  int `json:"records"`  // taken: removals by TTL, and what was overdue
}

// Sweep looks at every shard that is not finished. A mapping says nothing of a shard that is at
// rest or has ended, and delivers no removal by TTL if its filter drops them: the sweep notes
// tips, takes such removals and commits ends. What a mapping will deliver it leaves alone,
// unless that is overdue: it must be read before it ages out. A shard that fails does not
// keep the others from being looked at.
func (f *Function) Sweep(ctx context.Context) (Swept, error) {
	var s Swept
	if err := f.list(ctx); err != nil {
		return s, err
	}
	var errs []error
	shards := f.shards // a listing that is made on the way may leave some out
	for _, id := range f.byAge() {
		if f.late(ctx) {
			errs = append(errs, fmt.Errorf("the time ran out after %d of %d shards", s.Shards, len(shards)))
			break
		}
		if err := f.sweepShard(ctx, shards[id].Shard, &s); err != nil {
			if ctx.Err() != nil {
				return s, err
			}
			errs = append(errs, fmt.Errorf("sweep shard %s: %w", id, err))
		}
	}
	return s, errors.Join(errs...)
}

// Listed returns the shards of the last listing and when it was made, by the server's clock.
func (f *Function) Listed() ([]pipeline.ShardID, time.Time) {
	return slices.Sorted(maps.Keys(f.shards)), f.at
}

// byAge returns the listed shards, parents before their children.
func (f *Function) byAge() []pipeline.ShardID {
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
	return slices.SortedFunc(maps.Keys(f.shards), func(a, b pipeline.ShardID) int {
		return cmp.Or(cmp.Compare(depth[a], depth[b]), cmp.Compare(a, b))
	})
}

func (f *Function) sweepShard(ctx context.Context, s pipeline.Shard, sum *Swept) error {
	pos, known, err := f.o.Shards.Position(ctx, s.ID)
	if err != nil {
		return err
	}
	if pos.End {
		return nil
	}
	sum.Shards++
	if s.Parent != "" && pos.Seq == "" {
		parent, ok, err := f.o.Shards.Position(ctx, s.Parent)
		if err != nil {
			return err
		}
		if _, there := f.shards[s.Parent]; (ok || there) && !parent.End {
			sum.Waiting++
			return nil
		} else if !ok {
			if err := f.finishParents(ctx, &s); err != nil {
				return err
			}
		}
	}
	if !known {
		// What its ancestors held and nobody read is known from here on.
		if pos, err = f.o.Shards.Own(ctx, s); err != nil {
			return err
		}
	}
	c := f.cursor(s.ID, pos)
	var take, overdue bool
	var tip time.Time
	for empty := 0; empty < maxEmptyTip && !c.ended; {
		p, err := c.next(ctx)
		if err != nil {
			return err
		}
		for _, r := range p.batch.Records {
			if !r.Expired && !overdue {
				if p.at.Sub(r.Created) < f.o.Overdue {
					sum.Busy++
					return nil
				}
				overdue = true
			}
		}
		if len(p.batch.Records) > 0 {
			empty = 0
		} else if empty++; empty == 1 {
			tip = p.at
		}
		take = take || p.batch.End || p.batch.Missing != nil || len(p.batch.Records) > 0
		if overdue {
			break
		}
	}
	if take {
		if overdue {
			f.log.Error("records are overdue, reading them without the mapping", "shard", s.ID, "after", pos.Seq)
		}
		r, err := f.readOut(ctx, s, "")
		sum.Records += r.records
		if err != nil {
			return err
		}
		if tip = r.tip; r.ended {
			sum.Finished++
			return nil
		}
	}
	if tip.IsZero() {
		return nil
	}
	sum.Tips++
	return f.o.Shards.MarkTip(ctx, s.ID, tip)
}

// Discard answers the message that a mapping gave records up: whoever reads the stream now takes
// them from it, and if that fails what lies behind the shard's position is a gap.
func (f *Function) Discard(ctx context.Context, d *Discarded) (opened bool, err error) {
	if d.Stream == f.o.StreamARN {
		if f.at.IsZero() {
			if err := f.list(ctx); err != nil {
				return false, err
			}
		}
		if err := f.retake(ctx, d); err != nil {
			if ctx.Err() != nil {
				return false, err
			}
			f.log.Error("records that the mapping gave up cannot be read", "shard", d.Shard, "first", d.First, "last", d.Last, "error", err)
		}
	}
	return f.o.Shards.Discard(ctx, d)
}

func (f *Function) retake(ctx context.Context, d *Discarded) error {
	s, ok := f.shards[d.Shard]
	if !ok {
		s.Shard = pipeline.Shard{Stream: d.Stream, ID: d.Shard}
	}
	pos, known, err := f.o.Shards.Position(ctx, d.Shard)
	if err != nil || pos.End || known && pos.Seq.Compare(d.Last) >= 0 {
		return err
	}
	if !known && !ok {
		return nil // it may have been finished and forgotten days ago: it is not begun anew
	}
	if err := f.finishParents(ctx, &s.Shard); err != nil {
		return err
	}
	_, err = f.readOut(ctx, s.Shard, d.Last)
	return err
}
