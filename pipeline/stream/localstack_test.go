package stream

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/columnar"
	"telemetrylake/schemas"
)

// A localStack answers as LocalStack 4.14 does, whose stream is a Kinesis stream in disguise: one
// shard that never closes, Kinesis's own sequence numbers of 56 digits, and Kinesis's iterator
// behind the stream's name and "|1|". Where Kinesis gives no next iterator, it writes None in its
// place, and fails with an internal error when that is used.
type localStack struct {
	mu       sync.Mutex
	records  []string // JSON, without sequence number
	perPage  int
	none     bool // Kinesis gives no next iterator
	calls    map[string]int
	failures int // that a client brought on itself
}

const (
	localStackARN   = "arn:aws:dynamodb:us-east-1:000000000000:table/lecturas/stream/2026-11-30T19:35:38.968"
	localStackShard = "shardId-00000001796000000000-000000000000"
)

func kinesisNumber(n int) string {
	return fmt.Sprintf("49645426545634832904236178484873862519466943187%09d", 21414402+n)
}

// change is a record of one item, with more of its attributes.
func change(event string, n int, images string) string {
	return fmt.Sprintf(`{"eventID":"%d","eventName":%q,"eventVersion":"1.1","eventSource":"aws:dynamodb","awsRegion":"us-east-1","dynamodb":{`+
		`"ApproximateCreationDateTime":1796067338,"StreamViewType":"NEW_AND_OLD_IMAGES","SizeBytes":110,`+
		`"Keys":{"dispositivoId":{"S":"d1"},"ts":{"S":"2026-11-30T10:00:%02dZ"}}%s`, n, event, n, images)
}

func insert(n int) string {
	return change("INSERT", n, fmt.Sprintf(`,"NewImage":{"dispositivoId":{"S":"d1"},"ts":{"S":"2026-11-30T10:00:%02dZ"},"valor":{"N":"%d"}}`, n, n))
}

func (s *localStack) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var in stubRequest
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, err
	}
	_, op, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	if s.calls == nil {
		s.calls = map[string]int{}
	}
	s.calls[op]++
	switch op {
	case "DescribeStream":
		if in.ShardFilter != nil {
			s.calls["Children"]++
			return answer(r, http.StatusBadRequest, `{"__type":"ValidationException","message":"ShardFilter is not supported"}`), nil
		}
		return answer(r, http.StatusOK, s.describe()), nil
	case "GetShardIterator":
		at := 0
		for in.SequenceNumber != "" && at < len(s.records) {
			c := pipeline.SequenceNumber(kinesisNumber(at)).Compare(pipeline.SequenceNumber(in.SequenceNumber))
			if c > 0 || c == 0 && in.ShardIteratorType == "AT_SEQUENCE_NUMBER" {
				break
			}
			at++
		}
		return answer(r, http.StatusOK, fmt.Sprintf(`{"ShardIterator":"%s|1|%d"}`, localStackARN, at)), nil
	}
	cut := strings.LastIndex(in.ShardIterator, "|") + 1
	at, err := strconv.Atoi(in.ShardIterator[cut:])
	if err != nil {
		s.failures++
		return answer(r, http.StatusInternalServerError, `{"__type":"InternalError","message":"exception while calling dynamodbstreams.GetRecords: An error occurred (InvalidArgumentException) when calling the GetRecords operation"}`), nil
	}
	end := min(at+s.perPage, len(s.records))
	records := []string{}
	for i := at; i < end; i++ {
		records = append(records, s.records[i]+fmt.Sprintf(`,"SequenceNumber":"%s"}}`, kinesisNumber(i)))
	}
	next := strconv.Itoa(end)
	if s.none {
		next = "None"
	}
	return answer(r, http.StatusOK, fmt.Sprintf(`{"Records":[%s],"NextShardIterator":"%s%s"}`, strings.Join(records, ","), in.ShardIterator[:cut], next)), nil
}

