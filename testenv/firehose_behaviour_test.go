package testenv

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsfirehose "github.com/aws/aws-sdk-go-v2/service/firehose"
	"github.com/aws/aws-sdk-go-v2/service/firehose/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// send puts records until each is answered well, as a client does, and says how often an entry
// or a call failed.
func send(t *testing.T, c *awsfirehose.Client, records ...string) (entries, calls int) {
	t.Helper()
	for left := records; len(left) > 0; {
		out, err := putBatch(t, c, left...)
		if e, ok := errors.AsType[*types.ServiceUnavailableException](err); ok && e.ErrorMessage() == "Slow down." {
			calls++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var again []string
		for i, entry := range out.RequestResponses {
			if entry.ErrorCode != nil {
				again = append(again, left[i])
			}
		}
		if len(again) != int(*out.FailedPutCount) {
			t.Fatalf("%d entries have failed and %d are counted", len(again), *out.FailedPutCount)
		}
		entries += len(again)
		left = again
	}
	return entries, calls
}

// once is a client that tries each request once.
func once(env *Env) *awsfirehose.Client {
	cfg := env.AWSConfig()
	cfg.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
	return awsfirehose.NewFromConfig(cfg)
}

// split cuts an object into the records <i> that it is made of.
func split(t *testing.T, body string) (records []string) {
	t.Helper()
	for rest := body; rest != ""; {
		record, after, ok := strings.Cut(rest, ">")
		if !ok || !strings.HasPrefix(record, "<") {
			t.Fatalf("object %q is not made of whole records", body)
		}
		records = append(records, record+">")
		rest = after
	}
	return records
}

func TestAnyGroupingOfSeedsDeliversEveryRecord(t *testing.T) {
	groupings := map[string]bool{}
	var shuffled, interleaved, twice, repeated, late, failed, throttled int
	for seed := range uint64(40) {
		env, clock, _, store := firehoseEnv(t, SeededFirehose(seed))
		c := once(env)
		mustCreateStream(t, c, withHints(1, 60))
		var want []string
		for batch := range 10 {
			var records []string
			for i := range 8 {
				records = append(records, fmt.Sprintf("<%04d>", batch*8+i))
			}
			want = append(want, records...)
			entries, calls := send(t, c, records...)
			failed, throttled = failed+entries, throttled+calls
			clock.Advance(10 * time.Second)
		}
		clock.Advance(2 * time.Minute)
		env.Tick()
		if st := env.FirehoseStats()[testStream]; st.Pending > 0 {
			late++
		}
		clock.Advance(20 * time.Hour)
		for range 20 { // ticks, for objects that are written again
			env.Tick()
		}
		env.FlushFirehose() // copies that came last
		for range 20 {
			env.Tick()
		}
		seen := map[string]int{}
		last := ""
		all := bodies(t, store)
		for _, body := range all {
			records := split(t, body)
			if !slices.IsSorted(records) {
				shuffled++
			}
			if records[0] < last {
				interleaved++
			}
			last = slices.Max(records)
			for _, r := range records {
				seen[r]++
			}
		}
		if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
			t.Fatalf("seed %d: delivered %q", seed, got)
		}
		for _, n := range seen {
			if n > 1 {
				twice++
			}
		}
		if slices.Sort(all); len(slices.Compact(all)) < len(bodies(t, store)) {
			repeated++
		}
		groupings[strings.Join(all, "|")] = true
		if st := env.FirehoseStats()[testStream]; st.Pending != 0 || st.Lost != 0 {
			t.Errorf("seed %d: %+v", seed, st)
		}
	}
	for what, n := range map[string]int{"other groupings": len(groupings) - 39, "objects in another order": shuffled, "objects that overlap": interleaved, "records that came twice": twice,
		"objects that came twice": repeated, "late deliveries": late, "failed entries": failed, "throttled calls": throttled} {
		if n == 0 {
			t.Errorf("40 seeds had no %s", what)
		}
	}
}

