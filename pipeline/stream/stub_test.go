package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"

	"telemetrylake/pipeline"
)

// A stub is a server of DynamoDB Streams that answers as tests script it, for answers that a
// healthy server does not give. It has no clock and keeps no state but counts.
type stub struct {
	mu          sync.Mutex
	shards      []*stubShard
	perDescribe int                           // shards of one listing page; 0: all
	noFilter    bool                          // CHILD_SHARDS is refused
	fail        func(op, shard string) string // the error's name, "" for none
	calls       map[string]int                // by operation, and by operation and shard
	now         func() time.Time              // the server's clock; nil: answers do not say
	ranges      bool                          // listings say which numbers a shard may have
	comesBack   bool                          // each page of a listing but the first says that it goes on behind the first
	delay       time.Duration                 // of each call
	noNext      int                           // so many pages come without a next iterator
	streams     []string                      // that the table has, as ListStreams says
	viewType    string                        // "": not said
	page        *string                       // the records of every page, as they are sent; nil: the shard's
}

type stubShard struct {
	id, parent string
	hidden     int // complete listings that do not name it; -1: none ever does
	pages      [][]int
	open       bool
	gone       bool
	restarts   bool // AFTER_SEQUENCE_NUMBER is ignored
	trimmed    int  // records up to this value are gone, and positions before it
	created    map[int]time.Time
	records    map[int]string
}

const stubARN = "arn:aws:dynamodb:us-east-1:000000000000:table/items/stream/2026-03-02T08:00:00.000"

func seq(n int) pipeline.SequenceNumber {
	return pipeline.SequenceNumber(fmt.Sprintf("%021d", 100000+n))
}

func (s *stub) reader(c *checkpoint, o Options) *Reader {
	s.calls = map[string]int{}
	client := dynamodbstreams.New(dynamodbstreams.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://streams.internal"),
		HTTPClient: &http.Client{Transport: s}, Retryer: aws.NopRetryer{},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		}),
	})
	o.StreamARN, o.Shards = stubARN, c
	if o.RetryBase == 0 {
		o.RetryBase, o.RetryCap = time.Microsecond, time.Microsecond
	}
	return New(client, o)
}

type stubRequest struct {
	ShardID           string `json:"ShardId"`
	ShardIterator     string
	ShardIteratorType string
	SequenceNumber    string
	ExclusiveStart    string `json:"ExclusiveStartShardId"`
	ShardFilter       *struct {
		ShardID string `json:"ShardId"`
	}
}

func (s *stub) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.delay > 0 {
		if err := pipeline.Wait(r.Context(), s.delay); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var in stubRequest
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, err
	}
	_, op, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	shard := in.ShardID
	if in.ShardIterator != "" {
		shard, _, _ = strings.Cut(in.ShardIterator, "|")
	}
	if in.ShardFilter != nil {
		op, shard = "Children", in.ShardFilter.ShardID
	}
	s.calls[op]++
	s.calls[op+" "+shard]++
	status, body := http.StatusOK, any(nil)
	name := ""
	if s.fail != nil {
		name = s.fail(op, shard)
	}
	if name == "" {
		body, name = s.answer(op, shard, in)
	}
	if name != "" {
		status, body = http.StatusBadRequest, map[string]string{"__type": "com.amazonaws.dynamodb.v20120810#" + name, "message": "scripted"}
		if name == "InternalServerError" {
			status = http.StatusInternalServerError
		}
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	if s.page != nil && op == "GetRecords" {
		text = []byte(`{"Records":[` + *s.page + `]}`)
	}
	header := http.Header{"Content-Type": {"application/x-amz-json-1.0"}}
	if s.now != nil {
		header.Set("Date", s.now().UTC().Format(http.TimeFormat))
	}
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Request: r,
		Body: io.NopCloser(strings.NewReader(string(text))), ContentLength: int64(len(text)),
	}, nil
}

func (s *stub) find(id string) *stubShard {
	for _, sh := range s.shards {
		if sh.id == id && !sh.gone {
			return sh
		}
	}
	return nil
}

