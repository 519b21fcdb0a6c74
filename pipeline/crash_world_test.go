package pipeline_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/firehose"
	fhtypes "github.com/aws/aws-sdk-go-v2/service/firehose/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/hot"
	"telemetrylake/pipeline/pipelinetest"
	"telemetrylake/schemas"
	"telemetrylake/testenv"
)

const (
	lakeBucket    = "the-lake"
	stagingBucket = "the-staging"
	stagingPrefix = "delivered/"
	deliveryName  = "parts"
	laneName      = "run-sensors"
)

// A world is one simulated history: a hot table, its stream, writers, functions and seals that
// fail, and the truth of what was written.
type world struct {
	dir   string
	env   *testenv.Env
	rng   *rand.Rand
	turns *pipelinetest.Turns
	off   switches
	plan  plan
	calm  atomic.Bool // the services do what they are asked
	down  atomic.Bool // S3 takes nothing from Firehose
	log   []string
	sawMu sync.Mutex
	saw   map[string]int // what happened, so that a test can tell that histories are not tame

	old, new *schemas.Contract // the new one accepts one decimal less
	changed  bool              // processes started from now on have the new contract
	table    hot.Table
	client   *dynamodb.Client        // of devices: it never fails
	streams  *dynamodbstreams.Client // of the witness, likewise
	puts     map[string]int          // successful creations by key of the lake
	book     *book
	windows  map[pipeline.WindowID]*pipeline.Manifest // that were begun
	begun    []*pipeline.Manifest                     // in their order
	leased   time.Time                                // when the run lane's lease last changed; zero: it is free
	met      time.Time                                // when a process first noted a shard of the stream
	broken   []error                                  // what was seen to be wrong on the way
	mapping  *mapping
	side     checkpoint.Side
	handing  *handing // a handover that is not known to have ended
	stops    map[*pipelinetest.Actor]chan struct{}
}

// A plan is what may happen in one history. Not everything happens in each: what is rare needs
// room.
type plan struct {
	writes    int
	reshards  int
	outages   int     // during which nobody reads for hours or days
	lambda    bool    // the stream is handed to Lambda, and back
	messy     bool    // empty pages, late children, incomplete listings
	throttle  float64 // share of requests that a service refuses
	late      float64 // share of what Firehose gathered that it delivers up to a day late
	later     bool    // and some of it later than it may
	expire    bool    // some readings expire soon
	lambdaTTL bool    // the mapping's filter drops removals by TTL
	lease     time.Duration
	life      time.Duration // of a shard
}

func newPlan(rng *rand.Rand) plan {
	p := plan{
		writes: 30 + rng.IntN(50), reshards: rng.IntN(3), lambda: rng.IntN(3) == 0, messy: rng.IntN(3) == 0,
		expire: rng.IntN(3) == 0, lambdaTTL: rng.IntN(2) == 0,
		// Off the second, so that a lease is never renewed at the instant at which something else
		// of its process wakes: who came first would be anybody's guess.
		lease: time.Duration(10+rng.IntN(30))*time.Second + 7*time.Millisecond,
	}
	p.life = -1
	if *generations && rng.IntN(2) == 0 {
		p.life = testenv.DefaultShardLife
	}
	if rng.IntN(2) == 0 {
		p.outages = 1 + rng.IntN(3)
	}
	if rng.IntN(2) == 0 {
		p.throttle = 0.03 * rng.Float64()
	}
	if rng.IntN(2) == 0 {
		p.late = 0.3 * rng.Float64()
		p.later = rng.IntN(2) == 0
	}
	return p
}

func newWorld(t *testing.T, seed uint64, off switches) *world {
	rng := rand.New(rand.NewPCG(seed, 1))
	return openWorld(t, seed, off, newPlan(rng), rng)
}

func openWorld(t *testing.T, seed uint64, off switches, p plan, rng *rand.Rand) *world {
	w := &world{
		dir: memoryDir(t), rng: rng, off: off, plan: p, side: checkpoint.Run,
		puts: map[string]int{}, saw: map[string]int{}, windows: map[pipeline.WindowID]*pipeline.Manifest{},
		stops: map[*pipelinetest.Actor]chan struct{}{},
	}
	w.turns = pipelinetest.NewTurns(rng, 0.01+0.06*rng.Float64(), func(s string) { w.log = append(w.log, time.Now().UTC().Format("02T15:04:05 ")+s) })
	env, err := testenv.Open(testenv.Options{
		Dir: w.dir, StreamShards: 1 + rng.IntN(3), Seed: seed, ShardLife: p.life,
		Firehose: w.firehose(seed), Streams: w.messy(seed), Fault: w.throttled(seed),
		DynamoDB: w.conflicts(seed),
	})
	must(t, err)
	w.env = env
	w.contracts(t)

	cfg := w.config(env.Transport())
	w.client, w.streams = dynamodb.NewFromConfig(cfg), dynamodbstreams.NewFromConfig(cfg)
	w.beCalm(func() { w.furnish(t, cfg) })
	w.book = newBook(w)
	w.mapping = newMapping(w)
	return w
}

