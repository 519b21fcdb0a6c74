// Package stream knows DynamoDB Streams: shards and their lineage, iterators, pages and the
// ways in which the service says no. Its one rule: a child shard is read only after its
// parent is committed to the end, and a record is either emitted or the reader stops.
package stream

import (
	"context"
	"log/slog"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"

	"telemetrylake/pipeline"
)

// Shards is what a Reader asks of the lane it reads for: its memory of positions.
type Shards interface {
	// Own makes the shard the lane's, creating its checkpoint if it is new, and returns the
	// committed position. The reader calls it once for each shard that it meets.
	Own(ctx context.Context, s pipeline.Shard) (pipeline.Position, error)
	// Position returns the committed position, and false if the shard has no checkpoint.
	Position(ctx context.Context, id pipeline.ShardID) (pipeline.Position, bool, error)
}

// Options of a Reader. StreamARN and Shards are required.
type Options struct {
	StreamARN string
	Shards    Shards
	Logger    *slog.Logger     // nil: no logs
	Now       func() time.Time // nil: time.Now; decides when to list shards and to ask a shard again

	PageLimit int           // records of one page; 0: what the service gives, at most 1,000
	Parallel  int           // shards read at the same time; 0: 1, so that calls come in one order
	ListEvery time.Duration // 0: 60 s. A shard's end lists at once, so this only finds the unforeseen
	Poll      time.Duration // wait after pages that were not full; 0: 250 ms, four polls a second, as Lambda does
	Idle      time.Duration // wait after a round without records; 0: 1 s
	RetryBase time.Duration // first wait after a failure that may pass, on top of the SDK's retries; 0: 200 ms
	RetryCap  time.Duration // longest such wait; 0: 20 s
}

// maxPage is the most records that GetRecords returns.
const maxPage = 1000

// fullBytes is the size from which a page of fewer than maxPage records counts as full. The
// service cuts pages at 1 MB, by a measure that need not be the sum of the records' SizeBytes.
const fullBytes = 512 << 10

// callTimeout bounds one call with its retries, so that one hanging connection is not for ever.
const callTimeout = 30 * time.Second

// A Reader reads all shards of one stream for one lane. Round, Run and Reset are for one
// goroutine; Replay may run beside them.
type Reader struct {
	client *dynamodbstreams.Client
	o      Options
	log    *slog.Logger

	shards   map[pipeline.ShardID]*shard
	listed   time.Time // when the last complete listing began; zero: list now
	disabled bool      // the stream takes no more records
	listFail failures
}

var (
	_ pipeline.Source   = (*Reader)(nil)
	_ pipeline.Replayer = (*Reader)(nil)
)

// New returns a Reader that has read nothing.
func New(client *dynamodbstreams.Client, o Options) *Reader {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Parallel = max(o.Parallel, 1)
	o.ListEvery = orDefault(o.ListEvery, time.Minute)
	o.Poll = orDefault(o.Poll, 250*time.Millisecond)
	o.Idle = orDefault(o.Idle, time.Second)
	o.RetryBase = orDefault(o.RetryBase, 200*time.Millisecond)
	o.RetryCap = orDefault(o.RetryCap, 20*time.Second)
	r := &Reader{client: client, o: o, log: o.Logger.With("stream", o.StreamARN)}
	r.Reset()
	return r
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

// Reset forgets all that was read and not committed: the next round lists the shards, owns
// them again and reads on from their committed positions. A lane calls it when it has
// acquired its checkpoint again, and after any error of Round or Run.
func (r *Reader) Reset() {
	r.shards = map[pipeline.ShardID]*shard{}
	r.listed = time.Time{}
	r.disabled = false
	r.listFail = failures{}
}

// Run reads round after round until ctx is done, the stream is disabled and read to its end,
// or an error that waiting does not heal. It waits between rounds that found little, and
// leaves a shard alone for a while, ever longer, when the service fails to serve it.
func (r *Reader) Run(ctx context.Context, emit func(pipeline.Batch) error) error {
	for {
		info, err := r.round(ctx, emit, true)
		switch {
		case err != nil:
			return err
		case info.Ended:
			return nil
		case info.full:
			if err := ctx.Err(); err != nil {
				return err
			}
			continue
		}
		wait := r.o.Idle
		if info.Records > 0 || info.ended {
			wait = r.o.Poll
		}
		if err := pipeline.Wait(ctx, wait); err != nil {
			return err
		}
	}
}
