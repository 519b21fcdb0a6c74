package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	dynamotypes "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"
	lambdatypes "github.com/aws/aws-sdk-go-v2/service/lambda/types"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/hot"
	"telemetrylake/pipeline/stream"
	"telemetrylake/schemas"
)

// put writes items to the hot table; every seventh has expired already.
func (m *mappedTable) put(items []hot.Item) {
	m.t.Helper()
	for i, item := range items {
		if i%7 == 0 {
			item["expiresAt"] = &dynamotypes.AttributeValueMemberN{Value: strconv.FormatInt(m.clock.Now().Add(-time.Hour).Unix(), 10)}
		}
		if _, err := m.dynamodb.PutItem(m.t.Context(), &dynamodb.PutItemInput{TableName: &m.at.Table, Item: item}); err != nil {
			m.t.Fatal(err)
		}
	}
}

// deliver has the mapping deliver until nothing is left.
func (m *mappedTable) deliver() {
	m.t.Helper()
	quiet := 0
	for n := 0; quiet < 3; n++ {
		if n > 5000 {
			m.t.Fatal("the mapping does not come to an end")
		}
		before := m.did["invocations"]
		left, err := m.mapping.round(m.t.Context())
		if err != nil {
			m.t.Fatal(err)
		}
		if left == 0 && m.did["invocations"] == before {
			quiet++
		} else {
			quiet = 0
		}
	}
}

// sweep invokes the function as a schedule does.
func (m *mappedTable) sweep() string {
	m.t.Helper()
	out, err := m.invoke(m.t.Context(), []byte(`{"version":"0","source":"aws.events","detail-type":"Scheduled Event","detail":{}}`))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(out)
}

func TestLambdaLandsEachRecordOnce(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			m := newMappedTable(t, seed, 3)
			m.mapping.filter = seed%2 == 0
			file := roomClimate(t, 1500)
			items := m.items(file)
			// Now and then Lambda gives an event up: the records behind it must not hide that.
			m.mapping.discard = func(string, []types.Record) bool {
				given := m.chance(0.04)
				if given {
					m.happened("events given up", 1)
				}
				return given
			}
			for n, chunk := range slices.Collect(slices.Chunk(items, 250)) {
				m.put(chunk)
				m.clock.Advance(30 * time.Second)
				m.did["ttl removals"] += m.env.SweepTTL()
				if n%2 == 1 {
					if err := m.env.Reshard(m.at.Table); err != nil {
						t.Fatal(err)
					}
					m.did["reshardings"]++
				}
				m.faults = 0.03
				for range 4 {
					if _, err := m.mapping.round(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			m.deliver()
			m.faults, m.idle = 0, nil
			m.mapping.discard = nil
			m.clock.Advance(7 * time.Hour) // what was given up at a shard's end is overdue
			swept := m.sweep() + m.sweep()
			m.seal()
			checkReadings(t, m.dir, file)
			t.Logf("%v; GetRecords %d, iterators %d, DescribeStream %d; swept %s", m.did, m.calls.GetRecords, m.calls.Iterators, m.calls.Describes, swept)
			for _, what := range []string{"killed", "answers lost", "failed invocations", "cold starts", "ttl removals", "events given up"} {
				if m.did[what] == 0 {
					t.Errorf("%s: never", what)
				}
			}
		})
	}
}

