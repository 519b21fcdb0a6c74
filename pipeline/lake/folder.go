package lake

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"telemetrylake/pipeline"
)

// A Folder is a lake in a directory: what a Bucket is in S3. A file appears whole or not at all, and
// is never replaced: it is written elsewhere, synced, and linked under its name, which fails if that
// exists.
type Folder struct{ root string }

// unlinked is where files are while they are written. Readers skip what begins with a dot.
const unlinked = ".landing"

// leftAfter is how old a file in there is when nobody can be writing it any more.
const leftAfter = 24 * time.Hour

// NewFolder returns the objects below root, an absolute path.
func NewFolder(root string) *Folder { return &Folder{filepath.Clean(root)} }

// String returns dir:/path.
func (d *Folder) String() string { return "dir:" + filepath.ToSlash(d.root) }

// Check makes the folder if there is none, fails if nothing can be created in it, and removes what
// processes that died left half written.
func (d *Folder) Check(ctx context.Context) error {
	at := filepath.Join(d.root, unlinked)
	if err := os.MkdirAll(at, 0o777); err != nil {
		return fmt.Errorf("check %s: %w", d, err)
	}
	left, err := os.ReadDir(at)
	if err != nil {
		return fmt.Errorf("check %s: %w", d, err)
	}
	for _, e := range left {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > leftAfter {
			_ = os.Remove(filepath.Join(at, e.Name())) // the next start tries again
		}
	}
	f, err := os.CreateTemp(at, "check-*")
	if err != nil {
		return fmt.Errorf("check %s: %w", d, err)
	}
	other := f.Name() + "-linked"
	defer os.Remove(f.Name())
	defer os.Remove(other)
	return errors.Join(f.Close(), d.link(f.Name(), other))
}

// link gives a file that is written another name, if nothing has that.
func (d *Folder) link(from, to string) error {
	err := os.Link(from, to)
	switch {
	case errors.Is(err, fs.ErrExist):
		return pipeline.ErrExists
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, syscall.EPERM):
		return pipeline.NeedPerson(fmt.Errorf("link a file in %s: %w", d, err), "use a folder on a file system that has hard links: without them nothing keeps two processes from replacing each other's files")
	}
	return err
}

// path is where an object of that name is.
func (d *Folder) path(name string) (string, error) {
	if !filepath.IsLocal(filepath.FromSlash(name)) || path.Clean(name) != name {
		return "", fmt.Errorf("%q is no name of an object in %s", name, d)
	}
	return filepath.Join(d.root, filepath.FromSlash(name)), nil
}

// Create writes an object that does not exist yet. It fails with pipeline.ErrExists if it does.
// When it returns nil the file, its name and the folders above it are on disk.
func (d *Folder) Create(ctx context.Context, name string, body []byte) error {
	return d.CreateFrom(ctx, name, io.NewSectionReader(bytes.NewReader(body), 0, int64(len(body))))
}

// CreateFrom is Create with a body that need not be in memory.
func (d *Folder) CreateFrom(ctx context.Context, name string, body *io.SectionReader) error {
	if err := d.create(ctx, name, body); err != nil {
		return fmt.Errorf("create %s/%s: %w", d, name, err)
	}
	return nil
}

func (d *Folder) create(ctx context.Context, name string, body *io.SectionReader) error {
	to, err := d.path(name)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := os.Lstat(to); err == nil {
		// Who created it may have died before it was synced, and Land says durable.
		return cmp.Or(d.syncAbove(to), pipeline.ErrExists)
	}
	if err := os.MkdirAll(filepath.Join(d.root, unlinked), 0o777); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Join(d.root, unlinked), "*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = io.Copy(f, io.NewSectionReader(body, 0, body.Size()))
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
		return err
	}
	err = d.link(f.Name(), to)
	if err != nil && !errors.Is(err, pipeline.ErrExists) {
		return err
	}
	return cmp.Or(d.syncAbove(to), err)
}

