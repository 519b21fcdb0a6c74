package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/parquet-go/parquet-go"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/columnar"
	"telemetrylake/pipeline/lake"
	"telemetrylake/pipeline/seal"
	"telemetrylake/schemas"
	"telemetrylake/testenv"
)

var inLakeSeeds = flag.Int("inlake-seeds", 12, "histories of TestPartsThatAreLakeObjectsAtOnceAreThereOnce")

// A faulty client loses requests before their effect, and answers after it. Parts are created at the
// same time, so that which of them meets a fault is not the seed's to say.
type faulty struct {
	next http.RoundTripper
	rate float64

	mu  sync.Mutex
	rng *rand.Rand
}

var errFaulty = errors.New("the connection was lost")

func (f *faulty) Do(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	lose, before := f.rng.Float64() < f.rate, f.rng.IntN(2) == 0
	f.mu.Unlock()
	if lose && before {
		return nil, errFaulty
	}
	resp, err := f.next.RoundTrip(r)
	if lose && err == nil {
		resp.Body.Close()
		return nil, errFaulty
	}
	return resp, err
}

// agedTape is a tape of which the first records are gone.
type agedTape struct {
	tape
	gone int // records up to this number
}

func (p *agedTape) Replay(ctx context.Context, ranges []pipeline.Range, emit func(pipeline.Batch) error) error {
	for _, r := range ranges {
		if first, err := strconv.Atoi(string(r.First)); err == nil && first <= p.gone {
			return pipeline.ErrTrimmed
		}
	}
	return p.tape.Replay(ctx, ranges, emit)
}

// A remembering sink knows what a sink was asked to land: a process that was taken for dead may still do it.
type remembering struct {
	pipeline.Sink
	last []pipeline.Part
	skip func() bool // it dies, or stalls, before it lands anything
}

func (r *remembering) Land(ctx context.Context, ps []pipeline.Part) error {
	r.last = ps
	if r.skip() {
		return errFaulty
	}
	return r.Sink.Land(ctx, ps)
}

// An inLakeWorld is a lane whose parts are lake objects at once, on an AWS that fails.
type inLakeWorld struct {
	t        *testing.T
	rng      *rand.Rand
	clock    *testenv.ManualClock
	env      *testenv.Env
	contract *schemas.Contract
	client   *faulty
	tape     *agedTape
	lane     *pipeline.Lane
	sink     *remembering
	zombies  []*remembering
	written  int
	happened map[string]int
}

const inLakeShard = pipeline.ShardID("s")

func newInLakeWorld(t *testing.T, seed uint64) *inLakeWorld {
	t.Helper()
	w := &inLakeWorld{
		t: t, rng: rand.New(rand.NewPCG(seed, 7)), clock: testenv.NewManualClock(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)),
		tape: &agedTape{tape: tape{}}, happened: map[string]int{},
	}
	var err error
	if w.env, err = testenv.Open(testenv.Options{Dir: t.TempDir(), Clock: w.clock}); err != nil {
		t.Fatal(err)
	}
	cfg := w.env.AWSConfig()
	w.client = &faulty{next: roundTripper(cfg.HTTPClient.Do), rng: rand.New(rand.NewPCG(seed, 8))}
	if w.contract, err = schemas.Load("sensor_readings"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.s3().CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String("lake")}); err != nil {
		t.Fatal(err)
	}
	store := w.store()
	if err := store.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Shards(tableStream, "run-a", checkpoint.Run).Own(t.Context(), pipeline.Shard{ID: inLakeShard}); err != nil {
		t.Fatal(err)
	}
	return w
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (w *inLakeWorld) config() aws.Config {
	cfg := w.env.AWSConfig()
	cfg.HTTPClient = w.client
	cfg.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
	return cfg
}

func (w *inLakeWorld) s3() *s3.Client {
	return s3.NewFromConfig(w.config(), func(o *s3.Options) { o.UsePathStyle = true })
}

func (w *inLakeWorld) bucket() *lake.Bucket { return lake.NewBucket(w.s3(), "lake", "") }

