package lake

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"telemetrylake/pipeline"
)

func newFolder(t *testing.T) *Folder {
	t.Helper()
	d := NewFolder(filepath.Join(t.TempDir(), "lake"))
	if err := d.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d
}

func body(t *testing.T, d *Folder, name string) (got string, err error) {
	t.Helper()
	err = d.View(t.Context(), pipeline.Object{Key: name}, func(r *io.SectionReader) error {
		b, err := io.ReadAll(r)
		got = string(b)
		return err
	})
	return got, err
}

func TestAFolderCreatesOnceAndNeverReplaces(t *testing.T) {
	d := newFolder(t)
	const name = "t/dt=1/x.parquet"
	won := make([]error, 8)
	var wg sync.WaitGroup
	for i := range won {
		wg.Go(func() { won[i] = d.Create(t.Context(), name, bytes.Repeat([]byte{byte('a' + i)}, 100_000)) })
	}
	wg.Wait()
	first := slices.Index(won, nil)
	for i, err := range won {
		if i != first && !errors.Is(err, pipeline.ErrExists) {
			t.Errorf("create %d: %v", i, err)
		}
	}
	got, err := body(t, d, name)
	if err != nil || got != strings.Repeat(string(rune('a'+first)), 100_000) {
		t.Errorf("it holds %.9q…, %v; %d won", got, err, first)
	}
	if err := d.Create(t.Context(), "t/empty", nil); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(filepath.Join(d.root, unlinked))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestAFolderListsWhatIsThere(t *testing.T) {
	d := newFolder(t)
	for _, name := range []string{"t/dt=2/b", "t/dt=1/c", "t/dt=1/a", "u/dt=1/a", "t.x", "tt/dt=9/z"} {
		if err := d.Create(t.Context(), name, []byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(d.root, unlinked, "half"), []byte("half"), 0o666); err != nil {
		t.Fatal(err)
	}
	var names []string
	for o, err := range d.List(t.Context()) {
		if err != nil || o.Size != int64(len(o.Key)) {
			t.Errorf("%+v, %v", o, err)
		}
		names = append(names, o.Key)
	}
	if want := "t.x t/dt=1/a t/dt=1/c t/dt=2/b tt/dt=9/z u/dt=1/a"; strings.Join(names, " ") != want {
		t.Errorf("listed %v, want %s", names, want)
	}
	if days, err := d.Folders(t.Context(), "t/"); err != nil || !slices.Equal(days, []string{"dt=1/", "dt=2/"}) {
		t.Errorf("folders %v, %v", days, err)
	}
	if none, err := d.Folders(t.Context(), "none/"); err != nil || len(none) != 0 {
		t.Errorf("folders of none %v, %v", none, err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(d.root, "t", "dt=1", "c"), old, old); err != nil {
		t.Fatal(err)
	}
	found, err := d.Newest(t.Context(), []string{"t/dt=1/", "none/"}, 1)
	if err != nil || len(found) != 1 || found[0].Key != "t/dt=1/a" {
		t.Errorf("newest %+v, %v", found, err)
	}
	if all, err := d.Newest(t.Context(), []string{"t/"}, 99); err != nil || len(all) != 3 || all[2].Key != "t/dt=1/c" {
		t.Errorf("newest of all %+v, %v", all, err)
	}
	for n, want := range map[int64]string{2: "/a", 99: "t/dt=1/a"} {
		if end, err := d.Tail(t.Context(), pipeline.Object{Key: "t/dt=1/a"}, n); err != nil || string(end) != want {
			t.Errorf("last %d: %q, %v", n, end, err)
		}
	}
	for range 2 {
		if err := d.Remove(t.Context(), pipeline.Object{Key: "t/dt=1/a"}); err != nil {
			t.Error(err)
		}
	}
	if _, err := d.Tail(t.Context(), pipeline.Object{Key: "t/dt=1/a"}, 2); !errors.Is(err, pipeline.ErrNotFound) {
		t.Errorf("end of what is gone: %v", err)
	}
}

func TestAFolderStaysInside(t *testing.T) {
	d := newFolder(t)
	for _, name := range []string{"", "../x", "a/../../x", "/x", "a//b", "a/./b"} {
		if err := d.Create(t.Context(), name, nil); err == nil {
			t.Errorf("it created %q", name)
		}
		if _, err := body(t, d, name); err == nil {
			t.Errorf("it read %q", name)
		}
	}
}

func TestAFoldersCheckRemovesWhatWasLeftLongAgo(t *testing.T) {
	d := newFolder(t)
	at := filepath.Join(d.root, unlinked)
	for i, age := range []time.Duration{0, 23 * time.Hour, 25 * time.Hour} {
		name, when := filepath.Join(at, fmt.Sprint(i)), time.Now().Add(-age)
		if err := errors.Join(os.WriteFile(name, nil, 0o666), os.Chtimes(name, when, when)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(at)
	if err != nil || len(left) != 2 {
		t.Errorf("left %v, %v; want the two that may be in use", left, err)
	}
	if d := NewFolder(filepath.Join(at, "0", "under a file")); d.Check(t.Context()) == nil {
		t.Error("a folder that cannot be passes")
	}
}