func (s *localStack) describe() string {
	return fmt.Sprintf(`{"StreamDescription":{"TableName":"lecturas","StreamArn":%q,"StreamLabel":"2026-11-30T19:35:38.968",`+
		`"StreamStatus":"ENABLED","StreamViewType":"NEW_IMAGE","KeySchema":[{"AttributeName":"dispositivoId","KeyType":"HASH"}],`+
		`"Shards":[{"ShardId":%q,"SequenceNumberRange":{"StartingSequenceNumber":%q}}]}}`, localStackARN, localStackShard, kinesisNumber(0))
}

func (s *localStack) add(records ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = append(s.records, records...)
}

// valores are the values of the readings that were emitted, in order.
func valores(t *testing.T, l log) []string {
	t.Helper()
	var all []string
	for _, r := range l.records() {
		v, ok := r.New["valor"].(*types.AttributeValueMemberN)
		if !ok {
			t.Fatalf("record %s has the item %v", r.Seq, r.New)
		}
		all = append(all, v.Value)
	}
	return all
}

func wantValores(t *testing.T, l log, want ...string) {
	t.Helper()
	if got := valores(t, l); !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
}

func TestLocalStacksShardIsReadOnceAndPolledOn(t *testing.T) {
	s := &localStack{perPage: 2}
	s.add(insert(1), insert(2), insert(3), insert(4), insert(5))
	c, l := newCheckpoint(), log{}
	r := readerOn(s, localStackARN, c, Options{})
	if _, err := drive(t, r, c, &l, 9); err != nil {
		t.Fatal(err)
	}
	wantValores(t, l, "1", "2", "3", "4", "5")
	s.add(insert(6))
	for range 3 {
		if _, err := drive(t, r, c, &l, 1); err != nil {
			t.Fatal(err)
		}
	}
	wantValores(t, l, "1", "2", "3", "4", "5", "6")
	if seq := c.committed[localStackShard].Seq; string(seq) != kinesisNumber(5) || len(seq) != 56 {
		t.Errorf("committed up to %s", seq)
	}
	// Another process goes on behind the committed number, longer than any of AWS's.
	s.add(insert(7))
	r = readerOn(s, localStackARN, c, Options{})
	l = log{}
	info, err := drive(t, r, c, &l, 9)
	if err != nil || info.Ended {
		t.Fatalf("%+v, %v", info, err)
	}
	wantValores(t, l, "7")
	l = log{}
	ranges := []pipeline.Range{{Shard: localStackShard, First: pipeline.SequenceNumber(kinesisNumber(1)), Last: pipeline.SequenceNumber(kinesisNumber(3))}}
	if err := r.Replay(t.Context(), ranges, l.emit); err != nil {
		t.Fatal(err)
	}
	wantValores(t, l, "2", "3", "4")
	// A shard that never closes has no children to ask for.
	if s.calls["Children"] > 0 || s.failures > 0 {
		t.Errorf("calls %v, %d failures", s.calls, s.failures)
	}
}

// None is neither an iterator nor the end of the shard: taking it for the end would leave all that
// comes after unread, for ever and in silence.
func TestAnIteratorThatEndsInNoneIsNotTheEndOfTheShard(t *testing.T) {
	s := &localStack{perPage: 2, none: true}
	s.add(insert(1), insert(2), insert(3))
	c, l := newCheckpoint(), log{}
	r := readerOn(s, localStackARN, c, Options{})
	want := []string{"1", "2", "3"}
	for n := 4; n < 9; n++ {
		for range 12 {
			if _, err := drive(t, r, c, &l, 1); err != nil {
				t.Fatal(err)
			}
		}
		wantValores(t, l, want...)
		if c.committed[localStackShard].End {
			t.Fatal("the shard was committed to its end")
		}
		s.add(insert(n))
		want = append(want, strconv.Itoa(n))
	}
	s.none = false
	for range 12 {
		if _, err := drive(t, r, c, &l, 1); err != nil {
			t.Fatal(err)
		}
	}
	wantValores(t, l, want...)
	failures := s.failures
	for range 12 {
		info, err := drive(t, r, c, &l, 1)
		if err != nil || info.Failed != nil {
			t.Fatalf("%+v, %v", info, err)
		}
	}
	if s.failures != failures {
		t.Errorf("%d calls with None after Kinesis gave iterators again", s.failures-failures)
	}
}

