package columnar

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/schemas"
)

// An appendFunc appends exactly one value to its builder, also when it refuses the value:
// then a null, in a row that is dropped later. So the columns of a table keep one length,
// and no value is looked at twice. A value that is absent (nil) or NULL becomes null.
type appendFunc func(types.AttributeValue) *misfit

// newAppendFunc binds the reading of a type to the builder of its column.
func newAppendFunc(c schemas.Column, b array.Builder) (appendFunc, error) {
	if c.Type.Kind == schemas.Timestamp {
		read, err := readTimestamp(c.Encoding)
		if err != nil {
			return nil, err
		}
		return scalar(b.(*array.TimestampBuilder), read), nil
	}
	return valueAppendFunc(c.Type, b)
}

func valueAppendFunc(t schemas.Type, b array.Builder) (appendFunc, error) {
	switch t.Kind {
	case schemas.String:
		return scalar(b.(*array.StringBuilder), readText), nil
	case schemas.Boolean:
		return scalar(b.(*array.BooleanBuilder), readBool), nil
	case schemas.Int:
		return scalar(b.(*array.Int32Builder), readNumber(parseInt32)), nil
	case schemas.BigInt:
		return scalar(b.(*array.Int64Builder), readNumber(parseInt64)), nil
	case schemas.Double:
		return scalar(b.(*array.Float64Builder), readNumber(parseDouble)), nil
	case schemas.Decimal:
		return scalar(b.(*array.Decimal128Builder), readNumber(func(s string) (decimal128.Num, *misfit) {
			return parseDecimal(s, t.Precision, t.Scale)
		})), nil
	case schemas.Date:
		return scalar(b.(*array.Date32Builder), readString(parseDate)), nil
	case schemas.Binary:
		return scalar(b.(*array.BinaryBuilder), readBinary), nil
	case schemas.Array:
		return arrayAppendFunc(t, b.(*array.ListBuilder))
	case schemas.Map:
		return mapAppendFunc(t, b.(*array.MapBuilder))
	case schemas.Struct:
		return structAppendFunc(t, b.(*array.StructBuilder))
	}
	return nil, fmt.Errorf("no reader for type %q without an encoding", t)
}

type scalarBuilder[T any] interface {
	Append(T)
	AppendNull()
}

func scalar[T any](b scalarBuilder[T], read func(types.AttributeValue) (T, *misfit)) appendFunc {
	return func(v types.AttributeValue) *misfit {
		if isNull(v) {
			b.AppendNull()
			return nil
		}
		x, m := read(v)
		if m != nil {
			b.AppendNull()
			return m
		}
		b.Append(x)
		return nil
	}
}

func isNull(v types.AttributeValue) bool {
	if v == nil {
		return true
	}
	_, null := v.(*types.AttributeValueMemberNULL)
	return null
}

func wrongType(v types.AttributeValue, want string) *misfit {
	return misfitf(ReasonType, "has type %s, not %s", typeName(v), want)
}

// typeName is DynamoDB's name of a value's type.
func typeName(v types.AttributeValue) string {
	switch v.(type) {
	case *types.AttributeValueMemberS:
		return "S"
	case *types.AttributeValueMemberN:
		return "N"
	case *types.AttributeValueMemberB:
		return "B"
	case *types.AttributeValueMemberBOOL:
		return "BOOL"
	case *types.AttributeValueMemberNULL:
		return "NULL"
	case *types.AttributeValueMemberSS:
		return "SS"
	case *types.AttributeValueMemberNS:
		return "NS"
	case *types.AttributeValueMemberBS:
		return "BS"
	case *types.AttributeValueMemberL:
		return "L"
	case *types.AttributeValueMemberM:
		return "M"
	}
	return fmt.Sprintf("%T", v)
}

func readText(v types.AttributeValue) (string, *misfit) {
	if s, ok := v.(*types.AttributeValueMemberS); ok {
		return s.Value, nil
	}
	return "", wrongType(v, "S")
}

func readBool(v types.AttributeValue) (bool, *misfit) {
	if b, ok := v.(*types.AttributeValueMemberBOOL); ok {
		return b.Value, nil
	}
	return false, wrongType(v, "BOOL")
}

func readBinary(v types.AttributeValue) ([]byte, *misfit) {
	if b, ok := v.(*types.AttributeValueMemberB); ok {
		return b.Value, nil
	}
	return nil, wrongType(v, "B")
}

func readString[T any](parse func(string) (T, *misfit)) func(types.AttributeValue) (T, *misfit) {
	return func(v types.AttributeValue) (T, *misfit) {
		if s, ok := v.(*types.AttributeValueMemberS); ok {
			return parse(s.Value)
		}
		var zero T
		return zero, wrongType(v, "S")
	}
}

