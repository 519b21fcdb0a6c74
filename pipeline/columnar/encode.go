package columnar

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"telemetrylake/pipeline"
	"telemetrylake/schemas"
)

// An Encoder writes rows as one Parquet file with one row group. It implements
// pipeline.Encoder.
type Encoder struct{ files }

var _ pipeline.Encoder = (*Encoder)(nil)

// NewEncoder makes an Encoder whose buffers lie in mem.
func NewEncoder(mem memory.Allocator, opts ...Option) *Encoder { return &Encoder{newFiles(mem, opts)} }

// files makes new Parquet files.
type files struct {
	mem   memory.Allocator
	codec compress.Compression
}

func newFiles(mem memory.Allocator, opts []Option) files {
	f := files{mem, compress.Codecs.Zstd}
	for _, o := range opts {
		o(&f)
	}
	return f
}

// An Option of an Encoder or a Merger.
type Option func(*files)

// Uncompressed leaves pages as they are. The default is zstd, whose library keeps goroutine
// machinery for the whole process that a testing/synctest bubble cannot share.
func Uncompressed() Option {
	return func(f *files) { f.codec = compress.Codecs.Uncompressed }
}

// Encode writes rows, in their order, and meta as the footer's key-value metadata. The
// same input gives the same bytes, in one call of Write, so that an error never leaves a
// part of a file behind. It refuses column types that a contract cannot name.
func (e *Encoder) Encode(w io.Writer, rows arrow.RecordBatch, meta map[string]string) error {
	var b bytes.Buffer
	out, err := e.open(&b, rows.Schema(), meta)
	if err != nil {
		return fmt.Errorf("encode rows: %w", err)
	}
	if rows.NumRows() > 0 {
		err = out.Write(rows)
	}
	// Closed in any case: that frees the buffers.
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("encode %d rows: %w", rows.NumRows(), err)
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write %d encoded rows: %w", rows.NumRows(), err)
	}
	return nil
}

// Empty writes a file of a table without any row: it has the columns and meta, and every
// reader takes it for an empty table.
func (e *Encoder) Empty(w io.Writer, t schemas.Table, meta map[string]string) error {
	return e.emptyOf(w, t, meta)
}

func (f files) emptyOf(w io.Writer, t schemas.Table, meta map[string]string) error {
	schema, err := ArrowSchema(t)
	if err != nil {
		return err
	}
	return f.empty(w, schema, meta)
}

func (f files) empty(w io.Writer, schema *arrow.Schema, meta map[string]string) error {
	out, err := f.open(w, schema, meta)
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		return fmt.Errorf("encode a file without rows: %w", err)
	}
	return nil
}

// dataPageSize is small enough that the pages which are not compressed yet say little
// about the size of a row group, and large enough to compress well.
const dataPageSize = 128 << 10

// properties are what Athena reads well. Data page version 1, no page index: some versions
// of Trino return wrong rows with the others. No Bloom filters: arrow-go's cost a MiB for
// each column by default.
func (f files) properties() *parquet.WriterProperties {
	return parquet.NewWriterProperties(
		parquet.WithAllocator(f.mem),
		parquet.WithCompression(f.codec),
		parquet.WithDataPageVersion(parquet.DataPageV1),
		parquet.WithDataPageSize(dataPageSize),
		parquet.WithDictionaryDefault(true),
		parquet.WithStats(true),
		parquet.WithPageIndexEnabled(false),
		parquet.WithBloomFilterEnabled(false),
		parquet.WithStoreDecimalAsInteger(true),
		// Row groups end where we say.
		parquet.WithMaxRowGroupLength(math.MaxInt64),
	)
}

func (f files) open(w io.Writer, schema *arrow.Schema, meta map[string]string) (*pqarrow.FileWriter, error) {
	if err := checkSchema(schema); err != nil {
		return nil, err
	}
	// The Arrow schema is not stored beside Parquet's own, which says all there is to say.
	out, err := pqarrow.NewFileWriter(schema, w, f.properties(), pqarrow.NewArrowWriterProperties(pqarrow.WithAllocator(f.mem)))
	if err != nil {
		return nil, err
	}
	for _, k := range slices.Sorted(maps.Keys(meta)) {
		if err := out.AppendKeyValueMetadata(k, meta[k]); err != nil {
			_ = out.Close()
			return nil, fmt.Errorf("add metadata %s: %w", k, err)
		}
	}
	return out, nil
}
