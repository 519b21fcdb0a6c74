package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"

	"telemetrylake/pipeline"
)

// LaneShards is what a Function asks of the checkpoint, where each shard has a lane of its own.
type LaneShards interface {
	// Own makes the shard that of its own lane, creating its checkpoint if it is new, and returns
	// the committed position. It fails for a stream or a shard that somebody else reads.
	Own(ctx context.Context, s pipeline.Shard) (pipeline.Position, error)
	// Position returns the committed position, and false if the shard has no checkpoint. It
	// fails as Own does.
	Position(ctx context.Context, id pipeline.ShardID) (pipeline.Position, bool, error)
	// MarkTip notes that all that was created in the shard before a time is committed, up to the
	// last record that was read by then; "" for none.
	MarkTip(ctx context.Context, id pipeline.ShardID, read pipeline.SequenceNumber, at time.Time) error
	// Discard opens a gap for what of the records lies behind the shard's committed position,
	// whoever owns the shard, and reports whether there was anything.
	Discard(ctx context.Context, d *Discarded) (bool, error)
}

// FunctionOptions of a Function. StreamARN, Shards and Lane are required.
type FunctionOptions struct {
	StreamARN string
	Shards    LaneShards
	// All returns the committed position of every shard of the stream that has a lane of its own, with
	// one query. nil: a sweep looks only at shards that a listing names.
	All func(context.Context) (map[pipeline.ShardID]pipeline.Position, error)
	// Lane makes the lane of a shard, which is not open yet.
	Lane   func(pipeline.ShardID) (*pipeline.Lane, error)
	Limits pipeline.Limits  // of one window
	Key    string           // the table's partition key: records of one key come from one shard
	Logger *slog.Logger     // nil: no logs
	Now    func() time.Time // nil: time.Now; where the server does not tell its time
	// Wait waits for a time, or until ctx is done, whose error it returns. nil: pipeline.Wait.
	Wait func(context.Context, time.Duration) error

	PageLimit int           // records of one page; 0: what the service gives, at most 1,000
	Reserve   time.Duration // no window is begun in an invocation's last moments; 0: 5 s
	Overdue   time.Duration // age from which a sweep takes records that the mapping has not delivered; 0: 6 h
	RetryBase time.Duration // 0: 100 ms
	RetryCap  time.Duration // 0: 5 s
}

// A Function is the side of a Lambda function: it makes windows of what an event source mapping
// delivers. A mapping does not say which shard an event is of, may have dropped removals by
// TTL, and may have given records up. So an event is a hint: the Function finds the shard by
// the event's records, reads the shard from its committed position up to the last of them, and
// takes the stream's word. What the stream no longer holds it takes from the event.
//
// An environment runs one invocation at a time, and so does a Function. Environments may meet
// on a shard: each takes the lane's token, and the earlier one can begin nothing more.
type Function struct {
	client *dynamodbstreams.Client
	o      FunctionOptions
	log    *slog.Logger

	shards  map[pipeline.ShardID]listed
	parents map[pipeline.ShardID]bool // shards of which the listing names a child
	at      time.Time                 // of the listing; zero: none yet
	byKey   map[string]pipeline.ShardID
	used    []pipeline.ShardID             // newest last
	walks   map[pipeline.ShardID]*cursor   // that the last invocations did not bring to an end
	looked  map[pipeline.ShardID]time.Time // when a sweep was last done with a shard
	skew    time.Duration                  // the server's clock less ours, as of its last answer
	calls   Calls
}

// Calls counts what a Function asked of DynamoDB Streams. GetRecords are what costs.
type Calls struct{ Describes, Iterators, GetRecords int }

