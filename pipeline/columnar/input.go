package columnar

import (
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

// What is decoded of the parts at once: the rows of six parts of batchRows, whatever their number,
// so that many need little more memory than few.
const (
	batchRows    = 8 << 10
	minBatchRows = 1 << 10
	batchBytes   = 1 << 20 // of one part
)

// streamBuffer is how many bytes of a column are read ahead.
const streamBuffer = 16 << 10

// An input is a part that is being merged.
type input struct {
	part   int
	file   *file.Reader
	schema *arrow.Schema
	leaves []*leafReader
	atOnce int   // rows
	group  int   // the row group to read next
	left   int64 // rows of the present one that are not decoded yet

	row, rows int      // the next one, of how many that are decoded
	keys      []uint64 // their numbers
	fields    []uint64 // scratch
	lastKey   uint64   // the number of the row before the first of these
	last      []keyCell
	begun     bool // there is such a row
}

// openInput recovers, as fill does, what the reader panics with on some damaged files.
func openInput(mem memory.Allocator, part int, p *io.SectionReader, of int) (in *input, err error) {
	defer recovered(&err)
	props := parquet.NewReaderProperties(mem)
	// A page at a time, not a whole column of each part.
	props.BufferedStreamEnabled, props.BufferSize = true, streamBuffer
	f, err := file.NewParquetReader(p, file.WithReadProps(props))
	if err != nil {
		return nil, err
	}
	in = &input{part: part, file: f, atOnce: max(minBatchRows, min(batchRows, 6*batchRows/of))}
	in.schema, err = pqarrow.FromParquet(f.MetaData().Schema, nil, nil)
	if err == nil {
		err = checkSchema(in.schema)
	}
	if err != nil {
		in.close()
		return nil, err
	}
	var bytes int64
	for g := range f.NumRowGroups() {
		bytes += f.MetaData().RowGroup(g).TotalByteSize()
	}
	if rows := f.NumRows(); rows > 0 {
		in.atOnce = int(max(16, min(int64(in.atOnce), batchBytes/max(1, bytes/rows))))
	}
	for i := range f.MetaData().Schema.NumColumns() {
		in.leaves = append(in.leaves, &leafReader{stretch: stretch{leaf: newLeaf(f.MetaData().Schema.Column(i))}, index: i})
	}
	return in, nil
}

func (in *input) close() {
	for _, r := range in.leaves {
		r.close()
	}
	// Closes the section below, if that can be closed: it belongs to the caller and cannot.
	_ = in.file.Close()
}

// chunks are those of a column that the footer describes.
func (in *input) chunks(column int) []*metadata.ColumnChunkMetaData {
	var chunks []*metadata.ColumnChunkMetaData
	for g := range in.file.NumRowGroups() {
		if c, err := in.file.MetaData().RowGroup(g).ColumnChunk(column); err == nil {
			chunks = append(chunks, c)
		}
	}
	return chunks
}

// fill decodes the next rows; false after the last.
func (in *input) fill(k *sortKey) (ok bool, err error) {
	defer func() {
		if unsorted := (*PartError)(nil); !errors.As(err, &unsorted) {
			err = blame(in.part, "read", err)
		}
	}()
	defer recovered(&err)
	if in.rows > 0 {
		in.lastKey, in.last, in.begun = in.keys[in.rows-1], k.rest(in, in.rows-1), true
	}
	in.row, in.rows = 0, 0
	for in.left == 0 {
		if in.group == in.file.NumRowGroups() {
			return false, nil
		}
		g := in.file.RowGroup(in.group)
		for _, r := range in.leaves {
			if err := r.begin(g); err != nil {
				return false, err
			}
		}
		in.group, in.left = in.group+1, g.NumRows()
	}
	n := int(min(in.left, int64(in.atOnce)))
	for _, r := range in.leaves {
		if err := r.read(n); err != nil {
			return false, fmt.Errorf("column %s: %w", r.column.Path(), err)
		}
	}
	in.rows = n
	in.left -= int64(n)
	if err := k.numbers(in); err != nil {
		return false, err
	}
	return true, in.checkOrder(k)
}

// checkOrder compares each row with the one before it: of parts that are not sorted no merge is.
func (in *input) checkOrder(k *sortKey) error {
	sorted := true
	if in.begun {
		sorted = in.lastKey <= in.keys[0]
		for i, c := 0, 0; sorted && in.lastKey == in.keys[0] && c == 0 && i < len(in.last); i++ {
			col := &k.columns[k.whole+i]
			c = col.compareCells(in.last[i], col.cell(in, 0))
			sorted = c <= 0
		}
	}
	more := k.whole < len(k.columns)
	for i := 1; i < in.rows && sorted; i++ {
		a, b := in.keys[i-1], in.keys[i]
		sorted = a < b || a == b && (!more || k.compareRest(in, i-1, in, i) <= 0)
	}
	if sorted {
		return nil
	}
	names := make([]string, len(k.columns))
	for i, c := range k.columns {
		names[i] = c.column.Name()
	}
	return &PartError{in.part, fmt.Errorf("part %d is not sorted by %v", in.part, names)}
}
