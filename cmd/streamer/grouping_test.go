package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
	"telemetrylake/testenv"
)

// groupingSeeds is how many seeds of Firehose the main job is run with: STREAMER_TEST_GROUPINGS, which
// make groupings sets.
func groupingSeeds(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("STREAMER_TEST_GROUPINGS")
	if text == "" {
		return 12
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// writeOn writes a reading that its device took so many days ago.
func (w *watchedLine) writeOn(days int) {
	w.t.Helper()
	device := fmt.Sprint("device", len(w.written))
	at := w.clock.Now().AddDate(0, 0, -days)
	_, err := w.clients.dynamodb.PutItem(w.t.Context(), &dynamodb.PutItemInput{TableName: aws.String("sensor_readings"), Item: map[string]types.AttributeValue{
		"pk": &types.AttributeValueMemberS{Value: "DEVICE#" + device}, "sk": &types.AttributeValueMemberS{Value: "TS#" + at.Format("2006-01-02T15:04:05.000Z")},
		"takenAt": &types.AttributeValueMemberN{Value: fmt.Sprint(at.UnixMilli())},
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.written[device] = at
}

// inLake is how often each device's reading is in the lake.
func (w *watchedLine) inLake() map[string]int {
	w.t.Helper()
	found := map[string]int{}
	files, err := lakeFiles(filepath.Join(w.dir, "s3", lakeBucket, "sensor_readings"))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range files {
		err := f.read(w.t.Context(), []string{"device_id"}, func(b arrow.RecordBatch) error {
			for i := range int(b.NumRows()) {
				found[b.Column(0).ValueStr(i)]++
			}
			return nil
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	return found
}

// However Firehose groups, orders, repeats, delays and refuses records, every reading is in the lake
// once, and staging is empty in the end.
func TestEveryGroupingOfFirehoseEndsInTheSameRows(t *testing.T) {
	t.Parallel()
	objects, parts, repeated, rows := 0, 0, 0, 0
	for seed := range groupingSeeds(t) {
		w := newWatchedLine(t, seed, func(o *testenv.Options) { o.Firehose = testenv.SeededFirehose(seed) })
		sweep := func() {
			rep, err := w.runner.sealer.Sweep(t.Context())
			if err != nil || rep.Damaged > 0 || len(rep.Kept) > 0 {
				t.Fatalf("seed %d: %+v, %v", seed, rep, err)
			}
			objects, parts, repeated = objects+rep.Removed, parts+rep.Published, repeated+rep.Duplicates
		}
		for range 6 {
			for range 1 + w.rng.IntN(12) {
				w.writeOn(w.rng.IntN(3))
				w.clock.Advance(time.Millisecond)
			}
			w.round()
			if err := w.runner.gatherer.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.clock.Advance(time.Duration(w.rng.Int64N(int64(2 * time.Minute))))
			w.env.Tick()
			if w.rng.IntN(2) == 0 {
				sweep()
			}
		}
		for range 22 { // what is late comes within a day
			w.clock.Advance(time.Hour)
			w.env.Tick()
			sweep()
		}
		w.env.FlushFirehose()
		sweep()
		if err := w.runner.store.Fold(t.Context(), laneOf(w.book.contract)); err != nil {
			t.Fatal(err)
		}
		if st, err := w.runner.store.Lane(t.Context(), laneOf(w.book.contract)); err != nil || st.Unsealed() != 0 || st.Next < 2 {
			t.Errorf("seed %d: lane %+v, %v", seed, st, err)
		}
		found := w.inLake()
		for device := range w.written {
			if found[device] != 1 {
				t.Errorf("seed %d: the reading of %s is in the lake %d times", seed, device, found[device])
			}
		}
		if len(found) != len(w.written) {
			t.Errorf("seed %d: %d readings in the lake, %d were written", seed, len(found), len(w.written))
		}
		for o, err := range w.runner.staging.List(t.Context()) {
			t.Errorf("seed %d: %v stays in staging, %v", seed, o, err)
		}
		rows += len(found)
		if t.Failed() {
			return
		}
	}
	t.Logf("%d seeds: %d rows, each once, in %d parts of %d staging objects, with %d copies", groupingSeeds(t), rows, parts, objects, repeated)
	if repeated == 0 || objects == 0 || objects >= parts+repeated {
		t.Errorf("nothing was joined or repeated: %d objects of %d parts and %d copies", objects, parts, repeated)
	}
}

// What Firehose delivers after it was given up stays out of the lake: a repair of the gap may have
// brought its rows there.
func TestWhatFirehoseDeliversAfterItWasGivenUpIsDropped(t *testing.T) {
	hold := 40 * time.Hour // longer than the service promises
	w := newWatchedLine(t, 1, func(o *testenv.Options) { o.Firehose.Hold = func() time.Duration { return hold } })
	ctx, lane := t.Context(), laneOf(w.book.contract)
	land := func() {
		for range 3 {
			w.writeOn(0)
		}
		if err := errors.Join(w.runner.catchUp(ctx), w.runner.gatherer.Flush(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	hours := func(n int) {
		for range n { // it goes on reading, so that nothing ages out
			w.clock.Advance(time.Hour)
			w.env.Tick()
			w.round()
		}
	}
	land()
	hours(26)
	g := giver{w.runner.store, w.runner.sealer, w.clock.Now, slog.New(slog.DiscardHandler)}
	if n, err := giveUp(ctx, g, lane); n != 1 || err != nil {
		t.Fatalf("%d parts are given up, %v; want 1", n, err)
	}
	if err := w.runner.store.Fold(ctx, lane); err != nil {
		t.Fatal(err)
	}
	hold = 0
	land() // goes on
	hours(20)
	rep, err := w.runner.sealer.Sweep(ctx)
	if err != nil || rep.Void != 1 || rep.Removed != 2 || rep.Published != 1 {
		t.Errorf("sweep %+v, %v; want the late part dropped and the other published", rep, err)
	}
	found := w.inLake()
	for i := range 6 {
		want := i / 3 // the second window's alone
		if device := fmt.Sprint("device", i); found[device] != want {
			t.Errorf("the reading of %s is in the lake %d times, want %d", device, found[device], want)
		}
	}
	gaps, err := w.runner.store.Gaps(ctx, "")
	if err != nil || len(gaps) == 0 {
		t.Errorf("gaps %+v, %v; want those of the first window", gaps, err)
	}
	for _, gap := range gaps {
		if gap.State != pipeline.GapOpen || gap.Window == nil || gap.Window.N != 1 {
			t.Errorf("gap %+v, want only those of the first window, open", gap)
		}
	}
}
