package lake

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"telemetrylake/testenv"
)

func TestAStagerJoinsPartsInStagingOnce(t *testing.T) {
	b := newBucket(t, "staging")
	parts := someParts(1000, 2000, 3000)
	for range 2 { // the same again is the same object
		if err := NewStager(b).Land(t.Context(), parts); err != nil {
			t.Fatal(err)
		}
	}
	objects := list(t, b)
	if len(objects) != 1 || !strings.HasPrefix(objects[0].Key, "again/") {
		t.Fatalf("staging has %+v", objects)
	}
	got, err := read(t, b, objects[0])
	var want bytes.Buffer
	for _, p := range parts {
		want.Write(p.Body)
	}
	if err != nil || got != want.String() {
		t.Errorf("%d bytes, %v, want the parts one after the other, %d bytes", len(got), err, want.Len())
	}
	if err := NewStager(b).Land(t.Context(), parts[1:]); err != nil {
		t.Fatal(err)
	}
	if n := len(list(t, b)); n != 2 {
		t.Errorf("%d objects, want another of other parts", n)
	}
	if err := NewStager(b).Land(t.Context(), nil); err != nil {
		t.Errorf("of no parts: %v", err)
	}
}

func TestAStagerMakesNoObjectLargerThanFirehoseDoes(t *testing.T) {
	b := newBucket(t, "staging")
	if err := NewStager(b).Land(t.Context(), someParts(60<<20, 60<<20, 60<<20)); err != nil {
		t.Fatal(err)
	}
	objects := list(t, b)
	if len(objects) != 2 {
		t.Fatalf("staging has %+v", objects)
	}
	for _, o := range objects {
		if o.Size > maxStaged {
			t.Errorf("%s has %d bytes", o.Key, o.Size)
		}
	}
}

func TestObjectsAreListedWithTheirTimes(t *testing.T) {
	_, cfg := newService(t, testenv.FirehoseBehaviour{})
	b := NewBucket(s3Client(cfg), bucketName, "a")
	before := time.Now().Add(-2 * time.Second)
	for _, key := range []string{"x", "y"} {
		if err := b.Create(t.Context(), key, []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	var keys []string
	for o, err := range b.Dated(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if o.At.Before(before) || o.At.After(time.Now().Add(time.Second)) || o.Size != 1 || o.ETag == "" {
			t.Errorf("object %+v", o)
		}
		keys = append(keys, o.Key)
	}
	if strings.Join(keys, " ") != "x y" {
		t.Errorf("keys %v", keys)
	}
	for o, err := range NewBucket(s3Client(cfg), "no-such-bucket", "").Dated(t.Context()) {
		if err == nil {
			t.Errorf("of no bucket: %+v", o)
		}
	}
}
