package hot

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/schemas"
	"telemetrylake/testenv"
)

// An environment is an embedded AWS with a clock that tests move, and a transport that can
// be told to fail.
type environment struct {
	*testenv.Env
	clock  *testenv.ManualClock
	client *dynamodb.Client
	faults *faults
}

var start = time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)

func open(t testing.TB) *environment {
	t.Helper()
	clock := testenv.NewManualClock(start)
	env, err := testenv.Open(testenv.Options{Dir: t.TempDir(), Clock: clock, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg := env.AWSConfig()
	f := &faults{next: env.Transport()}
	cfg.HTTPClient = &http.Client{Transport: f}
	cfg.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
	return &environment{env, clock, dynamodb.NewFromConfig(cfg), f}
}

// faults plays a network between the client and the server.
type faults struct {
	next http.RoundTripper
	mu   sync.Mutex
	on   func(n int, r *http.Request) fault // n counts requests from 1
	n    int
}

type fault int

const (
	none fault = iota
	throttle
	lostRequest
	lostResponse
)

func (f *faults) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	f.n++
	what := none
	if f.on != nil {
		what = f.on(f.n, r)
	}
	f.mu.Unlock()
	switch what {
	case throttle:
		return jsonError(r, `{"__type":"com.amazonaws.dynamodb.v20120810#ThrottlingException","message":"slow down"}`), nil
	case lostRequest:
		return nil, io.ErrUnexpectedEOF
	case lostResponse:
		resp, err := f.next.RoundTrip(r)
		if err == nil {
			resp.Body.Close()
		}
		return nil, io.ErrUnexpectedEOF
	}
	return f.next.RoundTrip(r)
}

func contract(t testing.TB, name string) *schemas.Contract {
	t.Helper()
	c, err := schemas.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func create(t testing.TB, env *environment, name string) *schemas.Contract {
	t.Helper()
	c := contract(t, name)
	if _, err := Create(t.Context(), env.client, c); err != nil {
		t.Fatal(err)
	}
	return c
}

func quick() WriterOptions {
	return WriterOptions{RetryBase: time.Microsecond, RetryCap: time.Microsecond}
}

// get reads one item; nil if it is not there.
func get(t *testing.T, env *environment, c *schemas.Contract, item Item) Item {
	t.Helper()
	key := Item{}
	for _, name := range c.Keys.Attributes() {
		key[name] = item[name]
	}
	out, err := env.client.GetItem(t.Context(), &dynamodb.GetItemInput{TableName: &c.Table, Key: key, ConsistentRead: aws.Bool(true)})
	if err != nil {
		t.Fatal(err)
	}
	return out.Item
}

func numberOf(t *testing.T, item Item, attribute string) string {
	t.Helper()
	n, ok := item[attribute].(*types.AttributeValueMemberN)
	if !ok {
		t.Fatalf("attribute %s is %T, want a number", attribute, item[attribute])
	}
	return n.Value
}
func jsonError(r *http.Request, body string) *http.Response {
	return &http.Response{
		StatusCode: http.StatusBadRequest, Status: "400 Bad Request",
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        http.Header{"Content-Type": {"application/x-amz-json-1.0"}},
		Body:          io.NopCloser(strings.NewReader(body)),
		ContentLength: int64(len(body)), Request: r,
	}
}
