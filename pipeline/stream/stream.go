// Package stream knows DynamoDB Streams: shards and their lineage, iterators, pages and the
// ways in which the service says no. Its one rule: a child shard is read only after its
// parent is committed to the end, and a record is emitted, or reported as missing, or the
// reader stops.
package stream

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"

	"telemetrylake/pipeline"
)

// Shards is what a Reader asks of the lane it reads for: its memory of positions.
type Shards interface {
	// All returns the position of every shard of the stream that the lane owns. The reader
	// calls it once after each Reset, so that thousands of finished shards cost one query.
	All(ctx context.Context) (map[pipeline.ShardID]pipeline.Position, error)
	// Own makes the shard the lane's, creating its checkpoint if it is new, and returns the
	// stored position. The reader calls it once for each shard that All did not name, for
	// several at the same time.
	Own(ctx context.Context, s pipeline.Shard) (pipeline.Position, error)
	// Position returns the committed position, and false if the shard has no checkpoint.
	Position(ctx context.Context, id pipeline.ShardID) (pipeline.Position, bool, error)
	// Forget says that a complete listing, made at a time of the server's clock, no longer named
	// these finished shards. It drops those of which that has been true for long enough.
	Forget(ctx context.Context, unlisted []pipeline.ShardID, at time.Time) error
}

// A Start says where reading begins when the lane meets the stream for the first time. Later it
// has no meaning: a shard is read on from its position, and a new one from its beginning.
type Start int

// Where reading begins at the first discovery.
const (
	Horizon Start = iota // with the oldest record that the stream holds
	// Latest begins with what is created from the first discovery on: its time, by the server's
	// clock, is stored as the start mark before anything is read. Creation times are whole
	// seconds: records of the mark's own second are read.
	Latest
)

// Options of a Reader. StreamARN and Shards are required.
type Options struct {
	StreamARN string
	Shards    Shards
	Logger    *slog.Logger     // nil: no logs
	Now       func() time.Time // nil: time.Now; decides when to list shards and to ask a shard again
	Start     Start

	PageLimit int           // records of one page; 0: what the service gives, at most 1,000
	ListEvery time.Duration // 0: 60 s. A shard's end lists at once, so this only finds the unforeseen

	// Parallel is how many shards Poll reads at the same time; 0: 8. Each holds one page, of at
	// most 1 MB as received, until it is emitted: that bounds the bytes in flight.
	Parallel int
	Floor    time.Duration // wait of a shard whose page was not full; 0: 250 ms, four polls a second, as Lambda does
	Ceiling  time.Duration // longest wait of a shard that keeps giving empty pages; 0: 5 s
	Budget   float64       // pages a second of all shards together: GetRecords is billed; 0: 200

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

// A Reader reads all shards of one stream for one lane. Round, Poll, Run and Reset are for one
// goroutine; Replay and Requests may run beside them.
type Reader struct {
	client *dynamodbstreams.Client
	o      Options
	log    *slog.Logger
	calls  calls
	skew   atomic.Int64 // the server's clock less ours, as of the last answer

	shards     map[pipeline.ShardID]*shard
	order      []*shard                 // shards by id; nil: make it again
	unlisted   map[pipeline.ShardID]int // times that a listing left a shard out that is there
	known      map[pipeline.ShardID]pipeline.Position
	met        bool                           // known is what All returned
	first      bool                           // this lane meets the stream for the first time
	discovered bool                           // a listing has been taken in since Reset
	mark       time.Time                      // start mark of shards that are new; zero: none
	listed     time.Time                      // when the last complete listing began; zero: list now
	listedAt   time.Time                      // the same by the server's clock
	listings   int                            // complete ones since Reset
	tidied     time.Time                      // when Forget was called
	told       map[pipeline.ShardID]time.Time // finished shards that the checkpoint was told the stream has forgotten, since when
	disabled   bool                           // the stream takes no more records
	listFail   failures
	bucket     bucket
	polled     time.Time // when the last Poll read
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
	o.Parallel = orDefault(o.Parallel, 8)
	o.ListEvery = orDefault(o.ListEvery, time.Minute)
	o.Floor = orDefault(o.Floor, 250*time.Millisecond)
	o.Ceiling = max(o.Floor, orDefault(o.Ceiling, 5*time.Second))
	o.Budget = orDefault(o.Budget, 200)
	o.RetryBase = orDefault(o.RetryBase, 200*time.Millisecond)
	o.RetryCap = orDefault(o.RetryCap, 20*time.Second)
	r := &Reader{client: client, o: o, log: o.Logger.With("stream", o.StreamARN), bucket: newBucket(o.Budget)}
	r.Reset()
	return r
}

func orDefault[N int | float64 | time.Duration](n, otherwise N) N {
	if n <= 0 {
		return otherwise
	}
	return n
}

// Reset forgets all that was read and not committed: the next round lists the shards and reads
// on from their committed positions. A lane calls it when it has acquired its checkpoint again,
// and after any error of Round, Poll or Run.
func (r *Reader) Reset() {
	r.shards, r.order = map[pipeline.ShardID]*shard{}, nil
	r.known, r.met, r.first, r.discovered = nil, false, false, false
	r.unlisted = map[pipeline.ShardID]int{}
	r.mark = time.Time{}
	r.listed, r.listings = time.Time{}, 0
	r.disabled = false
	r.listFail = failures{}
}

// Run polls until ctx is done, the stream is disabled and read to its end, or an error that
// waiting does not heal.
func (r *Reader) Run(ctx context.Context, emit func(pipeline.Batch) error) error {
	for {
		info, err := r.Poll(ctx, emit)
		switch {
		case err != nil:
			return err
		case info.Ended:
			return nil
		}
	}
}
