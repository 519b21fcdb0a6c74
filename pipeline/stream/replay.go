package stream

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
)

// maxEmpty is how many empty pages in a row a replay reads, or a function where a record has to be,
// before it starts over. Each but the first few costs a wait, so this is minutes.
const maxEmpty = 200

// restarts is how often a replay asks anew for what an iterator did not show.
const restarts = 3

// Replay emits the records of each range, from First to Last inclusive, in the order of
// ranges. A range's last batch has End set if the range has; a range without records emits
// only that. Removals by TTL are emitted as they were the first time.
//
// It fails with pipeline.ErrTrimmed only on proof that records of the range aged out: the service
// says so, or it has no such shard and a complete listing agrees. Pages that show others, or none,
// prove nothing: they are read again, and then are an error.
func (r *Reader) Replay(ctx context.Context, ranges []pipeline.Range, emit func(pipeline.Batch) error) error {
	for _, rg := range ranges {
		if rg.First == "" {
			if rg.End {
				if err := emit(pipeline.Batch{Shard: rg.Shard, End: true}); err != nil {
					return err
				}
			}
			continue
		}
		if rg.Last.Compare(rg.First) < 0 {
			return fmt.Errorf("replay shard %s: the range %s..%s ends before it begins", rg.Shard, rg.First, rg.Last)
		}
		p := replay{r: r, Range: rg}
		if err := p.run(ctx, emit); err != nil {
			return err
		}
	}
	return nil
}

// A replay reads one range.
type replay struct {
	r *Reader
	pipeline.Range
	read     pipeline.SequenceNumber // last emitted; "" before the first
	iterator string
	empty    int // pages in a row
	restarts int // since the last record
	suspect  bool
	fail     failures
}

func (p *replay) run(ctx context.Context, emit func(pipeline.Batch) error) error {
	for {
		pg, err := p.page(ctx)
		if err != nil {
			return err
		}
		b, done, odd := p.take(pg)
		if len(b.Records) > 0 {
			p.empty, p.restarts = 0, 0
			if err := emit(b); err != nil {
				return err
			}
		}
		switch {
		case done:
			return nil
		case odd != nil:
			if err := p.again(ctx, odd); err != nil {
				return err
			}
		case pg.count == 0:
			if err := p.rest(ctx, pg); err != nil {
				return err
			}
		default:
			p.iterator = pg.next
		}
	}
}

// take returns what of a page belongs to the range, and whether that is its end. odd says what
// should not be.
func (p *replay) take(pg page) (b pipeline.Batch, done bool, odd error) {
	b = pg.batch
	for i, rec := range b.Records {
		if p.read == "" && rec.Seq.Compare(p.First) != 0 {
			b.Records, odd = nil, fmt.Errorf("the first record found is %s", rec.Seq)
			return b, false, odd
		}
		c := rec.Seq.Compare(p.Last)
		if c > 0 {
			b.Records, odd = b.Records[:i], fmt.Errorf("record %s follows %s", rec.Seq, p.read)
			return b, false, odd
		}
		p.read = rec.Seq
		if c == 0 {
			b.Records, b.End = b.Records[:i+1], p.End
			return b, true, nil
		}
	}
	if pg.next == "" {
		odd = fmt.Errorf("the shard ends after %q", p.read)
	}
	return b, false, odd
}

// again asks anew behind the last record emitted: if what was read over has aged out, the service
// says so then. What stays odd is a matter of the checkpoint, or of the endpoint.
func (p *replay) again(ctx context.Context, odd error) error {
	if p.restarts++; p.restarts > restarts {
		return pipeline.NeedPerson(p.failed(odd),
			"the service has other records than the window was made of: check that AWS_REGION and the endpoint are those of the stream, and that the checkpoint table is of it and was not restored")
	}
	p.r.log.Warn("range not read, asking anew", "shard", p.Shard, "first", p.First, "last", p.Last, "cause", odd)
	p.iterator, p.empty = "", 0
	return pipeline.Wait(ctx, backoff(p.restarts-1, p.r.o.RetryBase, p.r.o.RetryCap))
}

// rest waits a little after an empty page: the service may need several calls to come to the
// records. Not to come to them says nothing: whoever replays tries again.
func (p *replay) rest(ctx context.Context, pg page) error {
	p.empty++
	p.iterator = pg.next
	switch {
	case p.empty >= maxEmpty && p.restarts >= restarts:
		return p.failed(fmt.Errorf("%d pages in a row were empty after %q, %d times; they may be there, so nothing is given up: try again", p.empty, p.read, p.restarts+1))
	case p.empty >= maxEmpty:
		p.restarts++
		p.iterator, p.empty = "", 0
	case p.empty <= walkFree:
		return ctx.Err()
	}
	return pipeline.Wait(ctx, p.r.o.Floor)
}

