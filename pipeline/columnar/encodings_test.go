package columnar

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/parquet-go/parquet-go/format"
)

// manyShapes are rows whose columns want different encodings, and two that fill their dictionaries.
func manyShapes(rng *rand.Rand, n int) arrow.RecordBatch {
	null := func(name string, t arrow.DataType) arrow.Field {
		return arrow.Field{Name: name, Type: t, Nullable: true}
	}
	b := array.NewRecordBuilder(memory.NewGoAllocator(), arrow.NewSchema([]arrow.Field{
		{Name: "device_id", Type: arrow.BinaryTypes.String}, {Name: "taken_at", Type: timestampType},
		null("few", arrow.PrimitiveTypes.Int64), null("full", arrow.PrimitiveTypes.Int64), null("text", arrow.BinaryTypes.String),
		null("real", arrow.PrimitiveTypes.Float64), null("flag", arrow.FixedWidthTypes.Boolean), null("small", arrow.PrimitiveTypes.Int32),
		null("wide", &arrow.Decimal128Type{Precision: 38}), null("never", arrow.PrimitiveTypes.Int32), null("nothing", arrow.BinaryTypes.String),
		null("late", arrow.PrimitiveTypes.Int64),
		null("list", arrow.ListOfField(null("element", arrow.BinaryTypes.String))),
	}, nil))
	defer b.Release()
	list := b.Field(12).(*array.ListBuilder)
	elem := list.ValueBuilder().(*array.StringBuilder)
	for i := range n {
		early := i < n/2
		b.Field(0).(*array.StringBuilder).Append(fmt.Sprintf("device-%03d", i*100/n))
		b.Field(1).(*array.TimestampBuilder).Append(arrow.Timestamp(1_796_000_000_000 + 1000*int64(i) + rng.Int64N(1000)))
		b.Field(2).(*array.Int64Builder).Append(int64(rng.IntN(12)) * 1e15)
		full, text := int64(rng.IntN(50)), "the same"
		if !early {
			full, text = int64(rng.Uint64()), fmt.Sprintf("%032x", rng.Uint64())
		}
		b.Field(3).(*array.Int64Builder).Append(full)
		b.Field(4).(*array.StringBuilder).Append(text)
		if i%7 == 0 {
			for k := 5; k <= 8; k++ {
				b.Field(k).AppendNull()
			}
			list.AppendNull()
		} else {
			b.Field(5).(*array.Float64Builder).Append(rng.NormFloat64())
			b.Field(6).(*array.BooleanBuilder).Append(rng.IntN(3) == 0)
			b.Field(7).(*array.Int32Builder).Append(int32(rng.Uint32()))
			b.Field(8).(*array.Decimal128Builder).Append(decimal128.FromI64(rng.Int64N(1e12) - 5e11))
			list.Append(true)
			for k := range i % 4 {
				if k == 2 {
					elem.AppendNull()
				} else {
					elem.Append(fmt.Sprint("tag-", rng.IntN(9)))
				}
			}
		}
		b.Field(9).AppendNull()
		if i < n*19/20 {
			b.Field(11).AppendNull()
		} else {
			b.Field(11).(*array.Int64Builder).Append(int64(i) * 1000)
		}
		b.Field(10).AppendNull()
	}
	return b.NewRecordBatch()
}

// Whatever a column's values are like: three readers find in parts, and in what they merge to, the
// rows that were written.
func TestEveryEncodingIsReadAlike(t *testing.T) {
	const n = 80_000
	rng := rand.New(rand.NewPCG(1, 22))
	mem := memory.NewGoAllocator()
	rows := manyShapes(rng, n)
	defer rows.Release()
	whole := encode(t, mem, rows)
	var parts [][]byte
	for from := int64(0); from < n; from += n / 5 {
		s := rows.NewSlice(from, from+n/5)
		parts = append(parts, encode(t, mem, s))
		s.Release()
	}
	merged := merge(t, mem, parts, flatOrder)
	want := arrowRows(rows)
	for name, b := range map[string][]byte{"encoded": whole, "merged": merged} {
		if got := parquetRows(t, b); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: parquet-go reads other rows", name)
		}
		at := 0
		err := ReadFile(context.Background(), section(b), nil, func(batch arrow.RecordBatch) error {
			got := arrowRows(batch)
			if !reflect.DeepEqual(got, want[at:at+len(got)]) {
				return fmt.Errorf("other rows from row %d on", at)
			}
			at += len(got)
			return nil
		})
		if err != nil || at != n {
			t.Errorf("%s: arrow-go reads %d rows, %v", name, at, err)
		}
		meta := openParquet(t, b).Metadata()
		for i, encodings := range map[int][]format.Encoding{
			0: {format.RLEDictionary}, 1: {format.DeltaBinaryPacked}, 2: {format.RLEDictionary},
			3: {format.Plain, format.RLEDictionary}, 4: {format.Plain, format.RLEDictionary}, 5: {format.Plain}, 6: {format.Plain}, 11: {format.Plain, format.DeltaBinaryPacked},
		} {
			if got := pagesOf(&meta.RowGroups[0].Columns[i].MetaData); !slices.Equal(got, encodings) && !(i == 3 && slices.Contains(got, format.DeltaBinaryPacked)) {
				t.Errorf("%s: column %d has pages of %v, want %v", name, i, got, encodings)
			}
		}
		checkBounds(t, rows, meta)
	}
}

