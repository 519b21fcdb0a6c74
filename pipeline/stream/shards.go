package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
)

// A shard is what the reader knows of one shard.
type shard struct {
	pipeline.Shard
	owned    bool
	state    State
	after    pipeline.SequenceNumber // last emitted, else committed; "" before the first
	created  time.Time               // of the last emitted record
	iterator string                  // "": ask for one
	fresh    bool                    // the iterator was asked for in this round
	fail     failures
	children children
}

// children is the search for the children of a shard that ended: they can be listed some
// time after their parent's end.
type children struct {
	wanted bool
	asked  bool // at least once
	fail   failures
}

// childrenCap is the longest wait between two questions for a shard's children. The listing
// that comes every minute finds them too.
const childrenCap = 30 * time.Second

// sorted returns the shards by id. Ids begin with the time of their creation, so parents
// mostly come before their children.
func (r *Reader) sorted() []*shard {
	all := slices.AppendSeq(make([]*shard, 0, len(r.shards)), maps.Values(r.shards))
	slices.SortFunc(all, func(a, b *shard) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return all
}

// refresh brings the list of shards up to date: a complete listing when one is due, the
// question for children of shards that ended, and the owning of shards that are new. A
// failure that may pass is returned in later.
func (r *Reader) refresh(ctx context.Context, patient bool) (listed bool, later, err error) {
	now := r.o.Now()
	due := r.listed.IsZero() || len(r.shards) == 0 || now.Sub(r.listed) >= r.o.ListEvery
	if due && !(patient && r.listFail.waiting(now)) {
		found, disabled, err := r.describe(ctx, nil)
		switch {
		case err == nil:
			r.listed, r.disabled, r.listFail = now, disabled, failures{}
			listed = true
			if err := r.merge(found, true); err != nil {
				return listed, nil, err
			}
		case passes(ctx, err):
			r.listFail.again(now, r.o.RetryBase, r.o.RetryCap)
			later = err
		default:
			return false, nil, err
		}
	}
	for _, s := range r.sorted() {
		if s.children.wanted && !s.children.fail.waiting(now) {
			later = errors.Join(later, r.askChildren(ctx, s, now))
		}
	}
	unowned, err := r.own(ctx)
	return listed, errors.Join(later, unowned), err
}

// askChildren looks for the children of a shard that ended. No failure of it matters for
// long, since the next complete listing finds them too.
func (r *Reader) askChildren(ctx context.Context, s *shard, now time.Time) error {
	s.children.asked = true
	s.children.fail.again(now, r.o.RetryBase, childrenCap)
	found, _, err := r.describe(ctx, &types.ShardFilter{Type: types.ShardFilterTypeChildShards, ShardId: aws.String(string(s.ID))})
	if err == nil {
		return r.merge(found, false)
	}
	if !passes(ctx, err) {
		// A server that does not know the filter refuses it in its own way.
		s.children.wanted = false
		r.listed = time.Time{}
	}
	return err
}

// describe lists all shards, or those that filter selects.
func (r *Reader) describe(ctx context.Context, filter *types.ShardFilter) (found []types.Shard, disabled bool, err error) {
	in := &dynamodbstreams.DescribeStreamInput{StreamArn: aws.String(r.o.StreamARN), ShardFilter: filter}
	for {
		out, err := call(ctx, in, r.client.DescribeStream)
		switch {
		case notFound(err) && filter == nil:
			return nil, false, pipeline.NeedPerson(fmt.Errorf("describe stream %s: %w", r.o.StreamARN, err),
				"check that the table exists and that this is its stream: one that was disabled and enabled again has a new name")
		case err != nil:
			return nil, false, fmt.Errorf("describe stream %s: %w", r.o.StreamARN, err)
		case out.StreamDescription == nil:
			return nil, false, fmt.Errorf("describe stream %s: the answer has no description", r.o.StreamARN)
		}
		d := out.StreamDescription
		found = append(found, d.Shards...)
		if d.LastEvaluatedShardId == nil {
			return found, d.StreamStatus == types.StreamStatusDisabled, nil
		}
		in.ExclusiveStartShardId = d.LastEvaluatedShardId
	}
}

// merge adds the shards that were not known. A complete listing also drops finished shards
// that it no longer names.
func (r *Reader) merge(found []types.Shard, complete bool) error {
	named := make(map[pipeline.ShardID]bool, len(found))
	for _, f := range found {
		id, parent := pipeline.ShardID(aws.ToString(f.ShardId)), pipeline.ShardID(aws.ToString(f.ParentShardId))
		if id == "" {
			return fmt.Errorf("list shards of %s: a shard has no id", r.o.StreamARN)
		}
		named[id] = true
		if p := r.shards[parent]; p != nil {
			p.children.wanted = false
		}
		if r.shards[id] == nil {
			r.shards[id] = &shard{Shard: pipeline.Shard{Stream: r.o.StreamARN, ID: id, Parent: parent}, state: Waiting}
		}
	}
	if complete {
		maps.DeleteFunc(r.shards, func(id pipeline.ShardID, s *shard) bool { return s.state == Finished && !named[id] })
	}
	return nil
}

// own makes every shard the lane's that is not yet. It goes on where it was interrupted. A
// shard that it could not place for now is in later, and is not read before it is owned.
func (r *Reader) own(ctx context.Context) (later, err error) {
	for _, s := range r.sorted() {
		if s.owned {
			continue
		}
		if s.Parent != "" && r.shards[s.Parent] == nil {
			err := r.findParent(ctx, s)
			if passes(ctx, err) {
				later = errors.Join(later, err)
				continue
			}
			if err != nil {
				return later, err
			}
		}
		if err := r.ownShard(ctx, s); err != nil {
			return later, err
		}
	}
	return later, nil
}

func (r *Reader) ownShard(ctx context.Context, s *shard) error {
	pos, err := r.o.Shards.Own(ctx, s.Shard)
	if err != nil {
		return fmt.Errorf("own shard %s of %s: %w", s.ID, s.Stream, err)
	}
	s.owned, s.after = true, pos.Seq
	if pos.End {
		s.state = Finished
	}
	r.log.Info("shard met", "shard", s.ID, "parent", s.Parent, "position", pos.Seq, "end", pos.End)
	return nil
}

// findParent decides about a parent that the listing does not name. Listings can be
// incomplete for a while, so its absence alone does not make the child a root. A parent that
// was begun and not finished, or that the service still has, is read like any other; if it
// is really gone, reading it says so.
func (r *Reader) findParent(ctx context.Context, s *shard) error {
	pos, known, err := r.o.Shards.Position(ctx, s.Parent)
	if err != nil {
		return fmt.Errorf("look up position of shard %s, parent of %s: %w", s.Parent, s.ID, err)
	}
	parent := &shard{Shard: pipeline.Shard{Stream: s.Stream, ID: s.Parent}, state: Waiting}
	switch {
	case known && pos.End:
		s.Parent = ""
		return nil
	case !known:
		_, err := r.iterator(ctx, parent)
		switch {
		case notFound(err) || trimmed(err):
			s.Parent = ""
			return nil
		case err != nil:
			return fmt.Errorf("look for shard %s, parent of %s: %w", s.Parent, s.ID, err)
		}
	}
	if err := r.ownShard(ctx, parent); err != nil {
		return err
	}
	r.shards[parent.ID] = parent
	return nil
}

// iterator asks for an iterator behind the last emitted record of s.
func (r *Reader) iterator(ctx context.Context, s *shard) (string, error) {
	in := &dynamodbstreams.GetShardIteratorInput{
		StreamArn: aws.String(s.Stream), ShardId: aws.String(string(s.ID)),
		ShardIteratorType: types.ShardIteratorTypeTrimHorizon,
	}
	if s.after != "" {
		in.ShardIteratorType = types.ShardIteratorTypeAfterSequenceNumber
		in.SequenceNumber = aws.String(string(s.after))
	}
	out, err := call(ctx, in, r.client.GetShardIterator)
	if err != nil {
		return "", fmt.Errorf("get iterator of shard %s after %q: %w", s.ID, s.after, err)
	}
	return aws.ToString(out.ShardIterator), nil
}

// call runs one operation within callTimeout.
func call[In, Out any](ctx context.Context, in *In, op func(context.Context, *In, ...func(*dynamodbstreams.Options)) (*Out, error)) (*Out, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return op(ctx, in)
}
