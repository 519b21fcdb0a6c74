package testenv

import (
	"bytes"
	"errors"
	"fmt"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsfirehose "github.com/aws/aws-sdk-go-v2/service/firehose"
	"github.com/aws/aws-sdk-go-v2/service/firehose/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

const testStream = "parts"

// firehoseEnv is an Env with a bucket, and clients in process. It has no stream.
func firehoseEnv(t *testing.T, b FirehoseBehaviour) (*Env, *ManualClock, *awsfirehose.Client, *s3.Client) {
	t.Helper()
	clock := NewManualClock(testTime)
	env := openFor(t, Options{Dir: t.TempDir(), Clock: clock, Firehose: b, Seed: 7})
	store := s3Client(env.AWSConfig())
	if _, err := store.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(testBucket)}); err != nil {
		t.Fatal(err)
	}
	return env, clock, awsfirehose.NewFromConfig(env.AWSConfig()), store
}

func destination(change func(*types.ExtendedS3DestinationConfiguration)) *types.ExtendedS3DestinationConfiguration {
	d := &types.ExtendedS3DestinationConfiguration{
		BucketARN: aws.String("arn:aws:s3:::" + testBucket),
		RoleARN:   aws.String("arn:aws:iam::000000000000:role/delivery"),
	}
	if change != nil {
		change(d)
	}
	return d
}

func createStream(t *testing.T, c *awsfirehose.Client, change func(*types.ExtendedS3DestinationConfiguration)) error {
	t.Helper()
	_, err := c.CreateDeliveryStream(t.Context(), &awsfirehose.CreateDeliveryStreamInput{
		DeliveryStreamName:                 aws.String(testStream),
		DeliveryStreamType:                 types.DeliveryStreamTypeDirectPut,
		ExtendedS3DestinationConfiguration: destination(change),
	})
	return err
}

func mustCreateStream(t *testing.T, c *awsfirehose.Client, change func(*types.ExtendedS3DestinationConfiguration)) {
	t.Helper()
	if err := createStream(t, c, change); err != nil {
		t.Fatal(err)
	}
}

func withHints(size, interval int32) func(*types.ExtendedS3DestinationConfiguration) {
	return func(d *types.ExtendedS3DestinationConfiguration) {
		d.BufferingHints = &types.BufferingHints{SizeInMBs: &size, IntervalInSeconds: &interval}
	}
}

func putBatch(t *testing.T, c *awsfirehose.Client, records ...string) (*awsfirehose.PutRecordBatchOutput, error) {
	t.Helper()
	in := &awsfirehose.PutRecordBatchInput{DeliveryStreamName: aws.String(testStream)}
	for _, r := range records {
		in.Records = append(in.Records, types.Record{Data: []byte(r)})
	}
	return c.PutRecordBatch(t.Context(), in)
}

func mustPutBatch(t *testing.T, c *awsfirehose.Client, records ...string) {
	t.Helper()
	out, err := putBatch(t, c, records...)
	if err != nil || *out.FailedPutCount != 0 {
		t.Fatalf("put: %+v, %v", out, err)
	}
}

// bodies are the delivered objects in the order of their names.
func bodies(t *testing.T, c *s3.Client) []string {
	t.Helper()
	var all []string
	for _, key := range listKeys(t, c, &s3.ListObjectsV2Input{}) {
		all = append(all, s3Get(t, c, key))
	}
	return all
}

