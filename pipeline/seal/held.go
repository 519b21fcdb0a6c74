package seal

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/deprecated"
	"github.com/parquet-go/parquet-go/format"
)

// held is what a column holds: how much, a hash of its values in their order, and its times.
type held struct {
	values, nulls int64
	hash          uint64
	times         int64
	from, to      time.Time
}

// valuesOf decodes every value of a file, whatever its types.
func valuesOf(f *parquet.File, leaves []*parquet.Column) ([]held, error) {
	all := make([]held, len(leaves))
	for i, leaf := range leaves {
		h, sum := &all[i], fnv.New64a()
		at := timeOf(leaf.Type())
		var buf []byte
		for _, g := range f.RowGroups() {
			err := eachPage(g.ColumnChunks()[i], func(p parquet.Page) error {
				return eachValue(p, func(v parquet.Value) error {
					h.values++
					if v.IsNull() {
						h.nulls++
					} else if at != nil {
						h.see(at(v))
					}
					buf = append(v.AppendBytes(buf[:0]), byte(v.DefinitionLevel()), byte(v.RepetitionLevel()))
					_, _ = sum.Write(buf)
					return nil
				})
			})
			if err != nil {
				return nil, fmt.Errorf("column %v: %w", leaf.Path(), err)
			}
		}
		h.hash = sum.Sum64()
	}
	return all, checkRows(f, leaves, all)
}

func (h *held) see(t time.Time) {
	if h.times == 0 || t.Before(h.from) {
		h.from = t
	}
	if h.times == 0 || t.After(h.to) {
		h.to = t
	}
	h.times++
}

// checkCodecs lets pass what the reader unpacks. Of LZ4 it takes a damaged page for one that needs
// more room, for ever, and cannot unpack some good ones.
func checkCodecs(f *parquet.File) error {
	for _, g := range f.Metadata().RowGroups {
		for _, c := range g.Columns {
			switch codec := c.MetaData.Codec; codec {
			case format.Uncompressed, format.Snappy, format.Gzip, format.Brotli, format.Zstd:
			default:
				return fmt.Errorf("column %s is compressed with %s, which is not unpacked here", strings.Join(c.MetaData.PathInSchema, "."), codec)
			}
		}
	}
	return nil
}

// checkRows compares what was read with what the footer promises.
func checkRows(f *parquet.File, leaves []*parquet.Column, all []held) error {
	var rows int64
	want := make([]int64, len(leaves))
	for _, g := range f.Metadata().RowGroups {
		rows += g.NumRows
		for i, c := range g.Columns {
			want[i] += c.MetaData.NumValues
		}
	}
	if rows != f.NumRows() {
		return fmt.Errorf("its row groups have %d rows, its footer says %d", rows, f.NumRows())
	}
	for i, h := range all {
		if h.values != want[i] {
			return fmt.Errorf("column %v has %d values, its footer says %d", leaves[i].Path(), h.values, want[i])
		}
	}
	return nil
}

// timeOf reads the values of a type as times; nil if they are none.
func timeOf(t parquet.Type) func(parquet.Value) time.Time {
	if t.Kind() == parquet.Int96 {
		return func(v parquet.Value) time.Time { return julian(v.Int96()) }
	}
	if t.Kind() != parquet.Int64 {
		return nil
	}
	if l := t.LogicalType(); l != nil {
		ts, ok := l.Value.(*format.TimestampType)
		if !ok {
			return nil
		}
		switch ts.Unit.Value.(type) {
		case *format.MilliSeconds:
			return millis
		case *format.MicroSeconds:
			return micros
		case *format.NanoSeconds:
			return func(v parquet.Value) time.Time { return time.Unix(0, v.Int64()).UTC() }
		}
		return nil
	}
	if c := t.ConvertedType(); c != nil {
		switch *c {
		case deprecated.TimestampMillis:
			return millis
		case deprecated.TimestampMicros:
			return micros
		}
	}
	return nil
}

func millis(v parquet.Value) time.Time { return time.UnixMilli(v.Int64()).UTC() }

func micros(v parquet.Value) time.Time { return time.UnixMicro(v.Int64()).UTC() }

// julian reads the timestamps of older writers: nanoseconds of a day, and its Julian number.
func julian(i deprecated.Int96) time.Time {
	const epoch = 2440588 // the Julian number of 1970-01-01
	nanos := int64(i[0]) | int64(i[1])<<32
	return time.Unix((int64(i[2])-epoch)*24*60*60, nanos).UTC()
}

func firstPage(m *format.ColumnMetaData) int64 {
	if m.DictionaryPageOffset > 0 {
		return min(m.DictionaryPageOffset, m.DataPageOffset)
	}
	return m.DataPageOffset
}

// checkPages walks the headers of a column's pages before anything is decoded: the reader
// believes them, and allocates what a damaged one says.
func checkPages(body *source, m *format.ColumnMetaData) error {
	from := firstPage(m)
	end := from + m.TotalCompressedSize
	if from < int64(len(magic)) || end < from || end > body.size {
		return fmt.Errorf("its pages are at [%d,%d) of %d bytes", from, end, body.size)
	}
	var values, raw int64
	for at := from; at < end; {
		h, size, err := headerAt(body, at, end)
		if err != nil {
			return fmt.Errorf("page header at %d: %w", at, err)
		}
		packed, unpacked := int64(h.CompressedPageSize), int64(h.UncompressedPageSize)
		raw += unpacked // without the header: not every writer counts those
		at += size + packed
		if packed < 0 || unpacked < 0 || at > end || raw > m.TotalUncompressedSize {
			return fmt.Errorf("a page of %d bytes (%d uncompressed) that ends at %d; the column ends at %d and has %d bytes uncompressed",
				packed, unpacked, at, end, m.TotalUncompressedSize)
		}
		if m.Codec == format.Snappy || m.Codec == format.Zstd {
			if err := vetPage(body, at-packed, at, m.Codec, h); err != nil && !h.DataPageHeaderV2.Valid { // whose levels come first
				return err
			}
		}
		n := int64(h.DataPageHeader.V.NumValues) + int64(h.DataPageHeaderV2.V.NumValues)
		if dict := int64(h.DictionaryPageHeader.V.NumValues); n < 0 || dict < 0 || dict > max(m.NumValues, 0) {
			return fmt.Errorf("a page with %d values and a dictionary of %d; the column has %d values", n, dict, m.NumValues)
		}
		values += n
	}
	if values != m.NumValues {
		return fmt.Errorf("pages with %d values; the column has %d", values, m.NumValues)
	}
	return nil
}
