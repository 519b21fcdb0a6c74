package columnar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"telemetrylake/pipeline"
)

func section(b []byte) *io.SectionReader {
	return io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b)))
}

func merge(t testing.TB, mem memory.Allocator, parts [][]byte, order []string) []byte {
	t.Helper()
	sections := make([]*io.SectionReader, len(parts))
	for i, p := range parts {
		sections[i] = section(p)
	}
	var b bytes.Buffer
	if err := NewMerger(mem).Merge(t.Context(), &b, sections, order, map[string]string{"made by": "merge"}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// windows deals the records to n windows, each decoded for itself, and returns the parts by
// table and partition.
func windows(t *testing.T, mem memory.Allocator, rng *rand.Rand, records []pipeline.Record, n int) map[string][][]byte {
	t.Helper()
	c := typesContract(t, "positions: false", "positions: true")
	dealt := make([][]pipeline.Record, n)
	for _, r := range records {
		w := rng.IntN(n)
		dealt[w] = append(dealt[w], r)
	}
	parts := map[string][][]byte{}
	for _, w := range dealt {
		for _, g := range decode(t, mem, c, batched(rng, w)...).Groups {
			key := g.Table + "/" + g.Partition
			parts[key] = append(parts[key], encode(t, mem, g.Rows))
		}
	}
	return parts
}

func TestMergingWindowsIsDecodingThemAsOne(t *testing.T) {
	c := typesContract(t, "positions: false", "positions: true")
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 6))
		mem := checked(t)
		records := randomRecords(rng, 1+rng.IntN(200))
		parts := windows(t, mem, rng, records, 1+rng.IntN(8))
		for _, g := range decode(t, mem, c, batched(rng, records)...).Groups {
			key := g.Table + "/" + g.Partition
			merged := merge(t, mem, parts[key], g.Order)
			if got, want := parquetRows(t, merged), arrowRows(g.Rows); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d: %d parts of %s merge to other rows: %d, want %d", seed, len(parts[key]), key, len(got), len(want))
			}
			if a, b := openParquet(t, merged).Schema().String(), openParquet(t, parts[key][0]).Schema().String(); a != b {
				t.Fatalf("schema is %s, the parts have %s", a, b)
			}
			if !bytes.Equal(merged, merge(t, mem, parts[key], g.Order)) {
				t.Fatalf("seed %d: the same parts of %s merge to other bytes", seed, key)
			}
			delete(parts, key)
		}
		if len(parts) != 0 {
			t.Fatalf("seed %d: parts are left: %d", seed, len(parts))
		}
	}
}

// flat is a schema whose rows tests can make fast: a device, an instant, a value.
var flat = arrow.NewSchema([]arrow.Field{
	{Name: "device_id", Type: arrow.BinaryTypes.String},
	{Name: "taken_at", Type: timestampType},
	{Name: "value", Type: &arrow.Decimal128Type{Precision: 38}, Nullable: true},
}, nil)

var flatOrder = []string{"device_id", "taken_at"}

// flatPart has n rows of each device, in order; value says what their values are.
func flatPart(t testing.TB, mem memory.Allocator, devices, n int, value func(device, i int) decimal128.Num) []byte {
	t.Helper()
	b := array.NewRecordBuilder(mem, flat)
	defer b.Release()
	for d := range devices {
		name := fmt.Sprintf("device-%05d", d)
		for i := range n {
			b.Field(0).(*array.StringBuilder).Append(name)
			b.Field(1).(*array.TimestampBuilder).Append(arrow.Timestamp(i))
			b.Field(2).(*array.Decimal128Builder).Append(value(d, i))
		}
	}
	rows := b.NewRecordBatch()
	defer rows.Release()
	return encode(t, mem, rows)
}

func same(int, int) decimal128.Num { return decimal128.FromI64(7) }

func TestEqualRowsKeepTheOrderOfTheirParts(t *testing.T) {
	mem := checked(t)
	var parts [][]byte
	for p := range 5 {
		parts = append(parts, flatPart(t, mem, 2, 1, func(d, _ int) decimal128.Num { return decimal128.FromI64(int64(10*p + d)) }))
	}
	var got []any
	for _, r := range parquetRows(t, merge(t, mem, parts, flatOrder)) {
		got = append(got, r["value"])
	}
	if want := []any{"0", "10", "20", "30", "40", "1", "11", "21", "31", "41"}; !reflect.DeepEqual(got, want) {
		t.Errorf("values are %v, want %v", got, want)
	}
}

