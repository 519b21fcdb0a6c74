package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/columnar"
	"telemetrylake/schemas"
)

// A tape is what a stand-in for DynamoDB Streams answered, recorded from it: one table of the
// contract lecturas, of which one client put a reading, put the same again, put a second, made a
// third by a transaction that adds to a number, and deleted the second. MiniStack had TTL on, and
// was read when the first, which had expired, was gone from its table. Only iterators were renamed.
type tape struct {
	mu        sync.Mutex
	calls     []recorded
	issued    map[string]bool // iterators handed out
	forgotten map[string]bool // and no longer known, as after a restart
	refused   int             // calls with a forgotten iterator
}

type recorded struct {
	Op       string          `json:"op"`
	Request  map[string]any  `json:"request"`
	Status   int             `json:"status"`
	Response json.RawMessage `json:"response"`
}

func loadTape(t *testing.T, who string) *tape {
	t.Helper()
	text, err := os.ReadFile("testdata/" + who + ".json")
	if err != nil {
		t.Fatal(err)
	}
	p := &tape{issued: map[string]bool{}, forgotten: map[string]bool{}}
	if err := json.Unmarshal(text, &p.calls); err != nil {
		t.Fatal(err)
	}
	return p
}

// find returns the recorded answer to a request.
func (p *tape) find(op string, request map[string]any) (recorded, bool) {
	for _, c := range p.calls {
		if c.Op == op && reflect.DeepEqual(c.Request, request) {
			return c, true
		}
	}
	return recorded{}, false
}

func (p *tape) arn() string {
	return p.calls[0].Request["StreamArn"].(string)
}

// forget makes the server forget every iterator that it has handed out.
func (p *tape) forget() {
	for i := range p.issued {
		p.forgotten[i] = true
	}
}

func (p *tape) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	request := map[string]any{}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		return nil, err
	}
	_, op, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	iterator, _ := request["ShardIterator"].(string)
	if p.forgotten[iterator] {
		p.refused++
		request["ShardIterator"] = "bogus"
	}
	c, ok := p.find(op, request)
	switch {
	case ok:
	case op == "GetRecords" && p.issued[iterator]: // the recording ends at the tip of the shard
		c = recorded{Status: http.StatusOK, Response: json.RawMessage(fmt.Sprintf(`{"Records":[],"NextShardIterator":%q}`, iterator))}
	default:
		return nil, fmt.Errorf("nothing recorded for %s %v", op, request)
	}
	var out struct{ ShardIterator, NextShardIterator string }
	if json.Unmarshal(c.Response, &out) == nil {
		if given := out.ShardIterator + out.NextShardIterator; given != "" {
			p.issued[given] = true
		}
		delete(p.forgotten, out.ShardIterator)
	}
	body := string(c.Response)
	var page string // a web page instead of JSON
	if json.Unmarshal(c.Response, &page) == nil {
		body = page
	}
	return answer(r, c.Status, body), nil
}

func answer(r *http.Request, status int, body string) *http.Response {
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/x-amz-json-1.0"}}, Request: r,
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}
}

// readerOn is a reader of a server that a test stands in for.
func readerOn(server http.RoundTripper, arn string, c *checkpoint, o Options) *Reader {
	client := dynamodbstreams.New(dynamodbstreams.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://streams.internal"),
		HTTPClient: &http.Client{Transport: server}, Retryer: aws.NopRetryer{},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		}),
	})
	o.StreamARN, o.Shards = arn, c
	if o.RetryBase == 0 {
		o.RetryBase, o.RetryCap = time.Microsecond, time.Microsecond
	}
	return New(client, o)
}

// decoded are the rows that records come to under a contract: their number by lake table, and
// what became of the records.
func decoded(t *testing.T, c *schemas.Contract, l log) (map[string]int, pipeline.Counts) {
	t.Helper()
	rows, err := columnar.NewDecoder(memory.DefaultAllocator).Decode(c, l)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Release()
	inTables := map[string]int{}
	for _, g := range rows.Groups {
		inTables[g.Table] += int(g.Rows.NumRows())
	}
	var sum pipeline.Counts
	for _, n := range rows.Counts {
		sum.Add(n)
	}
	return inTables, sum
}

func TestWhatALookAlikeRecordsBecomesTheRightRows(t *testing.T) {
	contract, err := schemas.Load("lecturas")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		who    string
		counts pipeline.Counts
	}{
		// A put that changes nothing leaves no record, as on AWS. Nor does TTL, unlike on AWS: the lake
		// keeps the reading either way.
		{"ministack", pipeline.Counts{Rows: 3, Tombstones: 1}},
		// A put that changes nothing is a MODIFY: a change, while the readings count it once. A
		// transaction that adds to a number records two INSERTs of one item. Each is in the lake once:
		// that the second must be wrong is for nobody to know who reads the stream alone.
		{"moto", pipeline.Counts{Rows: 4, Changes: 1, Tombstones: 1}},
	} {
		t.Run(tc.who, func(t *testing.T) {
			p := loadTape(t, tc.who)
			c, l := newCheckpoint(), log{}
			info, err := drive(t, readerOn(p, p.arn(), c, Options{}), c, &l, 9)
			if err != nil || info.Failed != nil {
				t.Fatalf("%+v, %v", info, err)
			}
			for _, r := range l.records() {
				if r.Created.Nanosecond() != 0 {
					t.Errorf("record %s was created at %s, which is no whole second", r.Seq, r.Created)
				}
			}
			inTables, sum := decoded(t, contract, l)
			want := map[string]int{"lecturas": tc.counts.Rows, "lecturas_tombstones": tc.counts.Tombstones}
			if tc.counts.Changes > 0 {
				want["lecturas_changes"] = tc.counts.Changes
			}
			if sum != tc.counts || !reflect.DeepEqual(inTables, want) {
				t.Errorf("counted %+v in %v, want %+v", sum, inTables, tc.counts)
			}
		})
	}
}

// MiniStack says that an iterator is not valid, moto fails with a web page and HTTP 500: both
// after a restart, of iterators that they gave. The reader asks for another one at its position.
func TestAnIteratorThatTheServerForgotIsIssuedAgainFromThePosition(t *testing.T) {
	for _, who := range []string{"ministack", "moto"} {
		t.Run(who, func(t *testing.T) {
			p := loadTape(t, who)
			c, l := newCheckpoint(), log{}
			r := readerOn(p, p.arn(), c, Options{})
			if _, err := drive(t, r, c, &l, 9); err != nil {
				t.Fatal(err)
			}
			before := len(l.records())
			if before == 0 {
				t.Fatal("nothing was read")
			}
			p.forget()
			healed := false
			for range 9 {
				info, err := drive(t, r, c, &l, 1)
				if err != nil {
					t.Fatal(err)
				}
				healed = info.Failed == nil
			}
			if !healed {
				t.Error("the shard is still not read")
			}
			if p.refused < 1 || p.refused > 3 {
				t.Errorf("the forgotten iterator was used %d times", p.refused)
			}
			if n := len(l.records()); n != before {
				t.Errorf("%d records, then %d", before, n)
			}
		})
	}
}
