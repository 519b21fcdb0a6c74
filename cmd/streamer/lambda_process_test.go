package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
)

const functionARN = "arn:aws:lambda:us-east-1:000000000000:function:telemetry"

// A fakeLambda is the runtime API that a function asks for invocations, and as much of Lambda's own
// API as tells of its mapping.
type fakeLambda struct {
	*httptest.Server
	invocations chan *fakeInvocation

	mu       sync.Mutex
	mapping  map[string]any
	waiting  map[string]*fakeInvocation
	sequence int
}

type fakeInvocation struct {
	id     string
	event  []byte
	answer chan fakeAnswer
}

type fakeAnswer struct {
	body   []byte
	failed bool
}

func newFakeLambda(t *testing.T) *fakeLambda {
	t.Helper()
	l := &fakeLambda{
		invocations: make(chan *fakeInvocation), waiting: map[string]*fakeInvocation{},
		mapping: map[string]any{
			"UUID": "6d9bce8e", "FunctionArn": functionARN, "State": "Enabled", "ParallelizationFactor": 1,
			"MaximumRecordAgeInSeconds": -1, "MaximumRetryAttempts": -1, "FunctionResponseTypes": []string{"ReportBatchItemFailures"},
		},
	}
	l.Server = httptest.NewServer(l)
	t.Cleanup(l.CloseClientConnections) // the function hangs in its question for the next one
	return l
}

// ServeHTTP speaks the runtime API, version 2018-06-01.
func (l *fakeLambda) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const runtime = "/2018-06-01/runtime/"
	path, ours := strings.CutPrefix(r.URL.Path, runtime)
	switch {
	case strings.HasPrefix(r.URL.Path, "/2015-03-31/event-source-mappings"):
		l.mu.Lock()
		m := l.mapping
		m["EventSourceArn"] = r.URL.Query().Get("EventSourceArn")
		text, err := json.Marshal(map[string]any{"EventSourceMappings": []any{m}})
		l.mu.Unlock()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text)
	case !ours:
		http.NotFound(w, r)
	case path == "invocation/next":
		select {
		case in := <-l.invocations:
			l.mu.Lock()
			l.waiting[in.id] = in
			l.mu.Unlock()
			w.Header().Set("Lambda-Runtime-Aws-Request-Id", in.id)
			w.Header().Set("Lambda-Runtime-Deadline-Ms", fmt.Sprint(time.Now().Add(time.Minute).UnixMilli()))
			w.Header().Set("Lambda-Runtime-Invoked-Function-Arn", functionARN)
			_, _ = w.Write(in.event)
		case <-r.Context().Done():
		}
	default: // invocation/ID/response or /error, or init/error
		body, _ := io.ReadAll(r.Body)
		f := strings.Split(path, "/")
		l.mu.Lock()
		in := l.waiting[f[1]]
		l.mu.Unlock()
		w.WriteHeader(http.StatusAccepted)
		if in != nil {
			in.answer <- fakeAnswer{body, f[len(f)-1] == "error"}
		}
	}
}

