package pipeline_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/pipelinetest"
	"telemetrylake/pipeline/stream"
)

// shardLanes are the shards of the stream as functions see them: each has a lane of its own.
type shardLanes struct{ p *process }

func (w *world) lambdaLane(id pipeline.ShardID) pipeline.LaneID {
	return checkpoint.LambdaLane(w.old.Name, id)
}

func (s shardLanes) of(id pipeline.ShardID) *checkpoint.Shards {
	return s.p.store.Shards(s.p.w.table.StreamARN, s.p.w.lambdaLane(id), checkpoint.Lambda)
}

func (s shardLanes) Own(ctx context.Context, shard pipeline.Shard) (pipeline.Position, error) {
	return s.of(shard.ID).Own(ctx, shard)
}

func (s shardLanes) Position(ctx context.Context, id pipeline.ShardID) (pipeline.Position, bool, error) {
	return s.of(id).Position(ctx, id)
}

func (s shardLanes) MarkTip(ctx context.Context, id pipeline.ShardID, read pipeline.SequenceNumber, at time.Time) error {
	return s.of(id).MarkTip(ctx, id, read, at)
}

func (s shardLanes) all(ctx context.Context) (map[pipeline.ShardID]pipeline.Position, error) {
	return s.p.store.LambdaPositions(ctx, s.p.w.table.StreamARN, s.p.w.old.Name)
}

func (s shardLanes) Discard(ctx context.Context, d *stream.Discarded) (bool, error) {
	_, opened, err := s.p.store.OpenGap(ctx, pipeline.Gap{
		Missing: pipeline.Missing{Cause: pipeline.GapDiscarded, From: d.From, To: d.To},
		Stream:  d.Stream, Shard: d.Shard, First: d.First, Last: d.Last,
	})
	return opened, err
}

// A mapping delivers the stream as Lambda's event source mapping does: each shard's records in
// order and one event at a time, a parent's before its children's, an event again until it is
// taken, or from the record on that the function names.
type mapping struct {
	w      *world
	client *dynamodbstreams.Client
	shards []*mappedShard
	envs   []*environment // that are between two invocations
	sweeps []*invocation  // under way, of the schedule and of the on-failure queue
}

type mappedShard struct {
	id, parent string
	last       string
	pending    []types.Record
	ended      bool // all read
	call       *invocation
}

func (s *mappedShard) done() bool { return s.ended && len(s.pending) == 0 && s.call == nil }

// An environment is where a function lives from its cold start to its end.
type environment struct {
	a     *pipelinetest.Actor
	calls chan *invocation
}

// An invocation is one call of the function: an event, a message of the on-failure queue, or a
// sweep.
type invocation struct {
	env     *environment
	event   []byte
	discard *stream.Discarded
	result  chan outcome
	age     int // steps of the world
}

type outcome struct {
	next pipeline.SequenceNumber
	err  error
}

func newMapping(w *world) *mapping { return &mapping{w: w, client: w.streams} }

// environment returns a warm environment, or starts one.
func (m *mapping) environment(ctx context.Context) *environment {
	m.envs = slices.DeleteFunc(m.envs, func(e *environment) bool { return e.a.Ended() })
	if n := len(m.envs); n > 0 {
		i := m.w.rng.IntN(n)
		e := m.envs[i]
		m.envs = slices.Delete(m.envs, i, i+1)
		return e
	}
	m.w.happened("functions started", 1)
	e := &environment{calls: make(chan *invocation, 1)}
	c := m.w.contract()
	e.a = m.w.turns.Start(ctx, "function", func(ctx context.Context, a *pipelinetest.Actor) error {
		p, err := m.w.process(a, c)
		if err != nil {
			return err
		}
		f := stream.NewFunction(p.streams, stream.FunctionOptions{
			StreamARN: m.w.table.StreamARN, Shards: shardLanes{p}, All: shardLanes{p}.all, Key: "pk", Now: p.now, Logger: m.w.logger(a), PageLimit: 1 + a.Rand.IntN(9),
			Limits: pipeline.Limits{Records: 1 + a.Rand.IntN(15)}, RetryBase: 1, RetryCap: 1,
			Lane: func(id pipeline.ShardID) (*pipeline.Lane, error) { return p.newLane(m.w.lambdaLane(id), c) },
		})
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case i := <-e.calls:
				i.result <- m.w.invoke(ctx, f, i)
			}
		}
	})
	return e
}

