package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"telemetrylake/pipeline"
)

// load reads all positions that the lane has, once.
func (r *Reader) load(ctx context.Context) error {
	if r.met {
		return nil
	}
	known, err := r.o.Shards.All(ctx)
	if err != nil {
		return fmt.Errorf("read positions of stream %s: %w", r.o.StreamARN, err)
	}
	r.known, r.met, r.first = known, true, len(known) == 0
	r.told = map[pipeline.ShardID]time.Time{}
	for _, pos := range known {
		// A start mark holds for every shard that was not met then: what was created before it is
		// not wanted. Listings do not tell how old a shard is.
		r.mark = later(r.mark, pos.StartAt)
	}
	return nil
}

// meet makes a shard known to the reader, with its position if it has one.
func (r *Reader) meet(id pipeline.ShardID, at time.Time) *shard {
	s := &shard{Shard: pipeline.Shard{Stream: r.o.StreamARN, ID: id, MetAt: at, StartAt: r.mark, Later: r.later()}, state: Waiting}
	if r.first && r.o.Start == Latest && r.mark.IsZero() {
		r.mark, s.StartAt = at, at
		r.log.Info("reading begins with what is created from now on", "mark", at)
	}
	if pos, ok := r.known[id]; ok {
		s.take(pos)
		delete(r.known, id)
	}
	return r.add(s)
}

// later reports whether a shard that is met now came after the stream was met: not with the first
// listing of the first process. That process may have slept since, or read for long what came before.
func (r *Reader) later() bool { return !r.first || r.discovered }

// take makes a stored position the shard's.
func (s *shard) take(pos pipeline.Position) {
	s.owned = true
	s.after, s.position, s.met = pos.Seq, pos.Created, pos.MetAt
	s.seen = seenBy(pos)
	if pos.Seq == "" {
		s.mark = pos.StartAt
	}
	if pos.Orphaned() {
		s.lose(pipeline.GapVanished)
	}
	if s.Parent == "" && s.state == Waiting {
		s.Parent = pos.Parent // a listing may leave the shard out
	}
	if pos.End {
		s.state = Finished
	}
}

// seenBy is the time before which nothing of a shard is missing behind a position.
func seenBy(pos pipeline.Position) time.Time {
	return later(later(later(pos.Created, pos.TipAt), pos.StartAt), pos.AwayAt)
}

// own makes every shard the lane's that is not yet. A shard that could not be owned for now is
// not read before it is, and keeps nobody else waiting.
func (r *Reader) own(ctx context.Context, patient bool, info *RoundInfo) error {
	var todo []*shard
	now := r.o.Now()
	for _, s := range r.sorted() {
		if !s.owned && !(patient && s.fail.waiting(now)) {
			todo = append(todo, s)
		}
	}
	ready := todo[:0]
	for _, s := range todo {
		switch err := r.findParent(ctx, s); {
		case err == nil:
			ready = append(ready, s)
		case passes(ctx, err):
			r.putOff(s, err, info)
		default:
			return err
		}
	}
	return r.ownAll(ctx, ready, patient, info)
}

// ownAll owns shards, many at a time where time counts. With the first the start mark is stored.
func (r *Reader) ownAll(ctx context.Context, shards []*shard, patient bool, info *RoundInfo) error {
	parallel := 1
	if patient {
		parallel = r.o.Parallel
	}
	errs := make([]error, len(shards))
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i, s := range shards {
		if parallel == 1 || r.first && i == 0 {
			if errs[i] = r.ownShard(ctx, s); stops(ctx, errs[i]) {
				break
			}
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = r.ownShard(ctx, s)
		})
	}
	wg.Wait()
	var refused error
	for i, err := range errs {
		if stops(ctx, err) {
			refused = errors.Join(refused, err)
		} else if err != nil {
			r.putOff(shards[i], err, info)
		}
	}
	return refused
}

// stops reports whether err is one that waiting does not heal.
func stops(ctx context.Context, err error) bool { return err != nil && !passes(ctx, err) }