func TestRowGroupsAreLargeWhereThereAreTheRows(t *testing.T) {
	type values func(device, i int) decimal128.Num
	constant := func(uint64) values { return same }
	random := func(seed uint64) values {
		rng := rand.New(rand.NewPCG(seed, 7))
		return func(int, int) decimal128.Num { return decimal128.New(rng.Int64N(1e18), rng.Uint64()) }
	}
	// Values that take bytes only in the second half of the devices.
	late := func(seed uint64) values {
		next := random(seed)
		return func(d, i int) decimal128.Num {
			if d < 50 {
				return same(d, i)
			}
			return next(d, i)
		}
	}
	for _, tc := range []struct {
		name   string
		rows   int
		values func(seed uint64) values
		groups int
	}{
		{"too few for two", 260_000, random, 1},
		{"enough for two", 501_000, random, 2},
		{"many rows of few bytes", 510_000, constant, 1},
		{"bytes come late", 510_000, late, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			// Not the checked allocator, which is too slow for so many rows.
			mem := memory.NewGoAllocator()
			const devices, parts = 100, 10
			var all [][]byte
			for p := range parts {
				all = append(all, flatPart(t, mem, devices, tc.rows/parts/devices, tc.values(uint64(p))))
			}
			f := openParquet(t, merge(t, mem, all, flatOrder))
			if f.NumRows() != int64(tc.rows) {
				t.Fatalf("%d rows, want %d", f.NumRows(), tc.rows)
			}
			groups := f.Metadata().RowGroups
			if len(groups) != tc.groups {
				t.Errorf("%d row groups, want %d", len(groups), tc.groups)
			}
			for i, g := range groups {
				bytes := int64(0)
				for _, c := range g.Columns {
					bytes += c.MetaData.TotalCompressedSize
				}
				if len(groups) > 1 && (g.NumRows < minGroupRows || bytes < minGroupBytes) {
					t.Errorf("row group %d has %d rows and %d bytes", i, g.NumRows, bytes)
				}
			}
		})
	}
}

func TestPartsThatCannotBeMergedAreRefused(t *testing.T) {
	mem := checked(t)
	good := flatPart(t, mem, 2, 3, same)
	unsorted := func(devices ...string) []byte {
		b := array.NewRecordBuilder(mem, flat)
		defer b.Release()
		for _, d := range devices {
			b.Field(0).(*array.StringBuilder).Append(d)
			b.Field(1).(*array.TimestampBuilder).Append(0)
			b.Field(2).AppendNull()
		}
		rows := b.NewRecordBatch()
		defer rows.Release()
		return encode(t, mem, rows)
	}
	long := make([]string, batchRows+1)
	for i := range long {
		long[i] = "b"
	}
	long[batchRows] = "a"
	rng := rand.New(rand.NewPCG(1, 9))
	other := windows(t, mem, rng, []pipeline.Record{reading("1", nil)}, 1)["types/dt=2026-11-30"][0]
	for _, tc := range []struct {
		name  string
		parts [][]byte
		order []string
		want  string
	}{
		{"none", nil, flatOrder, "there are no parts"},
		{"another schema", [][]byte{good, other}, flatOrder, "part 1 has another schema than part 0"},
		{"unsorted", [][]byte{good, unsorted("b", "a")}, flatOrder, "part 1 is not sorted by [device_id taken_at]"},
		{"unsorted alone", [][]byte{unsorted("a", "c", "b")}, flatOrder, "part 0 is not sorted"},
		{"unsorted between batches", [][]byte{unsorted(long...)}, flatOrder, "part 0 is not sorted"},
		{"no such column", [][]byte{good}, []string{"device"}, "order by column device: the rows have 0 columns of that name"},
		{"no order", [][]byte{other}, []string{"payload"}, "have no order"},
		{"cut off", [][]byte{good, good[:len(good)-9]}, flatOrder, "open part 1"},
		{"no file", [][]byte{good, []byte("not Parquet")}, flatOrder, "open part 1"},
		{"nothing", [][]byte{good, {}}, flatOrder, "open part 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sections := make([]*io.SectionReader, len(tc.parts))
			for i, p := range tc.parts {
				sections[i] = section(p)
			}
			err := NewMerger(mem).Merge(t.Context(), io.Discard, sections, tc.order, nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

func TestMergeStopsWithItsContext(t *testing.T) {
	mem := checked(t)
	part := flatPart(t, mem, 2, 3, same)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := NewMerger(mem).Merge(ctx, io.Discard, []*io.SectionReader{section(part)}, flatOrder, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestMergeReportsWriteErrors(t *testing.T) {
	// Not the checked allocator: arrow-go does not free its buffers after a write error.
	mem := memory.NewGoAllocator()
	part := flatPart(t, mem, 50, 40, func(d, i int) decimal128.Num { return decimal128.FromI64(int64(d * i)) })
	whole := len(merge(t, mem, [][]byte{part, part}, flatOrder))
	for left := 0; left < whole; left += 997 {
		err := NewMerger(mem).Merge(t.Context(), &brokenWriter{left}, []*io.SectionReader{section(part), section(part)}, flatOrder, map[string]string{"made by": "merge"})
		if err == nil || !strings.Contains(err.Error(), "disk is full") {
			t.Fatalf("with room for %d bytes: %v", left, err)
		}
	}
}

func TestPartsWithoutRowsMergeToAFileWithoutRows(t *testing.T) {
	mem := checked(t)
	empty := flatPart(t, mem, 0, 0, nil)
	full := flatPart(t, mem, 1, 2, same)
	f := openParquet(t, merge(t, mem, [][]byte{empty, empty}, flatOrder))
	if v, _ := f.Lookup("made by"); f.NumRows() != 0 || v != "merge" || len(f.Root().Columns()) != 3 {
		t.Errorf("%d rows, metadata %q", f.NumRows(), v)
	}
	if rows := parquetRows(t, merge(t, mem, [][]byte{empty, full, empty}, flatOrder)); len(rows) != 2 {
		t.Errorf("rows are %v", rows)
	}
}
