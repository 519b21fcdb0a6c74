package hot

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"time"

	"telemetrylake/schemas"
)

// EventKind says what a simulated event does to the hot table.
type EventKind string

// Kinds of events.
const (
	KindReading   EventKind = "reading"   // a reading that arrives at once, or out of order by some intervals
	KindLate      EventKind = "late"      // a reading that arrives hours after it was taken
	KindOverwrite EventKind = "overwrite" // a reading written again with other values
	KindProlong   EventKind = "prolong"   // a reading whose time to expire is moved
	KindEarly     EventKind = "early"     // a reading taken before the lake's first partition
	KindMalformed EventKind = "malformed" // an item whose battery is a text
)

// An Event is one write to the hot table.
type Event struct {
	At      time.Time // when it arrives
	Kind    EventKind
	Device  string
	Site    string    // "" for a device in storage
	Taken   time.Time // whole milliseconds
	Item    Item      // as written; for KindProlong the key and the new time to expire
	Expires time.Time

	battery int64 // hundredths of a percent; -1 for none
}

// FleetOptions of a Fleet. Shares are of all readings, from 0 to 1.
type FleetOptions struct {
	Seed       uint64
	Devices    int           // 0: 24
	Sites      int           // 0: 4
	Start      time.Time     // of the first readings; required
	Duration   time.Duration // 0: 24 h. Late readings still arrive after it
	Interval   time.Duration // of one device's readings; 0: 5 min
	Late       float64       // arrive 6 to 40 hours late
	OutOfOrder float64       // arrive up to four intervals late
	Overwrite  float64
	Prolong    float64
	Odd        bool // one reading before the first partition and one malformed item
}

// A Fleet simulates devices that write device telemetry. The same options give the same
// events, whatever the machine.
type Fleet struct {
	o         FleetOptions
	first     time.Time
	retention time.Duration
}

// Key attributes of the device_telemetry contract, the only one that a fleet writes.
const (
	deviceAttribute = "device_id"
	eventAttribute  = "event_ts"
)

// NewFleet returns a fleet that writes items of the device_telemetry contract.
func NewFleet(c *schemas.Contract, o FleetOptions) (*Fleet, error) {
	if !slices.Equal(c.Keys.Attributes(), []string{deviceAttribute, eventAttribute}) {
		return nil, fmt.Errorf("simulate fleet for contract %s: its key is not (%s, %s)", c.Name, deviceAttribute, eventAttribute)
	}
	if o.Start.IsZero() {
		return nil, fmt.Errorf("simulate fleet for contract %s: no start", c.Name)
	}
	for _, share := range []float64{o.Late, o.OutOfOrder, o.Overwrite, o.Prolong} {
		if !(share >= 0 && share <= 1) {
			return nil, fmt.Errorf("simulate fleet for contract %s: the share %v is not within 0 and 1", c.Name, share)
		}
	}
	o.Devices = cmp.Or(max(o.Devices, 0), 24)
	o.Sites = cmp.Or(max(o.Sites, 0), 4)
	o.Duration = cmp.Or(max(o.Duration, 0), 24*time.Hour)
	o.Interval = max(cmp.Or(max(o.Interval, 0), 5*time.Minute), time.Millisecond)
	o.Start = o.Start.UTC().Truncate(time.Millisecond)
	return &Fleet{o: o, first: c.Layout.FirstPartition, retention: c.Retention}, nil
}

// Events yields all events in order of arrival. It starts from the beginning each time.
func (f *Fleet) Events() iter.Seq[Event] {
	return func(yield func(Event) bool) {
		s := newSimulation(f)
		for s.queue.Len() > 0 {
			next := heap.Pop(&s.queue).(scheduled)
			if next.tick != nil {
				s.tick(next.tick, next.event.At)
				continue
			}
			if !yield(next.event) {
				return
			}
		}
	}
}

// scheduled is an event to come, or the next reading of a device.
type scheduled struct {
	event Event
	tick  *device
	order int // of scheduling, for events of the same instant
}

type queue []scheduled

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return cmp.Or(q[i].event.At.Compare(q[j].event.At), cmp.Compare(q[i].order, q[j].order)) < 0
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(scheduled)) }
func (q *queue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}

// A simulation is one run of a fleet.
type simulation struct {
	*Fleet
	queue queue
	n     int
	end   time.Time
}

func newSimulation(f *Fleet) *simulation {
	s := &simulation{Fleet: f, end: f.o.Start.Add(f.o.Duration)}
	for i := range f.o.Devices {
		d := newDevice(f.o, i)
		offset := time.Duration(d.rand.Int64N(int64(f.o.Interval)))
		if i == 0 {
			offset = 0 // the first reading is at Start
		}
		s.push(scheduled{event: Event{At: f.o.Start.Add(offset.Truncate(time.Millisecond))}, tick: d})
	}
	if f.o.Odd {
		s.pushOdd()
	}
	return s
}

func (s *simulation) push(x scheduled) {
	x.order = s.n
	s.n++
	heap.Push(&s.queue, x)
}

