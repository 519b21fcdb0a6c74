package testenv_test

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/firehose"
	fhtypes "github.com/aws/aws-sdk-go-v2/service/firehose/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	smithymiddleware "github.com/aws/smithy-go/middleware"

	"telemetrylake/testenv"
)

// once returns a configuration that tries each request once.
func (w *world) once() aws.Config {
	cfg := w.cfg
	cfg.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
	return cfg
}

// atOnce returns a configuration that tries again up to n times, without waiting.
func (w *world) atOnce(n int) aws.Config {
	cfg := w.cfg
	cfg.Retryer = func() aws.Retryer {
		return retry.NewStandard(func(o *retry.StandardOptions) {
			o.MaxAttempts = n
			o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 0, nil })
		})
	}
	return cfg
}

func putThing(c *dynamodb.Client, pk string) error {
	_, err := c.PutItem(ctx, &dynamodb.PutItemInput{TableName: aws.String("things"), Item: key(pk, "0")})
	return err
}

func TestEveryServiceTellsTheClocksTime(t *testing.T) {
	eachTransport(t, func(t *testing.T, w *world) {
		w.create(t, "things")
		w.clock.Advance(36*time.Hour + 750*time.Millisecond)
		want := w.clock.Now().Truncate(time.Second)
		check := func(what string, meta smithymiddleware.Metadata, err error) {
			t.Helper()
			if got, ok := awsmiddleware.GetServerTime(meta); err != nil || !ok || !got.Equal(want) {
				t.Errorf("%s at %v: server time %v, %v", what, want, got, err)
			}
		}
		get, err := w.db.GetItem(ctx, &dynamodb.GetItemInput{TableName: aws.String("things"), Key: key("a", "b")})
		check("GetItem", get.ResultMetadata, err)
		list, err := w.streams.ListStreams(ctx, &dynamodbstreams.ListStreamsInput{})
		check("ListStreams", list.ResultMetadata, err)
		cfg := w.cfg
		streams, err := firehose.NewFromConfig(cfg).ListDeliveryStreams(ctx, &firehose.ListDeliveryStreamsInput{})
		check("ListDeliveryStreams", streams.ResultMetadata, err)
		buckets, err := s3.NewFromConfig(cfg).ListBuckets(ctx, &s3.ListBucketsInput{})
		check("ListBuckets", buckets.ResultMetadata, err)
	})
}

func TestFaultIsToldWhatARequestIs(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	w := open(t, oneShard, func(o *testenv.Options) {
		o.Fault = func(r testenv.Request) *testenv.Fault {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, r.Service+" "+r.Operation+" "+r.Resource)
			return nil
		}
	})
	w.create(t, "things")
	arn := w.streamARN(t, "things")
	it, err := w.iterator(arn, *w.shards(t, "things")[0].ShardId, "TRIM_HORIZON", "")
	if err != nil {
		t.Fatal(err)
	}
	w.read(t, it)
	w.put(t, "things", key("a", "b"))
	objects := s3.NewFromConfig(w.env.AWSConfig())
	bucket := aws.String("some-bucket")
	if _, err := objects.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: bucket}); err != nil {
		t.Fatal(err)
	}
	if _, err := objects.PutObject(ctx, &s3.PutObjectInput{Bucket: bucket, Key: aws.String("a/b"), Body: strings.NewReader("x")}); err != nil {
		t.Fatal(err)
	}
	if _, err := objects.GetObject(ctx, &s3.GetObjectInput{Bucket: bucket, Key: aws.String("a/b")}); err != nil {
		t.Fatal(err)
	}
	if _, err := objects.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: bucket}); err != nil {
		t.Fatal(err)
	}
	if _, err := objects.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: bucket, Delete: &s3types.Delete{Objects: []s3types.ObjectIdentifier{{Key: aws.String("a/b")}}}}); err != nil {
		t.Fatal(err)
	}
	// A delivery stream that is not there has a name all the same.
	_, _ = firehose.NewFromConfig(w.env.AWSConfig()).PutRecord(ctx, &firehose.PutRecordInput{
		DeliveryStreamName: aws.String("parts"), Record: &fhtypes.Record{Data: []byte("x")}})
	want := []string{
		"dynamodb CreateTable things", "dynamodb DescribeTable things", "dynamodb DescribeTable things",
		"streams DescribeStream " + arn, "streams GetShardIterator " + arn, "streams GetRecords " + arn,
		"dynamodb PutItem things", "s3 CreateBucket some-bucket", "s3 PutObject some-bucket/a/b", "s3 GetObject some-bucket/a/b",
		"s3 ListObjectsV2 some-bucket", "s3 DeleteObjects some-bucket", "firehose PutRecord parts",
	}
	// The SDK reaches buckets at addresses of their own, which end in a slash.
	for i := range asked {
		asked[i] = strings.TrimSuffix(asked[i], "/")
	}
	if !slices.Equal(asked, want) {
		t.Errorf("asked\n%s\nwant\n%s", strings.Join(asked, "\n"), strings.Join(want, "\n"))
	}
}

