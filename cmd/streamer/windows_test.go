package main

import (
	"encoding/json"
	"strings"
	"testing"

	"telemetrylake/pipeline"
)

// land lands all that the hot table's stream has, and seals nothing.
func (d *door) land() {
	d.t.Helper()
	s := newSettings()
	c := newRun()
	if err := s.load(c); err != nil {
		d.t.Fatal(err)
	}
	p, err := s.places()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := p.findStream(d.t.Context(), d.clients); err != nil {
		d.t.Fatal(err)
	}
	l, err := wire(d.clients, p, wireOptions{Limits: pipeline.Limits{Records: 20}})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, do := range []func() error{
		func() error { return l.open(d.t.Context()) },
		func() error { return l.catchUp(d.t.Context()) },
		func() error { return l.gatherer.Flush(d.t.Context()) },
	} {
		if err := do(); err != nil {
			d.t.Fatal(err)
		}
	}
}

func TestWindowsThatAreNotInTheLakeAreListed(t *testing.T) {
	d := openDoor(t)
	file := roomClimate(t, 50)
	d.load(file)
	list := func(more ...string) (windows []windowShown) {
		t.Helper()
		text := says(t, append([]string{"windows", "list", "-o", "json"}, more...)...)
		if err := json.Unmarshal([]byte(text), &windows); err != nil {
			t.Fatal(err)
		}
		return windows
	}
	if w := list(); len(w) != 0 {
		t.Errorf("before anything was read: %+v", w)
	}
	d.land()
	unsealed, rows := list("--unsealed"), 0
	for _, w := range unsealed {
		rows += w.Rows
		id, err := pipeline.ParseWindowID(w.Window)
		if err != nil || string(id.Lane) != w.Lane || w.Lane != "run-sensor_readings" || w.State != "committed" || w.Parts == 0 || w.Oldest == "" || w.Committed == "" || w.Landed == "" {
			t.Errorf("window %+v, %v", w, err)
		}
	}
	if len(unsealed) < 2 || rows != file.readings() {
		t.Errorf("%d windows with %d rows, want %d rows in several", len(unsealed), rows, file.readings())
	}
	if n := len(list("--unsealed", "--lane", "run-sensor_readings")); n != len(unsealed) {
		t.Errorf("%d windows of the lane", n)
	}
	if w := list("--unsealed", "--waiting", "1h"); len(w) > 0 {
		t.Errorf("landed an hour ago: %+v", w)
	}
	if code, _, stderr := streamer(t, "windows", "list", "--unsealed", "--lane", "run-other"); code != exitUsage || !strings.Contains(stderr, "no lane run-other") {
		t.Errorf("of a lane that is not there: exit code %d, %s", code, stderr)
	}
	if text := says(t, "windows", "list", "--unsealed"); strings.Count(text, "\n") != len(unsealed)+1 || !strings.Contains(text, "committed") || !strings.Contains(text, unsealed[0].Window) {
		t.Errorf("for people:\n%s", text)
	}
	until(t, "everything is sealed", func() bool {
		says(t, "seal")
		return len(list("--unsealed")) == 0
	})
	if text := says(t, "windows", "list"); text != "no window is waiting\n" {
		t.Errorf("once all is sealed:\n%s", text)
	}
	checkReadings(t, d.dir, file)
	for _, args := range [][]string{{"windows", "list", "--waiting", "1h"}, {"windows", "list", "--lane", "Not A Lane"}, {"windows", "forget"}} {
		if code, _, stderr := streamer(t, args...); code != exitUsage {
			t.Errorf("%v: exit code %d, %s", args, code, stderr)
		}
	}
}

func TestSealWatchesStagingUntilItIsStopped(t *testing.T) {
	d := openDoor(t)
	watch := begin(t, "seal", "--watch", "--seal-every", "20ms", "-o", "json")
	file := roomClimate(t, 60)
	d.load(file)
	d.shut("ListObjectsV2", noSpace) // it outlives what starting again may outlive
	d.land()
	until(t, "staging cannot be listed", func() bool { return d.refusals("ListObjectsV2") > 1 })
	d.open()
	d.sealed(file)
	watch.stop()
	watch.exits(exitOK)
	var r struct {
		Removed   int `json:"removed"`
		Published int `json:"published"`
		Rows      int `json:"rows"`
	}
	if err := json.Unmarshal([]byte(watch.stdout.String()), &r); err != nil || r.Removed == 0 || r.Published < r.Removed || r.Rows != file.readings() {
		t.Errorf("it says %+v, %v", r, err)
	}
	if !strings.Contains(watch.stderr.String(), "goes on at the next sweep") {
		t.Errorf("of what failed it says %q", &watch.stderr)
	}
	checkReadings(t, d.dir, file)

	// What a person must put right ends it.
	d.shut("ListObjectsV2", noAccess)
	watch = begin(t, "seal", "--watch", "--seal-every", "20ms")
	watch.exits(exitPerson)
	if words := watch.lastWords(); !strings.Contains(words, "not allowed") {
		t.Errorf("it ends with %q", words)
	}
	if code, _, stderr := streamer(t, "seal", "--seal-every", "1m"); code != exitUsage || !strings.Contains(stderr, "--watch") {
		t.Errorf("--seal-every alone: exit code %d, %s", code, stderr)
	}
}
