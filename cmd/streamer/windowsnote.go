package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/columnar"
	"telemetrylake/schemas"
)

// A noter writes down, once an hour, what the checkpoint table holds of windows and gaps: in the
// lake's tables of the pipeline itself, where queries find it and where it stays. The object of an
// hour is created once, by whoever comes first.
type noter struct {
	store      *checkpoint.Store
	lake       lakeStore
	checkpoint string            // table
	written    map[string]string // name of the last object known to be there, by table
}

func newNoter(store *checkpoint.Store, lake lakeStore, checkpoint string) *noter {
	return &noter{store: store, lake: lake, checkpoint: checkpoint, written: map[string]string{}}
}

// note writes the objects of this hour that are not there.
func (n *noter) note(ctx context.Context) error {
	var errs []error
	for _, t := range schemas.OwnTables() {
		if err := n.table(ctx, t); err != nil {
			errs = append(errs, fmt.Errorf("write table %s: %w", t.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (n *noter) table(ctx context.Context, t schemas.Table) error {
	asOf := n.store.ServerNow()
	name := n.name(t, asOf)
	if n.written[t.Name] == name {
		return nil
	}
	there, err := n.lake.Newest(ctx, []string{name}, 1)
	if err != nil {
		return err
	}
	if len(there) > 0 {
		n.written[t.Name] = name
		return nil
	}
	var rows [][]any
	switch t.Role {
	case schemas.Windows:
		rows, err = n.windows(ctx, asOf)
	case schemas.Gaps:
		rows, err = n.gaps(ctx, asOf)
	}
	if err != nil {
		return err
	}
	var body bytes.Buffer
	if err := columnar.NewEncoder(memory.DefaultAllocator).Values(&body, t, rows); err != nil {
		return err
	}
	if err := n.lake.Create(ctx, name, body.Bytes()); err != nil && !errors.Is(err, pipeline.ErrExists) {
		return err
	}
	n.written[t.Name] = name
	return nil
}

// name is one of each hour and checkpoint table, of which several may tell of one lake.
func (n *noter) name(t schemas.Table, at time.Time) string {
	sum := sha256.Sum256([]byte(n.checkpoint))
	return fmt.Sprintf("%s/%s/%s-%x.parquet", t.Name, t.Layout.Path(at), at.UTC().Format("hour-15"), sum[:8])
}

// windows are the rows of a moment. Each lane is read windows first: what is folded meanwhile is then
// in both readings, and not in none.
func (n *noter) windows(ctx context.Context, asOf time.Time) ([][]any, error) {
	lanes, err := n.store.Lanes(ctx)
	if err != nil {
		return nil, err
	}
	var rows [][]any
	for _, l := range lanes {
		st, err := n.store.Lane(ctx, l)
		if err != nil {
			return nil, err
		}
		lives, err := n.store.Lives(ctx, l)
		if err != nil {
			return nil, err
		}
		for _, life := range lives {
			held := map[int64]bool{}
			for _, w := range st.Windows {
				if w.ID.Incarnation == life.Incarnation {
					held[w.ID.N] = true
				}
			}
			for _, r := range passed(life, held) {
				rows = append(rows, n.row(asOf, life, r))
			}
		}
		for _, w := range st.Windows {
			rows = append(rows, n.windowRow(asOf, w))
		}
	}
	return rows, nil
}

// A run is windows in one state, of which nothing more is stored.
type run struct {
	first, last int64
	state       pipeline.WindowState
}

// passed are the runs up to a life's watermark, without the windows that are still held.
func passed(l pipeline.LaneLife, held map[int64]bool) []run {
	// Between these numbers the state is one.
	cuts := []int64{1, l.Watermark + 1}
	for _, runs := range []pipeline.Runs{l.Void, l.Unknown} {
		for _, r := range runs {
			cuts = append(cuts, r[0], r[1]+1)
		}
	}
	for n := range held {
		cuts = append(cuts, n, n+1)
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	var out []run
	for i, from := range cuts[:len(cuts)-1] {
		to := cuts[i+1] - 1
		if held[from] || from < 1 || to > l.Watermark {
			continue
		}
		state := pipeline.WindowFolded
		switch {
		case l.Void.Has(from):
			state = pipeline.WindowVoid
		case l.Unknown.Has(from):
			state = pipeline.WindowUnknown
		}
		if k := len(out) - 1; k >= 0 && out[k].last == from-1 && out[k].state == state {
			out[k].last = to
			continue
		}
		out = append(out, run{from, to, state})
	}
	return out
}

func (n *noter) row(asOf time.Time, l pipeline.LaneLife, r run) []any {
	row := []any{asOf, n.checkpoint, string(l.Lane), l.Incarnation, nil, r.first, r.last, string(r.state)}
	return append(row, make([]any, 11)...)
}

func (n *noter) windowRow(asOf time.Time, w checkpoint.WindowStatus) []any {
	c := w.Counts
	return []any{
		asOf, n.checkpoint, string(w.ID.Lane), w.ID.Incarnation, text(w.Stream), w.ID.N, w.ID.N, string(w.State),
		int64(w.Parts), int64(c.Rows), int64(c.Changes), int64(c.Tombstones), int64(c.Quarantined), int64(c.Ignored),
		instant(w.Oldest), instant(w.CommittedAt), instant(w.LandedAt), int64(w.Landings), w.Gaps,
	}
}

func (n *noter) gaps(ctx context.Context, asOf time.Time) ([][]any, error) {
	gaps, err := n.store.Gaps(ctx, "")
	if err != nil {
		return nil, err
	}
	slices.SortFunc(gaps, func(a, b pipeline.Gap) int { return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.ID, b.ID)) })
	var rows [][]any
	for _, g := range gaps {
		window := ""
		if g.Window != nil {
			window = g.Window.String()
		}
		rows = append(rows, []any{
			asOf, n.checkpoint, g.ID, g.Stream, string(g.Shard), text(string(g.Lane)), string(g.State), string(g.Cause),
			text(string(g.After)), text(string(g.Before)), text(string(g.First)), text(string(g.Last)),
			instant(g.From), instant(g.To), text(window), g.Detected, text(g.Evidence),
		})
	}
	return rows, nil
}

// text and instant are null where nothing is known.
func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func instant(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}