func TestFaultsReachTheClientAsTheServicesErrors(t *testing.T) {
	var fault atomic.Pointer[testenv.Fault]
	w := open(t, func(o *testenv.Options) { o.Fault = func(testenv.Request) *testenv.Fault { return fault.Load() } })
	w.create(t, "things")
	for _, client := range []aws.Config{w.once(), w.overHTTP(t).once()} {
		db, streams := dynamodb.NewFromConfig(client), dynamodbstreams.NewFromConfig(client)
		hose, objects := firehose.NewFromConfig(client), s3.NewFromConfig(client)
		for _, tt := range []struct {
			code   string
			status int
			call   func() error
		}{
			{"ProvisionedThroughputExceededException", 400, func() error { return putThing(db, "x") }},
			{"ThrottlingException", 400, func() error { return putThing(db, "x") }},
			{"InternalServerError", 500, func() error { return putThing(db, "x") }},
			{"LimitExceededException", 400, func() error {
				_, err := streams.ListStreams(ctx, &dynamodbstreams.ListStreamsInput{})
				return err
			}},
			{"ServiceUnavailableException", 500, func() error {
				_, err := hose.ListDeliveryStreams(ctx, &firehose.ListDeliveryStreamsInput{})
				return err
			}},
			{"SlowDown", 503, func() error { _, err := objects.ListBuckets(ctx, &s3.ListBucketsInput{}); return err }},
			{"InternalError", 500, func() error { _, err := objects.ListBuckets(ctx, &s3.ListBucketsInput{}); return err }},
		} {
			fault.Store(&testenv.Fault{Code: tt.code})
			err := tt.call()
			api, ok := errors.AsType[smithy.APIError](err)
			if !ok || api.ErrorCode() != tt.code || !strings.Contains(err.Error(), fmt.Sprintf("StatusCode: %d", tt.status)) {
				t.Errorf("%s: %v", tt.code, err)
			}
			if retry.IsErrorRetryables(retry.DefaultRetryables).IsErrorRetryable(err) != aws.TrueTernary {
				t.Errorf("the SDK would not try %s again", tt.code)
			}
		}
	}
	fault.Store(nil)
	if got := w.get(t, "things", key("x", "0")); got != nil {
		t.Errorf("a request that failed wrote %v", got)
	}
	fault.Store(&testenv.Fault{Code: "Odd", Status: http.StatusTeapot})
	if err := putThing(dynamodb.NewFromConfig(w.once()), "x"); err == nil || !strings.Contains(err.Error(), "StatusCode: 418") {
		t.Errorf("a status of its own: %v", err)
	}
}

func TestAnswerIsLostAfterTheRequestWasCarriedOut(t *testing.T) {
	for _, code := range []string{"", "InternalServerError"} {
		for _, after := range []bool{false, true} {
			var fault atomic.Pointer[testenv.Fault]
			w := open(t, func(o *testenv.Options) { o.Fault = func(testenv.Request) *testenv.Fault { return fault.Load() } })
			w.create(t, "things")
			for name, cfg := range map[string]aws.Config{"in process": w.once(), "over HTTP": w.overHTTP(t).once()} {
				fault.Store(&testenv.Fault{Code: code, After: after})
				if err := putThing(dynamodb.NewFromConfig(cfg), name); err == nil {
					t.Errorf("%s: no error of fault %q, after %v", name, code, after)
				}
				fault.Store(nil)
				if done := w.get(t, "things", key(name, "0")) != nil; done != after {
					t.Errorf("%s: fault %q, after %v: done %v", name, code, after, done)
				}
			}
		}
	}
}