func (s *stub) answer(op, shard string, in stubRequest) (body any, failure string) {
	switch op {
	case "ListStreams":
		listed := []map[string]string{}
		for _, arn := range s.streams {
			listed = append(listed, map[string]string{"StreamArn": arn})
		}
		return map[string]any{"Streams": listed}, ""
	case "DescribeStream", "Children":
		return s.describe(op == "Children", shard, in)
	}
	sh := s.find(shard)
	if sh == nil {
		return nil, "ResourceNotFoundException"
	}
	if op == "GetShardIterator" {
		page := 0
		if in.SequenceNumber != "" && pipeline.SequenceNumber(in.SequenceNumber).Compare(seq(sh.trimmed)) <= 0 && sh.trimmed > 0 {
			return nil, "TrimmedDataAccessException"
		}
		for in.SequenceNumber != "" && !sh.restarts && page < len(sh.pages) {
			p := sh.pages[page]
			if n := len(p); n > 0 {
				c := seq(p[n-1]).Compare(pipeline.SequenceNumber(in.SequenceNumber))
				if c > 0 || c == 0 && in.ShardIteratorType == "AT_SEQUENCE_NUMBER" {
					break
				}
			}
			page++
		}
		return map[string]string{"ShardIterator": shard + "|" + strconv.Itoa(page)}, ""
	}
	_, number, _ := strings.Cut(in.ShardIterator, "|")
	page, _ := strconv.Atoi(number)
	records := []any{}
	if page < len(sh.pages) {
		for _, n := range sh.pages[page] {
			if sh.trimmed > 0 && n <= sh.trimmed {
				continue
			}
			text, ok := sh.records[n]
			if !ok {
				text = fmt.Sprintf(`{"eventName":"INSERT","dynamodb":{"ApproximateCreationDateTime":%d,"Keys":{"id":{"S":"k%d"}},"NewImage":{"v":{"N":"%d"}},"SequenceNumber":"%s"}}`, sh.createdAt(n).Unix(), n, n, seq(n))
			}
			records = append(records, json.RawMessage(text))
		}
	}
	out := map[string]any{"Records": records}
	if s.noNext > 0 {
		s.noNext--
		return out, ""
	}
	if page+1 < len(sh.pages) {
		out["NextShardIterator"] = shard + "|" + strconv.Itoa(page+1)
	} else if sh.open {
		out["NextShardIterator"] = shard + "|" + strconv.Itoa(max(page, len(sh.pages)-1)+1)
	}
	return out, ""
}

func (sh *stubShard) createdAt(n int) time.Time {
	if at, ok := sh.created[n]; ok {
		return at
	}
	return start
}

// numbers is what a listing says of the shard's possible numbers.
func (sh *stubShard) numbers() map[string]string {
	m := map[string]string{"StartingSequenceNumber": string(seq(0))}
	if !sh.open {
		m["EndingSequenceNumber"] = string(seq(99999))
	}
	return m
}

func (s *stub) describe(children bool, parent string, in stubRequest) (body any, failure string) {
	if children && s.noFilter {
		return nil, "ValidationException"
	}
	listed := []any{}
	last := ""
	if s.comesBack && in.ExclusiveStart != "" && !children {
		last = s.shards[0].id
	}
	started := in.ExclusiveStart == ""
	for _, sh := range s.shards {
		if started && !sh.gone && (!children || sh.parent == parent) {
			if s.perDescribe > 0 && len(listed) == s.perDescribe {
				last = listed[len(listed)-1].(map[string]any)["ShardId"].(string)
				break
			}
			if sh.hidden == 0 {
				m := map[string]any{"ShardId": sh.id}
				if s.ranges {
					m["SequenceNumberRange"] = sh.numbers()
				}
				if sh.parent != "" {
					m["ParentShardId"] = sh.parent
				}
				listed = append(listed, m)
			} else if sh.hidden > 0 {
				sh.hidden--
			}
		}
		started = started || sh.id == in.ExclusiveStart
	}
	d := map[string]any{"StreamArn": stubARN, "StreamStatus": "ENABLED", "Shards": listed}
	if s.viewType != "" {
		d["StreamViewType"] = s.viewType
	}
	if last != "" {
		d["LastEvaluatedShardId"] = last
	}
	return map[string]any{"StreamDescription": d}, ""
}

// drive reads and commits for a number of rounds, or until caught up.
func drive(t *testing.T, r *Reader, c *checkpoint, l *log, rounds int) (RoundInfo, error) {
	t.Helper()
	var info RoundInfo
	for range rounds {
		n := len(*l)
		var err error
		if info, err = r.Round(t.Context(), l.emit); err != nil {
			return info, err
		}
		c.commit((*l)[n:]...)
		if info.CaughtUp() {
			break
		}
	}
	return info, nil
}

func wantValues(t *testing.T, l log, want ...int) {
	t.Helper()
	if got := values(t, l.records()); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("read %v, want %v", got, want)
	}
}
