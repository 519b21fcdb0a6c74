package testenv

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Options say how an Env behaves. The zero value is usable except for Dir.
type Options struct {
	// Dir is the root of what is kept in files: S3 objects are Dir/s3/<bucket>/<key>.
	Dir string
	// Clock is the one clock of the Env; nil is the system clock.
	Clock Clock
	// Region and Account appear in ARNs and records; defaults us-east-1 and 000000000000.
	Region, Account string
	// StreamShards is the number of open shards of a new stream; default 4.
	StreamShards int
	// ShardLife is how long a shard stays open before it is closed and followed by one
	// child. Default 4 h, as the service's documentation says; negative: for ever.
	ShardLife time.Duration
	// Seed drives ids, UUIDs and sequence numbers: the same seed and the same calls
	// give the same bytes.
	Seed uint64
	// StreamRetention is how long records of a stream are kept; default 24 h, as of the
	// service; negative: for ever, or until TrimStream.
	StreamRetention time.Duration
	// Firehose, Streams and DynamoDB say what the services do where they are free.
	Firehose FirehoseBehaviour
	Streams  StreamsBehaviour
	DynamoDB DynamoDBBehaviour
	// Fault is asked before each request and lets it fail; nil, and an answer of nil:
	// nothing is in the way. It may be called concurrently and must not call the Env.
	Fault func(Request) *Fault
	// Durable keeps everything under Dir, not only S3's objects: tables, streams and
	// delivery streams with what they hold. An Env opened again on Dir goes on where the
	// one before it was closed or killed. One Env at a time can have Dir open so; one that
	// is not durable sees the objects only.
	Durable bool
	// CacheBytes bounds the memory a durable Env takes for what it has on disk: that
	// much for blocks it has read, and at most as much for what it has yet to write
	// into tables. Default 256 MiB.
	CacheBytes int64
	// Sync makes writes outlive the machine's power (fsync) before they are acknowledged,
	// not only the process.
	Sync bool

	// fault is asked before a durable Env changes a file of its store.
	fault func(op, path string) error
}

// Defaults of Options.
const (
	DefaultRegion       = "us-east-1"
	DefaultAccount      = "000000000000"
	DefaultStreamShards = 4
	DefaultShardLife    = 4 * time.Hour
	DefaultCacheBytes   = 256 << 20
)

// An Env is one AWS account in one region: DynamoDB, DynamoDB Streams, Firehose and
// S3. It is an http.Handler and an http.RoundTripper's other end; it starts no
// goroutines, except that the store of a durable one does. Safe for concurrent use.
type Env struct {
	opt      Options
	clock    Clock
	ids      *ids
	store    store
	db       *database
	s3       *s3Server
	firehose *firehose
}

// Open returns an Env with the objects that Dir holds. Of a durable one everything else is
// there too; otherwise tables, streams and delivery streams are empty. An error means that
// Dir cannot be used, or not by this program or this account, and says what to do.
func Open(opt Options) (*Env, error) {
	if opt.Dir == "" {
		return nil, errors.New("open test environment: Options.Dir is empty: name a folder for S3's objects")
	}
	if opt.Clock == nil {
		opt.Clock = systemClock{}
	}
	if opt.Region == "" {
		opt.Region = DefaultRegion
	}
	if opt.Account == "" {
		opt.Account = DefaultAccount
	}
	if opt.StreamShards <= 0 {
		opt.StreamShards = DefaultStreamShards
	}
	if opt.ShardLife == 0 {
		opt.ShardLife = DefaultShardLife
	}
	if opt.StreamRetention == 0 {
		opt.StreamRetention = streamRetention
	}
	if opt.CacheBytes <= 0 {
		opt.CacheBytes = DefaultCacheBytes
	}
	dir := filepath.Join(opt.Dir, "s3")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("open test environment: %w", err)
	}
	e := &Env{opt: opt, clock: opt.Clock, ids: newIDs(opt.Seed)}
	e.s3 = newS3(dir, e.clock, opt.Sync, e.ids)
	if !opt.Durable {
		e.store = newMemoryStore()
		e.firehose = newFirehose(opt, e.s3, nil, e.ids)
		e.db = newDatabase(opt, e.ids, e.store)
		return e, nil
	}
	if err := e.openDurable(); err != nil {
		return nil, fmt.Errorf("open test environment: %w", err)
	}
	return e, nil
}

