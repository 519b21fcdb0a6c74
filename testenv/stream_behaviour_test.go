package testenv_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	st "github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/testenv"
)

// children lists the children of a shard by the filter.
func (w *world) children(t testing.TB, table, parent string) (ids []string) {
	t.Helper()
	out, err := w.streams.DescribeStream(ctx, &dynamodbstreams.DescribeStreamInput{StreamArn: aws.String(w.streamARN(t, table)),
		ShardFilter: &st.ShardFilter{Type: st.ShardFilterTypeChildShards, ShardId: &parent}})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range out.StreamDescription.Shards {
		ids = append(ids, *h.ShardId)
	}
	return ids
}

func TestPagesAreEmptyOrShortAlthoughRecordsFollow(t *testing.T) {
	sizes := []int{0, 0, 2, 0, 100, 1}
	w := open(t, oneShard, func(o *testenv.Options) {
		o.Streams.Page = func(limit int) int {
			if limit != 10 {
				t.Errorf("asked with limit %d", limit)
			}
			n := sizes[0]
			sizes = append(sizes[1:], n)
			return n
		}
	})
	w.create(t, "things")
	var want []string
	for i := range 30 {
		w.put(t, "things", key("a", fmt.Sprintf("%02d", i)))
		want = append(want, fmt.Sprintf("a/%02d", i))
	}
	shard := *w.shards(t, "things")[0].ShardId
	if err := w.env.RotateShards("things", 1); err != nil {
		t.Fatal(err)
	}
	it, err := w.iterator(w.streamARN(t, "things"), shard, st.ShardIteratorTypeTrimHorizon, "")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	var pages []int
	for next := &it; next != nil; {
		out, err := w.streams.GetRecords(ctx, &dynamodbstreams.GetRecordsInput{ShardIterator: next, Limit: aws.Int32(10)})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range out.Records {
			got = append(got, id(r))
		}
		pages = append(pages, len(out.Records))
		next = out.NextShardIterator
	}
	if !slices.Equal(got, want) {
		t.Errorf("read %q", got)
	}
	if !slices.Equal(pages[:7], []int{0, 0, 2, 0, 10, 1, 0}) {
		t.Errorf("pages of %v records", pages)
	}
}

func TestChildrenAreListedLate(t *testing.T) {
	w := open(t, oneShard, func(o *testenv.Options) {
		delay := time.Duration(0)
		o.Streams.ChildDelay = func() time.Duration { delay += 10 * time.Second; return delay }
	})
	w.create(t, "things")
	parent := *w.shards(t, "things")[0].ShardId
	if err := w.env.SplitShard("things", parent); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		after time.Duration
		want  int
	}{{0, 0}, {10*time.Second - 1, 0}, {10 * time.Second, 1}, {20 * time.Second, 2}} {
		w.clock.Set(start.Add(tt.after))
		if listed, children := w.shards(t, "things"), w.children(t, "things", parent); len(listed) != 1+tt.want || len(children) != tt.want {
			t.Errorf("after %v: %d shards, %d children", tt.after, len(listed), len(children))
		}
	}
}

func TestListingsLeaveShardsOut(t *testing.T) {
	hidden := ""
	w := open(t, oneShard, func(o *testenv.Options) { o.Streams.Omit = func(id string) bool { return id == hidden } })
	w.create(t, "things")
	parent := *w.shards(t, "things")[0].ShardId
	w.put(t, "things", key("a", "0"))
	if err := w.env.SplitShard("things", parent); err != nil {
		t.Fatal(err)
	}
	hidden = parent
	listed := w.shards(t, "things")
	if len(listed) != 2 || *listed[0].ParentShardId != parent || *listed[1].ParentShardId != parent {
		t.Errorf("listed %+v", listed)
	}
	it, err := w.iterator(w.streamARN(t, "things"), parent, st.ShardIteratorTypeTrimHorizon, "")
	if err != nil {
		t.Fatal(err)
	}
	if records, ended := w.read(t, it); len(records) != 1 || !ended {
		t.Error("a shard that a listing leaves out cannot be read")
	}
	hidden = *listed[0].ShardId
	if got := w.children(t, "things", parent); !slices.Equal(got, []string{*listed[1].ShardId}) {
		t.Errorf("children %q", got)
	}
}

func TestListingsOfAnyOrderNameEachShardOnce(t *testing.T) {
	for seed := range uint64(20) {
		w := open(t, func(o *testenv.Options) { o.Streams.Order = seed })
		w.create(t, "things")
		if err := w.env.RotateShards("things", 60); err != nil {
			t.Fatal(err)
		}
		listed := w.shards(t, "things")
		place := map[string]int{}
		for i, h := range listed {
			place[*h.ShardId] = i
		}
		before := 0 // children before their parents
		for i, h := range listed {
			if h.ParentShardId != nil && i < place[*h.ParentShardId] {
				before++
			}
		}
		if len(listed) != 4*61 || len(place) != 4*61 {
			t.Errorf("seed %d: %d shards, %d different", seed, len(listed), len(place))
		}
		if seed == 0 && before != 0 || seed != 0 && before < 50 {
			t.Errorf("seed %d: %d children stand before their parents", seed, before)
		}
	}
}