// NewFunction returns a Function that knows no shards yet.
func NewFunction(client *dynamodbstreams.Client, o FunctionOptions) *Function {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Wait == nil {
		o.Wait = pipeline.Wait
	}
	o.Reserve = orDefault(o.Reserve, 5*time.Second)
	o.Overdue = orDefault(o.Overdue, 6*time.Hour)
	o.RetryBase = orDefault(o.RetryBase, 100*time.Millisecond)
	o.RetryCap = orDefault(o.RetryCap, 5*time.Second)
	return &Function{
		client: client, o: o, log: o.Logger.With("stream", o.StreamARN),
		byKey: map[string]pipeline.ShardID{}, walks: map[pipeline.ShardID]*cursor{}, looked: map[pipeline.ShardID]time.Time{},
	}
}

// Calls returns the number of calls so far.
func (f *Function) Calls() Calls { return f.calls }

// A Delivered is what became of an event.
type Delivered struct {
	Shard   pipeline.ShardID
	Records int // taken into windows, with those that were fetched
	Fetched int // of them, what the event did not hold
	// Next is the event's first record that is not committed; "" if all are.
	Next pipeline.SequenceNumber
}

// Deliver makes windows of everything up to the event's last record. Next tells how far it
// came, also after an error and if the time ran out, which is no error.
func (f *Function) Deliver(ctx context.Context, ev *Event) (Delivered, error) {
	var d Delivered
	if len(ev.Records) == 0 {
		return d, nil
	}
	d.Next = ev.first()
	if ev.Stream != f.o.StreamARN {
		return d, pipeline.NeedPerson(fmt.Errorf("the event is of stream %s, this function reads %s", ev.Stream, f.o.StreamARN),
			"point the event source mapping at this stream, or the function at that one's table")
	}
	at, err := f.locate(ctx, ev)
	if err != nil {
		return d, err
	}
	d.Shard = at.shard.ID
	f.remember(ev, at.shard.ID)
	if d.Next = ev.Next(at.pos); d.Next == "" {
		return d, nil // delivered again
	}
	if !at.known || at.pos.Seq == "" {
		// A mapping delivers a child after its parent, and never tells that a shard has ended.
		if err := f.finishParents(ctx, &at.shard); err != nil {
			return d, err
		}
		pos, err := f.o.Shards.Own(ctx, at.shard)
		if err != nil {
			return d, err
		}
		if at.pos != pos {
			at.pos, at.page, at.cursor = pos, nil, f.cursor(at.shard.ID, pos)
		}
	}
	w, err := f.open(ctx, at.shard, at.pos)
	if err != nil {
		return d, err
	}
	err = f.take(ctx, w, at, ev, &d)
	d.Next = ev.Next(w.pos)
	if err != nil {
		return d, fmt.Errorf("shard %s: %w", d.Shard, err)
	}
	return d, nil
}

// take reads from the shard's position to the event's last record.
func (f *Function) take(ctx context.Context, w *writing, at *located, ev *Event, d *Delivered) error {
	m := merging{ev: ev, from: at.pos.Seq, i: ev.behind(at.pos)}
	p, have := at.page, at.page != nil
	for {
		if !have {
			next, err := at.cursor.next(ctx)
			if err != nil {
				return err
			}
			p = &next
		}
		have = false
		fetched, err := m.page(p)
		switch {
		case err != nil:
			return err
		case p.batch.End && !m.done():
			return fmt.Errorf("%w: it ended before %s", errNotOfShard, ev.Records[m.i].Seq)
		case p.batch.Missing != nil && w.pos.Seq.Compare(at.pos.Seq) != 0:
			return fmt.Errorf("the position moved from %q to %q while it was looked at", at.pos.Seq, w.pos.Seq)
		}
		if len(p.batch.Records) > 0 || p.batch.End || p.batch.Missing != nil {
			if err := w.g.Add(ctx, p.batch); err != nil {
				return err
			}
		}
		d.Records += len(p.batch.Records)
		d.Fetched += fetched
		if m.done() {
			return w.g.Flush(ctx)
		}
		c := at.cursor
		if late := f.late(ctx); late && w.windows > 0 {
			return w.g.Flush(ctx)
		} else if late && c.empty > 0 || c.empty >= maxEmpty {
			c.keep()
			return fmt.Errorf("%d pages in a row were empty before record %s of the event", c.empty, ev.Records[m.i].Seq)
		}
		// What is missing in front of the event's records can be written down at the tip only.
		if err := f.rest(ctx, c.pause(!c.lost && !c.orphan)); err != nil {
			return err
		}
	}
}

