package main

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
)

// dropCheckpoint is a hand that slipped.
func dropCheckpoint(t *testing.T, c clients) {
	t.Helper()
	if _, err := c.dynamodb.DeleteTable(t.Context(), &dynamodb.DeleteTableInput{TableName: aws.String(checkpointTable)}); err != nil {
		t.Fatal(err)
	}
}

// backup reads the checkpoint table, restore puts it back as it was.
func backup(t *testing.T, c clients) []map[string]types.AttributeValue {
	t.Helper()
	out, err := c.dynamodb.Scan(t.Context(), &dynamodb.ScanInput{TableName: aws.String(checkpointTable)})
	if err != nil {
		t.Fatal(err)
	}
	return out.Items
}

func restore(t *testing.T, c clients, items []map[string]types.AttributeValue) {
	t.Helper()
	dropCheckpoint(t, c)
	if err := checkpoint.New(c.dynamodb, checkpointTable, checkpoint.Options{}).Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, item := range items {
		if _, err := c.dynamodb.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: aws.String(checkpointTable), Item: item}); err != nil {
			t.Fatal(err)
		}
	}
}

// half is the first rows of a file.
func half(t *testing.T, f *climateFile, rows int) *climateFile {
	t.Helper()
	return &climateFile{name: writeLines(t, f.lines[:rows+1]...), lines: f.lines[:rows+1]}
}

