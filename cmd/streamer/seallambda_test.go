package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/lake"
)

// notified is an event that tells of a created object, as AWS's user guide of S3 has them.
func notified(shape, bucket string, o pipeline.Object) []byte {
	asJSON := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err) // strings and numbers
		}
		return b
	}
	queue := func(body []byte) []byte {
		return asJSON(map[string]any{"Records": []any{map[string]any{
			"messageId": "m-" + o.Key, "receiptHandle": "r", "eventSource": "aws:sqs", "awsRegion": "us-east-1", "body": string(body),
			"eventSourceARN": "arn:aws:sqs:us-east-1:000000000000:staged", "attributes": map[string]any{"ApproximateReceiveCount": "1"},
		}}})
	}
	switch shape {
	case "S3":
		return asJSON(map[string]any{"Records": []any{map[string]any{
			"eventVersion": "2.1", "eventSource": "aws:s3", "awsRegion": "us-east-1", "eventTime": "2026-11-03T08:00:00.000Z",
			"eventName": "ObjectCreated:Put", "userIdentity": map[string]any{"principalId": "firehose"},
			"s3": map[string]any{
				"s3SchemaVersion": "1.0", "configurationId": "staged", "bucket": map[string]any{"name": bucket, "arn": "arn:aws:s3:::" + bucket},
				"object": map[string]any{"key": url.QueryEscape(o.Key), "size": o.Size, "eTag": o.ETag, "sequencer": "0055AED6DCD90281E5"},
			},
		}}})
	case "EventBridge":
		return asJSON(map[string]any{
			"version": "0", "id": "17793124", "detail-type": "Object Created", "source": "aws.s3", "account": "000000000000",
			"time": "2026-11-03T08:00:00Z", "region": "us-east-1", "resources": []string{"arn:aws:s3:::" + bucket},
			"detail": map[string]any{
				"version": "0", "bucket": map[string]any{"name": bucket}, "request-id": "N4N7GDK58NMKJ12R", "requester": "firehose.amazonaws.com",
				"object": map[string]any{"key": o.Key, "size": o.Size, "etag": o.ETag, "sequencer": "617f08299329d189"}, "reason": "PutObject",
			},
		})
	case "S3 by SQS":
		return queue(notified("S3", bucket, o))
	case "EventBridge by SQS":
		return queue(notified("EventBridge", bucket, o))
	case "S3 by SNS and SQS":
		return queue(asJSON(map[string]any{"Type": "Notification", "MessageId": "n", "TopicArn": "arn:aws:sns:us-east-1:000000000000:staged", "Message": string(notified("S3", bucket, o))}))
	}
	panic("no shape " + shape)
}

var shapes = []string{"S3", "EventBridge", "S3 by SQS", "EventBridge by SQS", "S3 by SNS and SQS"}

// stagedObjects lists the staging bucket as its events name its objects: with all of the key.
func stagedObjects(t *testing.T, c clients) (all []pipeline.Object) {
	t.Helper()
	for o, err := range lake.NewBucket(c.s3, stagingBucket, "").List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(o.Key, partsPrefix) {
			all = append(all, o)
		}
	}
	return all
}

// A sealedAnswer is what a function answers that was told of an object.
type sealedAnswer struct {
	Removed    int           `json:"removed"`
	Published  int           `json:"published"`
	Duplicates int           `json:"duplicates"`
	Failures   []itemFailure `json:"batchItemFailures"`
}

// sealingFunction is one that only seals.
func (m *mappedTable) sealingFunction() (*function, *bytes.Buffer) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	return &function{log: log, sealing: newStagingSealer(m.clients, m.at, 30*time.Minute, log)}, &text
}

// told has the function answer an event.
func told(t *testing.T, f *function, event []byte) (a sealedAnswer, err error) {
	t.Helper()
	out, err := f.invoke(t.Context(), event)
	if err != nil {
		return a, err
	}
	text, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &a); err != nil {
		t.Fatal(err)
	}
	return a, nil
}

