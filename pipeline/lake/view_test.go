package lake

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"telemetrylake/pipeline"
	"telemetrylake/testenv"
)

// viewed is a bucket whose GETs are counted.
func viewed(t *testing.T) (*Bucket, *atomic.Int64) {
	t.Helper()
	_, cfg := newService(t, testenv.FirehoseBehaviour{})
	n := new(atomic.Int64)
	next := cfg.HTTPClient
	cfg.HTTPClient = counted(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodGet && !r.URL.Query().Has("list-type") {
			n.Add(1)
		}
		return next.Do(r)
	})
	b := NewBucket(s3Client(cfg), bucketName, "p")
	return b, n
}

type counted func(*http.Request) (*http.Response, error)

func (f counted) Do(r *http.Request) (*http.Response, error) { return f(r) }

func noise(n int) []byte {
	b := make([]byte, n)
	rng := rand.New(rand.NewPCG(uint64(n), 1))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// Whatever the object's size, and whether it is known: each range reads as it is, and no byte is
// fetched twice.
func TestViewReadsEveryRange(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	b, gets := viewed(t)
	for _, size := range []int{0, 1, tailSize - 1, tailSize, tailSize + 1, blockSize - 1, blockSize, blockSize + 1, 3*blockSize + 7} {
		body := noise(size)
		key := "o" + strings.Repeat("x", size%97)
		if err := b.CreateFrom(t.Context(), key, io.NewSectionReader(bytes.NewReader(body), 0, int64(size))); err != nil {
			t.Fatal(err)
		}
		etag := ""
		for o, err := range b.List(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if o.Key == key {
				etag = o.ETag
			}
		}
		for _, o := range []pipeline.Object{{Key: key}, {Key: key, ETag: etag, Size: int64(size)}, {Key: key, Size: int64(size)}} {
			gets.Store(0)
			err := b.View(t.Context(), o, func(r *io.SectionReader) error {
				if r.Size() != int64(size) {
					t.Fatalf("object of %d bytes has %d", size, r.Size())
				}
				rng := rand.New(rand.NewPCG(uint64(size), 2))
				for range 40 {
					from := rng.IntN(size + 1)
					to := from + rng.IntN(min(size-from, 100_000)+1)
					got := make([]byte, to-from)
					if n, err := r.ReadAt(got, int64(from)); n != len(got) || err != nil && !errors.Is(err, io.EOF) {
						t.Fatalf("[%d,%d) of %d: %d, %v", from, to, size, n, err)
					}
					if !bytes.Equal(got, body[from:to]) {
						t.Fatalf("[%d,%d) of %d differs", from, to, size)
					}
				}
				all, err := io.ReadAll(r)
				if err != nil || !bytes.Equal(all, body) {
					t.Fatalf("all of %d bytes: %d, %v", size, len(all), err)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if most := int64(1 + (size+blockSize-1)/blockSize); gets.Load() > most {
				t.Errorf("object of %d bytes: %d requests, want at most %d", size, gets.Load(), most)
			}
		}
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*")); len(left) != 0 {
		t.Errorf("files are left: %v", left)
	}
}

// A footer costs one small request, however large the object.
func TestViewOfAnUnknownSizeFetchesTheEndOnly(t *testing.T) {
	b, gets := viewed(t)
	body := noise(2*blockSize + 5)
	if err := b.Create(t.Context(), "o", body); err != nil {
		t.Fatal(err)
	}
	gets.Store(0)
	err := b.View(t.Context(), pipeline.Object{Key: "o"}, func(r *io.SectionReader) error {
		got := make([]byte, 1000)
		_, err := r.ReadAt(got, r.Size()-1000)
		if !bytes.Equal(got, body[len(body)-1000:]) {
			t.Error("the end differs")
		}
		return err
	})
	if err != nil || gets.Load() != 1 {
		t.Errorf("%d requests, %v", gets.Load(), err)
	}
}

// An object that goes, or becomes another, while it is looked at.
func TestViewOfAnObjectThatGoes(t *testing.T) {
	b, _ := viewed(t)
	body := noise(2*blockSize + 5)
	read := func(r *io.SectionReader, off int64) error {
		_, err := r.ReadAt(make([]byte, 10), off)
		return err
	}
	for name, o := range map[string]pipeline.Object{"known": {Key: "o", Size: int64(len(body))}, "unknown": {Key: "o"}} {
		for what, change := range map[string]func() error{
			"gone": func() error { return b.Remove(t.Context(), pipeline.Object{Key: "o"}) },
			"another": func() error {
				return errors.Join(b.Remove(t.Context(), pipeline.Object{Key: "o"}), b.Create(t.Context(), "o", noise(len(body)-1)))
			},
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				_ = b.Remove(t.Context(), pipeline.Object{Key: "o"})
				if err := b.Create(t.Context(), "o", body); err != nil {
					t.Fatal(err)
				}
				err := b.View(t.Context(), o, func(r *io.SectionReader) error {
					if err := read(r, 5); err != nil {
						return err
					}
					if err := change(); err != nil {
						t.Fatal(err)
					}
					if err := read(r, 100); err != nil {
						t.Errorf("of a block that is here: %v", err)
					}
					return read(r, blockSize+5)
				})
				if !errors.Is(err, pipeline.ErrNotFound) {
					t.Errorf("read after it: %v", err)
				}
			})
		}
	}
	_ = b.Remove(t.Context(), pipeline.Object{Key: "o"})
	for _, o := range []pipeline.Object{{Key: "o"}, {Key: "o", Size: 7}, {Key: "o", Size: 7, ETag: "e"}} {
		err := b.View(t.Context(), o, func(r *io.SectionReader) error { return read(r, 0) })
		if !errors.Is(err, pipeline.ErrNotFound) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestViewStopsWithItsContext(t *testing.T) {
	b, _ := viewed(t)
	if err := b.Create(t.Context(), "o", noise(100)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := b.View(ctx, pipeline.Object{Key: "o", Size: 100}, func(r *io.SectionReader) error {
		_, err := r.ReadAt(make([]byte, 1), 0)
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestSpoolHoldsWhatWasWritten(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for _, size := range []int{0, 1, blockSize, blockSize + 1, 2*blockSize + 3} {
		s := NewSpool()
		body := noise(size)
		for rest := body; len(rest) > 0; {
			n := min(len(rest), 777_777)
			if _, err := s.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		got, err := io.ReadAll(io.NewSectionReader(s, 0, int64(size)))
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%d bytes come back as %d, %v", size, len(got), err)
		}
		if n, err := s.ReadAt(make([]byte, 4), int64(size)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("after the end of %d: %d, %v", size, n, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*")); len(left) != 0 {
		t.Errorf("files are left: %v", left)
	}
}
