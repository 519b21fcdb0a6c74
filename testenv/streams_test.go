package testenv_test

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	st "github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/testenv"
)

func (w *world) streamARN(t testing.TB, table string) string {
	t.Helper()
	out, err := w.db.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &table})
	if err != nil {
		t.Fatal(err)
	}
	return *out.Table.LatestStreamArn
}

// shards lists all shards of the table's stream.
func (w *world) shards(t testing.TB, table string) []st.Shard {
	t.Helper()
	var out []st.Shard
	in := &dynamodbstreams.DescribeStreamInput{StreamArn: aws.String(w.streamARN(t, table))}
	for {
		page, err := w.streams.DescribeStream(ctx, in)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, page.StreamDescription.Shards...)
		if in.ExclusiveStartShardId = page.StreamDescription.LastEvaluatedShardId; in.ExclusiveStartShardId == nil {
			return out
		}
	}
}

func (w *world) iterator(arn, shard string, kind st.ShardIteratorType, sequence string) (string, error) {
	in := &dynamodbstreams.GetShardIteratorInput{StreamArn: &arn, ShardId: &shard, ShardIteratorType: kind}
	if sequence != "" {
		in.SequenceNumber = &sequence
	}
	out, err := w.streams.GetShardIterator(ctx, in)
	if err != nil {
		return "", err
	}
	return *out.ShardIterator, nil
}

// read reads from the iterator until the shard ends or a page is empty.
func (w *world) read(t testing.TB, iterator string) (records []st.Record, ended bool) {
	t.Helper()
	for {
		out, err := w.streams.GetRecords(ctx, &dynamodbstreams.GetRecordsInput{ShardIterator: &iterator})
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, out.Records...)
		if out.NextShardIterator == nil {
			return records, true
		}
		if len(out.Records) == 0 {
			return records, false
		}
		iterator = *out.NextShardIterator
	}
}

// drain reads all records of the stream, by shard in the order of the listing.
func (w *world) drain(t testing.TB, table string) []string {
	t.Helper()
	var out []string
	arn := w.streamARN(t, table)
	for _, h := range w.shards(t, table) {
		it, err := w.iterator(arn, *h.ShardId, st.ShardIteratorTypeTrimHorizon, "")
		if err != nil {
			t.Fatal(err)
		}
		records, _ := w.read(t, it)
		for _, r := range records {
			out = append(out, fmt.Sprint(*h.ShardId, *r.EventID, r.EventName, *r.Dynamodb.SequenceNumber, id(r)))
		}
	}
	return out
}

func id(r st.Record) string {
	return r.Dynamodb.Keys["pk"].(*st.AttributeValueMemberS).Value + "/" + r.Dynamodb.Keys["sk"].(*st.AttributeValueMemberS).Value
}

func oneShard(o *testenv.Options) { o.StreamShards = 1 }