// store is another process's.
func (w *inLakeWorld) store() *checkpoint.Store {
	return checkpoint.New(dynamodb.NewFromConfig(w.config()), "checkpoint", checkpoint.Options{Now: w.clock.Now})
}

func (w *inLakeWorld) chance(what string, p float64) bool {
	if w.client.rate == 0 || w.rng.Float64() >= p {
		return false
	}
	w.happened[what]++
	return true
}

// process starts another process of the lane; the one before may still be about to land.
func (w *inLakeWorld) process() error {
	if w.sink != nil {
		w.zombies = append(w.zombies, w.sink)
	}
	store, at := w.store(), w.bucket()
	footer := func(ctx context.Context, name string) (*pipeline.ObjectMeta, error) {
		end, err := at.Tail(ctx, pipeline.Object{Key: name}, 1<<20)
		if err != nil {
			return nil, err
		}
		m, _, err := seal.ReadObject(end)
		return m, err
	}
	w.sink = &remembering{Sink: lake.NewObjects(at, store, footer, nil), skip: func() bool { return w.chance("landings that never began", 0.1) }}
	mem := memory.DefaultAllocator
	var err error
	w.lane, err = pipeline.NewLane(pipeline.Stages{
		Decoder: columnar.NewDecoder(mem), Encoder: columnar.NewEncoder(mem), Sink: w.sink,
		Checkpoints: store, Contracts: store, Replayer: w.tape, Gaps: store,
	}, pipeline.LaneOptions{Lane: "run-a", Stream: tableStream, Contract: w.contract, Lake: at.String(), Parts: pipeline.PartSize{Rows: 1 + w.rng.IntN(3)}})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.lane.Open(w.t.Context())
}

// step is one thing that happens.
func (w *inLakeWorld) step() error {
	switch w.rng.IntN(8) {
	case 0:
		w.happened["processes"]++
		return w.process()
	case 1:
		if n := len(w.zombies); n > 0 { // by whom nobody waits for an answer
			w.happened["late landings"]++
			z := w.zombies[w.rng.IntN(n)]
			_ = z.Sink.Land(w.t.Context(), z.last)
		}
		return nil
	case 2:
		if w.chance("outages that outlast the stream", 0.4) {
			w.tape.gone = w.written
			w.clock.Advance(26 * time.Hour)
		}
		return nil
	case 3:
		return w.sweep()
	}
	from := w.written + 1
	w.written += 1 + w.rng.IntN(7)
	b := pipeline.Batch{Shard: inLakeShard}
	for i := from; i <= w.written; i++ {
		b.Records = append(b.Records, record(inLakeShard, i))
	}
	w.tape.tape[inLakeShard] = append(w.tape.tape[inLakeShard], b.Records...)
	return w.read()
}

// read makes a window of all that is not committed.
func (w *inLakeWorld) read() error {
	st, ok, err := w.store().Shards(tableStream, "run-a", checkpoint.Run).Position(w.t.Context(), inLakeShard)
	if err != nil || !ok {
		return err
	}
	b := pipeline.Batch{Shard: inLakeShard}
	for _, r := range w.tape.tape[inLakeShard] {
		if r.Seq.Compare(st.Seq) > 0 {
			b.Records = append(b.Records, r)
		}
	}
	_, err = w.lane.Window(w.t.Context(), []pipeline.Batch{b})
	return err
}

