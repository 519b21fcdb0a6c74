package main

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/observe"
	"telemetrylake/testenv"
)

const auditBound = 20 * time.Minute

// A lateLine is a line on a virtual clock whose delivery can be in the way, with two auditors of
// different processes.
type lateLine struct {
	*watchedLine
	lane     pipeline.LaneID
	store    *checkpoint.Store
	auditors [2]*auditor
	blocked  bool   // Firehose cannot deliver
	refused  string // operation that S3 refuses
	log      strings.Builder
}

func newLateLine(t *testing.T) *lateLine {
	t.Helper()
	l := &lateLine{}
	l.watchedLine = newWatchedLine(t, 1, func(o *testenv.Options) {
		o.Firehose.Deliver = func(string, string) error {
			if l.blocked {
				return errors.New("not allowed to put objects there")
			}
			return nil
		}
		o.Fault = func(r testenv.Request) *testenv.Fault {
			if r.Operation == l.refused {
				return &testenv.Fault{Code: "InternalError"}
			}
			return nil
		}
	})
	l.lane, l.store = laneOf(l.book.contract), l.runner.store
	for i := range l.auditors {
		l.auditors[i] = newAuditor(l.clients, giver{l.store, l.runner.sealer, l.clock.Now, slog.New(slog.NewTextHandler(&l.log, nil))}, l.runner.staging, auditBound)
	}
	return l
}

// land makes one window of so many readings, each on a day of its own.
func (l *lateLine) land(readings int) {
	l.t.Helper()
	for i := range readings {
		at := l.clock.Now().AddDate(0, 0, -i)
		device := fmt.Sprint("device", len(l.written))
		_, err := l.clients.dynamodb.PutItem(l.t.Context(), &dynamodb.PutItemInput{TableName: aws.String("sensor_readings"), Item: map[string]types.AttributeValue{
			"pk": &types.AttributeValueMemberS{Value: "DEVICE#" + device}, "sk": &types.AttributeValueMemberS{Value: "TS#" + at.Format("2006-01-02T15:04:05.000Z")},
			"takenAt": &types.AttributeValueMemberN{Value: fmt.Sprint(at.UnixMilli())},
		}})
		if err != nil {
			l.t.Fatal(err)
		}
		l.written[device] = l.clock.Now()
	}
	l.round()
	if err := l.runner.gatherer.Flush(l.t.Context()); err != nil {
		l.t.Fatal(err)
	}
	l.after(time.Minute)
}

// after lets time pass, and Firehose do what is due.
func (l *lateLine) after(d time.Duration) {
	l.clock.Advance(d)
	l.env.Tick()
}

// audit audits as one of the processes, and wants so many windows landed again.
func (l *lateLine) audit(process, again int) observe.Audit {
	l.t.Helper()
	got, err := l.auditors[process].audit(l.t.Context(), []pipeline.LaneID{l.lane}, nil)
	if err != nil || got.Again != again {
		l.t.Fatalf("at %v: %d windows are landed again, %v; want %d\n%s", l.clock.Now(), got.Again, err, again, l.log.String())
	}
	return got
}

// wants checks how many rows are in the lake, and how many windows wait for theirs.
func (l *lateLine) wants(rows, waiting int) {
	l.t.Helper()
	if _, err := l.runner.sealer.Sweep(l.t.Context()); err != nil {
		l.t.Fatal(err)
	}
	if err := l.store.Fold(l.t.Context(), l.lane); err != nil {
		l.t.Fatal(err)
	}
	files, err := lakeFiles(filepath.Join(l.dir, "s3", lakeBucket, "sensor_readings"))
	if err != nil {
		l.t.Fatal(err)
	}
	got := 0
	for _, f := range files {
		err := f.read(l.t.Context(), []string{"device_id"}, func(b arrow.RecordBatch) error { got += int(b.NumRows()); return nil })
		if err != nil {
			l.t.Fatal(err)
		}
	}
	if open := l.waiting(); got != rows || len(open) != waiting {
		l.t.Fatalf("%d rows in the lake and %d windows that wait, want %d and %d", got, len(open), rows, waiting)
	}
}

func (l *lateLine) waiting() []checkpoint.WindowStatus {
	l.t.Helper()
	windows, err := l.store.Unsealed(l.t.Context(), l.lane)
	if err != nil {
		l.t.Fatal(err)
	}
	return windows
}

// staged counts the objects in staging.
func (l *lateLine) staged() (objects []pipeline.Object) {
	l.t.Helper()
	for o, err := range l.runner.staging.List(l.t.Context()) {
		if err != nil {
			l.t.Fatal(err)
		}
		objects = append(objects, o)
	}
	return objects
}