func TestSameSeedGroupsTheSame(t *testing.T) {
	run := func(seed uint64) []string {
		env, clock, _, store := firehoseEnv(t, SeededFirehose(seed))
		c := once(env)
		mustCreateStream(t, c, withHints(1, 60))
		for i := range 30 {
			send(t, c, fmt.Sprintf("<%d>", i))
			clock.Advance(5 * time.Second)
		}
		env.FlushFirehose()
		return append(bodies(t, store), listKeys(t, store, &s3.ListObjectsV2Input{})...)
	}
	if a, b := run(4), run(4); !slices.Equal(a, b) {
		t.Errorf("%q\n%q", a, b)
	}
}

func TestObjectIsNamedByItsOwnOldestRecord(t *testing.T) {
	_, clock, c, store := firehoseEnv(t, FirehoseBehaviour{
		Group: func(n int) []int { return []int{7, 9, 7, 9}[:n] },
		Order: func(n int, swap func(i, j int)) { swap(0, n-1) },
	})
	mustCreateStream(t, c, withHints(1, 60))
	for _, r := range []string{"a", "b", "c", "d"} {
		mustPutBatch(t, c, r)
		clock.Advance(10 * time.Second)
	}
	clock.Advance(time.Minute)
	if got := bodies(t, store); !slices.Equal(got, []string{"ca", "db"}) {
		t.Errorf("objects %q", got)
	}
	keys := listKeys(t, store, &s3.ListObjectsV2Input{})
	if !strings.Contains(keys[0], "-12-34-56-") || !strings.Contains(keys[1], "-12-35-06-") {
		t.Errorf("objects named %q", keys)
	}
}

func TestHeldObjectsComeLateAndFlushingDoesNotWait(t *testing.T) {
	hold := 20 * time.Hour
	env, clock, c, store := firehoseEnv(t, FirehoseBehaviour{Hold: func() time.Duration { h := hold; hold = 0; return h }})
	mustCreateStream(t, c, withHints(1, 60))
	mustPutBatch(t, c, "late")
	clock.Advance(time.Minute)
	env.Tick()
	mustPutBatch(t, c, "soon")
	clock.Advance(time.Minute)
	if got := bodies(t, store); !slices.Equal(got, []string{"soon"}) {
		t.Errorf("delivered %q", got)
	}
	if m := env.FirehoseMetrics(testStream); m["DeliveryToS3.DataFreshness"] != 120 || m["DeliveryToS3.Records"] != 1 {
		t.Errorf("metrics %v", m)
	}
	clock.Advance(20*time.Hour - time.Minute - 1)
	if got := bodies(t, store); len(got) != 1 {
		t.Errorf("delivered early: %q", got)
	}
	clock.Advance(1)
	if got := bodies(t, store); !slices.Equal(got, []string{"late", "soon"}) {
		t.Errorf("delivered %q", got)
	}
	hold = 1000 * time.Hour
	mustPutBatch(t, c, "flushed")
	clock.Advance(time.Minute)
	env.Tick()
	env.FlushFirehose()
	if got := bodies(t, store); len(got) != 3 {
		t.Errorf("flushing left %q", got)
	}
}

func TestHintsAreHintsOnly(t *testing.T) {
	_, clock, c, store := firehoseEnv(t, FirehoseBehaviour{Hints: func(size int, interval time.Duration) (int, time.Duration) {
		if size != 1<<20 || interval != time.Minute {
			t.Errorf("hinted %d bytes, %v", size, interval)
		}
		return 3, 2 * interval
	}})
	mustCreateStream(t, c, withHints(1, 60))
	mustPutBatch(t, c, "aa", "b", "c")
	clock.Advance(2*time.Minute - 1)
	if got := bodies(t, store); !slices.Equal(got, []string{"aab"}) {
		t.Errorf("delivered %q", got)
	}
	clock.Advance(1)
	if got := bodies(t, store); len(got) != 2 {
		t.Errorf("delivered %q", got)
	}
}

