package columnar

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"telemetrylake/pipeline"
	"telemetrylake/schemas"
)

type item = map[string]types.AttributeValue

// checked gives an allocator that fails the test if anything stays allocated.
func checked(t testing.TB) memory.Allocator {
	mem := memory.NewCheckedAllocator(memory.NewGoAllocator())
	t.Cleanup(func() { mem.AssertSize(t, 0) })
	return mem
}

func loadContract(t testing.TB, name string) *schemas.Contract {
	t.Helper()
	c, err := schemas.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// typesContract is testdata/types.yaml with some of its text replaced.
func typesContract(t testing.TB, oldnew ...string) *schemas.Contract {
	t.Helper()
	text, err := os.ReadFile("testdata/types.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := schemas.Parse("types.yaml", []byte(strings.NewReplacer(oldnew...).Replace(string(text))))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func decode(t testing.TB, mem memory.Allocator, c *schemas.Contract, batches ...pipeline.Batch) *pipeline.Rows {
	t.Helper()
	rows, err := NewDecoder(mem).Decode(c, batches)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rows.Release)
	return rows
}

func encode(t testing.TB, mem memory.Allocator, rows arrow.RecordBatch) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := NewEncoder(mem).Encode(&b, rows, map[string]string{"made by": "test"}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// encodeAll is every byte that a window comes to.
func encodeAll(t testing.TB, mem memory.Allocator, rows *pipeline.Rows) []byte {
	t.Helper()
	var b []byte
	for _, g := range rows.Groups {
		b = fmt.Appendf(b, "%s %s %v\n", g.Table, g.Partition, g.Order)
		b = append(b, encode(t, mem, g.Rows)...)
	}
	return b
}

func S(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }
func N(s string) types.AttributeValue { return &types.AttributeValueMemberN{Value: s} }
func M(m item) types.AttributeValue   { return &types.AttributeValueMemberM{Value: m} }

// parseItem reads DynamoDB JSON.
func parseItem(t testing.TB, text []byte) item {
	t.Helper()
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		t.Fatal(err)
	}
	it := item{}
	for name, v := range raw {
		it[name] = parseValue(t, v)
	}
	return it
}

func parseValue(t testing.TB, text []byte) types.AttributeValue {
	t.Helper()
	var v struct {
		S, N   *string
		B      *[]byte
		BOOL   *bool
		NULL   *bool
		SS, NS []string
		BS     [][]byte
		L      *[]json.RawMessage
		M      *json.RawMessage
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	switch {
	case v.S != nil:
		return S(*v.S)
	case v.N != nil:
		return N(*v.N)
	case v.B != nil:
		return &types.AttributeValueMemberB{Value: *v.B}
	case v.BOOL != nil:
		return &types.AttributeValueMemberBOOL{Value: *v.BOOL}
	case v.NULL != nil:
		return &types.AttributeValueMemberNULL{Value: *v.NULL}
	case v.SS != nil:
		return &types.AttributeValueMemberSS{Value: v.SS}
	case v.NS != nil:
		return &types.AttributeValueMemberNS{Value: v.NS}
	case v.BS != nil:
		return &types.AttributeValueMemberBS{Value: v.BS}
	case v.L != nil:
		l := &types.AttributeValueMemberL{}
		for _, e := range *v.L {
			l.Value = append(l.Value, parseValue(t, e))
		}
		return l
	case v.M != nil:
		return M(parseItem(t, *v.M))
	}
	t.Fatalf("%s is no DynamoDB JSON", text)
	return nil
}

// Cells as both readers give them: nil, bool, string, []any, map[string]any for a struct.

// arrowRows reads a batch cell by cell.
func arrowRows(batch arrow.RecordBatch) []map[string]any {
	rows := make([]map[string]any, batch.NumRows())
	for i := range rows {
		rows[i] = map[string]any{}
		for c, f := range batch.Schema().Fields() {
			rows[i][f.Name] = arrowCell(batch.Column(c), i)
		}
	}
	return rows
}

func arrowCell(a arrow.Array, i int) any {
	if a.IsNull(i) {
		return nil
	}
	switch a := a.(type) {
	case *array.String:
		return a.Value(i)
	case *array.Boolean:
		return a.Value(i)
	case *array.Int32:
		return strconv.FormatInt(int64(a.Value(i)), 10)
	case *array.Int64:
		return strconv.FormatInt(a.Value(i), 10)
	case *array.Float64:
		return strconv.FormatFloat(a.Value(i), 'g', -1, 64)
	case *array.Decimal128:
		return pointed(a.Value(i).BigInt(), int(a.DataType().(arrow.DecimalType).GetScale()))
	case *array.Timestamp:
		return time.UnixMilli(int64(a.Value(i))).UTC().Format(time.RFC3339Nano)
	case *array.Date32:
		return a.Value(i).ToTime().Format(time.DateOnly)
	case *array.Binary:
		return base64.StdEncoding.EncodeToString(a.Value(i))
	case *array.Map:
		entries := []any{}
		for from, to := span(a, i); from < to; from++ {
			entries = append(entries, map[string]any{"key": arrowCell(a.Keys(), from), "value": arrowCell(a.Items(), from)})
		}
		return entries
	case *array.List:
		elems := []any{}
		for from, to := span(a, i); from < to; from++ {
			elems = append(elems, arrowCell(a.ListValues(), from))
		}
		return elems
	case *array.Struct:
		fields := map[string]any{}
		for k, f := range a.DataType().(*arrow.StructType).Fields() {
			fields[f.Name] = arrowCell(a.Field(k), i)
		}
		return fields
	}
	panic(fmt.Sprintf("no cell of %T", a))
}

func span(a array.ListLike, i int) (int, int) {
	from, to := a.ValueOffsets(i)
	return int(from), int(to)
}

func pointed(v *big.Int, scale int) string {
	s := v.String()
	sign := ""
	if s[0] == '-' {
		sign, s = "-", s[1:]
	}
	if scale == 0 {
		return sign + s
	}
	if pad := scale + 1 - len(s); pad > 0 {
		s = strings.Repeat("0", pad) + s
	}
	return sign + s[:len(s)-scale] + "." + s[len(s)-scale:]
}

func openParquet(t testing.TB, b []byte) *parquet.File {
	t.Helper()
	f, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// parquetRows reads a file cell by cell with parquet-go, putting nested values together
// from their levels.
func parquetRows(t testing.TB, b []byte) []map[string]any {
	t.Helper()
	f := openParquet(t, b)
	var rows []map[string]any
	for _, group := range f.RowGroups() {
		r := group.Rows()
		buf := make([]parquet.Row, 64)
		for {
			n, err := r.ReadRows(buf)
			for _, row := range buf[:n] {
				l := leaves{}
				row.Range(func(column int, values []parquet.Value) bool {
					l[column] = values
					return true
				})
				rows = append(rows, l.content(f.Root(), 0, 0).(map[string]any))
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return rows
}

// leaves holds the values of a row that are not read yet, by leaf column.
type leaves map[int][]parquet.Value

func (l leaves) first(c *parquet.Column) parquet.Value {
	for !c.Leaf() {
		c = c.Columns()[0]
	}
	if len(l[c.Index()]) == 0 {
		return parquet.Value{}.Level(0, 0, c.Index())
	}
	return l[c.Index()][0]
}

func (l leaves) more(c *parquet.Column) bool {
	for !c.Leaf() {
		c = c.Columns()[0]
	}
	return len(l[c.Index()]) > 0
}

// skip drops the one value that stands in each leaf for what is not there.
func (l leaves) skip(c *parquet.Column) {
	if c.Leaf() {
		l[c.Index()] = l[c.Index()][1:]
		return
	}
	for _, child := range c.Columns() {
		l.skip(child)
	}
}

func (l leaves) read(c *parquet.Column, def, rep int) any {
	switch {
	case c.Repeated():
		elems := []any{}
		if l.first(c).DefinitionLevel() <= def {
			l.skip(c)
			return elems
		}
		for {
			elems = append(elems, l.content(c, def+1, rep+1))
			if !l.more(c) || l.first(c).RepetitionLevel() != rep+1 {
				return elems
			}
		}
	case c.Optional():
		if l.first(c).DefinitionLevel() <= def {
			l.skip(c)
			return nil
		}
		return l.content(c, def+1, rep)
	}
	return l.content(c, def, rep)
}

func (l leaves) content(c *parquet.Column, def, rep int) any {
	if c.Leaf() {
		v := l.first(c)
		l.skip(c)
		return parquetCell(c, v)
	}
	fields := map[string]any{}
	for _, child := range c.Columns() {
		fields[child.Name()] = l.read(child, def, rep)
	}
	if list, ok := fields["list"]; ok && len(fields) == 1 {
		elems := list.([]any)
		for i, e := range elems {
			elems[i] = e.(map[string]any)["element"]
		}
		return elems
	}
	if entries, ok := fields["key_value"]; ok && len(fields) == 1 {
		return entries
	}
	return fields
}

func parquetCell(c *parquet.Column, v parquet.Value) any {
	var logical any
	if l := c.Type().LogicalType(); l != nil {
		logical = l.Value
	}
	switch l := logical.(type) {
	case *format.DecimalType:
		return pointed(unscaled(v), int(l.Scale))
	case *format.TimestampType:
		return time.UnixMilli(v.Int64()).UTC().Format(time.RFC3339Nano)
	case *format.DateType:
		return time.Unix(int64(v.Int32())*86400, 0).UTC().Format(time.DateOnly)
	case *format.StringType:
		return string(v.ByteArray())
	}
	switch v.Kind() {
	case parquet.Boolean:
		return v.Boolean()
	case parquet.Int32:
		return strconv.FormatInt(int64(v.Int32()), 10)
	case parquet.Int64:
		return strconv.FormatInt(v.Int64(), 10)
	case parquet.Double:
		return strconv.FormatFloat(v.Double(), 'g', -1, 64)
	}
	return base64.StdEncoding.EncodeToString(v.ByteArray())
}

// unscaled is the whole number that stands for a decimal: two's complement, big endian,
// where it is bytes.
func unscaled(v parquet.Value) *big.Int {
	switch v.Kind() {
	case parquet.Int32:
		return big.NewInt(int64(v.Int32()))
	case parquet.Int64:
		return big.NewInt(v.Int64())
	}
	b := v.ByteArray()
	n := new(big.Int).SetBytes(b)
	if b[0]&0x80 != 0 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	return n
}