func (w *world) invoke(ctx context.Context, f *stream.Function, i *invocation) (o outcome) {
	limit := time.Minute
	if i.event == nil && i.discard == nil {
		limit = 5 * time.Minute // a sweep waits for tips
	}
	// Off the second, as leases are: not at the instant at which something else wakes.
	ctx, cancel := context.WithTimeout(ctx, limit+3*time.Millisecond)
	defer cancel()
	switch {
	case i.event != nil:
		ev, err := stream.ParseEvent(i.event)
		if err != nil {
			return outcome{err: err}
		}
		d, err := f.Deliver(ctx, ev)
		w.happened("records that a function fetched", d.Fetched)
		if d.Next != ev.Next(pipeline.Position{}) {
			return outcome{next: d.Next} // all, or from there on again
		}
		if err == nil && d.Next != "" {
			err = context.DeadlineExceeded
		}
		return outcome{next: d.Next, err: err}
	case i.discard != nil:
		opened, err := f.Discard(ctx, i.discard)
		if opened {
			w.happened("gaps that a message opened", 1)
		}
		return outcome{err: err}
	}
	s, err := f.Sweep(ctx)
	w.happened("shards that a sweep finished", s.Finished)
	w.happened("tips that a sweep marked", s.Tips)
	return outcome{err: err}
}

func (m *mapping) call(ctx context.Context, i *invocation) *invocation {
	i.env, i.result = m.environment(ctx), make(chan outcome, 1)
	i.env.calls <- i
	return i
}

// answer returns what became of an invocation; false while that is not known. One that takes too
// long has failed, though it may go on.
func (m *mapping) answer(i *invocation) (outcome, bool) {
	if i.env.a.Ended() { // whatever it says, nobody hears it
		m.w.happened("functions that died", 1)
		return outcome{err: pipelinetest.ErrDied}, true
	}
	select {
	case o := <-i.result:
		if m.w.rng.Float64() < 0.9 {
			m.envs = append(m.envs, i.env)
		} else {
			m.w.turns.Kill(i.env.a)
		}
		if o.err != nil {
			m.w.happened("invocations that failed", 1)
		}
		return o, true
	default:
	}
	most := 20
	if i.event == nil && i.discard == nil {
		most = 200
	}
	if i.age++; i.age > most {
		m.w.happened("functions given up that may go on", 1)
		return outcome{err: context.DeadlineExceeded}, true
	}
	return outcome{}, false
}

// step does one thing for one shard, or for the schedule. It reports whether nothing is left to do.
func (m *mapping) step(ctx context.Context) (idle bool, err error) {
	var errs []error
	var under []*invocation
	for _, i := range m.sweeps {
		o, ok := m.answer(i)
		switch {
		case !ok:
			under = append(under, i)
		case o.err != nil:
			errs = append(errs, m.tolerate(o.err))
			if i.discard != nil { // a queue delivers again
				under = append(under, m.call(ctx, &invocation{discard: i.discard}))
			}
		}
	}
	m.sweeps = under
	if len(m.shards) == 0 || m.w.rng.IntN(8) == 0 {
		if err := m.list(ctx); err != nil {
			return false, err
		}
	}
	idle = len(m.sweeps) == 0
	var ready []*mappedShard
	for _, s := range m.shards {
		if s.call != nil {
			if err := m.settle(s); err != nil {
				return false, err
			}
		}
		if s.call != nil || len(s.pending) > 0 {
			idle = false
		}
		parent := slices.IndexFunc(m.shards, func(p *mappedShard) bool { return p.id == s.parent })
		if s.call == nil && !s.done() && (parent < 0 || m.shards[parent].done()) {
			ready = append(ready, s)
		}
	}
	if len(ready) > 0 {
		had, err := m.deliver(ctx, ready[m.w.rng.IntN(len(ready))])
		if had || err != nil {
			return false, errors.Join(append(errs, err)...)
		}
	}
	return idle, errors.Join(errs...)
}

// tolerate returns err unless it is one that a mapping tries again.
func (m *mapping) tolerate(err error) error {
	person := (*pipeline.PersonError)(nil)
	if errors.As(err, &person) && !moved(err) {
		return fmt.Errorf("function: %w", err)
	}
	return nil
}

