package testenv_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/testenv"
)

// onDisk makes every test open a durable Env: TestAllOfThisHoldsOnDisk sets it.
var onDisk = os.Getenv("TESTENV_ON_DISK") != ""

// start is where the tests' clocks begin.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// world is an Env with SDK clients that talk to it.
type world struct {
	env     *testenv.Env
	cfg     aws.Config // of the clients
	clock   *testenv.ManualClock
	db      *dynamodb.Client
	streams *dynamodbstreams.Client
}

func open(t testing.TB, change ...func(*testenv.Options)) *world {
	t.Helper()
	clock := testenv.NewManualClock(start)
	opt := testenv.Options{Dir: t.TempDir(), Clock: clock, Seed: 1, ShardLife: -1, Durable: onDisk}
	for _, f := range change {
		f(&opt)
	}
	env, err := testenv.Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg := env.AWSConfig()
	return &world{env: env, cfg: cfg, clock: clock, db: dynamodb.NewFromConfig(cfg), streams: dynamodbstreams.NewFromConfig(cfg)}
}

// overHTTP returns clients that reach the same Env through a socket.
func (w *world) overHTTP(t testing.TB) *world {
	server := httptest.NewServer(w.env)
	t.Cleanup(server.Close)
	cfg := w.env.AWSConfig()
	cfg.HTTPClient = server.Client()
	cfg.BaseEndpoint = aws.String(server.URL)
	return &world{env: w.env, cfg: cfg, clock: w.clock, db: dynamodb.NewFromConfig(cfg), streams: dynamodbstreams.NewFromConfig(cfg)}
}

// create makes a table with the keys pk (S) and sk (S) and a stream of new images.
func (w *world) create(t testing.TB, name string, change ...func(*dynamodb.CreateTableInput)) {
	t.Helper()
	in := &dynamodb.CreateTableInput{
		TableName:   aws.String(name),
		BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{
			{AttributeName: aws.String("pk"), AttributeType: types.ScalarAttributeTypeS},
			{AttributeName: aws.String("sk"), AttributeType: types.ScalarAttributeTypeS},
		},
		KeySchema: []types.KeySchemaElement{
			{AttributeName: aws.String("pk"), KeyType: types.KeyTypeHash},
			{AttributeName: aws.String("sk"), KeyType: types.KeyTypeRange},
		},
		StreamSpecification: &types.StreamSpecification{StreamEnabled: aws.Bool(true), StreamViewType: types.StreamViewTypeNewImage},
	}
	for _, f := range change {
		f(in)
	}
	if _, err := w.db.CreateTable(context.Background(), in); err != nil {
		t.Fatal(err)
	}
}

type attrs = map[string]types.AttributeValue

func S(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }
func N(s string) types.AttributeValue { return &types.AttributeValueMemberN{Value: s} }
func L(v ...types.AttributeValue) types.AttributeValue {
	return &types.AttributeValueMemberL{Value: v}
}
func M(m attrs) types.AttributeValue { return &types.AttributeValueMemberM{Value: m} }
func SS(v ...string) types.AttributeValue {
	return &types.AttributeValueMemberSS{Value: v}
}
func NS(v ...string) types.AttributeValue {
	return &types.AttributeValueMemberNS{Value: v}
}

func key(pk, sk string) attrs { return attrs{"pk": S(pk), "sk": S(sk)} }

func (w *world) put(t testing.TB, table string, it attrs) {
	t.Helper()
	if _, err := w.db.PutItem(context.Background(), &dynamodb.PutItemInput{TableName: &table, Item: it}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) get(t testing.TB, table string, k attrs) attrs {
	t.Helper()
	out, err := w.db.GetItem(context.Background(), &dynamodb.GetItemInput{TableName: &table, Key: k, ConsistentRead: aws.Bool(true)})
	if err != nil {
		t.Fatal(err)
	}
	return out.Item
}

func TestTransportWorksInsideABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t, func(o *testenv.Options) { o.Clock = nil })
		w.create(t, "things")
		done := make(chan error)
		for i := range 4 {
			go func() {
				time.Sleep(time.Hour)
				_, err := w.db.PutItem(context.Background(), &dynamodb.PutItemInput{TableName: aws.String("things"), Item: key("a", fmt.Sprint(i))})
				done <- err
			}()
		}
		for range 4 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
	})
}

func TestClockNeverMovesBackwards(t *testing.T) {
	c := testenv.NewManualClock(start)
	c.Set(start.Add(-time.Hour))
	c.Advance(-time.Hour)
	if got := c.Now(); !got.Equal(start) {
		t.Errorf("the clock moved back to %s", got)
	}
	c.Advance(time.Minute)
	c.Set(start.Add(time.Hour))
	if got := c.Now(); !got.Equal(start.Add(time.Hour)) {
		t.Errorf("the clock stands at %s", got)
	}
}

