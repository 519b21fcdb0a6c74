package seal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/parquet-go/parquet-go"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/columnar"
	"telemetrylake/pipeline/lake"
	"telemetrylake/schemas"
	"telemetrylake/testenv"
)

const (
	streamARN = "arn:aws:dynamodb:us-east-1:000000000000:table/sensor_readings/stream/2026-11-30T00:00:00.000"
	shardID   = "shardId-00000000000000000000-00000001"
)

// day is the partition of every reading that a test does not place elsewhere.
var day = time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)

// A plant is a lake with its staging and ledger on the embedded AWS, and one lane that makes
// real windows whose parts the test puts into staging as it likes.
type plant struct {
	t       testing.TB
	env     *testenv.Env
	db      *dynamodb.Client
	store   *checkpoint.Store
	staging *lake.Bucket
	lake    *lake.Bucket
	damaged *lake.Bucket
	merger  Merger
	lane    *lane
}

func newPlant(t testing.TB) *plant {
	t.Helper()
	env, err := testenv.Open(testenv.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	cfg := env.AWSConfig()
	p := &plant{t: t, env: env, db: dynamodb.NewFromConfig(cfg), merger: columnar.NewMerger(memory.DefaultAllocator)}
	p.store = checkpoint.New(p.db, "checkpoint", checkpoint.Options{})
	if err := p.store.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = true })
	bucket := "plant"
	if _, err := c.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &bucket}); err != nil {
		t.Fatal(err)
	}
	p.staging = lake.NewBucket(c, bucket, "staging")
	p.lake = lake.NewBucket(c, bucket, "lake")
	p.damaged = lake.NewBucket(c, bucket, "damaged")
	p.lane = p.newLane("run-sensors", shardID)
	return p
}

// sealer is one process that seals.
func (p *plant) sealer(change ...func(*Stages)) *Sealer {
	st := Stages{Staging: p.staging, Lake: p.lake, Damaged: p.damaged, Ledger: p.store, Folder: p.store, Merger: p.merger, Claims: p.store}
	for _, f := range change {
		f(&st)
	}
	return New(st)
}

