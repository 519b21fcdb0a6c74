package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"telemetrylake/athena/engine"
	"telemetrylake/schemas"
)

// A row is a row of a lake table, each cell as JSON in one spelling whoever read it.
type row struct {
	columns   []string
	cells     []string
	partition string
}

// text is a cell without its quotes.
func (r row) text(t testing.TB, column string) string {
	t.Helper()
	i := slices.Index(r.columns, column)
	if i < 0 {
		t.Fatalf("no column %s", column)
	}
	return strings.Trim(r.cells[i], `"`)
}

// readAlike reads every file of a table with arrow-go, parquet-go and, where the program has
// it, DuckDB, and fails unless they agree in every cell. It returns the rows.
func readAlike(t testing.TB, folder string, table schemas.Table) []row {
	t.Helper()
	if table.Name != filepath.Base(folder) {
		t.Fatalf("%s is not the folder of table %s", folder, table.Name)
	}
	var names []string
	for _, c := range table.Columns {
		names = append(names, c.Name)
	}
	files, err := lakeFiles(folder)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatalf("no files in %s", folder)
	}
	var rows []row
	for _, f := range files {
		a, p := arrowRows(t, f, names), parquetRows(t, f, names)
		if len(a) != len(p) || len(a) == 0 {
			t.Fatalf("%s: %d rows by arrow-go, %d by parquet-go", f.path, len(a), len(p))
		}
		for i := range a {
			compareCells(t, f.path, a[i], p[i])
		}
		rows = append(rows, a...)
	}
	duck, ok := duckRows(t, filepath.Dir(folder), table)
	if !ok {
		t.Log("this build has no DuckDB: two readers were compared")
		return rows
	}
	if len(duck) != len(rows) {
		t.Fatalf("%d rows of %s by DuckDB, %d by arrow-go", len(duck), table.Name, len(rows))
	}
	sorted := slices.Clone(rows)
	slices.SortFunc(sorted, compareRows)
	slices.SortFunc(duck, compareRows)
	for i := range duck {
		compareCells(t, table.Name, sorted[i], duck[i])
	}
	return rows
}

func compareRows(a, b row) int {
	if c := strings.Compare(a.partition, b.partition); c != 0 {
		return c
	}
	return slices.Compare(a.cells, b.cells)
}

func compareCells(t testing.TB, where string, a, b row) {
	t.Helper()
	if a.partition != b.partition {
		t.Fatalf("%s: a row is in %s and in %s", where, a.partition, b.partition)
	}
	for i := range a.cells {
		if a.cells[i] != b.cells[i] {
			t.Fatalf("%s: column %s is %s and %s", where, a.columns[i], a.cells[i], b.cells[i])
		}
	}
}