func (m *mapping) settle(s *mappedShard) error {
	o, ok := m.answer(s.call)
	if !ok {
		return nil
	}
	s.call = nil
	switch {
	case o.err != nil:
		if *oneSeed >= 0 {
			m.w.log = append(m.w.log, fmt.Sprintf("mapping: %s: %v", s.id, o.err))
		}
		return m.tolerate(o.err)
	case o.next == "":
		s.pending = nil
		return nil
	}
	i := slices.IndexFunc(s.pending, func(r types.Record) bool { return aws.ToString(r.Dynamodb.SequenceNumber) == string(o.next) })
	if i < 0 {
		return fmt.Errorf("the function names record %q, which is not in its event", o.next)
	}
	m.w.happened("events taken in part", 1)
	s.pending = s.pending[i:]
	return nil
}

func (m *mapping) list(ctx context.Context) error {
	in := &dynamodbstreams.DescribeStreamInput{StreamArn: &m.w.table.StreamARN}
	for {
		out, err := m.client.DescribeStream(ctx, in)
		if err != nil {
			return err
		}
		for _, s := range out.StreamDescription.Shards {
			id := aws.ToString(s.ShardId)
			if !slices.ContainsFunc(m.shards, func(k *mappedShard) bool { return k.id == id }) {
				m.shards = append(m.shards, &mappedShard{id: id, parent: aws.ToString(s.ParentShardId)})
			}
		}
		if in.ExclusiveStartShardId = out.StreamDescription.LastEvaluatedShardId; in.ExclusiveStartShardId == nil {
			return nil
		}
	}
}

// deliver invokes a function on the next records of a shard; false if there are none.
func (m *mapping) deliver(ctx context.Context, s *mappedShard) (bool, error) {
	// A mapping that tries for ever ends when its records have aged out of the stream.
	for len(s.pending) > 0 && time.Since(*s.pending[0].Dynamodb.ApproximateCreationDateTime) > 24*time.Hour {
		m.w.happened("records that aged out in a mapping", 1)
		s.pending = s.pending[1:]
	}
	if len(s.pending) == 0 {
		if err := m.read(ctx, s); err != nil || len(s.pending) == 0 {
			return false, err
		}
	}
	if m.w.rng.IntN(40) == 0 { // somebody set a limit to its retries
		m.w.happened("events that a mapping gave up", 1)
		first, last := s.pending[0].Dynamodb, s.pending[len(s.pending)-1].Dynamodb
		m.sweeps = append(m.sweeps, m.call(ctx, &invocation{discard: &stream.Discarded{
			Stream: m.w.table.StreamARN, Shard: pipeline.ShardID(s.id), First: pipeline.SequenceNumber(*first.SequenceNumber), Last: pipeline.SequenceNumber(*last.SequenceNumber),
			From: *first.ApproximateCreationDateTime, To: *last.ApproximateCreationDateTime, Records: len(s.pending),
		}}))
		s.pending = nil
		return true, nil
	}
	event, err := eventOf(m.w.table.StreamARN, s.pending)
	if err != nil {
		return false, err
	}
	m.w.happened("invocations", 1)
	s.call = m.call(ctx, &invocation{event: event})
	return true, nil
}

func (m *mapping) read(ctx context.Context, s *mappedShard) error {
	if s.ended {
		return nil
	}
	in := &dynamodbstreams.GetShardIteratorInput{StreamArn: &m.w.table.StreamARN, ShardId: &s.id, ShardIteratorType: types.ShardIteratorTypeTrimHorizon}
	if s.last != "" {
		in.ShardIteratorType, in.SequenceNumber = types.ShardIteratorTypeAfterSequenceNumber, &s.last
	}
	it, err := m.client.GetShardIterator(ctx, in)
	if gone := (*types.ResourceNotFoundException)(nil); errors.As(err, &gone) {
		s.ended = true
		return nil
	}
	if old := (*types.TrimmedDataAccessException)(nil); errors.As(err, &old) {
		s.last = "" // a mapping goes on with what there is, and says nothing
		return nil
	}
	if err != nil {
		return err
	}
	out, err := m.client.GetRecords(ctx, &dynamodbstreams.GetRecordsInput{ShardIterator: it.ShardIterator, Limit: aws.Int32(int32(1 + m.w.rng.IntN(12)))})
	if old := (*types.TrimmedDataAccessException)(nil); errors.As(err, &old) {
		s.last = ""
		return nil
	}
	if err != nil {
		return err
	}
	s.ended = out.NextShardIterator == nil
	for _, r := range out.Records {
		s.last = *r.Dynamodb.SequenceNumber
		if r.UserIdentity == nil || !m.w.plan.lambdaTTL {
			s.pending = append(s.pending, r)
		}
	}
	return nil
}

