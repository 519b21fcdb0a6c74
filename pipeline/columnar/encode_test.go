package columnar

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/parquet-go/parquet-go/format"

	"telemetrylake/schemas"
)

func TestEveryCellReadsTheSameInASecondReader(t *testing.T) {
	c := typesContract(t, "positions: false", "positions: true")
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 3))
		mem := checked(t)
		rows := decode(t, mem, c, batched(rng, randomRecords(rng, 300))...)
		for _, g := range rows.Groups {
			want, got := arrowRows(g.Rows), parquetRows(t, encode(t, mem, g.Rows))
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d: %s reads otherwise with parquet-go", seed, g.Table)
			}
		}
	}
}

func TestFilesAreAsAthenaReadsThemWell(t *testing.T) {
	mem := checked(t)
	for _, name := range []string{"device_telemetry", "sensor_readings", "lecturas", "dispositivos"} {
		c := loadContract(t, name)
		for _, table := range c.Tables() {
			schema, err := ArrowSchema(table)
			if err != nil {
				t.Fatal(err)
			}
			b := encode(t, mem, emptyValues(mem, schema, 3))
			f := openParquet(t, b)
			meta := f.Metadata()
			if v, ok := f.Lookup("made by"); !ok || v != "test" || len(meta.KeyValueMetadata) != 1 {
				t.Errorf("%s: metadata is %v", table.Name, meta.KeyValueMetadata)
			}
			if meta.Schema[0].RepetitionType.Valid && meta.Schema[0].RepetitionType.V != format.Required {
				t.Errorf("%s: the root of the schema is repeated", table.Name)
			}
			if len(meta.RowGroups) != 1 || meta.RowGroups[0].NumRows != 3 {
				t.Errorf("%s: row groups are %v", table.Name, meta.RowGroups)
			}
			for _, chunk := range meta.RowGroups[0].Columns {
				name := table.Name + "." + strings.Join(chunk.MetaData.PathInSchema, ".")
				if chunk.MetaData.Codec != format.Zstd {
					t.Errorf("%s: codec is %v", name, chunk.MetaData.Codec)
				}
				if chunk.ColumnIndexLength != 0 || chunk.OffsetIndexLength != 0 || chunk.MetaData.BloomFilterOffset != 0 {
					t.Errorf("%s has an index or a Bloom filter", name)
				}
				for _, s := range chunk.MetaData.EncodingStats {
					if s.PageType == format.DataPageV2 {
						t.Errorf("%s has data pages of version 2", name)
					}
				}
			}
		}
	}
}

// emptyValues is a batch of n rows of zero values.
func emptyValues(mem memory.Allocator, schema *arrow.Schema, n int) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.NewGoAllocator(), schema)
	defer b.Release()
	for _, f := range b.Fields() {
		f.AppendEmptyValues(n)
	}
	return b.NewRecordBatch()
}

func TestParquetTypesAreTheContracts(t *testing.T) {
	c := typesContract(t)
	mem := checked(t)
	schema, err := ArrowSchema(c.LakeTable(schemas.Readings))
	if err != nil {
		t.Fatal(err)
	}
	got := openParquet(t, encode(t, mem, emptyValues(mem, schema, 1))).Schema().String()
	want := strings.Join([]string{
		"required binary device_id (STRING);",
		"required int64 taken_at (TIMESTAMP(isAdjustedToUTC=true,unit=MILLIS));",
		"optional boolean flag;",
		"optional int32 small (INT(32,true));",
		"optional int64 big (INT(64,true));",
		"optional double dbl;",
		"optional int32 dec5 (DECIMAL(5,2));",
		"optional int64 dec18 (DECIMAL(18,6));",
		"optional fixed_len_byte_array(16) dec38 (DECIMAL(38,0));",
		"optional int32 day (DATE);",
		"optional binary raw;",
		"optional group tags (LIST) { repeated group list { optional binary element (STRING); } }",
		"optional group payload (MAP) { repeated group key_value { required binary key (STRING); optional int64 value (DECIMAL(18,6)); } }",
		"optional group status { optional int32 code (INT(32,true)); optional binary text (STRING); }",
	}, "\n")
	flat := strings.Join(strings.Fields(got), " ")
	for _, line := range strings.Split(want, "\n") {
		if !strings.Contains(flat, line) {
			t.Errorf("no %s in\n%s", line, got)
		}
	}
}