func TestRecordsLookLikeTheService(t *testing.T) {
	for _, overHTTP := range []bool{false, true} {
		w := open(t, oneShard)
		if overHTTP {
			w = w.overHTTP(t)
		}
		w.create(t, "things", func(in *dynamodb.CreateTableInput) {
			in.StreamSpecification.StreamViewType = types.StreamViewTypeNewAndOldImages
		})
		w.clock.Advance(1500 * time.Millisecond)
		it := key("a", "b")
		it["n"] = N("1.50")
		w.put(t, "things", it)
		w.put(t, "things", it) // changes nothing: no record
		it["n"] = N("1.5")
		w.put(t, "things", it) // the same number
		it["n"] = N("2")
		w.put(t, "things", it)
		if _, err := w.db.DeleteItem(ctx, &dynamodb.DeleteItemInput{TableName: aws.String("things"), Key: key("a", "b")}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.db.DeleteItem(ctx, &dynamodb.DeleteItemInput{TableName: aws.String("things"), Key: key("a", "b")}); err != nil {
			t.Fatal(err)
		}
		iterator, err := w.iterator(w.streamARN(t, "things"), *w.shards(t, "things")[0].ShardId, st.ShardIteratorTypeTrimHorizon, "")
		if err != nil {
			t.Fatal(err)
		}
		records, ended := w.read(t, iterator)
		if len(records) != 3 || ended {
			t.Fatalf("%d records, ended %v", len(records), ended)
		}
		image := func(n string) map[string]st.AttributeValue {
			return map[string]st.AttributeValue{"pk": &st.AttributeValueMemberS{Value: "a"}, "sk": &st.AttributeValueMemberS{Value: "b"}, "n": &st.AttributeValueMemberN{Value: n}}
		}
		for i, want := range []struct {
			name     st.OperationType
			old, new map[string]st.AttributeValue
			size     int64
		}{
			{st.OperationTypeInsert, nil, image("1.5"), 6 + 6 + 3},
			{st.OperationTypeModify, image("1.5"), image("2"), 6 + 18},
			{st.OperationTypeRemove, image("2"), nil, 6 + 9},
		} {
			r := records[i]
			if r.EventName != want.name || !reflect.DeepEqual(r.Dynamodb.OldImage, want.old) || !reflect.DeepEqual(r.Dynamodb.NewImage, want.new) {
				t.Errorf("record %d: %s %v -> %v", i, r.EventName, r.Dynamodb.OldImage, r.Dynamodb.NewImage)
			}
			if *r.EventVersion != "1.1" || *r.EventSource != "aws:dynamodb" || *r.AwsRegion != "us-east-1" || r.UserIdentity != nil ||
				len(*r.EventID) != 32 || len(r.Dynamodb.Keys) != 2 || r.Dynamodb.StreamViewType != st.StreamViewTypeNewAndOldImages ||
				!r.Dynamodb.ApproximateCreationDateTime.Equal(start.Add(time.Second)) || *r.Dynamodb.SizeBytes != want.size {
				t.Errorf("record %d: %+v %+v size %d", i, r, r.Dynamodb, *r.Dynamodb.SizeBytes)
			}
			if s := *r.Dynamodb.SequenceNumber; !regexp.MustCompile(`^\d{21}$`).MatchString(s) || i > 0 && s <= *records[i-1].Dynamodb.SequenceNumber {
				t.Errorf("record %d has the sequence number %s", i, s)
			}
		}
	}
}

func TestViewTypeDecidesTheImages(t *testing.T) {
	for view, want := range map[types.StreamViewType][2]bool{
		types.StreamViewTypeKeysOnly:        {false, false},
		types.StreamViewTypeNewImage:        {false, true},
		types.StreamViewTypeOldImage:        {true, false},
		types.StreamViewTypeNewAndOldImages: {true, true},
	} {
		w := open(t, oneShard)
		w.create(t, "things", func(in *dynamodb.CreateTableInput) { in.StreamSpecification.StreamViewType = view })
		it := key("a", "b")
		w.put(t, "things", it)
		it["n"] = N("1")
		w.put(t, "things", it)
		iterator, err := w.iterator(w.streamARN(t, "things"), *w.shards(t, "things")[0].ShardId, st.ShardIteratorTypeTrimHorizon, "")
		if err != nil {
			t.Fatal(err)
		}
		records, _ := w.read(t, iterator)
		if r := records[1].Dynamodb; (r.OldImage != nil) != want[0] || (r.NewImage != nil) != want[1] {
			t.Errorf("%s: old %v, new %v", view, r.OldImage, r.NewImage)
		}
	}
}

func TestShardsKeepTheOrderOfEachItemThroughReshards(t *testing.T) {
	w := open(t)
	w.create(t, "things")
	const devices, rounds = 12, 30
	for round := range rounds {
		for d := range devices {
			it := key(fmt.Sprint("d", d), "x")
			it["n"] = N(fmt.Sprint(round))
			w.put(t, "things", it)
		}
		if round%10 == 4 {
			if err := w.env.Reshard("things"); err != nil {
				t.Fatal(err)
			}
		}
	}
	arn, shards := w.streamARN(t, "things"), w.shards(t, "things")
	if len(shards) != 4+8+16+32 {
		t.Fatalf("%d shards", len(shards))
	}
	byID := map[string]st.Shard{}
	next := map[string]int{}
	total := 0
	for _, h := range shards { // the listing has parents before children
		if !regexp.MustCompile(`^shardId-\d{20}-[0-9a-f]{8}$`).MatchString(*h.ShardId) {
			t.Errorf("shard id %s", *h.ShardId)
		}
		if h.ParentShardId != nil {
			parent := byID[*h.ParentShardId]
			if parent.SequenceNumberRange == nil || *parent.SequenceNumberRange.EndingSequenceNumber >= *h.SequenceNumberRange.StartingSequenceNumber {
				t.Errorf("shard %+v does not follow its parent %+v", h, parent)
			}
		}
		byID[*h.ShardId] = h
		it, err := w.iterator(arn, *h.ShardId, st.ShardIteratorTypeTrimHorizon, "")
		if err != nil {
			t.Fatal(err)
		}
		records, ended := w.read(t, it)
		if closed := h.SequenceNumberRange.EndingSequenceNumber != nil; ended != closed {
			t.Errorf("shard closed %v, ended %v", closed, ended)
		}
		for _, r := range records {
			d := id(r)
			if n := r.Dynamodb.NewImage["n"].(*st.AttributeValueMemberN).Value; n != fmt.Sprint(next[d]) {
				t.Fatalf("%s: got %s, want %d", d, n, next[d])
			}
			next[d]++
			total++
			if s := *r.Dynamodb.SequenceNumber; s < *h.SequenceNumberRange.StartingSequenceNumber ||
				h.SequenceNumberRange.EndingSequenceNumber != nil && s > *h.SequenceNumberRange.EndingSequenceNumber {
				t.Errorf("record %s is outside its shard", s)
			}
		}
	}
	if total != devices*rounds {
		t.Errorf("%d records", total)
	}
	children, err := w.streams.DescribeStream(ctx, &dynamodbstreams.DescribeStreamInput{StreamArn: &arn,
		ShardFilter: &st.ShardFilter{Type: st.ShardFilterTypeChildShards, ShardId: shards[0].ShardId}})
	if err != nil || len(children.StreamDescription.Shards) != 2 || *children.StreamDescription.Shards[0].ParentShardId != *shards[0].ShardId {
		t.Errorf("children %v, %v", children, err)
	}
}

func TestSplittingOneShardLeavesTheOthersOpen(t *testing.T) {
	w := open(t)
	w.create(t, "things")
	first := *w.shards(t, "things")[1].ShardId
	if err := w.env.SplitShard("things", first); err != nil {
		t.Fatal(err)
	}
	shards := w.shards(t, "things")
	open := 0
	for _, h := range shards {
		if h.SequenceNumberRange.EndingSequenceNumber == nil {
			open++
		}
	}
	if len(shards) != 6 || open != 5 {
		t.Errorf("%d shards, %d open", len(shards), open)
	}
	for _, bad := range []error{w.env.SplitShard("things", first), w.env.SplitShard("things", ""), w.env.Reshard("nothing")} {
		if bad == nil {
			t.Error("an impossible split succeeded")
		}
	}
}

func TestDescribeStreamPagesByHundred(t *testing.T) {
	w := open(t, func(o *testenv.Options) { o.StreamShards = 250 })
	w.create(t, "things")
	out, err := w.streams.DescribeStream(ctx, &dynamodbstreams.DescribeStreamInput{StreamArn: aws.String(w.streamARN(t, "things")), Limit: aws.Int32(100)})
	if err != nil || len(out.StreamDescription.Shards) != 100 || out.StreamDescription.LastEvaluatedShardId == nil {
		t.Fatalf("%v", err)
	}
	seen := map[string]bool{}
	for _, h := range w.shards(t, "things") {
		seen[*h.ShardId] = true
	}
	if len(seen) != 250 {
		t.Errorf("%d shards", len(seen))
	}
}

func TestIteratorTypes(t *testing.T) {
	w := open(t, oneShard)
	w.create(t, "things")
	arn, shard := w.streamARN(t, "things"), *w.shards(t, "things")[0].ShardId
	for i := range 5 {
		w.put(t, "things", key("a", fmt.Sprint(i)))
	}
	first, err := w.iterator(arn, shard, st.ShardIteratorTypeTrimHorizon, "")
	if err != nil {
		t.Fatal(err)
	}
	records, _ := w.read(t, first)
	third := *records[2].Dynamodb.SequenceNumber
	latest, err := w.iterator(arn, shard, st.ShardIteratorTypeLatest, "")
	if err != nil {
		t.Fatal(err)
	}
	w.put(t, "things", key("a", "5"))
	at, err := w.iterator(arn, shard, st.ShardIteratorTypeAtSequenceNumber, third)
	if err != nil {
		t.Fatal(err)
	}
	behind, err := w.iterator(arn, shard, st.ShardIteratorTypeAfterSequenceNumber, third)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, iterator, want string }{
		{"TRIM_HORIZON", first, "a/0 a/1 a/2 a/3 a/4 a/5"}, {"LATEST", latest, "a/5"},
		{"AT", at, "a/2 a/3 a/4 a/5"}, {"AFTER", behind, "a/3 a/4 a/5"}, {"AFTER again", behind, "a/3 a/4 a/5"},
	} {
		records, _ := w.read(t, c.iterator)
		var got []string
		for _, r := range records {
			got = append(got, id(r))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	for _, s := range []string{"", "1", "x", "000000000000000000001", strings.Repeat("9", 21)} {
		if _, err := w.iterator(arn, shard, st.ShardIteratorTypeAfterSequenceNumber, s); err == nil {
			t.Errorf("an iterator after %q was given", s)
		}
	}
	var notFound *st.ResourceNotFoundException
	if _, err := w.iterator(arn, "shardId-00000000000000000000-00000000", st.ShardIteratorTypeLatest, ""); !errors.As(err, &notFound) {
		t.Errorf("iterator of an unknown shard: %v", err)
	}
	if _, err := w.iterator(arn+"x", shard, st.ShardIteratorTypeLatest, ""); !errors.As(err, &notFound) {
		t.Errorf("iterator of an unknown stream: %v", err)
	}
}

func TestIteratorsExpireAfterFifteenMinutes(t *testing.T) {
	w := open(t, oneShard)
	w.create(t, "things")
	it, err := w.iterator(w.streamARN(t, "things"), *w.shards(t, "things")[0].ShardId, st.ShardIteratorTypeTrimHorizon, "")
	if err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(15 * time.Minute)
	if _, err := w.streams.GetRecords(ctx, &dynamodbstreams.GetRecordsInput{ShardIterator: &it}); err != nil {
		t.Errorf("after fifteen minutes: %v", err)
	}
	w.clock.Advance(time.Second)
	_, err = w.streams.GetRecords(ctx, &dynamodbstreams.GetRecordsInput{ShardIterator: &it})
	var expired *st.ExpiredIteratorException
	if !errors.As(err, &expired) {
		t.Errorf("after that: %v", err)
	}
}

func TestSequenceNumberBelongsToOneShard(t *testing.T) {
	w := open(t, oneShard)
	w.create(t, "things")
	w.put(t, "things", key("a", "0"))
	arn, parent := w.streamARN(t, "things"), *w.shards(t, "things")[0].ShardId
	it, err := w.iterator(arn, parent, st.ShardIteratorTypeTrimHorizon, "")
	if err != nil {
		t.Fatal(err)
	}
	records, _ := w.read(t, it)
	if err := w.env.Reshard("things"); err != nil {
		t.Fatal(err)
	}
	child := w.shards(t, "things")[1]
	if _, err := w.iterator(arn, *child.ShardId, st.ShardIteratorTypeAfterSequenceNumber, *records[0].Dynamodb.SequenceNumber); err == nil {
		t.Error("a child accepted its parent's sequence number")
	}
	if _, err := w.iterator(arn, parent, st.ShardIteratorTypeAfterSequenceNumber, *child.SequenceNumberRange.StartingSequenceNumber); err == nil {
		t.Error("a closed shard accepted its child's sequence number")
	}
}

func TestPagesOfRecordsAreBounded(t *testing.T) {
	w := open(t, oneShard)
	w.create(t, "things")
	for i := range 1005 {
		w.put(t, "things", key("a", fmt.Sprint(i)))
	}
	for i := range 3 {
		it := key("b", fmt.Sprint(i))
		it["s"] = S(strings.Repeat("x", 399<<10))
		w.put(t, "things", it)
	}
	arn, shard := w.streamARN(t, "things"), *w.shards(t, "things")[0].ShardId
	if err := w.env.Reshard("things"); err != nil {
		t.Fatal(err)
	}
	it, err := w.iterator(arn, shard, st.ShardIteratorTypeTrimHorizon, "")
	if err != nil {
		t.Fatal(err)
	}
	next := &it
	var pages []int
	for next != nil {
		out, err := w.streams.GetRecords(ctx, &dynamodbstreams.GetRecordsInput{ShardIterator: next})
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, len(out.Records))
		next = out.NextShardIterator
	}
	// The last page drains the closed shard and is the one without a next iterator.
	if !slices.Equal(pages, []int{1000, 7, 1}) {
		t.Errorf("pages %v", pages)
	}
	empty := w.shards(t, "things")[1]
	if err := w.env.SplitShard("things", *empty.ShardId); err != nil {
		t.Fatal(err)
	}
	if it, err = w.iterator(arn, *empty.ShardId, st.ShardIteratorTypeTrimHorizon, ""); err != nil {
		t.Fatal(err)
	}
	out, err := w.streams.GetRecords(ctx, &dynamodbstreams.GetRecordsInput{ShardIterator: &it})
	if err != nil || len(out.Records) != 0 || out.NextShardIterator != nil {
		t.Errorf("an empty closed shard gave %v, %v", out, err)
	}
}

func TestRecordsAreTrimmedAfterADay(t *testing.T) {
	w := open(t, oneShard)
	w.create(t, "things")
	arn, shard := w.streamARN(t, "things"), *w.shards(t, "things")[0].ShardId
	w.put(t, "things", key("a", "0"))
	w.put(t, "things", key("a", "1"))
	w.clock.Advance(10 * time.Hour)
	w.put(t, "things", key("a", "2"))
	horizon, _ := w.iterator(arn, shard, st.ShardIteratorTypeTrimHorizon, "")
	records, _ := w.read(t, horizon)
	second, third := *records[1].Dynamodb.SequenceNumber, *records[2].Dynamodb.SequenceNumber
	w.clock.Set(start.Add(24 * time.Hour))
	if _, err := w.iterator(arn, shard, st.ShardIteratorTypeAfterSequenceNumber, second); err != nil {
		t.Errorf("after exactly a day: %v", err)
	}
	first, _ := w.iterator(arn, shard, st.ShardIteratorTypeAtSequenceNumber, *records[0].Dynamodb.SequenceNumber)
	w.clock.Advance(2 * time.Minute)
	var trimmed *st.TrimmedDataAccessException
	if _, err := w.iterator(arn, shard, st.ShardIteratorTypeAfterSequenceNumber, second); !errors.As(err, &trimmed) {
		t.Errorf("iterator behind a trimmed record: %v", err)
	}
	if _, err := w.streams.GetRecords(ctx, &dynamodbstreams.GetRecordsInput{ShardIterator: &first}); !errors.As(err, &trimmed) {
		t.Errorf("reading trimmed records: %v", err)
	}
	horizon, _ = w.iterator(arn, shard, st.ShardIteratorTypeTrimHorizon, "")
	if records, _ := w.read(t, horizon); len(records) != 1 || id(records[0]) != "a/2" {
		t.Errorf("%d records are left", len(records))
	}
	if _, err := w.iterator(arn, shard, st.ShardIteratorTypeAtSequenceNumber, third); err != nil {
		t.Error(err)
	}
}

func TestClosedShardsLeaveTheListingAfterADay(t *testing.T) {
	w := open(t, oneShard)
	w.create(t, "things")
	parent := *w.shards(t, "things")[0].ShardId
	arn := w.streamARN(t, "things")
	if err := w.env.Reshard("things"); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(24*time.Hour + time.Minute)
	shards := w.shards(t, "things")
	if len(shards) != 2 || *shards[0].ParentShardId != parent {
		t.Errorf("shards %+v", shards)
	}
	var notFound *st.ResourceNotFoundException
	if _, err := w.iterator(arn, parent, st.ShardIteratorTypeTrimHorizon, ""); !errors.As(err, &notFound) {
		t.Errorf("iterator of a shard that is gone: %v", err)
	}
}

func TestShardsRotateAtTheEndOfTheirLife(t *testing.T) {
	w := open(t, func(o *testenv.Options) { o.ShardLife = 0 })
	w.create(t, "things")
	before := w.shards(t, "things")
	w.clock.Advance(testenv.DefaultShardLife)
	w.env.Tick()
	after := w.shards(t, "things")
	if len(before) != 4 || len(after) != 8 {
		t.Fatalf("%d shards became %d", len(before), len(after))
	}
	for _, h := range after[:4] {
		if h.SequenceNumberRange.EndingSequenceNumber == nil {
			t.Errorf("shard %s is still open", *h.ShardId)
		}
	}
	for _, h := range after[4:] {
		if h.ParentShardId == nil || h.SequenceNumberRange.EndingSequenceNumber != nil {
			t.Errorf("shard %+v is no open child", h)
		}
	}
}

func TestReenabledStreamIsANewOne(t *testing.T) {
	w := open(t, oneShard)
	w.create(t, "things")
	old := w.streamARN(t, "things")
	shard := *w.shards(t, "things")[0].ShardId
	w.put(t, "things", key("a", "0"))
	set := func(spec *types.StreamSpecification) {
		t.Helper()
		if _, err := w.db.UpdateTable(ctx, &dynamodb.UpdateTableInput{TableName: aws.String("things"), StreamSpecification: spec}); err != nil {
			t.Fatal(err)
		}
	}
	set(&types.StreamSpecification{StreamEnabled: aws.Bool(false)})
	w.put(t, "things", key("a", "1"))
	set(&types.StreamSpecification{StreamEnabled: aws.Bool(true), StreamViewType: types.StreamViewTypeKeysOnly})
	w.put(t, "things", key("a", "2"))
	if w.streamARN(t, "things") == old {
		t.Fatal("the stream has its old ARN")
	}
	list, err := w.streams.ListStreams(ctx, &dynamodbstreams.ListStreamsInput{TableName: aws.String("things")})
	if err != nil || len(list.Streams) != 2 {
		t.Errorf("streams %v, %v", list, err)
	}
	it, err := w.iterator(old, shard, st.ShardIteratorTypeTrimHorizon, "")
	if err != nil {
		t.Fatal(err)
	}
	if records, ended := w.read(t, it); len(records) != 1 || !ended {
		t.Errorf("the old stream has %d records, ended %v", len(records), ended)
	}
	if got := w.drain(t, "things"); len(got) != 1 || !strings.HasSuffix(got[0], "a/2") {
		t.Errorf("the new stream has %q", got)
	}
	w.clock.Advance(25 * time.Hour)
	var notFound *st.ResourceNotFoundException
	if _, err := w.streams.DescribeStream(ctx, &dynamodbstreams.DescribeStreamInput{StreamArn: &old}); !errors.As(err, &notFound) {
		t.Errorf("the old stream after a day: %v", err)
	}
}

// A reader follows the shards while writers write and shards split: it sees each record
// once and never one before an earlier one of its shard.
func TestReadersNeverSkipWhatIsBeingWritten(t *testing.T) {
	w := open(t)
	w.create(t, "things")
	const writers, puts = 4, 150
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for j := range puts {
				w.put(t, "things", key(fmt.Sprintf("w%d-%d", i, j%7), fmt.Sprint(j)))
				if i == 0 && j%50 == 25 {
					if err := w.env.Reshard("things"); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	arn := w.streamARN(t, "things")
	next := map[string]*string{}
	seen := map[string]int{}
	poll := func() (progress bool) {
		for _, h := range w.shards(t, "things") {
			if _, ok := next[*h.ShardId]; !ok {
				it, err := w.iterator(arn, *h.ShardId, st.ShardIteratorTypeTrimHorizon, "")
				if err != nil {
					t.Fatal(err)
				}
				next[*h.ShardId], progress = &it, true
			}
			if next[*h.ShardId] == nil {
				continue
			}
			out, err := w.streams.GetRecords(ctx, &dynamodbstreams.GetRecordsInput{ShardIterator: next[*h.ShardId]})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range out.Records {
				seen[id(r)]++
				progress = true
			}
			next[*h.ShardId] = out.NextShardIterator
		}
		return progress
	}
	for running := true; running; {
		select {
		case <-finished:
			running = false
		default:
		}
		poll()
	}
	for poll() {
	}
	if len(seen) != writers*puts {
		t.Errorf("saw %d of %d records", len(seen), writers*puts)
	}
	for k, n := range seen {
		if n != 1 {
			t.Errorf("saw %s %d times", k, n)
		}
	}
}
