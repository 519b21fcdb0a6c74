package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/hot"
	"telemetrylake/pipeline/stream"
	"telemetrylake/schemas"
	"telemetrylake/testenv"
)

// A mappedTable is sensor_readings on an embedded AWS, with a function that its stream invokes.
type mappedTable struct {
	clients // without faults
	t       *testing.T
	env     *testenv.Env
	clock   *testenv.ManualClock
	dir     string
	at      places
	mapping *mappingDriver
	page    int // records of one page that a function reads; 0: what the service gives

	mu     sync.Mutex
	random *rand.Rand
	faults float64        // share of calls that fail
	idle   []*environment // warm ones
	did    map[string]int
	calls  stream.Calls
}

func newMappedTable(t *testing.T, seed uint64, shards int) *mappedTable {
	t.Helper()
	c, err := schemas.Load("sensor_readings")
	if err != nil {
		t.Fatal(err)
	}
	return newMappedTableOf(t, c, seed, shards)
}

// newMappedTableOf is newMappedTable with a contract of that table.
func newMappedTableOf(t *testing.T, c *schemas.Contract, seed uint64, shards int) *mappedTable {
	t.Helper()
	dir := t.TempDir()
	clock := testenv.NewManualClock(time.Date(2026, 11, 3, 8, 0, 0, 0, time.UTC))
	env, err := testenv.Open(testenv.Options{Dir: dir, Seed: seed, Clock: clock, StreamShards: shards, ShardLife: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	m := &mappedTable{
		clients: newClients(env.AWSConfig()), t: t, env: env, clock: clock, dir: dir,
		random: rand.New(rand.NewPCG(seed, 0)), did: map[string]int{},
	}
	if err := furnish(t.Context(), m.clients, []*schemas.Contract{c}, time.Minute); err != nil {
		t.Fatal(err)
	}
	m.at = places{
		Contract: c, Table: c.Table, Checkpoint: checkpointTable, Delivery: c.Table,
		Staging: location{stagingBucket, partsPrefix}, Damaged: location{stagingBucket, damagedPrefix}, Lake: location{lakeBucket, ""},
	}
	if err := m.at.findStream(t.Context(), m.clients); err != nil {
		t.Fatal(err)
	}
	m.mapping = &mappingDriver{streams: m.streams, stream: m.at.StreamARN, batch: 20, invoke: m.invoke, shards: map[string]*mappedShard{}}
	return m
}

// chance is true with a probability that the seed decides.
func (m *mappedTable) chance(p float64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.random.Float64() < p
}

func (m *mappedTable) happened(what string, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.did[what] += n
}

// An environment is where a function lives from its cold start until Lambda, or a failure, ends it.
type environment struct {
	*function
	table *mappedTable
	next  http.RoundTripper
	dead  bool
	end   context.CancelFunc // of the invocation that it is in
}

var errInjected = errors.New("injected failure")

// RoundTrip fails now and then: before the call, after it, or for ever.
func (e *environment) RoundTrip(r *http.Request) (*http.Response, error) {
	switch {
	case e.dead:
		return nil, errInjected
	case !e.table.chance(e.table.faults):
		return e.next.RoundTrip(r)
	case e.table.chance(0.3):
		e.table.happened("killed", 1)
		e.dead = true
		e.end()
	case e.table.chance(0.5):
		e.table.happened("answers lost", 1)
		if resp, err := e.next.RoundTrip(r); err == nil {
			_ = resp.Body.Close()
		}
	}
	e.table.happened("calls failed", 1)
	return nil, errInjected
}

func (m *mappedTable) environment() *environment {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.idle); n > 0 {
		i := m.random.IntN(n)
		e := m.idle[i]
		m.idle = slices.Delete(m.idle, i, i+1)
		return e
	}
	m.did["cold starts"]++
	e := &environment{table: m, next: m.env.Transport()}
	cfg := m.env.AWSConfig()
	cfg.HTTPClient = &http.Client{Transport: e}
	cfg.RetryMaxAttempts = 1
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	l := wireFunction(newClients(cfg), m.at, wireOptions{Limits: pipeline.Limits{Records: 30}, PageLimit: m.page, Now: m.clock.Now, Wait: m.wait, Log: log})
	e.function = &function{functionLine: l, log: log, mapping: &mappingCheck{at: time.Now(), known: true}}
	return e
}

// wait moves the one clock that there is on.
func (m *mappedTable) wait(ctx context.Context, d time.Duration) error {
	m.clock.Advance(d)
	return ctx.Err()
}

// invoke runs the function on an event, in a warm environment if there is one.
func (m *mappedTable) invoke(ctx context.Context, event []byte) ([]byte, error) {
	e := m.environment()
	ctx, e.end = context.WithTimeout(ctx, time.Minute)
	defer e.end()
	before := e.stream.Calls()
	out, err := e.function.invoke(ctx, event)
	after := e.stream.Calls()
	m.mu.Lock()
	m.calls.GetRecords += after.GetRecords - before.GetRecords
	m.calls.Iterators += after.Iterators - before.Iterators
	m.calls.Describes += after.Describes - before.Describes
	m.did["invocations"]++
	if err != nil {
		m.did["failed invocations"]++
	}
	if !e.dead && m.random.Float64() > 0.05 {
		m.idle = append(m.idle, e)
	}
	m.mu.Unlock()
	if err != nil {
		if !errors.Is(err, errInjected) && !errors.Is(err, pipeline.ErrFenced) && needsPerson(err) {
			m.t.Errorf("invocation: %v", err)
		}
		return nil, err
	}
	return json.Marshal(out)
}

// A mappingDriver delivers a stream as Lambda's event source mapping does: each shard's records
// in order and one event at a time, a parent's before its children's, an event again until it is
// taken, or from the item on that the function names.
type mappingDriver struct {
	streams *dynamodbstreams.Client
	stream  string
	batch   int
	filter  bool // drops removals by TTL
	invoke  func(context.Context, []byte) ([]byte, error)
	discard func(shard string, records []types.Record) bool // gives an event up instead of delivering it; may be nil

	shards map[string]*mappedShard
}

type mappedShard struct {
	id, parent string
	iterator   string
	pending    []types.Record
	begun      bool
	ended      bool // all read
}

func (s *mappedShard) done() bool { return s.ended && len(s.pending) == 0 }

// round delivers one event of each shard that has records, all at the same time, and returns how
// many records are known and not taken.
func (d *mappingDriver) round(ctx context.Context) (left int, err error) {
	if err := d.list(ctx); err != nil {
		return 0, err
	}
	var ready []*mappedShard
	for _, s := range d.shards {
		if p := d.shards[s.parent]; !s.done() && (p == nil || p.done()) {
			ready = append(ready, s)
		}
	}
	errs := make([]error, len(ready))
	var wg sync.WaitGroup
	for i, s := range ready {
		wg.Go(func() { errs[i] = d.deliver(ctx, s) })
	}
	wg.Wait()
	for _, s := range d.shards {
		left += len(s.pending)
	}
	return left, errors.Join(errs...)
}

func (d *mappingDriver) list(ctx context.Context) error {
	in := &dynamodbstreams.DescribeStreamInput{StreamArn: &d.stream}
	for {
		out, err := d.streams.DescribeStream(ctx, in)
		if err != nil {
			return err
		}
		for _, s := range out.StreamDescription.Shards {
			if id := aws.ToString(s.ShardId); d.shards[id] == nil {
				d.shards[id] = &mappedShard{id: id, parent: aws.ToString(s.ParentShardId)}
			}
		}
		if in.ExclusiveStartShardId = out.StreamDescription.LastEvaluatedShardId; in.ExclusiveStartShardId == nil {
			return nil
		}
	}
}

func (d *mappingDriver) deliver(ctx context.Context, s *mappedShard) error {
	if len(s.pending) == 0 {
		if err := d.read(ctx, s); err != nil || len(s.pending) == 0 {
			return err
		}
	}
	if d.discard != nil && d.discard(s.id, s.pending) {
		s.pending = nil
		return nil
	}
	event, err := eventOf(d.stream, s.pending)
	if err != nil {
		return err
	}
	answer, err := d.invoke(ctx, event)
	if err != nil {
		return nil // it is delivered again
	}
	var out struct {
		Failures []itemFailure `json:"batchItemFailures"`
	}
	if err := json.Unmarshal(answer, &out); err != nil {
		return err
	}
	if len(out.Failures) == 0 {
		s.pending = nil
		return nil
	}
	i := slices.IndexFunc(s.pending, func(r types.Record) bool { return aws.ToString(r.Dynamodb.SequenceNumber) == out.Failures[0].Item })
	if i < 0 {
		return fmt.Errorf("the function names item %q, which is not in its event", out.Failures[0].Item)
	}
	s.pending = s.pending[i:]
	return nil
}

func (d *mappingDriver) read(ctx context.Context, s *mappedShard) error {
	if s.ended {
		return nil
	}
	if !s.begun {
		out, err := d.streams.GetShardIterator(ctx, &dynamodbstreams.GetShardIteratorInput{StreamArn: &d.stream, ShardId: &s.id, ShardIteratorType: types.ShardIteratorTypeTrimHorizon})
		if err != nil {
			return err
		}
		s.iterator, s.begun = *out.ShardIterator, true
	}
	out, err := d.streams.GetRecords(ctx, &dynamodbstreams.GetRecordsInput{ShardIterator: &s.iterator, Limit: aws.Int32(int32(d.batch))})
	if err != nil {
		return err
	}
	s.iterator, s.ended = aws.ToString(out.NextShardIterator), out.NextShardIterator == nil
	for _, r := range out.Records {
		if r.UserIdentity == nil || !d.filter {
			s.pending = append(s.pending, r)
		}
	}
	return nil
}

// eventOf writes records as AWS hands them to a function.
func eventOf(arn string, records []types.Record) ([]byte, error) {
	var out []map[string]any
	for _, r := range records {
		keys, err := itemJSON(r.Dynamodb.Keys)
		if err != nil {
			return nil, err
		}
		change := map[string]any{
			"ApproximateCreationDateTime": r.Dynamodb.ApproximateCreationDateTime.Unix(), "Keys": keys,
			"SequenceNumber": r.Dynamodb.SequenceNumber, "SizeBytes": r.Dynamodb.SizeBytes, "StreamViewType": r.Dynamodb.StreamViewType,
		}
		if r.Dynamodb.NewImage != nil {
			if change["NewImage"], err = itemJSON(r.Dynamodb.NewImage); err != nil {
				return nil, err
			}
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

func itemJSON(item map[string]types.AttributeValue) (map[string]any, error) {
	out := map[string]any{}
	for name, v := range item {
		switch v := v.(type) {
		case *types.AttributeValueMemberS:
			out[name] = map[string]any{"S": v.Value}
		case *types.AttributeValueMemberN:
			out[name] = map[string]any{"N": v.Value}
		case *types.AttributeValueMemberBOOL:
			out[name] = map[string]any{"BOOL": v.Value}
		case *types.AttributeValueMemberNULL:
			out[name] = map[string]any{"NULL": true}
		default:
			return nil, fmt.Errorf("attribute %s: no JSON for %T", name, v)
		}
	}
	return out, nil
}

// items are the readings of a file as the hot table takes them.
func (m *mappedTable) items(f *climateFile) []hot.Item {
	m.t.Helper()
	feed, err := roomClimateFeed(f.name, m.at.Contract)
	if err != nil {
		m.t.Fatal(err)
	}
	var items []hot.Item
	for e, err := range feed.events {
		if err != nil {
			m.t.Fatal(err)
		}
		items = append(items, e.Item)
	}
	return items
}

// seal delivers and seals all that was landed.
func (m *mappedTable) seal() {
	m.t.Helper()
	sealer := newSealer(wireFunction(m.clients, m.at, wireOptions{}).store, openBuckets(m.clients, m.at), nil)
	for range 3 {
		m.clock.Advance(2 * time.Minute)
		m.env.Tick()
		if _, err := sealer.Sweep(m.t.Context()); err != nil {
			m.t.Fatal(err)
		}
	}
	if left := objectsBelow(m.t, m.dir+"/s3/"+stagingBucket); len(left) > 0 {
		m.t.Errorf("left in staging: %s", strings.Join(left, ", "))
	}
}

// A refuseNth fails an operation's nth call and those after it.
type refuseNth struct {
	next      http.RoundTripper
	operation string
	n         int
	seen      *int
}

func (r refuseNth) RoundTrip(req *http.Request) (*http.Response, error) {
	if operation(req) == r.operation {
		if *r.seen++; *r.seen >= r.n {
			return nil, errInjected
		}
	}
	return r.next.RoundTrip(req)
}
