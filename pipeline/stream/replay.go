package stream

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
)

// maxEmpty is how many empty pages in a row a replay reads before it says that the records
// are not there. Each but the first few costs a wait, so this is minutes.
const maxEmpty = 200

// Replay emits the records of each range, from First to Last inclusive, in the order of
// ranges. A range's last batch has End set if the range has; a range without records emits
// only that. Removals by TTL are emitted as they were the first time.
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
	fail     failures
}

func (p *replay) run(ctx context.Context, emit func(pipeline.Batch) error) error {
	for {
		pg, err := p.page(ctx)
		if err != nil {
			return err
		}
		done := false
		if pg.count > 0 {
			p.empty = 0
			b := pg.batch
			if p.read == "" && b.Records[0].Seq.Compare(p.First) != 0 {
				return p.missing(fmt.Errorf("the first record found is %s", b.Records[0].Seq))
			}
			for i, rec := range b.Records {
				c := rec.Seq.Compare(p.Last)
				if c > 0 {
					return p.missing(fmt.Errorf("record %s follows %s", rec.Seq, p.read))
				}
				p.read = rec.Seq
				if c == 0 {
					b.Records, done = b.Records[:i+1], true
					break
				}
			}
			b.End = done && p.End
			if err := emit(b); err != nil {
				return err
			}
		}
		switch {
		case done:
			return nil
		case pg.next == "":
			return p.missing(fmt.Errorf("the shard ends after %q", p.read))
		case pg.count == 0:
			if err := p.rest(ctx); err != nil {
				return err
			}
		}
		p.iterator = pg.next
	}
}

// rest waits a little after an empty page: the service may need several calls to come to the
// records.
func (p *replay) rest(ctx context.Context) error {
	p.empty++
	if p.empty >= maxEmpty {
		return p.missing(fmt.Errorf("%d pages in a row were empty after %q", p.empty, p.read))
	}
	if p.empty <= 20 {
		return ctx.Err()
	}
	return pipeline.Wait(ctx, p.r.o.Floor)
}

func (p *replay) missing(err error) error {
	return pipeline.NeedPerson(fmt.Errorf("replay shard %s, records %s to %s: %w: %w", p.Shard, p.First, p.Last, pipeline.ErrTrimmed, err),
		"the window of these records cannot be made again; take them from the table or an export before it is given up")
}

// page reads the next page, asking again for as long as the failure may pass.
func (p *replay) page(ctx context.Context) (page, error) {
	for {
		pg := p.try(ctx)
		switch {
		case pg.err == nil:
			p.fail = failures{}
			return pg, nil
		case trimmed(pg.err) || notFound(pg.err):
			return pg, p.missing(pg.err)
		case expired(pg.err):
			p.iterator = ""
		case !passes(ctx, pg.err):
			return pg, pg.err
		}
		p.r.log.Warn("range not read, trying again", "shard", p.Shard, "first", p.First, "last", p.Last, "cause", pg.err)
		wait := backoff(p.fail.n, p.r.o.RetryBase, p.r.o.RetryCap)
		p.fail.n++
		if err := pipeline.Wait(ctx, wait); err != nil {
			return pg, err
		}
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