func (l *lateLine) remove(o pipeline.Object) {
	l.t.Helper()
	_, err := l.clients.s3.DeleteObject(l.t.Context(), &s3.DeleteObjectInput{Bucket: aws.String(stagingBucket), Key: aws.String(partsPrefix + o.Key)})
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lateLine) lost() int {
	l.t.Helper()
	return l.env.FirehoseStats()["sensor_readings"].Lost
}

func TestAWindowThatFirehoseLosesIsInTheLakeOnceByTheAudit(t *testing.T) {
	l := newLateLine(t)
	l.blocked = true
	l.land(3)
	l.wants(0, 1)
	l.audit(0, 0)
	l.after(auditBound - 2*time.Minute)
	l.audit(0, 0)
	l.after(2 * time.Minute)
	l.audit(0, 1)
	l.audit(1, 0) // another process sees that it was just landed
	l.wants(3, 0)
	l.after(24 * time.Hour)
	if l.lost() == 0 {
		t.Error("Firehose lost nothing: the test shows nothing")
	}
	l.audit(0, 0)
	l.wants(3, 0)
	if gaps, err := l.store.Gaps(t.Context(), ""); err != nil || len(gaps) > 0 {
		t.Errorf("gaps %v, %v", gaps, err)
	}
}

func TestACopyThatComesAfterTheAuditIsDropped(t *testing.T) {
	l := newLateLine(t)
	l.blocked = true
	l.land(3)
	l.after(auditBound)
	l.audit(0, 1)
	l.blocked = false
	l.after(time.Minute)
	if n := len(l.staged()); n < 2 {
		t.Fatalf("%d objects in staging, want one of Firehose and one of the audit", n)
	}
	l.wants(3, 0)
	if n := len(l.staged()); n != 0 {
		t.Errorf("%d objects stay in staging", n)
	}
}

func TestAWindowIsLandedThreeTimesEachAfterTwiceTheWait(t *testing.T) {
	l := newLateLine(t)
	l.land(1)
	l.remove(l.staged()[0])
	for i := range landedAgainMost {
		wait := auditBound << i
		l.after(wait - 2*time.Minute)
		l.audit(0, 0)
		l.after(2 * time.Minute)
		l.audit(i%2, 1)
		if w := l.waiting()[0]; w.Landings != i+1 {
			t.Fatalf("%d landings are counted, want %d", w.Landings, i+1)
		}
		l.remove(l.staged()[0])
	}
	for range 8 {
		l.after(3 * time.Hour)
		l.audit(0, 0)
	}
	l.after(time.Hour)
	if got := l.audit(0, 0); got.GivenUp != 1 {
		t.Fatalf("25 hours after the last landing %d parts are given up, want 1", got.GivenUp)
	}
	l.wants(0, 0)
}

func TestAWindowWhoseRecordsAgedOutIsGivenUpWithAGap(t *testing.T) {
	l := newLateLine(t)
	l.blocked = true
	l.land(2)
	id := l.waiting()[0].ID
	l.after(24*time.Hour + 10*time.Minute) // nobody audits for a day
	l.audit(0, 0)
	if !strings.Contains(l.log.String(), "cannot be had any more") {
		t.Errorf("the log says\n%s", l.log.String())
	}
	if open := l.waiting(); len(open) != 1 || open[0].Landings != 0 {
		t.Fatalf("waiting %+v: what was not landed is not counted", open)
	}
	l.after(time.Hour)
	if got := l.audit(0, 0); got.GivenUp != 2 {
		t.Fatalf("%d parts are given up, want 2", got.GivenUp)
	}
	gaps, err := l.store.Gaps(t.Context(), "")
	if err != nil || len(gaps) == 0 {
		t.Errorf("gaps %+v, %v; want one of each shard", gaps, err)
	}
	for _, g := range gaps {
		if g.Cause != pipeline.GapWindow || g.State != pipeline.GapOpen || *g.Window != id {
			t.Errorf("gap %+v, want one of window %s, open", g, id)
		}
	}
	l.wants(0, 0)
	if state, _, err := l.store.Window(t.Context(), id); err != nil || state != pipeline.WindowVoid {
		t.Errorf("the window is %s, %v", state, err)
	}
}

