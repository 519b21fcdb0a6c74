package columnar

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
)

// A copyFunc appends rows from..to of an array, to exclusive, to the builder it is bound
// to. Copies hold nothing of the array.
type copyFunc func(src arrow.Array, from, to int)

// copyFuncs binds one copyFunc to each column of a builder.
func copyFuncs(b *array.RecordBuilder) ([]copyFunc, error) {
	fns := make([]copyFunc, len(b.Fields()))
	for i, f := range b.Fields() {
		var err error
		if fns[i], err = newCopyFunc(f); err != nil {
			return nil, fmt.Errorf("copy column %s: %w", b.Schema().Field(i).Name, err)
		}
	}
	return fns, nil
}

func newCopyFunc(b array.Builder) (copyFunc, error) {
	switch b := b.(type) {
	case *array.StringBuilder:
		return copyScalars[string, *array.String](b), nil
	case *array.BinaryBuilder:
		return copyScalars[[]byte, *array.Binary](b), nil
	case *array.BooleanBuilder:
		return copyScalars[bool, *array.Boolean](b), nil
	case *array.Int32Builder:
		return copyScalars[int32, *array.Int32](b), nil
	case *array.Int64Builder:
		return copyScalars[int64, *array.Int64](b), nil
	case *array.Float64Builder:
		return copyScalars[float64, *array.Float64](b), nil
	case *array.Decimal128Builder:
		return copyScalars[decimal128.Num, *array.Decimal128](b), nil
	case *array.TimestampBuilder:
		return copyScalars[arrow.Timestamp, *array.Timestamp](b), nil
	case *array.Date32Builder:
		return copyScalars[arrow.Date32, *array.Date32](b), nil
	case *array.MapBuilder: // before the list that it is built on
		return copyMaps(b)
	case *array.ListBuilder:
		return copyLists(b)
	case *array.StructBuilder:
		return copyStructs(b)
	}
	return nil, fmt.Errorf("no copy for values of type %s", b.Type())
}

func copyScalars[T any, A values[T]](b scalarBuilder[T]) copyFunc {
	return func(src arrow.Array, from, to int) {
		a := src.(A)
		for i := from; i < to; i++ {
			if a.IsNull(i) {
				b.AppendNull()
			} else {
				b.Append(a.Value(i))
			}
		}
	}
}

func copyLists(b *array.ListBuilder) (copyFunc, error) {
	elems, err := newCopyFunc(b.ValueBuilder())
	if err != nil {
		return nil, err
	}
	return func(src arrow.Array, from, to int) {
		a := src.(*array.List)
		for i := from; i < to; i++ {
			if a.IsNull(i) {
				b.AppendNull()
				continue
			}
			b.Append(true)
			start, end := a.ValueOffsets(i)
			elems(a.ListValues(), int(start), int(end))
		}
	}, nil
}

func copyMaps(b *array.MapBuilder) (copyFunc, error) {
	keys, err := newCopyFunc(b.KeyBuilder())
	if err != nil {
		return nil, err
	}
	items, err := newCopyFunc(b.ItemBuilder())
	if err != nil {
		return nil, err
	}
	return func(src arrow.Array, from, to int) {
		a := src.(*array.Map)
		for i := from; i < to; i++ {
			if a.IsNull(i) {
				b.AppendNull()
				continue
			}
			b.Append(true)
			start, end := a.ValueOffsets(i)
			keys(a.Keys(), int(start), int(end))
			items(a.Items(), int(start), int(end))
		}
	}, nil
}

func copyStructs(b *array.StructBuilder) (copyFunc, error) {
	fields := make([]copyFunc, b.NumField())
	for i := range fields {
		var err error
		if fields[i], err = newCopyFunc(b.FieldBuilder(i)); err != nil {
			return nil, err
		}
	}
	return func(src arrow.Array, from, to int) {
		a := src.(*array.Struct)
		for i := from; i < to; i++ {
			if a.IsNull(i) {
				b.AppendNull()
				continue
			}
			b.Append(true)
			for k, f := range fields {
				f(a.Field(k), i, i+1)
			}
		}
	}, nil
}
