package pipeline_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/firehose"
	fhtypes "github.com/aws/aws-sdk-go-v2/service/firehose/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/columnar"
	"telemetrylake/pipeline/hot"
	"telemetrylake/pipeline/lake"
	"telemetrylake/pipeline/pipelinetest"
	"telemetrylake/pipeline/seal"
	"telemetrylake/pipeline/stream"
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

// A world is one simulated history: a hot table, its stream, writers and seals that fail, and
// the truth of what was written.
type world struct {
	dir   string
	env   *testenv.Env
	rng   *rand.Rand
	turns *pipelinetest.Turns
	off   switches
	log   []string
	sawMu sync.Mutex
	saw   map[string]int // what happened, so that a test can tell that histories are not tame

	old, new  *schemas.Contract // the new one accepts one decimal less
	changed   bool              // writers started from now on have the new contract
	table     hot.Table
	client    *dynamodb.Client // of devices: it never fails
	puts      map[string]int   // successful creations by key of the lake
	truth     map[string][]string
	either    map[string]bool // keys whose row may be a reading or quarantined, once
	inserted  []reading
	nextStart time.Time
}

type reading struct {
	device, tie string
	at          time.Time
	celsius     string
	gone        bool
}

func (r reading) key() string {
	return "DEVICE#" + r.device + "|" + r.sk()
}

func (r reading) sk() string {
	s := "TS#" + r.at.UTC().Format("2006-01-02T15:04:05.000Z")
	if r.tie != "" {
		s += "#" + r.tie
	}
	return s
}

func (r reading) row() string {
	return fmt.Sprintf("%s|%d|%s|%s", r.device, r.at.UnixMilli(), r.tie, r.celsius)
}

func newWorld(t *testing.T, seed uint64, off switches) *world {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &world{
		dir: memoryDir(t), rng: rng, off: off,
		puts: map[string]int{}, saw: map[string]int{}, truth: map[string][]string{}, either: map[string]bool{},
		nextStart: time.Now().UTC().Truncate(24 * time.Hour),
	}
	w.turns = pipelinetest.NewTurns(rng, 0.01+0.06*rng.Float64(), func(s string) { w.log = append(w.log, s) })
	closing, copies, failing := 0.1+0.5*rng.Float64(), 0.3*rng.Float64(), 0.1*rng.Float64()
	env, err := testenv.Open(testenv.Options{
		Dir: w.dir, StreamShards: 1 + rng.IntN(3), Seed: seed,
		Firehose: testenv.FirehoseBehaviour{
			Close: func(records, _ int) bool { return rng.Float64() < closing/3 },
			Copies: func() int {
				if rng.Float64() < copies {
					return 1 + rng.IntN(2)
				}
				return 0
			},
			Fail: func() bool { return rng.Float64() < failing },
		},
	})
	must(t, err)
	w.env = env

	shipped, err := schemas.Load("sensor_readings")
	must(t, err)
	// A bubble's clock begins in 2000.
	text := bytes.Replace(shipped.Text(), []byte("first_partition: 2016"), []byte("first_partition: 1999"), 1)
	w.old, err = schemas.Parse("old", text)
	must(t, err)
	w.new, err = schemas.Parse("new", bytes.Replace(text, []byte("decimal(5,2)"), []byte("decimal(5,1)"), 1))
	must(t, err)

	cfg := w.config(env.Transport())
	w.client = dynamodb.NewFromConfig(cfg)
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
	return w
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

// process is the wiring of one simulated process.
type process struct {
	store   *checkpoint.Store
	reader  *stream.Reader
	lane    *pipeline.Lane
	sealer  *seal.Sealer
	staging *lake.Bucket
}

func (w *world) process(a *pipelinetest.Actor, c *schemas.Contract) (*process, error) {
	cfg := w.config(w.off.transport(a.Transport(w.watch(w.env.Transport()))))
	s3c := s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = true })
	p := &process{staging: lake.NewBucket(s3c, stagingBucket, stagingPrefix)}
	p.store = checkpoint.New(dynamodb.NewFromConfig(cfg), "checkpoint", checkpoint.Options{Rand: randReader{a.Rand}})
	p.reader = stream.New(dynamodbstreams.NewFromConfig(cfg), stream.Options{
		StreamARN: w.table.StreamARN, Shards: p.store.Shards(w.table.StreamARN, laneName, checkpoint.Run),
		PageLimit: 1 + a.Rand.IntN(9),
	})
	mem := memory.DefaultAllocator
	st := pipeline.Stages{
		Decoder: columnar.NewDecoder(mem), Encoder: stepEncoder{columnar.NewEncoder(mem, columnar.Uncompressed()), a},
		Sink:        lake.NewFirehose(firehose.NewFromConfig(cfg), deliveryName, p.staging, nil),
		Checkpoints: p.store, Contracts: p.store, Replayer: countReplays{p.reader, w},
	}
	w.off.stages(&st, a, c)
	var err error
	p.lane, err = pipeline.NewLane(st, pipeline.LaneOptions{
		Lane: laneName, Stream: w.table.StreamARN, Contract: c, Parts: pipeline.PartSize{Rows: 1 + a.Rand.IntN(4)},
	})
	if err != nil {
		return nil, err
	}
	sst := seal.Stages{
		Staging: p.staging, Lake: lake.NewBucket(s3c, lakeBucket, ""), Damaged: lake.NewBucket(s3c, stagingBucket, "damaged"),
		Ledger: p.store, Folder: p.store, Merger: stepMerger{columnar.NewMerger(mem, columnar.Uncompressed()), a},
	}
	w.off.sealStages(&sst, p.staging)
	p.sealer = seal.New(sst)
	return p, nil
}

