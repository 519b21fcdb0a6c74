//go:build integration

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"telemetrylake/testenv/containers"
)

// standingBench is a bench of what answers already, with all that a job needs made in it. Where
// it answers, AWS_ENDPOINT_URL_<SERVICE> say; a run moves its stream.
func standingBench(t *testing.T) *bench {
	t.Helper()
	a := containers.Start(t, containers.Running)
	if !a.Has(containers.DynamoDB, containers.Streams, containers.Firehose, containers.S3) {
		t.Fatalf("%s is not all that a job needs; set AWS_ENDPOINT_URL_DYNAMODB, _DYNAMODB_STREAMS, _FIREHOSE and _S3", a)
	}
	b := &bench{laptop: &laptop{t: t, dir: t.TempDir()}, landing: a, source: a}
	b.s3 = newClients(a.Config(containers.S3)).s3
	vars, err := a.Environ(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	vars = append(vars, "STREAMER_STAGING=s3://"+stagingBucket+"/"+partsPrefix, "STREAMER_LAKE=s3://"+lakeBucket+"/")
	var env strings.Builder
	for _, v := range vars {
		name, value, _ := strings.Cut(v, "=")
		fmt.Fprintf(&env, "export %s=%s\n", name, shellQuote(value))
	}
	if err := os.WriteFile(filepath.Join(b.dir, "env"), []byte(env.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

// rest waits until everything that was in the table at a time is in the lake.
func (b *bench) rest(since time.Time) {
	b.t.Helper()
	for begun := time.Now(); ; time.Sleep(time.Second) {
		st := b.status()
		if st.Lane.Halted != "" || st.Gaps != 0 {
			b.t.Fatalf("the stack needs a person: %+v", st)
		}
		atTip := st.Lane.Started && st.Lane.Unsealed == 0 && st.Staging.Objects == 0
		for _, s := range st.Shards {
			tip, err := time.Parse(time.RFC3339, s.TipAt)
			atTip = atTip && (s.End || err == nil && tip.After(since))
		}
		if atTip {
			return
		}
		if time.Since(begun) > patience {
			b.t.Fatalf("the stack does not come to rest: %+v", st)
		}
	}
}

// Readings are loaded into a stack that is up, such as that of docker-compose.yml, whose run moves
// them; then its lake is compared with the file.
func TestAStandingStackMovesEveryReadingOnce(t *testing.T) {
	b := standingBench(t)
	file := roomClimate(t, testRows(t))
	began := time.Now()
	load := b.start("load", file.name, "--contract", "sensor_readings", "--format", "room-climate", "-o", "json")
	<-load.ended
	load.exits(exitOK)
	var loaded loadReport
	if load.document(&loaded); !loaded.Complete || loaded.Written != file.readings() {
		t.Errorf("load says %+v", loaded)
	}
	inTable := time.Since(began)
	b.rest(time.Now())
	inLake := time.Since(began)
	if left := b.keys(stagingBucket); len(left) > 0 {
		t.Errorf("left in the staging bucket: %v", left)
	}
	objects := b.fetch()
	rows := checkReadings(t, b.dir, file)
	t.Attr("job", fmt.Sprintf("%d rows, each once and compared cell by cell, in %d objects; %.0f s to load, %.0f s until all was in the lake",
		rows, objects, inTable.Seconds(), inLake.Seconds()))
}
