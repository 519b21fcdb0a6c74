package main

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
)

func TestPartsThatNeverComeAreGivenUpAfterADayWithTheirGapsOpen(t *testing.T) {
	w := newWatchedLine(t, 1)
	ctx, store, lane := t.Context(), w.runner.store, laneOf(w.book.contract)
	w.write()
	w.clock.Advance(time.Minute)
	w.round()
	if err := w.runner.gatherer.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	w.env.FlushFirehose()
	for o, err := range w.runner.staging.List(ctx) { // somebody empties staging
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.clients.s3.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(stagingBucket), Key: aws.String(partsPrefix + o.Key)}); err != nil {
			t.Fatal(err)
		}
	}
	g := giver{store, w.runner.sealer, w.clock.Now, slog.New(slog.DiscardHandler)}
	unsealed := func() int {
		t.Helper()
		if err := store.Fold(ctx, lane); err != nil {
			t.Fatal(err)
		}
		st, err := store.Lane(ctx, lane)
		if err != nil {
			t.Fatal(err)
		}
		return st.Unsealed()
	}
	for _, after := range []time.Duration{time.Minute, 24*time.Hour + 30*time.Minute} {
		w.clock.Advance(after)
		if n, err := giveUp(ctx, g, lane); n != 0 || err != nil {
			t.Fatalf("%s later %d parts are given up, %v", after, n, err)
		}
	}
	if n := unsealed(); n != 1 {
		t.Fatalf("%d windows wait, want 1", n)
	}
	w.clock.Advance(time.Hour)
	if n, err := giveUp(ctx, g, lane); n != 1 || err != nil {
		t.Fatalf("%d parts are given up, %v; want 1", n, err)
	}
	gaps, err := store.Gaps(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(gaps) != 1 || gaps[0].Cause != pipeline.GapWindow || gaps[0].State != pipeline.GapOpen {
		t.Errorf("gaps %+v, want one of the window, open", gaps)
	}
	if n := unsealed(); n != 0 {
		t.Errorf("%d windows wait for ever", n)
	}
}

// giveUp gives up what has not come of a lane.
func giveUp(ctx context.Context, g giver, lane pipeline.LaneID) (int, error) {
	windows, err := g.store.Unsealed(ctx, lane)
	if err != nil {
		return 0, err
	}
	return g.windows(ctx, windows)
}