type randReader struct{ *rand.Rand }

func (r randReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return len(p), nil
}

// watch counts how often each object of the lake is written: a reader never sees one change.
func (w *world) watch(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		if err == nil && r.Method == http.MethodPut && resp.StatusCode == http.StatusOK && strings.HasPrefix(r.URL.Path, "/"+lakeBucket+"/") {
			w.puts[r.URL.Path]++
		}
		return resp, err
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Encoding is a step like any other: it can fail, and the process can die in it.
type stepEncoder struct {
	pipeline.Encoder
	a *pipelinetest.Actor
}

func (s stepEncoder) Encode(wr io.Writer, rows arrow.RecordBatch, meta map[string]string) error {
	return s.a.Step("encode", func() error { return s.Encoder.Encode(wr, rows, meta) })
}

type stepMerger struct {
	seal.Merger
	a *pipelinetest.Actor
}

func (s stepMerger) Merge(ctx context.Context, wr io.Writer, parts []*io.SectionReader, order []string, meta map[string]string) error {
	return s.a.Step("merge", func() error { return s.Merger.Merge(ctx, wr, parts, order, meta) })
}

type countReplays struct {
	pipeline.Replayer
	w *world
}

func (c countReplays) Replay(ctx context.Context, rs []pipeline.Range, emit func(pipeline.Batch) error) error {
	c.w.happened("windows replayed", 1)
	return c.Replayer.Replay(ctx, rs, emit)
}

// write is one streamer run: it opens the lane again after each failure, until it is dead,
// fenced, or needs a person.
func (w *world) write(c *schemas.Contract) func(context.Context, *pipelinetest.Actor) error {
	return func(ctx context.Context, a *pipelinetest.Actor) error {
		p, err := w.process(a, c)
		if err != nil {
			return err
		}
		for {
			err := w.session(ctx, a, p)
			var person *pipeline.PersonError
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.Is(err, pipeline.ErrFenced):
				w.happened("writers fenced", 1)
				return nil
			case errors.As(err, &person), !errors.Is(err, pipelinetest.ErrInjected):
				return err
			}
		}
	}
}

func (w *world) session(ctx context.Context, a *pipelinetest.Actor, p *process) error {
	p.reader.Reset()
	if err := p.lane.Open(ctx); err != nil {
		return err
	}
	g := pipeline.NewGatherer(p.lane, pipeline.Limits{Records: 1 + a.Rand.IntN(15), Age: 10 * time.Second}, time.Now)
	for {
		info, err := p.reader.Round(ctx, func(b pipeline.Batch) error { return g.Add(ctx, b) })
		if err != nil {
			return err
		}
		if a.Rand.IntN(3) == 0 {
			err = g.Flush(ctx)
		} else {
			err = g.FlushDue(ctx)
		}
		if err != nil {
			return err
		}
		if info.Records == 0 {
			if err := idle(ctx); err != nil {
				return err
			}
		}
	}
}

func idle(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Second):
		return nil
	}
}

// seal sweeps staging again and again.
func (w *world) seal(ctx context.Context, a *pipelinetest.Actor) error {
	p, err := w.process(a, w.old)
	if err != nil {
		return err
	}
	for {
		r, err := p.sealer.Sweep(ctx)
		w.note(r)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !onlyInjected(err):
			return err
		}
		if err := idle(ctx); err != nil {
			return err
		}
	}
}

