//go:build integration

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/schemas"
	"telemetrylake/testenv/containers"
)

// A stand is what a job runs on: an AWS that lands, and one that streams.
type stand struct {
	name    string
	landing containers.Kind // Firehose and S3
	source  containers.Kind // DynamoDB and Streams; "" for the same AWS
	notRun  string          // of landing, and why
	most    int             // readings; 0: all
	load    []string        // more flags of load
}

// stands begin with those that take longest.
var stands = []stand{
	{name: "ministack alone", landing: containers.MiniStack, notRun: "nothing"},
	// It gives puts that meet the same sequence number, which a run refuses.
	{name: "moto alone", landing: containers.Moto, most: 20_000, load: []string{"--parallel", "1"},
		notRun: "all readings: it writes a few hundred items a second, and only one at a time in order"},
	{name: "localstack", landing: containers.LocalStack, source: containers.Embedded, notRun: needsLocal},
	{name: "localstack container", landing: containers.Container, source: containers.Embedded, notRun: needsLocal},
	{name: "ministack", landing: containers.MiniStack, source: containers.Embedded, notRun: "its DynamoDB and Streams here, but in ministack alone"},
	{name: "moto", landing: containers.Moto, source: containers.Embedded, notRun: "its DynamoDB and Streams here, but in moto alone"},
	{name: "embedded", landing: containers.Embedded, notRun: "nothing"},
	{name: "running", landing: containers.Running, notRun: "nothing"},
}

const needsLocal = "its DynamoDB and Streams: they need DynamoDB Local"

// testRows is how many readings a job moves, 0 for all: STREAMER_TEST_ROWS, a number or all.
func testRows(t *testing.T) int {
	t.Helper()
	switch text := os.Getenv("STREAMER_TEST_ROWS"); text {
	case "":
		return 10_000
	case "all":
		return 0
	default:
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("STREAMER_TEST_ROWS: %v", err)
		}
		return n
	}
}

// A bench is a laptop whose AWS is of others.
type bench struct {
	*laptop
	landing, source *containers.AWS
}

// newBench starts what the stand needs and makes the tables, buckets and delivery streams.
func newBench(t *testing.T, s stand) *bench {
	t.Helper()
	b := &bench{laptop: &laptop{t: t, dir: t.TempDir()}}
	b.landing = containers.Start(t, s.landing)
	if b.source = b.landing; s.source != "" {
		b.source = containers.Start(t, s.source)
	}
	from, to := []containers.Service{containers.DynamoDB, containers.Streams}, []containers.Service{containers.Firehose, containers.S3}
	if !b.source.Has(from...) || !b.landing.Has(to...) {
		t.Fatalf("%s and %s have not all that a job needs", b.source, b.landing)
	}
	b.clients = clients{
		dynamodb: newClients(b.source.Config(containers.DynamoDB)).dynamodb,
		streams:  newClients(b.source.Config(containers.Streams)).streams,
		firehose: newClients(b.landing.Config(containers.Firehose)).firehose,
		s3:       newClients(b.landing.Config(containers.S3)).s3,
	}
	c, err := schemas.Load("sensor_readings")
	if err != nil {
		t.Fatal(err)
	}
	if err := furnish(t.Context(), b.clients, []*schemas.Contract{c}, time.Second); err != nil {
		t.Fatal(err)
	}
	var env strings.Builder
	for _, at := range []struct {
		aws      *containers.AWS
		services []containers.Service
	}{{b.source, from}, {b.landing, to}} {
		vars, err := at.aws.Environ(t.Context(), at.services...)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range vars {
			name, value, _ := strings.Cut(v, "=")
			fmt.Fprintf(&env, "export %s=%s\n", name, shellQuote(value))
		}
	}
	fmt.Fprintf(&env, "export STREAMER_STAGING=s3://%s/%s STREAMER_LAKE=s3://%s/\n", stagingBucket, partsPrefix, lakeBucket)
	if err := os.WriteFile(filepath.Join(b.dir, "env"), []byte(env.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

// keys lists a bucket.
func (b *bench) keys(bucket string) (keys []string) {
	b.t.Helper()
	pages := s3.NewListObjectsV2Paginator(b.s3, &s3.ListObjectsV2Input{Bucket: &bucket})
	for pages.HasMorePages() {
		page, err := pages.NextPage(b.t.Context())
		if err != nil {
			b.t.Fatal(err)
		}
		for _, o := range page.Contents {
			keys = append(keys, *o.Key)
		}
	}
	return keys
}

// fetch copies the lake to where local keeps it, and returns how many objects it has.
func (b *bench) fetch() int {
	b.t.Helper()
	keys := b.keys(lakeBucket)
	for _, key := range keys {
		out, err := b.s3.GetObject(b.t.Context(), &s3.GetObjectInput{Bucket: new(lakeBucket), Key: &key})
		if err != nil {
			b.t.Fatal(err)
		}
		var body bytes.Buffer
		if _, err := io.Copy(&body, out.Body); err != nil {
			b.t.Fatal(err)
		}
		out.Body.Close()
		name := filepath.Join(b.dir, "s3", lakeBucket, filepath.FromSlash(key))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(name, body.Bytes(), 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
	return len(keys)
}

// The same job on each: readings are loaded into a hot table while a run moves its stream; the
// run is stopped, another one drains the stream, and the lake is compared with the file.
func TestMainJob(t *testing.T) {
	t.Parallel()
	for _, s := range stands {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.mainJob(t)
		})
	}
}

func (s stand) mainJob(t *testing.T) {
	n := testRows(t)
	if s.most > 0 && (n == 0 || n > s.most) {
		n = s.most
	}
	file := roomClimate(t, n)
	b := newBench(t, s)
	began := time.Now()
	run := b.startRun("--window-age", "5s", "--seal-every", "5s")
	load := b.start(slices.Concat([]string{"load", file.name, "--format", "room-climate", "-o", "json"}, s.load)...)
	<-load.ended // some of them take minutes; go test's own timeout is the limit
	load.exits(exitOK)
	var loaded loadReport
	if load.document(&loaded); !loaded.Complete || loaded.Written != file.readings() {
		t.Errorf("load says %+v", loaded)
	}
	inTable := time.Since(began)
	run.signal(syscall.SIGTERM)
	run.exits(exitOK)
	b.drainRun()
	inLake := time.Since(began)
	if left := b.keys(stagingBucket); len(left) > 0 {
		t.Errorf("left in the staging bucket: %v", left)
	}
	objects := b.fetch()
	rows := checkReadings(t, b.dir, file)
	// A line for whoever runs it by hand, also if all is well.
	t.Attr("job", fmt.Sprintf("%s: %d rows, each once and compared cell by cell, in %d objects; DynamoDB and Streams: %s; %.0f s to load, %.0f s until all was in the lake; not run: %s",
		strings.TrimSpace(b.landing.Name+" "+b.landing.Version), rows, objects, b.source.Name, inTable.Seconds(), inLake.Seconds(), s.notRun))
}
