package pipeline

import (
	"context"
	"math/rand/v2"
	"time"
)

// Wait waits for d. It returns ctx's error as soon as ctx is done.
func Wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return ctx.Err()
	}
}

// Jitter returns between half of d and d, so that those who wait for the same thing do not come
// back at the same time.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
