package main

import (
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"telemetrylake/pipeline"
)

// verify runs the command and returns what it says, and its exit code.
func verify(t *testing.T) (verified, int, string) {
	t.Helper()
	code, stdout, stderr := streamer(t, "windows", "verify", "-o", "json")
	var r verified
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("%v in %q; it says %s", err, stdout, stderr)
	}
	return r, code, stderr
}

func TestVerifyFindsNoDifferenceFromTheFirstWindowToTheLast(t *testing.T) {
	d := openDoor(t)
	file := roomClimate(t, 60)
	d.load(file)
	if r, code, _ := verify(t); code != exitOK || len(r.Differences) > 0 || r.Objects != 0 {
		t.Errorf("before anything was read: exit code %d, %+v", code, r)
	}
	d.land()
	r, code, _ := verify(t)
	if code != exitOK || len(r.Differences) > 0 || r.Held == 0 || r.Objects != 0 {
		t.Errorf("once all is landed: exit code %d, %+v", code, r)
	}
	held := r.Held
	until(t, "everything is sealed", func() bool {
		says(t, "seal")
		return says(t, "windows", "list", "--unsealed") == "no window is waiting\n"
	})
	if r, code, _ = verify(t); code != exitOK || len(r.Differences) > 0 || r.Held != 0 || r.Folded != held || int(r.Rows) != file.readings() {
		t.Errorf("once all is sealed: exit code %d, %+v; want %d windows folded and %d rows", code, r, held, file.readings())
	}
	if text := says(t, "windows", "verify"); !strings.Contains(text, "Differences") || strings.Count(text, "\n") != 6 {
		t.Errorf("for people:\n%s", text)
	}
}

