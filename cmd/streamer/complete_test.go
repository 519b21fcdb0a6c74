package main

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/hot"
	"telemetrylake/pipeline/observe"
	"telemetrylake/schemas"
	"telemetrylake/testenv"
)

// A watchedLine is a line on a virtual clock, and what it is told to move.
type watchedLine struct {
	t       *testing.T
	rng     *rand.Rand
	env     *testenv.Env
	clock   *testenv.ManualClock
	clients clients
	dir     string
	runner  *runner
	watch   *observe.Observer
	book    *bookkeeper
	tips    tips
	written map[string]time.Time // creation time by device
	found   map[string]bool      // devices whose reading is in the lake
}

func newWatchedLine(t *testing.T, seed uint64, change ...func(*testenv.Options)) *watchedLine {
	t.Helper()
	ctx := t.Context()
	w := &watchedLine{
		t: t, rng: rand.New(rand.NewPCG(seed, 0)), clock: testenv.NewManualClock(time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC)),
		dir: t.TempDir(), written: map[string]time.Time{}, found: map[string]bool{},
	}
	var err error
	o := testenv.Options{Dir: w.dir, Clock: w.clock, Seed: seed}
	for _, f := range change {
		f(&o)
	}
	if w.env, err = testenv.Open(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.env.Close(); err != nil {
			t.Error(err)
		}
	})
	contract, err := schemas.Load("sensor_readings")
	if err != nil {
		t.Fatal(err)
	}
	w.clients = newClients(w.env.AWSConfig())
	if err := furnish(ctx, w.clients, []*schemas.Contract{contract}, time.Minute); err != nil {
		t.Fatal(err)
	}
	table, err := hot.Describe(ctx, w.clients.dynamodb, contract.Table)
	if err != nil {
		t.Fatal(err)
	}
	p := places{
		Contract: contract, StreamARN: table.StreamARN, Checkpoint: checkpointTable, Delivery: contract.Table,
		Staging: location{stagingBucket, partsPrefix}, Damaged: location{stagingBucket, damagedPrefix}, Lake: location{lakeBucket, ""},
	}
	w.watch = observe.New(observe.Options{Now: w.clock.Now})
	l, err := wire(w.clients, p, wireOptions{Limits: pipeline.Limits{Age: 20 * time.Second}, Now: w.clock.Now, Watch: w.watch})
	if err != nil {
		t.Fatal(err)
	}
	w.runner = &runner{line: l}
	w.book = &bookkeeper{store: l.store, stream: p.StreamARN, contract: contract}
	if err := l.open(ctx); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *watchedLine) write() {
	w.t.Helper()
	device := fmt.Sprint("device", len(w.written))
	now := w.clock.Now()
	_, err := w.clients.dynamodb.PutItem(w.t.Context(), &dynamodb.PutItemInput{TableName: aws.String("sensor_readings"), Item: map[string]types.AttributeValue{
		"pk": &types.AttributeValueMemberS{Value: "DEVICE#" + device}, "sk": &types.AttributeValueMemberS{Value: "TS#" + now.Format("2006-01-02T15:04:05.000Z")},
		"takenAt": &types.AttributeValueMemberN{Value: fmt.Sprint(now.UnixMilli())},
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.written[device] = now.Truncate(time.Second)
}

// round reads once, makes windows as they come due, and notes tips as a run does.
func (w *watchedLine) round() {
	w.t.Helper()
	ctx, l, began := w.t.Context(), w.runner.line, w.clock.Now()
	info, err := l.reader.Round(ctx, w.watch.Emit(func(b pipeline.Batch) error { return l.gatherer.Add(ctx, b) }))
	if err != nil {
		w.t.Fatal(err)
	}
	w.watch.Round(seenRound(began, info))
	if err := l.gatherer.FlushDue(ctx); err != nil {
		w.t.Fatal(err)
	}
	w.tips.see(info)
	if l.gatherer.Empty() {
		w.runner.markTips(ctx, &w.tips)
	}
}

func (w *watchedLine) sweep() {
	w.t.Helper()
	rep, err := w.runner.sealer.Sweep(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.runner.store.Fold(w.t.Context(), laneOf(w.book.contract)); err != nil {
		w.t.Fatal(err)
	}
	w.watch.Swept(seenSweep(0, rep), nil)
	if rep.Created == 0 {
		return
	}
	files, err := lakeFiles(filepath.Join(w.dir, "s3", lakeBucket, "sensor_readings"))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range files {
		err := f.read(w.t.Context(), []string{"device_id"}, func(b arrow.RecordBatch) error {
			for i := range int(b.NumRows()) {
				w.found[b.Column(0).ValueStr(i)] = true
			}
			return nil
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// through checks the time through which the lake is said to be complete, and returns it.
func (w *watchedLine) through() time.Time {
	w.t.Helper()
	if err := w.watch.Refresh(w.t.Context(), w.book.read); err != nil {
		w.t.Fatal(err)
	}
	at := w.watch.Integrity().CompleteThrough
	for device, created := range w.written {
		if created.Before(at) && !w.found[device] {
			w.t.Fatalf("at %v the lake is said to be complete through %v, and it has no reading of %v (%s)", w.clock.Now(), at, created, device)
		}
	}
	return at
}

func TestNothingFromBeforeCompleteThroughIsMissingFromTheLake(t *testing.T) {
	for seed := range uint64(3) {
		w := newWatchedLine(t, seed)
		known := map[time.Time]bool{}
		for step := range 150 {
			w.clock.Advance(time.Duration(w.rng.Int64N(int64(20 * time.Second))))
			w.env.Tick()
			for range w.rng.IntN(4) {
				w.write()
			}
			if step == 30 || step == 80 { // every open shard closes
				if err := w.env.Reshard("sensor_readings"); err != nil {
					t.Fatal(err)
				}
			}
			if w.rng.IntN(3) > 0 {
				w.round()
			}
			if w.rng.IntN(6) == 0 {
				w.sweep()
			}
			if w.rng.IntN(2) == 0 {
				known[w.through()] = true
			}
		}
		if len(known) < 3 {
			t.Errorf("seed %d: complete_through had %d values: it stands still", seed, len(known))
		}
		last := w.clock.Now()
		for range 60 { // a tip is only believed after dozens of empty pages
			w.clock.Advance(8 * time.Second)
			w.env.Tick()
			w.round()
			w.sweep()
		}
		if at := w.through(); !at.After(last) || len(w.found) != len(w.written) {
			t.Errorf("seed %d: the last reading was at %v, complete through %v; %d of %d readings are in the lake", seed, last, at, len(w.found), len(w.written))
		}
	}
}
