package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"telemetrylake/pipeline"
)

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
		p.Shard = pipeline.Shard{Stream: s.Stream, ID: s.Parent, Parent: pos.Parent}
	}
	if !ok && !known {
		gone, err := f.unnamed(ctx, &p.Shard)
		if err != nil {
			return fmt.Errorf("look for shard %s, parent of %s: %w", p.ID, s.ID, err)
		}
		if gone {
			s.Orphan = true
			return nil
		}
	}
	if err := f.finishParents(ctx, &p.Shard); err != nil {
		return err
	}
	n, err := f.readOut(ctx, p.Shard, goal{end: true}) // it has a child, so it is closed
	if err != nil {
		return fmt.Errorf("finish shard %s before its child %s: %w", p.ID, s.ID, err)
	}
	f.log.Info("shard finished before its child", "shard", p.ID, "child", s.ID, "records", n)
	return nil
}

// listedLate is how long the service may have a shard that no listing names.
const listedLate = 5 * time.Minute

// unnamed looks for a shard that the listing leaves out and nobody has begun. It may be gone. If it
// is not, its own parent, which must be read before it, is what only a listing tells: a young one
// is waited for.
func (f *Function) unnamed(ctx context.Context, s *pipeline.Shard) (gone bool, err error) {
	c := f.cursor(s.ID, pipeline.Position{})
	page, err := c.next(ctx)
	if err != nil || c.gone {
		return c.gone, err
	}
	if err := f.list(ctx); err != nil {
		return false, err
	}
	if named, ok := f.shards[s.ID]; ok {
		*s = named.Shard
		return false, nil
	}
	if r := page.batch.Records; len(r) == 0 || page.at.Sub(r[0].Created) < listedLate {
		return false, errors.New("it is there and no listing names it yet; the mapping tries again")
	}
	return false, nil
}

// A goal says how far a shard is to be read.
type goal struct {
	end  bool                    // to its end, however many pages are empty: it is closed
	seq  pipeline.SequenceNumber // else to this record, or to the tip if that comes first
	more bool                    // and on for as long as pages hold records
}

// readOut makes windows of what a shard holds behind its position, up to a goal. It returns how
// many records that were.
func (f *Function) readOut(ctx context.Context, s pipeline.Shard, to goal) (int, error) {
	pos, err := f.o.Shards.Own(ctx, s)
	if err != nil || pos.End {
		return 0, err
	}
	w, err := f.open(ctx, s, pos)
	if err != nil || w.pos.End {
		return 0, err
	}
	return f.drain(ctx, w, f.cursor(s.ID, w.pos), to)
}

// drain gives the pages of a cursor to an open lane, and commits them.
func (f *Function) drain(ctx context.Context, w *writing, c *cursor, to goal) (records int, err error) {
	for {
		p, err := c.next(ctx)
		if err != nil {
			return records, err
		}
		n := len(p.batch.Records)
		if n > 0 || p.batch.End || p.batch.Missing != nil {
			if err := w.g.Add(ctx, p.batch); err != nil {
				return records, err
			}
		}
		records += n
		there := !to.end && (!p.tipAt.IsZero() || c.last.Compare(to.seq) >= 0 && (n == 0 || !to.more))
		if c.ended || there {
			return records, w.g.Flush(ctx)
		}
		if f.late(ctx) && (w.windows > 0 || n == 0) {
			c.keep()
			return records, errors.Join(w.g.Flush(ctx), fmt.Errorf("shard %s: the time ran out after %q and %d empty pages", c.shard, c.last, c.empty))
		}
		if err := f.rest(ctx, c.pause(to.end)); err != nil {
			return records, err
		}
	}
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
	_, err = f.readOut(ctx, s.Shard, goal{seq: d.Last})
	return err
}