func (w *world) note(r seal.Report) {
	w.happened("staging objects sealed", r.Removed)
	w.happened("parts in them", r.Parts)
	w.happened("copies dropped", r.Duplicates)
	w.happened("parts that waited for another copy", r.Waiting)
	w.happened("lake objects", r.Created)
}

// happened counts. An actor counts outside of its turn too.
func (w *world) happened(what string, n int) {
	w.sawMu.Lock()
	defer w.sawMu.Unlock()
	w.saw[what] += n
}

// onlyInjected reports whether nothing but injected failures is joined in err.
func onlyInjected(err error) bool {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(j.Unwrap(), func(e error) bool { return !onlyInjected(e) })
	}
	return errors.Is(err, pipelinetest.ErrInjected)
}

// run lets history happen: devices write, writers and seals come, fail, pause and go.
func (w *world) run(t *testing.T) {
	ctx := t.Context()
	writes, reshards := 30+w.rng.IntN(60), w.rng.IntN(2)
	pauses := map[*pipelinetest.Actor]int{}
	for step := 0; step < 2500 && (writes > 0 || step < 600); step++ {
		synctest.Wait()
		for a, n := range pauses {
			if pauses[a] = n - 1; n <= 1 {
				w.turns.Resume(a)
				delete(pauses, a)
			}
		}
		if live := w.turns.Live("writer"); len(live) == 0 || len(live) < 3 && w.rng.Float64() < 0.004 {
			w.turns.Start(ctx, "writer", w.write(w.contract()))
			continue
		}
		if live := w.turns.Live("seal"); len(live) < 2 {
			w.turns.Start(ctx, "seal", w.seal)
			continue
		}
		switch x := w.rng.Float64(); {
		case x < 0.08 && writes > 0:
			writes--
			w.device(t)
		case x < 0.083 && reshards > 0:
			reshards--
			w.happened("reshards", 1)
			must(t, w.env.Reshard(w.table.Name))
		case x < 0.0845:
			w.changed = true
		case x < 0.095:
			kind := []string{"writer", "seal"}[w.rng.IntN(2)]
			live := w.turns.Live(kind)
			a := live[w.rng.IntN(len(live))]
			w.turns.Pause(a)
			pauses[a] = 20 + w.rng.IntN(300)
			if kind == "writer" && w.rng.IntN(2) == 0 {
				w.turns.Start(ctx, "writer", w.write(w.contract())) // it takes over from the paused one
			}
		default:
			if !w.turns.Next() {
				time.Sleep(time.Duration(1+w.rng.IntN(20)) * 250 * time.Millisecond)
			}
		}
	}
	for ; writes > 0; writes-- {
		w.device(t)
	}
	// Who slept wakes up, with no more failures; then all are gone and one clean process ends it.
	w.turns.SetRate(0)
	w.turns.ResumeAll()
	for range 150 {
		synctest.Wait()
		if !w.turns.Next() {
			time.Sleep(time.Second)
		}
	}
	w.turns.KillAll()
	synctest.Wait()
}

func (w *world) contract() *schemas.Contract {
	if w.changed {
		return w.new
	}
	return w.old
}

// device does one write to the hot table and notes the truth.
func (w *world) device(t *testing.T) {
	x := w.rng.Float64()
	alive := slices.IndexFunc(w.inserted, func(r reading) bool { return !r.gone })
	switch {
	case x < 0.08 && alive >= 0: // a reading is overwritten
		r := &w.inserted[w.pick(alive)]
		if r.gone {
			return
		}
		before := r.celsius
		r.celsius = fmt.Sprintf("%d.%d", 30+w.rng.IntN(60), 1+w.rng.IntN(9))
		w.put(t, *r)
		if r.celsius != before { // a put that changes nothing writes no record
			w.expect("changes", r.row())
		}
	case x < 0.11 && alive >= 0: // a person deletes one
		r := &w.inserted[w.pick(alive)]
		if r.gone {
			return
		}
		r.gone = true
		_, err := w.client.DeleteItem(t.Context(), &dynamodb.DeleteItemInput{TableName: &w.table.Name, Key: map[string]types.AttributeValue{
			"pk": &types.AttributeValueMemberS{Value: "DEVICE#" + r.device}, "sk": &types.AttributeValueMemberS{Value: r.sk()},
		}})
		must(t, err)
		w.expect("tombstones", r.key())
	case x < 0.15: // garbage
		r := w.fresh()
		r.celsius = "1.234"
		w.put(t, r)
		w.expect("quarantine", r.key())
	case x < 0.22: // fits the old contract only
		r := w.fresh()
		r.celsius = "21.25"
		w.put(t, r)
		w.either[r.key()] = true
		w.expect("either", r.key())
	default:
		r := w.fresh()
		w.put(t, r)
		w.expect("readings", r.row())
		w.inserted = append(w.inserted, r)
	}
}

