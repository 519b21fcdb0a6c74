package pipeline

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// Limits say when a window is full. The zero value of a field means its default.
type Limits struct {
	Records int           // default 100,000
	Bytes   int           // as received; default 64 MiB
	Age     time.Duration // since the first batch; default one minute
}

// A Gatherer collects batches and makes windows of them. Its methods may be called
// concurrently; one window is made at a time, and callers wait, which is the back-pressure.
type Gatherer struct {
	lane     *Lane
	limits   Limits
	now      func() time.Time
	OnWindow func(*Manifest) // called after each commit; may be nil

	mu      sync.Mutex
	batches []Batch
	shards  map[ShardID]bool
	gaps    int
	records int
	bytes   int
	since   time.Time
	urgent  bool // a shard's end waits, and its children for it; or a gap, which nobody knows of yet
}

// NewGatherer returns a Gatherer for an open lane. now is the clock that ages windows.
func NewGatherer(l *Lane, limits Limits, now func() time.Time) *Gatherer {
	limits.Records = cmp.Or(limits.Records, 100_000)
	limits.Bytes = cmp.Or(limits.Bytes, 64<<20)
	limits.Age = cmp.Or(limits.Age, time.Minute)
	return &Gatherer{lane: l, limits: limits, now: now, shards: map[ShardID]bool{}}
}

// Add takes a batch, and makes a window when there is enough for one.
func (g *Gatherer) Add(ctx context.Context, b Batch) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.more(b) > MaxShardsPerWindow || b.Missing != nil && g.shards[b.Shard] {
		if err := g.flush(ctx); err != nil {
			return err
		}
	}
	if len(g.batches) == 0 {
		g.since = g.now()
	}
	g.batches = append(g.batches, b)
	g.shards[b.Shard] = true
	g.records += len(b.Records)
	g.bytes += b.Bytes
	if b.Missing != nil {
		g.gaps++
	}
	g.urgent = g.urgent || b.End || b.Missing != nil
	if g.records >= g.limits.Records || g.bytes >= g.limits.Bytes {
		return g.flush(ctx)
	}
	return nil
}

// more is how many shards and gaps there are with those of b.
func (g *Gatherer) more(b Batch) int {
	n := len(g.shards) + g.gaps
	if !g.shards[b.Shard] {
		n++
	}
	if b.Missing != nil {
		n++
	}
	return n
}

// FlushDue makes a window of what is gathered if it is old enough, or if a shard ended or misses
// records.
func (g *Gatherer) FlushDue(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.batches) == 0 || !g.urgent && g.now().Sub(g.since) < g.limits.Age {
		return nil
	}
	return g.flush(ctx)
}

// Empty reports whether everything that was added is committed.
func (g *Gatherer) Empty() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.batches) == 0
}

// Flush makes a window of what is gathered.
func (g *Gatherer) Flush(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.flush(ctx)
}

func (g *Gatherer) flush(ctx context.Context) error {
	ms, err := g.lane.Window(ctx, g.batches)
	if g.OnWindow != nil {
		for _, m := range ms {
			g.OnWindow(m)
		}
	}
	// After an error nothing gathered may be used again: the lane reopens, the source starts
	// from the committed positions.
	g.batches, g.gaps, g.records, g.bytes, g.urgent = nil, 0, 0, 0, false
	clear(g.shards)
	return err
}