// A server that does not know the filter refuses it, ignores it and lists the shard itself, or
// fails: it is asked once for each shard that ends, and the listing serves in its place.
func TestAFilterThatAServerDoesNotKnowIsNotAskedForAgain(t *testing.T) {
	s := &stub{noFilter: true, shards: []*stubShard{
		{id: "a", pages: [][]int{{1}}}, {id: "b", parent: "a", hidden: 2, pages: [][]int{{2}}}, {id: "c", parent: "b", hidden: 4, pages: [][]int{{3}}, open: true},
	}}
	c, l := newCheckpoint(), log{}
	now := start
	r := s.reader(c, Options{Now: func() time.Time { return now }})
	for range 20 {
		if _, err := drive(t, r, c, &l, 1); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Minute)
	}
	wantValues(t, l, 1, 2, 3)
	for _, shard := range []string{"a", "b"} {
		if n := s.calls["Children "+shard]; n > 1 {
			t.Errorf("the children of shard %s were asked for %d times", shard, n)
		}
	}
}

// LocalStack deletes what has expired like any client: no identity stands on the record. That TTL
// did it cannot be told, and is not concluded from a time that has passed.
func TestLocalStacksExpiryIsATombstoneOfUnknownCause(t *testing.T) {
	contract, err := schemas.Load("lecturas")
	if err != nil {
		t.Fatal(err)
	}
	item := func(expires string) string {
		return `,"OldImage":{"dispositivoId":{"S":"d1"},"ts":{"S":"2026-11-30T10:00:01Z"},"expira":{"N":"` + expires + `"}}`
	}
	for name, tc := range map[string]struct{ record, want string }{
		"with the old image, expired":     {change("REMOVE", 1, item("1796067000")), schemas.CauseUnknown},
		"with the old image, not expired": {change("REMOVE", 1, item("1796068000")), schemas.CauseUser},
		"keys only":                       {change("REMOVE", 1, ""), schemas.CauseUser},
		"an identity that names nobody":   {`{"userIdentity":{},` + strings.TrimPrefix(change("REMOVE", 1, ""), "{"), schemas.CauseUser},
		"another service":                 {`{"userIdentity":{"Type":"Service","PrincipalId":"other.amazonaws.com"},` + strings.TrimPrefix(change("REMOVE", 1, ""), "{"), schemas.CauseUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			s := &localStack{perPage: 2}
			s.add(tc.record)
			c, l := newCheckpoint(), log{}
			if _, err := drive(t, readerOn(s, localStackARN, c, Options{}), c, &l, 3); err != nil {
				t.Fatal(err)
			}
			inTables, sum := decoded(t, contract, l)
			if sum != (pipeline.Counts{Tombstones: 1}) || inTables["lecturas_tombstones"] != 1 {
				t.Fatalf("counted %+v in %v", sum, inTables)
			}
			if got := cause(t, contract, l); got != tc.want {
				t.Errorf("delete_cause is %s, want %s", got, tc.want)
			}
		})
	}
}

// cause is what the one tombstone says of who deleted the item.
func cause(t *testing.T, c *schemas.Contract, l log) string {
	t.Helper()
	rows, err := columnar.NewDecoder(memory.DefaultAllocator).Decode(c, l)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Release()
	batch := rows.Groups[0].Rows
	column := batch.Schema().FieldIndices(string(schemas.DeleteCause))[0]
	return batch.Column(column).(*array.String).Value(0)
}
