package seal

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/columnar"
	"telemetrylake/pipeline/lake"
	"telemetrylake/schemas"
)

var stagingMiB = flag.Int("staging", 16, "size of the staging object that a process seals, in MiB")

// maxRSS is what a process that seals may hold.
const maxRSS = 512 << 20

// fleet is a decoder that knows its rows already: a day of many devices, in each window a few
// milliseconds later and with other values, so that no part can be merged without its neighbours.
type fleet struct {
	rng    *rand.Rand
	schema *arrow.Schema
	rows   arrow.RecordBatch
	order  []string
	n      int64
}

const fleetRows = 240_000

func newFleet(t testing.TB) *fleet {
	t.Helper()
	c, err := schemas.Load("sensor_readings")
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 8))
	var rs []pipeline.Record
	for i := range fleetRows {
		at := day.Add(time.Duration(i%1200)*72*time.Second + time.Duration(rng.IntN(70_000))*time.Millisecond)
		text := at.Format("2006-01-02T15:04:05.000Z")
		keys := map[string]ddbStream{
			"pk": &types.AttributeValueMemberS{Value: fmt.Sprintf("DEVICE#%d", 1000+i/1200)}, "sk": &types.AttributeValueMemberS{Value: "TS#" + text},
		}
		item := map[string]ddbStream{
			"pk": keys["pk"], "sk": keys["sk"], "takenAt": &types.AttributeValueMemberN{Value: strconv.FormatInt(at.UnixMilli(), 10)},
			"celsius":  &types.AttributeValueMemberN{Value: fmt.Sprintf("%.2f", 20+5*rng.NormFloat64())},
			"humidity": &types.AttributeValueMemberN{Value: fmt.Sprintf("%.2f", 50+3*rng.NormFloat64())},
		}
		rs = append(rs, pipeline.Record{
			Shard: shardID, Seq: pipeline.SequenceNumber(strconv.Itoa(1_000_000 + i)), Op: types.OperationTypeInsert, Created: at, Keys: keys, New: item,
		})
	}
	rows, err := columnar.NewDecoder(memory.DefaultAllocator).Decode(c, []pipeline.Batch{{Shard: shardID, Records: rs}})
	if err != nil || len(rows.Groups) != 1 {
		t.Fatalf("%d groups, %v", len(rows.Groups), err)
	}
	g := rows.Groups[0]
	return &fleet{rng: rng, schema: g.Rows.Schema(), rows: g.Rows, order: g.Order}
}

func (f *fleet) Decode(_ *schemas.Contract, b []pipeline.Batch) (*pipeline.Rows, error) {
	f.n += 3
	cols := append([]arrow.Array{}, f.rows.Columns()...)
	i := f.schema.FieldIndices(f.order[len(f.order)-1])[0]
	times := array.NewTimestampBuilder(memory.DefaultAllocator, cols[i].DataType().(*arrow.TimestampType))
	for _, v := range cols[i].(*array.Timestamp).TimestampValues() {
		times.Append(v + arrow.Timestamp(f.n))
	}
	cols[i] = times.NewArray()
	f.measure(cols, "celsius", 2000, 500)
	f.measure(cols, "humidity", 50_000, 3000)
	for _, c := range cols {
		c.Retain()
	}
	return &pipeline.Rows{
		Groups: []pipeline.Group{{
			Table: "sensor_readings", Partition: "dt=2026-11-30", Order: f.order, Rows: array.NewRecordBatch(f.schema, cols, f.rows.NumRows()),
		}},
		Counts: map[pipeline.ShardID]pipeline.Counts{b[0].Shard: {Rows: int(f.rows.NumRows())}},
	}, nil
}

// measure replaces the values of a column.
func (f *fleet) measure(cols []arrow.Array, name string, mean, spread float64) {
	i := f.schema.FieldIndices(name)[0]
	values := array.NewDecimal128Builder(memory.DefaultAllocator, cols[i].DataType().(*arrow.Decimal128Type))
	for range cols[i].Len() {
		values.Append(decimal128.FromI64(int64(mean + spread*f.rng.NormFloat64())))
	}
	cols[i] = values.NewArray()
}

