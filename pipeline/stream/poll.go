package stream

import (
	"cmp"
	"context"
	"slices"
	"time"

	"telemetrylake/pipeline"
)

// pollAtMost is the longest that Poll waits before it returns, so that its caller can see to
// what comes of age.
const pollAtMost = time.Second

// quantum is the least time between two polls that find no full page: a thousand shards that
// come due one by one are read some dozens at a time.
const quantum = 50 * time.Millisecond

// Poll waits until a shard is due, but not long, and reads one page of each that is. A shard
// whose page was full is due at once, one with some records after Floor, one without after ever
// longer, up to Ceiling. All shards together take Budget pages a second, those that have waited
// longest first. What fails is left alone for a while, ever longer.
//
// Up to Parallel shards are read at the same time; batches of different shards are emitted as
// they come, one at a time. Otherwise Poll is Round.
func (r *Reader) Poll(ctx context.Context, emit func(pipeline.Batch) error) (RoundInfo, error) {
	if d := r.idle(r.o.Now()); d > 0 {
		if err := pipeline.Wait(ctx, d); err != nil {
			return RoundInfo{}, err
		}
	} else if err := ctx.Err(); err != nil {
		return RoundInfo{}, err
	}
	r.polled = r.o.Now()
	return r.round(ctx, emit, true)
}

// idle returns how long there is nothing to do.
func (r *Reader) idle(now time.Time) time.Duration {
	if len(r.shards) == 0 {
		if r.listFail.n > 0 || r.polled.IsZero() {
			return min(pollAtMost, r.listFail.until.Sub(now))
		}
		return r.polled.Add(pollAtMost).Sub(now) // a stream without shards
	}
	wait := pollAtMost
	for _, s := range r.shards {
		switch {
		case s.state == Finished || s.state == Drained && !s.children.wanted:
		case s.state >= Closing:
			wait = min(wait, s.children.fail.until.Sub(now))
		default:
			wait = min(wait, s.dueAt().Sub(now))
		}
		if wait <= 0 && !s.starved {
			break
		}
	}
	wait = max(wait, r.bucket.wait(now))
	if !r.hasFull() {
		wait = max(wait, r.polled.Add(quantum).Sub(now))
	}
	return min(wait, pollAtMost)
}

// hasFull reports whether the last page of some shard was full.
func (r *Reader) hasFull() bool {
	for _, s := range r.shards {
		if s.full {
			return true
		}
	}
	return false
}

func (s *shard) dueAt() time.Time {
	if s.fail.n > 0 {
		return later(s.next, s.fail.until)
	}
	return s.next
}

func (s *shard) due(now time.Time) bool { return !s.dueAt().After(now) }

// schedule decides when s is polled again.
func (r *Reader) schedule(s *shard, p page) {
	limit := maxPage
	if r.o.PageLimit > 0 {
		limit = min(limit, r.o.PageLimit)
	}
	s.full = p.count >= limit || p.batch.Bytes >= fullBytes
	now := r.o.Now()
	switch {
	case s.full:
		s.wait, s.next = 0, now
		return
	case p.count > 0 || !s.tip.walked:
		// An iterator that has not shown the tip may have empty pages to cross before the next record.
		s.wait = r.o.Floor
	default:
		s.wait = min(max(2*s.wait, r.o.Floor), r.o.Ceiling)
	}
	s.next = now.Add(pipeline.Jitter(s.wait))
}

// affordable returns the shards that the budget allows to read, those first that are due longest.
func (r *Reader) affordable(due []*shard) []*shard {
	slices.SortStableFunc(due, func(a, b *shard) int { return a.dueAt().Compare(b.dueAt()) })
	n := r.bucket.take(r.o.Now(), len(due))
	for i, s := range due {
		s.starved = i >= n
	}
	return due[:n]
}

// A bucket holds the calls that may be made at once, and fills with time.
type bucket struct {
	rate   float64 // a second
	tokens float64
	at     time.Time
}

func newBucket(rate float64) bucket { return bucket{rate: rate, tokens: max(1, rate)} }

func (b *bucket) fill(now time.Time) {
	if !b.at.IsZero() && now.After(b.at) {
		b.tokens = min(max(1, b.rate), b.tokens+b.rate*now.Sub(b.at).Seconds())
	}
	b.at = now
}

// take takes up to n tokens.
func (b *bucket) take(now time.Time, n int) int {
	b.fill(now)
	n = max(0, min(n, int(b.tokens)))
	b.tokens -= float64(n)
	return n
}

// wait returns how long it takes until there is a token.
func (b *bucket) wait(now time.Time) time.Duration {
	b.fill(now)
	if b.tokens >= 1 {
		return 0
	}
	return time.Duration(cmp.Or((1-b.tokens)/b.rate, 0)*float64(time.Second)) + 1
}
