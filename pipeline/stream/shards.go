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
	begins, ends pipeline.SequenceNumber // of its possible numbers, as listed; "" if not listed, ends also while it is open
	named        bool                    // the last complete listing named it
	owned        bool
	skip         bool // closed before the start mark: it ends without being read
	state        State
	fail         failures
	children     children

	after    pipeline.SequenceNumber // last emitted, else committed; "" before the first
	position time.Time               // when that record was created; zero if unknown
	created  time.Time               // of the last record emitted since Reset
	readAt   time.Time               // by Options.Now
	iterator string                  // "": ask for one
	horizon  bool                    // the next iterator is for the oldest record there is, whatever the position
	tip      tip
	next     time.Time     // not to be polled before
	wait     time.Duration // between the last two polls that found nothing
	full     bool          // its last page was as large as pages get
	starved  bool          // it was due, and the budget spent
	reopened int           // times that a listing contradicted its last page

	mark      time.Time         // start mark, until a record behind it was emitted
	seen      time.Time         // all that was created before has been emitted, or is reported as missing; zero if unknown
	met       time.Time         // the first listing that named it
	tipAt     time.Time         // see ShardInfo
	missing   *pipeline.Missing // to be emitted with the next records, or at the tip
	closing   int               // listings when its last page was read
	suspect   bool              // the service said that it is gone
	suspected int               // listings at that time
	unnamed   int               // times that it could not be read because no listing named it
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
	if len(r.order) != len(r.shards) {
		r.order = slices.AppendSeq(make([]*shard, 0, len(r.shards)), maps.Values(r.shards))
		slices.SortFunc(r.order, func(a, b *shard) int {
			if a.ID < b.ID {
				return -1
			}
			return 1
		})
	}
	return r.order
}

// add makes a shard known to the reader.
func (r *Reader) add(s *shard) *shard {
	r.shards[s.ID], r.order = s, nil
	return s
}

// refresh brings the list of shards up to date: a complete listing when one is due, the
// question for children of shards that ended, and the owning of shards that are new. What
// failed and may pass is noted in info.
func (r *Reader) refresh(ctx context.Context, patient bool, info *RoundInfo) error {
	now := r.o.Now()
	due := r.listed.IsZero() || len(r.shards) == 0 || now.Sub(r.listed) >= r.o.ListEvery
	if due && !(patient && r.listFail.waiting(now)) {
		switch err := r.list(ctx, info); {
		case err == nil:
			r.listed, r.listFail = now, failures{}
		case passes(ctx, err):
			r.listFail.again(now, r.o.RetryBase, r.o.RetryCap)
			info.trouble.add(err)
		default:
			return err
		}
	}
	for _, s := range r.sorted() {
		if s.children.wanted && !s.children.fail.waiting(now) {
			if err := r.askChildren(ctx, s, now, info); err != nil {
				return err
			}
		}
	}
	return r.own(ctx, patient, info)
}

// list makes a complete listing. The shards that it found before it failed are kept: with
// hundreds of them some page will always fail.
func (r *Reader) list(ctx context.Context, info *RoundInfo) error {
	if err := r.load(ctx); err != nil {
		return err
	}
	l, err := r.describe(ctx, nil)
	if l.at.IsZero() {
		return err
	}
	if mergeErr := r.merge(l, err == nil); mergeErr != nil {
		return mergeErr
	}
	r.discovered = true
	if err != nil {
		return err
	}
	r.disabled, r.listedAt = l.disabled, l.at
	r.listings++
	info.Listed = true
	if err := r.tidy(ctx, l.at); stops(ctx, err) {
		return err
	} else if err != nil {
		r.log.Warn("finished shards stay in the checkpoint for now", "cause", err)
	}
	return nil
}

// askChildren looks for the children of a shard that ended. No failure of it matters for
// long, since the next complete listing finds them too.
func (r *Reader) askChildren(ctx context.Context, s *shard, now time.Time, info *RoundInfo) error {
	s.children.asked = true
	s.children.fail.again(now, r.o.RetryBase, childrenCap)
	l, err := r.describe(ctx, &types.ShardFilter{Type: types.ShardFilterTypeChildShards, ShardId: aws.String(string(s.ID))})
	if err == nil {
		return r.merge(l, false)
	}
	if !passes(ctx, err) {
		// A server that does not know the filter refuses it in its own way.
		s.children.wanted = false
		r.listed = time.Time{}
	}
	info.trouble.add(err)
	return nil
}

// errListing means that a listing does not hold together. The next one may.
var errListing = errors.New("the listing is inconsistent")

// A listing is what DescribeStream says, page by page.
type listing struct {
	shards   []types.Shard
	at, done time.Time // of the first page and of the last, by the server's clock
	disabled bool
}

