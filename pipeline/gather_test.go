package pipeline_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
)

// A bench is a gatherer on a track, with a clock of its own.
type bench struct {
	*track
	g   *pipeline.Gatherer
	now time.Time
	ms  []*pipeline.Manifest
}

func newBench(t *testing.T, l pipeline.Limits, shards ...pipeline.ShardID) *bench {
	t.Helper()
	b := &bench{track: newTrack(t, pipeline.PartSize{}, shards...), now: time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)}
	b.g = pipeline.NewGatherer(b.Lane, l, func() time.Time { return b.now })
	b.g.OnWindow = func(m *pipeline.Manifest) { b.ms = append(b.ms, m) }
	return b
}

func (b *bench) add(batches ...pipeline.Batch) {
	b.t.Helper()
	for _, x := range batches {
		if err := b.g.Add(b.t.Context(), x); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *bench) due() {
	b.t.Helper()
	if err := b.g.FlushDue(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

// rows is how many rows each window so far has.
func (b *bench) rows() string {
	var n []int
	for _, m := range b.ms {
		n = append(n, m.Counts().Rows)
	}
	return fmt.Sprint(n)
}

func (b *bench) want(rows string) {
	b.t.Helper()
	if got := b.rows(); got != rows {
		b.t.Errorf("windows have %s rows, want %s", got, rows)
	}
}

func TestGathererMakesAWindowOfEnoughRecords(t *testing.T) {
	b := newBench(t, pipeline.Limits{Records: 10}, "s", "r")
	b.add(b.batch("s", 1, 4), b.batch("r", 5, 9))
	b.want("[]")
	b.add(b.batch("s", 10, 10))
	b.want("[10]")
	b.add(b.batch("s", 11, 35))
	b.want("[10 25]") // a batch is not cut
	b.due()
	b.want("[10 25]")
}

func TestGathererMakesAWindowOfEnoughBytes(t *testing.T) {
	b := newBench(t, pipeline.Limits{Bytes: 1000}, "s")
	x := b.batch("s", 1, 2)
	x.Bytes = 999
	b.add(x)
	b.want("[]")
	y := b.batch("s", 3, 3)
	y.Bytes = 1
	b.add(y)
	b.want("[3]")
}

func TestGathererMakesAWindowThatIsOldEnough(t *testing.T) {
	b := newBench(t, pipeline.Limits{Age: time.Minute}, "s")
	b.due()
	b.add(b.batch("s", 1, 2))
	b.now = b.now.Add(40 * time.Second)
	b.add(b.batch("s", 3, 3)) // the age is the first batch's
	b.due()
	b.want("[]")
	b.now = b.now.Add(20 * time.Second)
	b.due()
	b.want("[3]")
	b.now = b.now.Add(time.Hour)
	b.add(b.batch("s", 4, 4)) // it is young again
	b.due()
	b.want("[3]")
	if err := b.g.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.want("[3 1]")
}

// Its children wait for a shard's end to be committed.
func TestGathererDoesNotLetAnEndWait(t *testing.T) {
	b := newBench(t, pipeline.Limits{}, "s", "r")
	b.add(b.batch("r", 1, 2))
	b.due()
	b.want("[]")
	b.add(ended(b.batch("s", 3, 3)))
	b.want("[]") // other shards of the same round may end too
	b.due()
	b.want("[3]")
	b.add(b.batch("r", 4, 4))
	b.due()
	b.want("[3]")
	b.add(pipeline.Batch{Shard: "r", End: true})
	b.due()
	b.want("[3 1]")
	if p := b.position("r"); !p.End {
		t.Errorf("position %+v", p)
	}
}

func TestGathererTakesNoMoreShardsThanOneTransactionHolds(t *testing.T) {
	b := newBench(t, pipeline.Limits{})
	for i := range pipeline.MaxShardsPerWindow + 5 {
		id := pipeline.ShardID(fmt.Sprintf("s-%03d", i))
		if _, err := b.store.Shards(tableStream, b.name, checkpoint.Run).Own(t.Context(), pipeline.Shard{ID: id}); err != nil {
			t.Fatal(err)
		}
		b.add(b.batch(id, 1, 1))
		if i < pipeline.MaxShardsPerWindow {
			b.add(b.batch(id, 2, 2)) // a shard again is no shard more
			b.want("[]")
		}
	}
	b.want(fmt.Sprintf("[%d]", 2*pipeline.MaxShardsPerWindow))
	if err := b.g.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.want(fmt.Sprintf("[%d 5]", 2*pipeline.MaxShardsPerWindow))
}

// After an error nothing gathered is used again: the source starts from what is committed.
func TestGathererForgetsWhatItCouldNotCommit(t *testing.T) {
	b := newBench(t, pipeline.Limits{Records: 2}, "s")
	b.shelf.failAt = 1
	first := b.batch("s", 1, 2)
	if err := b.g.Add(t.Context(), first); !errors.Is(err, errShelf) {
		t.Fatalf("add: %v", err)
	}
	b.want("[]")
	if err := b.g.Add(t.Context(), b.batch("s", 3, 4)); err == nil {
		t.Error("it goes on with a lane that is not open")
	}
	if err := b.Open(t.Context()); err != nil { // commits the first two
		t.Fatal(err)
	}
	b.add(first)
	b.want("[]")
	b.add(b.batch("s", 3, 4))
	b.want("[2]")
	if p := b.position("s"); p.Seq != "4" {
		t.Errorf("position %+v", p)
	}
}
