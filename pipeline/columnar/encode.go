package columnar

import (
	"bytes"
	"fmt"
	"io"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/arrow-go/v18/parquet/schema"

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
	if err := e.encode(&b, rows, meta); err != nil {
		return fmt.Errorf("encode %d rows: %w", rows.NumRows(), err)
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write %d encoded rows: %w", rows.NumRows(), err)
	}
	return nil
}

func (f files) encode(w io.Writer, rows arrow.RecordBatch, meta map[string]string) error {
	s, err := f.parquetSchema(rows.Schema())
	if err != nil {
		return err
	}
	out := f.newGroupWriter(w, s, rows.NumRows())
	out.target = rows.NumRows() // one row group, however many they are
	sh := newShredder(s)
	size := uint64(1)
	for _, c := range rows.Columns() {
		size += c.Data().SizeInBytes()
	}
	most := int(max(1, min(batchRows, 8*batchBytes*uint64(rows.NumRows())/size)))
	for from := 0; from < int(rows.NumRows()); from += most {
		to := min(from+most, int(rows.NumRows()))
		if err := sh.shred(rows, from, to); err != nil {
			return err
		}
		if err := out.write([]run{{&sh.input, to - from}}, to-from); err != nil {
			return err
		}
	}
	return out.close(meta)
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

func (f files) empty(w io.Writer, columns *arrow.Schema, meta map[string]string) error {
	s, err := f.parquetSchema(columns)
	if err == nil {
		err = f.newGroupWriter(w, s, 0).close(meta)
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

// parquetSchema is how Parquet has the columns. The Arrow schema is not stored beside it: Parquet's
// own says all there is to say.
func (f files) parquetSchema(s *arrow.Schema) (*schema.Schema, error) {
	if err := checkSchema(s); err != nil {
		return nil, err
	}
	return pqarrow.ToParquet(s, f.properties(), pqarrow.NewArrowWriterProperties(pqarrow.WithAllocator(f.mem)))
}