func TestTypesThatNoContractNamesAreRefused(t *testing.T) {
	mem := checked(t)
	for _, dt := range []arrow.DataType{
		arrow.FixedWidthTypes.Timestamp_ns, arrow.FixedWidthTypes.Timestamp_us, &arrow.TimestampType{Unit: arrow.Millisecond},
		arrow.PrimitiveTypes.Uint32, arrow.PrimitiveTypes.Uint64, arrow.Null, arrow.StructOf(), arrow.FixedWidthTypes.Time32ms,
		arrow.ListOf(arrow.PrimitiveTypes.Uint8), arrow.MapOf(arrow.PrimitiveTypes.Int32, arrow.BinaryTypes.String),
		arrow.MapOf(arrow.BinaryTypes.String, arrow.FixedWidthTypes.Timestamp_ns), arrow.StructOf(arrow.Field{Name: "x", Type: arrow.Null, Nullable: true}),
		&arrow.Decimal256Type{Precision: 50},
	} {
		t.Run(fmt.Sprint(dt), func(t *testing.T) {
			rows := emptyValues(mem, arrow.NewSchema([]arrow.Field{{Name: "odd", Type: dt, Nullable: true}}, nil), 0)
			defer rows.Release()
			err := NewEncoder(mem).Encode(new(bytes.Buffer), rows, nil)
			if err == nil || !strings.Contains(err.Error(), "column odd: ") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAnEmptyFileHasTheTablesColumns(t *testing.T) {
	mem := checked(t)
	table := loadContract(t, "device_telemetry").LakeTable(schemas.Readings)
	var b bytes.Buffer
	if err := NewEncoder(mem).Empty(&b, table, map[string]string{"k": "v"}); err != nil {
		t.Fatal(err)
	}
	f := openParquet(t, b.Bytes())
	if v, _ := f.Lookup("k"); f.NumRows() != 0 || v != "v" || len(f.Root().Columns()) != len(table.Columns) {
		t.Errorf("%d rows, metadata %q, %d columns", f.NumRows(), v, len(f.Root().Columns()))
	}
}

func TestTheSameRowsMakeTheSameBytes(t *testing.T) {
	mem := checked(t)
	rng := rand.New(rand.NewPCG(1, 4))
	rows := decode(t, mem, typesContract(t), batched(rng, randomRecords(rng, 500))...)
	first := encodeAll(t, mem, rows)
	for range 5 {
		if !bytes.Equal(encodeAll(t, mem, rows), first) {
			t.Fatal("other bytes")
		}
	}
}

type brokenWriter struct{ left int }

func (w *brokenWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		return 0, fmt.Errorf("disk is full")
	}
	w.left -= len(p)
	return len(p), nil
}

func TestWriteErrorsAreReported(t *testing.T) {
	mem := checked(t)
	rng := rand.New(rand.NewPCG(1, 5))
	rows := decode(t, mem, typesContract(t), batched(rng, randomRecords(rng, 200))...)
	whole := len(encode(t, mem, rows.Groups[0].Rows))
	for left := 0; left < whole; left += 397 {
		err := NewEncoder(mem).Encode(&brokenWriter{left}, rows.Groups[0].Rows, map[string]string{"made by": "test"})
		if err == nil || !strings.Contains(err.Error(), "disk is full") {
			t.Fatalf("with room for %d bytes: %v", left, err)
		}
	}
}
