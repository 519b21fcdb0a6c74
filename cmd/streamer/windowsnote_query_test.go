//go:build cgo && ((linux && (amd64 || arm64)) || (darwin && (amd64 || arm64)) || (windows && amd64))

package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"telemetrylake/athena"
	"telemetrylake/athena/engine"
	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/schemas"
)

// ask answers a query on the pipeline's own tables and views, a line for each row.
func (l *lateLine) ask(query string) []string {
	l.t.Helper()
	tables, err := engine.OpenLake(l.t.Context(), filepath.Join(l.dir, "s3", lakeBucket), schemas.OwnTables())
	if err != nil {
		l.t.Fatal(err)
	}
	defer tables.Close()
	for _, t := range schemas.OwnTables() {
		v, ok := athena.LatestOfOwn(t, athena.Options{})
		if !ok {
			l.t.Fatalf("table %s has no view", t.Name)
		}
		if err := tables.AddView(l.t.Context(), v); err != nil {
			l.t.Fatal(err)
		}
	}
	result, err := tables.Query(l.t.Context(), query)
	if err != nil {
		l.t.Fatal(err)
	}
	var lines []string
	for _, r := range result.Rows {
		lines = append(lines, strings.Trim(fmt.Sprint(r...), "[]"))
	}
	return lines
}

func TestWindowsAndGapsAreInTheLakeOnceAnHourWithTheirLastState(t *testing.T) {
	l := newLateLine(t)
	one, two := newNoter(l.store, l.runner.lake, checkpointTable), newNoter(l.store, l.runner.lake, checkpointTable)
	l.land(2)
	l.wants(2, 0) // window 1 is folded
	l.blocked = true
	l.land(3) // window 2 is on its way
	l.note(one, two, one)
	keys := l.ownObjects()
	if len(keys) != 2 || !strings.HasPrefix(keys[0], "gaps/dt=2026-11-30/hour-08-") || !strings.HasPrefix(keys[1], "windows/dt=2026-11-30/hour-08-") {
		t.Fatalf("objects %v, want one of each table and hour", keys)
	}
	const states = `SELECT concat_ws(' ', first_window, last_window, state, part_count, row_count, landed_again, has_gaps) FROM windows_latest ORDER BY first_window`
	if got := l.ask(states); !slices.Equal(got, []string{"1 1 folded", "2 2 committed 3 3 0 false"}) {
		t.Errorf("windows %q", got)
	}
	if got := l.ask("SELECT * FROM gaps_latest"); len(got) != 0 {
		t.Errorf("gaps %q", got)
	}

	// It ages out, and is given up.
	l.after(26 * time.Hour)
	l.audit(0, 0)
	if err := l.store.Fold(t.Context(), l.lane); err != nil {
		t.Fatal(err)
	}
	l.note(two, one)
	if keys := l.ownObjects(); len(keys) != 4 {
		t.Errorf("objects %v", keys)
	}
	if got := l.ask(states); !slices.Equal(got, []string{"1 1 folded", "2 2 void"}) {
		t.Errorf("windows %q", got)
	}
	if got := l.ask("SELECT COUNT(DISTINCT as_of) FROM windows"); !slices.Equal(got, []string{"2"}) {
		t.Errorf("moments %q: what was true before stays", got)
	}
	gaps, err := l.store.Gaps(t.Context(), "")
	if err != nil || len(gaps) == 0 {
		t.Fatalf("%d gaps, %v", len(gaps), err)
	}
	const open = "SELECT DISTINCT concat_ws(' ', state, cause, window_id) FROM gaps_latest"
	want := "window run-sensor_readings/" + gaps[0].Window.Incarnation + "/2"
	if got := l.ask(open); !slices.Equal(got, []string{"open " + want}) {
		t.Errorf("gaps %q", got)
	}
	for _, g := range gaps {
		if err := l.store.MoveGap(t.Context(), g, pipeline.GapClosed, "rows were found elsewhere"); err != nil {
			t.Fatal(err)
		}
	}
	l.note(one)
	if got := l.ask(open); !slices.Equal(got, []string{"open " + want}) {
		t.Errorf("within the hour: gaps %q", got)
	}
	l.after(time.Hour)
	if _, err := l.store.Lanes(t.Context()); err != nil { // the clock follows answers
		t.Fatal(err)
	}
	l.note(one)
	if got := l.ask(open); !slices.Equal(got, []string{"closed " + want}) {
		t.Errorf("gaps %q", got)
	}
	if n := len(l.ask("SELECT * FROM gaps_latest")); n != len(gaps) {
		t.Errorf("%d gaps, want %d: each once", n, len(gaps))
	}
	// Another checkpoint table that tells of the same lake has objects of its own.
	other := checkpoint.New(l.clients.dynamodb, "other", checkpoint.Options{})
	if err := other.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := newNoter(other, l.runner.lake, "other").note(t.Context()); err != nil {
		t.Fatal(err)
	}
	if keys := l.ownObjects(); len(keys) != 8 {
		t.Errorf("objects %v", keys)
	}
}

func TestSealWritesWhatItKnowsIntoTheLake(t *testing.T) {
	d := openDoor(t)
	file := roomClimate(t, 30)
	d.load(file)
	d.land()
	d.env.FlushFirehose()
	says(t, "seal")
	says(t, "seal")
	t.Setenv("STREAMER_LAKE_DIR", filepath.Join(d.dir, "s3", lakeBucket))
	if got := says(t, "query", "SELECT lane, max(last_window) > 0 AS some FROM windows_latest GROUP BY lane", "-o", "csv"); got != "lane,some\nrun-sensor_readings,true\n" {
		t.Errorf("the query says %q", got)
	}
	if got := says(t, "query", "SELECT COUNT(*) AS n FROM gaps_latest", "-o", "csv"); got != "n\n0\n" {
		t.Errorf("the query says %q", got)
	}
	files, err := lakeFiles(filepath.Join(d.dir, "s3", lakeBucket, "windows"))
	if err != nil || len(files) == 0 || len(files) > 2 { // two if the hour passed meanwhile
		t.Errorf("%d objects, %v", len(files), err)
	}
}
