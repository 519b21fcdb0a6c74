package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"
	smithy "github.com/aws/smithy-go/middleware"

	"telemetrylake/pipeline"
)

const retention = pipeline.StreamRetention

// A cursor reads one shard from a committed position on, for as long as one invocation lasts.
type cursor struct {
	f     *Function
	shard pipeline.ShardID
	from  pipeline.Position

	last     pipeline.SequenceNumber // of the records read so far, else from's
	iterator string
	lost     bool // from is older than what the stream holds: reading begins where the stream does
	orphan   bool // what its ancestors held is still to be reported as missing
	suspect  bool // the service said once that it has no such shard
	gone     bool // the service has no such shard any more
	ended    bool
	tip      tip
	empty    int // pages in a row
	read     int // records
	fails    int // tries in a row
}

// A cursorPage is one answer of GetRecords.
type cursorPage struct {
	batch pipeline.Batch // Missing is set where records before these aged out
	ids   []string       // eventID of each record
	at    time.Time      // the server's clock when it answered
	tipAt time.Time      // everything created before it has been read; zero if this page does not tell
}

// cursor begins at a position, or goes on with the walk that an earlier invocation did not bring to
// its end.
func (f *Function) cursor(id pipeline.ShardID, from pipeline.Position) *cursor {
	if c := f.walks[id]; c != nil {
		delete(f.walks, id)
		if c.from == from {
			return c
		}
	}
	return &cursor{f: f, shard: id, from: from, last: from.Seq, orphan: from.Orphaned()}
}

// maxWalks bounds what an environment remembers of walks that it did not finish.
const maxWalks = 1000

// keep remembers a cursor that has met only empty pages: nothing of that can be committed, and the
// next invocation would have them all to cross again.
func (c *cursor) keep() {
	if c.read == 0 && c.empty > 0 && !c.ended && len(c.f.walks) < maxWalks {
		c.f.walks[c.shard] = c
	}
}

// next reads a page. Throttling and the service's own failures are waited out until ctx is
// done. A shard that is gone ends, with what is missing of it.
func (c *cursor) next(ctx context.Context) (cursorPage, error) {
	for {
		p, again, err := c.once(ctx)
		if err != nil || again == nil {
			return p, err
		}
		if err := c.f.o.Wait(ctx, c.backoff()); err != nil {
			return p, err
		}
	}
}

// backoff is how long a failure that may pass is left alone.
func (c *cursor) backoff() time.Duration {
	return backoff(c.fails-1, c.f.o.RetryBase, c.f.o.RetryCap)
}

// once is one try at next. again is why there is no page yet, if that may pass.
func (c *cursor) once(ctx context.Context) (p cursorPage, again, err error) {
	p, err = c.try(ctx)
	if (trimmed(err) || invalid(err)) && !c.lost && c.begun() != "" {
		// What is behind the position is no longer there.
		c.lost, c.iterator = true, ""
		p, err = c.try(ctx)
	}
	switch {
	case err == nil:
		c.fails = 0
		return p, nil, nil
	case notFound(err) && c.suspect:
		return c.vanished(), nil, nil
	case notFound(err):
		// One answer is not believed: a complete listing that is made after it must agree.
		c.iterator = ""
		if err := c.f.list(ctx); err != nil {
			return p, nil, err
		}
		_, named := c.f.shards[c.shard]
		c.suspect = !named
	case invalid(err) && c.last != "":
		return p, nil, pipeline.NeedPerson(fmt.Errorf("the service does not take position %s for one of shard %s: %w", c.last, c.shard, err),
			"the checkpoint is of another stream or was damaged: restore it, or rebuild the lane's positions from the lake")
	case expired(err) || trimmed(err) || errors.Is(err, errOpen):
		c.iterator = "" // or the beginning moved on between two calls
	case !passes(ctx, err):
		return p, nil, err
	}
	c.fails++
	c.f.log.Info("shard not read, trying again", "shard", c.shard, "after", c.last, "cause", err)
	return p, err, nil
}