func (p *plant) sweep() Report {
	p.t.Helper()
	r, err := p.sealer().Sweep(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

func (p *plant) stage(key string, bodies ...[]byte) {
	p.t.Helper()
	if err := p.staging.Create(p.t.Context(), key, bytes.Join(bodies, nil)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *plant) keys(b *lake.Bucket) []string {
	p.t.Helper()
	var keys []string
	for o, err := range b.List(p.t.Context()) {
		if err != nil {
			p.t.Fatal(err)
		}
		keys = append(keys, o.Key)
	}
	return keys
}

func (p *plant) object(key string) pipeline.Object {
	p.t.Helper()
	for o, err := range p.staging.List(p.t.Context()) {
		if err != nil {
			p.t.Fatal(err)
		}
		if o.Key == key {
			return o
		}
	}
	p.t.Fatalf("staging has no object %s", key)
	return pipeline.Object{}
}

// inLake counts the rows of the lake by celsius, which tests keep distinct, and the objects
// that list each part.
func (p *plant) inLake() (rows map[string]int, parts map[pipeline.PartID]int) {
	p.t.Helper()
	rows, parts = map[string]int{}, map[pipeline.PartID]int{}
	for _, key := range p.keys(p.lake) {
		r, err := p.lake.Read(p.t.Context(), pipeline.Object{Key: key})
		if err != nil {
			p.t.Fatal(err)
		}
		f, err := parquet.OpenFile(r, r.Size())
		if err != nil {
			p.t.Fatal(err)
		}
		text, ok := f.Lookup(pipeline.ObjectMetaKey)
		if !ok {
			p.t.Fatalf("%s has no metadata", key)
		}
		meta, err := pipeline.DecodeObjectMeta(text)
		if err != nil {
			p.t.Fatal(err)
		}
		for _, id := range meta.PartIDs() {
			parts[id]++
		}
		if int64(meta.Rows) != f.NumRows() {
			p.t.Errorf("%s says it has %d rows and has %d", key, meta.Rows, f.NumRows())
		}
		for _, v := range column(p.t, f, "celsius") {
			rows[strconv.FormatInt(v.Int64(), 10)]++
		}
	}
	return rows, parts
}

// wantRows fails the test unless the lake holds each value of celsius (in hundredths) once.
func (p *plant) wantRows(want ...int) {
	p.t.Helper()
	rows, parts := p.inLake()
	exp := map[string]int{}
	for _, c := range want {
		exp[strconv.Itoa(c)] = 1
	}
	if !maps.Equal(rows, exp) {
		p.t.Errorf("lake holds %v, want each of %v once", rows, want)
	}
	for id, n := range parts {
		if n != 1 {
			p.t.Errorf("part %s is listed by %d objects", id, n)
		}
	}
}

func column(t testing.TB, f *parquet.File, name string) []parquet.Value {
	t.Helper()
	i := slices.IndexFunc(f.Schema().Columns(), func(p []string) bool { return len(p) == 1 && p[0] == name })
	if i < 0 {
		return nil
	}
	var out []parquet.Value
	for _, rg := range f.RowGroups() {
		err := eachPage(rg.ColumnChunks()[i], func(p parquet.Page) error {
			vs := make([]parquet.Value, p.NumValues())
			if _, err := p.Values().ReadValues(vs); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			for _, v := range vs {
				out = append(out, v.Clone())
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// A lane makes windows. Its sink keeps the parts for the test.
type lane struct {
	*pipeline.Lane
	p        *plant
	shard    pipeline.ShardID
	seq      int
	landed   []pipeline.Part
	contract *schemas.Contract
	fail     error // what landing returns, once
}

func (p *plant) newLane(id pipeline.LaneID, shard pipeline.ShardID) *lane {
	p.t.Helper()
	return p.newLaneOf(id, shard, pipeline.PartSize{Rows: 2})
}

func (p *plant) newLaneOf(id pipeline.LaneID, shard pipeline.ShardID, size pipeline.PartSize) *lane {
	p.t.Helper()
	c, err := schemas.Load("sensor_readings")
	if err != nil {
		p.t.Fatal(err)
	}
	l := &lane{p: p, shard: shard, seq: 1000, contract: c}
	mem := memory.DefaultAllocator
	st := pipeline.Stages{
		Decoder: columnar.NewDecoder(mem), Encoder: columnar.NewEncoder(mem), Sink: l, Checkpoints: p.store, Contracts: p.store,
	}
	l.Lane, err = pipeline.NewLane(st, pipeline.LaneOptions{Lane: id, Stream: streamARN, Contract: c, Parts: size})
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.store.Shards(streamARN, id, checkpoint.Run).Own(p.t.Context(), pipeline.Shard{ID: shard}); err != nil {
		p.t.Fatal(err)
	}
	if err := l.Open(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	return l
}

func (l *lane) Land(_ context.Context, parts []pipeline.Part) error {
	l.landed = append(l.landed, parts...)
	err := l.fail
	l.fail = nil
	return err
}

// a reading is its temperature in hundredths of a degree; days is its distance from day.
type reading struct{ centi, days int }

func on(days int, centi ...int) []reading {
	var rs []reading
	for _, c := range centi {
		rs = append(rs, reading{c, days})
	}
	return rs
}

// window commits a window of the readings and returns its parts: two rows a part, in the order
// in which the readings are given within a day.
func (l *lane) window(readings ...reading) [][]byte {
	l.p.t.Helper()
	parts, err := l.tryWindow(readings...)
	if err != nil {
		l.p.t.Fatal(err)
	}
	return parts
}

func (l *lane) tryWindow(readings ...reading) ([][]byte, error) {
	b := pipeline.Batch{Shard: l.shard}
	for _, r := range readings {
		l.seq++
		at := day.AddDate(0, 0, r.days).Add(time.Duration(l.seq) * time.Second)
		text := at.Format("2006-01-02T15:04:05.000Z")
		keys := map[string]ddbStream{"pk": &types.AttributeValueMemberS{Value: "DEVICE#7"}, "sk": &types.AttributeValueMemberS{Value: "TS#" + text}}
		item := maps.Clone(keys)
		item["takenAt"] = &types.AttributeValueMemberN{Value: strconv.FormatInt(at.UnixMilli(), 10)}
		item["celsius"] = &types.AttributeValueMemberN{Value: fmt.Sprintf("%d.%02d", r.centi/100, r.centi%100)}
		b.Records = append(b.Records, pipeline.Record{
			Shard: l.shard, Seq: pipeline.SequenceNumber(strconv.Itoa(l.seq)), Op: types.OperationTypeInsert,
			Created: day.AddDate(0, 0, 2), Keys: keys, New: item,
		})
	}
	l.landed = nil
	_, err := l.Window(l.p.t.Context(), []pipeline.Batch{b})
	var bodies [][]byte
	for _, p := range l.landed {
		bodies = append(bodies, p.Body)
	}
	return bodies, err
}

type ddbStream = types.AttributeValue

// item reads an item of the checkpoint table, nil if there is none.
func (p *plant) item(pk, sk string) map[string]ddb.AttributeValue {
	p.t.Helper()
	table := "checkpoint"
	out, err := p.db.GetItem(p.t.Context(), &dynamodb.GetItemInput{TableName: &table, Key: map[string]ddb.AttributeValue{
		"pk": &ddb.AttributeValueMemberS{Value: pk}, "sk": &ddb.AttributeValueMemberS{Value: sk},
	}})
	if err != nil {
		p.t.Fatal(err)
	}
	return out.Item
}

// set changes one attribute of an item of the checkpoint table by hand.
func (p *plant) set(pk, sk, attribute string, v ddb.AttributeValue) {
	p.t.Helper()
	item := p.item(pk, sk)
	if item == nil {
		item = map[string]ddb.AttributeValue{"pk": &ddb.AttributeValueMemberS{Value: pk}, "sk": &ddb.AttributeValueMemberS{Value: sk}}
	}
	item[attribute] = v
	table := "checkpoint"
	if _, err := p.db.PutItem(p.t.Context(), &dynamodb.PutItemInput{TableName: &table, Item: item}); err != nil {
		p.t.Fatal(err)
	}
}

// opened is a part as seal sees it in a file of its own.
func opened(t testing.TB, body []byte) *part {
	t.Helper()
	p, err := openBytes(body, span{0, int64(len(body)), nil})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func openBytes(b []byte, sp span) (*part, error) {
	return open(&source{r: bytes.NewReader(b), size: int64(len(b))}, sp)
}

func fileOf(t testing.TB, b []byte) *parquet.File {
	t.Helper()
	f, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// retold is body with other part metadata: the same rows, written again.
func retold(t testing.TB, body []byte, change func(*pipeline.PartMeta)) []byte {
	t.Helper()
	meta := *opened(t, body).meta
	meta.Ranges = slices.Clone(meta.Ranges)
	change(&meta)
	text, err := meta.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return withMeta(t, body, map[string]string{pipeline.PartMetaKey: text})
}

func withMeta(t testing.TB, body []byte, meta map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	r := io.NewSectionReader(bytes.NewReader(body), 0, int64(len(body)))
	order := []string{"device_id", "taken_at"}
	if err := columnar.NewMerger(memory.DefaultAllocator).Merge(t.Context(), &b, []*io.SectionReader{r}, order, meta); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func text(s string) ddb.AttributeValue { return &ddb.AttributeValueMemberS{Value: s} }