func TestEnvNeedsAFolder(t *testing.T) {
	if _, err := testenv.Open(testenv.Options{}); err == nil || !strings.Contains(err.Error(), "Options.Dir") {
		t.Errorf("got %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := testenv.Open(testenv.Options{Dir: file}); err == nil {
		t.Error("a file was accepted as the folder")
	}
}

func TestCancelledRequestIsNotServed(t *testing.T) {
	w := open(t)
	w.create(t, "things")
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := w.db.PutItem(cancelled, &dynamodb.PutItemInput{TableName: aws.String("things"), Item: key("a", "b")})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if got := w.get(t, "things", key("a", "b")); got != nil {
		t.Errorf("the item was written: %v", got)
	}
}

func TestObjectsAreReachedWithDefaultAddressing(t *testing.T) {
	w := open(t)
	client := s3.NewFromConfig(w.env.AWSConfig()) // addresses bucket.aws.internal
	ctx := context.Background()
	if _, err := client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String("lake")}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String("lake"), Key: aws.String("dt=2026-01-01/a b+c.parquet"), Body: strings.NewReader("PAR1")}); err != nil {
		t.Fatal(err)
	}
	out, err := client.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String("lake"), Key: aws.String("dt=2026-01-01/a b+c.parquet")})
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(out.Body)
	if err != nil || string(body) != "PAR1" {
		t.Errorf("got %q, %v", body, err)
	}
}

func TestResponsesCarryTheClocksTime(t *testing.T) {
	w := open(t)
	server := httptest.NewServer(w.env)
	defer server.Close()
	w.clock.Advance(time.Hour)
	resp, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got, err := http.ParseTime(resp.Header.Get("Date")); err != nil || !got.Equal(start.Add(time.Hour)) {
		t.Errorf("the date is %q", resp.Header.Get("Date"))
	}
}

func TestMalformedRequestsAreRefused(t *testing.T) {
	w := open(t)
	for name, c := range map[string]struct {
		method, target, body string
		status               int
	}{
		"no JSON":           {"POST", "DynamoDB_20120810.PutItem", "{", 400},
		"no object":         {"POST", "DynamoDB_20120810.PutItem", "[]", 400},
		"no operation":      {"POST", "DynamoDB_20120810.", "{}", 400},
		"unknown operation": {"POST", "DynamoDBStreams_20120810.PutItem", "{}", 400},
		"GET":               {"GET", "DynamoDB_20120810.PutItem", "", 405},
		"wrong types":       {"POST", "DynamoDB_20120810.GetItem", `{"TableName":1,"Key":"x"}`, 400},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(c.method, "/", strings.NewReader(c.body))
			r.Header.Set("X-Amz-Target", c.target)
			rec := httptest.NewRecorder()
			w.env.ServeHTTP(rec, r)
			if rec.Code != c.status || !strings.Contains(rec.Body.String(), `"__type"`) {
				t.Errorf("got %d %s", rec.Code, rec.Body)
			}
		})
	}
}

func BenchmarkConditionalPut(b *testing.B) {
	w := open(b)
	w.create(b, "things")
	in := &dynamodb.PutItemInput{TableName: aws.String("things"), ConditionExpression: aws.String("attribute_not_exists(pk)")}
	i := 0
	for b.Loop() {
		in.Item = attrs{"pk": S(fmt.Sprintf("DEVICE#%04d", i%500)), "sk": S(fmt.Sprintf("TS#%012d", i)), "celsius": N("21.25"),
			"humidity": N("40.5"), "expires_at": N("1800000000")}
		if _, err := w.db.PutItem(context.Background(), in); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

// BenchmarkConditionalPutWithoutSDK is the stand-in's own share of BenchmarkConditionalPut.
func BenchmarkConditionalPutWithoutSDK(b *testing.B) {
	w := open(b)
	w.create(b, "things")
	i := 0
	for b.Loop() {
		body := fmt.Sprintf(`{"ConditionExpression":"attribute_not_exists(pk)","Item":{"pk":{"S":"DEVICE#%04d"},"sk":{"S":"TS#%012d"},"celsius":{"N":"21.25"},"humidity":{"N":"40.5"},"expires_at":{"N":"1800000000"}},"TableName":"things"}`, i%500, i)
		r, err := http.NewRequest(http.MethodPost, testenv.Endpoint+"/", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		r.Header.Set("X-Amz-Target", "DynamoDB_20120810.PutItem")
		resp, err := w.env.Transport().RoundTrip(r)
		if err != nil || resp.StatusCode != http.StatusOK {
			b.Fatal(resp, err)
		}
		i++
	}
}

func BenchmarkTransactWriteOfHundred(b *testing.B) {
	w := open(b)
	w.create(b, "things")
	i := 0
	for b.Loop() {
		in := &dynamodb.TransactWriteItemsInput{}
		for range 100 {
			in.TransactItems = append(in.TransactItems, types.TransactWriteItem{Put: &types.Put{TableName: aws.String("things"),
				ConditionExpression: aws.String("attribute_not_exists(pk)"),
				Item:                attrs{"pk": S(fmt.Sprintf("DEVICE#%04d", i%500)), "sk": S(fmt.Sprintf("TS#%012d", i)), "celsius": N("21.25"), "humidity": N("40.5")}}})
			i++
		}
		if _, err := w.db.TransactWriteItems(context.Background(), in); err != nil {
			b.Fatal(err)
		}
	}
}
