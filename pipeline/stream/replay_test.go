package stream

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"telemetrylake/pipeline"
)

func rangeOf(records []pipeline.Record, end bool) pipeline.Range {
	return pipeline.Range{Shard: records[0].Shard, First: records[0].Seq, Last: records[len(records)-1].Seq, End: end}
}

// readOneShard returns a world whose first shard held 50 records and is closed, and its records.
func readOneShard(t *testing.T) (*world, *Reader, []pipeline.Record) {
	t.Helper()
	w := newWorld(t, 1)
	c, l := newCheckpoint(), log{}
	w.put(50)
	if err := w.env.Reshard(tableName); err != nil {
		t.Fatal(err)
	}
	r := w.reader(c, Options{PageLimit: 7})
	w.catchUp(r, c, &l)
	return w, r, l.records()
}

func TestReplayGivesTheRecordsOfEachRangeAgain(t *testing.T) {
	_, r, all := readOneShard(t)
	tests := map[string]struct{ from, to int }{
		"one record": {3, 4}, "within a page": {1, 6}, "across pages": {5, 33}, "to the end of a page": {0, 7}, "all": {0, 50},
	}
	for name, test := range tests {
		for _, end := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, end %t", name, end), func(t *testing.T) {
				want := all[test.from:test.to]
				var l log
				if err := r.Replay(t.Context(), []pipeline.Range{rangeOf(want, end)}, l.emit); err != nil {
					t.Fatal(err)
				}
				if got := l.records(); !reflect.DeepEqual(got, want) {
					t.Errorf("replayed %d records, want %d", len(got), len(want))
				}
				for i, b := range l {
					if b.End != (end && i == len(l)-1) {
						t.Errorf("batch %d of %d has end %t", i, len(l), b.End)
					}
				}
			})
		}
	}
}

func TestReplayTakesRangesInTurn(t *testing.T) {
	_, r, all := readOneShard(t)
	ranges := []pipeline.Range{
		rangeOf(all[40:], true), {Shard: "shardId-nothing"}, {Shard: "shardId-empty", End: true}, rangeOf(all[:2], false),
	}
	var l log
	if err := r.Replay(t.Context(), ranges, l.emit); err != nil {
		t.Fatal(err)
	}
	if got := values(t, l.records()); len(got) != 12 || got[0] != 40 || got[11] != 1 {
		t.Errorf("replayed %v", got)
	}
	if b := l[len(l)-2]; b.Shard != "shardId-empty" || !b.End || len(b.Records) > 0 {
		t.Errorf("the range without records gave %+v", b)
	}
}

func TestReplayDoesNotMoveTheReader(t *testing.T) {
	w := newWorld(t, 1)
	c, l := newCheckpoint(), log{}
	r := w.reader(c, Options{PageLimit: 4})
	w.put(20)
	if _, err := r.Round(t.Context(), l.emit); err != nil {
		t.Fatal(err)
	}
	var again log
	if err := r.Replay(t.Context(), []pipeline.Range{rangeOf(l.records(), false)}, again.emit); err != nil {
		t.Fatal(err)
	}
	w.catchUp(r, c, &l)
	w.wantAll(l)
}

func TestReplayOfAShardThatIsNotThereSaysSo(t *testing.T) {
	_, r, all := readOneShard(t)
	rg := pipeline.Range{Shard: "shardId-00000000000000000000-00000000", First: all[0].Seq, Last: all[1].Seq}
	err := r.Replay(t.Context(), []pipeline.Range{rg}, func(pipeline.Batch) error { return nil })
	wantTrimmed(t, err, string(rg.Shard), string(rg.Last))
}

func TestReplayIsAnErrorWhenRecordsAreMissing(t *testing.T) {
	_, r, all := readOneShard(t)
	none := func(pipeline.Batch) error { return nil }
	between := all[20].Seq + "5" // longer, so larger than all
	err := r.Replay(t.Context(), []pipeline.Range{{Shard: all[0].Shard, First: all[10].Seq, Last: between}}, none)
	if _, person := errors.AsType[*pipeline.PersonError](err); !person || errors.Is(err, pipeline.ErrTrimmed) {
		t.Errorf("a last record that is not there: %v", err)
	}
	if err := r.Replay(t.Context(), []pipeline.Range{{Shard: all[0].Shard, First: all[3].Seq, Last: all[2].Seq}}, none); err == nil {
		t.Error("a range that ends before it begins was replayed")
	}
}

func TestReplayOfTrimmedRecordsSaysSo(t *testing.T) {
	w, r, all := readOneShard(t)
	w.clock.Advance(25 * time.Hour)
	rg := rangeOf(all[5:20], false)
	err := r.Replay(t.Context(), []pipeline.Range{rg}, func(pipeline.Batch) error { return nil })
	wantTrimmed(t, err, string(rg.Shard), string(rg.First), string(rg.Last))
}

func TestReplayOutlivesItsIterator(t *testing.T) {
	w, r, all := readOneShard(t)
	var l log
	err := r.Replay(t.Context(), []pipeline.Range{rangeOf(all, true)}, func(b pipeline.Batch) error {
		w.clock.Advance(16 * time.Minute)
		return l.emit(b)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := l.records(); !reflect.DeepEqual(got, all) {
		t.Errorf("replayed %d records", len(got))
	}
}

func TestReplayReturnsTheErrorOfEmit(t *testing.T) {
	_, r, all := readOneShard(t)
	broken := errors.New("broken")
	if err := r.Replay(t.Context(), []pipeline.Range{rangeOf(all, false)}, func(pipeline.Batch) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	if err := r.Replay(t.Context(), []pipeline.Range{{Shard: "s", End: true}}, func(pipeline.Batch) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}

func TestReplayEndsWithItsContext(t *testing.T) {
	_, r, all := readOneShard(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := r.Replay(ctx, []pipeline.Range{rangeOf(all, false)}, func(pipeline.Batch) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