// pushOdd schedules the two events that belong into quarantine, by devices of their own.
func (s *simulation) pushOdd() {
	at := s.o.Start.Add(s.o.Duration / 2)
	early := newDevice(s.o, s.o.Devices)
	e := early.reading(s.first.Add(-36 * time.Hour))
	// Its clock is wrong, not its life: counted from when it was taken, TTL would be more
	// than five years past, and DynamoDB leaves such items for ever.
	s.arrive(e, KindEarly, at, at.Add(s.retention))
	bad := newDevice(s.o, s.o.Devices+1)
	e = bad.reading(at)
	e.Item["battery_pct"] = text("low")
	s.arrive(e, KindMalformed, at.Add(time.Second), at.Add(s.retention))
}

// arrive schedules the arrival of a reading and returns it as it arrives.
func (s *simulation) arrive(e Event, kind EventKind, at, expires time.Time) Event {
	e.Kind, e.At, e.Expires = kind, at, expires.Truncate(time.Second)
	e.Item["expires_at"] = number(e.Expires.Unix())
	s.push(scheduled{event: e})
	return e
}

// tick takes a reading of one device and schedules what becomes of it.
func (s *simulation) tick(d *device, now time.Time) {
	e := d.reading(now)
	kind, delay := KindReading, span(d.rand, 200*time.Millisecond, 2*time.Second)
	switch p := d.rand.Float64(); {
	case p < s.o.Late:
		kind, delay = KindLate, span(d.rand, 6*time.Hour, 40*time.Hour)
	case p < s.o.Late+s.o.OutOfOrder:
		delay = span(d.rand, s.o.Interval, 4*s.o.Interval)
	}
	e = s.arrive(e, kind, now.Add(delay), now.Add(s.retention))
	if d.rand.Float64() < s.o.Overwrite {
		s.push(scheduled{event: d.overwritten(e)})
	}
	if d.rand.Float64() < s.o.Prolong {
		p := e
		p.Kind, p.At = KindProlong, e.At.Add(span(d.rand, 2*time.Hour, 4*time.Hour))
		// Long after any overwriting, which would set the old time again.
		p.Expires = e.Expires.Add(7 * 24 * time.Hour)
		p.Item = Item{
			deviceAttribute: e.Item[deviceAttribute], eventAttribute: e.Item[eventAttribute],
			"expires_at": number(p.Expires.Unix()),
		}
		s.push(scheduled{event: p})
	}
	if next := now.Add(s.o.Interval); next.Before(s.end) {
		s.push(scheduled{event: Event{At: next}, tick: d})
	}
}

// span draws whole milliseconds from [from, to).
func span(r *rand.Rand, from, to time.Duration) time.Duration {
	return (from + time.Duration(r.Int64N(int64(to-from)))).Truncate(time.Millisecond)
}

// Apply writes an event. A reading whose key is taken is refused, as by Put.
func (w *Writer) Apply(ctx context.Context, e Event) (Result, error) {
	var err error
	switch e.Kind {
	case KindOverwrite:
		err = w.Overwrite(ctx, e.Item)
	case KindProlong:
		err = w.Prolong(ctx, e.Item, e.Expires)
	default:
		return w.Put(ctx, []Item{e.Item})
	}
	if err != nil {
		return Result{}, err
	}
	return Result{Written: 1}, nil
}

// A Truth is what the lake must hold of a fleet's events, under on_modify: changes.
type Truth struct {
	Readings    int // rows of the readings table
	Changes     int // rows of the changes table
	Quarantined int
	Late        int // readings that arrived hours late, counted in Readings
	Sites       map[string]SiteTruth
	DeviceDays  map[DeviceDay]int // readings by device and UTC day of the reading
}

// A SiteTruth is the truth of one site's readings.
type SiteTruth struct {
	Readings int
	Charged  int   // readings with a battery value
	Battery  int64 // their sum, in hundredths of a percent
}

// A DeviceDay is a device and a UTC day, 2026-11-30.
type DeviceDay struct{ Device, Day string }

// Add takes one event into account.
func (t *Truth) Add(e Event) {
	switch e.Kind {
	case KindOverwrite, KindProlong:
		t.Changes++
		return
	case KindEarly, KindMalformed:
		t.Quarantined++
		return
	case KindLate:
		t.Late++
	}
	if t.Sites == nil {
		t.Sites, t.DeviceDays = map[string]SiteTruth{}, map[DeviceDay]int{}
	}
	t.Readings++
	t.DeviceDays[DeviceDay{e.Device, e.Taken.Format(time.DateOnly)}]++
	s := t.Sites[e.Site]
	s.Readings++
	if e.battery >= 0 {
		s.Charged++
		s.Battery += e.battery
	}
	t.Sites[e.Site] = s
}

// Truth runs the fleet once and sums up.
func (f *Fleet) Truth() Truth {
	var t Truth
	for e := range f.Events() {
		t.Add(e)
	}
	return t
}