func TestFirehoseJoinsRecordsWithoutDelimiterWhenTheIntervalIsOver(t *testing.T) {
	env, clock, c, store := firehoseEnv(t, FirehoseBehaviour{})
	mustCreateStream(t, c, withHints(1, 60))
	mustPutBatch(t, c, "PAR1onePAR1", "PAR1twoPAR1")
	clock.Advance(30 * time.Second)
	if _, err := c.PutRecord(t.Context(), &awsfirehose.PutRecordInput{DeliveryStreamName: aws.String(testStream), Record: &types.Record{Data: []byte("three")}}); err != nil {
		t.Fatal(err)
	}
	clock.Advance(30*time.Second - 1)
	if got := bodies(t, store); len(got) != 0 {
		t.Fatalf("delivered before the interval was over: %q", got)
	}
	if st := env.FirehoseStats()[testStream]; st != (FirehoseStats{Records: 3, Pending: 3}) {
		t.Errorf("stats %+v", st)
	}
	clock.Advance(1)
	env.Tick()
	if got := bodies(t, store); !slices.Equal(got, []string{"PAR1onePAR1PAR1twoPAR1three"}) {
		t.Errorf("delivered %q", got)
	}
	if st := env.FirehoseStats()[testStream]; st != (FirehoseStats{Records: 3, Bytes: 27, Objects: 1}) {
		t.Errorf("stats %+v", st)
	}
	key := listKeys(t, store, &s3.ListObjectsV2Input{})[0]
	want := regexp.MustCompile(`^2026/11/30/12/parts-1-2026-11-30-12-34-56-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	if !want.MatchString(key) {
		t.Errorf("object named %q", key)
	}
}

func TestFirehoseDeliversWhenTheSizeHintIsReached(t *testing.T) {
	env, clock, c, store := firehoseEnv(t, FirehoseBehaviour{})
	mustCreateStream(t, c, withHints(1, 900))
	half := strings.Repeat("h", 512<<10)
	mustPutBatch(t, c, half, half, half, "rest")
	env.Tick()
	if got := bodies(t, store); len(got) != 1 || got[0] != half+half {
		t.Fatalf("%d objects", len(got))
	}
	if st := env.FirehoseStats()[testStream]; st.Pending != 2 || st.Bytes != 1<<20 {
		t.Errorf("stats %+v", st)
	}
	clock.Advance(900 * time.Second)
	if got := bodies(t, store); len(got) != 2 {
		t.Errorf("%d objects after the interval", len(got))
	}
}

func TestFirehoseWithoutHintsHasTheServicesDefaults(t *testing.T) {
	env, clock, c, store := firehoseEnv(t, FirehoseBehaviour{})
	mustCreateStream(t, c, nil)
	out, err := c.DescribeDeliveryStream(t.Context(), &awsfirehose.DescribeDeliveryStreamInput{DeliveryStreamName: aws.String(testStream)})
	if err != nil {
		t.Fatal(err)
	}
	d := out.DeliveryStreamDescription.Destinations[0].ExtendedS3DestinationDescription
	if *d.BufferingHints.SizeInMBs != 5 || *d.BufferingHints.IntervalInSeconds != 300 || d.CompressionFormat != types.CompressionFormatUncompressed {
		t.Errorf("described %+v", d)
	}
	mustPutBatch(t, c, "x")
	clock.Advance(300*time.Second - 1)
	env.Tick()
	if got := bodies(t, store); len(got) != 0 {
		t.Errorf("delivered early: %q", got)
	}
	clock.Advance(1)
	if got := bodies(t, store); len(got) != 1 {
		t.Errorf("delivered %q", got)
	}
}

func TestFirehoseEvaluatesPrefixes(t *testing.T) {
	withError := aws.String("failed/!{firehose:error-output-type}/")
	for _, tt := range []struct {
		prefix, extension string
		errorPrefix       *string
		want              string // of the name, as a regular expression up to the UUID
	}{
		{"", "", nil, `2026/11/30/12/parts-1-2026-11-30-12-34-56-`},
		{"staging/", ".parquet", nil, `staging/2026/11/30/12/parts-1-2026-11-30-12-34-56-`},
		{"no-slash-", "", nil, `no-slash-2026/11/30/12/parts-1-`},
		{"dt=!{timestamp:yyyy-MM-dd}/hour=!{timestamp:HH}/", "", withError, `dt=2026-11-30/hour=12/parts-1-`},
		{"!{timestamp:yyyy/MM/dd'T'HH''mm}-", "", withError, `2026/11/30T12'34-parts-1-`},
		{"!{timestamp:yy.M.d.h.a.EEE.MMM.DDD.SSS}-", "", withError, `26\.11\.30\.12\.PM\.Mon\.Nov\.334\.789-parts-1-`},
		{"!{firehose:random-string}/", "", withError, `[0-9a-z]{11}/2026/11/30/12/parts-1-`},
	} {
		_, clock, c, store := firehoseEnv(t, FirehoseBehaviour{})
		mustCreateStream(t, c, func(d *types.ExtendedS3DestinationConfiguration) {
			d.Prefix, d.FileExtension, d.ErrorOutputPrefix = &tt.prefix, &tt.extension, tt.errorPrefix
		})
		mustPutBatch(t, c, "x")
		clock.Advance(time.Hour)
		got := listKeys(t, store, &s3.ListObjectsV2Input{})
		if len(got) != 1 || !regexp.MustCompile("^"+tt.want+`.*[0-9a-f]{12}`+regexp.QuoteMeta(tt.extension)+"$").MatchString(got[0]) {
			t.Errorf("prefix %q: objects %q", tt.prefix, got)
		}
	}
}

