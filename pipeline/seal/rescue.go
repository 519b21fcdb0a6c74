package seal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"telemetrylake/pipeline"
)

// A Source is where objects are that somebody wants to see into. Nothing in it is changed.
type Source interface {
	List(ctx context.Context) iter.Seq2[pipeline.Object, error]
	// View calls f with the object's bytes. It fails with pipeline.ErrNotFound if it is gone.
	View(ctx context.Context, o pipeline.Object, f func(*io.SectionReader) error) error
}

// A Target takes rescued files. What exists is not replaced.
type Target interface {
	// CreateFrom fails with pipeline.ErrExists if there is one.
	CreateFrom(ctx context.Context, key string, body *io.SectionReader) error
	View(ctx context.Context, o pipeline.Object, f func(*io.SectionReader) error) error
}

// A Rescuer looks for objects into which several Parquet files were joined, of whatever schema,
// and writes each good file as an object of its own elsewhere.
type Rescuer struct {
	From        Source
	To          Target // nil: only look
	OnlyJoined  bool   // objects that are one whole file are not written
	DropRepeats bool   // of files of one object that are the same byte for byte, one is written
	Unverified  bool   // files whose values cannot be decoded here are written too
}

// A Rescued says what was found in one object, and what was written of it.
type Rescued struct {
	Key     string `json:"key"`
	Bytes   int64  `json:"bytes"`
	Files   int    `json:"files"`
	Repeats int    `json:"repeats"` // of these, the same byte for byte as one before
	Rows    int64  `json:"rows"`    // in all files
	// Seen is what a reader shows that takes the object for one file, and Hidden what it does not:
	// all, if it fails with Problem.
	Seen    int64  `json:"rows_seen"`
	Hidden  int64  `json:"rows_hidden"`
	Problem string `json:"reader_problem,omitempty"`
	// Foreign says that nothing in it is a Parquet file or the remains of one.
	Foreign bool   `json:"-"`
	Damage  []Lost `json:"damage,omitempty"`
	// Written and Present are the keys of the files in the target, now and before.
	Written []string `json:"written,omitempty"`
	Present []string `json:"present,omitempty"`
}

// A Lost is a run of bytes that is no whole file, or one that could not be read to its end.
type Lost struct {
	Kind   Kind   `json:"kind"`
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
	Reason string `json:"reason"`
}

// Whole reports whether the object is one file and nothing else.
func (r *Rescued) Whole() bool { return r.Files == 1 && len(r.Damage) == 0 }

// Run looks at every object and calls each with what came of it. An object that cannot be read or
// written does not stop the others; all their errors are returned.
func (r *Rescuer) Run(ctx context.Context, each func(Rescued) error) error {
	var errs []error
	for o, err := range r.From.List(ctx) {
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		if o.Size == 0 || strings.HasSuffix(o.Key, "/") {
			continue // a folder's marker
		}
		out, err := r.object(ctx, o)
		if err != nil {
			if errs = append(errs, fmt.Errorf("rescue %s: %w", o.Key, err)); ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		if err := each(out); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	return errors.Join(errs...)
}

func (r *Rescuer) object(ctx context.Context, o pipeline.Object) (out Rescued, err error) {
	err = r.From.View(ctx, o, func(body *io.SectionReader) error {
		in, err := Inspect(body)
		if err != nil {
			return err
		}
		out = Rescued{
			Key: o.Key, Bytes: in.Bytes, Files: in.Files(), Rows: in.Rows,
			Seen: in.Plain.Rows, Hidden: in.Hidden(), Problem: in.Plain.Problem, Foreign: in.Foreign(),
		}
		return r.pieces(ctx, in, body, &out)
	})
	return out, err
}

// pieces writes the good files of one object.
func (r *Rescuer) pieces(ctx context.Context, in *Inspection, body *io.SectionReader, out *Rescued) error {
	for _, p := range in.Pieces {
		if !p.good() {
			out.Damage = append(out.Damage, Lost{p.Kind, p.Offset, p.Bytes, p.Problem})
		}
	}
	seen := map[[sha256.Size]byte]bool{}
	for i, p := range in.Pieces {
		if !p.good() && !(p.Kind == KindUnread && r.Unverified) {
			continue
		}
		file := io.NewSectionReader(body, p.Offset, p.Bytes)
		h := sha256.New()
		if _, err := io.Copy(h, file); err != nil {
			return err
		}
		sum := [sha256.Size]byte(h.Sum(nil))
		if seen[sum] {
			if p.good() {
				out.Repeats++
			}
			if r.DropRepeats {
				continue
			}
		}
		seen[sum] = true
		if r.To == nil || r.OnlyJoined && out.Whole() {
			continue
		}
		if err := r.write(ctx, nameOf(out, i), io.NewSectionReader(body, p.Offset, p.Bytes), out); err != nil {
			return err
		}
	}
	return nil
}

// nameOf is where piece i of an object goes: below the same folders, since these may be
// partitions. It is a function of the object alone, so that a rescue can be run again.
func nameOf(of *Rescued, i int) string {
	if of.Whole() {
		return of.Key
	}
	return fmt.Sprintf("%s.piece-%05d.parquet", of.Key, i)
}

func (r *Rescuer) write(ctx context.Context, key string, file *io.SectionReader, out *Rescued) error {
	err := r.To.CreateFrom(ctx, key, file)
	if err == nil {
		out.Written = append(out.Written, key)
		return nil
	}
	if !errors.Is(err, pipeline.ErrExists) {
		return err
	}
	err = r.To.View(ctx, pipeline.Object{Key: key}, func(there *io.SectionReader) error {
		same, err := equal(there, file)
		if err == nil && !same {
			err = pipeline.NeedPerson(fmt.Errorf("%s exists in the target and is another file", key), "name a target of which nothing else makes use")
		}
		return err
	})
	if err != nil {
		return err
	}
	out.Present = append(out.Present, key)
	return nil
}

func equal(a, b *io.SectionReader) (bool, error) {
	if a.Size() != b.Size() {
		return false, nil
	}
	x, y := make([]byte, 1<<20), make([]byte, 1<<20)
	for at := int64(0); at < a.Size(); at += int64(len(x)) {
		n := min(int64(len(x)), a.Size()-at)
		if _, err := a.ReadAt(x[:n], at); err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		if _, err := b.ReadAt(y[:n], at); err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		if !bytes.Equal(x[:n], y[:n]) {
			return false, nil
		}
	}
	return true, nil
}
