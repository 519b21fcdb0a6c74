package columnar

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
)

// benchBatches are n readings of a thousand nodes, a minute apart, in four shards.
func benchBatches(n int) []pipeline.Batch {
	rng := rand.New(rand.NewPCG(1, 10))
	batches := make([]pipeline.Batch, 4)
	for s := range batches {
		batches[s].Shard = pipeline.ShardID(fmt.Sprint("shardId-", s))
	}
	start := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for i := range n {
		node, at := i%1000, start.Add(time.Duration(i/1000)*time.Minute+time.Duration(rng.IntN(1000))*time.Millisecond)
		b := &batches[node%len(batches)]
		keys := item{"pk": S(fmt.Sprintf("DEVICE#node-%04d#2026-11", node)), "sk": S(at.Format("TS#2006-01-02T15:04:05.000Z"))}
		b.Records = append(b.Records, pipeline.Record{
			Shard: b.Shard, Seq: pipeline.SequenceNumber(fmt.Sprintf("%021d", i+1)), Op: types.OperationTypeInsert, Created: at, Keys: keys,
			New: item{
				"pk": keys["pk"], "sk": keys["sk"], "takenAt": N(fmt.Sprint(at.UnixMilli())), "expiresAt": N(fmt.Sprint(at.Unix() + 30*86400)),
				"celsius": N(fmt.Sprintf("%.2f", 20+rng.Float64())), "humidity": N(fmt.Sprintf("%.3f", 40+rng.Float64())),
			},
		})
	}
	return batches
}

const benchRows = 100_000

func BenchmarkDecode(b *testing.B) {
	c, batches := loadContract(b, "sensor_readings"), benchBatches(benchRows)
	d := NewDecoder(memory.DefaultAllocator)
	b.ReportAllocs()
	for b.Loop() {
		rows, err := d.Decode(c, batches)
		if err != nil {
			b.Fatal(err)
		}
		rows.Release()
	}
	perSecond(b, benchRows)
}

func BenchmarkEncode(b *testing.B) {
	rows, err := NewDecoder(memory.DefaultAllocator).Decode(loadContract(b, "sensor_readings"), benchBatches(benchRows))
	if err != nil {
		b.Fatal(err)
	}
	defer rows.Release()
	e := NewEncoder(memory.DefaultAllocator)
	b.ReportAllocs()
	for b.Loop() {
		var out bytes.Buffer
		if err := e.Encode(&out, rows.Groups[0].Rows, nil); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(out.Len())/benchRows, "B/row")
	}
	perSecond(b, benchRows)
}

func BenchmarkMerge(b *testing.B) {
	c, mem := loadContract(b, "sensor_readings"), memory.DefaultAllocator
	const parts = 20
	var encoded [][]byte
	var order []string
	for i, batch := range benchBatches(5 * benchRows) {
		size := len(batch.Records) * 4 / parts
		for ; len(batch.Records) > 0; batch.Records = batch.Records[min(size, len(batch.Records)):] {
			rows, err := NewDecoder(mem).Decode(c, []pipeline.Batch{{Shard: batch.Shard, Records: batch.Records[:min(size, len(batch.Records))]}})
			if err != nil {
				b.Fatal(i, err)
			}
			encoded = append(encoded, encode(b, mem, rows.Groups[0].Rows))
			order = rows.Groups[0].Order
			rows.Release()
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		sections := make([]*io.SectionReader, len(encoded))
		for i, p := range encoded {
			sections[i] = section(p)
		}
		if err := NewMerger(mem).Merge(context.Background(), io.Discard, sections, order, nil); err != nil {
			b.Fatal(err)
		}
	}
	perSecond(b, 5*benchRows)
}

func perSecond(b *testing.B, rows int) {
	b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}