// invoke hands one event to the function and waits for its answer.
func (l *fakeLambda) invoke(ctx context.Context, event []byte) ([]byte, error) {
	l.mu.Lock()
	l.sequence++
	in := &fakeInvocation{id: fmt.Sprint("r-", l.sequence), event: event, answer: make(chan fakeAnswer, 1)}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case l.invocations <- in:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case a := <-in.answer:
		if a.failed {
			return nil, fmt.Errorf("the function failed: %s", a.body)
		}
		return a.body, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// startFunction starts the program as Lambda does: as bootstrap, without a command line.
func (l *laptop) startFunction(env []string, before ...string) *process {
	l.t.Helper()
	bootstrap := filepath.Join(l.t.TempDir(), "bootstrap")
	self, err := os.Executable()
	if err != nil {
		l.t.Fatal(err)
	}
	if err := os.Symlink(self, bootstrap); err != nil {
		l.t.Fatal(err)
	}
	script := `. "$0"; unset STREAMER_WINDOW_AGE STREAMER_SEAL_EVERY STREAMER_LAKE_DIR; export STREAMER_CONTRACT=sensor_readings ` + strings.Join(env, " ") + `; exec "$@"`
	return startProcess(l.t, "sh", slices.Concat([]string{"-c", script, filepath.Join(l.dir, "env")}, before, []string{bootstrap})...)
}

// functionMoves has a function move a file's readings into the lake, in events of the stream as a
// mapping makes them, a schedule's, and those of staging.
func functionMoves(t *testing.T, l *laptop, invoke func(context.Context, []byte) ([]byte, error)) {
	t.Helper()
	file := roomClimate(t, 600)
	l.start("load", file.name, "--format", "room-climate").exits(exitOK)
	table, err := l.dynamodb.DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: aws.String("sensor_readings")})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex // one environment
	d := &mappingDriver{streams: l.streams, stream: *table.Table.LatestStreamArn, batch: 100, filter: true, shards: map[string]*mappedShard{}}
	events := 0
	d.invoke = func(ctx context.Context, event []byte) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		events++
		out, err := invoke(ctx, event)
		if err != nil {
			t.Errorf("invoke: %v", err)
		}
		return out, err
	}
	told := 0
	seals := func() {
		for _, o := range stagedObjects(t, l.clients) {
			for range shapes { // one of them seals it, and the others find it gone
				out, err := invoke(t.Context(), notified(shapes[told%len(shapes)], stagingBucket, o))
				if told++; err != nil || bytes.Contains(out, []byte("itemIdentifier")) {
					t.Fatalf("told of %s it answers %s, %v", o.Key, out, err)
				}
			}
			told++ // the next begins with another
		}
	}
	for quiet := 0; quiet < 3; {
		before := events
		if _, err := d.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if events > before {
			until(t, "Firehose delivers", func() bool { return len(stagedObjects(t, l.clients)) > 0 })
			seals()
		}
		if quiet++; events > before {
			quiet = 0
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	out, err := invoke(t.Context(), []byte(`{"version":"0","id":"89d1a02d","detail-type":"Scheduled Event","source":"aws.events","account":"000000000000","time":"2026-11-03T08:00:00Z","region":"us-east-1","resources":["arn:aws:events:us-east-1:000000000000:rule/sweep"],"detail":{}}`))
	if err != nil || !bytes.Contains(out, []byte(`"tips":4`)) {
		t.Errorf("the sweep answers %s, %v", out, err)
	}
	until(t, "everything is sealed", func() bool {
		seals()
		files, err := lakeFiles(filepath.Join(l.dir, "s3", lakeBucket, "sensor_readings"))
		rows := 0
		for _, f := range files {
			rows += len(arrowRows(t, f, []string{"device_id"}))
		}
		return err == nil && rows >= file.readings()
	})
	checkReadings(t, l.dir, file)
	if out, err := invoke(t.Context(), []byte(`{"seal":true}`)); err != nil || !bytes.Contains(out, []byte(`"removed":0`)) {
		t.Errorf("a sweep of staging answers %s, %v", out, err)
	}
	t.Logf("%d readings in %d events, sealed by %d", file.readings(), events, told)
}

func TestTheProgramIsAFunctionWhenLambdaStartsIt(t *testing.T) {
	t.Parallel()
	l := newLaptop(t)
	runtime := newFakeLambda(t)
	addr := strings.TrimPrefix(runtime.URL, "http://")
	f := l.startFunction([]string{runtimeAPI + "=" + addr, "AWS_ENDPOINT_URL_LAMBDA=" + runtime.URL})
	functionMoves(t, l, runtime.invoke)

	// A mapping that is changed under a function is noticed at its next start.
	f.kill()
	runtime.mu.Lock()
	runtime.mapping["ParallelizationFactor"] = 10
	runtime.mu.Unlock()
	f = l.startFunction([]string{runtimeAPI + "=" + addr, "AWS_ENDPOINT_URL_LAMBDA=" + runtime.URL})
	event, err := os.ReadFile(filepath.Join("testdata", "lambda", "event.json"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := runtime.invoke(t.Context(), event); err == nil || !strings.Contains(err.Error(), "ParallelizationFactor to 1") {
		t.Errorf("the function says %v of a mapping that is parallel\n%s", err, f.stderr)
	}
}

func TestLambdaOutsideOfLambdaSaysSo(t *testing.T) {
	t.Setenv(runtimeAPI, "")
	code, _, stderr := streamer(t, "lambda")
	if code != exitUsage || !strings.Contains(stderr, runtimeAPI) || !strings.Contains(stderr, "streamer run") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}

func TestTheProgramOnlySealsIfItHasNoContract(t *testing.T) {
	t.Parallel()
	l := newLaptop(t)
	runtime := newFakeLambda(t)
	addr := runtimeAPI + "=" + strings.TrimPrefix(runtime.URL, "http://")
	f := l.startFunction([]string{addr, "STREAMER_CONTRACT="})
	out, err := runtime.invoke(t.Context(), []byte(`{"source":"aws.scheduler"}`))
	if err != nil || !bytes.Contains(out, []byte(`"removed":0`)) {
		t.Errorf("a schedule's event is answered with %s, %v", out, err)
	}
	event, err := os.ReadFile(filepath.Join("testdata", "lambda", "event.json"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := runtime.invoke(t.Context(), event); err == nil || !strings.Contains(err.Error(), "STREAMER_CONTRACT") {
		t.Errorf("a stream's event is answered with %v", err)
	}
	f.kill()
	f = l.startFunction([]string{addr, "STREAMER_CONTRACT=", "STREAMER_STAGING=s3://nowhere/parts/"})
	f.exits(exitPerson)
	if !strings.Contains(f.stderr.String(), "s3://nowhere/parts/") {
		t.Errorf("without a bucket: %s", f.stderr)
	}
}