func TestThousandsOfClosedShardsAreALineage(t *testing.T) {
	w := open(t)
	w.create(t, "things")
	if err := w.env.RotateShards("things", 1000); err != nil {
		t.Fatal(err)
	}
	open, parents := 0, map[string]bool{}
	listed := w.shards(t, "things")
	for _, h := range listed {
		if h.SequenceNumberRange.StartingSequenceNumber == nil {
			t.Fatalf("shard without a start: %+v", h)
		}
		if end := h.SequenceNumberRange.EndingSequenceNumber; end == nil {
			open++
		} else if *end <= *h.SequenceNumberRange.StartingSequenceNumber { // both of 21 digits
			t.Fatalf("shard %+v ends before it starts", h.SequenceNumberRange)
		}
		if h.ParentShardId != nil {
			if parents[*h.ParentShardId] {
				t.Fatalf("shard %s has two children", *h.ParentShardId)
			}
			parents[*h.ParentShardId] = true
		}
	}
	if len(listed) != 4004 || open != 4 || len(parents) != 4000 {
		t.Errorf("%d shards, %d open, %d with a child", len(listed), open, len(parents))
	}
	if err := w.env.RotateShards("nothing", 1); err == nil {
		t.Error("a table that is not there was resharded")
	}
}

func TestTrimmingIsDoneWhenATestWantsIt(t *testing.T) {
	w := open(t, oneShard, func(o *testenv.Options) { o.StreamRetention = -1 })
	w.create(t, "things")
	arn, parent := w.streamARN(t, "things"), *w.shards(t, "things")[0].ShardId
	w.put(t, "things", key("a", "0"))
	w.clock.Advance(time.Minute)
	w.put(t, "things", key("a", "1"))
	w.clock.Advance(time.Minute)
	if err := w.env.RotateShards("things", 1); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(100 * time.Hour)
	w.put(t, "things", key("a", "2"))
	if got := w.drain(t, "things"); len(got) != 3 {
		t.Fatalf("without a retention there are %q", got)
	}
	first, err := w.iterator(arn, parent, st.ShardIteratorTypeTrimHorizon, "")
	if err != nil {
		t.Fatal(err)
	}
	records, _ := w.read(t, first)
	behind, err := w.iterator(arn, parent, st.ShardIteratorTypeAtSequenceNumber, *records[0].Dynamodb.SequenceNumber)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.env.TrimStream("things", start.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	_, err = w.streams.GetRecords(ctx, &dynamodbstreams.GetRecordsInput{ShardIterator: &behind})
	if _, ok := errors.AsType[*st.TrimmedDataAccessException](err); !ok {
		t.Errorf("reading what was trimmed: %v", err)
	}
	if got := w.drain(t, "things"); len(got) != 2 || !strings.HasSuffix(got[0], "a/1") {
		t.Errorf("after trimming one record: %q", got)
	}
	if err := w.env.TrimStream("things", start.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if listed := w.shards(t, "things"); len(listed) != 1 || *listed[0].ParentShardId != parent {
		t.Errorf("after trimming the parent: %+v", listed)
	}
	if got := w.drain(t, "things"); len(got) != 1 {
		t.Errorf("left %q", got)
	}
}

func TestShorterRetentionTrimsSooner(t *testing.T) {
	w := open(t, oneShard, func(o *testenv.Options) { o.StreamRetention = time.Hour })
	w.create(t, "things")
	w.put(t, "things", key("a", "0"))
	w.clock.Advance(time.Hour)
	if got := w.drain(t, "things"); len(got) != 1 {
		t.Errorf("after exactly an hour: %q", got)
	}
	w.clock.Advance(time.Minute)
	if got := w.drain(t, "things"); len(got) != 0 {
		t.Errorf("after the hour: %q", got)
	}
}

func TestSeededStreamsHideNothingForLong(t *testing.T) {
	for seed := range uint64(10) {
		w := open(t, func(o *testenv.Options) { o.Streams = testenv.SeededStreams(seed) })
		w.create(t, "things")
		arn := w.streamARN(t, "things")
		for i := range 200 {
			w.put(t, "things", key(fmt.Sprint(i), "0"))
			if i%50 == 0 {
				if err := w.env.Reshard("things"); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.clock.Advance(30 * time.Second)
		shards := map[string]bool{}
		incomplete := false
		for range 20 {
			listed := w.shards(t, "things")
			incomplete = incomplete || len(listed) < 4+8+16+32+64
			for _, h := range listed {
				shards[*h.ShardId] = true
			}
		}
		seen, empty := map[string]bool{}, 0
		for shard := range shards {
			it, err := w.iterator(arn, shard, st.ShardIteratorTypeTrimHorizon, "")
			if err != nil {
				t.Fatal(err)
			}
			for range 40 { // pages
				records, ended := w.read(t, it)
				for _, r := range records {
					seen[id(r)] = true
				}
				if ended {
					break
				}
				empty++
			}
		}
		if len(shards) != 4+8+16+32+64 || !incomplete || len(seen) != 200 || empty == 0 {
			t.Errorf("seed %d: %d shards, some listing incomplete: %v; %d records, %d empty pages", seed, len(shards), incomplete, len(seen), empty)
		}
	}
}