// late reports whether the invocation's time is nearly up.
func (f *Function) late(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	return ok && time.Until(end) < f.o.Reserve
}

// rest waits, unless there is nothing to wait for.
func (f *Function) rest(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	return f.o.Wait(ctx, d)
}

// A merging brings together what the stream holds and what the event holds.
type merging struct {
	ev   *Event
	from pipeline.SequenceNumber
	i    int // the event's first record that was not met yet
	read bool
}

func (m *merging) done() bool { return m.i == len(m.ev.Records) }

// page cuts a page behind the event's last record, puts in front what only the event holds, and
// counts what only the stream does. Records inside of the event's span that it does not hold
// mean a mapping that splits or filters what it reads.
func (m *merging) page(p *cursorPage) (fetched int, err error) {
	oldest := !m.read && (p.batch.Missing != nil || m.from == "")
	out := make([]pipeline.Record, 0, len(p.batch.Records))
	for k, r := range p.batch.Records {
		for !m.done() && m.ev.Records[m.i].Seq.Compare(r.Seq) < 0 {
			e := m.ev.Records[m.i]
			if !oldest {
				return 0, fmt.Errorf("%w: record %s", errNotOfShard, e.Seq)
			}
			e.Shard = p.batch.Shard
			if len(out) == 0 && p.batch.Missing != nil {
				p.batch.Missing.To = e.Created
			}
			out = append(out, e)
			m.i++
		}
		oldest, m.read = false, true
		if m.done() {
			p.batch.End = false // more follows
			break
		}
		if m.ev.Records[m.i].Seq.Compare(r.Seq) == 0 {
			if m.ev.ids[m.i] != p.ids[k] {
				return 0, fmt.Errorf("%w: record %s", errNotOfShard, r.Seq)
			}
			m.i++
		} else if !r.Expired {
			if m.i > 0 {
				return 0, pipeline.NeedPerson(fmt.Errorf("the event holds records before and after %s, and not this one", r.Seq),
					"set the mapping's ParallelizationFactor to 1, and let its filter drop nothing but removals by TTL")
			}
			fetched++
		}
		out = append(out, r)
	}
	p.batch.Records = out
	return fetched, nil
}

// errNotOfShard means that an event is of another shard than it was taken for.
var errNotOfShard = errors.New("the shard does not have the event's record")

// A writing is the lane of one shard, open for one invocation.
type writing struct {
	g       *pipeline.Gatherer
	pos     pipeline.Position // committed
	windows int
}

// open takes the shard's lane over and finishes its pending window. read is the position that
// reading begins at.
func (f *Function) open(ctx context.Context, s pipeline.Shard, read pipeline.Position) (*writing, error) {
	if _, err := f.o.Shards.Own(ctx, s); err != nil {
		return nil, err
	}
	lane, err := f.o.Lane(s.ID)
	if err != nil {
		return nil, err
	}
	if err := lane.Open(ctx); err != nil {
		return nil, err
	}
	pos, ok, err := f.o.Shards.Position(ctx, s.ID)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("open lane of shard %s: the shard's item vanished", s.ID)
	}
	if pos.Seq.Compare(read.Seq) < 0 {
		return nil, fmt.Errorf("open lane of shard %s: its position %q lies before %q, where it was a moment ago", s.ID, pos.Seq, read.Seq)
	}
	w := &writing{pos: pos, g: pipeline.NewGatherer(lane, f.o.Limits, f.o.Now)}
	w.g.OnWindow = func(m *pipeline.Manifest) {
		w.windows++
		for _, r := range m.Shards {
			if r.Shard == s.ID {
				at := r.Position()
				w.pos.Seq, w.pos.End = at.Seq, at.End
			}
		}
	}
	return w, nil
}