func (c *cursor) try(ctx context.Context) (cursorPage, error) {
	var p cursorPage
	if c.iterator == "" {
		in := &dynamodbstreams.GetShardIteratorInput{
			StreamArn: &c.f.o.StreamARN, ShardId: aws.String(string(c.shard)),
			ShardIteratorType: types.ShardIteratorTypeTrimHorizon,
		}
		begins, err := c.beginning(ctx)
		if err != nil {
			return p, err
		}
		switch {
		case c.lost || begins == "":
		case c.last != "":
			in.ShardIteratorType = types.ShardIteratorTypeAfterSequenceNumber
			in.SequenceNumber = aws.String(string(begins))
		default:
			in.ShardIteratorType = types.ShardIteratorTypeAtSequenceNumber
			in.SequenceNumber = aws.String(string(begins))
		}
		c.f.calls.Iterators++
		out, err := call(ctx, in, c.f.client.GetShardIterator)
		if err != nil {
			return p, fmt.Errorf("get iterator of shard %s after %q: %w", c.shard, c.last, err)
		}
		c.iterator = aws.ToString(out.ShardIterator)
		c.tip.moved()
	}
	in := &dynamodbstreams.GetRecordsInput{ShardIterator: &c.iterator}
	if c.f.o.PageLimit > 0 {
		in.Limit = aws.Int32(int32(c.f.o.PageLimit))
	}
	c.f.calls.GetRecords++
	out, err := call(ctx, in, c.f.client.GetRecords)
	if err != nil {
		return p, fmt.Errorf("read shard %s after %q: %w", c.shard, c.last, err)
	}
	p.at = c.f.serverTime(out.ResultMetadata)
	if p.batch, err = convert(c.shard, c.last, out.Records); err != nil {
		return p, err
	}
	for _, r := range out.Records {
		p.ids = append(p.ids, aws.ToString(r.EventID))
	}
	c.iterator = aws.ToString(out.NextShardIterator)
	if len(out.Records) > 0 {
		c.empty = 0
		c.tip.records()
	} else {
		c.empty++
		if at, ok := c.tip.empty(p.at); ok {
			p.tipAt = at
		}
	}
	c.afterMark(&p)
	n := len(p.batch.Records)
	if c.iterator == "" {
		if err := c.over(ctx); errors.Is(err, errOpen) && n > 0 {
			c.tip.moved()
		} else if err != nil {
			return p, err
		} else {
			c.ended, p.batch.End, p.tipAt = true, true, p.at
		}
	}
	// What is missing is known up to the first record that is there, else up to where all has been
	// read: it is written down then, since nobody may come back here for long.
	to := p.tipAt
	if n > 0 {
		to = p.batch.Records[0].Created
	}
	if c.lost && !to.IsZero() {
		// From here on an iterator is asked for behind a record that was there a moment ago.
		c.lost = false
		p.batch.Missing = c.missing(to, p.at)
	}
	if c.orphan && !to.IsZero() {
		c.orphan = false
		p.batch.Missing = &pipeline.Missing{Cause: pipeline.GapVanished, From: seenBy(c.from), To: to}
	}
	if n > 0 {
		c.last = p.batch.Records[n-1].Seq
		c.read += n
	}
	return p, nil
}

// errOpen means that a page and the listing contradict each other.
var errOpen = errors.New("a page said that the shard ended, and the listing that it is open")

// over makes sure that a shard whose last page had no next iterator is closed. A server that was
// started anew says the same of an iterator that it does not know.
func (c *cursor) over(ctx context.Context) error {
	if c.f.believable(c.shard) {
		return nil
	}
	if err := c.f.list(ctx); err != nil {
		return err
	}
	if c.f.believable(c.shard) {
		return nil
	}
	return fmt.Errorf("read shard %s after %q: %w", c.shard, c.last, errOpen)
}

// What waiting between empty pages costs in time and calls.
const (
	// walkFree pages follow each other at once: most deserts are crossed with them, and what a tip
	// takes beside its ten seconds is small.
	walkFree  = 20
	tipPause  = 1100 * time.Millisecond // then so many pages come to that: walkPages - walkFree
	closeFree = 100                     // of a shard that has something to show: records, or its end
)

// pause is how long to wait before the page behind an empty one. sure says that the shard has more
// to show; if not, only its tip is waited for.
func (c *cursor) pause(sure bool) time.Duration {
	switch {
	case c.empty <= walkFree, sure && c.empty <= closeFree:
		return 0
	case sure:
		return c.f.o.RetryBase
	}
	return tipPause
}

// beginning is begun, after listings that name the shard if it has to be read from its first number.
// Where none does, that is taken for gone.
func (c *cursor) beginning(ctx context.Context) (pipeline.SequenceNumber, error) {
	for range maxUnnamed {
		if _, named := c.f.shards[c.shard]; named || c.lost || c.last != "" || !c.stale() {
			return c.begun(), nil
		}
		if err := c.f.list(ctx); err != nil {
			return "", err
		}
	}
	c.lost = true
	return "", nil
}

// stale reports whether all that is known of the shard is so old that records behind it can be gone.
func (c *cursor) stale() bool {
	at := held(c.from)
	return !at.IsZero() && c.f.serverNow().Sub(at) >= surelyHeld
}

// begun is the number that reading begins behind, or at if no record of the shard is committed; ""
// if it may begin wherever the stream does. A shard that was met and not read for long begins at
// its first number, so that the service says if that is gone.
func (c *cursor) begun() pipeline.SequenceNumber {
	if c.last != "" {
		return c.last
	}
	if c.stale() {
		return c.f.shards[c.shard].first
	}
	return ""
}