func TestAFunctionSealsTheObjectsThatItIsToldOf(t *testing.T) {
	m := newMappedTable(t, 21, 2)
	file := roomClimate(t, 300)
	items := m.items(file)
	f, text := m.sealingFunction()
	objects := 0
	for i, shape := range shapes {
		m.put(items[i*60 : i*60+60])
		m.deliver()
		m.clock.Advance(2 * time.Minute)
		m.env.Tick()
		now := stagedObjects(t, m.clients)
		if len(now) == 0 {
			t.Fatalf("%s: nothing is in staging", shape)
		}
		for _, o := range now {
			objects++
			for try := range 2 { // events come twice
				a, err := told(t, f, notified(shape, stagingBucket, o))
				if err != nil || len(a.Failures) > 0 {
					t.Errorf("%s: %+v, %v\n%s", shape, a, err, text)
				}
				if queued := strings.HasSuffix(shape, "SQS"); !queued && (a.Removed == 1) != (try == 0) {
					t.Errorf("%s, time %d: %+v", shape, try, a)
				}
			}
		}
		if left := stagedObjects(t, m.clients); len(left) > 0 {
			t.Errorf("%s: left in staging: %v", shape, left)
		}
	}
	checkReadings(t, m.dir, file)
	t.Logf("%d objects", objects)
}

func TestAFunctionSealsWhatNoEventToldOf(t *testing.T) {
	for _, event := range []string{`{"seal":true}`, `{"version":"0","source":"aws.events","detail-type":"Scheduled Event","detail":{}}`} {
		m := newMappedTable(t, 22, 1)
		file := roomClimate(t, 60)
		m.put(m.items(file))
		m.deliver()
		m.clock.Advance(2 * time.Minute)
		m.env.Tick()
		f, text := m.sealingFunction()
		if a, err := told(t, f, []byte(event)); err != nil || a.Removed == 0 || a.Published == 0 {
			t.Errorf("%s: %+v, %v\n%s", event, a, err, text)
		}
		checkReadings(t, m.dir, file)
		windows, err := windowOptions{}.read(t.Context(), f.sealing.store, time.Now())
		if err != nil || len(windows) > 0 {
			t.Errorf("%s: not folded: %+v, %v", event, windows, err)
		}
	}
}

func TestOneFunctionLandsAndSeals(t *testing.T) {
	m := newMappedTable(t, 23, 1)
	file := roomClimate(t, 60)
	m.put(m.items(file))
	e := m.environment()
	f, _ := m.sealingFunction()
	e.sealing = f.sealing
	m.idle = append(m.idle, e)
	m.deliver()
	m.clock.Advance(2 * time.Minute)
	m.env.Tick()
	for i, o := range stagedObjects(t, m.clients) {
		if _, err := told(t, e.function, notified(shapes[i%len(shapes)], stagingBucket, o)); err != nil {
			t.Error(err)
		}
	}
	checkReadings(t, m.dir, file)
	// A schedule's event is for the stream, unless it says otherwise.
	out, err := e.function.invoke(t.Context(), []byte(`{"source":"aws.scheduler"}`))
	if r, ok := out.(sweepReport); err != nil || !ok || r.Tips == 0 {
		t.Errorf("a schedule's event: %+v, %v", out, err)
	}
	if a, err := told(t, e.function, []byte(`{"seal":true}`)); err != nil || a.Removed != 0 {
		t.Errorf("a second seal: %+v, %v", a, err)
	}
}