// syncAbove has the folders above a file on disk, up to the root.
func (d *Folder) syncAbove(file string) error {
	for at := filepath.Dir(file); ; at = filepath.Dir(at) {
		f, err := os.Open(at)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
		if len(at) <= len(d.root) {
			return nil
		}
	}
}

// Remove deletes an object. One that is gone already is no error.
func (d *Folder) Remove(_ context.Context, o pipeline.Object) error {
	at, err := d.path(o.Key)
	if err != nil {
		return err
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s/%s: %w", d, o.Key, err)
	}
	return nil
}

// List yields every object, in order of names.
func (d *Folder) List(ctx context.Context) iter.Seq2[pipeline.Object, error] {
	return func(yield func(pipeline.Object, error) bool) {
		found, err := d.below(ctx, "")
		if err != nil {
			yield(pipeline.Object{}, err)
			return
		}
		for _, o := range found {
			if !yield(o.Object, nil) {
				return
			}
		}
	}
}

// below returns the objects whose names begin with a prefix, in order.
func (d *Folder) below(ctx context.Context, prefix string) ([]Dated, error) {
	var found []Dated
	begin := filepath.Join(d.root, filepath.FromSlash(path.Dir(prefix+"x"))) // a whole folder
	err := filepath.WalkDir(begin, func(at string, e fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // the folder, or a file that went meanwhile
			}
			return err
		}
		rel, err := filepath.Rel(d.root, at)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		if e.IsDir() {
			if e.Name() == unlinked {
				return fs.SkipDir
			}
			return ctx.Err()
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) || err == nil && (!info.Mode().IsRegular() || !strings.HasPrefix(name, prefix)) {
			return nil
		}
		if err != nil {
			return err
		}
		found = append(found, Dated{pipeline.Object{Key: name, Size: info.Size()}, info.ModTime()})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list %s/%s: %w", d, prefix, err)
	}
	slices.SortFunc(found, func(a, b Dated) int { return cmp.Compare(a.Key, b.Key) })
	return found, nil
}

// Newest returns the objects below some prefixes that were created last, newest first, at most that
// many.
func (d *Folder) Newest(ctx context.Context, prefixes []string, most int) ([]pipeline.Object, error) {
	var found []Dated
	for _, p := range prefixes {
		more, err := d.below(ctx, p)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return newest(found, most), nil
}

// Folders returns the names that follow a prefix up to their first slash, in order.
func (d *Folder) Folders(_ context.Context, prefix string) ([]string, error) {
	dir, begin := path.Split(prefix)
	entries, err := os.ReadDir(filepath.Join(d.root, filepath.FromSlash(dir)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list folders of %s/%s: %w", d, prefix, err)
	}
	var names []string
	for _, e := range entries {
		if rest, ok := strings.CutPrefix(e.Name(), begin); ok && e.IsDir() && e.Name() != unlinked {
			names = append(names, rest+"/")
		}
	}
	return names, nil
}

// Tail returns the last n bytes of an object, or all of one that is shorter. It fails with
// pipeline.ErrNotFound if it is gone.
func (d *Folder) Tail(ctx context.Context, o pipeline.Object, n int64) ([]byte, error) {
	var end []byte
	err := d.View(ctx, o, func(r *io.SectionReader) error {
		n := min(n, r.Size())
		end = make([]byte, n)
		_, err := io.ReadFull(io.NewSectionReader(r, r.Size()-n, n), end)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the end: %w", err)
	}
	return end, nil
}

// View calls f with the object's bytes and returns f's error. It fails with pipeline.ErrNotFound if
// the object is gone.
func (d *Folder) View(_ context.Context, o pipeline.Object, f func(*io.SectionReader) error) error {
	at, err := d.path(o.Key)
	if err != nil {
		return err
	}
	file, err := os.Open(at)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read %s/%s: %w", d, o.Key, pipeline.ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("read %s/%s: %w", d, o.Key, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("read %s/%s: %w", d, o.Key, err)
	}
	return f(io.NewSectionReader(file, 0, info.Size()))
}
