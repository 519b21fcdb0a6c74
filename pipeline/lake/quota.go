package lake

import (
	"context"
	"sync"
)

// maxWaiting bounds the bytes of parts that wait to be sent, of all windows that are being landed in
// one process together. One window's are at hand as they are, so that it may be more alone.
const maxWaiting = 64 << 20

// A Put is one request that sent parts to a delivery stream.
type Put struct {
	Records int
	Bytes   int
	Refused int // records that were throttled or failed; they are sent again
	Waiting int // bytes of all parts that are being landed
}

func (f *Firehose) told(p Put) {
	if f.OnPut != nil {
		p.Waiting = f.waiting.size()
		f.OnPut(p)
	}
}

// A Quota is what a delivery stream with Direct PUT takes in a second before it throttles. AWS raises
// it by itself while a stream is throttled, so that a use above it is no error.
type Quota struct{ Requests, Records, Bytes float64 }

// Quota is that of the client's region, from the page "Amazon Data Firehose quota" of the service's
// guide: three regions have more than all others.
func (f *Firehose) Quota() Quota {
	switch f.client.Options().Region {
	case "us-east-1", "us-west-2", "eu-west-1":
		return Quota{Requests: 2000, Records: 500_000, Bytes: 5 << 20}
	}
	return Quota{Requests: 1000, Records: 100_000, Bytes: 1 << 20}
}

// A backlog counts the bytes that wait, and has who would add too many wait for the others.
type backlog struct {
	limit int

	mu      sync.Mutex
	bytes   int
	changed chan struct{} // closed when bytes become fewer; nil while nobody waits
}

func (b *backlog) size() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes
}

// enter adds n bytes once there is room, or nothing else waits.
func (b *backlog) enter(ctx context.Context, n int) error {
	for {
		b.mu.Lock()
		if b.bytes == 0 || b.bytes+n <= b.limit {
			b.bytes += n
			b.mu.Unlock()
			return nil
		}
		if b.changed == nil {
			b.changed = make(chan struct{})
		}
		changed := b.changed
		b.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (b *backlog) leave(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes -= n
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}
