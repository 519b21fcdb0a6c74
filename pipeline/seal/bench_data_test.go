package seal

import (
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	dynamodb "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/columnar"
	"telemetrylake/pipeline/hot"
	"telemetrylake/schemas"
)

// A staged is what lies in staging for a benchmark.
type staged struct {
	parts [][]byte
	rows  int
	order string // of the rows, in SQL
}

// joined is the staging object that Firehose makes of the parts.
func (s staged) joined() []byte {
	var b []byte
	for _, p := range s.parts {
		b = append(b, p...)
	}
	return b
}

// write puts the parts into files of their own, and returns a pattern for their names.
func (s staged) write(b testing.TB) string {
	dir := b.TempDir()
	for i, p := range s.parts {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%05d.parquet", i)), p, 0o666); err != nil {
			b.Fatal(err)
		}
	}
	return filepath.Join(dir, "*.parquet")
}

// stagedFleet are some megabytes of readings with two values, in large windows.
func (p *plant) stagedFleet(mib int) staged {
	s := staged{order: "device_id, taken_at"}
	s.rows = p.fleetParts(mib, func(body []byte) { s.parts = append(s.parts, append([]byte(nil), body...)) })
	return s
}

// stagedDevices are readings of a simulated fleet, with payloads, tags and positions.
func (p *plant) stagedDevices(mib int) staged {
	p.t.Helper()
	c, err := schemas.Load("device_telemetry")
	if err != nil {
		p.t.Fatal(err)
	}
	f, err := hot.NewFleet(c, hot.FleetOptions{Devices: 2000, Sites: 40, Start: day, Duration: 23 * time.Hour, Interval: time.Minute})
	if err != nil {
		p.t.Fatal(err)
	}
	items := func(yield func(map[string]ddbStream) bool) {
		for e := range f.Events() {
			if e.Kind == hot.KindReading && e.Taken.Before(day.AddDate(0, 0, 1)) && !yield(streamItem(e.Item)) {
				return
			}
		}
	}
	s := p.stageItems(c, items, 20_000, mib<<20)
	s.order = "device_id, event_ts"
	return s
}

// stagedRooms are real readings of a day, where there are any: those of the day that has the most.
func (p *plant) stagedRooms(path string) staged {
	p.t.Helper()
	c, err := schemas.Load("sensor_readings")
	if err != nil {
		p.t.Fatal(err)
	}
	in, err := hot.OpenRoomClimate(path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer in.Close()
	readings, err := hot.NewReadings(c)
	if err != nil {
		p.t.Fatal(err)
	}
	byDay := map[string][]map[string]ddbStream{}
	most := ""
	for {
		r, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			p.t.Fatal(err)
		}
		item, err := readings.Item(r)
		if err != nil {
			p.t.Fatal(err)
		}
		d := r.TakenAt.UTC().Format(time.DateOnly)
		if byDay[d] = append(byDay[d], streamItem(item)); len(byDay[d]) > len(byDay[most]) {
			most = d
		}
	}
	items := func(yield func(map[string]ddbStream) bool) {
		for _, item := range byDay[most] {
			if !yield(item) {
				return
			}
		}
	}
	s := p.stageItems(c, items, 2000, 1<<30)
	s.order = "device_id, taken_at"
	return s
}

// stageItems makes parts of windows of so many items, until they have the bytes asked for.
func (p *plant) stageItems(c *schemas.Contract, items iter.Seq[map[string]ddbStream], perWindow, size int) staged {
	p.t.Helper()
	l := &lane{p: p, shard: pipeline.ShardID("shardId-" + c.Name), contract: c}
	mem := memory.DefaultAllocator
	var err error
	l.Lane, err = pipeline.NewLane(pipeline.Stages{
		Decoder: columnar.NewDecoder(mem), Encoder: columnar.NewEncoder(mem), Sink: l, Checkpoints: p.store, Contracts: p.store,
	}, pipeline.LaneOptions{Lane: pipeline.LaneID(c.Name), Stream: streamARN, Contract: c})
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.store.Shards(streamARN, pipeline.LaneID(c.Name), checkpoint.Run).Own(p.t.Context(), pipeline.Shard{ID: l.shard}); err != nil {
		p.t.Fatal(err)
	}
	if err := l.Open(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	var s staged
	b := pipeline.Batch{Shard: l.shard}
	window := func() {
		l.landed = nil
		if _, err := l.Window(p.t.Context(), []pipeline.Batch{b}); err != nil {
			p.t.Fatal(err)
		}
		for _, part := range l.landed {
			if part.Table != c.LakeTable(schemas.Readings).Name {
				p.t.Fatalf("rows of table %s", part.Table)
			}
			s.parts = append(s.parts, part.Body)
			s.rows += part.Rows
			size -= len(part.Body)
		}
		b.Records = nil
	}
	for item := range items {
		l.seq++
		keys := map[string]ddbStream{}
		for _, k := range c.Keys.Attributes() {
			keys[k] = item[k]
		}
		b.Records = append(b.Records, pipeline.Record{
			Shard: l.shard, Seq: pipeline.SequenceNumber(strconv.Itoa(l.seq)), Op: types.OperationTypeInsert,
			Created: day.Add(time.Duration(l.seq) * time.Millisecond), Keys: keys, New: item,
		})
		if len(b.Records) == perWindow {
			if window(); size <= 0 {
				return s
			}
		}
	}
	if len(b.Records) > 0 {
		window()
	}
	return s
}

// streamItem is an item as the stream has it.
func streamItem(item map[string]dynamodb.AttributeValue) map[string]ddbStream {
	m := make(map[string]ddbStream, len(item))
	for k, v := range item {
		m[k] = streamValue(v)
	}
	return m
}

func streamValue(v dynamodb.AttributeValue) ddbStream {
	switch v := v.(type) {
	case *dynamodb.AttributeValueMemberS:
		return &types.AttributeValueMemberS{Value: v.Value}
	case *dynamodb.AttributeValueMemberN:
		return &types.AttributeValueMemberN{Value: v.Value}
	case *dynamodb.AttributeValueMemberBOOL:
		return &types.AttributeValueMemberBOOL{Value: v.Value}
	case *dynamodb.AttributeValueMemberM:
		return &types.AttributeValueMemberM{Value: streamItem(v.Value)}
	case *dynamodb.AttributeValueMemberL:
		l := &types.AttributeValueMemberL{}
		for _, e := range v.Value {
			l.Value = append(l.Value, streamValue(e))
		}
		return l
	case *dynamodb.AttributeValueMemberSS:
		return &types.AttributeValueMemberSS{Value: v.Value}
	case *dynamodb.AttributeValueMemberNULL:
		return &types.AttributeValueMemberNULL{Value: v.Value}
	}
	panic(fmt.Sprintf("no fleet writes %T", v))
}
