package main

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	dynamotypes "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/schemas"
)

func TestTombstonesOfRemovalsByTTLArriveThoughAFilterDropsThem(t *testing.T) {
	text, err := os.ReadFile("../../schemas/sensor_readings.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := schemas.Parse("sensor_readings.yaml", append(text, "on_expire: tombstones\n"...))
	if err != nil {
		t.Fatal(err)
	}
	m := newMappedTableOf(t, c, 3, 2)
	m.mapping.filter = true // and the function may not look at the mapping
	file := roomClimate(t, 140)
	m.put(m.items(file)[:70])
	m.deliver()
	expired := m.env.SweepTTL()
	m.put(m.items(file)[70:])
	m.deliver() // some removals lie before these records, and are in none of their events
	expired += m.env.SweepTTL()
	m.sweep() // others lie behind all of them
	m.seal()
	checkReadings(t, m.dir, file)
	table := c.LakeTable(schemas.Tombstones)
	if rows := readAlike(t, filepath.Join(m.dir, "s3", lakeBucket, table.Name), table); expired < 20 || len(rows) != expired {
		t.Errorf("%d tombstones of %d removals by TTL", len(rows), expired)
	}
}

// restream disables the table's stream and enables it anew, an hour later. It returns both ARNs.
func (m *mappedTable) restream() (old, next string) {
	m.t.Helper()
	old = m.at.StreamARN
	for _, spec := range []*dynamotypes.StreamSpecification{
		{StreamEnabled: aws.Bool(false)}, {StreamEnabled: aws.Bool(true), StreamViewType: dynamotypes.StreamViewTypeNewImage},
	} {
		if _, err := m.dynamodb.UpdateTable(m.t.Context(), &dynamodb.UpdateTableInput{TableName: &m.at.Table, StreamSpecification: spec}); err != nil {
			m.t.Fatal(err)
		}
		m.clock.Advance(time.Hour)
		m.env.Tick()
	}
	out, err := m.dynamodb.DescribeTable(m.t.Context(), &dynamodb.DescribeTableInput{TableName: &m.at.Table})
	if err != nil {
		m.t.Fatal(err)
	}
	return old, *out.Table.LatestStreamArn
}

// reads points the function and its mapping at a stream, as somebody does who has named it.
func (m *mappedTable) reads(stream string) {
	m.at.StreamARN, m.at.Chosen, m.idle = stream, stream, nil
	m.mapping = &mappingDriver{streams: m.streams, stream: stream, batch: 20, invoke: m.invoke, shards: map[string]*mappedShard{}}
}

// starts runs the check of a function's start.
func (m *mappedTable) starts() error {
	o := wireOptions{Limits: pipeline.Limits{Records: 30}, Now: m.clock.Now, Wait: m.wait}
	f := wireFunction(m.clients, m.at, o)
	return checkFunctionStart(f.store, m.clients, m.at, o).run(m.t.Context())
}

// gapsOf lists the gaps of a stream by state.
func (m *mappedTable) gapsOf(stream string) (open, closed []pipeline.Gap) {
	m.t.Helper()
	gaps, err := wireFunction(m.clients, m.at, wireOptions{}).store.Gaps(m.t.Context(), stream)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, g := range gaps {
		if g.Cause != pipeline.GapDisabled {
			m.t.Errorf("gap %+v", g)
		}
		if g.State == pipeline.GapOpen {
			open = append(open, g)
		} else {
			closed = append(closed, g)
		}
	}
	return open, closed
}

func TestAStreamThatIsEnabledAnewUnderLambdaLeavesAGapBehind(t *testing.T) {
	m := newMappedTable(t, 8, 1)
	file := roomClimate(t, 120)
	items := m.items(file)
	if err := m.starts(); err != nil {
		t.Fatal(err)
	}
	m.put(items[:30])
	m.deliver()
	m.put(items[30:60]) // nobody delivers them before the stream is disabled
	old, next := m.restream()
	m.at.StreamARN = next
	err := m.starts()
	if !needsPerson(err) || !strings.Contains(err.Error(), "STREAMER_STREAM="+old) || !strings.Contains(err.Error(), "STREAMER_STREAM="+next) {
		t.Fatalf("a function that nobody told of the new stream: %v", err)
	}
	if open, closed := m.gapsOf(old); len(open)+len(closed) > 0 {
		t.Errorf("gaps %+v %+v before anybody chose", open, closed)
	}
	m.reads(next)
	for range 2 {
		if err := m.starts(); err != nil {
			t.Fatal(err)
		}
	}
	first, closed := m.gapsOf(old)
	if len(first) != 1 || len(closed) > 0 || first[0].After == "" || !first[0].To.Equal(enabledAt(next)) {
		t.Fatalf("gaps %+v %+v, want one behind what was read", first, closed)
	}
	// They go back for what the old one still holds, and come again.
	m.reads(old)
	if err := m.starts(); err != nil {
		t.Fatal(err)
	}
	m.deliver()
	m.sweep()
	m.reads(next)
	if err := m.starts(); err != nil {
		t.Fatal(err)
	}
	open, closed := m.gapsOf(old)
	if len(open) != 1 || len(closed) != 1 || closed[0].ID != first[0].ID || open[0].After.Compare(first[0].After) <= 0 {
		t.Errorf("open %+v, closed %+v: want the first closed, and one behind the end", open, closed)
	}
	if len(closed) == 1 && (!strings.Contains(closed[0].Evidence, string(open[0].After)) || !strings.Contains(closed[0].Evidence, open[0].ID)) {
		t.Errorf("evidence %q", closed[0].Evidence)
	}
	m.put(items[60:])
	m.deliver()
	m.seal()
	checkReadings(t, m.dir, file)
}

func TestAFunctionThatLeavesAStreamFinishesItsWindows(t *testing.T) {
	m := newMappedTable(t, 8, 1)
	file := roomClimate(t, 40)
	items := m.items(file)
	if err := m.starts(); err != nil {
		t.Fatal(err)
	}
	m.put(items[:20])
	e := m.environment()
	windows := 0
	e.next = refuseNth{e.table.env.Transport(), "PutRecordBatch", 1, &windows}
	if err := m.mapping.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.mapping.invoke = func(ctx context.Context, event []byte) ([]byte, error) {
		_, err := e.function.invoke(ctx, event)
		return nil, err
	}
	for _, s := range m.mapping.shards {
		if err := m.mapping.deliver(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	store := wireFunction(m.clients, m.at, wireOptions{}).store
	pending := func(stream string) (n int) {
		t.Helper()
		shards, _, err := store.StreamStatus(t.Context(), stream)
		if err != nil {
			t.Fatal(err)
		}
		for _, sh := range shards {
			if st, err := store.Lane(t.Context(), sh.Lane); err != nil {
				t.Fatal(err)
			} else if st.Pending != 0 {
				n++
			}
		}
		return n
	}
	old, next := m.restream()
	if pending(old) != 1 {
		t.Fatal("no window is pending")
	}
	if err := store.Follow(t.Context(), checkpoint.Following{Contract: m.at.Contract.Name, From: old, To: next}); err == nil || !strings.Contains(err.Error(), "not committed") {
		t.Errorf("a pending window is left behind: %v", err)
	}
	m.reads(next)
	if err := m.starts(); err != nil {
		t.Fatal(err)
	}
	if n := pending(old); n != 0 {
		t.Errorf("%d windows are pending", n)
	}
	m.put(items[20:])
	m.deliver()
	m.seal()
	checkReadings(t, m.dir, file)
}

func TestALambdaStreamOfWhichNothingIsNotedIsFoundByItsShards(t *testing.T) {
	m := newMappedTable(t, 8, 1)
	m.put(m.items(roomClimate(t, 10)))
	m.deliver() // by a function that noted nothing
	store := wireFunction(m.clients, m.at, wireOptions{}).store
	name := m.at.Contract.Name
	if was, noted, err := store.LambdaReads(t.Context(), name, tableOf(m.at.StreamARN)); err != nil || noted || was != m.at.StreamARN {
		t.Errorf("read before: %q, noted %t, %v", was, noted, err)
	}
	if was, _, err := store.LambdaReads(t.Context(), "another", tableOf(m.at.StreamARN)); err != nil || was != "" {
		t.Errorf("another contract's: %q, %v", was, err)
	}
	old, next := m.restream()
	m.at.StreamARN = next
	if err := m.starts(); !needsPerson(err) || !strings.Contains(err.Error(), old) {
		t.Errorf("the function starts: %v", err)
	}
	m.at.StreamARN = old
	if err := m.starts(); err != nil {
		t.Fatal(err)
	}
	if was, noted, err := store.LambdaReads(t.Context(), name, tableOf(old)); err != nil || !noted || was != old {
		t.Errorf("read before: %q, noted %t, %v", was, noted, err)
	}
}

func TestASweepThatFailsAtAShardStillSettlesGaps(t *testing.T) {
	m := newMappedTable(t, 5, 2)
	items := m.items(roomClimate(t, 60))
	m.put(items)
	if err := m.mapping.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	store := wireFunction(m.clients, m.at, wireOptions{}).store
	for _, s := range m.mapping.shards {
		if err := m.mapping.read(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if _, opened, err := store.OpenGap(t.Context(), pipeline.Gap{
			Missing: pipeline.Missing{Cause: pipeline.GapDiscarded, From: m.clock.Now(), To: m.clock.Now()}, Stream: m.at.StreamARN, Shard: pipeline.ShardID(s.id),
			First: pipeline.SequenceNumber(*s.pending[0].Dynamodb.SequenceNumber), Last: pipeline.SequenceNumber(*s.pending[len(s.pending)-1].Dynamodb.SequenceNumber),
		}); err != nil || !opened {
			t.Fatalf("opened %t, %v", opened, err)
		}
	}
	m.deliver()
	shards := slices.Collect(maps.Keys(m.mapping.shards))
	if len(shards) != 2 {
		t.Fatalf("%d shards", len(shards))
	}
	// One of the two belongs to somebody else.
	_, err := m.dynamodb.UpdateItem(t.Context(), &dynamodb.UpdateItemInput{
		TableName: aws.String(checkpointTable), Key: map[string]dynamotypes.AttributeValue{
			"pk": &dynamotypes.AttributeValueMemberS{Value: "stream#" + m.at.StreamARN}, "sk": &dynamotypes.AttributeValueMemberS{Value: "shard#" + shards[0]},
		},
		UpdateExpression:          aws.String("SET lane = :l"),
		ExpressionAttributeValues: map[string]dynamotypes.AttributeValue{":l": &dynamotypes.AttributeValueMemberS{Value: "run-other"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	e := m.environment()
	r, err := e.functionLine.sweep(t.Context())
	if !needsPerson(err) || r.Settled != 2 || r.Tips != 1 {
		t.Errorf("swept %+v, %v; want both gaps closed, the other shard's tip marked, and an error of the foreign one", r, err)
	}
}
