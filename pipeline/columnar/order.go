package columnar

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"telemetrylake/pipeline"
	"telemetrylake/schemas"
)

// Order names the columns that the rows of a contract's table are sorted by, before shard
// and sequence number: in readings and changes those that come from the partition key, in
// the table's order, then the event time; in tombstones and quarantine, where a key may
// fit no pattern, the whole key's text, then the record's creation.
func Order(c *schemas.Contract, t schemas.Table) []string {
	if t.Role == schemas.Tombstones || t.Role == schemas.Quarantine {
		return []string{string(schemas.ItemKeys), string(schemas.StreamCreatedAt)}
	}
	captures := c.Keys.Partition.Pattern.Captures()
	var order []string
	for _, col := range t.Columns {
		fromKey := col.Key != "" && slices.Contains(captures, col.Key) ||
			col.Attribute != "" && col.Attribute == c.Keys.Partition.Attribute
		if fromKey && !col.Type.Nested() && col.Name != t.TimeColumn {
			order = append(order, col.Name)
		}
	}
	return append(order, t.TimeColumn)
}

// A sortColumn compares rows by one column, across batches of one schema. Nulls come first.
type sortColumn interface {
	compare(i int, other sortColumn, j int) int
}

type values[T any] interface {
	IsNull(int) bool
	Value(int) T
}

type typedColumn[T any] struct {
	values  values[T]
	hasNull bool
	order   func(a, b T) int
}

func (c *typedColumn[T]) compare(i int, other sortColumn, j int) int {
	o := other.(*typedColumn[T])
	if c.hasNull || o.hasNull {
		switch a, b := c.values.IsNull(i), o.values.IsNull(j); {
		case a && b:
			return 0
		case a:
			return -1
		case b:
			return 1
		}
	}
	return c.order(c.values.Value(i), o.values.Value(j))
}

func typed[T any](v values[T], nulls int, order func(a, b T) int) sortColumn {
	return &typedColumn[T]{v, nulls > 0, order}
}

// sortColumns binds the named columns of a batch; stream_seq compares as a number.
func sortColumns(batch arrow.RecordBatch, order []string) ([]sortColumn, error) {
	columns := make([]sortColumn, len(order))
	for k, name := range order {
		at := batch.Schema().FieldIndices(name)
		if len(at) != 1 {
			return nil, fmt.Errorf("order by column %s: the rows have %d columns of that name", name, len(at))
		}
		switch a := batch.Column(at[0]).(type) {
		case *array.String:
			order := strings.Compare
			if name == string(schemas.StreamSeq) {
				order = compareSequence
			}
			columns[k] = typed(a, a.NullN(), order)
		case *array.Timestamp:
			columns[k] = typed(a, a.NullN(), cmp.Compare[arrow.Timestamp])
		case *array.Int32:
			columns[k] = typed(a, a.NullN(), cmp.Compare[int32])
		case *array.Int64:
			columns[k] = typed(a, a.NullN(), cmp.Compare[int64])
		case *array.Float64:
			columns[k] = typed(a, a.NullN(), cmp.Compare[float64])
		case *array.Date32:
			columns[k] = typed(a, a.NullN(), cmp.Compare[arrow.Date32])
		case *array.Decimal128:
			columns[k] = typed(a, a.NullN(), decimal128.Num.Cmp)
		case *array.Binary:
			columns[k] = typed(a, a.NullN(), bytes.Compare)
		case *array.Boolean:
			columns[k] = typed(a, a.NullN(), compareBool)
		default:
			return nil, fmt.Errorf("order by column %s: values of type %s have no order", name, a.DataType())
		}
	}
	return columns, nil
}

func compareSequence(a, b string) int {
	return pipeline.SequenceNumber(a).Compare(pipeline.SequenceNumber(b))
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func compareRows(a []sortColumn, i int, b []sortColumn, j int) int {
	for k := range a {
		if c := a[k].compare(i, b[k], j); c != 0 {
			return c
		}
	}
	return 0
}
