package stream

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
)

// A page is the answer for one shard.
type page struct {
	batch pipeline.Batch
	next  string    // next iterator; "" at the end of a closed shard
	count int       // records as received
	at    time.Time // the server's clock
	err   error
}

// pages reads a page of each shard and hands it over in the caller's goroutine, which owns the
// shards again from then on. With parallel 1 that is the order of shards; otherwise it is the
// order of answers, and no more than parallel pages are held.
func (r *Reader) pages(ctx context.Context, shards []*shard, parallel int, deliver func(*shard, page) error) error {
	if parallel = min(parallel, len(shards)); parallel <= 1 {
		for _, s := range shards {
			if err := deliver(s, r.readPage(ctx, s)); err != nil {
				return err
			}
		}
		return nil
	}
	type answer struct {
		*shard
		page
	}
	ctx, cancel := context.WithCancel(ctx)
	todo, answers := make(chan *shard), make(chan answer)
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for s := range todo {
				answers <- answer{s, r.readPage(ctx, s)}
			}
		})
	}
	var err error
	asked, got := 0, 0
	for got < asked || err == nil && asked < len(shards) {
		var next *shard
		var give chan *shard
		if err == nil && asked < len(shards) {
			next, give = shards[asked], todo
		}
		select {
		case give <- next:
			asked++
		case a := <-answers:
			got++
			if err == nil {
				if err = deliver(a.shard, a.page); err != nil {
					cancel() // what is under way is not waited out
				}
			}
		}
	}
	close(todo)
	workers.Wait()
	cancel()
	return err
}

// reissues bounds how often one read asks for a new iterator.
const reissues = 3

// readPage changes nothing in s but its iterator.
func (r *Reader) readPage(ctx context.Context, s *shard) page {
	for try := 0; ; try++ {
		fresh := s.iterator == ""
		if fresh {
			it, err := r.iterator(ctx, s)
			if err != nil {
				return page{err: err, at: r.serverNow()}
			}
			s.iterator = it
			s.tip.moved()
		}
		p := r.getRecords(ctx, s.ID, s.iterator, s.after)
		if p.err == nil {
			return p
		}
		// An iterator lives 15 minutes; behind a consumer that was blocked longer it is dead,
		// and nothing is lost by asking for another behind the last emitted record. A server
		// that was started anew may not even know what it is.
		if again := expired(p.err) || invalid(p.err) && !fresh; !again || try == reissues {
			return p
		}
		r.log.Info("iterator issued again", "shard", s.ID, "after", s.after, "cause", p.err)
		s.iterator = ""
	}
}

func (r *Reader) getRecords(ctx context.Context, id pipeline.ShardID, iterator string, after pipeline.SequenceNumber) page {
	in := &dynamodbstreams.GetRecordsInput{ShardIterator: aws.String(iterator)}
	if r.o.PageLimit > 0 {
		in.Limit = aws.Int32(int32(min(r.o.PageLimit, maxPage)))
	}
	out, err := call(ctx, in, r.client.GetRecords)
	if err != nil {
		var none dynamodbstreams.GetRecordsOutput
		r.counted(&r.calls.records, none.ResultMetadata, err)
		return page{err: fmt.Errorf("read shard %s after %q: %w", id, after, err), at: r.serverTime(none.ResultMetadata, err)}
	}
	r.counted(&r.calls.records, out.ResultMetadata, nil)
	b, err := convert(id, after, out.Records)
	return page{batch: b, next: aws.ToString(out.NextShardIterator), count: len(out.Records), at: r.serverTime(out.ResultMetadata, nil), err: err}
}

// iterator asks for an iterator behind the last emitted record of s.
func (r *Reader) iterator(ctx context.Context, s *shard) (string, error) {
	in := &dynamodbstreams.GetShardIteratorInput{
		StreamArn: aws.String(s.Stream), ShardId: aws.String(string(s.ID)),
		ShardIteratorType: types.ShardIteratorTypeTrimHorizon,
	}
	unnamed := false
	switch {
	case s.horizon:
	case s.after != "":
		in.ShardIteratorType, in.SequenceNumber = types.ShardIteratorTypeAfterSequenceNumber, aws.String(string(s.after))
	case s.begins == "" && !s.named && !s.lossless(r.serverNow()):
		unnamed = true // the question is only whether it is there
	case s.begins != "" && !s.lossless(r.serverNow()):
		// The horizon would hide that the shard's first records have aged out.
		in.ShardIteratorType, in.SequenceNumber = types.ShardIteratorTypeAtSequenceNumber, aws.String(string(s.begins))
	}
	out, err := call(ctx, in, r.client.GetShardIterator)
	if err != nil {
		var none dynamodbstreams.GetShardIteratorOutput
		r.counted(&r.calls.iterator, none.ResultMetadata, err)
		r.serverTime(none.ResultMetadata, err)
		return "", fmt.Errorf("get iterator of shard %s after %q: %w", s.ID, s.after, err)
	}
	r.counted(&r.calls.iterator, out.ResultMetadata, nil)
	r.serverTime(out.ResultMetadata, nil)
	if unnamed {
		return "", fmt.Errorf("get iterator of shard %s: %w", s.ID, errUnnamed)
	}
	return aws.ToString(out.ShardIterator), nil
}