// describe lists all shards, or those that filter selects. With an error it returns what was
// listed before it.
func (r *Reader) describe(ctx context.Context, filter *types.ShardFilter) (listing, error) {
	var l listing
	in := &dynamodbstreams.DescribeStreamInput{StreamArn: aws.String(r.o.StreamARN), ShardFilter: filter}
	begun := map[string]bool{}
	for {
		out, err := call(ctx, in, r.client.DescribeStream)
		if err != nil {
			var none dynamodbstreams.DescribeStreamOutput
			r.counted(&r.calls.describe, none.ResultMetadata, err)
			err = fmt.Errorf("describe stream %s: %w", r.o.StreamARN, err)
			if notFound(err) && filter == nil && in.ExclusiveStartShardId == nil {
				return l, pipeline.NeedPerson(err, "check that the table exists and that this is its stream: one that was disabled and enabled again has a new name")
			}
			return l, err
		}
		r.counted(&r.calls.describe, out.ResultMetadata, nil)
		at := r.serverTime(out.ResultMetadata, nil)
		d := out.StreamDescription
		if d == nil {
			return l, fmt.Errorf("describe stream %s: the answer has no description", r.o.StreamARN)
		}
		if err := r.check(d); err != nil {
			return l, err
		}
		if l.at.IsZero() {
			l.at = at
		}
		l.done = at
		l.shards = append(l.shards, d.Shards...)
		l.disabled = d.StreamStatus == types.StreamStatusDisabled
		if d.LastEvaluatedShardId == nil {
			return l, nil
		}
		if begun[*d.LastEvaluatedShardId] {
			// Going on from there again would never end. The shards found so far are read.
			return l, fmt.Errorf("describe stream %s: the listing comes back to shard %s: %w", r.o.StreamARN, *d.LastEvaluatedShardId, errListing)
		}
		begun[*d.LastEvaluatedShardId] = true
		in.ExclusiveStartShardId = d.LastEvaluatedShardId
	}
}

// check refuses a stream whose records could not become rows.
func (r *Reader) check(d *types.StreamDescription) error {
	if arn := aws.ToString(d.StreamArn); arn != "" && arn != r.o.StreamARN {
		return pipeline.NeedPerson(fmt.Errorf("describe stream %s: the answer is of stream %s", r.o.StreamARN, arn),
			"check the endpoint that is called; this one confuses streams")
	}
	switch d.StreamViewType {
	case types.StreamViewTypeKeysOnly, types.StreamViewTypeOldImage:
		return pipeline.NeedPerson(fmt.Errorf("stream %s has the view type %s: its records lack the new image", r.o.StreamARN, d.StreamViewType),
			"disable the table's stream and enable it with NEW_IMAGE or NEW_AND_OLD_IMAGES")
	}
	return nil
}

// merge takes a listing in. Its order and its completeness are not relied on: a child may come
// before its parent, a parent may be left out, a shard may come twice.
func (r *Reader) merge(l listing, complete bool) error {
	named := make(map[pipeline.ShardID]bool, len(l.shards))
	for _, f := range l.shards {
		id, parent := pipeline.ShardID(aws.ToString(f.ShardId)), pipeline.ShardID(aws.ToString(f.ParentShardId))
		if id == "" || id == parent {
			return pipeline.NeedPerson(fmt.Errorf("list shards of %s: shard %q has the parent %q", r.o.StreamARN, id, parent),
				"check the endpoint that is called; its listings make no sense")
		}
		named[id] = true
		if p := r.shards[parent]; p != nil {
			p.children.wanted = false
		}
		s := r.shards[id]
		if s == nil {
			s = r.meet(id, l.done)
			// Only the listing that made the mark tells what was closed by then.
			s.skip = l.done.Equal(r.mark) && !s.owned && f.SequenceNumberRange != nil && f.SequenceNumberRange.EndingSequenceNumber != nil
		}
		if s.Parent == "" && !s.owned || s.state == Waiting && parent != "" {
			s.Parent = parent
		}
		if rg := f.SequenceNumberRange; rg != nil {
			s.begins = pipeline.SequenceNumber(aws.ToString(rg.StartingSequenceNumber))
			s.ends = pipeline.SequenceNumber(aws.ToString(rg.EndingSequenceNumber))
		}
		if err := s.inside(); err != nil {
			return err
		}
	}
	if err := r.acyclic(); err != nil || !complete {
		return err
	}
	for id, s := range r.shards {
		if s.named = named[id]; s.state == Finished && !s.named {
			r.known[id] = pipeline.Position{Seq: s.after, End: true, Created: s.position, TipAt: s.seen}
			delete(r.shards, id)
			r.order = nil
		}
	}
	// What was begun and is not listed is read like any other; if it is really gone, reading it
	// says so.
	for id, pos := range r.known {
		if !pos.End && r.shards[id] == nil {
			r.meet(id, l.done)
		}
	}
	return nil
}

// acyclic refuses a lineage in which no shard would ever be read.
func (r *Reader) acyclic() error {
	rooted := make(map[pipeline.ShardID]bool, len(r.shards))
	for _, s := range r.shards {
		var path []pipeline.ShardID
		for at := s; at != nil && !rooted[at.ID]; at = r.shards[at.Parent] {
			if path = append(path, at.ID); len(path) > len(r.shards) {
				return pipeline.NeedPerson(fmt.Errorf("list shards of %s: shard %s descends from itself", r.o.StreamARN, s.ID),
					"check the endpoint that is called; its listings make no sense")
			}
		}
		for _, id := range path {
			rooted[id] = true
		}
	}
	return nil
}

// inside refuses a position that is none of the shard's: a checkpoint of another stream, say.
func (s *shard) inside() error {
	if s.after == "" || s.begins == "" || s.after.Compare(s.begins) >= 0 && (s.ends == "" || s.after.Compare(s.ends) <= 0) {
		return nil
	}
	return pipeline.NeedPerson(fmt.Errorf("position %s of shard %s is outside of its numbers, %s to %q", s.after, s.ID, s.begins, s.ends),
		"the checkpoint is of another stream or was damaged: restore it, or rebuild the lane's positions from the lake")
}
