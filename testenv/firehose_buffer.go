package testenv

import (
	"bytes"
	"time"
)

// buffer is what becomes one object.
type buffer struct {
	data    bytes.Buffer
	records []arrival // of which data is made, in its order
	oldest  time.Time // arrival of its first record
	key     string    // chosen at the first attempt to deliver, kept for the next ones
	held    time.Time // no delivery before

	size     int // bytes and time after which it closes
	interval time.Duration

	number    uint64 // among the stream's
	delivered bool   // and only not forgotten yet
}

// arrival is one record in a buffer.
type arrival struct {
	size int // bytes
	at   time.Time
}

// due is when the buffer closes.
func (b *buffer) due() time.Time { return b.oldest.Add(b.interval) }

// accept takes one record into the stream's buffers.
func (f *firehose) accept(ds *deliveryStream, data []byte) {
	now := f.clock.Now()
	ds.stats.Records++
	f.append(ds, data, now)
	if f.b.Copies != nil {
		for range f.b.Copies() {
			if ds.copies++; ds.copies%2 == 0 {
				ds.later = append(ds.later, data)
			} else if ds.open != nil {
				f.append(ds, data, now)
			} else { // the record closed its buffer
				last := ds.closed[len(ds.closed)-1]
				ds.add(last, data, now)
			}
		}
	}
	f.schedule()
}

func (f *firehose) append(ds *deliveryStream, data []byte, now time.Time) {
	if ds.open == nil {
		f.openLater(ds, now)
	}
	b := ds.open
	ds.add(b, data, now)
	if b.data.Len() >= b.size || f.b.Close != nil && f.b.Close(len(b.records), b.data.Len()) {
		f.close(ds)
	}
}

// openLater opens a buffer with the copies that waited for a later object.
func (f *firehose) openLater(ds *deliveryStream, now time.Time) {
	b := ds.buffer(now)
	if f.b.Hints != nil {
		b.size, b.interval = f.b.Hints(ds.size, ds.interval)
	}
	ds.open = b
	ds.note(b, false)
	for _, copied := range ds.later {
		ds.add(b, copied, now)
	}
	ds.later = nil
}

// buffer returns a new one.
func (ds *deliveryStream) buffer(oldest time.Time) *buffer {
	b := &buffer{oldest: oldest, number: ds.nextBuffer, size: ds.size, interval: ds.interval}
	ds.nextBuffer++
	return b
}

// close ends the open buffer: it becomes an object, or several when Group says so.
func (f *firehose) close(ds *deliveryStream) {
	b := ds.open
	ds.open = nil
	for _, b := range f.regroup(ds, b) {
		if f.b.Hold != nil {
			b.held = f.clock.Now().Add(f.b.Hold())
		}
		ds.note(b, true)
		ds.closed = append(ds.closed, b)
	}
}

// regroup returns the buffers that Group and Order make of one. It is not changed itself: what
// takes a put back needs it.
func (f *firehose) regroup(ds *deliveryStream, b *buffer) []*buffer {
	if f.b.Group == nil && f.b.Order == nil {
		return []*buffer{b}
	}
	object := make([]int, len(b.records))
	if f.b.Group != nil {
		copy(object, f.b.Group(len(b.records)))
	}
	type payload struct {
		arrival
		data []byte
	}
	var order []int // of the objects' numbers, by their first records
	grouped := map[int][]payload{}
	data := b.data.Bytes()
	for i, r := range b.records {
		if grouped[object[i]] == nil {
			order = append(order, object[i])
		}
		grouped[object[i]] = append(grouped[object[i]], payload{r, data[:r.size]})
		data = data[r.size:]
	}
	ds.drop(b)
	made := make([]*buffer, 0, len(order))
	for _, n := range order {
		group := grouped[n]
		// Records are in the order of their coming until they are shuffled.
		part := ds.buffer(group[0].at)
		if f.b.Order != nil {
			f.b.Order(len(group), func(i, j int) { group[i], group[j] = group[j], group[i] })
		}
		for _, p := range group {
			ds.add(part, p.data, p.at)
		}
		made = append(made, part)
	}
	return made
}
