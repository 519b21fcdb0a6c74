package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/seal"
)

// A giver gives up what did not come: parts that are not in the lake a day after they were landed,
// when neither Firehose nor the stream has them any longer.
type giver struct {
	store  *checkpoint.Store
	sealer *seal.Sealer
	now    func() time.Time // only to leave young windows alone; the store asks the server's clock
	log    *slog.Logger
}

// windows gives up the parts whose time has passed of windows that are not sealed, after it has
// opened the gaps of these. It returns how many.
func (g giver) windows(ctx context.Context, windows []checkpoint.WindowStatus) (int, error) {
	given := 0
	var err error
	for _, w := range windows {
		if done, failed := g.settle(ctx, w); done || failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		// An hour is for clocks that differ; the next sweep looks again.
		if w.State != pipeline.WindowCommitted || g.now().Sub(w.LandedAt) < checkpoint.GiveUpAfter-time.Hour {
			continue
		}
		n, failed := g.window(ctx, w.ID)
		if n > 0 {
			g.log.Error("parts of a window never came and are given up; its gaps are open", "window", w.ID.String(), "parts", n)
		}
		given += n
		if !errors.Is(failed, checkpoint.ErrTooEarly) {
			err = errors.Join(err, failed)
		}
	}
	return given, err
}

func (g giver) window(ctx context.Context, w pipeline.WindowID) (int, error) {
	unclaimed, err := g.store.GiveUp(ctx, w)
	if err != nil {
		return unclaimed, err
	}
	t, err := g.sealer.TakeOver(ctx, w)
	if err != nil || len(t.Lost) == 0 {
		return unclaimed, err
	}
	lost, err := g.store.GiveUpLost(ctx, w, t.Lost)
	return unclaimed + lost, err
}