func TestAnEventCostsAWarmEnvironmentOneReadOfItsShard(t *testing.T) {
	m := newMappedTable(t, 1, 8)
	file := roomClimate(t, 400)
	items := m.items(file)
	e := m.environment()
	events := 0
	m.mapping.invoke = func(ctx context.Context, event []byte) ([]byte, error) {
		events++
		out, err := e.function.invoke(ctx, event)
		if err != nil {
			t.Error(err)
		}
		text, _ := json.Marshal(out)
		return text, err
	}
	// One after the other, as one environment has them.
	deliver := func() (stream.Calls, int) {
		t.Helper()
		before, first := e.stream.Calls(), events
		if err := m.mapping.list(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, s := range m.mapping.shards {
			for more := true; more; more = len(s.pending) > 0 {
				if err := m.mapping.deliver(t.Context(), s); err != nil {
					t.Fatal(err)
				}
			}
		}
		now := e.stream.Calls()
		return stream.Calls{Describes: now.Describes - before.Describes, Iterators: now.Iterators - before.Iterators, GetRecords: now.GetRecords - before.GetRecords}, events - first
	}
	m.mapping.batch = 100
	m.put(items[:60])
	cold, n := deliver()
	t.Logf("first %d events: %+v", n, cold)
	if cold.Describes != 1 {
		t.Errorf("%d listings, want one", cold.Describes)
	}
	for _, chunk := range slices.Collect(slices.Chunk(items[60:], 85)) {
		m.put(chunk)
		if warm, n := deliver(); n == 0 || warm != (stream.Calls{Iterators: n, GetRecords: n}) {
			t.Errorf("%d events cost %+v, want one read each", n, warm)
		}
	}
	m.seal()
	checkReadings(t, m.dir, file)
}

func TestAStreamIsHandedOverWhileDataFlows(t *testing.T) {
	m := newMappedTable(t, 7, 3)
	file := roomClimate(t, 1200)
	items := m.items(file)
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	// runs reads as streamer run does, until the stream is taken from it.
	runs := func() (refused chan error) {
		l, err := wire(m.clients, m.at, wireOptions{Limits: pipeline.Limits{Records: 40}, Now: m.clock.Now})
		if err != nil {
			t.Fatal(err)
		}
		refused = make(chan error, 1)
		go func() {
			err := l.lane.Open(t.Context())
			for err == nil {
				if err = l.catchUp(t.Context()); err == nil {
					err = l.gatherer.Flush(t.Context())
				}
				if err == nil {
					err = pipeline.Wait(t.Context(), time.Millisecond)
				}
			}
			refused <- err
		}()
		return refused
	}
	hand := func(to checkpoint.Side) int {
		t.Helper()
		n, err := handing{to: to, wait: 10 * time.Second, log: log}.hand(t.Context(), m.clients, m.at)
		if err != nil {
			t.Fatalf("hand over to %s: %v", to, err)
		}
		return n
	}
	var left chan error
	for n, chunk := range slices.Collect(slices.Chunk(items, 200)) {
		switch n % 2 {
		case 0:
			if n > 0 {
				hand(checkpoint.Run)
			}
			left = runs()
		case 1:
			m.put(chunk[:50])
			if moved := hand(checkpoint.Lambda); moved == 0 {
				t.Error("no shard was handed over")
			}
			chunk = chunk[50:]
		}
		m.put(chunk)
		if n%2 == 1 {
			// It reads them too, and can begin nothing.
			if err := <-left; !errors.Is(err, pipeline.ErrFenced) && !needsPerson(err) {
				t.Errorf("the run that was left ended with %v", err)
			}
		}
		if n == 2 {
			if err := m.env.Reshard(m.at.Table); err != nil {
				t.Fatal(err)
			}
		}
		if n%2 == 1 {
			m.deliver()
		}
	}
	m.seal()
	checkReadings(t, m.dir, file)
}

func TestAFunctionRefusesAStreamThatRunReads(t *testing.T) {
	m := newMappedTable(t, 3, 1)
	items := m.items(roomClimate(t, 30))
	m.put(items[:10])
	l, err := wire(m.clients, m.at, wireOptions{Now: m.clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.lane.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.catchUp(t.Context()), l.gatherer.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	e := m.environment()
	var refused error
	m.mapping.invoke = func(ctx context.Context, event []byte) ([]byte, error) {
		_, refused = e.function.invoke(ctx, event)
		return nil, errors.New("refused")
	}
	if _, err := m.mapping.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if refused == nil || !needsPerson(refused) || !strings.Contains(refused.Error(), "hand the stream over") {
		t.Errorf("the function says %v", refused)
	}
}

// onFailure is what a mapping sends to a queue, as Lambda's developer guide has it.
func onFailure(t *testing.T, arn, shard string, records []types.Record) []byte {
	t.Helper()
	at := records[0].Dynamodb.ApproximateCreationDateTime.UTC()
	body, err := json.Marshal(map[string]any{
		"requestContext":  map[string]any{"requestId": "316aa6d0", "functionArn": "arn:aws:lambda:us-east-1:000000000000:function:f", "condition": "RetryAttemptsExhausted", "approximateInvokeCount": 1},
		"responseContext": map[string]any{"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"},
		"version":         "1.0", "timestamp": "2026-11-03T08:38:06.021Z",
		"DDBStreamBatchInfo": map[string]any{
			"shardId": shard, "streamArn": arn, "batchSize": len(records),
			"startSequenceNumber": records[0].Dynamodb.SequenceNumber, "endSequenceNumber": records[len(records)-1].Dynamodb.SequenceNumber,
			"approximateArrivalOfFirstRecord": at, "approximateArrivalOfLastRecord": at,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	event, err := json.Marshal(map[string]any{"Records": []any{map[string]any{"messageId": "m-1", "eventSource": "aws:sqs", "body": string(body)}}})
	if err != nil {
		t.Fatal(err)
	}
	return event
}

func TestWhatAMappingGivesUpIsReadFromTheStream(t *testing.T) {
	m := newMappedTable(t, 5, 1)
	file := roomClimate(t, 60)
	m.put(m.items(file))
	var given []byte
	m.mapping.discard = func(shard string, records []types.Record) bool {
		given = onFailure(t, m.at.StreamARN, shard, records)
		return true
	}
	m.deliver()
	for range 2 { // a queue can deliver twice
		out, err := m.invoke(t.Context(), given)
		if err != nil || string(out) != `{"batchItemFailures":[]}` {
			t.Fatalf("the function answers %s, %v", out, err)
		}
	}
	m.seal()
	checkReadings(t, m.dir, file)
	if gaps := m.gaps(); len(gaps) != 0 {
		t.Errorf("gaps %+v, and all was read", gaps)
	}
}

func TestWhatAMappingGivesUpOfARunsShardIsAGapBehindItsPosition(t *testing.T) {
	m := newMappedTable(t, 5, 1)
	items := m.items(roomClimate(t, 40))
	m.put(items[:20])
	l, err := wire(m.clients, m.at, wireOptions{Now: m.clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.lane.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.catchUp(t.Context()), l.gatherer.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	m.put(items[20:])
	var events [][]byte
	m.mapping.discard = func(shard string, records []types.Record) bool {
		events = append(events, onFailure(t, m.at.StreamARN, shard, records))
		return true
	}
	m.deliver()
	if len(events) != 2 {
		t.Fatalf("%d events, want one before the position and one behind it", len(events))
	}
	for _, e := range events {
		if out, err := m.invoke(t.Context(), e); err != nil || string(out) != `{"batchItemFailures":[]}` {
			t.Fatalf("the function answers %s, %v", out, err)
		}
	}
	gaps := m.gaps()
	if len(gaps) != 1 || gaps[0].Cause != pipeline.GapDiscarded || gaps[0].Lane != laneOf(m.at.Contract) || gaps[0].State != pipeline.GapOpen {
		t.Fatalf("gaps %+v, want one of the run's lane", gaps)
	}
	// The run reads on, as if nothing had been said, and the next sweep knows.
	if err := errors.Join(l.catchUp(t.Context()), l.gatherer.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	if n, err := l.store.SettleGaps(t.Context(), m.at.StreamARN); err != nil || n != 1 {
		t.Errorf("%d gaps settled, %v", n, err)
	}
}

func (m *mappedTable) gaps() []pipeline.Gap {
	m.t.Helper()
	gaps, err := wireFunction(m.clients, m.at, wireOptions{}).store.Gaps(m.t.Context(), m.at.StreamARN)
	if err != nil {
		m.t.Fatal(err)
	}
	return gaps
}

func TestRecordsThatAgedOutBeforeTheFunctionSawThemAreAGap(t *testing.T) {
	m := newMappedTable(t, 9, 1)
	file := roomClimate(t, 60)
	items := m.items(file)
	m.put(items[:20])
	m.deliver()
	m.put(items[20:40])
	var lostFrom, lostTo pipeline.SequenceNumber
	m.mapping.discard = func(_ string, records []types.Record) bool {
		lostFrom = pipeline.SequenceNumber(*records[0].Dynamodb.SequenceNumber)
		lostTo = pipeline.SequenceNumber(*records[len(records)-1].Dynamodb.SequenceNumber)
		return true
	}
	m.deliver()
	m.mapping.discard = nil
	m.clock.Advance(25 * time.Hour)
	m.env.Tick()
	for _, s := range m.mapping.shards {
		s.begun, s.iterator = false, ""
	}
	m.put(items[40:])
	m.deliver()
	m.seal()
	gaps := m.gaps()
	if len(gaps) != 1 || gaps[0].Cause != pipeline.GapTrimmed || gaps[0].After.Compare(lostFrom) >= 0 || gaps[0].Before.Compare(lostTo) <= 0 {
		t.Fatalf("gaps %+v, want one around %s to %s", gaps, lostFrom, lostTo)
	}
	kept := &climateFile{lines: slices.Concat(file.lines[:21], file.lines[41:])}
	checkReadings(t, m.dir, kept)
}

func TestAShardAtRestForDaysIsNoGap(t *testing.T) {
	m := newMappedTable(t, 9, 1)
	file := roomClimate(t, 40)
	items := m.items(file)
	m.put(items[:20])
	m.deliver()
	for range 3 {
		m.clock.Advance(20 * time.Hour)
		m.env.Tick()
		m.sweep()
	}
	for _, s := range m.mapping.shards {
		s.begun, s.iterator = false, ""
	}
	m.put(items[20:])
	m.deliver()
	m.seal()
	if gaps := m.gaps(); len(gaps) != 0 {
		t.Errorf("gaps %+v", gaps)
	}
	checkReadings(t, m.dir, file)
}

func TestAMappingThatLeavesRecordsOutIsRefused(t *testing.T) {
	m := newMappedTable(t, 2, 1)
	m.put(m.items(roomClimate(t, 20)))
	e := m.environment()
	var refused error
	m.mapping.invoke = func(ctx context.Context, event []byte) ([]byte, error) {
		var all struct{ Records []json.RawMessage }
		if err := json.Unmarshal(event, &all); err != nil {
			return nil, err
		}
		all.Records = slices.Delete(all.Records, 3, 5) // as two events at a time would have it
		event, err := json.Marshal(all)
		if err != nil {
			return nil, err
		}
		_, refused = e.function.invoke(ctx, event)
		return nil, errors.New("refused")
	}
	if _, err := m.mapping.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if refused == nil || !needsPerson(refused) || !strings.Contains(refused.Error(), "ParallelizationFactor") {
		t.Errorf("the function says %v", refused)
	}
}

func TestAMappingMustBeAsItIsNeeded(t *testing.T) {
	good := func() lambdatypes.EventSourceMappingConfiguration {
		return lambdatypes.EventSourceMappingConfiguration{
			UUID: aws.String("u-1"), FunctionResponseTypes: []lambdatypes.FunctionResponseType{lambdatypes.FunctionResponseTypeReportBatchItemFailures},
			ParallelizationFactor: aws.Int32(1), MaximumRecordAgeInSeconds: aws.Int32(-1), MaximumRetryAttempts: aws.Int32(-1), BisectBatchOnFunctionError: aws.Bool(false),
		}
	}
	filter := func(patterns ...string) *lambdatypes.FilterCriteria {
		f := &lambdatypes.FilterCriteria{}
		for _, p := range patterns {
			f.Filters = append(f.Filters, lambdatypes.Filter{Pattern: &p})
		}
		return f
	}
	tests := []struct {
		name   string
		change func(*lambdatypes.EventSourceMappingConfiguration)
		want   string // "" for none

		expired bool // the contract makes rows of removals by TTL
	}{
		{"as it must be", func(*lambdatypes.EventSourceMappingConfiguration) {}, "", true},
		{"defaults left out", func(c *lambdatypes.EventSourceMappingConfiguration) {
			c.ParallelizationFactor, c.MaximumRecordAgeInSeconds, c.MaximumRetryAttempts, c.BisectBatchOnFunctionError = nil, nil, nil, nil
		}, "", false},
		{"a filter of removals by TTL", func(c *lambdatypes.EventSourceMappingConfiguration) {
			c.FilterCriteria = filter(`{ "userIdentity": { "type": [ { "exists": false } ] } }`)
		}, "", false},
		{"a filter of removals by TTL, of which rows are made", func(c *lambdatypes.EventSourceMappingConfiguration) {
			c.FilterCriteria = filter(`{ "userIdentity": { "type": [ { "exists": false } ] } }`)
		}, "FilterCriteria to none: the contract makes tombstones of removals by TTL", true},
		{"that filter beside another", func(c *lambdatypes.EventSourceMappingConfiguration) {
			c.FilterCriteria = filter(`{"eventName":["INSERT"]}`, `{"userIdentity":{"principalId":[{"exists":false}]}}`)
		}, "", false},
		{"parallel", func(c *lambdatypes.EventSourceMappingConfiguration) { c.ParallelizationFactor = aws.Int32(2) }, "ParallelizationFactor to 1", false},
		{"bisecting", func(c *lambdatypes.EventSourceMappingConfiguration) { c.BisectBatchOnFunctionError = aws.Bool(true) }, "BisectBatchOnFunctionError to false", false},
		{"an age", func(c *lambdatypes.EventSourceMappingConfiguration) { c.MaximumRecordAgeInSeconds = aws.Int32(3600) }, "MaximumRecordAgeInSeconds to -1", false},
		{"retries", func(c *lambdatypes.EventSourceMappingConfiguration) { c.MaximumRetryAttempts = aws.Int32(3) }, "MaximumRetryAttempts to -1", false},
		{"tumbling windows", func(c *lambdatypes.EventSourceMappingConfiguration) { c.TumblingWindowInSeconds = aws.Int32(60) }, "TumblingWindowInSeconds to 0", false},
		{"whole batches only", func(c *lambdatypes.EventSourceMappingConfiguration) { c.FunctionResponseTypes = nil }, "ReportBatchItemFailures", false},
		{"a filter of removals", func(c *lambdatypes.EventSourceMappingConfiguration) {
			c.FilterCriteria = filter(`{"eventName":["INSERT","MODIFY"]}`)
		}, "FilterCriteria", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := good()
			tt.change(&c)
			err := refuseMappings([]lambdatypes.EventSourceMappingConfiguration{c}, tt.expired)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !needsPerson(err)) {
				t.Errorf("error %v, want one that says %q", err, tt.want)
			}
		})
	}
	if err := refuseMappings([]lambdatypes.EventSourceMappingConfiguration{good(), good()}, false); err == nil {
		t.Error("two mappings of one stream are not refused")
	}
}

func TestAFunctionNamesTheFirstRecordThatIsNotCommitted(t *testing.T) {
	m := newMappedTable(t, 4, 1)
	file := roomClimate(t, 100)
	m.put(m.items(file))
	m.mapping.batch = 100
	m.page = 25
	e := m.environment()
	var named []string
	m.mapping.invoke = func(ctx context.Context, event []byte) ([]byte, error) {
		if len(named) == 0 {
			// Windows are of 50 records: the second one's landing fails.
			windows := 0
			e.next = refuseNth{e.table.env.Transport(), "PutRecordBatch", 2, &windows}
		} else {
			e.next = e.table.env.Transport()
		}
		out, err := e.function.invoke(ctx, event)
		if err != nil {
			return nil, err
		}
		for _, f := range out.(batchResponse).Failures {
			named = append(named, f.Item)
		}
		return json.Marshal(out)
	}
	m.deliver()
	if len(named) != 1 {
		t.Errorf("the function named %q, want one record", named)
	}
	m.seal()
	checkReadings(t, m.dir, file)
}

func TestAPoisonRecordGoesToQuarantineAndBlocksNothing(t *testing.T) {
	m := newMappedTable(t, 6, 1)
	file := roomClimate(t, 50)
	items := m.items(file)
	items[10]["celsius"] = &dynamotypes.AttributeValueMemberS{Value: "warm"}
	m.put(items)
	m.deliver()
	if m.did["failed invocations"] != 0 {
		t.Errorf("%d invocations failed", m.did["failed invocations"])
	}
	m.seal()
	checkReadings(t, m.dir, &climateFile{lines: slices.Delete(slices.Clone(file.lines), 11, 12)})
	table := loadTable(t, "sensor_readings", schemas.Quarantine)
	if rows := readAlike(t, filepath.Join(m.dir, "s3", lakeBucket, table.Name), table); len(rows) != 1 {
		t.Errorf("%d rows in quarantine, want 1", len(rows))
	}
}

func TestAChildBeginsOnceItsParentIsCommittedToItsEnd(t *testing.T) {
	m := newMappedTable(t, 6, 1)
	m.mapping.filter = true
	file := roomClimate(t, 60)
	items := m.items(file)
	m.put(items[:30])
	m.deliver()
	if m.env.SweepTTL() == 0 { // the parent's last records, which no event holds
		t.Fatal("nothing expired")
	}
	if err := m.env.Reshard(m.at.Table); err != nil {
		t.Fatal(err)
	}
	m.put(items[30:])
	store := wireFunction(m.clients, m.at, wireOptions{}).store
	invoke := m.mapping.invoke
	var children atomic.Int64
	m.mapping.invoke = func(ctx context.Context, event []byte) ([]byte, error) {
		out, err := invoke(ctx, event)
		shards, _, failed := store.StreamStatus(ctx, m.at.StreamARN)
		if failed != nil {
			t.Error(failed)
		}
		for _, s := range shards {
			if s.Parent == "" {
				continue
			}
			children.Add(1)
			for _, p := range shards {
				if p.ID == s.Parent && !p.At.End {
					t.Errorf("shard %s was begun before its parent %s was committed to its end", s.ID, p.ID)
				}
			}
		}
		return out, err
	}
	m.deliver()
	if children.Load() == 0 {
		t.Error("no child was begun")
	}
	m.seal()
	checkReadings(t, m.dir, file)
}

func TestLanesAreListedSweptAndHandedOver(t *testing.T) {
	d := openDoor(t)
	file := roomClimate(t, 40)
	d.load(file)
	lanes := func() (l laneList) {
		t.Helper()
		code, stdout, stderr := streamer(t, "lanes", "list", "-o", "json")
		if code != exitOK {
			t.Fatalf("lanes list: exit code %d, %s", code, stderr)
		}
		if err := json.Unmarshal([]byte(stdout), &l); err != nil {
			t.Fatal(err)
		}
		return l
	}
	if l := lanes(); l.Side != "" || len(l.Shards) != 0 {
		t.Errorf("before anybody has read the stream: %+v", l)
	}
	run := begin(t, "run", "--until-drained")
	run.exits(exitOK)
	if l := lanes(); l.Side != "run" || len(l.Shards) == 0 || l.Shards[0].Lane != "run-sensor_readings" {
		t.Errorf("after a run: %+v", l)
	}
	if code, stdout, stderr := streamer(t, "lanes", "sweep"); code != exitUsage || stdout != "" || !strings.Contains(stderr, "is read by run; sweep is for a stream that Lambda reads") {
		t.Errorf("a sweep of what run reads: exit code %d, %q, %q", code, stdout, stderr)
	}
	if stdout := says(t, "lanes", "handover", "--to", "run"); stdout != "already read by run\n" {
		t.Errorf("a handover to where it is says %q", stdout)
	}
	code, stdout, stderr := streamer(t, "lanes", "handover", "--to", "lambda")
	if code != exitOK || !strings.Contains(stdout, "read by lambda") {
		t.Fatalf("handover: exit code %d, %q, %q", code, stdout, stderr)
	}
	l := lanes()
	for _, s := range l.Shards {
		if l.Side != "lambda" || !strings.HasPrefix(string(s.Lane), "lambda-sensor_readings-shardid-") {
			t.Errorf("after the handover: %s, shard %+v", l.Side, s)
		}
	}
	refused := begin(t, "run", "--until-drained")
	refused.exits(exitPerson)
	if words := refused.lastWords(); !strings.Contains(words, "streamer lanes handover --to run") {
		t.Errorf("a run of a stream that Lambda reads says %q", words)
	}
	code, stdout, stderr = streamer(t, "lanes", "sweep", "-o", "json")
	var r sweepReport
	if err := json.Unmarshal([]byte(stdout), &r); code != exitOK || err != nil || r.Tips != len(l.Shards) {
		t.Errorf("sweep: exit code %d, %q, %q, %v", code, stdout, stderr, err)
	}
	if code, _, stderr := streamer(t, "lanes", "handover", "--to", "run"); code != exitOK {
		t.Errorf("handover back: exit code %d, %q", code, stderr)
	}
	run = begin(t, "run", "--until-drained")
	run.exits(exitOK)
	checkReadings(t, d.dir, file)
	if code, _, stderr := streamer(t, "lanes", "handover", "--to", "nowhere"); code != exitUsage || !strings.Contains(stderr, "lambda or run") {
		t.Errorf("handover to nowhere: exit code %d, %q", code, stderr)
	}
}
