// Package seal turns staging objects into lake objects: it finds the parts that Firehose
// joined, claims them in the ledger, merges what it holds and publishes it. Its one rule: the
// object that was created has the last word on what is published under its name.
package seal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"slices"

	"telemetrylake/pipeline"
	"telemetrylake/schemas"
)

// A Store holds objects that are created once and never replaced.
type Store interface {
	List(ctx context.Context) iter.Seq2[pipeline.Object, error]
	// View calls f with the object's bytes and returns its error; an o.Size of 0 is not known yet.
	// Reads fail with pipeline.ErrNotFound if the object of o.ETag is gone. What is read is not held
	// in memory beyond some bound, and not valid after f.
	View(ctx context.Context, o pipeline.Object, f func(*io.SectionReader) error) error
	// CreateFrom fails with pipeline.ErrExists if there is an object of this name.
	CreateFrom(ctx context.Context, key string, body *io.SectionReader) error
	Remove(ctx context.Context, o pipeline.Object) error
}

// A Merger writes sorted parts of one table, partition and schema as one file with large row
// groups, in the order of the named columns. An error that has BadPart() int says which part is to
// blame.
type Merger interface {
	// Empty writes a file of the table without any row.
	Empty(w io.Writer, t schemas.Table, meta map[string]string) error
	Merge(ctx context.Context, w io.Writer, parts []*io.SectionReader, order []string, meta map[string]string) error
}

// A Folder ends windows whose parts are all in the lake, and halts lanes.
type Folder interface {
	Fold(ctx context.Context, lane pipeline.LaneID) error
	Halt(ctx context.Context, lane pipeline.LaneID, why string) error
}

// Claims is what TakeOver needs of the ledger besides.
type Claims interface {
	// Claims returns the claims of a window's parts, also those that are void or published.
	Claims(ctx context.Context, w pipeline.WindowID) ([]pipeline.Claim, error)
	Contract(ctx context.Context, hash string) (*schemas.Contract, error)
}

// A Spool holds what was made until it is verified and stored. It is written first, then read.
type Spool interface {
	io.Writer
	io.ReaderAt
	io.Closer
}

// Stages are what a Sealer works with.
type Stages struct {
	Staging Store
	Lake    Store // keys begin with table/partition/
	// LakeName is how manifests name the lake whose parts are objects at once; "": no such window is
	// looked after.
	LakeName string
	Damaged  Store // bytes of staging objects that are no Parquet file; outside every table
	Ledger   pipeline.Ledger
	Folder   Folder
	Merger   Merger
	Claims   Claims                // nil: TakeOver fails
	Spool    func() (Spool, error) // nil: in memory, however much it is
	Log      *slog.Logger          // nil: none
}

// SoftMemory is the soft memory limit, in bytes, of a process that only seals: what is live in it is
// less, and garbage beyond it is no use. With it such a process holds no more than 512 MiB.
const SoftMemory = 352 << 20

// A Sealer seals staging objects. Any number may work on the same staging at once.
type Sealer struct {
	Stages
}

// New returns a Sealer.
func New(s Stages) *Sealer {
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	if s.Spool == nil {
		s.Spool = func() (Spool, error) { return &inMemory{}, nil }
	}
	return &Sealer{s}
}

// A Report counts what was done with staging objects.
type Report struct {
	Objects    int // staging objects read
	Removed    int // of these, removed
	Parts      int // parts found in them
	Published  int // parts that this run marked published
	Duplicates int // parts dropped because another copy is in the lake
	Void       int // parts dropped because their window was given up
	Waiting    int // parts whose other copy is claimed and not yet published; they stay
	TakenOver  int // parts whose claimed copy was gone, and of which this run published or claimed another
	Created    int // lake objects
	Rows       int // rows in them
	Damaged    int // runs of bytes put aside
	Kept       map[Keep]int
}

// Keep says why a part stays in staging: it is counted and alarmed, never published, never removed.
type Keep string

// Reasons to keep a part in staging.
const (
	Newer    Keep = "newer"    // written by a newer version
	Foreign  Keep = "foreign"  // a Parquet file that is not ours
	Unknown  Keep = "unknown"  // of an unknown lane or a window never begun
	Mismatch Keep = "mismatch" // differs from its window's manifest; its lane is halted
	Broken   Keep = "broken"   // readable, but its rows are not sorted, not of its partition, or no merge takes it
)

func (r *Report) keep(k Keep) {
	if r.Kept == nil {
		r.Kept = map[Keep]int{}
	}
	r.Kept[k]++
}

// Add adds s to r.
func (r *Report) Add(s Report) {
	r.Objects += s.Objects
	r.Removed += s.Removed
	r.Parts += s.Parts
	r.Published += s.Published
	r.Duplicates += s.Duplicates
	r.Void += s.Void
	r.Waiting += s.Waiting
	r.TakenOver += s.TakenOver
	r.Created += s.Created
	r.Rows += s.Rows
	r.Damaged += s.Damaged
	for k, n := range s.Kept {
		for range n {
			r.keep(k)
		}
	}
}

// Sweep seals every object in staging and folds the windows it touched. An object that fails
// does not stop the others.
func (s *Sealer) Sweep(ctx context.Context) (Report, error) {
	var total Report
	var errs []error
	lanes := map[pipeline.LaneID]bool{}
	for o, err := range s.Staging.List(ctx) {
		if err != nil {
			errs = append(errs, fmt.Errorf("list staging: %w", err))
			break
		}
		r, err := s.object(ctx, o, lanes)
		total.Add(r)
		if err != nil {
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	for _, l := range slices.Sorted(maps.Keys(lanes)) {
		if err := s.Folder.Fold(ctx, l); err != nil {
			errs = append(errs, err)
		}
	}
	return total, errors.Join(errs...)
}

// Object seals one staging object.
func (s *Sealer) Object(ctx context.Context, o pipeline.Object) (Report, error) {
	lanes := map[pipeline.LaneID]bool{}
	r, err := s.object(ctx, o, lanes)
	for _, l := range slices.Sorted(maps.Keys(lanes)) {
		err = errors.Join(err, s.Folder.Fold(ctx, l))
	}
	return r, err
}

func (s *Sealer) object(ctx context.Context, o pipeline.Object, lanes map[pipeline.LaneID]bool) (Report, error) {
	w := &work{Sealer: s, object: o}
	err := w.run(ctx)
	for _, p := range w.parts {
		lanes[p.meta.Window.Lane] = true
	}
	if err != nil {
		return w.report, fmt.Errorf("seal %s: %w", o.Key, err)
	}
	return w.report, nil
}