func TestObjectIsWrittenAgainUnderAnotherName(t *testing.T) {
	n := 0
	env, _, c, store := firehoseEnv(t, FirehoseBehaviour{Repeat: func() bool { n++; return n <= 2 }})
	mustCreateStream(t, c, nil)
	mustPutBatch(t, c, "x")
	for range 5 {
		env.FlushFirehose()
	}
	if got := bodies(t, store); !slices.Equal(got, []string{"x", "x", "x"}) {
		t.Errorf("delivered %q", got)
	}
	if st := env.FirehoseStats()[testStream]; st != (FirehoseStats{Records: 1, Bytes: 3, Objects: 3}) {
		t.Errorf("stats %+v", st)
	}
}

func TestQuotaOfTheRegionThrottlesEntriesAndCalls(t *testing.T) {
	for region, want := range map[string]Quota{"us-east-1": {2000, 500_000, 5 << 20}, "us-west-2": {2000, 500_000, 5 << 20},
		"eu-west-1": {2000, 500_000, 5 << 20}, "eu-central-1": {1000, 100_000, 1 << 20}} {
		clock := NewManualClock(testTime)
		env := openFor(t, Options{Dir: t.TempDir(), Clock: clock, Region: region, Firehose: FirehoseBehaviour{Quota: true}})
		if _, err := s3Client(env.AWSConfig()).CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(testBucket)}); err != nil {
			t.Fatal(err)
		}
		c := once(env)
		mustCreateStream(t, c, nil)
		largest := strings.Repeat("x", maxFirehoseRecord)
		for range 3 { // seconds
			out, err := putBatch(t, c, largest, largest, largest, largest)
			if err != nil {
				t.Fatal(err)
			}
			fit := min(4, want.Bytes/maxFirehoseRecord)
			if int(*out.FailedPutCount) != 4-fit {
				t.Errorf("%s: %d of 4 entries failed", region, *out.FailedPutCount)
			}
			for i, entry := range out.RequestResponses {
				if (aws.ToString(entry.ErrorCode) == "ServiceUnavailableException") != (i >= fit) {
					t.Errorf("%s: entry %d: %+v", region, i, entry)
				}
			}
			clock.Advance(time.Second)
		}
		good := 0
		for range want.Requests + 100 {
			_, err := c.PutRecord(t.Context(), &awsfirehose.PutRecordInput{DeliveryStreamName: aws.String(testStream), Record: &types.Record{Data: []byte{}}})
			if err == nil {
				good++
			} else {
				wantAPIError(t, err, "ServiceUnavailableException", 500)
			}
		}
		if good != want.Requests {
			t.Errorf("%s: %d of %d calls in a moment were taken", region, good, want.Requests+100)
		}
		m := env.FirehoseMetrics(testStream)
		if int(m["PutRequestsPerSecondLimit"]) != want.Requests || int(m["RecordsPerSecondLimit"]) != want.Records || int(m["BytesPerSecondLimit"]) != want.Bytes {
			t.Errorf("%s: limits in %v", region, m)
		}
		if throttled := 100 + 3*(4-min(4, want.Bytes/maxFirehoseRecord)); int(m["ThrottledRecords"]) != throttled {
			t.Errorf("%s: %v throttled records, want %d", region, m["ThrottledRecords"], throttled)
		}
	}
}

func TestStoredRecordIsAnsweredAsFailed(t *testing.T) {
	n := 0
	env, _, c, store := firehoseEnv(t, FirehoseBehaviour{Doubt: func() bool { n++; return n == 1 }})
	mustCreateStream(t, c, nil)
	out, err := putBatch(t, c, "a", "b")
	if err != nil || *out.FailedPutCount != 1 || aws.ToString(out.RequestResponses[0].ErrorCode) != "InternalFailure" || out.RequestResponses[1].ErrorCode != nil {
		t.Fatalf("answered %+v, %v", out, err)
	}
	mustPutBatch(t, c, "a")
	env.FlushFirehose()
	if got := bodies(t, store); !slices.Equal(got, []string{"aba"}) {
		t.Errorf("delivered %q", got)
	}
}

