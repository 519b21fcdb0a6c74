package testenv

import (
	"errors"
	"maps"
	"math"
	"slices"
	"time"
)

// FlushFirehose delivers everything that waits, whatever the buffering hints say.
// What S3 refuses keeps waiting.
func (e *Env) FlushFirehose() { e.firehose.flush() }

// schedule sets due from what is buffered. The caller holds mu.
func (f *firehose) schedule() {
	due := int64(never)
	for _, ds := range f.streams {
		if len(ds.later) > 0 && ds.open == nil {
			due = math.MinInt64
			break
		}
		for _, b := range ds.closed {
			if b.held.IsZero() {
				due = math.MinInt64
				break
			}
			due = min(due, b.held.UnixNano())
		}
		if ds.open != nil {
			due = min(due, ds.open.due().UnixNano())
		}
	}
	f.due.Store(due)
}

// inOrder visits the streams by name: a map's order would reach the ids drawn.
func (f *firehose) inOrder() []*deliveryStream {
	all := make([]*deliveryStream, 0, len(f.streams))
	for _, name := range slices.Sorted(maps.Keys(f.streams)) {
		all = append(all, f.streams[name])
	}
	return all
}

// tick delivers every buffer that is due at the clock's time.
func (f *firehose) tick() {
	now := f.clock.Now()
	if now.UnixNano() < f.due.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, ds := range f.inOrder() {
		if ds.open != nil && !now.Before(ds.open.due()) {
			f.close(ds)
		}
		f.deliver(ds, now)
		if ds.open == nil && len(ds.later) > 0 {
			f.openLater(ds, now) // no record came to open the later object
		}
	}
	f.schedule()
}

func (f *firehose) flush() {
	now := f.clock.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, ds := range f.inOrder() {
		if ds.open != nil {
			f.close(ds)
		}
		if len(ds.later) > 0 {
			f.openLater(ds, now)
			f.close(ds)
		}
		ds.retry = time.Time{}
		for _, b := range ds.closed {
			b.held = time.Time{}
		}
		f.deliver(ds, now)
	}
	f.schedule()
}

// deliver writes a stream's closed buffers to S3 and keeps those that S3 refuses.
func (f *firehose) deliver(ds *deliveryStream, now time.Time) {
	if now.Before(ds.retry) {
		return
	}
	var kept []*buffer
	for _, b := range ds.closed {
		if now.Before(b.held) {
			kept = append(kept, b)
			continue
		}
		b.held = time.Time{} // from now on every tick tries
		err := f.deliverOne(ds, b)
		switch {
		case err == nil:
			continue
		case !b.delivered && !errors.Is(err, errRepeat) && now.Sub(b.oldest) >= firehoseRetention:
			lost := ds.stats.Lost
			ds.stats.Lost += len(b.records)
			if f.forget(ds, b) == nil {
				continue
			}
			ds.stats.Lost = lost
		case isFull(err):
			// Writing megabytes in vain at every request helps nobody.
			ds.retry = now.Add(deliveryPause)
		}
		kept = append(kept, b)
	}
	ds.closed = kept
}

// deliveryPause is between two attempts to deliver to a full disk.
const deliveryPause = time.Second

// errRepeat says that an object was written and will be written again.
var errRepeat = errors.New("taken for failed")

func (f *firehose) deliverOne(ds *deliveryStream, b *buffer) error {
	if b.key == "" {
		b.key = ds.objectKey(b.oldest, f.ids)
		before := len(ds.writes)
		ds.note(b, true)
		if err := f.commit(ds); err != nil {
			b.key, ds.writes = "", ds.writes[:before]
			return err
		}
	}
	if !b.delivered {
		ds.puts.attempts++
		if f.b.Deliver != nil {
			if err := f.b.Deliver(ds.bucket, b.key); err != nil {
				return err
			}
		}
		if b.data.Len() > 0 { // records without data make no object
			if err := f.store.putBytes(ds.bucket, b.key, b.data.Bytes()); err != nil {
				return err
			}
		}
		ds.puts.done++
		ds.puts.records += len(b.records)
		ds.delivered(b)
		if f.b.Repeat != nil && f.b.Repeat() {
			b.delivered, b.key = false, ""
			return errRepeat
		}
	}
	return f.forget(ds, b)
}
