package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	dynamotypes "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
	"telemetrylake/testenv"
)

var start = time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)

// A checkpoint is a lane's memory: what is committed, and which shards were owned.
type checkpoint struct {
	mu        sync.Mutex
	committed map[pipeline.ShardID]pipeline.Position
	owned     []pipeline.Shard
	forgotten []pipeline.ShardID
	queries   int
	fail      func(pipeline.ShardID) error
	away      time.Time // since when nobody had read, for shards that are met later
}

func newCheckpoint() *checkpoint {
	return &checkpoint{committed: map[pipeline.ShardID]pipeline.Position{}}
}

func (c *checkpoint) All(context.Context) (map[pipeline.ShardID]pipeline.Position, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queries++
	return maps.Clone(c.committed), nil
}

func (c *checkpoint) Forget(_ context.Context, unlisted []pipeline.ShardID, at time.Time) error {
	if at.IsZero() {
		return errors.New("no time")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgotten = append(c.forgotten, unlisted...)
	return nil
}

func (c *checkpoint) Own(_ context.Context, s pipeline.Shard) (pipeline.Position, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil {
		if err := c.fail(s.ID); err != nil {
			return pipeline.Position{}, err
		}
	}
	c.owned = append(c.owned, s)
	pos, ok := c.committed[s.ID]
	if !ok {
		pos = pipeline.Position{MetAt: s.MetAt, StartAt: s.StartAt}
		if s.Later {
			pos.AwayAt, pos.Orphan = c.away, s.Orphan
		}
	}
	c.committed[s.ID] = pos
	return pos, nil
}

func (c *checkpoint) Position(_ context.Context, id pipeline.ShardID) (pipeline.Position, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pos, ok := c.committed[id]
	return pos, ok, nil
}

func (c *checkpoint) commit(batches ...pipeline.Batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range batches {
		pos := c.committed[b.Shard]
		if n := len(b.Records); n > 0 {
			pos.Seq, pos.Created = b.Records[n-1].Seq, b.Records[n-1].Created
		} else if b.Missing != nil {
			pos.TipAt = b.Missing.To
		}
		pos.End = pos.End || b.End
		c.committed[b.Shard] = pos
	}
}

// A log is what was emitted.
type log []pipeline.Batch

func (l *log) emit(b pipeline.Batch) error {
	*l = append(*l, b)
	return nil
}

func (l log) records() []pipeline.Record {
	var all []pipeline.Record
	for _, b := range l {
		all = append(all, b.Records...)
	}
	return all
}

// values lists the numbers that the items carry, in order of emission.
func values(t *testing.T, records []pipeline.Record) []int {
	t.Helper()
	var all []int
	for _, r := range records {
		n, ok := r.New["v"].(*types.AttributeValueMemberN)
		if !ok {
			t.Fatalf("record %s has v = %v", r.Seq, r.New["v"])
		}
		v, err := strconv.Atoi(n.Value)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	return all
}

// A world is an embedded AWS with one streamed table.
type world struct {
	t     *testing.T
	env   *testenv.Env
	clock *testenv.ManualClock
	db    *dynamodb.Client
	arn   string
	next  int
}

const tableName = "items"

func newWorld(t *testing.T, shards int) *world {
	t.Helper()
	clock := testenv.NewManualClock(start)
	env, err := testenv.Open(testenv.Options{Dir: t.TempDir(), Clock: clock, Seed: 1, StreamShards: shards, ShardLife: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &world{t: t, env: env, clock: clock, db: dynamodb.NewFromConfig(env.AWSConfig())}
	out, err := w.db.CreateTable(t.Context(), &dynamodb.CreateTableInput{
		TableName: aws.String(tableName), BillingMode: dynamotypes.BillingModePayPerRequest,
		AttributeDefinitions: []dynamotypes.AttributeDefinition{{AttributeName: aws.String("id"), AttributeType: dynamotypes.ScalarAttributeTypeS}},
		KeySchema:            []dynamotypes.KeySchemaElement{{AttributeName: aws.String("id"), KeyType: dynamotypes.KeyTypeHash}},
		StreamSpecification:  &dynamotypes.StreamSpecification{StreamEnabled: aws.Bool(true), StreamViewType: dynamotypes.StreamViewTypeNewImage},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.arn = *out.TableDescription.LatestStreamArn
	return w
}

func (w *world) reader(c *checkpoint, o Options) *Reader {
	o.StreamARN, o.Shards, o.Now = w.arn, c, w.clock.Now
	o.RetryBase, o.RetryCap = time.Microsecond, time.Microsecond
	return New(dynamodbstreams.NewFromConfig(w.env.AWSConfig()), o)
}

// poller returns a reader that waits for next to nothing, on the machine's clock.
func (w *world) poller(c *checkpoint, o Options) *Reader {
	r := w.reader(c, o)
	r.o.Now = time.Now
	r.o.Floor, r.o.Ceiling, r.o.Budget = time.Microsecond, time.Microsecond, 1e6
	r.bucket = newBucket(1e6)
	return r
}

// put writes n items with rising values, each under a key of its own unless keys are given.
func (w *world) put(n int, keys ...string) {
	w.t.Helper()
	for range n {
		key := fmt.Sprintf("k%d", w.next)
		if len(keys) > 0 {
			key = keys[w.next%len(keys)]
		}
		_, err := w.db.PutItem(w.t.Context(), &dynamodb.PutItemInput{TableName: aws.String(tableName), Item: map[string]dynamotypes.AttributeValue{
			"id": &dynamotypes.AttributeValueMemberS{Value: key},
			"v":  &dynamotypes.AttributeValueMemberN{Value: strconv.Itoa(w.next)},
		}})
		if err != nil {
			w.t.Fatal(err)
		}
		w.next++
	}
}

// catchUp reads until the reader is caught up and commits after every round.
func (w *world) catchUp(r *Reader, c *checkpoint, l *log) RoundInfo {
	w.t.Helper()
	return w.readOn(c, l, r.Round)
}

// readOn is catchUp by Round or by Poll.
func (w *world) readOn(c *checkpoint, l *log, read func(context.Context, func(pipeline.Batch) error) (RoundInfo, error)) RoundInfo {
	w.t.Helper()
	for range 1000 {
		n := len(*l)
		info, err := read(w.t.Context(), l.emit)
		if err != nil {
			w.t.Fatal(err)
		}
		c.commit((*l)[n:]...)
		if info.CaughtUp() {
			return info
		}
	}
	w.t.Fatal("never caught up")
	return RoundInfo{}
}

func (w *world) wantAll(l log) {
	w.t.Helper()
	got := values(w.t, l.records())
	slices.Sort(got)
	if len(got) != w.next {
		w.t.Fatalf("read %d records of %d", len(got), w.next)
	}
	for i, v := range got {
		if v != i {
			w.t.Fatalf("record %d came twice or %d not at all", v, i)
		}
	}
}

func wantTrimmed(t *testing.T, err error, words ...string) {
	t.Helper()
	person, ok := errors.AsType[*pipeline.PersonError](err)
	if !ok || person.Do == "" || !errors.Is(err, pipeline.ErrTrimmed) {
		t.Fatalf("error %v does not say that a person must act on trimmed records", err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not name %s", err, word)
		}
	}
}