// pick returns the index of an inserted reading, preferring none.
func (w *world) pick(atLeast int) int { return atLeast + w.rng.IntN(len(w.inserted)-atLeast) }

// fresh is a reading that was never written: few devices and instants, so that many share them.
func (w *world) fresh() reading {
	n := 0
	for {
		r := reading{
			device: strconv.Itoa(1 + w.rng.IntN(4)),
			at:     w.nextStart.Add(time.Duration(w.rng.IntN(3)-1) * 24 * time.Hour).Add(time.Duration(w.rng.IntN(4)) * time.Second),
		}
		if n > 0 || w.rng.IntN(2) == 0 {
			r.tie = strconv.Itoa(w.rng.IntN(1000))
		}
		r.celsius = fmt.Sprintf("%d.%d", w.rng.IntN(30), 1+w.rng.IntN(9))
		if !w.taken(r) {
			return r
		}
		n++
	}
}

func (w *world) taken(r reading) bool {
	_, ok := w.truth["key "+r.key()]
	return ok
}

func (w *world) expect(kind, what string) { w.truth[kind] = append(w.truth[kind], what) }

func (w *world) put(t *testing.T, r reading) {
	w.truth["key "+r.key()] = nil
	_, err := w.client.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: &w.table.Name, Item: map[string]types.AttributeValue{
		"pk": &types.AttributeValueMemberS{Value: "DEVICE#" + r.device}, "sk": &types.AttributeValueMemberS{Value: r.sk()},
		"takenAt":   &types.AttributeValueMemberN{Value: strconv.FormatInt(r.at.UnixMilli(), 10)},
		"expiresAt": &types.AttributeValueMemberN{Value: strconv.FormatInt(r.at.Add(30*24*time.Hour).Unix(), 10)},
		"celsius":   &types.AttributeValueMemberN{Value: r.celsius},
		"humidity":  &types.AttributeValueMemberN{Value: "40.5"},
	}})
	must(t, err)
}

// drain ends the history with processes that do not fail, and returns what is wrong.
func (w *world) drain(t *testing.T) error {
	ctx := t.Context()
	result := make(chan error, 1)
	w.turns.Start(ctx, "last", func(ctx context.Context, a *pipelinetest.Actor) error {
		err := w.finish(ctx, a)
		result <- err
		return err
	})
	for range 200_000 {
		synctest.Wait()
		select {
		case err := <-result:
			return err
		default:
		}
		if !w.turns.Next() {
			time.Sleep(time.Second)
		}
	}
	return errors.New("the last process does not come to an end")
}

func (w *world) finish(ctx context.Context, a *pipelinetest.Actor) error {
	p, err := w.process(a, w.contract())
	if err != nil {
		return err
	}
	if err := p.lane.Open(ctx); err != nil {
		return err
	}
	g := pipeline.NewGatherer(p.lane, pipeline.Limits{}, time.Now)
	for caughtUp := false; !caughtUp; {
		info, err := p.reader.Round(ctx, func(b pipeline.Batch) error { return g.Add(ctx, b) })
		if err != nil {
			return err
		}
		if err := g.Flush(ctx); err != nil {
			return err
		}
		caughtUp = info.CaughtUp()
	}
	for range 20 {
		w.env.FlushFirehose()
		r, err := p.sealer.Sweep(ctx)
		w.note(r)
		if err != nil {
			return err
		}
		left := 0
		for _, err := range p.staging.List(ctx) {
			if err != nil {
				return err
			}
			left++
		}
		if left == 0 {
			return w.folded(ctx, p)
		}
	}
	return errors.New("staging is not empty after 20 sweeps")
}

// folded checks that nothing is left of the windows but the lane's watermark.
func (w *world) folded(ctx context.Context, p *process) error {
	if err := p.store.Fold(ctx, laneName); err != nil {
		return err
	}
	out, err := w.client.Scan(ctx, &dynamodb.ScanInput{TableName: aws.String("checkpoint")})
	if err != nil {
		return err
	}
	for _, it := range out.Items {
		sk := it["sk"].(*types.AttributeValueMemberS).Value
		if strings.HasPrefix(sk, "window#") || strings.HasPrefix(sk, "part#") {
			return fmt.Errorf("item %s is left", sk)
		}
	}
	return nil
}

