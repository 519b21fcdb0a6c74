package stream

import (
	"bytes"
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

// BenchmarkCatchUp reads a backlog over 64 shards: 256,000 records, or BACKLOG. The heap must not
// grow with it.
func BenchmarkCatchUp(b *testing.B) {
	const shards = 64
	total := shards * 4000
	if n, err := strconv.Atoi(os.Getenv("BACKLOG")); err == nil {
		total = n
	}
	f := &feed{shards: shards, records: (total + shards - 1) / shards, perPage: 1000}
	var early, late uint64
	before := processorTime(b)
	for b.Loop() {
		r := f.reader(Options{Budget: 1e6})
		read := 0
		for read < f.records*shards {
			info, err := r.Poll(b.Context(), func(pipeline.Batch) error { return nil })
			if err != nil {
				b.Fatal(err)
			}
			read += info.Records
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			if 2*read <= f.records*shards {
				early = max(early, m.HeapInuse)
			} else {
				late = max(late, m.HeapInuse)
			}
		}
	}
	b.ReportMetric(float64(f.records*shards)*float64(b.N)/(processorTime(b)-before).Seconds(), "records/cpu-s")
	b.ReportMetric(float64(early)/(1<<20), "MB-heap-first-half")
	b.ReportMetric(float64(late)/(1<<20), "MB-heap-second-half")
}