func TestVerifyNamesTheObjectThatDiffersAndFails(t *testing.T) {
	d := openDoor(t)
	d.load(roomClimate(t, 40))
	says(t, "run", "--until-drained")
	files, err := lakeFiles(filepath.Join(d.dir, "s3", lakeBucket, "sensor_readings"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	body, err := os.ReadFile(files[0].path)
	if err != nil {
		t.Fatal(err)
	}
	// Rows that are there twice, and rows of somebody else.
	lake := openBuckets(d.clients, places{Lake: location{lakeBucket, ""}}).lake
	folder := "sensor_readings/" + files[0].partition + "/"
	for key, body := range map[string][]byte{folder + "zz-copy.parquet": body, folder + "theirs.parquet": []byte("PAR1"), folder + "_theirs": []byte("x"), "theirs/x.parquet": []byte("PAR1")} {
		if err := lake.Create(t.Context(), key, body); err != nil {
			t.Fatal(err)
		}
	}
	r, code, stderr := verify(t)
	if code != exitFailed || !strings.Contains(stderr, "disagree in") || !strings.Contains(stderr, folder) {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	twice, foreign := 0, 0
	for _, diff := range r.Differences {
		switch {
		case diff.Object == folder+"zz-copy.parquet" && diff.Window != "" && strings.Contains(diff.Problem, "in the lake twice"):
			twice++
		case diff.Object == folder+"theirs.parquet" && strings.Contains(diff.Problem, "no part of ours"):
			foreign++
		default:
			t.Errorf("difference %+v", diff)
		}
	}
	if twice == 0 || foreign != 1 {
		t.Errorf("differences %+v", r.Differences)
	}
	_, stdout, _ := streamer(t, "windows", "verify", "-o", "csv")
	rows, err := csv.NewReader(strings.NewReader(stdout)).ReadAll()
	if err != nil || len(rows) != len(r.Differences)+1 || rows[0][0] != "object" {
		t.Errorf("csv %v, %v", rows, err)
	}
	if _, stdout, _ := streamer(t, "windows", "verify"); !strings.Contains(stdout, folder+"zz-copy.parquet") {
		t.Errorf("for people:\n%s", stdout)
	}
}

func TestVerifyMissesAnObjectOfAWindowThatTheLedgerHolds(t *testing.T) {
	l := newLateLine(t)
	l.land(1)
	l.remove(l.staged()[0]) // the first window never comes, so that the second is not folded
	l.land(2)
	l.wants(2, 1)
	v := verifier{store: l.store, lake: l.runner.lake}
	r, err := v.verify(t.Context())
	if err != nil || r.err() != nil || r.Held != 2 || r.Objects != 2 || r.Parts != 2 {
		t.Fatalf("before: %+v, %v", r, err)
	}
	var gone pipeline.Object
	for o, err := range l.runner.lake.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		gone = o
	}
	if err := l.runner.lake.Remove(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	if r, err = v.verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(r.Differences) != 1 || !strings.HasPrefix(gone.Key, r.Differences[0].Object) || !strings.HasSuffix(r.Differences[0].Window, "/2") || !strings.Contains(r.err().Error(), r.Differences[0].Object) {
		t.Errorf("differences %+v, want that %s is missing", r.Differences, gone.Key)
	}
}

func TestOrphansInStagingAreListedWithTheirReason(t *testing.T) {
	d := openDoor(t)
	d.load(roomClimate(t, 20))
	d.land()
	d.env.FlushFirehose()
	staging := openBuckets(d.clients, places{Staging: location{stagingBucket, partsPrefix}}).staging
	var body []byte
	for o, err := range staging.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		r, err := staging.Read(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		body = make([]byte, r.Len())
		if _, err := r.Read(body); err != nil {
			t.Fatal(err)
		}
	}
	orphans := func() map[string][]orphan {
		t.Helper()
		var found []orphan
		if err := json.Unmarshal([]byte(says(t, "windows", "orphans", "--unsealed-within", "1ns", "-o", "json")), &found); err != nil {
			t.Fatal(err)
		}
		by := map[string][]orphan{}
		for _, o := range found {
			by[o.Why] = append(by[o.Why], o)
		}
		return by
	}
	waiting := orphans()
	if len(waiting) != 1 || len(waiting[whyWaiting]) == 0 || waiting[whyWaiting][0].Rows == 0 || waiting[whyWaiting][0].Window == "" {
		t.Fatalf("nothing has sealed: %+v", waiting)
	}
	if text := says(t, "windows", "orphans"); text != "nothing lies in staging for longer than a window may wait\n" {
		t.Errorf("within half an hour: %s", text)
	}
	until(t, "everything is sealed", func() bool {
		says(t, "seal")
		return says(t, "windows", "list", "--unsealed") == "no window is waiting\n"
	})
	// What comes again, of a ledger that does not know it, of somebody else, and what is no file.
	stranger := foreignPart(t, body)
	for key, b := range map[string][]byte{"again": body, "stranger": stranger, "broken": []byte("no file at all")} {
		if err := staging.Create(t.Context(), key, b); err != nil {
			t.Fatal(err)
		}
	}
	found := orphans()
	for why, object := range map[string]string{whyDuplicate: "again", "unknown": "stranger", whyDamaged: "broken"} {
		if len(found[why]) == 0 {
			t.Errorf("none is %s: %+v", why, found)
			continue
		}
		for _, o := range found[why] {
			if o.Object != object {
				t.Errorf("%s is %s: %+v", o.Object, why, o)
			}
		}
	}
	rows, err := csv.NewReader(strings.NewReader(says(t, "windows", "orphans", "--unsealed-within", "1ns", "-o", "csv"))).ReadAll()
	if err != nil || len(rows) < 4 || rows[0][3] != "age_seconds" {
		t.Errorf("csv %v, %v", rows, err)
	}
}

// foreignPart makes a part of another lane's window of the same length.
func foreignPart(t *testing.T, body []byte) []byte {
	t.Helper()
	const ours, theirs = `"lane":"run-sensor_readings"`, `"lane":"run-sensor_readingz"`
	if !strings.Contains(string(body), ours) {
		t.Fatal("no part names its lane so")
	}
	return []byte(strings.ReplaceAll(string(body), ours, theirs))
}