func TestAFunctionLeavesAloneWhatIsNotInStaging(t *testing.T) {
	m := newMappedTable(t, 24, 1)
	m.put(m.items(roomClimate(t, 30)))
	m.deliver()
	m.clock.Advance(2 * time.Minute)
	m.env.Tick()
	before := stagedObjects(t, m.clients)
	f, text := m.sealingFunction()
	object := func(key string) pipeline.Object {
		return pipeline.Object{Key: key, ETag: before[0].ETag, Size: before[0].Size}
	}
	removed := strings.ReplaceAll(string(notified("S3", stagingBucket, before[0])), "ObjectCreated:Put", "ObjectRemoved:Delete")
	gone := strings.ReplaceAll(string(notified("EventBridge", stagingBucket, before[0])), "Object Created", "Object Deleted")
	for _, event := range [][]byte{
		notified("S3", stagingBucket, object(damagedPrefix+"x")),
		notified("EventBridge", "elsewhere", before[0]),
		notified("S3", stagingBucket, object(partsPrefix+"gone by now")),
		[]byte(removed), []byte(gone),
		[]byte(`{"Service":"Amazon S3","Event":"s3:TestEvent","Time":"2026-11-03T08:00:00Z","Bucket":"` + stagingBucket + `","RequestId":"5582815E1AEA5ADF","HostId":"8cLeGAmw"}`),
	} {
		if a, err := told(t, f, event); err != nil || a.Removed+a.Published > 0 {
			t.Errorf("%s: %+v, %v", event, a, err)
		}
	}
	if now := stagedObjects(t, m.clients); len(now) != len(before) {
		t.Errorf("%d objects in staging, %d before", len(now), len(before))
	}
	for _, want := range []string{"no object in staging", damagedPrefix + "x", "elsewhere"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, text)
		}
	}
	// What is for a stream is refused, and says why.
	for _, event := range []string{`{"Records":[{"eventSource":"aws:dynamodb"}]}`, `{"sweep":true}`} {
		if _, err := f.invoke(t.Context(), []byte(event)); err == nil || !needsPerson(err) || !strings.Contains(err.Error(), "STREAMER_CONTRACT") {
			t.Errorf("%s: %v", event, err)
		}
	}
	record := types.Record{Dynamodb: &types.StreamRecord{SequenceNumber: aws.String("101"), ApproximateCreationDateTime: aws.Time(m.clock.Now())}}
	a, err := told(t, f, onFailure(t, m.at.StreamARN, "shardId-1", []types.Record{record}))
	if err != nil || len(a.Failures) != 1 {
		t.Errorf("an on-failure message: %+v, %v", a, err)
	}
	if _, err := f.invoke(t.Context(), []byte(`{"hello":1}`)); err == nil || !strings.Contains(err.Error(), "STREAMER_CONTRACT") {
		t.Errorf("another event: %v", err)
	}
}

func TestAnEventOfAPartThatDiffersFromItsManifestFails(t *testing.T) {
	m := newMappedTable(t, 25, 1)
	file := roomClimate(t, 40)
	m.put(m.items(file))
	m.deliver()
	m.clock.Advance(2 * time.Minute)
	m.env.Tick()
	o := stagedObjects(t, m.clients)[0]
	out, err := m.s3.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String(stagingBucket), Key: &o.Key})
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(out.Body)
	if err != nil {
		t.Fatal(err)
	}
	// The same rows of another contract, as nobody of ours writes them.
	hash := []byte(m.at.Contract.Hash())
	other := slices.Clone(hash)
	slices.Reverse(other)
	forged := bytes.ReplaceAll(body, hash, other)
	if bytes.Equal(forged, body) {
		t.Fatalf("%s does not name its contract", o.Key)
	}
	key := partsPrefix + "forged here + there" // a key that an event spells differently
	if _, err := m.s3.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String(stagingBucket), Key: &key, Body: bytes.NewReader(forged)}); err != nil {
		t.Fatal(err)
	}
	f, text := m.sealingFunction()
	for _, now := range stagedObjects(t, m.clients) {
		if now.Key != key {
			continue
		}
		if _, err := f.invoke(t.Context(), notified("S3", stagingBucket, now)); err == nil || !needsPerson(err) || !strings.Contains(err.Error(), "manifest") {
			t.Errorf("the function says %v\n%s", err, text)
		}
		if a, err := told(t, f, notified("EventBridge by SQS", stagingBucket, now)); err != nil || len(a.Failures) != 1 || a.Failures[0].Item != "m-"+key {
			t.Errorf("from a queue: %+v, %v", a, err)
		}
	}
	// It stays, and stops nothing else.
	for _, now := range stagedObjects(t, m.clients) {
		if now.Key != key {
			if _, err := told(t, f, notified("S3", stagingBucket, now)); err != nil {
				t.Errorf("%v\n%s", err, text)
			}
		}
	}
	if left := stagedObjects(t, m.clients); len(left) != 1 || left[0].Key != key {
		t.Errorf("left in staging: %v", left)
	}
	checkReadings(t, m.dir, file)
}