func TestOnlyThePartsThatAreMissingAreLandedAgain(t *testing.T) {
	l := newLateLine(t)
	l.land(3)
	m := l.waiting()[0]
	objects := l.staged()
	parts, err := l.runner.sealer.Staged(t.Context(), objects[0])
	if err != nil || len(objects) != 1 || len(parts) != 3 || m.Parts != 3 {
		t.Fatalf("%d objects, the first of %d parts, %v; the window has %d", len(objects), len(parts), err, m.Parts)
	}
	// One part has a claim whose copy never was, one is in staging, and one is nowhere.
	held, err := l.store.Claim(t.Context(), []pipeline.Claim{{
		Part: parts[0].Meta.ID(), Copy: pipeline.Copy{Key: "gone", ETag: "e"}, Name: parts[0].Meta.Table + "/" + parts[0].Meta.Partition + "/gone-0.parquet",
	}})
	if err != nil || held[0].Copy.Key != "gone" {
		t.Fatalf("claim %+v, %v", held, err)
	}
	out, err := l.runner.staging.Read(t.Context(), objects[0])
	if err != nil {
		t.Fatal(err)
	}
	body := make([]byte, parts[1].Bytes)
	if _, err := out.ReadAt(body, parts[1].Offset); err != nil {
		t.Fatal(err)
	}
	l.remove(objects[0])
	if err := l.runner.staging.Create(t.Context(), "one.parquet", body); err != nil {
		t.Fatal(err)
	}
	l.after(auditBound)
	// A sweep that failed has not seen what lies in staging.
	if got, err := l.auditors[0].audit(t.Context(), []pipeline.LaneID{l.lane}, errors.New("cut short")); err != nil || got.Again != 1 {
		t.Fatalf("audit %+v, %v", got, err)
	}
	landed := map[pipeline.PartID]int{}
	for _, o := range l.staged() {
		staged, err := l.runner.sealer.Staged(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range staged {
			landed[p.Meta.ID()]++
		}
	}
	for i := range parts {
		if n := landed[pipeline.PartID{Window: m.ID, Index: i}]; n != 1 {
			t.Errorf("part %d lies in staging %d times, want once", i, n)
		}
	}
	l.wants(3, 0)
}

func TestALandingThatFailsIsNotCountedAndTriedAgain(t *testing.T) {
	l := newLateLine(t)
	l.land(1)
	l.remove(l.staged()[0])
	l.after(auditBound)
	l.refused = "PutObject"
	if got, err := l.auditors[0].audit(t.Context(), []pipeline.LaneID{l.lane}, nil); err == nil || got.Again != 0 {
		t.Fatalf("audit %+v, %v; want an error", got, err)
	}
	l.refused = ""
	if w := l.waiting()[0]; w.Landings != 0 || w.LandedAt.Before(l.clock.Now().Add(-time.Minute)) {
		t.Errorf("%d landings, the last at %v", w.Landings, w.LandedAt)
	}
	l.audit(1, 0)
	l.after(auditBound)
	l.audit(1, 1)
	l.wants(1, 0)
}

func TestWhatASweepDidNotSeeIsNotLandedAgain(t *testing.T) {
	l := newLateLine(t)
	l.land(2)
	l.after(auditBound)
	if got, err := l.auditors[0].audit(t.Context(), []pipeline.LaneID{l.lane}, errors.New("cut short")); err != nil || got.Again != 0 {
		t.Errorf("audit %+v, %v: all of it lies in staging", got, err)
	}
	l.wants(2, 0)
}

func TestSealLandsAgainWhatIsLate(t *testing.T) {
	d := openDoor(t)
	file := roomClimate(t, 30)
	d.load(file)
	d.land()
	d.env.FlushFirehose()
	staging := openBuckets(d.clients, places{Staging: location{stagingBucket, partsPrefix}}).staging
	lost := 0
	for o, err := range staging.List(t.Context()) { // somebody empties staging
		if err == nil {
			err = staging.Remove(t.Context(), o)
		}
		if err != nil {
			t.Fatal(err)
		}
		lost++
	}
	if lost == 0 {
		t.Fatal("nothing was in staging")
	}
	says(t, "seal") // within half an hour nothing is late
	if n := d.rows(); n != 0 {
		t.Fatalf("%d rows are in the lake", n)
	}
	d.shut("GetRecords", noAccess)
	until(t, "it says that it may not read the stream", func() bool { // once a second has passed by the server's clock
		code, _, stderr := streamer(t, "seal", "--unsealed-within", "1ms")
		return code == exitPerson && strings.Contains(stderr, "allow the role that seals to read the streams")
	})
	d.open()
	until(t, "every window is landed again", func() bool {
		code, _, _ := streamer(t, "seal", "--unsealed-within", "1ms")
		return code == exitOK && says(t, "windows", "list", "--unsealed") == "no window is waiting\n"
	})
	checkReadings(t, d.dir, file)
}
