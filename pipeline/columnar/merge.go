package columnar

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"telemetrylake/schemas"
)

// batchRows is how many rows of each part, and of the output, are in memory decoded.
const batchRows = 8 << 10

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

// Merge writes the rows of all parts to w, sorted by the order columns, then stream_shard
// and stream_seq where the parts have them, then by part and row. Each part must be sorted
// so; the same parts in the same order give the same bytes. Row groups have at least
// 250,000 rows and 2 MiB wherever there are the rows. Of each part it holds one page and up to
// batchRows decoded rows of each column. An error of a part is a *PartError. After an error throw
// away what was written: it may look like a file.
func (m *Merger) Merge(ctx context.Context, w io.Writer, parts []*io.SectionReader, order []string, meta map[string]string) error {
	if len(parts) == 0 {
		return errors.New("merge: there are no parts")
	}
	cursors, total, err := m.openParts(ctx, parts)
	defer func() {
		for _, c := range cursors {
			c.close()
		}
	}()
	if err != nil {
		return fmt.Errorf("merge: %w", err)
	}
	schema := cursors[0].schema
	if total == 0 {
		return m.empty(w, schema, meta)
	}
	heads, err := startAll(cursors, totalOrder(schema, order))
	if err != nil {
		return fmt.Errorf("merge: %w", err)
	}
	file, err := m.open(w, schema, meta)
	if err != nil {
		return fmt.Errorf("merge %d parts: %w", len(parts), err)
	}
	out := newGroupWriter(file, schema, total)
	if err := errors.Join(mergeRows(ctx, m.mem, heads, out), out.close()); err != nil {
		return fmt.Errorf("merge %d parts: %w", len(parts), err)
	}
	if out.remaining != 0 {
		return fmt.Errorf("merge %d parts: their footers say %d rows, they hold %d", len(parts), total, total-out.remaining)
	}
	return nil
}

// openParts also returns what it opened before an error.
func (m *Merger) openParts(ctx context.Context, parts []*io.SectionReader) (cursors []*cursor, total int64, err error) {
	for i, p := range parts {
		c, err := openCursor(ctx, m.mem, i, p, rowsAtOnce(len(parts)))
		if err != nil {
			return cursors, 0, blame(i, "open", err)
		}
		cursors = append(cursors, c)
		if !c.file.MetaData().Schema.Equals(cursors[0].file.MetaData().Schema) {
			return cursors, 0, &PartError{i, fmt.Errorf("part %d has another schema than part 0: %s, not %s", i, c.schema, cursors[0].schema)}
		}
		total += c.file.NumRows()
	}
	return cursors, total, nil
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

func startAll(cursors []*cursor, order []string) (cursorHeap, error) {
	var heads cursorHeap
	for _, c := range cursors {
		ok, err := c.start(order)
		if err != nil {
			return nil, err
		}
		if ok {
			heads = append(heads, c)
		}
	}
	heap.Init(&heads)
	return heads, nil
}

// mergeRows is the k-way merge.
func mergeRows(ctx context.Context, mem memory.Allocator, cursors cursorHeap, out *groupWriter) error {
	builder := array.NewRecordBuilder(mem, out.schema)
	defer builder.Release()
	copies, err := copyFuncs(builder)
	if err != nil {
		return err
	}
	flush := func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		batch := builder.NewRecordBatch()
		defer batch.Release()
		return out.write(batch)
	}
	pending := int64(0)
	room := min(batchRows, out.room())
	for len(cursors) > 0 {
		c := cursors[0]
		// The run of rows of this part that come before every other part's.
		from := c.row
		more := true
		for more && pending+int64(c.row-from) < room {
			if err := c.checkOrder(); err != nil {
				return err
			}
			c.row++
			more = c.row < c.rows && cursors.stillFirst()
		}
		n := c.row - from
		for i, copyTo := range copies {
			copyTo(c.batch.Column(i), from, c.row)
		}
		if pending += int64(n); pending == room {
			if err := flush(); err != nil {
				return err
			}
			pending, room = 0, min(batchRows, out.room())
		}
		ok, err := c.settle()
		if err != nil {
			return err
		}
		if ok {
			heap.Fix(&cursors, 0)
		} else {
			heap.Pop(&cursors)
		}
	}
	if pending > 0 {
		return flush()
	}
	return nil
}

// A cursor is the next row of one part.
type cursor struct {
	part   int
	file   *file.Reader
	reader pqarrow.RecordReader
	schema *arrow.Schema
	order  []string
	batch  arrow.RecordBatch
	keys   []sortColumn
	row    int
	rows   int // in batch
}