func rebuildOf(t *testing.T, args ...string) rebuildShown {
	t.Helper()
	var v rebuildShown
	if err := json.Unmarshal([]byte(says(t, append([]string{"lanes", "rebuild", "-o", "json"}, args...)...)), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// refusesToStart expects a run to end at once, with words.
func refusesToStart(t *testing.T, words ...string) {
	t.Helper()
	c := begin(t, "run", "--until-drained")
	c.exits(exitPerson)
	for _, w := range words {
		if !strings.Contains(c.lastWords(), w) {
			t.Errorf("it ends with %q, without %q", c.lastWords(), w)
		}
	}
}

// moves runs until the readings of a file are in the lake.
func (d *door) moves(t *testing.T, f *climateFile) {
	t.Helper()
	c := begin(t, "run")
	d.sealed(f)
	c.stop()
	c.exits(exitOK)
}

func TestAfterTheCheckpointIsLostTheLakeSaysWhereToGoOn(t *testing.T) {
	file := roomClimate(t, 300)
	d := openDoor(t)
	first := half(t, file, 150)
	d.load(first)
	d.moves(t, first)
	dropCheckpoint(t, d.clients)
	refusesToStart(t, "would be there twice", "streamer lanes rebuild")

	before := backup(t, d.clients) // the refused start made the table
	text := says(t, "lanes", "rebuild")
	for _, w := range []string{"whole in the lake", "Nothing is written", "--apply"} {
		if !strings.Contains(text, w) {
			t.Errorf("without --apply it says, without %q:\n%s", w, text)
		}
	}
	if after := backup(t, d.clients); len(before) != len(after) {
		t.Errorf("without --apply it wrote %d items", len(after)-len(before))
	}
	v := rebuildOf(t, "--apply")
	if !v.Applied || v.Windows[pipeline.FateWhole] == 0 || len(v.Windows) != 1 || len(v.Gaps) != 0 || v.Side != "run" || len(v.Shards) == 0 {
		t.Errorf("it says %+v", v)
	}
	d.load(file)
	c := begin(t, "run", "--until-drained")
	c.exits(exitOK)
	checkReadings(t, d.dir, file)
	if again := rebuildOf(t); again.Windows[pipeline.FateStored] != 0 || len(again.Gaps) != 0 {
		t.Errorf("of a lane that has no fault it says %+v", again)
	}
}

// What Firehose has delivered and nobody sealed yet is as good as in the lake.
func TestARebuiltLaneSealsWhatItsPastLeftInStaging(t *testing.T) {
	file := roomClimate(t, 200)
	d := openDoor(t)
	t.Setenv("STREAMER_SEAL_EVERY", "1h")
	c := begin(t, "run")
	until(t, "the run has begun", func() bool { return d.status().Lane.Started })
	d.load(half(t, file, 100))
	until(t, "all is committed", func() bool {
		st := d.status()
		return st.Staging.Objects > 0 && st.Lane.PendingWindow == 0
	})
	c.stop()
	c.exits(exitOK)
	t.Setenv("STREAMER_SEAL_EVERY", "50ms")
	staged := objectsBelow(t, filepath.Join(d.dir, "s3", stagingBucket))
	dropCheckpoint(t, d.clients)
	if len(staged) == 0 {
		t.Fatal("nothing is in staging")
	}
	refusesToStart(t, "streamer lanes rebuild")
	v := rebuildOf(t, "--apply")
	if v.Windows[pipeline.FateStaged] == 0 || v.Staging != len(staged) || len(v.Gaps) != 0 {
		t.Errorf("it says %+v", v)
	}
	d.load(file)
	d.moves(t, file)
	checkReadings(t, d.dir, file)
}

func TestARestoredCheckpointIsFoundOutAndRebuilt(t *testing.T) {
	file := roomClimate(t, 300)
	d := openDoor(t)
	first, second := half(t, file, 100), half(t, file, 200)
	d.load(first)
	d.moves(t, first)
	items := backup(t, d.clients)
	d.load(second)
	d.moves(t, second)
	restore(t, d.clients, items)
	refusesToStart(t, "it was restored", "streamer lanes rebuild")
	v := rebuildOf(t, "--apply")
	moved := false
	for _, s := range v.Shards {
		moved = moved || s.Was != "" && s.Was != string(s.Seq)
	}
	if !moved || len(v.Gaps) != 0 {
		t.Errorf("it says %+v", v)
	}
	d.load(file)
	d.moves(t, file)
	checkReadings(t, d.dir, file)
}

// Records that the lane had read, and whose window left no trace, are told from the stream.
func TestRecordsBeforeAPositionThatAreNowhereAreAGap(t *testing.T) {
	file := roomClimate(t, 300)
	d := openDoor(t)
	var lost []string
	for i, rows := range []int{100, 200, 300} {
		part := half(t, file, min(rows, file.readings()))
		d.load(part)
		if i != 1 {
			d.moves(t, part)
			continue
		}
		before := objectsBelow(t, filepath.Join(d.dir, "s3", lakeBucket))
		d.moves(t, part)
		for _, o := range objectsBelow(t, filepath.Join(d.dir, "s3", lakeBucket)) {
			if !slices.Contains(before, o) {
				lost = append(lost, o)
			}
		}
	}
	for _, o := range lost {
		if err := os.Remove(o); err != nil {
			t.Fatal(err)
		}
	}
	dropCheckpoint(t, d.clients)
	v := rebuildOf(t, "--apply")
	if len(v.Gaps) == 0 {
		t.Fatalf("it says %+v", v)
	}
	for _, g := range v.Gaps {
		if g.Cause != string(pipeline.GapRebuilt) || g.First == "" || g.Last == "" || g.From == "" {
			t.Errorf("gap %+v", g)
		}
	}
	if st := d.status(); st.Gaps != len(v.Gaps) {
		t.Errorf("%d gaps are told, %d are in the ledger", len(v.Gaps), st.Gaps)
	}
}

func TestAnotherStreamOfTheTableIsReadOnlyWhenNamed(t *testing.T) {
	file := roomClimate(t, 40)
	d := openDoor(t)
	first := half(t, file, 20)
	d.load(first)
	d.moves(t, first)
	stream := d.status().Stream
	earlier := tableOf(stream) + "/stream/2020-01-01T00:00:00.000"
	d.mark(t, "lane", "arn", &types.AttributeValueMemberS{Value: earlier})
	refusesToStart(t, earlier, stream, "--stream")
	c := begin(t, "run", "--until-drained", "--stream", "arn:aws:dynamodb:eu-west-1:1:table/another/stream/1")
	c.exits(exitUsage)
	d.load(file)
	c = begin(t, "run", "--until-drained", "--stream", stream)
	c.exits(exitOK)
	d.moves(t, file)
	checkReadings(t, d.dir, file)
}

func TestALakeOfNobodyHasNothingToRebuild(t *testing.T) {
	openDoor(t)
	c := begin(t, "lanes", "rebuild")
	c.exits(exitPerson)
	if !strings.Contains(c.lastWords(), "nothing to rebuild") {
		t.Errorf("it ends with %q", c.lastWords())
	}
}

// Fencing a run that is alive must be meant: its last words would come as a surprise.
func TestARebuildRefusesALaneThatIsHeldUnlessItsHolderIsGone(t *testing.T) {
	file := roomClimate(t, 100)
	d := openDoor(t)
	first := half(t, file, 50)
	run := begin(t, "run", "--lease", "1s")
	d.load(first)
	d.sealed(first)
	if text := says(t, "lanes", "rebuild"); !strings.Contains(text, "Nothing is written") {
		t.Errorf("a look says\n%s", text)
	}
	before := d.token(t)
	code, stdout, stderr := streamer(t, "lanes", "rebuild", "--apply")
	if code != exitPerson || stdout != "" || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
	for _, w := range []string{"run-sensor_readings is held by " + hostText(), "stop that streamer run", "--holder-is-gone"} {
		if !strings.Contains(stderr, w) {
			t.Errorf("refused with %q, without %q", stderr, w)
		}
	}
	if got := d.token(t); got != before {
		t.Errorf("the token is %s and was %s", got, before)
	}
	if v := rebuildOf(t, "--apply", "--holder-is-gone"); !v.Applied {
		t.Errorf("it says %+v", v)
	}
	run.exits(exitPerson)
	if words := run.lastWords(); !strings.Contains(words, "streamer lanes rebuild") || !strings.Contains(words, "handover") {
		t.Errorf("the run ends with %q", words)
	}
	if v := rebuildOf(t, "--apply"); !v.Applied { // nobody holds it any more
		t.Errorf("again it says %+v", v)
	}
	d.load(file)
	d.moves(t, file)
	checkReadings(t, d.dir, file)
}

func TestARebuildThatIsKilledIsFinishedByTheNext(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 0))
	l := newLaptop(t)
	file := roomClimate(t, 2000)
	load := l.start("load", half(t, file, 1000).name, "--format", "room-climate")
	load.exits(exitOK)
	l.drain()
	dropCheckpoint(t, l.clients)
	killed := 0
	for try := range 6 {
		p := l.start("lanes", "rebuild", "--contract", "sensor_readings", "--apply")
		time.Sleep(time.Duration(random.Int64N(int64(time.Second))))
		select {
		case <-p.ended:
			if try == 0 {
				p.exits(exitOK)
			}
		default:
			p.kill()
			killed++
		}
	}
	// Either nothing or all of it counts.
	last := l.start("lanes", "rebuild", "--contract", "sensor_readings", "--apply")
	last.exits(exitOK)
	load = l.start("load", file.name, "--format", "room-climate")
	load.exits(exitOK)
	l.drain()
	l.local.kill()
	checkReadings(t, l.dir, file)
	t.Logf("killed %d times", killed)
}

