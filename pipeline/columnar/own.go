package columnar

import (
	"fmt"
	"io"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"telemetrylake/schemas"
)

// Values writes a file of the table with the given rows, in their order, a value for each column: a
// string, an int64, a bool, a time.Time, or nil for null. It serves what the pipeline tells of
// itself; records come through a Decoder.
func (e *Encoder) Values(w io.Writer, t schemas.Table, rows [][]any) error {
	schema, err := ArrowSchema(t)
	if err != nil {
		return err
	}
	b := array.NewRecordBuilder(e.mem, schema)
	defer b.Release()
	for i, row := range rows {
		if len(row) != len(t.Columns) {
			return fmt.Errorf("row %d of table %s has %d values for %d columns", i, t.Name, len(row), len(t.Columns))
		}
		for j, v := range row {
			if err := appendOwn(b.Field(j), v, t.Columns[j].Nullable); err != nil {
				return fmt.Errorf("row %d of table %s: column %s: %w", i, t.Name, t.Columns[j].Name, err)
			}
		}
	}
	batch := b.NewRecordBatch()
	defer batch.Release()
	return e.Encode(w, batch, nil)
}

func appendOwn(b array.Builder, v any, nullable bool) error {
	if v == nil {
		if !nullable {
			return fmt.Errorf("no value, and the column is not nullable")
		}
		b.AppendNull()
		return nil
	}
	switch b := b.(type) {
	case *array.StringBuilder:
		if x, ok := v.(string); ok {
			b.Append(x)
			return nil
		}
	case *array.Int64Builder:
		if x, ok := v.(int64); ok {
			b.Append(x)
			return nil
		}
	case *array.BooleanBuilder:
		if x, ok := v.(bool); ok {
			b.Append(x)
			return nil
		}
	case *array.TimestampBuilder:
		if x, ok := v.(time.Time); ok {
			b.Append(arrow.Timestamp(x.UnixMilli()))
			return nil
		}
	}
	return fmt.Errorf("%T is no value of type %s", v, b.Type())
}
