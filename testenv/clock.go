package testenv

import (
	"sync"
	"time"
)

// A Clock tells the stand-in what time it is. Everything in the stand-in that depends
// on time (delivery, retention, iterators, TTL) reads this one clock.
type Clock interface {
	Now() time.Time
}

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

// A ManualClock stands still until it is told to move, and never moves backwards. It
// is safe for concurrent use.
type ManualClock struct {
	mu  sync.RWMutex
	now time.Time
}

// NewManualClock returns a clock that stands at t.
func NewManualClock(t time.Time) *ManualClock {
	return &ManualClock{now: t}
}

// Now returns the time the clock stands at.
func (c *ManualClock) Now() time.Time {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.now
}

// Advance moves the clock forward by d; a negative d leaves it where it is.
func (c *ManualClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d > 0 {
		c.now = c.now.Add(d)
	}
}

// Set moves the clock to t, or leaves it where it is when t lies in its past.
func (c *ManualClock) Set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.After(c.now) {
		c.now = t
	}
}