// sweep folds the lane and gives up what is lost, as whoever seals does.
func (w *inLakeWorld) sweep() error {
	ctx, store := w.t.Context(), w.store()
	sealer := seal.New(seal.Stages{Lake: w.bucket(), LakeName: w.bucket().String(), Staging: w.bucket(), Ledger: store, Folder: store, Claims: store,
		Merger: columnar.NewMerger(memory.DefaultAllocator)})
	err := store.Fold(ctx, "run-a")
	windows, e := store.Unsealed(ctx, "run-a")
	err = errors.Join(err, e)
	for _, u := range windows {
		if u.State != pipeline.WindowCommitted {
			continue
		}
		due := w.clock.Now().Sub(u.LandedAt) >= checkpoint.GiveUpAfter
		t, e := sealer.Settle(ctx, u.ID, due)
		err = errors.Join(err, e)
		w.happened["parts found published"] += t.Published
		w.happened["names taken"] += t.Occupied
		if e != nil || !due {
			continue
		}
		n, e := store.GiveUp(ctx, u.ID)
		w.happened["parts given up"] += n
		if e != nil && !errors.Is(e, checkpoint.ErrTooEarly) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// rows is how often each record is in the lake: devices are named by their numbers.
func (w *inLakeWorld) rows() map[int]int {
	w.t.Helper()
	got := map[int]int{}
	for o, err := range w.bucket().List(w.t.Context()) {
		if err != nil {
			w.t.Fatal(err)
		}
		body, err := w.bucket().Read(w.t.Context(), o)
		if err != nil {
			w.t.Fatal(err)
		}
		var b bytes.Buffer
		if _, err := b.ReadFrom(body); err != nil {
			w.t.Fatal(err)
		}
		rows, err := parquet.Read[struct {
			Device string `parquet:"device_id"`
		}](bytes.NewReader(b.Bytes()), int64(b.Len()))
		if err != nil {
			w.t.Fatal(err)
		}
		for _, r := range rows {
			n, err := strconv.Atoi(r.Device)
			if err != nil {
				w.t.Fatal(err)
			}
			got[n]++
		}
	}
	return got
}

// missing are the records that open gaps name.
func (w *inLakeWorld) missing() map[int]bool {
	w.t.Helper()
	gaps, err := w.store().Gaps(w.t.Context(), tableStream)
	if err != nil {
		w.t.Fatal(err)
	}
	in := map[int]bool{}
	for _, g := range gaps {
		if g.State != pipeline.GapOpen {
			continue
		}
		for i := 1; i <= w.written; i++ {
			seq := pipeline.SequenceNumber(strconv.Itoa(i))
			if g.First != "" && seq.Compare(g.First) >= 0 && seq.Compare(g.Last) <= 0 {
				in[i] = true
			}
		}
	}
	return in
}

// Every record is in the lake once, or its window has an open gap; what is not in the lake has one.
func TestPartsThatAreLakeObjectsAtOnceAreThereOnce(t *testing.T) {
	happened := map[string]int{}
	for seed := range uint64(*inLakeSeeds) {
		w := newInLakeWorld(t, seed)
		if err := w.process(); err != nil {
			t.Fatal(err)
		}
		w.client.rate = 0.02 + 0.06*w.rng.Float64()
		for range 60 {
			if err := w.step(); err != nil {
				if _, person := errors.AsType[*pipeline.PersonError](err); person {
					t.Fatalf("seed %d: %v", seed, err)
				}
				w.happened["failures"]++
				for err = w.process(); err != nil; err = w.process() {
					if _, person := errors.AsType[*pipeline.PersonError](err); person {
						t.Fatalf("seed %d: %v", seed, err)
					}
				}
			}
		}
		w.client.rate = 0
		for _, err := range []error{w.process(), w.read(), w.sweep()} {
			if err != nil {
				t.Fatalf("seed %d: in calm: %v", seed, err)
			}
		}
		w.clock.Advance(26 * time.Hour)
		for range 3 {
			if err := w.sweep(); err != nil {
				t.Fatalf("seed %d: in calm: %v", seed, err)
			}
		}
		before := w.rows()
		for _, z := range w.zombies { // each of them wakes up in the end
			if err := z.Sink.Land(t.Context(), z.last); err != nil {
				t.Errorf("seed %d: a late landing: %v", seed, err)
			}
		}
		if err := w.store().Fold(t.Context(), "run-a"); err != nil {
			t.Fatal(err)
		}
		st, err := w.store().Lane(t.Context(), "run-a")
		if err != nil || st.Unsealed() != 0 || len(st.Windows) != 0 {
			t.Errorf("seed %d: %d windows are not done, %v", seed, st.Unsealed(), err)
		}
		rows, missing := w.rows(), w.missing()
		if !maps.Equal(rows, before) {
			t.Errorf("seed %d: late landings changed the lake", seed)
		}
		for i := 1; i <= w.written; i++ {
			if n := rows[i]; n > 1 || n == 0 && !missing[i] {
				t.Errorf("seed %d: record %d is in the lake %d times, in a gap %v", seed, i, n, missing[i])
			}
		}
		if len(rows) > w.written {
			t.Errorf("seed %d: %d records in the lake of %d", seed, len(rows), w.written)
		}
		for what, n := range w.happened {
			happened[what] += n
		}
		happened["records"] += w.written
		happened["records only in a gap"] += w.written - len(rows)
		if err := w.env.Close(); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			return
		}
	}
	var lines []string
	for what, n := range happened {
		lines = append(lines, fmt.Sprintf("%d %s", n, what))
	}
	slices.Sort(lines)
	t.Log(lines)
	if *inLakeSeeds < 100 {
		return // too few to have seen all of it
	}
	for _, what := range []string{"failures", "landings that never began", "late landings", "outages that outlast the stream", "parts given up", "names taken", "parts found published"} {
		if happened[what] == 0 {
			t.Errorf("no seed saw %s", what)
		}
	}
}

// A window that was begun for one way would be in the lake twice if it were landed in another.
func TestAPendingWindowIsLandedOnlyAsItWasBegun(t *testing.T) {
	for name, ways := range map[string][2]string{
		"begun for a lake, now through staging": {"s3://lake/", ""},
		"begun for staging, now into a lake":    {"", "s3://lake/"},
		"begun for another lake":                {"dir:/a", "dir:/b"},
	} {
		t.Run(name, func(t *testing.T) {
			k := newTrack(t, pipeline.PartSize{}, "s")
			lane := func(lake string) *pipeline.Lane {
				l, err := pipeline.NewLane(k.stages, pipeline.LaneOptions{Lane: k.name, Stream: tableStream, Contract: k.contract, Lake: lake})
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			first := lane(ways[0])
			if err := first.Open(t.Context()); err != nil {
				t.Fatal(err)
			}
			k.shelf.failAt = 1
			if _, err := first.Window(t.Context(), []pipeline.Batch{k.batch("s", 1, 3)}); !errors.Is(err, errShelf) {
				t.Fatal(err)
			}
			err := lane(ways[1]).Open(t.Context())
			if person, ok := errors.AsType[*pipeline.PersonError](err); !ok || person.Do == "" {
				t.Errorf("open: %v, want what a person must do", err)
			}
			if err := lane(ways[0]).Open(t.Context()); err != nil {
				t.Errorf("open as before: %v", err)
			}
			if len(k.shelf.parts) != 2 {
				t.Errorf("%d parts landed, want the one twice", len(k.shelf.parts))
			}
			m, err := pipeline.DecodePartMeta(footer(t, k.shelf.parts[0].Body, pipeline.PartMetaKey))
			if err != nil {
				t.Fatal(err)
			}
			// Its copies in staging are somebody's mistake: they are not published there.
			_, stored, err := k.store.Window(t.Context(), m.Window)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Matches(stored); (err != nil) != (ways[0] != "") {
				t.Errorf("a copy in staging matches: %v", err)
			}
			o, err := pipeline.DecodeObjectMeta(footer(t, k.shelf.parts[0].Body, pipeline.ObjectMetaKey))
			if ways[0] == "" {
				if err == nil {
					t.Errorf("a part for staging says that it is an object: %+v", o)
				}
				return
			}
			if err != nil || o.Occupies(m.ID(), m.Rows) != pipeline.Landed || o.Windows[0].PartsTotal != 1 {
				t.Errorf("its object says %+v, %v", o, err)
			}
		})
	}
}

// footer is a value in a file's footer, "" if it has none.
func footer(t *testing.T, body []byte, key string) string {
	t.Helper()
	f, err := parquet.OpenFile(bytes.NewReader(body), int64(len(body)))
	if err != nil {
		t.Fatal(err)
	}
	text, _ := f.Lookup(key)
	return text
}