// pagesOf are the encodings of a column's pages of data.
func pagesOf(m *format.ColumnMetaData) []format.Encoding {
	var found []format.Encoding
	for _, s := range m.EncodingStats {
		if s.PageType == format.DataPage {
			found = append(found, s.Encoding)
		}
	}
	slices.Sort(found)
	return found
}

// checkBounds compares what the footer says of columns with their values.
func checkBounds(t *testing.T, rows arrow.RecordBatch, meta *format.FileMetaData) {
	t.Helper()
	var reals []float64
	real := rows.Column(5).(*array.Float64)
	for i := range real.Len() {
		if real.IsValid(i) {
			reals = append(reals, real.Value(i))
		}
	}
	times := rows.Column(1).(*array.Timestamp).TimestampValues()
	for i, want := range map[int][2]uint64{
		1: {uint64(slices.Min(times)), uint64(slices.Max(times))},
		3: {uint64(slices.Min(rows.Column(3).(*array.Int64).Int64Values())), uint64(slices.Max(rows.Column(3).(*array.Int64).Int64Values()))},
		5: {math.Float64bits(slices.Min(reals)), math.Float64bits(slices.Max(reals))},
	} {
		s := meta.RowGroups[0].Columns[i].MetaData.Statistics
		if len(s.MinValue) != 8 || len(s.MaxValue) != 8 || binary.LittleEndian.Uint64(s.MinValue) != want[0] || binary.LittleEndian.Uint64(s.MaxValue) != want[1] {
			t.Errorf("column %d: bounds %x, %x", i, s.MinValue, s.MaxValue)
		}
	}
	wide := rows.Column(8).(*array.Decimal128)
	lo, hi := decimal128.MaxDecimal128, decimal128.MaxDecimal128.Negate()
	for i := range wide.Len() {
		if v := wide.Value(i); wide.IsValid(i) {
			if v.Less(lo) {
				lo = v
			}
			if v.Greater(hi) {
				hi = v
			}
		}
	}
	s := meta.RowGroups[0].Columns[8].MetaData.Statistics
	for _, c := range []struct {
		got  []byte
		want decimal128.Num
	}{{s.MinValue, lo}, {s.MaxValue, hi}} {
		if len(c.got) != 16 || decimal128.New(int64(binary.BigEndian.Uint64(c.got)), binary.BigEndian.Uint64(c.got[8:])) != c.want {
			t.Errorf("bound of the wide decimals is %x, want %v", c.got, c.want)
		}
	}
	for i, nulls := range map[int]int{1: 0, 6: rows.Column(6).NullN(), 9: rows.Column(9).Len(), 10: rows.Column(10).Len()} {
		s := meta.RowGroups[0].Columns[i].MetaData.Statistics
		if s.NullCount != int64(nulls) {
			t.Errorf("column %d: %d nulls, want %d", i, s.NullCount, nulls)
		}
	}
}

// Neither the number of ranks nor what footers say decides about the order of rows.
func TestOrderDoesNotNeedRanks(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 22))
	mem := checked(t)
	b := array.NewRecordBuilder(mem, flat)
	defer b.Release()
	var ids []string
	for range 3000 {
		ids = append(ids, fmt.Sprintf("%0*x", 1+rng.IntN(9000), rng.Uint32()))
	}
	slices.Sort(ids)
	var parts [][]byte
	for p := range 3 {
		for i := p; i < len(ids); i += 3 {
			b.Field(0).(*array.StringBuilder).Append(ids[i])
			b.Field(1).(*array.TimestampBuilder).Append(arrow.Timestamp(rng.Int64()))
			b.Field(2).AppendNull()
		}
		rows := b.NewRecordBatch()
		parts = append(parts, encode(t, mem, rows))
		rows.Release()
	}
	var got []string
	for _, r := range parquetRows(t, merge(t, mem, parts, flatOrder)) {
		got = append(got, r["device_id"].(string))
	}
	if !slices.Equal(got, ids) {
		t.Error("rows are in another order")
	}
}