func (p *replay) failed(err error) error {
	return fmt.Errorf("replay shard %s, records %s to %s: %w", p.Shard, p.First, p.Last, err)
}

func (p *replay) missing(err error) error {
	return pipeline.NeedPerson(p.failed(fmt.Errorf("%w: %w", pipeline.ErrTrimmed, err)),
		"the window of these records cannot be made again; take them from the table or an export before it is given up")
}

// page reads the next page, asking again for as long as the failure may pass.
func (p *replay) page(ctx context.Context) (page, error) {
	for {
		pg := p.try(ctx)
		switch {
		case pg.err == nil:
			p.fail, p.suspect = failures{}, false
			return pg, nil
		case trimmed(pg.err), notFound(pg.err) && p.suspect:
			return pg, p.missing(pg.err)
		case notFound(pg.err):
			// One answer is not believed: a complete listing that is made after it must agree.
			p.iterator = ""
			switch listed, err := p.listed(ctx); {
			case err == nil:
				p.suspect = !listed
			case !passes(ctx, err):
				return pg, p.failed(err)
			}
		case expired(pg.err):
			p.iterator = ""
		case invalid(pg.err):
			// Either the iterator is one that the service does not know any more, or the number.
			if p.restarts++; p.restarts > restarts {
				return pg, pipeline.NeedPerson(p.failed(pg.err),
					"the service does not take the window's numbers for those of its shard: check that the checkpoint table is of this stream and was not restored")
			}
			p.iterator = ""
		case !passes(ctx, pg.err):
			return pg, p.failed(pg.err)
		}
		p.r.log.Warn("range not read, trying again", "shard", p.Shard, "first", p.First, "last", p.Last, "cause", pg.err)
		wait := backoff(p.fail.n, p.r.o.RetryBase, p.r.o.RetryCap)
		p.fail.n++
		if err := pipeline.Wait(ctx, wait); err != nil {
			return pg, err
		}
	}
}

// listed reports whether a complete listing names the shard. A stream that is gone has none: then
// one of its table's streams must show that this is where it was.
func (p *replay) listed(ctx context.Context) (bool, error) {
	l, err := p.r.describe(ctx, nil)
	if notFound(err) {
		if gone, failed := p.streamGone(ctx); gone || failed != nil {
			return false, failed
		}
	}
	return slices.ContainsFunc(l.shards, func(s types.Shard) bool { return aws.ToString(s.ShardId) == string(p.Shard) }), err
}

// streamGone reports whether the table has other streams, and not this one any more: it was disabled
// more than a day ago.
func (p *replay) streamGone(ctx context.Context) (bool, error) {
	name, _, _ := strings.Cut(p.r.o.StreamARN, "/stream/")
	_, table, _ := strings.Cut(name, ":table/")
	in := &dynamodbstreams.ListStreamsInput{TableName: &table}
	for others := false; ; {
		out, err := call(ctx, in, p.r.client.ListStreams)
		if err != nil {
			return false, fmt.Errorf("list streams of table %s: %w", table, err)
		}
		for _, s := range out.Streams {
			if aws.ToString(s.StreamArn) == p.r.o.StreamARN {
				return false, nil
			}
			others = true
		}
		next := aws.ToString(out.LastEvaluatedStreamArn)
		if next == "" || next == aws.ToString(in.ExclusiveStartStreamArn) {
			return others, nil
		}
		in.ExclusiveStartStreamArn = &next
	}
}

func (p *replay) try(ctx context.Context) page {
	if p.iterator == "" {
		in := &dynamodbstreams.GetShardIteratorInput{
			StreamArn: aws.String(p.r.o.StreamARN), ShardId: aws.String(string(p.Shard)),
			ShardIteratorType: types.ShardIteratorTypeAtSequenceNumber, SequenceNumber: aws.String(string(p.First)),
		}
		if p.read != "" {
			in.ShardIteratorType = types.ShardIteratorTypeAfterSequenceNumber
			in.SequenceNumber = aws.String(string(p.read))
		}
		out, err := call(ctx, in, p.r.client.GetShardIterator)
		if err != nil {
			return page{err: fmt.Errorf("get iterator of shard %s at %s: %w", p.Shard, *in.SequenceNumber, err)}
		}
		p.iterator = aws.ToString(out.ShardIterator)
	}
	return p.r.getRecords(ctx, p.Shard, p.iterator, p.read)
}
