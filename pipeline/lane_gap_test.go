package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
)

func missing(b pipeline.Batch, from, to time.Time) pipeline.Batch {
	b.Missing = &pipeline.Missing{Cause: pipeline.GapTrimmed, From: from, To: to}
	return b
}

func gapText(g pipeline.Gap) string {
	return fmt.Sprintf("%s %s of %s after %q before %q, %q to %q", g.State, g.Cause, g.Shard, g.After, g.Before, g.First, g.Last)
}

func (k *track) wantGaps(want ...string) []pipeline.Gap {
	k.t.Helper()
	gs := k.gaps(len(want))
	for i, g := range gs {
		if got := gapText(g); got != want[i] {
			k.t.Errorf("gap %d is %s, want %s", i, got, want[i])
		}
	}
	return gs
}

func TestLaneWritesAGapDownWithTheRecordsBehindIt(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{}, "s")
	k.window(k.batch("s", 1, 2))
	k.window(missing(k.batch("s", 8, 9), time.Time{}, createdAt(8)))
	g := k.wantGaps(`open trimmed of s after "2" before "8", "" to ""`)[0]
	// The last record that was read says when it began.
	if !g.From.Equal(createdAt(2)) || !g.To.Equal(createdAt(8)) {
		t.Errorf("gap from %s to %s, want %s to %s", g.From, g.To, createdAt(2), createdAt(8))
	}
	if p := k.timedPosition("s"); p != (pipeline.Position{Seq: "9", Created: createdAt(9)}) {
		t.Errorf("position %+v", p)
	}
	k.wantLanded(1, 2, 8, 9)
}

func TestLaneWritesAGapDownThatHasNothingBehindIt(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{}, "s", "gone")
	k.window(k.batch("s", 1, 2))
	at := createdAt(500)
	ms := k.window(missing(pipeline.Batch{Shard: "s"}, createdAt(2), at), ended(missing(pipeline.Batch{Shard: "gone"}, time.Time{}, time.Time{})))
	if len(ms) != 1 || len(ms[0].Parts) != 0 || ms[0].Counts() != (pipeline.Counts{}) {
		t.Fatalf("windows %+v", ms)
	}
	k.wantGaps(`open trimmed of gone after "" before "", "" to ""`, `open trimmed of s after "2" before "", "" to ""`)
	if p := k.timedPosition("s"); p != (pipeline.Position{Seq: "2", Created: createdAt(2), TipAt: at}) {
		t.Errorf("position %+v", p)
	}
	if p := k.position("gone"); p != (pipeline.Position{End: true}) {
		t.Errorf("position of the shard that is gone: %+v", p)
	}
	k.window(k.batch("s", 7, 8))
	k.restart()
	k.window(k.batch("s", 9, 9))
	k.wantLanded(1, 2, 7, 8, 9)
	k.gaps(2)
}

// A range has no hole: what comes behind a gap in the same shard is another window.
func TestLaneBeginsAnotherWindowBehindAGap(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{}, "s", "r")
	ms := k.window(
		k.batch("s", 1, 3), k.batch("r", 1, 1),
		missing(k.batch("s", 10, 12), createdAt(3), createdAt(10)), k.batch("r", 2, 2),
		missing(k.batch("s", 20, 21), createdAt(12), createdAt(20)))
	var got []string
	for _, m := range ms {
		for _, s := range m.Shards {
			got = append(got, fmt.Sprintf("%d %s %s-%s", m.Window.N, s.Shard, s.First, s.Last))
		}
	}
	if want := []string{"1 r 1-1", "1 s 1-3", "2 r 2-2", "2 s 10-12", "3 s 20-21"}; !slices.Equal(got, want) {
		t.Errorf("windows %q, want %q", got, want)
	}
	k.wantGaps(`open trimmed of s after "3" before "10", "" to ""`, `open trimmed of s after "12" before "20", "" to ""`)
}

// What lies before records that are committed already was written down, or read, by whoever
// committed them.
func TestLaneForgetsAGapBeforeItsPosition(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{}, "s")
	b := missing(k.batch("s", 10, 12), time.Time{}, createdAt(10))
	k.window(b)
	for range 2 {
		if ms := k.window(b); len(ms) != 0 {
			t.Errorf("windows %+v", ms)
		}
		k.restart()
	}
	more := k.batch("s", 13, 14)
	more.Records = append(slices.Clone(b.Records), more.Records...)
	if ms := k.window(missing(more, time.Time{}, createdAt(10))); len(ms) != 1 || ms[0].Shards[0].Missing != nil || ms[0].Shards[0].First != "13" {
		t.Errorf("windows %+v", ms)
	}
	k.gaps(1)
}

func TestLaneSplitsAWindowBehindItsGap(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{Rows: 1}, "s")
	const n = 5000 // a part a record: too many for one manifest
	ms := k.window(missing(k.batch("s", 10, 10+n), createdAt(1), createdAt(10)))
	if len(ms) < 2 {
		t.Fatalf("%d windows", len(ms))
	}
	for i, m := range ms {
		if (m.Shards[0].Missing != nil) != (i == 0) {
			t.Errorf("window %d misses %+v", i+1, m.Shards[0].Missing)
		}
	}
	k.wantGaps(`open trimmed of s after "" before "10", "" to ""`)
}

