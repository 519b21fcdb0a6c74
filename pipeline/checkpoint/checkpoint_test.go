package checkpoint

import (
	"context"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/pipelinetest"
	"telemetrylake/testenv"
)

// newService is an embedded AWS with an empty checkpoint table.
func newService(t testing.TB) (aws.Config, *Store) {
	t.Helper()
	env, err := testenv.Open(testenv.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	cfg := env.AWSConfig()
	s := New(dynamodb.NewFromConfig(cfg), "checkpoint", Options{})
	if err := s.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	return cfg, s
}

// over is the store as a process sees it whose requests go through c.
func over(cfg aws.Config, c aws.HTTPClient) *Store {
	cfg.HTTPClient = c
	// One attempt: what the process sees is what the request met.
	cfg.Retryer = func() aws.Retryer {
		return retry.AddWithMaxAttempts(retry.NewStandard(func(o *retry.StandardOptions) { o.RateLimiter = ratelimit.None }), 1)
	}
	return New(dynamodb.NewFromConfig(cfg), "checkpoint", Options{})
}

func memory(s *Store) pipelinetest.Memory {
	return pipelinetest.Memory{
		Checkpoints: s, Contracts: s, Ledger: s, Fold: s.Fold, Halt: s.Halt, Void: s.Void, GiveUp: s.GiveUp, Landed: s.Landed,
		Gaps: s, ListGaps: s.Gaps, OpenGap: s.OpenGap, MoveGap: s.MoveGap, SettleGaps: s.SettleGaps,
		Own: func(ctx context.Context, lane pipeline.LaneID, stream string, shard pipeline.Shard) (pipeline.Position, error) {
			return s.Shards(stream, lane, Run).Own(ctx, shard)
		},
	}
}

// services are what a store is tested on, each with a clock of its own.
var services = map[string]func(testing.TB) (s *Store, later func(time.Duration)){
	"embedded AWS": func(t testing.TB) (*Store, func(time.Duration)) {
		s, clock := newClocked(t)
		return s, clock.Advance
	},
	// What the exhaustive test runs on.
	"table in memory": func(t testing.TB) (*Store, func(time.Duration)) {
		m, s := newTable(t)
		now := m.now()
		m.now = func() time.Time { return now }
		return s, func(d time.Duration) { now = now.Add(d) }
	},
}

var today = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func newClocked(t testing.TB) (*Store, *testenv.ManualClock) {
	t.Helper()
	clock := testenv.NewManualClock(today)
	env, err := testenv.Open(testenv.Options{Dir: t.TempDir(), Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	s := New(dynamodb.NewFromConfig(env.AWSConfig()), "checkpoint", Options{})
	if err := s.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, clock
}

func onEach(t *testing.T, suite func(*testing.T, func(testing.TB) pipelinetest.Memory)) {
	for name, open := range services {
		t.Run(name, func(t *testing.T) {
			suite(t, func(t testing.TB) pipelinetest.Memory {
				s, later := open(t)
				m := memory(s)
				m.Later = func(d time.Duration) {
					later(d)
					// The store hears of it with the next answer.
					if _, err := s.Lane(t.Context(), pipelinetest.Lane); err != nil {
						t.Fatal(err)
					}
				}
				return m
			})
		})
	}
}

func TestCheckpoints(t *testing.T) { onEach(t, pipelinetest.TestCheckpoints) }

func TestLedger(t *testing.T) { onEach(t, pipelinetest.TestLedger) }

func TestGaps(t *testing.T) { onEach(t, pipelinetest.TestGaps) }

func TestCreateOfATableThatExistsChangesNothing(t *testing.T) {
	_, s := newService(t)
	pipelinetest.Begun(t, memory(s)).Window(t, 1)
	before := items(t, s)
	if err := s.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := items(t, s); len(after) != len(before) {
		t.Errorf("%d items, %d before", len(after), len(before))
	}
}

// items is the whole table by "pk sk".
func items(t testing.TB, s *Store) map[string]map[string]types.AttributeValue {
	t.Helper()
	out := map[string]map[string]types.AttributeValue{}
	pages := dynamodb.NewScanPaginator(s.client, &dynamodb.ScanInput{TableName: &s.table})
	for pages.HasMorePages() {
		page, err := pages.NextPage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range page.Items {
			k := key{it["pk"].(*types.AttributeValueMemberS).Value, it["sk"].(*types.AttributeValueMemberS).Value}
			out[k.String()] = it
		}
	}
	return out
}

// set changes one attribute of a stored item by hand; nil removes it.
func set(t testing.TB, s *Store, k key, name string, v types.AttributeValue) {
	t.Helper()
	in := &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: k.av(), UpdateExpression: aws.String("REMOVE #a"),
		ExpressionAttributeNames: map[string]string{"#a": name},
	}
	if v != nil {
		in.UpdateExpression = aws.String("SET #a = :v")
		in.ExpressionAttributeValues = map[string]types.AttributeValue{":v": v}
	}
	if _, err := s.client.UpdateItem(t.Context(), in); err != nil {
		t.Fatal(err)
	}
}
