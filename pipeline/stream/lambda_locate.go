package stream

import (
	"cmp"
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

// A listed is a shard as a listing says it is.
type listed struct {
	pipeline.Shard
	first, last pipeline.SequenceNumber // of its range; last is "" while it is open
}

// list asks for all shards of the stream.
func (f *Function) list(ctx context.Context) error {
	for n := 0; ; n++ {
		found, at, err := f.describe(ctx)
		if err == nil {
			f.shards, f.at = found, at
			f.parents = map[pipeline.ShardID]bool{}
			for _, s := range found {
				f.parents[s.Parent] = true
			}
			return nil
		}
		if notFound(err) {
			return pipeline.NeedPerson(err, "check that the table exists and that this is its stream: one that was disabled and enabled again has a new name")
		}
		if !passes(ctx, err) {
			return err
		}
		if err := f.o.Wait(ctx, backoff(n, f.o.RetryBase, f.o.RetryCap)); err != nil {
			return err
		}
	}
}

// closed reports whether the last listing shows that a shard takes no more records.
func (f *Function) closed(id pipeline.ShardID) bool {
	return f.parents[id] || f.shards[id].last != ""
}

// believable reports whether a page may be believed that a shard has ended: it is closed, or
// listings say nothing of that.
func (f *Function) believable(id pipeline.ShardID) bool {
	return f.closed(id) || f.shards[id].first == ""
}

func (f *Function) describe(ctx context.Context) (found map[pipeline.ShardID]listed, at time.Time, err error) {
	found = map[pipeline.ShardID]listed{}
	in := &dynamodbstreams.DescribeStreamInput{StreamArn: &f.o.StreamARN}
	for {
		f.calls.Describes++
		out, err := call(ctx, in, f.client.DescribeStream)
		if err != nil {
			return nil, at, fmt.Errorf("describe stream %s: %w", f.o.StreamARN, err)
		}
		if out.StreamDescription == nil {
			return nil, at, fmt.Errorf("describe stream %s: the answer has no description", f.o.StreamARN)
		}
		if at.IsZero() { // of the first page: what came to be since is not in all of them
			at = f.serverTime(out.ResultMetadata)
		}
		for _, s := range out.StreamDescription.Shards {
			l := listed{Shard: pipeline.Shard{
				Stream: f.o.StreamARN, ID: pipeline.ShardID(aws.ToString(s.ShardId)), Parent: pipeline.ShardID(aws.ToString(s.ParentShardId)), MetAt: at, Later: true,
			}}
			if r := s.SequenceNumberRange; r != nil {
				l.first = pipeline.SequenceNumber(aws.ToString(r.StartingSequenceNumber))
				l.last = pipeline.SequenceNumber(aws.ToString(r.EndingSequenceNumber))
			}
			found[l.ID] = l
		}
		next := aws.ToString(out.StreamDescription.LastEvaluatedShardId)
		if next == "" || next == aws.ToString(in.ExclusiveStartShardId) {
			return found, at, nil // a cursor that stands still would go round for ever
		}
		in.ExclusiveStartShardId = &next
	}
}

// A located is an event's shard, and what reading it has shown so far.
type located struct {
	shard  pipeline.Shard
	pos    pipeline.Position
	known  bool // it has a checkpoint
	cursor *cursor
	page   *cursorPage // the first, if it has been read
}

// listings bounds how often a shard that no listing names is looked for: a new one can be
// missing for a while. After that the mapping tries again.
const listings = 3

// searchPages is how many empty pages each possible shard is asked for at first.
const searchPages = 5

// locate finds the event's shard, and proves it by reading.
func (f *Function) locate(ctx context.Context, ev *Event) (*located, error) {
	for n := range listings {
		if n > 0 || f.at.IsZero() {
			if err := f.list(ctx); err != nil {
				return nil, err
			}
		}
		pages := searchPages
		if n > 0 {
			pages = walkPages
		}
		at, err := f.search(ctx, ev, pages)
		if at != nil || err != nil {
			return at, err
		}
		if err := f.o.Wait(ctx, backoff(n, f.o.RetryBase, f.o.RetryCap)); err != nil {
			return nil, err
		}
	}
	last := ev.Records[len(ev.Records)-1]
	if f.serverNow().Sub(last.Created) >= retention {
		// An event does not say which shard it is of, so nobody can tell behind which position it belongs.
		return nil, fmt.Errorf("no shard of stream %s has the record %s that the event ends with: it was created at %s, a day ago. The mapping gives the event up by itself; what aged out becomes a gap (streamer gaps list) with the shard's next records or the next sweep, and is repaired from the table or an export",
			f.o.StreamARN, last.Seq, last.Created.Format(time.RFC3339))
	}
	return nil, fmt.Errorf("no shard of stream %s has the record %s that the event ends with: a new shard can be listed late, and the mapping delivers again; if it stays so, check that the function's AWS_REGION and endpoint are those of the mapping's stream", f.o.StreamARN, last.Seq)
}

// search goes through the listed shards: with one page of each first, then those whose page was
// empty, which says little, with more.
func (f *Function) search(ctx context.Context, ev *Event, most int) (*located, error) {
	guesses := f.guesses(ev)
	candidates := f.candidates(ev, guesses)
	for _, pages := range []int{1, most} {
		var unsure []pipeline.ShardID
		for i, id := range candidates {
			// The likeliest is read from its position at once, which proves it and brings the first
			// page with the same call.
			direct := pages == 1 && i == 0 && len(guesses) > 0
			s, listed := f.shards[id]
			if !listed {
				continue // a listing made since leaves it out
			}
			at, found, err := f.prove(ctx, s.Shard, ev, direct, pages)
			switch {
			case err != nil:
				return nil, err
			case found == yes:
				return at, nil
			case found == perhaps:
				unsure = append(unsure, id)
			}
		}
		candidates = unsure
	}
	return nil, nil
}

// A verdict on whether a shard is the event's.
type verdict int

const (
	no verdict = iota
	perhaps
	yes
)

// prove finds out whether the event's records are the shard's.
func (f *Function) prove(ctx context.Context, s pipeline.Shard, ev *Event, direct bool, pages int) (*located, verdict, error) {
	at := &located{shard: s}
	var err error
	var refused error
	at.pos, at.known, err = f.o.Shards.Position(ctx, s.ID)
	if _, person := errors.AsType[*pipeline.PersonError](err); person {
		refused = err // somebody else's: only a matter if it is the event's shard
	} else if err != nil {
		return nil, no, err
	}
	at.cursor = f.cursor(s.ID, at.pos)
	if direct && refused == nil && at.known && !at.pos.End && ev.last().Compare(at.pos.Seq) > 0 {
		p, err := at.cursor.next(ctx)
		if err != nil {
			return nil, no, err
		}
		at.page = &p
		switch found, past := p.find(ev); {
		case found:
			return at, yes, nil
		case past || at.cursor.gone:
			return nil, no, nil
		}
	}
	found, err := f.holds(ctx, s.ID, ev, pages)
	if err == nil && found == yes {
		err = refused
	}
	return at, found, err
}

// find looks for the event's last record in a page. past reports that the page goes on behind
// the place where it would be.
func (p *cursorPage) find(ev *Event) (found, past bool) {
	i, found := slices.BinarySearchFunc(p.batch.Records, ev.last(), func(r pipeline.Record, s pipeline.SequenceNumber) int { return r.Seq.Compare(s) })
	if found {
		found = p.ids[i] == ev.ids[len(ev.ids)-1]
		return found, !found
	}
	return false, i < len(p.batch.Records) || p.batch.End
}

// guesses are the shards that the event is likely of, likeliest first: that of its keys, then
// those used last.
func (f *Function) guesses(ev *Event) []pipeline.ShardID {
	var ids []pipeline.ShardID
	add := func(id pipeline.ShardID) {
		if id != "" && !slices.Contains(ids, id) && f.possible(id, ev) {
			ids = append(ids, id)
		}
	}
	for _, r := range ev.Records {
		add(f.byKey[f.keyOf(r)])
	}
	for _, id := range slices.Backward(f.used) {
		add(id)
	}
	return ids
}

// candidates are all shards whose range can hold the event's records, guesses first, then the
// youngest.
func (f *Function) candidates(ev *Event, guesses []pipeline.ShardID) []pipeline.ShardID {
	ids := slices.Clone(guesses)
	all := slices.SortedFunc(maps.Keys(f.shards), func(a, b pipeline.ShardID) int { return cmp.Compare(b, a) })
	for _, id := range all {
		if !slices.Contains(guesses, id) && f.possible(id, ev) {
			ids = append(ids, id)
		}
	}
	return ids
}

func (f *Function) possible(id pipeline.ShardID, ev *Event) bool {
	s, ok := f.shards[id]
	return ok && (s.first == "" || ev.last().Compare(s.first) >= 0) && (s.last == "" || ev.last().Compare(s.last) <= 0)
}

// Limits of an environment's memory of keys and shards.
const (
	maxKeys = 10_000
	maxUsed = 16
)

func (f *Function) remember(ev *Event, id pipeline.ShardID) {
	f.used = append(slices.DeleteFunc(f.used, func(u pipeline.ShardID) bool { return u == id }), id)
	if len(f.used) > maxUsed {
		f.used = slices.Delete(f.used, 0, 1)
	}
	if len(f.byKey) > maxKeys {
		clear(f.byKey)
	}
	for _, r := range ev.Records {
		if k := f.keyOf(r); k != "" {
			f.byKey[k] = id
		}
	}
}

// keyOf is the record's partition key as text, "" if it is none that can be remembered.
func (f *Function) keyOf(r pipeline.Record) string {
	switch v := r.Keys[f.o.Key].(type) {
	case *types.AttributeValueMemberS:
		return "s" + v.Value
	case *types.AttributeValueMemberN:
		return "n" + v.Value
	case *types.AttributeValueMemberB:
		return "b" + string(v.Value)
	}
	return ""
}
