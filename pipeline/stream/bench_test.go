package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"

	"telemetrylake/pipeline"
)

// A feed is a server of many shards that is fast enough to measure its reader: every shard has
// the same number of records, in full pages, and then empty ones.
type feed struct {
	shards, records, perPage int // records of each shard
	mu                       sync.Mutex
	calls                    map[string]int
}

func (f *feed) reader(o Options) *Reader {
	f.calls = map[string]int{}
	o.StreamARN, o.Shards = stubARN, newCheckpoint()
	return New(dynamodbstreams.New(dynamodbstreams.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://streams.internal"), HTTPClient: &http.Client{Transport: f}, Retryer: aws.NopRetryer{},
	}), o)
}

func (f *feed) RoundTrip(r *http.Request) (*http.Response, error) {
	var in stubRequest
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, err
	}
	_, op, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	f.mu.Lock()
	f.calls[op]++
	f.mu.Unlock()
	var b []byte
	switch op {
	case "DescribeStream":
		b = f.describe(in.ExclusiveStart)
	case "GetShardIterator":
		b = fmt.Appendf(nil, `{"ShardIterator":"%s|0"}`, in.ShardID)
	default:
		b = f.page(in.ShardIterator)
	}
	return &http.Response{
		StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:  http.Header{"Content-Type": {"application/x-amz-json-1.0"}},
		Request: r, Body: io.NopCloser(bytes.NewReader(b)), ContentLength: int64(len(b)),
	}, nil
}

func (f *feed) describe(after string) []byte {
	first := 0
	if after != "" {
		first, _ = strconv.Atoi(after[len("shard-"):])
		first++
	}
	last := min(first+100, f.shards)
	b := fmt.Appendf(nil, `{"StreamDescription":{"StreamArn":%q,"StreamStatus":"ENABLED"`, stubARN)
	if last < f.shards {
		b = fmt.Appendf(b, `,"LastEvaluatedShardId":"shard-%06d"`, last-1)
	}
	b = append(b, `,"Shards":[`...)
	for i := first; i < last; i++ {
		b = fmt.Appendf(b, `{"ShardId":"shard-%06d","SequenceNumberRange":{"StartingSequenceNumber":"1"}},`, i)
	}
	return append(bytes.TrimSuffix(b, []byte(",")), "]}}"...)
}

func (f *feed) page(iterator string) []byte {
	shard, at, _ := strings.Cut(iterator, "|")
	from, _ := strconv.Atoi(at)
	to := min(from+f.perPage, f.records)
	b := make([]byte, 0, 128+300*(to-from))
	b = fmt.Appendf(b, `{"NextShardIterator":"%s|%d","Records":[`, shard, to)
	for n := from; n < to; n++ {
		if n > from {
			b = append(b, ',')
		}
		b = append(b, `{"eventID":"e","eventName":"INSERT","dynamodb":{"ApproximateCreationDateTime":1772438400,"SizeBytes":180,"Keys":{"device_id":{"S":"sensor-000123"},"ts":{"S":"2026-03-02T08:00:00.000Z"}},"NewImage":{"device_id":{"S":"sensor-000123"},"ts":{"S":"2026-03-02T08:00:00.000Z"},"temperature":{"N":"21.53"},"humidity":{"N":"40.1"}},"SequenceNumber":"1000000000000`...)
		b = fmt.Appendf(b, "%09d", n)
		b = append(b, `"}}`...)
	}
	return append(b, "]}"...)
}