func TestFirehoseEnforcesTheLimitsOfPuts(t *testing.T) {
	env, _, c, _ := firehoseEnv(t, FirehoseBehaviour{})
	_, err := putBatch(t, c, "x")
	if _, ok := errors.AsType[*types.ResourceNotFoundException](err); !ok {
		t.Errorf("put to no stream: %v", err)
	}
	mustCreateStream(t, c, nil)
	largest := strings.Repeat("x", maxFirehoseRecord)
	mustPutBatch(t, c, largest, largest, largest, largest)                                         // 4,096,000 bytes
	mustPutBatch(t, c, largest, largest, largest, largest, strings.Repeat("x", 4<<20-4*1_024_000)) // 4 MiB
	_, err = putBatch(t, c, largest, largest, largest, largest, strings.Repeat("x", 4<<20-4*1_024_000+1))
	if _, ok := errors.AsType[*types.InvalidArgumentException](err); !ok {
		t.Errorf("more than 4 MiB: %v", err)
	}
	_, err = putBatch(t, c, "fits", largest+"x")
	wantAPIError(t, err, "ValidationException", 400)
	_, err = c.PutRecord(t.Context(), &awsfirehose.PutRecordInput{DeliveryStreamName: aws.String(testStream), Record: &types.Record{Data: []byte(largest + "x")}})
	wantAPIError(t, err, "ValidationException", 400)
	mustPutBatch(t, c, slices.Repeat([]string{""}, 500)...)
	_, err = putBatch(t, c, slices.Repeat([]string{"x"}, 501)...)
	wantAPIError(t, err, "ValidationException", 400)
	_, err = putBatch(t, c)
	if err == nil {
		t.Error("an empty batch was taken")
	}
	if st := env.FirehoseStats()[testStream]; st.Records != 509 {
		t.Errorf("a refused call left records: %+v", st)
	}
}

func TestFirehoseReportsFailedEntriesInOrderAndKeepsTheOthers(t *testing.T) {
	n := 0
	env, _, c, store := firehoseEnv(t, FirehoseBehaviour{Fail: func() bool { n++; return n%2 == 0 }})
	mustCreateStream(t, c, nil)
	out, err := putBatch(t, c, "a", "b", "c", "d", "e")
	if err != nil {
		t.Fatal(err)
	}
	if *out.FailedPutCount != 2 || len(out.RequestResponses) != 5 {
		t.Fatalf("answered %+v", out)
	}
	for i, entry := range out.RequestResponses {
		failed := i%2 == 1
		if failed != (aws.ToString(entry.ErrorCode) == "ServiceUnavailableException") || failed == (entry.RecordId != nil) || failed != (entry.ErrorMessage != nil) {
			t.Errorf("entry %d: %+v", i, entry)
		}
	}
	env.FlushFirehose()
	if got := bodies(t, store); !slices.Equal(got, []string{"ace"}) {
		t.Errorf("delivered %q", got)
	}
}

func TestFirehoseKeepsWhatS3RefusesForADay(t *testing.T) {
	down := true
	var asked []string
	env, clock, c, store := firehoseEnv(t, FirehoseBehaviour{Deliver: func(bucket, key string) error {
		asked = append(asked, bucket+"/"+key)
		if down {
			return errors.New("slow down")
		}
		return nil
	}})
	mustCreateStream(t, c, withHints(1, 0))
	mustPutBatch(t, c, "first")
	env.Tick()
	env.FlushFirehose()
	mustPutBatch(t, c, "second")
	if got := bodies(t, store); len(got) != 0 || len(asked) < 2 {
		t.Fatalf("delivered %q after attempts %q", got, asked)
	}
	if asked[0] != asked[1] {
		t.Errorf("a retry changed the object's name: %q", asked[:2])
	}
	down = false
	env.Tick()
	if got := bodies(t, store); len(got) != 2 || !slices.Contains(got, "first") || !slices.Contains(got, "second") {
		t.Errorf("delivered %q", got)
	}
	down = true
	mustPutBatch(t, c, "lost")
	clock.Advance(24*time.Hour - 1)
	env.Tick()
	if st := env.FirehoseStats()[testStream]; st.Pending != 1 || st.Lost != 0 {
		t.Errorf("before 24 hours: %+v", st)
	}
	clock.Advance(1)
	env.Tick()
	if st := env.FirehoseStats()[testStream]; st.Pending != 0 || st.Lost != 1 {
		t.Errorf("after 24 hours: %+v", st)
	}
}