// openDurable opens the store and reads from it what the Env keeps in memory.
func (e *Env) openDurable() error {
	disk, err := openDiskStore(e.opt.Dir, diskOptions{sync: e.opt.Sync, cache: e.opt.CacheBytes, fault: e.opt.fault})
	if err != nil {
		return err
	}
	e.store = disk
	stored, err := readEnv(disk, e.opt)
	if err == nil {
		e.ids.restart(e.opt.Seed, stored.Opened)
		e.firehose = newFirehose(e.opt, e.s3, disk, e.ids)
		e.db = newDatabase(e.opt, e.ids, disk)
		err = e.db.load()
	}
	if err == nil {
		err = e.firehose.load()
	}
	if err != nil {
		return errors.Join(err, disk.close())
	}
	return nil
}

// Close releases what the Env holds. Objects stay in Dir, and of a durable Env everything
// else; requests to it fail from then on. Of another Env the tables are gone, as are records
// that Firehose has buffered and not delivered.
func (e *Env) Close() error {
	if err := e.store.close(); err != nil {
		return fmt.Errorf("close test environment: %w", err)
	}
	return nil
}

// Tick does everything that is due at the clock's time: Firehose deliveries, the
// rotation of shards and the trimming of streams. Every request ticks first, so a
// caller needs it only to make things happen without a request.
func (e *Env) Tick() {
	e.firehose.tick()
	e.db.tick(e.clock.Now())
}

// SweepTTL deletes every item that has expired at the clock's time, as the service
// does in the background, and returns how many it deleted. An item has expired when
// its table has TTL enabled and the TTL attribute is a Number of epoch seconds that
// lies in the past, but not more than five years. The stream's REMOVE records carry the
// service's identity.
func (e *Env) SweepTTL() int { return e.db.sweepTTL(e.clock.Now()) }

// Reshard splits every open shard of the table's stream in two.
func (e *Env) Reshard(table string) error { return e.db.splitShards(table, "", e.clock.Now()) }

// SplitShard closes one open shard of the table's stream and opens two children that
// share its keys between them.
func (e *Env) SplitShard(table, shardID string) error {
	if shardID == "" {
		return errors.New("split shard: no shard id")
	}
	return e.db.splitShards(table, shardID, e.clock.Now())
}

// RotateShards closes every open shard of the table's stream and opens one child for each, as
// happens at the end of their life, and does so as many times: shards that nobody can have
// written to are quickly made.
func (e *Env) RotateShards(table string, times int) error {
	return e.db.rotateShards(table, times, e.clock.Now())
}

// TrimStream removes the records that were made before a time, and the shards that were closed
// before it, from the table's stream: the service may do so at any moment to those that are
// older than a day.
func (e *Env) TrimStream(table string, before time.Time) error {
	return e.db.trimStream(table, before)
}

// ServeHTTP answers one AWS request. Signatures are not checked. The X-Amz-Target header
// names the service and its operation; a request without it is S3's.
func (e *Env) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.Tick()
	// The server's clock, as a client sees it.
	w.Header().Set("Date", e.clock.Now().UTC().Format(http.TimeFormat))
	if e.opt.Fault != nil {
		e.serveFaulty(w, r, e.serveService)
		return
	}
	e.serveService(w, r)
}

func (e *Env) serveService(w http.ResponseWriter, r *http.Request) {
	target := r.Header.Get("X-Amz-Target")
	service, operation, _ := strings.Cut(target, ".")
	switch service {
	case "DynamoDB_20120810":
		e.db.serve(w, r, operation)
	case "DynamoDBStreams_20120810":
		e.db.serveStreams(w, r, operation)
	case "Firehose_20150804":
		e.firehose.ServeHTTP(w, r)
	default:
		e.s3.ServeHTTP(w, pathStyle(r))
	}
}

// pathStyle turns a virtual-hosted S3 request (bucket.aws.internal/key), which the SDK
// sends for an endpoint that has a name, into a path-style one.
func pathStyle(r *http.Request) *http.Request {
	host, _, _ := strings.Cut(r.Host, ":")
	for _, base := range []string{".aws.internal", ".localhost"} {
		bucket, ok := strings.CutSuffix(host, base)
		if !ok || bucket == "" {
			continue
		}
		r2 := *r
		u := *r.URL
		if u.RawPath != "" {
			u.RawPath = "/" + bucket + u.RawPath
		}
		u.Path = "/" + bucket + u.Path
		r2.URL = &u
		r2.RequestURI = u.RequestURI()
		return &r2
	}
	return r
}