// fleetParts gives parts of about 900 KB to take until it has taken some megabytes, and returns how many rows
// they hold.
func (p *plant) fleetParts(mib int, take func([]byte)) int {
	p.t.Helper()
	l := p.newLaneOf("fleet", "shardId-9", pipeline.PartSize{})
	mem := memory.DefaultAllocator
	f := newFleet(p.t)
	var err error
	l.Lane, err = pipeline.NewLane(pipeline.Stages{
		Decoder: f, Encoder: columnar.NewEncoder(mem), Sink: l, Checkpoints: p.store, Contracts: p.store,
	}, pipeline.LaneOptions{Lane: "fleet", Stream: streamARN, Contract: l.contract})
	if err != nil {
		p.t.Fatal(err)
	}
	if err := l.Open(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	rows := 0
	for bytes := 0; bytes < mib<<20; {
		parts, err := l.tryWindow(reading{1, 0})
		if err != nil {
			p.t.Fatal(err)
		}
		rows += int(f.rows.NumRows())
		for _, b := range parts {
			bytes += len(b)
			take(b)
		}
	}
	return rows
}

// A process that seals an object of Firehose's size stays small, and what it writes has large row
// groups. It is this test's own program, so that nothing but sealing is in it.
func TestAProcessThatSealsStaysSmall(t *testing.T) {
	if at := os.Getenv("SEAL_TEST_ENDPOINT"); at != "" {
		sealAlone(t, at)
		return
	}
	p := newPlant(t)
	body := lake.NewSpool()
	defer body.Close()
	size := int64(0)
	rows := p.fleetParts(*stagingMiB, func(b []byte) {
		n, err := body.Write(b)
		if err != nil {
			t.Fatal(err)
		}
		size += int64(n)
	})
	if err := p.staging.CreateFrom(t.Context(), "a", io.NewSectionReader(body, 0, size)); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(p.env)
	defer srv.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestAProcessThatSealsStaysSmall$", "-test.v")
	cmd.Env = append(os.Environ(), "SEAL_TEST_ENDPOINT="+srv.URL)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var did told
	for line := range strings.Lines(string(out)) {
		if text, ok := strings.CutPrefix(line, "told "); ok {
			if err := json.Unmarshal([]byte(text), &did); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d MiB of staging: %d parts, %d rows in %s, RSS %d MiB", size>>20, did.Report.Parts, did.Report.Rows, did.Took.Round(time.Millisecond), did.RSS>>20)
	if did.Report.Rows != rows || did.Report.Created != 1 || did.Report.Removed != 1 {
		t.Errorf("report %+v, want %d rows in one object", did.Report, rows)
	}
	if did.RSS > maxRSS && !raceDetector {
		t.Errorf("the process held %d MiB, want at most %d", did.RSS>>20, maxRSS>>20)
	}
	for _, key := range p.keys(p.lake) {
		err := p.lake.View(t.Context(), pipeline.Object{Key: key}, func(r *io.SectionReader) error {
			_, md, err := fileBefore(newSource(r), r.Size())
			if err != nil {
				return err
			}
			for i, g := range md.RowGroups {
				if n := g.TotalCompressedSize; n < 2<<20 && len(md.RowGroups) > 1 {
					t.Errorf("row group %d of %d has %d bytes, %d rows", i, len(md.RowGroups), n, g.NumRows)
				}
			}
			t.Logf("%s: %d bytes in %d row groups", key, r.Size(), len(md.RowGroups))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

type told struct {
	Report Report
	Took   time.Duration
	RSS    int64 // bytes, the most the process ever held
}

// sealAlone is the process that seals.
func sealAlone(t *testing.T, endpoint string) {
	cfg := aws.Config{Region: "us-east-1", BaseEndpoint: &endpoint, Credentials: credentials.NewStaticCredentialsProvider("x", "y", "")}
	c := s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = true })
	store := checkpoint.New(dynamodb.NewFromConfig(cfg), "checkpoint", checkpoint.Options{})
	s := New(Stages{
		Staging: lake.NewBucket(c, "plant", "staging"), Lake: lake.NewBucket(c, "plant", "lake"), Damaged: lake.NewBucket(c, "plant", "damaged"),
		Ledger: store, Folder: store, Merger: columnar.NewMerger(memory.DefaultAllocator),
		Spool: func() (Spool, error) { return lake.NewSpool(), nil },
	})
	debug.SetMemoryLimit(SoftMemory)
	began := time.Now()
	r, err := s.Sweep(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(told{r, time.Since(began), mostRSS(t)})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\ntold %s\n", text)
}

// mostRSS is the highest resident set of this process; where the system does not tell, what the Go
// runtime has of it.
func mostRSS(t *testing.T) int64 {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.Sys)
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		if text, ok := strings.CutPrefix(in.Text(), "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(text)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("the system does not tell how much memory the process holds")
	return 0
}