func TestSeededFaultsAreTheSameForTheSameSeedAndPass(t *testing.T) {
	run := func(seed uint64) (outcomes string, failed int) {
		faults := testenv.SeededFaults(seed, 0.4)
		for _, service := range slices.Repeat([]string{"dynamodb", "streams", "firehose", "s3"}, 250) {
			f := faults(testenv.Request{Service: service})
			if f != nil {
				failed++
				outcomes += fmt.Sprintf("%+v ", *f)
			} else {
				outcomes += ". "
			}
		}
		return outcomes, failed
	}
	a, failed := run(1)
	if b, _ := run(1); a != b {
		t.Error("the same seed gave other faults")
	}
	if c, _ := run(2); a == c {
		t.Error("another seed gave the same faults")
	}
	if failed < 330 || failed > 470 {
		t.Errorf("%d of 1000 requests failed at a share of 0.4", failed)
	}
	for _, want := range []string{"SlowDown", "InternalError", "ServiceUnavailableException", "LimitExceededException", "ProvisionedThroughput", "Code: Status:0 After:true", "Code: Status:0 After:false"} {
		if !strings.Contains(a, want) {
			t.Errorf("no fault %s", want)
		}
	}
	w := open(t, func(o *testenv.Options) { o.Fault = testenv.SeededFaults(3, 0.3) })
	cfg := w.atOnce(40)
	w.db = dynamodb.NewFromConfig(cfg)
	w.create(t, "things")
	for i := range 50 {
		if err := putThing(w.db, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBatchesComeBackPartly(t *testing.T) {
	n := 0
	every := 3
	w := open(t, func(o *testenv.Options) {
		o.DynamoDB.Unprocessed = func() bool { n++; return every > 0 && n%every == 0 }
	})
	w.db = dynamodb.NewFromConfig(w.once())
	w.create(t, "things")
	var items []types.WriteRequest
	for i := range 10 {
		it := key("a", fmt.Sprint(i))
		it["v"] = M(attrs{"n": N("1.5"), "l": L(S("x\"y"), &types.AttributeValueMemberB{Value: []byte{1, 2}}, &types.AttributeValueMemberNULL{Value: true})})
		items = append(items, types.WriteRequest{PutRequest: &types.PutRequest{Item: it}})
	}
	rounds := 0
	for left := items; len(left) > 0; rounds++ {
		out, err := w.db.BatchWriteItem(ctx, &dynamodb.BatchWriteItemInput{RequestItems: map[string][]types.WriteRequest{"things": left}})
		if err != nil {
			t.Fatal(err)
		}
		if len(out.UnprocessedItems["things"]) != (n%3+len(left))/3 && rounds == 0 {
			t.Errorf("%d of %d items came back", len(out.UnprocessedItems["things"]), len(left))
		}
		left = out.UnprocessedItems["things"]
	}
	if rounds < 2 {
		t.Errorf("written in %d rounds", rounds)
	}
	every = 0
	for i := range 10 {
		got := w.get(t, "things", key("a", fmt.Sprint(i)))
		if !reflect.DeepEqual(attrs(got), attrs(items[i].PutRequest.Item)) {
			t.Errorf("item %d: %v", i, got)
		}
	}
	every, n = 2, 0
	keys := map[string]types.KeysAndAttributes{"things": {Keys: []map[string]types.AttributeValue{key("a", "0"), key("a", "1"), key("a", "2")}}}
	got, err := w.db.BatchGetItem(ctx, &dynamodb.BatchGetItemInput{RequestItems: keys})
	if err != nil || len(got.Responses["things"]) != 2 || len(got.UnprocessedKeys["things"].Keys) != 1 {
		t.Errorf("read %+v, %v", got, err)
	}
	every = 1
	_, err = w.db.BatchGetItem(ctx, &dynamodb.BatchGetItemInput{RequestItems: keys})
	wantCode(t, err, "ProvisionedThroughputExceededException")
	_, err = w.db.BatchWriteItem(ctx, &dynamodb.BatchWriteItemInput{RequestItems: map[string][]types.WriteRequest{"things": items}})
	wantCode(t, err, "ProvisionedThroughputExceededException")
}

func TestTransactionsAreCancelledForOthersSake(t *testing.T) {
	reasons := []string{"", "TransactionConflict", "", "ThrottlingError", "", "", "", ""}
	w := open(t, func(o *testenv.Options) {
		o.DynamoDB.Cancel = func() string { r := reasons[0]; reasons = reasons[1:]; return r }
	})
	w.db = dynamodb.NewFromConfig(w.once())
	w.create(t, "things")
	in := &dynamodb.TransactWriteItemsInput{}
	for i := range 4 {
		in.TransactItems = append(in.TransactItems, types.TransactWriteItem{Put: &types.Put{TableName: aws.String("things"), Item: key("a", fmt.Sprint(i))}})
	}
	_, err := w.db.TransactWriteItems(ctx, in)
	cancelled, ok := errors.AsType[*types.TransactionCanceledException](err)
	if !ok {
		t.Fatal(err)
	}
	var codes []string
	for _, r := range cancelled.CancellationReasons {
		codes = append(codes, *r.Code)
	}
	if !slices.Equal(codes, []string{"None", "TransactionConflict", "None", "ThrottlingError"}) || *cancelled.CancellationReasons[1].Message != "Transaction is ongoing for the item." {
		t.Errorf("reasons %+v", cancelled.CancellationReasons)
	}
	if got := w.get(t, "things", key("a", "0")); got != nil {
		t.Error("a cancelled transaction wrote something")
	}
	if _, err := w.db.TransactWriteItems(ctx, in); err != nil {
		t.Error(err)
	}
}
