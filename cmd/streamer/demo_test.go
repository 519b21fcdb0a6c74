package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"telemetrylake/pipeline/hot"
	"telemetrylake/schemas"
)

// streamer runs a command line.
func streamer(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// demoJSON runs the demo, which must succeed, and reads its one document.
func demoJSON(t testing.TB, args ...string) (result, map[string]any) {
	t.Helper()
	code, stdout, stderr := streamer(t, append([]string{"demo", "-o", "json"}, args...)...)
	if code != 0 || stderr != "" {
		t.Fatalf("demo %v: exit code %d, stderr %q", args, code, stderr)
	}
	var r result
	var fields map[string]any
	dec := json.NewDecoder(strings.NewReader(stdout))
	if err := dec.Decode(&fields); err != nil {
		t.Fatal(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		t.Errorf("something follows the document: %v", err)
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	return r, fields
}

// A climateTruth is what a room-climate file holds, read without the code under test.
type climateTruth struct {
	rows              int
	perNode           map[string]int
	celsius, humidity *big.Rat
}

func readClimateTruth(t testing.TB, name string) climateTruth {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var in io.Reader = f
	if strings.HasSuffix(name, ".gz") {
		if in, err = gzip.NewReader(f); err != nil {
			t.Fatal(err)
		}
	}
	r := csv.NewReader(in)
	header, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	node, celsius, humidity := slices.Index(header, "node_id"), slices.Index(header, "celsius"), slices.Index(header, "humidity")
	truth := climateTruth{perNode: map[string]int{}, celsius: new(big.Rat), humidity: new(big.Rat)}
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return truth
		}
		if err != nil {
			t.Fatal(err)
		}
		truth.rows++
		truth.perNode[row[node]]++
		addDecimal(t, truth.celsius, row[celsius])
		addDecimal(t, truth.humidity, row[humidity])
	}
}

func addDecimal(t testing.TB, sum *big.Rat, text string) {
	t.Helper()
	v, ok := new(big.Rat).SetString(text)
	if !ok {
		t.Fatalf("%q is not a number", text)
	}
	sum.Add(sum, v)
}

const climateHeader = "location,measurement,entry_id,taken_at_ms,relative_s,node_id,celsius,humidity,light_1,light_2,occupants,activity,door_open,window_open"

func climateLine(entry int, taken time.Time, node int, celsius, humidity string) string {
	return fmt.Sprintf("A,01,%d,%d,%d,%d,%s,%s,185.71,492.2,0,0,0,0", entry, taken.UnixMilli(), entry, node, celsius, humidity)
}

func writeLines(t testing.TB, lines ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "readings.csv")
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

var climateStart = time.Date(2016, 3, 15, 20, 47, 28, 545e6, time.UTC)

// generatedClimate is a file of the shape of the real readings: four nodes, a reading every
// five seconds, over midnight, with a night without readings.
func generatedClimate(t testing.TB) string {
	lines := []string{climateHeader}
	for i := range 4000 {
		taken := climateStart.Add(time.Duration(i)*5*time.Second + time.Duration(i*i%997)*time.Millisecond)
		if i >= 3000 {
			taken = taken.Add(30 * time.Hour)
		}
		lines = append(lines, climateLine(i+1, taken, i%4+1,
			fmt.Sprintf("%d.%02d", 18+i%7, i*31%100), fmt.Sprintf("%d.%03d", 35+i%20, i*577%1000)))
	}
	return writeLines(t, lines...)
}

// The real readings are used where STREAMER_TEST_READINGS names their file.
func TestDemoLandsEveryReadingOnce(t *testing.T) {
	file := cmp.Or(os.Getenv("STREAMER_TEST_READINGS"), generatedClimate(t))
	truth := readClimateTruth(t, file)
	dir := filepath.Join(t.TempDir(), "kept")
	r, fields := demoJSON(t, "--readings", file, "--format", "room-climate", "--dir", dir)
	for _, name := range []string{
		"written", "refused", "stream_records", "lake_rows", "lake_distinct_keys", "quarantined", "changes", "gaps", "firehose_records",
		"staging_objects", "sealed_objects", "hot_rows_after_ttl", "lake_path", "seconds",
	} {
		if _, ok := fields[name]; !ok {
			t.Errorf("the document has no %s", name)
		}
	}
	for name, n := range map[string]int{"written": r.Written, "lake_rows": r.LakeRows, "lake_distinct_keys": r.LakeDistinctKeys, "ttl_removals": r.TTLRemovals} {
		if n != truth.rows {
			t.Errorf("%s is %d, the file has %d readings", name, n, truth.rows)
		}
	}
	if r.Refused != 0 || r.Quarantined != 0 || r.Changes != 0 || r.Gaps != 0 || r.HotRowsAfterTTL != 0 {
		t.Errorf("refused %d, quarantined %d, changes %d, gaps %d, hot rows after TTL %d; want none",
			r.Refused, r.Quarantined, r.Changes, r.Gaps, r.HotRowsAfterTTL)
	}
	if r.StreamRecords != 2*truth.rows {
		t.Errorf("%d stream records, want an insert and a removal for each of %d readings", r.StreamRecords, truth.rows)
	}
	if r.FirehoseRecords != r.Parts || r.FirehoseRecords < 2*r.StagingObjects || r.PartsPerObject.Median < 3 {
		t.Errorf("%d records of %d parts in %d staging objects, %d in the median one: objects must hold several parts",
			r.FirehoseRecords, r.Parts, r.StagingObjects, r.PartsPerObject.Median)
	}
	if left := objectsBelow(t, filepath.Join(dir, "s3", stagingBucket)); len(left) > 0 {
		t.Errorf("left in staging: %v", left)
	}
	if got := len(objectsBelow(t, filepath.Join(dir, "s3", lakeBucket))); got != r.SealedObjects {
		t.Errorf("%d objects in the lake, the document says %d", got, r.SealedObjects)
	}
	rows := readAlike(t, r.LakePath, loadTable(t, "sensor_readings", schemas.Readings))
	checkClimate(t, rows, truth)
}

// checkClimate compares rows of sensor_readings with the file: counts per node, and the exact
// sums of the values.
func checkClimate(t *testing.T, rows []row, truth climateTruth) {
	t.Helper()
	perNode := map[string]int{}
	celsius, humidity := new(big.Rat), new(big.Rat)
	for _, r := range rows {
		perNode[r.text(t, "device_id")]++
		addDecimal(t, celsius, r.text(t, "celsius"))
		addDecimal(t, humidity, r.text(t, "humidity"))
	}
	if fmt.Sprint(perNode) != fmt.Sprint(truth.perNode) {
		t.Errorf("rows by node %v, the file has %v", perNode, truth.perNode)
	}
	if celsius.Cmp(truth.celsius) != 0 || humidity.Cmp(truth.humidity) != 0 {
		t.Errorf("sums %s and %s, in the file %s and %s", celsius.FloatString(3), humidity.FloatString(3),
			truth.celsius.FloatString(3), truth.humidity.FloatString(3))
	}
	t.Logf("%d rows, sum of celsius %s, of humidity %s", len(rows), celsius.FloatString(2), humidity.FloatString(3))
}

func objectsBelow(t testing.TB, folder string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func loadTable(t testing.TB, contract string, role schemas.Role) schemas.Table {
	t.Helper()
	c, err := schemas.Load(contract)
	if err != nil {
		t.Fatal(err)
	}
	return c.LakeTable(role)
}

func TestDemoOfTheFleetHoldsWhatTheFleetSent(t *testing.T) {
	dir := t.TempDir()
	r, _ := demoJSON(t, "--devices", "12", "--hours", "30", "--seed", "7", "--dir", dir)
	fleet, c, err := demoOptions{devices: 12, hours: 30, seed: 7}.fleet()
	if err != nil {
		t.Fatal(err)
	}
	truth := fleet.Truth()
	if r.LakeRows != truth.Readings || r.Changes != truth.Changes || r.Quarantined != truth.Quarantined {
		t.Errorf("lake rows %d, changes %d, quarantined %d; the fleet sent %d, %d, %d",
			r.LakeRows, r.Changes, r.Quarantined, truth.Readings, truth.Changes, truth.Quarantined)
	}
	if truth.Late == 0 || truth.Changes == 0 || truth.Quarantined != 2 || len(truth.Sites) < 4 {
		t.Errorf("the fleet shows too little: %d late, %d changes, %d to quarantine, %d sites", truth.Late, truth.Changes, truth.Quarantined, len(truth.Sites))
	}
	days := map[hot.DeviceDay]int{}
	for _, role := range []schemas.Role{schemas.Readings, schemas.Changes, schemas.Quarantine} {
		table := c.LakeTable(role)
		for _, row := range readAlike(t, filepath.Join(dir, "s3", lakeBucket, table.Name), table) {
			if role == schemas.Readings {
				// The day is the partition's: a late reading that lay elsewhere would show here.
				days[hot.DeviceDay{Device: row.text(t, "device_id"), Day: strings.TrimPrefix(row.partition, "dt=")}]++
			}
		}
	}
	if fmt.Sprint(days) != fmt.Sprint(truth.DeviceDays) {
		t.Errorf("readings by device and day are %v, the fleet sent %v", days, truth.DeviceDays)
	}
}

func TestDemoIsDeterministic(t *testing.T) {
	run := func() result {
		r, _ := demoJSON(t, "--devices", "3", "--hours", "3", "--seed", "5")
		r.Seconds = 0
		return r
	}
	if a, b := run(), run(); a != b {
		t.Errorf("two runs differ: %+v and %+v", a, b)
	}
}

// shown runs a show over events of the test's own.
func shown(t *testing.T, contract string, events ...hot.Event) *show {
	t.Helper()
	c, err := schemas.Load(contract)
	if err != nil {
		t.Fatal(err)
	}
	f := &feed{name: "a test", contract: c, start: events[0].At, total: len(events), events: func(yield func(hot.Event, error) bool) {
		for _, e := range events {
			if !yield(e, nil) {
				return
			}
		}
	}}
	s, err := newShow(t.Context(), f, t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	s.progress = newProgress(io.Discard, f.total)
	if err := s.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestModifiedReadingLandsInChangesAndLeavesTheAverage(t *testing.T) {
	fleet, _, err := demoOptions{devices: 8, hours: 4, seed: 3}.fleet()
	if err != nil {
		t.Fatal(err)
	}
	var readings, all []hot.Event
	kinds := map[hot.EventKind]int{}
	for e := range fleet.Events() {
		if e.Kind == hot.KindEarly || e.Kind == hot.KindMalformed {
			continue
		}
		kinds[e.Kind]++
		all = append(all, e)
		if e.Kind != hot.KindOverwrite && e.Kind != hot.KindProlong {
			readings = append(readings, e)
		}
	}
	if kinds[hot.KindOverwrite] == 0 || kinds[hot.KindProlong] == 0 {
		t.Fatalf("the fleet changed no reading: %v", kinds)
	}
	plain, changed := shown(t, "device_telemetry", readings...), shown(t, "device_telemetry", all...)
	if want := kinds[hot.KindOverwrite] + kinds[hot.KindProlong]; changed.result.Changes != want {
		t.Errorf("%d rows in changes, want %d", changed.result.Changes, want)
	}
	if plain.result.LakeRows != changed.result.LakeRows {
		t.Errorf("%d rows of readings, %d without the changes", changed.result.LakeRows, plain.result.LakeRows)
	}
	if len(plain.answers) != 2 || fmt.Sprint(plain.answers) != fmt.Sprint(changed.answers) {
		t.Errorf("answers with changes %v, without %v", changed.answers, plain.answers)
	}
}

func TestAveragesWithoutDuckDBAreThoseOfDuckDB(t *testing.T) {
	fleet, _, err := demoOptions{devices: 12, hours: 4, seed: 9}.fleet()
	if err != nil {
		t.Fatal(err)
	}
	climate := writeLines(t, climateHeader,
		climateLine(1, climateStart, 1, "20.48", "42.332"),
		climateLine(2, climateStart.Add(time.Second), 1, "20.49", "42.3"),
		climateLine(3, climateStart.Add(12*time.Hour), 10, "-0.05", "7"),
		climateLine(4, climateStart.Add(12*time.Hour), 2, "21", "8"))
	f, err := readingsFeed(climate, "room-climate")
	if err != nil {
		t.Fatal(err)
	}
	var readings []hot.Event
	for e, err := range f.events {
		if err != nil {
			t.Fatal(err)
		}
		readings = append(readings, e)
	}
	for contract, events := range map[string][]hot.Event{"device_telemetry": slices.Collect(fleet.Events()), "sensor_readings": readings} {
		s := shown(t, contract, events...)
		files, err := s.askFiles(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range files {
			if files[i].without == "" {
				t.Errorf("%s: an answer does not say that it was computed without DuckDB", contract)
			}
			if s.answers[i].without == "" {
				files[i].without = ""
			}
		}
		if len(files) != 2 || fmt.Sprint(files) != fmt.Sprint(s.answers) {
			t.Errorf("%s: from the files %v, by the query %v", contract, files, s.answers)
		}
	}
}

func TestLateReadingLandsInItsDay(t *testing.T) {
	file := writeLines(t, climateHeader,
		climateLine(1, climateStart, 1, "20.48", "42.332"),
		climateLine(2, climateStart.Add(40*time.Hour), 1, "20.50", "42.300"),
		climateLine(3, climateStart.Add(time.Minute), 2, "20.51", "42.301"))
	dir := t.TempDir()
	r, _ := demoJSON(t, "--readings", file, "--format", "room-climate", "--dir", dir)
	days := map[string]int{}
	for _, row := range readAlike(t, r.LakePath, loadTable(t, "sensor_readings", schemas.Readings)) {
		days[row.partition]++
		if row.text(t, "celsius") == "20.51" && !strings.HasPrefix(row.text(t, "stream_created_at"), "2016-03-17") {
			t.Errorf("the late reading arrived at %s", row.text(t, "stream_created_at"))
		}
	}
	if want := map[string]int{"dt=2016-03-15": 2, "dt=2016-03-17": 1}; fmt.Sprint(days) != fmt.Sprint(want) {
		t.Errorf("rows by partition %v, want %v", days, want)
	}
}

func TestReadingBeforeTheFirstPartitionIsQuarantined(t *testing.T) {
	file := writeLines(t, climateHeader,
		climateLine(1, time.Date(2015, 12, 31, 23, 59, 59, 999e6, time.UTC), 1, "20.48", "42.332"),
		climateLine(2, time.Date(2016, 1, 1, 0, 0, 0, 0, time.UTC), 1, "20.50", "42.300"))
	dir := t.TempDir()
	r, _ := demoJSON(t, "--readings", file, "--format", "room-climate", "--dir", dir)
	if r.Written != 2 || r.LakeRows != 1 || r.Quarantined != 1 {
		t.Errorf("written %d, lake rows %d, quarantined %d; want 2, 1, 1", r.Written, r.LakeRows, r.Quarantined)
	}
	table := loadTable(t, "sensor_readings", schemas.Quarantine)
	for _, row := range readAlike(t, filepath.Join(dir, "s3", lakeBucket, table.Name), table) {
		if got := row.text(t, "reason"); got != "outside_projection" {
			t.Errorf("reason %q, want outside_projection", got)
		}
	}
}

func TestFirstOfTwoReadingsWithTheSameKeyWins(t *testing.T) {
	lines := []string{climateHeader}
	for i := range 60 {
		lines = append(lines, climateLine(i, climateStart.Add(time.Duration(i/3)*time.Second), 1, fmt.Sprintf("%d.00", i), "42.000"))
	}
	r, _ := demoJSON(t, "--readings", writeLines(t, lines...), "--format", "room-climate", "--dir", t.TempDir())
	if r.Written != 20 || r.Refused != 40 || r.LakeRows != 20 || r.LakeDistinctKeys != 20 {
		t.Errorf("written %d, refused %d, lake rows %d, keys %d; want 20, 40, 20, 20", r.Written, r.Refused, r.LakeRows, r.LakeDistinctKeys)
	}
	var got []int
	for _, row := range readAlike(t, r.LakePath, loadTable(t, "sensor_readings", schemas.Readings)) {
		n, err := strconv.Atoi(strings.TrimSuffix(row.text(t, "celsius"), ".00"))
		if err != nil || n%3 != 0 {
			t.Errorf("%s is in the lake, a reading before it has its key", row.text(t, "celsius"))
		}
		got = append(got, n)
	}
	if len(got) != 20 {
		t.Errorf("the lake has readings %v", got)
	}
}

func TestDemoPrintsItsStory(t *testing.T) {
	dir := t.TempDir()
	code, stdout, stderr := streamer(t, "demo", "--devices", "12", "--hours", "2", "--dir", dir)
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d, stderr %q", code, stderr)
	}
	story, ddl, found := strings.Cut(stdout, "CREATE EXTERNAL TABLE")
	if !found || !strings.Contains(ddl, "projection.enabled") || !strings.Contains(ddl, filepath.Join(dir, "s3", lakeBucket, "device_telemetry")) {
		t.Errorf("the DDL or the place of the lake is missing:\n%s", stdout)
	}
	for _, want := range []string{"site-01", "avg_battery_pct", "dev-00001", "rows in the hot table", "device_telemetry_changes"} {
		if !strings.Contains(story, want) {
			t.Errorf("the story does not speak of %s:\n%s", want, story)
		}
	}
	for line := range strings.Lines(story) {
		if len([]rune(line)) > 81 && !strings.HasPrefix(line, "(") {
			t.Errorf("the line is wider than 80 columns: %s", line)
		}
	}
}

func TestDemoRemovesItsTemporaryFolder(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	t.Setenv("TMP", tmp)
	r, _ := demoJSON(t, "--devices", "1", "--hours", "1")
	if r.LakePath != "" {
		t.Errorf("the lake is said to be in %s, and it is removed", r.LakePath)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	code := execute(cancelled, []string{"demo", "-o", "json", "--devices", "1", "--hours", "1"}, &stdout, &stderr)
	if code != exitFailed || stdout.Len() > 0 || strings.Count(stderr.String(), "\n") != 1 || !strings.Contains(stderr.String(), "interrupted after 0 rows; nothing of it is kept") {
		t.Errorf("interrupted: exit code %d, stdout %q, stderr %q", code, stdout.String(), stderr.String())
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left in the temporary folder: %v %v", left, err)
	}
}