func TestRecoveryOfALostWindowOpensItsGapsAndGoesOn(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{Rows: 2}, "s", "empty", "r")
	k.window(k.batch("s", 1, 1))
	k.shelf.failAt = 1
	lost := []pipeline.Batch{k.batch("s", 2, 5), {Shard: "empty", End: true}, ended(k.batch("r", 7, 7))}
	if _, err := k.Window(t.Context(), lost); !errors.Is(err, errShelf) {
		t.Fatal(err)
	}
	k.stages.Replayer = trimmed{}
	k.restart()
	gs := k.wantGaps(`open window of r after "" before "", "7" to "7"`, `open window of s after "1" before "", "2" to "5"`)
	for _, g := range gs {
		if g.Window == nil || g.Window.N != 2 {
			t.Errorf("gap of window %v", g.Window)
		}
	}
	if !gs[1].From.Equal(createdAt(2)) || !gs[1].To.Equal(createdAt(5)) {
		t.Errorf("gap from %s to %s", gs[1].From, gs[1].To)
	}
	for s, want := range map[pipeline.ShardID]pipeline.Position{"s": {Seq: "5"}, "empty": {End: true}, "r": {Seq: "7", End: true}} {
		if got := k.position(s); got != want {
			t.Errorf("position of %s is %+v, want %+v", s, got, want)
		}
	}
	state, _, err := k.store.Window(t.Context(), *gs[0].Window)
	if err != nil || state != pipeline.WindowCommitted {
		t.Errorf("window is %s, %v", state, err)
	}
	k.window(k.batch("s", 6, 6)) // reading goes on
	k.gaps(2)
}

// A process that dies between opening the gaps and the commit leaves gaps of a pending window: the
// next finds it, and opens none twice.
func TestRecoveryOfALostWindowThatDiesIsFinishedByTheNext(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{}, "s")
	k.shelf.failAt = 1
	if _, err := k.Window(t.Context(), []pipeline.Batch{k.batch("s", 1, 3)}); !errors.Is(err, errShelf) {
		t.Fatal(err)
	}
	k.stages.Replayer, k.stages.Checkpoints = trimmed{}, noCommit{k.store}
	if err := k.tryRestart(tableStream); !errors.Is(err, errShelf) {
		t.Fatal(err)
	}
	k.gaps(1)
	if p := k.position("s"); p.Seq != "" {
		t.Errorf("position %+v", p)
	}
	k.stages.Checkpoints = k.store
	k.restart()
	k.wantGaps(`open window of s after "" before "", "1" to "3"`)
	if p := k.position("s"); p.Seq != "3" {
		t.Errorf("position %+v", p)
	}
}

type noCommit struct{ pipeline.Checkpoints }

func (noCommit) Commit(context.Context, pipeline.Hold, *pipeline.Manifest) error { return errShelf }

// Nobody knows of a gap before it is written down: it does not wait for a full window.
func TestGathererDoesNotLetAGapWait(t *testing.T) {
	b := newBench(t, pipeline.Limits{}, "s", "r")
	b.add(b.batch("r", 1, 2), missing(pipeline.Batch{Shard: "s"}, createdAt(1), createdAt(9)))
	b.want("[]")
	b.due()
	b.want("[2]")
	b.gaps(1)
	b.add(b.batch("r", 3, 3))
	b.due()
	b.want("[2]")
}

func TestGathererFlushesBeforeAGapInAShardItHolds(t *testing.T) {
	b := newBench(t, pipeline.Limits{}, "s")
	b.add(b.batch("s", 1, 2), missing(b.batch("s", 5, 7), createdAt(2), createdAt(5)))
	b.want("[2]")
	b.add(missing(pipeline.Batch{Shard: "s"}, createdAt(7), createdAt(90)))
	b.want("[2 3]")
	b.due()
	b.gaps(2)
}

// A gap is an item of begin's transaction as a shard is.
func TestGathererTakesNoMoreShardsAndGapsThanOneTransactionHolds(t *testing.T) {
	b := newBench(t, pipeline.Limits{})
	for i := range pipeline.MaxShardsPerWindow {
		id := pipeline.ShardID(fmt.Sprintf("s-%03d", i))
		if _, err := b.store.Shards(tableStream, b.name, checkpoint.Run).Own(t.Context(), pipeline.Shard{ID: id}); err != nil {
			t.Fatal(err)
		}
		b.add(missing(b.batch(id, 1, 1), createdAt(0), createdAt(1)))
	}
	b.want(fmt.Sprintf("[%d]", pipeline.MaxShardsPerWindow/2))
	if err := b.g.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.want(fmt.Sprintf("[%d %d]", pipeline.MaxShardsPerWindow/2, pipeline.MaxShardsPerWindow/2))
	b.gaps(pipeline.MaxShardsPerWindow)
}