// rowsAtOnce is how many rows of each of n parts are decoded at once: together no more than of six
// parts of batchRows, so that many need little more memory than few.
func rowsAtOnce(n int) int64 { return int64(max(minBatchRows, min(batchRows, 6*batchRows/n))) }

const minBatchRows = 1 << 10

// openCursor recovers, as settle does, what the reader panics with on some damaged files.
func openCursor(ctx context.Context, mem memory.Allocator, part int, p *io.SectionReader, batch int64) (c *cursor, err error) {
	defer recovered(&err)
	props := parquet.NewReaderProperties(mem)
	// A page at a time, not a whole column of each part.
	props.BufferedStreamEnabled, props.BufferSize = true, streamBuffer
	f, err := file.NewParquetReader(p, file.WithReadProps(props))
	if err != nil {
		return nil, err
	}
	c = &cursor{part: part, file: f}
	reader, err := pqarrow.NewFileReader(f, pqarrow.ArrowReadProperties{BatchSize: batch}, mem)
	if err == nil {
		c.schema, err = reader.Schema()
	}
	if err == nil {
		err = checkSchema(c.schema)
	}
	if err == nil {
		c.reader, err = reader.GetRecordReader(ctx, nil, nil)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	// Without the metadata: whether a part has other metadata is no difference of schemas.
	c.schema = arrow.NewSchema(c.schema.Fields(), nil)
	return c, nil
}

// streamBuffer is how many bytes of a column are read ahead.
const streamBuffer = 16 << 10

// recovered makes an error of a panic.
func recovered(err *error) {
	if e := recover(); e != nil {
		*err = fmt.Errorf("the reader panics: %v", e)
	}
}

func (c *cursor) close() {
	if c.batch != nil {
		c.batch.Release()
		c.batch = nil
	}
	if c.reader != nil {
		c.reader.Release()
	}
	// Closes the section below, if that can be closed: it belongs to the caller and cannot.
	_ = c.file.Close()
}

func (c *cursor) start(order []string) (bool, error) {
	c.order = order
	return c.settle()
}

// settle makes row a row of the batch, and reads the next batch if it has to. It is false
// after the last row.
func (c *cursor) settle() (bool, error) {
	if c.row < c.rows {
		return true, nil
	}
	ok, err := c.next()
	if unsorted := (*PartError)(nil); errors.As(err, &unsorted) {
		return ok, err
	}
	return ok, blame(c.part, "read", err)
}

func (c *cursor) next() (ok bool, err error) {
	defer recovered(&err)
	for c.row == c.rows {
		if !c.reader.Next() {
			if err := c.reader.Err(); err != nil && !errors.Is(err, io.EOF) {
				return false, err
			}
			return false, nil
		}
		next := c.reader.RecordBatch()
		next.Retain()
		keys, err := sortColumns(next, c.order)
		if err != nil {
			next.Release()
			return false, err
		}
		last, lastRow := c.keys, c.rows-1
		if last != nil && next.NumRows() > 0 && compareRows(last, lastRow, keys, 0) > 0 {
			next.Release()
			return false, c.unsorted()
		}
		if next.NumRows() == 0 {
			next.Release()
			continue
		}
		if c.batch != nil {
			c.batch.Release()
		}
		c.batch, c.keys, c.row, c.rows = next, keys, 0, int(next.NumRows())
	}
	return true, nil
}

// checkOrder compares the row with the one before it in the batch: of parts that are not
// sorted no merge is.
func (c *cursor) checkOrder() error {
	if c.row > 0 && compareRows(c.keys, c.row-1, c.keys, c.row) > 0 {
		return c.unsorted()
	}
	return nil
}

func (c *cursor) unsorted() error {
	return &PartError{c.part, fmt.Errorf("part %d is not sorted by %v", c.part, c.order)}
}

func (c *cursor) less(d *cursor) bool {
	if r := compareRows(c.keys, c.row, d.keys, d.row); r != 0 {
		return r < 0
	}
	return c.part < d.part
}

// A cursorHeap has the cursor of the first row in front.
type cursorHeap []*cursor

func (h cursorHeap) Len() int           { return len(h) }
func (h cursorHeap) Less(i, j int) bool { return h[i].less(h[j]) }
func (h cursorHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *cursorHeap) Push(x any)        { *h = append(*h, x.(*cursor)) }

func (h *cursorHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// stillFirst reports whether the front cursor, having moved, still has the first row.
func (h cursorHeap) stillFirst() bool {
	for i := 1; i < min(len(h), 3); i++ {
		if h[i].less(h[0]) {
			return false
		}
	}
	return true
}

// Empty writes an object of a table without any row.
func (m *Merger) Empty(w io.Writer, t schemas.Table, meta map[string]string) error {
	return m.emptyOf(w, t, meta)
}