func TestSDKTriesAThrottledCallAgain(t *testing.T) {
	n := 0
	env, _, _, _ := firehoseEnv(t, FirehoseBehaviour{Throttle: func() bool { n++; return n <= 2 }})
	cfg := env.AWSConfig()
	mustCreateStream(t, awsfirehose.NewFromConfig(cfg), nil)
	_, err := awsfirehose.NewFromConfig(cfg).PutRecord(t.Context(), &awsfirehose.PutRecordInput{DeliveryStreamName: aws.String(testStream), Record: &types.Record{Data: []byte("x")}})
	if err != nil || n != 3 {
		t.Errorf("after %d calls: %v", n, err)
	}
}

func TestMetricsShowTheWayToTheLossAndNotTheLoss(t *testing.T) {
	down := false
	env, clock, c, _ := firehoseEnv(t, FirehoseBehaviour{Deliver: func(string, string) error {
		if down {
			return errors.New("slow down")
		}
		return nil
	}})
	if m := env.FirehoseMetrics(testStream); m != nil {
		t.Errorf("metrics of no stream: %v", m)
	}
	mustCreateStream(t, c, withHints(1, 60))
	check := func(want map[string]float64) {
		t.Helper()
		env.Tick()
		m := env.FirehoseMetrics(testStream)
		for name, v := range want {
			if got, ok := m[name]; !ok || got != v {
				t.Errorf("%s is %v, want %v", name, got, v)
			}
		}
	}
	check(map[string]float64{"IncomingRecords": 0, "DeliveryToS3.DataFreshness": 0, "DeliveryToS3.ObjectCount": 0})
	if _, ok := env.FirehoseMetrics(testStream)["DeliveryToS3.Success"]; ok {
		t.Error("a success before the first attempt")
	}
	mustPutBatch(t, c, "one", "two")
	if _, err := c.PutRecord(t.Context(), &awsfirehose.PutRecordInput{DeliveryStreamName: aws.String(testStream), Record: &types.Record{Data: []byte("three")}}); err != nil {
		t.Fatal(err)
	}
	clock.Advance(59 * time.Second)
	check(map[string]float64{"IncomingRecords": 3, "IncomingBytes": 11, "IncomingPutRequests": 2, "PutRecordBatch.Records": 2, "PutRecordBatch.Bytes": 6,
		"PutRecordBatch.Requests": 1, "PutRecord.Requests": 1, "PutRecord.Bytes": 5, "DeliveryToS3.DataFreshness": 59, "DeliveryToS3.Records": 0})
	clock.Advance(time.Second)
	check(map[string]float64{"DeliveryToS3.DataFreshness": 0, "DeliveryToS3.Records": 3, "DeliveryToS3.Bytes": 11, "DeliveryToS3.ObjectCount": 1, "DeliveryToS3.Success": 1})

	down = true
	mustPutBatch(t, c, "lost")
	clock.Advance(24*time.Hour - time.Second)
	check(map[string]float64{"DeliveryToS3.DataFreshness": 86_399, "IncomingRecords": 4, "DeliveryToS3.Records": 3})
	if got := env.FirehoseMetrics(testStream)["DeliveryToS3.Success"]; got >= 1 {
		t.Errorf("success %v while S3 is down", got)
	}
	clock.Advance(time.Second)
	check(map[string]float64{"DeliveryToS3.DataFreshness": 0, "IncomingRecords": 4, "DeliveryToS3.Records": 3})
	if st := env.FirehoseStats()[testStream]; st.Lost != 1 {
		t.Errorf("stats %+v", st)
	}
}