// A window of which only a part has come is read again; what comes of it afterwards is dropped.
func TestAWindowThatCameInPartIsReadAgainAndItsLatePartsAreDropped(t *testing.T) {
	t.Setenv("STREAMER_TEST_READINGS", "") // generated ones are of several days, so of several parts
	file := roomClimate(t, 6000)
	d := openDoor(t)
	t.Setenv("STREAMER_SEAL_EVERY", "1h")
	t.Setenv("STREAMER_WINDOW_AGE", "1h")
	d.load(file)
	c := begin(t, "run", "--until-drained", "--window-records", "100000")
	until(t, "all is in staging", func() bool {
		st := d.status()
		return st.Staging.Objects > 0 && st.Lane.NextWindow == 2 && st.Lane.PendingWindow == 0
	})
	c.stop()
	c.exits(exitOK)
	t.Setenv("STREAMER_SEAL_EVERY", "50ms")
	t.Setenv("STREAMER_WINDOW_AGE", "50ms")
	staged := objectsBelow(t, filepath.Join(d.dir, "s3", stagingBucket))
	if len(staged) != 1 {
		t.Fatalf("staging has %v", staged)
	}
	whole, err := os.ReadFile(staged[0])
	if err != nil {
		t.Fatal(err)
	}
	first := bytes.Index(whole, []byte("PAR1PAR1"))
	if first < 0 {
		t.Fatal("the window has one part")
	}
	key, err := filepath.Rel(filepath.Join(d.dir, "s3", stagingBucket), staged[0])
	if err != nil {
		t.Fatal(err)
	}
	stage := func(key string, body []byte) {
		t.Helper()
		if _, err := d.s3.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String(stagingBucket), Key: aws.String(key), Body: bytes.NewReader(body)}); err != nil {
			t.Fatal(err)
		}
	}
	stage(filepath.ToSlash(key), whole[:first+4])
	dropCheckpoint(t, d.clients)
	v := rebuildOf(t, "--apply")
	if v.Windows[pipeline.FateAgain] != 1 || len(v.Gaps) != 0 {
		t.Errorf("it says %+v", v)
	}
	d.moves(t, file)
	stage(filepath.ToSlash(key)+"-late", whole[first+4:])
	text := says(t, "seal", "-o", "json")
	if !strings.Contains(text, `"sealed_objects": 0`) || strings.Contains(text, `"void": 0`) {
		t.Errorf("seal says %s", text)
	}
	checkReadings(t, d.dir, file)
}

func TestLambdasLanesAreRebuilt(t *testing.T) {
	m := newMappedTable(t, 1, 3)
	file := roomClimate(t, 600)
	items := m.items(file)
	m.put(items[:200])
	m.deliver()
	m.seal()
	m.put(items[200:400])
	if err := m.env.Reshard(m.at.Table); err != nil {
		t.Fatal(err)
	}
	m.deliver()
	m.clock.Advance(2 * time.Minute) // Firehose delivers what nobody seals
	dropCheckpoint(t, m.clients)
	m.idle = nil
	store := checkpoint.New(m.dynamodb, checkpointTable, checkpoint.Options{})
	if err := store.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	check := checkStart(store, m.clients, m.at)
	check.lane = ""
	if err := check.run(t.Context()); exitCode(err) != exitPerson {
		t.Errorf("the function starts: %v", err)
	}
	b := newRebuild(m.clients, m.at, io.Discard)
	if err := b.plan(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if err := b.apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := check.run(t.Context()); err != nil {
		t.Error(err)
	}
	if b.shown.Side != "lambda" || len(b.shown.Gaps) != 0 || b.shown.Windows[pipeline.FateWhole] == 0 {
		t.Errorf("it says %+v", b.shown)
	}
	m.put(items[400:])
	m.deliver()
	m.sweep()
	m.seal()
	checkReadings(t, m.dir, file)
}