func spell(t testing.TB, v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const instantForm = "2006-01-02T15:04:05.000Z"

func arrowRows(t testing.TB, f lakeFile, names []string) []row {
	t.Helper()
	var rows []row
	err := f.read(t.Context(), names, func(b arrow.RecordBatch) error {
		for i := range int(b.NumRows()) {
			r := row{columns: names, partition: f.partition}
			for _, col := range b.Columns() {
				r.cells = append(r.cells, spell(t, arrowValue(t, col, i)))
			}
			rows = append(rows, r)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func arrowValue(t testing.TB, a arrow.Array, i int) any {
	if a.IsNull(i) {
		return nil
	}
	switch a := a.(type) {
	case *array.String:
		return a.Value(i)
	case *array.Boolean:
		return a.Value(i)
	case *array.Int32:
		return fmt.Sprint(a.Value(i))
	case *array.Int64:
		return fmt.Sprint(a.Value(i))
	case *array.Timestamp:
		return time.UnixMilli(int64(a.Value(i))).UTC().Format(instantForm)
	case *array.Decimal128:
		return a.Value(i).ToString(a.DataType().(*arrow.Decimal128Type).Scale)
	case *array.Map: // before List, which it is too
		from, to := a.ValueOffsets(i)
		m := map[string]any{}
		for k := int(from); k < int(to); k++ {
			m[a.Keys().(*array.String).Value(k)] = arrowValue(t, a.Items(), k)
		}
		return m
	case *array.List:
		from, to := a.ValueOffsets(i)
		list := []any{}
		for k := int(from); k < int(to); k++ {
			list = append(list, arrowValue(t, a.ListValues(), k))
		}
		return list
	}
	t.Fatalf("no spelling for %s", a.DataType())
	return nil
}

// parquetRows reads a file by its columns' definition levels alone.
func parquetRows(t testing.TB, f lakeFile, names []string) []row {
	t.Helper()
	file, err := os.Open(f.path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	p, err := parquet.OpenFile(file, f.size)
	if err != nil {
		t.Fatal(err)
	}
	fields := p.Root().Columns()
	var rows []row
	for _, g := range p.RowGroups() {
		in := g.Rows()
		buffer := make([]parquet.Row, 100)
		for {
			n, err := in.ReadRows(buffer)
			for _, values := range buffer[:n] {
				r := row{columns: names, partition: f.partition}
				for _, name := range names {
					k := slices.IndexFunc(fields, func(c *parquet.Column) bool { return c.Name() == name })
					if k < 0 {
						t.Fatalf("%s has no column %s", f.path, name)
					}
					r.cells = append(r.cells, spell(t, parquetValue(t, fields[k], values)))
				}
				rows = append(rows, r)
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return rows
}

func valuesOf(r parquet.Row, c *parquet.Column) []parquet.Value {
	var values []parquet.Value
	for _, v := range r {
		if v.Column() == c.Index() {
			values = append(values, v)
		}
	}
	return values
}

func parquetValue(t testing.TB, c *parquet.Column, r parquet.Row) any {
	if c.Leaf() {
		return parquetScalar(t, c, valuesOf(r, c)[0])
	}
	// An optional group with one repeated child: level 0 is a null, 1 nothing in it.
	leaves := c.Columns()[0].Columns()
	first := valuesOf(r, leaves[0])
	if first[0].DefinitionLevel() == 0 {
		return nil
	}
	if len(leaves) == 1 {
		list := []any{}
		for _, v := range first {
			if v.DefinitionLevel() > 1 {
				list = append(list, parquetScalar(t, leaves[0], v))
			}
		}
		return list
	}
	m := map[string]any{}
	items := valuesOf(r, leaves[1])
	for i, v := range first {
		if v.DefinitionLevel() > 1 {
			m[v.String()] = parquetScalar(t, leaves[1], items[i])
		}
	}
	return m
}

func parquetScalar(t testing.TB, c *parquet.Column, v parquet.Value) any {
	if v.IsNull() {
		return nil
	}
	var logical any
	if l := c.Type().LogicalType(); l != nil {
		logical = l.Value
	}
	if d, ok := logical.(*format.DecimalType); ok {
		n := new(big.Int)
		switch v.Kind() {
		case parquet.Int32:
			n.SetInt64(int64(v.Int32()))
		case parquet.Int64:
			n.SetInt64(v.Int64())
		default:
			n = twosComplement(v.ByteArray())
		}
		return new(big.Rat).SetFrac(n, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(d.Scale)), nil)).FloatString(int(d.Scale))
	}
	switch v.Kind() {
	case parquet.Boolean:
		return v.Boolean()
	case parquet.Int32:
		return fmt.Sprint(v.Int32())
	case parquet.Int64:
		if _, ok := logical.(*format.TimestampType); ok {
			return time.UnixMilli(v.Int64()).UTC().Format(instantForm)
		}
		return fmt.Sprint(v.Int64())
	case parquet.ByteArray:
		return string(v.ByteArray())
	}
	t.Fatalf("no spelling for %s", c.Type())
	return nil
}

func twosComplement(b []byte) *big.Int {
	n := new(big.Int).SetBytes(b)
	if len(b) > 0 && b[0]&0x80 != 0 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	return n
}

func duckRows(t testing.TB, root string, table schemas.Table) ([]row, bool) {
	t.Helper()
	lake, err := engine.OpenLake(t.Context(), root, []schemas.Table{table})
	if errors.Is(err, engine.ErrNoDuckDB) {
		return nil, false
	}
	if err != nil {
		t.Fatal(err)
	}
	defer lake.Close()
	result, err := lake.Query(t.Context(), `SELECT * FROM "`+table.Name+`"`)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range table.Columns {
		names = append(names, c.Name)
	}
	if len(result.Columns) != len(names)+1 {
		t.Fatalf("%d columns of %s by DuckDB, want %d and the day", len(result.Columns), table.Name, len(names))
	}
	var rows []row
	for _, values := range result.Rows {
		r := row{columns: names, partition: schemas.DayColumn + "=" + values[len(names)].(string)}
		for _, v := range values[:len(names)] {
			r.cells = append(r.cells, spell(t, duckValue(v)))
		}
		rows = append(rows, r)
	}
	return rows, true
}

func duckValue(v any) any {
	switch v := v.(type) {
	case int64:
		return fmt.Sprint(v)
	case time.Time:
		return v.Format(instantForm)
	}
	return v
}
