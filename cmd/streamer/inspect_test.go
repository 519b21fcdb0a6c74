package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline/seal"
)

// joinedObject lands a file's readings and joins all that is in staging, as a Firehose with a longer
// interval would have. It returns the object, its key in the staging bucket and how many parts it has.
func (d *door) joinedObject(f *climateFile) (body []byte, key string, parts int) {
	d.t.Helper()
	d.load(f)
	d.land()
	d.env.FlushFirehose()
	for _, o := range stagedObjects(d.t, d.clients) {
		b, err := os.ReadFile(filepath.Join(d.dir, "s3", stagingBucket, filepath.FromSlash(o.Key)))
		if err != nil {
			d.t.Fatal(err)
		}
		body = append(body, b...)
		parts++
	}
	key = "joined/dt=2026-11-30/sensor_readings-1-2026-11-30-08-00-00-0b7f"
	if _, err := d.s3.PutObject(d.t.Context(), &s3.PutObjectInput{Bucket: aws.String(stagingBucket), Key: &key, Body: bytes.NewReader(body)}); err != nil {
		d.t.Fatal(err)
	}
	return body, key, parts
}

func TestAJoinedObjectIsInspectedAndRescued(t *testing.T) {
	d := openDoor(t)
	file := roomClimate(t, 100)
	body, key, parts := d.joinedObject(file)
	if parts < 2 {
		t.Fatalf("%d parts", parts)
	}
	local := filepath.Join(t.TempDir(), "object")
	if err := os.WriteFile(local, append(slices.Clone(body), '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
	inspected := func(name string) (in struct {
		Files  int   `json:"files"`
		Hidden int64 `json:"rows_hidden"`
		seal.Inspection
	}) {
		t.Helper()
		if err := json.Unmarshal([]byte(says(t, "inspect", name, "-o", "json")), &in); err != nil {
			t.Fatal(err)
		}
		return in
	}
	remote := inspected("s3://" + stagingBucket + "/" + key)
	if remote.Rows != int64(file.readings()) || len(remote.Pieces) != parts || remote.Files != parts || remote.Pieces[parts-1].Part == nil || remote.Hidden == 0 {
		t.Errorf("%d rows in %d pieces, %d hidden; want %d in %d", remote.Rows, len(remote.Pieces), remote.Hidden, file.readings(), parts)
	}
	if on := inspected(local); on.Files != parts || len(on.Pieces) != parts+1 || on.Pieces[parts].Kind != seal.KindDamage || on.Hidden != on.Rows {
		t.Errorf("with a newline behind: %d files, %d pieces, %d of %d rows hidden", on.Files, len(on.Pieces), on.Hidden, on.Rows)
	}
	text := says(t, "inspect", local)
	for _, want := range []string{"Files in it", "run-sensor_readings/", "sensor_readings/dt=", "taken_at", "TIMESTAMP", "ZSTD", "row group", "cannot be read", "damage", "2016-"} {
		if !strings.Contains(text, want) {
			t.Errorf("for people it lacks %q:\n%s", want, text)
		}
	}

	// Every reader reads what is rescued, and finds each row once.
	var r rescueReport
	to := filepath.Join(t.TempDir(), "good")
	for _, again := range []bool{false, true} {
		if err := json.Unmarshal([]byte(says(t, "rescue", "s3://"+stagingBucket+"/joined/", "--to", to, "-o", "json")), &r); err != nil {
			t.Fatal(err)
		}
		if r.Objects != 1 || r.Joined != 1 || r.Files != parts || r.Rows != int64(file.readings()) || r.Hidden != remote.Hidden || r.Written+r.Present != parts || again != (r.Written == 0) {
			t.Errorf("again %v: %+v", again, r)
		}
	}
	rows := 0
	files, err := lakeFiles(to)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		rows += len(arrowRows(t, f, []string{"device_id"}))
	}
	if len(files) != parts || rows != file.readings() {
		t.Errorf("%d files with %d rows are rescued, want %d with %d", len(files), rows, parts, file.readings())
	}
	if now, err := os.ReadFile(filepath.Join(d.dir, "s3", stagingBucket, filepath.FromSlash(key))); err != nil || !bytes.Equal(now, body) {
		t.Errorf("the joined object was changed: %v", err)
	}

	// Into a bucket, and only what is not whole.
	text = says(t, "rescue", to, "--to", "s3://"+lakeBucket+"/good/", "--only-joined")
	if !strings.Contains(text, "one whole Parquet file") || len(objectsBelow(t, d.dir+"/s3/"+lakeBucket)) > 0 {
		t.Errorf("whole objects were written:\n%s", text)
	}
	text = says(t, "rescue", filepath.Dir(local), "--to", "s3://"+lakeBucket+"/good/")
	if n := len(objectsBelow(t, d.dir+"/s3/"+lakeBucket)); n != parts || !strings.Contains(text, "fails: ") {
		t.Errorf("%d objects are rescued into the bucket, want %d:\n%s", n, parts, text)
	}
}

func TestWhatIsLeftOfACutOffFileIsNamedAndTextIsOnlyCounted(t *testing.T) {
	d := openDoor(t)
	_, _, parts := d.joinedObject(roomClimate(t, 100))
	if parts < 2 {
		t.Fatalf("%d parts", parts)
	}
	folder, good := t.TempDir(), filepath.Join(t.TempDir(), "good")
	says(t, "rescue", "s3://"+stagingBucket+"/joined/", "--to", good)
	whole, err := os.ReadFile(objectsBelow(t, good)[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string][]byte{"a.parquet": whole, "cut.parquet": whole[:len(whole)/2], "tail.parquet": whole[len(whole)/2:], "text.csv": []byte("a,b\n1,2\n")} {
		if err := os.WriteFile(filepath.Join(folder, name), body, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var r rescueReport
	if err := json.Unmarshal([]byte(says(t, "rescue", folder, "-o", "json")), &r); err != nil {
		t.Fatal(err)
	}
	if r.Objects != 4 || r.Whole != 1 || r.Torn != 2 || r.Other != 1 || r.Files != 1 || r.Damaged != 2 || r.DamagedBytes != int64(len(whole)) || len(r.Found) != 2 {
		t.Errorf("it says %+v", r)
	}
	text := says(t, "rescue", folder)
	for _, w := range []string{"cut.parquet", "tail.parquet", "fails: "} {
		if !strings.Contains(text, w) {
			t.Errorf("for people it lacks %q:\n%s", w, text)
		}
	}
	if strings.Contains(text, "text.csv") {
		t.Errorf("it names what was never a Parquet file:\n%s", text)
	}
	if text := says(t, "inspect", filepath.Join(folder, "cut.parquet")); !strings.Contains(text, "damage") {
		t.Errorf("inspect says\n%s", text)
	}
}

func TestInspectAndRescueRefuseInOneLine(t *testing.T) {
	openDoor(t)
	folder := t.TempDir()
	foreign := writeLines(t, "device_id,celsius", "a,1")
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"inspect"}, exitUsage, "takes one object"},
		{[]string{"inspect", filepath.Join(folder, "none")}, exitUsage, "no such file"},
		{[]string{"inspect", foreign}, exitUsage, "no Parquet file, and holds none"},
		{[]string{"inspect", folder}, exitUsage, "not a regular file"},
		{[]string{"inspect", "s3://" + lakeBucket}, exitUsage, "names no object"},
		{[]string{"inspect", "s3://" + lakeBucket + "/none"}, exitUsage, "no such object"},
		{[]string{"inspect", "s3://nowhere/none"}, exitPerson, "s3://nowhere/"},
		{[]string{"rescue"}, exitUsage, "takes one prefix"},
		{[]string{"rescue", folder, "--to", filepath.Join(folder, "good")}, exitUsage, "overlap"},
		{[]string{"rescue", folder, "--only-joined"}, exitUsage, "--to"},
		{[]string{"rescue", "s3://" + lakeBucket + "/a/", "--to", "s3://" + lakeBucket + "/a/good/"}, exitUsage, "overlap"},
		{[]string{"rescue", "s3:///a/"}, exitUsage, "s3://bucket/prefix/"},
		{[]string{"rescue", filepath.Join(folder, "none")}, exitUsage, "no such folder"},
	} {
		code, stdout, stderr := streamer(t, tt.args...)
		if code != tt.code || stdout != "" || !strings.Contains(stderr, tt.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: exit code %d, stdout %q, stderr %q", tt.args, code, stdout, stderr)
		}
	}
	var r rescueReport
	if err := json.Unmarshal([]byte(says(t, "rescue", folder, "-o", "json")), &r); err != nil || r.Objects != 0 || r.Found == nil {
		t.Errorf("an empty folder: %+v, %v", r, err)
	}
}
