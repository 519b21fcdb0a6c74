package lake

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/firehose"
	"github.com/aws/aws-sdk-go-v2/service/firehose/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
	"telemetrylake/testenv"
)

const (
	bucketName = "the-bucket"
	streamName = "parts"
)

// newService is an embedded AWS with one bucket.
func newService(t testing.TB, b testenv.FirehoseBehaviour) (*testenv.Env, aws.Config) {
	t.Helper()
	env, err := testenv.Open(testenv.Options{Dir: t.TempDir(), Firehose: b})
	if err != nil {
		t.Fatal(err)
	}
	cfg := env.AWSConfig()
	if _, err := s3Client(cfg).CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(bucketName)}); err != nil {
		t.Fatal(err)
	}
	return env, cfg
}

func s3Client(cfg aws.Config) *s3.Client {
	return s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = true })
}

func destination() *types.ExtendedS3DestinationConfiguration {
	return &types.ExtendedS3DestinationConfiguration{
		BucketARN: aws.String("arn:aws:s3:::" + bucketName), RoleARN: aws.String("arn:aws:iam::000000000000:role/delivery"),
		Prefix: aws.String("staging/"), BufferingHints: &types.BufferingHints{SizeInMBs: aws.Int32(128), IntervalInSeconds: aws.Int32(900)},
	}
}

// newSink is a sink on a delivery stream, and what its client sends.
func newSink(t testing.TB, cfg aws.Config, d *types.ExtendedS3DestinationConfiguration) (*Firehose, *wire) {
	t.Helper()
	_, err := firehose.NewFromConfig(cfg).CreateDeliveryStream(t.Context(), &firehose.CreateDeliveryStreamInput{
		DeliveryStreamName: aws.String(streamName), ExtendedS3DestinationConfiguration: d,
	})
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{next: cfg.HTTPClient}
	cfg.HTTPClient = w
	return NewFirehose(firehose.NewFromConfig(cfg), streamName, NewBucket(s3Client(cfg), bucketName, "staging"), nil), w
}

// A wire notes the batches that pass, and may answer in the service's place.
type wire struct {
	next    aws.HTTPClient
	mu      sync.Mutex
	batches [][][]byte
	answer  func(n int, records [][]byte) (status int, body string) // n from 0; status 0: the service answers
	rewrite func(describe map[string]any)
}

func (w *wire) Do(r *http.Request) (*http.Response, error) {
	switch op := r.Header.Get("X-Amz-Target"); {
	case strings.HasSuffix(op, ".PutRecordBatch"):
		sent, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r.Body = io.NopCloser(bytes.NewReader(sent))
		var in struct{ Records []struct{ Data []byte } }
		if err := json.Unmarshal(sent, &in); err != nil {
			return nil, err
		}
		var records [][]byte
		for _, rec := range in.Records {
			records = append(records, rec.Data)
		}
		w.mu.Lock()
		n := len(w.batches)
		w.batches = append(w.batches, records)
		status, body := 0, ""
		if w.answer != nil {
			status, body = w.answer(n, records)
		}
		w.mu.Unlock()
		if status != 0 {
			return response(r, status, body), nil
		}
	case strings.HasSuffix(op, ".DescribeDeliveryStream") && w.rewrite != nil:
		resp, err := w.next.Do(r)
		if err != nil {
			return nil, err
		}
		var out struct{ DeliveryStreamDescription map[string]any }
		if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
			return nil, err
		}
		w.rewrite(out.DeliveryStreamDescription)
		b, err := json.Marshal(out)
		if err != nil {
			return nil, err
		}
		return response(r, http.StatusOK, string(b)), nil
	}
	return w.next.Do(r)
}

func response(r *http.Request, status int, body string) *http.Response {
	return &http.Response{
		Status: http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/x-amz-json-1.1"}}, Body: io.NopCloser(strings.NewReader(body)),
		ContentLength: int64(len(body)), Request: r,
	}
}

// someParts are parts whose bodies have these sizes and differ.
func someParts(sizes ...int) []pipeline.Part {
	var ps []pipeline.Part
	for i, n := range sizes {
		body := bytes.Repeat([]byte{byte(i)}, n)
		copy(body, fmt.Sprintf("<%d>", i))
		ps = append(ps, pipeline.Part{
			ID:   pipeline.PartID{Window: pipeline.WindowID{Lane: "run-a", Incarnation: "ab", N: 3}, Index: i},
			Body: body,
		})
	}
	return ps
}

func list(t testing.TB, b *Bucket) []pipeline.Object {
	t.Helper()
	var os []pipeline.Object
	for o, err := range b.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		os = append(os, o)
	}
	return os
}