func (r *Reader) ownShard(ctx context.Context, s *shard) error {
	pos, err := r.o.Shards.Own(ctx, s.Shard)
	if err != nil {
		return fmt.Errorf("own shard %s of %s: %w", s.ID, s.Stream, err)
	}
	seen := s.seen
	s.take(pos)
	s.seen = later(s.seen, seen)
	s.fail = failures{}
	r.log.Info("shard met", "shard", s.ID, "parent", s.Parent, "position", pos.Seq, "end", pos.End)
	return s.inside()
}

// findParent decides about a parent that the listing does not name. Listings can be
// incomplete for a while, so its absence alone does not make the child a root. A parent that
// was begun and not finished, or that the service still has, is read like any other; if it
// is really gone, reading it says so.
func (r *Reader) findParent(ctx context.Context, s *shard) error {
	if s.Parent != "" && r.shards[s.Parent] != nil {
		return nil
	}
	if s.Parent != "" {
		pos, known := r.known[s.Parent]
		if !known {
			var err error
			if pos, known, err = r.o.Shards.Position(ctx, s.Parent); err != nil {
				return fmt.Errorf("look up position of shard %s, parent of %s: %w", s.Parent, s.ID, err)
			}
		}
		if known && pos.End {
			s.Parent = ""
			s.seen = later(s.seen, seenBy(pos))
			return nil
		}
		parent := &shard{Shard: pipeline.Shard{Stream: s.Stream, ID: s.Parent, MetAt: s.MetAt, StartAt: s.StartAt, Later: s.Later}, state: Waiting}
		if known {
			parent.take(pos)
			r.add(parent)
			return nil
		}
		_, err := r.iterator(ctx, parent)
		if err == nil {
			// Its own parent is what only a listing tells, and has to be read before it.
			if r.unlisted[s.Parent]++; r.unlisted[s.Parent] <= maxUnnamed {
				r.listed = time.Time{}
				return fmt.Errorf("look for shard %s, parent of %s: %w", s.Parent, s.ID, errUnnamed)
			}
			if err := r.ownShard(ctx, parent); err != nil {
				return err
			}
			r.add(parent)
			return nil
		}
		if !notFound(err) && !trimmed(err) {
			return fmt.Errorf("look for shard %s, parent of %s: %w", s.Parent, s.ID, err)
		}
		s.Parent = ""
	}
	s.Orphan = true
	return nil
}

// tidyEvery is how often finished shards that are no longer listed are named to the checkpoint.
const tidyEvery = time.Hour

// forgetAfter is how long after a complete listing first left a finished shard out the checkpoint
// still keeps it.
const forgetAfter = 48 * time.Hour

// tidy has the checkpoint forget finished shards that the stream has forgotten. It asks for each
// twice: when a listing first leaves it out, and when its time is over.
func (r *Reader) tidy(ctx context.Context, at time.Time) error {
	if !r.tidied.IsZero() && r.o.Now().Sub(r.tidied) < tidyEvery {
		return nil
	}
	var unlisted, over []pipeline.ShardID
	for id, pos := range r.known {
		if !pos.End || r.shards[id] != nil {
			continue
		}
		since, asked := r.told[id]
		switch {
		case !asked:
			unlisted = append(unlisted, id)
		case at.Sub(since) >= forgetAfter:
			unlisted, over = append(unlisted, id), append(over, id)
		}
	}
	slices.Sort(unlisted)
	if len(unlisted) > 0 {
		if err := r.o.Shards.Forget(ctx, unlisted, at); err != nil {
			return fmt.Errorf("forget finished shards of %s: %w", r.o.StreamARN, err)
		}
	}
	for _, id := range unlisted {
		if _, asked := r.told[id]; !asked {
			r.told[id] = at
		}
	}
	for _, id := range over {
		delete(r.known, id)
		delete(r.told, id)
	}
	r.tidied = r.o.Now()
	return nil
}