func TestFirehoseWaitsForAMissingBucket(t *testing.T) {
	env, _, c, store := firehoseEnv(t, FirehoseBehaviour{})
	mustCreateStream(t, c, func(d *types.ExtendedS3DestinationConfiguration) { d.BucketARN = aws.String("arn:aws:s3:::made-later") })
	mustPutBatch(t, c, "x")
	env.FlushFirehose()
	if st := env.FirehoseStats()[testStream]; st.Pending != 1 {
		t.Fatalf("stats %+v", st)
	}
	if _, err := store.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String("made-later")}); err != nil {
		t.Fatal(err)
	}
	env.Tick()
	if st := env.FirehoseStats()[testStream]; st.Objects != 1 {
		t.Errorf("stats %+v", st)
	}
}

func TestFirehoseBehaviourGroupsAndCopies(t *testing.T) {
	env, _, c, store := firehoseEnv(t, FirehoseBehaviour{
		Close:  func(records, _ int) bool { return records >= 2 },
		Copies: func() int { return 1 },
	})
	mustCreateStream(t, c, nil)
	mustPutBatch(t, c, "a", "b", "c")
	env.FlushFirehose()
	joined := strings.Join(bodies(t, store), "|")
	for _, r := range []string{"a", "b", "c"} {
		if strings.Count(joined, r) != 2 {
			t.Errorf("record %s is not delivered twice: %q", r, joined)
		}
	}
	b := bodies(t, store)
	if slices.ContainsFunc(b, func(body string) bool { return strings.Count(body, "b") == 2 }) {
		t.Errorf("the second copy lies in its record's object: %q", b)
	}
	if !slices.ContainsFunc(b, func(body string) bool { return strings.Count(body, "a") == 2 }) {
		t.Errorf("the first copy lies in another object: %q", b)
	}
	if st := env.FirehoseStats()[testStream]; st.Records != 3 || st.Bytes != 6 || st.Pending != 0 || st.Objects != len(b) {
		t.Errorf("stats %+v", st)
	}
}

func TestFirehoseIsTheSameForTheSameSeed(t *testing.T) {
	run := func() []string {
		env, _, c, store := firehoseEnv(t, FirehoseBehaviour{})
		mustCreateStream(t, c, nil)
		for _, name := range []string{"x", "y", "z"} {
			_, err := c.CreateDeliveryStream(t.Context(), &awsfirehose.CreateDeliveryStreamInput{
				DeliveryStreamName: aws.String(name), ExtendedS3DestinationConfiguration: destination(nil)})
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.PutRecord(t.Context(), &awsfirehose.PutRecordInput{DeliveryStreamName: aws.String(name), Record: &types.Record{Data: []byte(name)}})
			if err != nil {
				t.Fatal(err)
			}
		}
		env.FlushFirehose()
		return listKeys(t, store, &s3.ListObjectsV2Input{})
	}
	if a, b := run(), run(); !slices.Equal(a, b) {
		t.Errorf("%q and %q", a, b)
	}
}

func TestFirehoseOverHTTPDeliversEachRecordOfManyWritersOnce(t *testing.T) {
	env, clock, _, store := firehoseEnv(t, FirehoseBehaviour{})
	server := httptest.NewServer(env)
	t.Cleanup(server.Close)
	cfg := env.AWSConfig()
	cfg.HTTPClient, cfg.BaseEndpoint = nil, &server.URL
	c := awsfirehose.NewFromConfig(cfg)
	mustCreateStream(t, c, withHints(1, 60))
	var group sync.WaitGroup
	for w := range 8 {
		group.Go(func() {
			for i := range 50 {
				record := fmt.Sprintf("<%d-%d>%s", w, i, bytes.Repeat([]byte("."), 10_000))
				if _, err := c.PutRecord(t.Context(), &awsfirehose.PutRecordInput{DeliveryStreamName: aws.String(testStream), Record: &types.Record{Data: []byte(record)}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	clock.Advance(time.Minute)
	env.Tick()
	all := strings.Join(bodies(t, store), "")
	for w := range 8 {
		for i := range 50 {
			if strings.Count(all, fmt.Sprintf("<%d-%d>", w, i)) != 1 {
				t.Errorf("record %d of writer %d is not delivered once", i, w)
			}
		}
	}
}

func TestFirehoseWorksInASynctestBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := openFor(t, Options{Dir: t.TempDir()})
		store, c := s3Client(env.AWSConfig()), awsfirehose.NewFromConfig(env.AWSConfig())
		if _, err := store.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(testBucket)}); err != nil {
			t.Fatal(err)
		}
		mustCreateStream(t, c, withHints(1, 60))
		mustPutBatch(t, c, "a", "b")
		time.Sleep(59 * time.Second)
		if got := bodies(t, store); len(got) != 0 {
			t.Fatalf("delivered %q", got)
		}
		time.Sleep(time.Second)
		if got := bodies(t, store); !slices.Equal(got, []string{"ab"}) {
			t.Errorf("delivered %q", got)
		}
	})
}
