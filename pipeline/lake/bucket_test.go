package lake

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
	"telemetrylake/testenv"
)

func newBucket(t testing.TB, prefix string) *Bucket {
	t.Helper()
	_, cfg := newService(t, testenv.FirehoseBehaviour{})
	return NewBucket(s3Client(cfg), bucketName, prefix)
}

func read(t testing.TB, b *Bucket, o pipeline.Object) (string, error) {
	t.Helper()
	r, err := b.Read(t.Context(), o)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(body)) != r.Size() {
		t.Errorf("size is %d, %d bytes come", r.Size(), len(body))
	}
	return string(body), nil
}

func TestBucketCreatesOnceAndNeverReplaces(t *testing.T) {
	b := newBucket(t, "a")
	if err := b.Create(t.Context(), "x/1", []byte("first")); err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"second", "first"} {
		if err := b.Create(t.Context(), "x/1", []byte(body)); !errors.Is(err, pipeline.ErrExists) {
			t.Errorf("create again: %v", err)
		}
	}
	if got, err := read(t, b, pipeline.Object{Key: "x/1"}); err != nil || got != "first" {
		t.Errorf("read %q, %v", got, err)
	}
	if err := b.Create(t.Context(), "empty", nil); err != nil {
		t.Fatal(err)
	}
	if got, err := read(t, b, pipeline.Object{Key: "empty"}); err != nil || got != "" {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestBucketListsAllPagesOfItsPrefixInOrder(t *testing.T) {
	b := newBucket(t, "a")
	other := NewBucket(b.client, bucketName, "a-other")
	if err := other.Create(t.Context(), "not mine", []byte("x")); err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range 1050 {
		key := fmt.Sprintf("dt=2026-11-30/%05d é+&.parquet", (i*11)%1050)
		want = append(want, key)
		if err := b.Create(t.Context(), key, []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(want)
	got := list(t, b)
	if len(got) != len(want) {
		t.Fatalf("%d objects of %d", len(got), len(want))
	}
	for i, o := range got {
		if o.Key != want[i] || o.Size != int64(len(want[i])) || o.ETag == "" || strings.Contains(o.ETag, `"`) {
			t.Fatalf("object %d is %+v, want %s of %d bytes", i, o, want[i], len(want[i]))
		}
	}
	if body, err := read(t, b, got[1040]); err != nil || body != want[1040] {
		t.Errorf("read %q, %v", body, err)
	}
	n := 0
	for range b.List(t.Context()) { // who stops early is let go
		if n++; n == 3 {
			break
		}
	}
}

func TestBucketReadsOnlyTheObjectThatWasListed(t *testing.T) {
	b := newBucket(t, "")
	if err := b.Create(t.Context(), "k", []byte("one")); err != nil {
		t.Fatal(err)
	}
	o := list(t, b)[0]
	if got, err := read(t, b, o); err != nil || got != "one" {
		t.Errorf("read %q, %v", got, err)
	}
	// Somebody else puts another object in its place.
	_, err := b.client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String(bucketName), Key: aws.String("k"), Body: strings.NewReader("two")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := read(t, b, o); !errors.Is(err, pipeline.ErrNotFound) {
		t.Errorf("read of an object that changed: %v", err)
	}
	if got, err := read(t, b, pipeline.Object{Key: "k"}); err != nil || got != "two" {
		t.Errorf("read of any: %q, %v", got, err)
	}
	for range 2 { // what is gone is gone
		if err := b.Remove(t.Context(), o); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	for _, o := range []pipeline.Object{o, {Key: "k"}, {Key: "never"}} {
		if _, err := read(t, b, o); !errors.Is(err, pipeline.ErrNotFound) {
			t.Errorf("read of %q: %v", o.Key, err)
		}
	}
}

// A bucket that is not there is no empty bucket, and no object that is gone.
func TestBucketThatDoesNotExistIsAnError(t *testing.T) {
	b := newBucket(t, "")
	none := NewBucket(b.client, "no-such-bucket", "p")
	for _, err := range none.List(t.Context()) {
		if err == nil {
			t.Error("it lists")
		}
	}
	if _, err := read(t, none, pipeline.Object{Key: "k"}); err == nil || errors.Is(err, pipeline.ErrNotFound) {
		t.Errorf("read: %v", err)
	}
	if err := none.Create(t.Context(), "k", nil); err == nil || errors.Is(err, pipeline.ErrExists) {
		t.Errorf("create: %v", err)
	}
	if err := none.Check(t.Context()); err == nil {
		t.Error("check finds nothing wrong")
	}
	if err := b.Check(t.Context()); err != nil {
		t.Errorf("check: %v", err)
	}
	if got := none.String(); got != "s3://no-such-bucket/p/" {
		t.Errorf("its name is %s", got)
	}
}

// A create whose answer is lost says that the object exists: it may be our own.
func TestBucketCreateAfterALostAnswerSaysExists(t *testing.T) {
	_, cfg := newService(t, testenv.FirehoseBehaviour{})
	cfg.HTTPClient = &lossy{next: cfg.HTTPClient}
	b := NewBucket(s3Client(cfg), bucketName, "")
	if err := b.Create(t.Context(), "k", []byte("one")); !errors.Is(err, pipeline.ErrExists) {
		t.Errorf("create: %v", err)
	}
	if got, err := read(t, b, pipeline.Object{Key: "k"}); err != nil || got != "one" {
		t.Errorf("read %q, %v", got, err)
	}
}

// lossy answers the first request with a 500 after its effect.
type lossy struct {
	next aws.HTTPClient
	done bool
}

func (l *lossy) Do(r *http.Request) (*http.Response, error) {
	resp, err := l.next.Do(r)
	if l.done || err != nil {
		return resp, err
	}
	l.done = true
	resp.Body.Close()
	return response(r, http.StatusInternalServerError, ""), nil
}