func (w *world) contracts(t *testing.T) {
	shipped, err := schemas.Load("sensor_readings")
	must(t, err)
	// A bubble's clock begins in 2000.
	text := bytes.Replace(shipped.Text(), []byte("first_partition: 2016"), []byte("first_partition: 1999"), 1)
	if w.rng.IntN(4) == 0 {
		text = bytes.Replace(text, []byte("on_modify: changes"), []byte("on_modify: reject"), 1)
	}
	w.old, err = schemas.Parse("old", text)
	must(t, err)
	w.new, err = schemas.Parse("new", bytes.Replace(text, []byte("decimal(5,2)"), []byte("decimal(5,1)"), 1))
	must(t, err)
}

func (w *world) furnish(t *testing.T, cfg aws.Config) {
	var err error
	w.table, err = hot.Create(t.Context(), w.client, w.old)
	must(t, err)
	must(t, checkpoint.New(w.client, "checkpoint", checkpoint.Options{}).Create(t.Context()))
	s3c := s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = true })
	for _, b := range []string{lakeBucket, stagingBucket} {
		_, err := s3c.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &b})
		must(t, err)
	}
	_, err = firehose.NewFromConfig(cfg).CreateDeliveryStream(t.Context(), &firehose.CreateDeliveryStreamInput{
		DeliveryStreamName: aws.String(deliveryName),
		ExtendedS3DestinationConfiguration: &fhtypes.ExtendedS3DestinationConfiguration{
			BucketARN: aws.String("arn:aws:s3:::" + stagingBucket), RoleARN: aws.String("arn:aws:iam::000000000000:role/delivery"),
			Prefix:         aws.String(stagingPrefix),
			BufferingHints: &fhtypes.BufferingHints{SizeInMBs: aws.Int32(1), IntervalInSeconds: aws.Int32(60)},
		},
	})
	must(t, err)
}

// beCalm does something that no service disturbs.
func (w *world) beCalm(do func()) {
	was := w.calm.Load()
	w.calm.Store(true)
	defer func() { w.calm.Store(was) }()
	do()
}

// memoryDir is a folder in memory where the system has one: a history makes hundreds of files,
// and on a disk that is most of its time.
func memoryDir(t *testing.T) string {
	const shared = "/dev/shm"
	dir, err := os.MkdirTemp(shared, "streamer-crash-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// config is the SDK's, over rt, retrying without waiting: the seed decides what happens when.
func (w *world) config(rt http.RoundTripper) aws.Config {
	cfg := w.env.AWSConfig()
	cfg.HTTPClient = &http.Client{Transport: rt}
	cfg.Retryer = func() aws.Retryer {
		return retry.NewStandard(func(o *retry.StandardOptions) {
			o.RateLimiter = ratelimit.None
			o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 0, nil })
		})
	}
	return cfg
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// watch counts how often each object of the lake is written, since a reader never sees one
// change, and keeps the manifests of windows that were begun.
func (w *world) watch(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		body := peek(r)
		manifest, lease := begunBy(r, body), leaseOf(r, body)
		resp, err := next.RoundTrip(r)
		if err != nil || resp.StatusCode != http.StatusOK {
			return resp, err
		}
		if r.Method == http.MethodPut && strings.HasPrefix(r.URL.Path, "/"+lakeBucket+"/") {
			w.puts[r.URL.Path]++
		}
		if manifest != nil {
			w.windows[manifest.Window] = manifest
			w.begun = append(w.begun, manifest)
		}
		w.lease(r, lease)
		if w.met.IsZero() && isTransaction(r) && bytes.Contains(body, []byte(`"shard#`)) {
			w.met = time.Now()
		}
		return resp, err
	})
}

// happened counts. An actor counts outside of its turn too.
func (w *world) happened(what string, n int) {
	w.sawMu.Lock()
	defer w.sawMu.Unlock()
	w.saw[what] += n
}

func idle(ctx context.Context) error { return pipeline.Wait(ctx, time.Second) }

// skewed is a process's own clock: those of two machines may differ by days.
func skewed(rng *rand.Rand) func() time.Time {
	off := time.Duration(0)
	if rng.IntN(2) == 0 {
		off = time.Duration(rng.Int64N(int64(96*time.Hour))) - 48*time.Hour
	}
	return func() time.Time { return time.Now().Add(off) }
}