// eventOf writes records as AWS hands them to a function.
func eventOf(arn string, records []types.Record) ([]byte, error) {
	item := func(item map[string]types.AttributeValue) map[string]any {
		out := map[string]any{}
		for name, v := range item {
			switch v := v.(type) {
			case *types.AttributeValueMemberS:
				out[name] = map[string]any{"S": v.Value}
			case *types.AttributeValueMemberN:
				out[name] = map[string]any{"N": v.Value}
			default:
				panic(fmt.Sprintf("attribute %s: no JSON for %T", name, v))
			}
		}
		return out
	}
	var out []map[string]any
	for _, r := range records {
		change := map[string]any{
			"ApproximateCreationDateTime": r.Dynamodb.ApproximateCreationDateTime.Unix(), "Keys": item(r.Dynamodb.Keys),
			"SequenceNumber": r.Dynamodb.SequenceNumber, "SizeBytes": r.Dynamodb.SizeBytes, "StreamViewType": r.Dynamodb.StreamViewType,
		}
		if r.Dynamodb.NewImage != nil {
			change["NewImage"] = item(r.Dynamodb.NewImage)
		}
		e := map[string]any{
			"eventID": r.EventID, "eventName": r.EventName, "eventVersion": r.EventVersion, "eventSource": r.EventSource,
			"awsRegion": r.AwsRegion, "eventSourceARN": arn, "dynamodb": change,
		}
		if r.UserIdentity != nil {
			e["userIdentity"] = map[string]any{"type": r.UserIdentity.Type, "principalId": r.UserIdentity.PrincipalId}
		}
		out = append(out, e)
	}
	return json.Marshal(map[string]any{"Records": out})
}

// A handing is a handover that a person started.
type handing struct {
	to   checkpoint.Side
	a    *pipelinetest.Actor
	done chan error
}

// handOver starts to move the stream to a side. What breaks off is started again until it ends.
func (w *world) handOver(ctx context.Context, to checkpoint.Side) {
	h := &handing{to: to, done: make(chan error, 1)}
	h.a = w.turns.Start(ctx, "handover", func(ctx context.Context, a *pipelinetest.Actor) error {
		p, err := w.process(a, w.contract())
		if err != nil {
			return err
		}
		_, err = p.handOver(ctx, to)
		h.done <- err
		if err != nil && !passing(err) {
			return err
		}
		return nil
	})
	w.handing = h
}

func (p *process) handOver(ctx context.Context, to checkpoint.Side) (int, error) {
	over := checkpoint.Handover{Stream: p.w.table.StreamARN, To: to, Lane: func(pipeline.ShardID) pipeline.LaneID { return laneName }}
	if to == checkpoint.Lambda {
		over.Lane = p.w.lambdaLane
	}
	for try := 0; ; try++ {
		n, err := p.store.Handover(ctx, over)
		if !errors.Is(err, checkpoint.ErrPending) {
			return n, err
		}
		p.w.happened("handovers that waited for a window", 1)
		if try > 5 {
			if err := p.finishPending(ctx); err != nil {
				return n, err
			}
		}
		if err := idle(ctx); err != nil {
			return n, err
		}
	}
}

// finishPending takes over the lanes that have a window pending, which finishes it.
func (p *process) finishPending(ctx context.Context) error {
	lanes, err := p.store.Lanes(ctx)
	if err != nil {
		return err
	}
	for _, id := range lanes {
		st, err := p.store.Lane(ctx, id)
		if err != nil {
			return err
		}
		if st.Pending == 0 {
			continue
		}
		lane, err := p.newLane(id, p.w.contract())
		if err != nil {
			return err
		}
		if err := lane.Open(ctx); err != nil && !errors.Is(err, pipeline.ErrFenced) && !moved(err) {
			return err
		}
	}
	return nil
}

// handed looks after a handover that is under way.
func (w *world) handed(ctx context.Context) {
	h := w.handing
	if h == nil {
		return
	}
	select {
	case err := <-h.done:
		if err == nil {
			w.happened("handovers to "+string(h.to), 1)
			w.side, w.handing = h.to, nil
			return
		}
	default:
		if !h.a.Ended() {
			return
		}
	}
	w.happened("handovers that broke off", 1)
	w.handOver(ctx, h.to)
}
