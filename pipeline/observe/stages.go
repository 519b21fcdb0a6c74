package observe

import (
	"context"
	"errors"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/schemas"
)

// flow is what is known of records between their reading and their window's commit.
type flow struct {
	emitting pipeline.ShardID // whose batch is being gathered; "" if none is
	since    time.Time        // of emitting

	// Last record of each shard that was read and is not committed, and since when any waits.
	waiting      map[pipeline.ShardID]mark
	waitingSince time.Time

	decoded decoded            // of the last window that was decoded
	unsure  *pipeline.Manifest // its commit failed and may have happened
	recent  shares             // outcomes of the last hour
}

// A mark is how far a shard has been read.
type mark struct {
	seq pipeline.SequenceNumber
	end bool
}

// decoded is what a manifest does not say of a window's records.
type decoded struct {
	reasons map[string]int
	expired int
}

func newFlow() flow { return flow{waiting: map[pipeline.ShardID]mark{}} }

// forget drops what was read and not committed: it is read again.
func (f *flow) forget() {
	clear(f.waiting)
	f.waitingSince, f.emitting = time.Time{}, ""
}

// Emit watches batches on their way to next.
func (o *Observer) Emit(next func(pipeline.Batch) error) func(pipeline.Batch) error {
	return func(b pipeline.Batch) error {
		o.m.records.Add(float64(len(b.Records)))
		o.m.bytes.Add(float64(b.Bytes))
		o.begin(b)
		err := next(b)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.flow.emitting = ""
		return err
	}
}

func (o *Observer) begin(b pipeline.Batch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f, now := &o.flow, o.o.Now()
	f.emitting, f.since = b.Shard, now
	if len(f.waiting) == 0 {
		f.waitingSince = now
	}
	m := mark{f.waiting[b.Shard].seq, b.End}
	if n := len(b.Records); n > 0 {
		m.seq = b.Records[n-1].Seq
	}
	f.waiting[b.Shard] = m
}

// Decoder decorates a decoder: it counts what became of the records of the windows that are
// committed later.
func (o *Observer) Decoder(next pipeline.Decoder) pipeline.Decoder { return decoder{next, o} }

type decoder struct {
	next pipeline.Decoder
	o    *Observer
}

func (d decoder) Decode(c *schemas.Contract, batches []pipeline.Batch) (*pipeline.Rows, error) {
	rows, err := d.next.Decode(c, batches)
	if err != nil {
		d.o.failed("decode")
		return rows, err
	}
	// What is in no count is a removal by time to live that the contract leaves out of the lake.
	seen := decoded{reasons: rows.Reasons}
	for _, b := range batches {
		seen.expired += len(b.Records)
	}
	for _, n := range rows.Counts {
		seen.expired -= total(n)
	}
	d.o.mu.Lock()
	defer d.o.mu.Unlock()
	d.o.flow.decoded = seen
	return rows, nil
}

// Sink decorates a sink.
func (o *Observer) Sink(next pipeline.Sink) pipeline.Sink { return sink{next, o} }

type sink struct {
	next pipeline.Sink
	o    *Observer
}

func (s sink) Land(ctx context.Context, parts []pipeline.Part) error {
	begun := s.o.o.Now()
	err := s.next.Land(ctx, parts)
	s.o.m.landed.Observe(s.o.o.Now().Sub(begun).Seconds())
	s.o.landedAll()
	if err != nil {
		s.o.failed("land")
		return err
	}
	bytes := 0
	for _, p := range parts {
		bytes += len(p.Body)
	}
	s.o.m.parts.Add(float64(len(parts)))
	s.o.m.partBytes.Add(float64(bytes))
	return nil
}

// Checkpoints decorates a lane's memory: what is committed is counted, once, also if the answer
// of the commit was lost.
func (o *Observer) Checkpoints(next pipeline.Checkpoints) pipeline.Checkpoints {
	return checkpoints{next, o}
}

type checkpoints struct {
	pipeline.Checkpoints
	o *Observer
}

func (c checkpoints) Acquire(ctx context.Context, lane pipeline.LaneID, again bool) (pipeline.State, error) {
	st, err := c.Checkpoints.Acquire(ctx, lane, again)
	if err != nil {
		c.o.failed("acquire")
		return st, err
	}
	c.o.acquired(st)
	return st, nil
}

func (c checkpoints) Begin(ctx context.Context, h pipeline.Hold, m *pipeline.Manifest) error {
	err := c.Checkpoints.Begin(ctx, h, m)
	if err != nil {
		c.o.failed("begin")
	}
	return err
}

func (c checkpoints) Commit(ctx context.Context, h pipeline.Hold, m *pipeline.Manifest) error {
	err := c.Checkpoints.Commit(ctx, h, m)
	if err != nil {
		c.o.failed("commit")
		c.o.doubt(m)
		return err
	}
	c.o.committed(m)
	return nil
}

// failed counts a failure of a stage.
func (o *Observer) failed(stage string) { o.m.failures.WithLabelValues(stage).Inc() }