// processorTime is what this process has used, with the server that it plays.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkIdleShards is a minute of polling a thousand shards at rest, on a clock of its own:
// what Poll does, but for the waiting.
func BenchmarkIdleShards(b *testing.B) {
	f := &feed{shards: 1000}
	now := start
	r := f.reader(Options{Parallel: 1, Now: func() time.Time { return now }})
	minute := func() {
		for end := now.Add(time.Minute); now.Before(end); {
			now = now.Add(max(0, r.idle(now)))
			r.polled = now
			if _, err := r.round(b.Context(), func(pipeline.Batch) error { return nil }, true); err != nil {
				b.Fatal(err)
			}
		}
	}
	minute() // meets the shards and walks to their tips
	clear(f.calls)
	before := processorTime(b)
	for b.Loop() {
		minute()
	}
	used := processorTime(b) - before
	b.ReportMetric(float64(f.calls["GetRecords"])/float64(b.N), "pages/min")
	b.ReportMetric(float64(f.calls["DescribeStream"])/float64(b.N), "listings/min")
	b.ReportMetric(used.Seconds()/float64(b.N)/60*100, "%cpu")
}

// resident is how much memory this process holds, in bytes: VmRSS of proc(5). False where there is no
// such file.
func resident() (int, bool) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			kb, err := strconv.Atoi(f[1])
			return kb << 10, err == nil
		}
	}
	return 0, false
}

// A memoryRecord is the most memory held in each quarter of a piece of work.
type memoryRecord struct{ heap, resident [4]int }

func (m *memoryRecord) note(done, of int) {
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	q := min(len(m.heap)-1, len(m.heap)*done/max(1, of))
	m.heap[q] = max(m.heap[q], int(now.HeapInuse))
	if n, ok := resident(); ok {
		m.resident[q] = max(m.resident[q], n)
	}
}

// rose reports whether the last quarter held more than the second: by a half, and more than
// the garbage collector's own ups and downs. In the first all is still growing to its size.
func (m *memoryRecord) rose() bool {
	const slack = 16 << 20
	more := func(q [4]int) bool { return q[3] > q[1]+max(q[1]/2, slack) }
	return more(m.heap) || more(m.resident)
}

// catchUp reads all that a feed has.
func (f *feed) catchUp(ctx context.Context, o Options) (m memoryRecord, err error) {
	r := f.reader(o)
	for read, total := 0, f.records*f.shards; read < total; {
		info, err := r.Poll(ctx, func(pipeline.Batch) error { return nil })
		if err != nil {
			return m, err
		}
		read += info.Records
		m.note(read, total)
	}
	return m, nil
}

func TestMemoryDoesNotGrowWithTheBacklog(t *testing.T) {
	f := &feed{shards: 16, records: 8000, perPage: 500}
	m, err := f.catchUp(t.Context(), Options{Budget: 1e6})
	if err != nil {
		t.Fatal(err)
	}
	if m.rose() {
		t.Errorf("by quarters of the backlog: heap %v, resident %v bytes", m.heap, m.resident)
	}
}

// BenchmarkCatchUp reads a backlog of a million records over 64 shards, or of BACKLOG records. What
// the process holds must not grow with it.
func BenchmarkCatchUp(b *testing.B) {
	const shards = 64
	total := 1_000_000
	if n, err := strconv.Atoi(os.Getenv("BACKLOG")); err == nil {
		total = n
	}
	f := &feed{shards: shards, records: (total + shards - 1) / shards, perPage: 1000}
	var all memoryRecord
	before := processorTime(b)
	for b.Loop() {
		m, err := f.catchUp(b.Context(), Options{Budget: 1e6})
		if err != nil {
			b.Fatal(err)
		}
		if m.rose() {
			b.Errorf("by quarters of the backlog: heap %v, resident %v bytes", m.heap, m.resident)
		}
		for q := range all.heap {
			all.heap[q], all.resident[q] = max(all.heap[q], m.heap[q]), max(all.resident[q], m.resident[q])
		}
	}
	b.ReportMetric(float64(f.records*shards)*float64(b.N)/(processorTime(b)-before).Seconds(), "records/cpu-s")
	for q := range all.heap {
		b.ReportMetric(float64(all.heap[q])/(1<<20), fmt.Sprintf("MB-heap-q%d", q+1))
		b.ReportMetric(float64(all.resident[q])/(1<<20), fmt.Sprintf("MB-rss-q%d", q+1))
	}
}