// held is the time before which nothing is missing behind a position, as far as that is known.
func held(pos pipeline.Position) time.Time {
	if at := seenBy(pos); !at.IsZero() {
		return at
	}
	return pos.MetAt
}

// missing says what lies between a position that is no longer in the stream and what was found
// there instead, or nil if nothing can: all that was created until less than a day ago was read.
// A record that the service must still hold, and does not, contradicts that: its word counts.
func (c *cursor) missing(to, now time.Time) *pipeline.Missing {
	at := held(c.from)
	contradicted := c.from.Seq != "" && !c.from.Created.IsZero() && now.Sub(c.from.Created) < surelyHeld
	if c.read == 0 && !contradicted && now.Sub(at) < retention {
		return nil
	}
	return &pipeline.Missing{Cause: pipeline.GapTrimmed, From: seenBy(c.from), To: to}
}

// vanished ends a shard that is gone, with what is missing of it: what it held was a day old, or it
// would be there.
func (c *cursor) vanished() cursorPage {
	c.gone, c.ended = true, true
	from := seenBy(c.from)
	now := c.f.serverNow().UTC()
	to := now.Add(-retention)
	if !to.After(from) {
		to = now
	}
	return cursorPage{batch: pipeline.Batch{Shard: c.shard, End: true, Missing: &pipeline.Missing{Cause: pipeline.GapVanished, From: from, To: to}}}
}

// afterMark drops the first records of a shard that were created before its start mark.
func (c *cursor) afterMark(p *cursorPage) {
	if c.from.Seq != "" || c.read > 0 {
		return
	}
	n := 0
	for n < len(p.batch.Records) && p.batch.Records[n].Created.Before(c.from.StartAt) {
		n++
	}
	if n > 0 {
		c.last = p.batch.Records[n-1].Seq
		p.batch.Records, p.ids = p.batch.Records[n:], p.ids[n:]
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// serverTime is the service's clock as its answer gives it. One that does not is a local server's,
// whose clock is ours.
func (f *Function) serverTime(m smithy.Metadata) time.Time {
	if at, ok := middleware.GetServerTime(m); ok {
		f.skew = at.Sub(f.o.Now())
		return at.UTC()
	}
	return f.o.Now().UTC().Truncate(time.Second)
}

// serverNow is the service's clock, as far as ours has kept up with it since its last answer.
func (f *Function) serverNow() time.Time { return f.o.Now().Add(f.skew) }

// holds asks whether a shard has the event's last record: by its number and by its id, which no
// other record of the stream has. The last is asked for because it ages out last. pages bounds
// the empty ones that are read.
func (f *Function) holds(ctx context.Context, id pipeline.ShardID, ev *Event, pages int) (verdict, error) {
	for n := 0; ; n++ {
		found, err := f.ask(ctx, id, ev, pages)
		switch {
		case err == nil:
			return found, nil
		case trimmed(err) || notFound(err) || invalid(err):
			return no, nil // the number lies outside of its range, or is trimmed, or the shard is gone
		case !expired(err) && !passes(ctx, err):
			return no, err
		}
		if err := f.o.Wait(ctx, backoff(n, f.o.RetryBase, f.o.RetryCap)); err != nil {
			return no, err
		}
	}
}

func (f *Function) ask(ctx context.Context, id pipeline.ShardID, ev *Event, pages int) (verdict, error) {
	seq := ev.last()
	f.calls.Iterators++
	it, err := call(ctx, &dynamodbstreams.GetShardIteratorInput{
		StreamArn: &f.o.StreamARN, ShardId: aws.String(string(id)),
		ShardIteratorType: types.ShardIteratorTypeAtSequenceNumber, SequenceNumber: aws.String(string(seq)),
	}, f.client.GetShardIterator)
	if err != nil {
		return no, fmt.Errorf("get iterator of shard %s at %s: %w", id, seq, err)
	}
	next := it.ShardIterator
	for range pages {
		f.calls.GetRecords++
		out, err := call(ctx, &dynamodbstreams.GetRecordsInput{ShardIterator: next, Limit: aws.Int32(1)}, f.client.GetRecords)
		if err != nil {
			return no, fmt.Errorf("read shard %s at %s: %w", id, seq, err)
		}
		if len(out.Records) > 0 {
			d := out.Records[0].Dynamodb
			if d != nil && pipeline.SequenceNumber(aws.ToString(d.SequenceNumber)).Compare(seq) == 0 &&
				aws.ToString(out.Records[0].EventID) == ev.ids[len(ev.ids)-1] {
				return yes, nil
			}
			return no, nil
		}
		if next = out.NextShardIterator; next == nil {
			return no, nil
		}
	}
	return perhaps, nil
}
