package main

import (
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
)

// ledger is an AWS with three gaps: an open one, a closed one, and an open one of an earlier
// stream of the table.
func ledger(t *testing.T) (d *door, gaps []pipeline.Gap) {
	t.Helper()
	d = openDoor(t)
	c := begin(t, "run") // so that the shards are known
	until(t, "two shards are known", func() bool { return len(d.status().Shards) > 1 })
	c.stop()
	c.exits(exitOK)
	st := d.status()
	store := checkpoint.New(d.dynamodb, checkpointTable, checkpoint.Options{})
	from := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	earlier, _, _ := strings.Cut(st.Stream, "/stream/")
	for i, g := range []pipeline.Gap{
		{Stream: st.Stream, Shard: pipeline.ShardID(st.Shards[0].ID), First: "101", Last: "105"},
		{Stream: st.Stream, Shard: pipeline.ShardID(st.Shards[1].ID), First: "201", Last: "202"},
		{Stream: earlier + "/stream/2020-01-01T00:00:00.000", Shard: "shardId-old", First: "1", Last: "2"},
		{Stream: strings.ReplaceAll(earlier, "sensor_readings", "elsewhere") + "/stream/2020-01-01T00:00:00.000", Shard: "shardId-other", First: "1", Last: "2"},
	} {
		g.Missing = pipeline.Missing{Cause: pipeline.GapDiscarded, From: from, To: from.Add(time.Hour)}
		opened, ok, err := store.OpenGap(t.Context(), g)
		if err != nil || !ok {
			t.Fatalf("open gap %d: %v %v", i, ok, err)
		}
		gaps = append(gaps, opened)
	}
	if err := store.MoveGap(t.Context(), gaps[1], pipeline.GapClosed, "2 rows from an export"); err != nil {
		t.Fatal(err)
	}
	return d, gaps
}

// says runs a command that succeeds, and returns what it says.
func says(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := streamer(t, args...)
	if code != exitOK || stderr != "" {
		t.Fatalf("%v: exit code %d, %s", args, code, stderr)
	}
	return stdout
}

func TestGapsAreListedByState(t *testing.T) {
	d, gaps := ledger(t)
	list := func(more ...string) []string {
		t.Helper()
		var shown []gapShown
		if err := json.Unmarshal([]byte(says(t, append([]string{"gaps", "list", "-o", "json"}, more...)...)), &shown); err != nil {
			t.Fatal(err)
		}
		ids := []string{}
		for _, g := range shown {
			ids = append(ids, g.ID)
		}
		return ids
	}
	ids := func(at ...int) string {
		var s []string
		for _, i := range at {
			s = append(s, gaps[i].ID)
		}
		return strings.Join(s, " ")
	}
	for _, tt := range []struct {
		name  string
		flags []string
		want  string
	}{
		{"those that are not closed, of all streams of the table", nil, ids(2, 0)},
		{"closed ones", []string{"--state", "closed"}, ids(1)},
		{"those in repair", []string{"--state", "repairing"}, ""},
		{"open ones of all tables", []string{"--all-tables", "--state", "open"}, ids(3, 2, 0)},
	} {
		if got := list(tt.flags...); strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, got, tt.want)
		}
	}
	rows, err := csv.NewReader(strings.NewReader(says(t, "gaps", "list", "--state", "all", "-o", "csv"))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 4 || rows[0][0] != "id" || rows[2][0] != gaps[0].ID || rows[2][1] != "open" || rows[2][2] != "discarded" {
		t.Errorf("as CSV: %q", rows)
	}
	text := says(t, "gaps", "list")
	for _, want := range []string{"created from", gaps[0].ID, "open", "discarded", "2026-11-29T12:00:00Z", "2026-11-29T13:00:00Z"} {
		if !strings.Contains(text, want) {
			t.Errorf("as a table it has no %q:\n%s", want, text)
		}
	}
	if st := d.status(); st.Gaps != 1 {
		t.Errorf("status says %d gaps of the stream", st.Gaps)
	}
}

func TestAGapIsShownWithItsBounds(t *testing.T) {
	_, gaps := ledger(t)
	text := says(t, "gaps", "show", gaps[1].ID)
	for _, want := range []string{"First record that is missing", "201", "202", "closed", "2 rows from an export", gaps[1].Stream} {
		if !strings.Contains(text, want) {
			t.Errorf("the gap is shown without %q:\n%s", want, text)
		}
	}
	var shown gapShown
	if err := json.Unmarshal([]byte(says(t, "gaps", "show", gaps[0].ID, "-o", "json")), &shown); err != nil {
		t.Fatal(err)
	}
	if shown.First != "101" || shown.Last != "105" || shown.State != "open" || shown.From != "2026-11-29T12:00:00Z" || shown.Detected == "" {
		t.Errorf("shown as %+v", shown)
	}
	for _, args := range [][]string{{"gaps", "show", "nothing"}, {"gaps", "show"}, {"gaps", "list", "--state", "lost"}} {
		c := begin(t, args...)
		c.exits(exitUsage)
		t.Log(c.lastWords())
	}
}

func TestATableWithoutGapsSaysSo(t *testing.T) {
	openDoor(t)
	if text := says(t, "gaps", "list"); text != "no gap that is not closed\n" {
		t.Errorf("it says %q", text)
	}
	if text := says(t, "gaps", "list", "-o", "json"); text != "[]\n" {
		t.Errorf("as JSON it says %q", text)
	}
	if text := says(t, "gaps", "list", "-o", "csv"); strings.Count(text, "\n") != 1 {
		t.Errorf("as CSV it says %q", text)
	}
}

func TestAGapOfAnEarlierStreamKeepsIntegrityRed(t *testing.T) {
	d, gaps := ledger(t)
	store := checkpoint.New(d.dynamodb, checkpointTable, checkpoint.Options{})
	if err := store.MoveGap(t.Context(), gaps[0], pipeline.GapClosed, "all there"); err != nil {
		t.Fatal(err)
	}
	r := watch(t)
	r.is(`streamer_gaps{state="open"}`, equals(1))
	if in, _ := r.integrity(); in.OK {
		t.Errorf("integrity is %+v", in)
	}
	if err := store.MoveGap(t.Context(), gaps[2], pipeline.GapClosed, "all there"); err != nil {
		t.Fatal(err)
	}
	r.is("streamer_integrity_ok", equals(1))
	r.stop()
	r.exits(exitOK)
}