func TestGroupedBuffersSurviveARestart(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var refuse bool
	d := openDurable(t, func(o *Options) {
		o.Firehose = FirehoseBehaviour{
			Close:   func(records, _ int) bool { return records == 7 },
			Group:   func(n int) []int { return rng.Perm(n) },
			Order:   rng.Shuffle,
			Hold:    func() time.Duration { return time.Hour },
			Deliver: func(string, string) error { return map[bool]error{true: errors.New("down")}[refuse] },
		}
	})
	d.bucketAndStream(t)
	var want []string
	for i := range 10 {
		r := fmt.Sprintf("<%d>", i)
		want = append(want, r)
		if err := d.send(t, r); err != nil {
			t.Fatal(err)
		}
	}
	d = d.again(t)
	if st := d.FirehoseStats()[testStream]; st.Pending != 10 {
		t.Fatalf("after a restart: %+v", st)
	}
	d.clock.Advance(time.Hour - 1)
	d.Tick()
	if got := bodies(t, d.objects); len(got) != 0 {
		t.Errorf("the restart forgot that objects are held: %q", got)
	}
	d.clock.Advance(1)
	d.Tick()
	if got := bodies(t, d.objects); len(got) != 7 {
		t.Errorf("delivered %q", got)
	}
	d.FlushFirehose()
	got := bodies(t, d.objects)
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("delivered %q", got)
	}
	if left, err := readSpace(d.store, string(spacePayload)); err != nil || len(left) != 0 {
		t.Errorf("the store still holds %q, %v", left, err)
	}
}

func TestStreamsThatTakeNoDirectPutAreDescribed(t *testing.T) {
	env, clock, c, _ := firehoseEnv(t, FirehoseBehaviour{Creating: time.Minute})
	describe := func(name string) *types.DeliveryStreamDescription {
		t.Helper()
		out, err := c.DescribeDeliveryStream(t.Context(), &awsfirehose.DescribeDeliveryStreamInput{DeliveryStreamName: &name})
		if err != nil {
			t.Fatal(err)
		}
		return out.DeliveryStreamDescription
	}
	mustCreateStream(t, c, nil)
	_, err := putBatch(t, once(env), "x")
	wantAPIError(t, err, "ResourceNotFoundException", 400)
	if d := describe(testStream); d.DeliveryStreamStatus != types.DeliveryStreamStatusCreating {
		t.Errorf("a new stream is %s", d.DeliveryStreamStatus)
	}
	clock.Advance(time.Minute)
	if d := describe(testStream); d.DeliveryStreamStatus != types.DeliveryStreamStatusActive || d.DeliveryStreamType != types.DeliveryStreamTypeDirectPut || d.Source != nil {
		t.Errorf("described %+v", d)
	}
	mustPutBatch(t, c, "x")

	in := &awsfirehose.CreateDeliveryStreamInput{DeliveryStreamName: aws.String("reads"), DeliveryStreamType: types.DeliveryStreamTypeKinesisStreamAsSource,
		ExtendedS3DestinationConfiguration: destination(nil)}
	if _, err := c.CreateDeliveryStream(t.Context(), in); err == nil {
		t.Error("a source without a name was accepted")
	}
	in.KinesisStreamSourceConfiguration = &types.KinesisStreamSourceConfiguration{
		KinesisStreamARN: aws.String("arn:aws:kinesis:us-east-1:000000000000:stream/s"), RoleARN: aws.String("arn:aws:iam::000000000000:role/delivery")}
	if _, err := c.CreateDeliveryStream(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	clock.Advance(time.Minute)
	d := describe("reads")
	if d.DeliveryStreamType != types.DeliveryStreamTypeKinesisStreamAsSource || aws.ToString(d.Source.KinesisStreamSourceDescription.KinesisStreamARN) != *in.KinesisStreamSourceConfiguration.KinesisStreamARN {
		t.Errorf("described %+v", d)
	}
	_, err = c.PutRecord(t.Context(), &awsfirehose.PutRecordInput{DeliveryStreamName: aws.String("reads"), Record: &types.Record{Data: []byte("x")}})
	wantAPIError(t, err, "InvalidArgumentException", 400)
	list, err := c.ListDeliveryStreams(t.Context(), &awsfirehose.ListDeliveryStreamsInput{DeliveryStreamType: types.DeliveryStreamTypeKinesisStreamAsSource})
	if err != nil || !slices.Equal(list.DeliveryStreamNames, []string{"reads"}) {
		t.Errorf("listed %+v, %v", list, err)
	}
}