// compare holds the lake against the truth.
func (w *world) compare(t *testing.T) error {
	got := map[string][]string{}
	var errs []error
	root := filepath.Join(w.dir, "s3", lakeBucket)
	seen := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rows, meta, err := readLake(t.Context(), body)
		if err != nil {
			return fmt.Errorf("%s: %w", rel, err)
		}
		for _, id := range meta.PartIDs() {
			if other := seen[id.String()]; other != "" {
				errs = append(errs, fmt.Errorf("part %s is in %s and in %s", id, other, rel))
			}
			seen[id.String()] = rel
		}
		for _, r := range rows {
			switch strings.TrimPrefix(meta.Table, w.old.Name) {
			case "":
				if k := sensorKey(r); w.either[k] {
					got["either"] = append(got["either"], k)
					continue
				}
				got["readings"] = append(got["readings"], sensorRow(r))
			case "_changes":
				got["changes"] = append(got["changes"], sensorRow(r))
			case "_tombstones":
				got["tombstones"] = append(got["tombstones"], itemKey(r))
			case "_quarantine":
				k := itemKey(r)
				if w.either[k] {
					got["either"] = append(got["either"], k)
					continue
				}
				got["quarantine"] = append(got["quarantine"], k)
			default:
				return fmt.Errorf("%s: table %s", rel, meta.Table)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, kind := range []string{"readings", "changes", "tombstones", "quarantine", "either"} {
		if d := diff(w.truth[kind], got[kind]); d != "" {
			errs = append(errs, fmt.Errorf("%s: %s", kind, d))
		}
	}
	for _, kind := range []string{"readings", "changes", "tombstones", "quarantine", "either"} {
		w.happened("rows", len(w.truth[kind]))
	}
	for key, n := range w.puts {
		if n > 1 {
			errs = append(errs, fmt.Errorf("object %s was written %d times", key, n))
		}
	}
	return errors.Join(errs...)
}

// diff says which elements are lost and which are there too often.
func diff(want, got []string) string {
	count := map[string]int{}
	for _, s := range want {
		count[s]++
	}
	for _, s := range got {
		count[s]--
	}
	var b strings.Builder
	lost, doubled := 0, 0
	for s, n := range count {
		if n > 0 {
			lost += n
		} else if n < 0 {
			doubled -= n
		}
		if n != 0 && b.Len() < 300 {
			fmt.Fprintf(&b, " %s:%+d", s, -n)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return fmt.Sprintf("%d lost, %d too many:%s", lost, doubled, b.String())
}

type row map[string]string

func readLake(ctx context.Context, body []byte) ([]row, *pipeline.ObjectMeta, error) {
	pf, err := file.NewParquetReader(bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	defer pf.Close()
	text := pf.MetaData().KeyValueMetadata().FindValue(pipeline.ObjectMetaKey)
	if text == nil {
		return nil, nil, errors.New("no object metadata")
	}
	meta, err := pipeline.DecodeObjectMeta(*text)
	if err != nil {
		return nil, nil, err
	}
	rd, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		return nil, nil, err
	}
	tbl, err := rd.ReadTable(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer tbl.Release()
	rows := make([]row, tbl.NumRows())
	for i := range rows {
		rows[i] = row{}
	}
	for c := range int(tbl.NumCols()) {
		i := 0
		for _, chunk := range tbl.Column(c).Data().Chunks() {
			for j := range chunk.Len() {
				if !chunk.IsNull(j) {
					rows[i][tbl.Schema().Field(c).Name] = chunk.ValueStr(j)
				}
				i++
			}
		}
	}
	return rows, meta, nil
}

func sensorTime(r row) time.Time {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999Z0700", "2006-01-02 15:04:05.999Z"} {
		if at, err := time.Parse(layout, r["taken_at"]); err == nil {
			return at
		}
	}
	panic("taken_at is " + r["taken_at"])
}

func sensor(r row) reading {
	return reading{device: r["device_id"], at: sensorTime(r), tie: r["tie"], celsius: strings.TrimSuffix(r["celsius"], "0")}
}

func sensorRow(r row) string { return sensor(r).row() }

func sensorKey(r row) string { return sensor(r).key() }

// itemKey reads pk and sk from the DynamoDB JSON of an item's keys.
func itemKey(r row) string {
	var k struct{ PK, SK struct{ S string } }
	if err := json.Unmarshal([]byte(r["item_keys"]), &k); err != nil {
		panic(err)
	}
	return k.PK.S + "|" + k.SK.S
}