func readNumber[T any](parse func(string) (T, *misfit)) func(types.AttributeValue) (T, *misfit) {
	return func(v types.AttributeValue) (T, *misfit) {
		if n, ok := v.(*types.AttributeValueMemberN); ok {
			return parse(n.Value)
		}
		var zero T
		return zero, wrongType(v, "N")
	}
}

func readTimestamp(e schemas.Encoding) (func(types.AttributeValue) (arrow.Timestamp, *misfit), error) {
	switch e {
	case schemas.ISO8601:
		return readString(parseISO8601), nil
	case schemas.EpochSecond:
		return readNumber(func(s string) (arrow.Timestamp, *misfit) { return parseEpoch(s, 0) }), nil
	case schemas.EpochMilli:
		return readNumber(func(s string) (arrow.Timestamp, *misfit) { return parseEpoch(s, 3) }), nil
	}
	return nil, fmt.Errorf("no reader for timestamps of encoding %q", e)
}

// arrayAppendFunc reads lists, and sets in sorted order, since a set has none of its own.
func arrayAppendFunc(t schemas.Type, b *array.ListBuilder) (appendFunc, error) {
	elem, err := valueAppendFunc(*t.Elem, b.ValueBuilder())
	if err != nil {
		return nil, err
	}
	return func(v types.AttributeValue) *misfit {
		if isNull(v) {
			b.AppendNull()
			return nil
		}
		elems, ok := elements(v)
		if !ok {
			b.AppendNull()
			return wrongType(v, "L")
		}
		b.Append(true)
		var first *misfit
		for i, e := range elems {
			if m := elem(e); m != nil && first == nil {
				first = m.in(fmt.Sprintf("element %d", i))
			}
		}
		return first
	}, nil
}

func elements(v types.AttributeValue) ([]types.AttributeValue, bool) {
	var elems []types.AttributeValue
	switch v := v.(type) {
	case *types.AttributeValueMemberL:
		return v.Value, true
	case *types.AttributeValueMemberSS:
		for _, s := range slices.Sorted(slices.Values(v.Value)) {
			elems = append(elems, &types.AttributeValueMemberS{Value: s})
		}
	case *types.AttributeValueMemberNS:
		for _, n := range sortedNumbers(v.Value) {
			elems = append(elems, &types.AttributeValueMemberN{Value: n})
		}
	case *types.AttributeValueMemberBS:
		for _, p := range slices.SortedFunc(slices.Values(v.Value), bytes.Compare) {
			elems = append(elems, &types.AttributeValueMemberB{Value: p})
		}
	default:
		return nil, false
	}
	return elems, true
}

// mapAppendFunc writes the entries by key, so that equal maps make equal files.
func mapAppendFunc(t schemas.Type, b *array.MapBuilder) (appendFunc, error) {
	key := b.KeyBuilder().(*array.StringBuilder)
	item, err := valueAppendFunc(*t.Elem, b.ItemBuilder())
	if err != nil {
		return nil, err
	}
	var names []string
	return func(v types.AttributeValue) *misfit {
		if isNull(v) {
			b.AppendNull()
			return nil
		}
		m, ok := v.(*types.AttributeValueMemberM)
		if !ok {
			b.AppendNull()
			return wrongType(v, "M")
		}
		b.Append(true)
		// A nested map has a function and names of its own.
		names = slices.AppendSeq(names[:0], maps.Keys(m.Value))
		slices.Sort(names)
		var first *misfit
		for _, name := range names {
			key.Append(name)
			if m := item(m.Value[name]); m != nil && first == nil {
				first = m.in("key " + clip(name))
			}
		}
		return first
	}, nil
}

func structAppendFunc(t schemas.Type, b *array.StructBuilder) (appendFunc, error) {
	fields := make([]appendFunc, len(t.Fields))
	for i, f := range t.Fields {
		var err error
		if fields[i], err = valueAppendFunc(f.Type, b.FieldBuilder(i)); err != nil {
			return nil, err
		}
	}
	return func(v types.AttributeValue) *misfit {
		if isNull(v) {
			b.AppendNull()
			return nil
		}
		m, ok := v.(*types.AttributeValueMemberM)
		if !ok {
			b.AppendNull()
			return wrongType(v, "M")
		}
		b.Append(true)
		var first *misfit
		for i, f := range t.Fields {
			if m := fields[i](m.Value[f.Name]); m != nil && first == nil {
				first = m.in("field " + f.Name)
			}
		}
		return first
	}, nil
}
