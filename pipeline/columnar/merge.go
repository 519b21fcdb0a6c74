package columnar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"telemetrylake/schemas"
)

// A Merger writes sorted parts of one schema as one file with large row groups.
type Merger struct{ files }

// NewMerger makes a Merger whose buffers lie in mem.
func NewMerger(mem memory.Allocator, opts ...Option) *Merger { return &Merger{newFiles(mem, opts)} }

// A PartError is why a part cannot be merged, with others or at all.
type PartError struct {
	Part int // its index among the parts
	Err  error
}

func (e *PartError) Error() string { return e.Err.Error() }

func (e *PartError) Unwrap() error { return e.Err }

// BadPart returns the index of the part.
func (e *PartError) BadPart() int { return e.Part }

// blame says which part an error of its reader is about.
func blame(part int, doing string, err error) error {
	if err == nil {
		return nil
	}
	return &PartError{part, fmt.Errorf("%s part %d: %w", doing, part, err)}
}

// recovered makes an error of a panic.
func recovered(err *error) {
	if e := recover(); e != nil {
		*err = fmt.Errorf("the reader panics: %v", e)
	}
}

// Merge writes the rows of all parts to w, sorted by the order columns, then stream_shard
// and stream_seq where the parts have them, then by part and row. Each part must be sorted
// so; the same parts in the same order give the same bytes. Row groups have at least
// 250,000 rows and 2 MiB wherever there are the rows. Of each part it holds one page of each column
// and up to batchRows decoded rows. An error of a part is a *PartError. After an error throw
// away what was written: it may look like a file.
func (m *Merger) Merge(ctx context.Context, w io.Writer, parts []*io.SectionReader, order []string, meta map[string]string) error {
	if len(parts) == 0 {
		return errors.New("merge: there are no parts")
	}
	inputs, total, err := m.openParts(parts)
	defer func() {
		for _, in := range inputs {
			in.close()
		}
	}()
	if err != nil {
		return fmt.Errorf("merge: %w", err)
	}
	if total == 0 {
		return m.empty(w, inputs[0].schema, meta)
	}
	key, err := newSortKey(inputs, order)
	if err != nil {
		return fmt.Errorf("merge: %w", err)
	}
	t := &tournament{key: key}
	for _, in := range inputs {
		ok, err := in.fill(key)
		if err != nil {
			return fmt.Errorf("merge: %w", err)
		}
		if ok {
			t.inputs = append(t.inputs, in)
		}
	}
	out := m.newGroupWriter(w, inputs[0].file.MetaData().Schema, total)
	err = mergeRows(ctx, t, out)
	if err == nil {
		err = out.close(meta)
	}
	if err != nil {
		return fmt.Errorf("merge %d parts: %w", len(parts), err)
	}
	if out.remaining != 0 {
		return fmt.Errorf("merge %d parts: their footers say %d rows, they hold %d", len(parts), total, total-out.remaining)
	}
	return nil
}

// openParts also returns what it opened before an error.
func (m *Merger) openParts(parts []*io.SectionReader) (inputs []*input, total int64, err error) {
	for i, p := range parts {
		in, err := openInput(m.mem, i, p, len(parts))
		if err != nil {
			return inputs, 0, blame(i, "open", err)
		}
		inputs = append(inputs, in)
		if !in.file.MetaData().Schema.Equals(inputs[0].file.MetaData().Schema) {
			return inputs, 0, &PartError{i, fmt.Errorf("part %d has another schema than part 0: %s, not %s", i, in.schema, inputs[0].schema)}
		}
		total += in.file.NumRows()
	}
	return inputs, total, nil
}

// totalOrder adds the position in the stream, where there is one.
func totalOrder(schema *arrow.Schema, order []string) []string {
	order = slices.Clone(order)
	for _, s := range []schemas.System{schemas.StreamShard, schemas.StreamSeq} {
		if schema.HasField(string(s)) && !slices.Contains(order, string(s)) {
			order = append(order, string(s))
		}
	}
	return order
}

// A run is some rows of one part that come next.
type run struct {
	in   *input
	rows int
}

// mergeRows is the k-way merge. It finds out which part each row comes from, and when some part has
// no more decoded rows it writes all that are known, column by column.
func mergeRows(ctx context.Context, t *tournament, out *groupWriter) error {
	t.build()
	var runs []run
	for len(t.inputs) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		var rows int
		runs, rows = t.play(runs[:0], min(batchRows, out.room()))
		if err := out.write(runs, rows); err != nil {
			return err
		}
		in := t.inputs[t.first]
		if in.row < in.rows {
			continue
		}
		ok, err := in.fill(t.key)
		if err != nil {
			return err
		}
		if !ok {
			t.inputs = slices.Delete(t.inputs, int(t.first), int(t.first)+1)
		}
		t.build()
	}
	return nil
}

// A tournament finds the part with the first row: a tree, in each of whose nodes stands who lost
// there, so that after each row only those are asked that its part has won against.
type tournament struct {
	key    *sortKey
	inputs []*input
	heads  []uint64 // the number of each one's next row
	losers []int32
	first  int32
}

// build plays all matches.
func (t *tournament) build() {
	n := len(t.inputs)
	t.heads = t.heads[:0]
	for _, in := range t.inputs {
		t.heads = append(t.heads, in.keys[in.row])
	}
	t.losers = slices.Grow(t.losers[:0], n)[:n]
	winners := make([]int32, 2*n)
	for i := range n {
		winners[n+i] = int32(i)
	}
	for i := n - 1; i > 0; i-- {
		a, b := winners[2*i], winners[2*i+1]
		if t.before(b, a) {
			a, b = b, a
		}
		winners[i], t.losers[i] = a, b
	}
	if n > 0 {
		t.first = winners[min(1, 2*n-1)]
	}
}

func (t *tournament) before(a, b int32) bool {
	if t.heads[a] != t.heads[b] {
		return t.heads[a] < t.heads[b]
	}
	return t.beforeEqual(a, b)
}

// beforeEqual compares rows of the same number.
func (t *tournament) beforeEqual(a, b int32) bool {
	x, y := t.inputs[a], t.inputs[b]
	if c := t.key.compareRest(x, x.row, y, y.row); c != 0 {
		return c < 0
	}
	return x.part < y.part
}

// play appends runs of the next rows, until there are as many as asked for or the first part has no
// decoded row any more.
func (t *tournament) play(runs []run, most int) ([]run, int) {
	rows, n := 0, int32(len(t.inputs))
	first, heads, losers := t.first, t.heads, t.losers
	for rows < most {
		in := t.inputs[first]
		if k := len(runs) - 1; k >= 0 && runs[k].in == in {
			runs[k].rows++
		} else {
			runs = append(runs, run{in, 1})
		}
		rows++
		if in.row++; in.row == in.rows {
			break
		}
		head := in.keys[in.row]
		heads[first] = head
		for i := (first + n) / 2; i > 0; i /= 2 {
			other := losers[i]
			if h := heads[other]; h < head || h == head && t.beforeEqual(other, first) {
				losers[i], first, head = first, other, h
			}
		}
	}
	t.first = first
	return runs, rows
}

// Empty writes an object of a table without any row.
func (m *Merger) Empty(w io.Writer, t schemas.Table, meta map[string]string) error {
	return m.emptyOf(w, t, meta)
}