// acquired settles whether a window whose commit failed was committed.
func (o *Observer) acquired(st pipeline.State) {
	o.mu.Lock()
	m := o.flow.unsure
	o.flow.unsure = nil
	o.flow.forget()
	o.mu.Unlock()
	if m != nil && m.Window.Lane == st.Lane && m.Window.Incarnation == st.Incarnation && m.Window.N < st.Next {
		o.committed(m)
	}
}

func (o *Observer) doubt(m *pipeline.Manifest) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flow.unsure = m
}

func (o *Observer) committed(m *pipeline.Manifest) {
	n := m.Counts()
	o.mu.Lock()
	defer o.mu.Unlock()
	seen := o.flow.decoded
	o.flow.decoded = decoded{}
	o.m.windows.Inc()
	for outcome, records := range map[string]int{
		"row": n.Rows, "change": n.Changes, "tombstone": n.Tombstones, "quarantined": n.Quarantined, "ignored": n.Ignored, "ttl": max(0, seen.expired),
	} {
		o.m.outcome.WithLabelValues(outcome).Add(float64(records))
	}
	o.countReasons(seen.reasons, n.Quarantined)
	o.flow.recent.add(o.o.Now(), total(n), n.Quarantined)
	o.move(StepCommit)
	o.settleWaiting(m)
}

func total(n pipeline.Counts) int {
	return n.Rows + n.Changes + n.Tombstones + n.Quarantined + n.Ignored
}

// countReasons keeps to the reasons that were announced, so that no label grows with the data.
func (o *Observer) countReasons(reasons map[string]int, quarantined int) {
	for _, r := range o.o.Reasons {
		if r != otherReason {
			o.m.quarantined.WithLabelValues(r).Add(float64(reasons[r]))
			quarantined -= reasons[r]
		}
	}
	o.m.quarantined.WithLabelValues(otherReason).Add(float64(max(0, quarantined)))
}

func (o *Observer) settleWaiting(m *pipeline.Manifest) {
	f := &o.flow
	for _, s := range m.Shards {
		w, ok := f.waiting[s.Shard]
		if ok && w.seq.Compare(s.Position().Seq) <= 0 && (!w.end || s.End) {
			delete(f.waiting, s.Shard)
		}
	}
	f.waitingSince = o.o.Now() // of those that are left: they came after the last window was cut
}

// shares are the outcomes of the records of the last hour, by minute.
type shares struct {
	minutes [60]struct {
		minute               int64 // since 1970
		records, quarantined int
	}
}

func (s *shares) add(now time.Time, records, quarantined int) {
	minute := now.Unix() / 60
	m := &s.minutes[minute%60]
	if m.minute != minute {
		m.minute, m.records, m.quarantined = minute, 0, 0
	}
	m.records += records
	m.quarantined += quarantined
}

func (s *shares) sum(now time.Time) (records, quarantined int) {
	minute := now.Unix() / 60
	for _, m := range s.minutes {
		if minute-m.minute < 60 {
			records += m.records
			quarantined += m.quarantined
		}
	}
	return records, quarantined
}

// sweeping is what is known of sweeps.
type sweeping struct {
	last Sweep // the last that ended, also if with a failure
}

// A Sweep is what one sweep of staging did.
type Sweep struct {
	Took       time.Duration
	Objects    int // staging objects read
	Removed    int // of these, removed
	Published  int // parts
	Duplicates int
	Void       int
	Created    int            // lake objects
	Rows       int            // in them
	Damaged    int            // pieces put aside
	Waiting    int            // parts that stay because another copy of theirs is being published
	Kept       map[string]int // parts that stay for a person or a newer version, by reason
}

// Swept notes a sweep; err is why it is not complete. What was done before is in s all the same.
func (o *Observer) Swept(s Sweep, err error) {
	o.m.sweeps.Inc()
	o.m.swept.Observe(s.Took.Seconds())
	o.m.stagingRead.Add(float64(s.Objects))
	o.m.stagingRm.Add(float64(s.Removed))
	o.m.sealed.WithLabelValues("published").Add(float64(s.Published))
	o.m.sealed.WithLabelValues("duplicate").Add(float64(s.Duplicates))
	o.m.sealed.WithLabelValues("void").Add(float64(s.Void))
	o.m.lakeObjects.Add(float64(s.Created))
	o.m.lakeRows.Add(float64(s.Rows))
	o.m.damaged.Add(float64(s.Damaged))
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sealing.last = s
	if err == nil {
		o.move(StepSeal)
	} else if !errors.Is(err, context.Canceled) {
		o.failed("seal")
	}
}

// An Audit is what was done about windows that did not come into the lake in time.
type Audit struct {
	Again   int // windows landed again
	GivenUp int // parts given up
}

// Audited notes an audit.
func (o *Observer) Audited(a Audit) {
	o.m.again.Add(float64(a.Again))
	o.m.givenUp.Add(float64(a.GivenUp))
}
