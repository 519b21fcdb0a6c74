package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/lake"
	"telemetrylake/pipeline/seal"
)

// An objectStore is where inspect and rescue find objects, and where rescue puts files.
type objectStore interface {
	seal.Source
	seal.Target
}

// openStore opens s3://bucket/prefix/ or a folder of this machine.
func openStore(ctx context.Context, where string) (objectStore, error) {
	if !strings.HasPrefix(where, "s3://") {
		return folder(where), nil
	}
	at, err := prefixOf(where)
	if err != nil {
		return nil, err
	}
	c, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	return lake.NewBucket(c.s3, at.Bucket, at.Prefix), nil
}

// prefixOf reads s3://bucket/prefix/.
func prefixOf(where string) (location, error) {
	at, err := parseLocation("", where)
	if err != nil {
		err = usagef("%q is not of the form s3://bucket/prefix/", where)
	}
	return at, err
}

// openObject opens the place of one object, s3://bucket/key or a file, and names it there.
func openObject(ctx context.Context, name string) (objectStore, pipeline.Object, error) {
	var none pipeline.Object
	rest, remote := strings.CutPrefix(name, "s3://")
	if !remote {
		info, err := os.Stat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, none, usagef("%s: there is no such file", name)
		case err != nil:
			return nil, none, err
		case !info.Mode().IsRegular():
			return nil, none, usagef("%s is not a regular file", name)
		}
		return folder(filepath.Dir(name)), pipeline.Object{Key: filepath.Base(name)}, nil
	}
	bucket, key, _ := strings.Cut(rest, "/")
	if bucket == "" || key == "" || strings.HasSuffix(key, "/") {
		return nil, none, usagef("%q names no object; write s3://bucket/key, or the path of a file", name)
	}
	store, err := openStore(ctx, "s3://"+bucket)
	return store, pipeline.Object{Key: key}, err
}

// A folder holds objects as files. Keys are relative to it, with slashes.
type folder string

// List yields every file, in order of keys.
func (d folder) List(ctx context.Context) iter.Seq2[pipeline.Object, error] {
	return func(yield func(pipeline.Object, error) bool) {
		err := filepath.WalkDir(string(d), func(name string, e fs.DirEntry, err error) error {
			if err == nil {
				err = ctx.Err()
			}
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			info, err := e.Info()
			if err != nil {
				return err
			}
			key, err := filepath.Rel(string(d), name)
			if err != nil {
				return err
			}
			if !yield(pipeline.Object{Key: filepath.ToSlash(key), Size: info.Size()}, nil) {
				return filepath.SkipAll
			}
			return nil
		})
		if err != nil {
			yield(pipeline.Object{}, fmt.Errorf("list %s: %w", d, err))
		}
	}
}

// View calls f with the file's bytes. It fails with pipeline.ErrNotFound if it is gone.
func (d folder) View(_ context.Context, o pipeline.Object, f func(*io.SectionReader) error) error {
	file, err := os.Open(d.path(o.Key))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read %s: %w", d.path(o.Key), pipeline.ErrNotFound)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	return f(io.NewSectionReader(file, 0, info.Size()))
}

// CreateFrom makes a file that does not exist yet, all of it at once. It fails with
// pipeline.ErrExists if it does.
func (d folder) CreateFrom(_ context.Context, key string, body *io.SectionReader) (err error) {
	name := d.path(key)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(name), ".rescue-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(file.Name())) }()
	_, err = io.Copy(file, io.NewSectionReader(body, 0, body.Size()))
	if err = errors.Join(err, file.Chmod(0o644), file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	// A link, unlike a rename, never replaces.
	if err := os.Link(file.Name(), name); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create %s: %w", name, pipeline.ErrExists)
	} else if err != nil {
		return err
	}
	return nil
}

func (d folder) path(key string) string { return filepath.Join(string(d), filepath.FromSlash(key)) }
