// Package columnar knows how change records become rows: decoded under a contract into
// Arrow, sorted in the total order, written as Parquet, and merged. Its one rule: a value
// is in its column exactly as it was in the item, or its whole record is in quarantine
// with the reason; nothing is rounded, cut, coerced or replaced by null.
package columnar

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"telemetrylake/schemas"
)

// timestampType is what every engine reads as the same instant: Athena's timestamps are
// milliseconds, and finer ones are rounded or refused there.
var timestampType = &arrow.TimestampType{Unit: arrow.Millisecond, TimeZone: "UTC"}

// ArrowSchema is the one mapping from a contract's types to Arrow, and so to Parquet:
//
//	string            utf8              BYTE_ARRAY STRING
//	boolean           bool              BOOLEAN
//	int, bigint       int32, int64      INT32, INT64
//	double            float64           DOUBLE
//	decimal(p,s)      decimal128(p,s)   DECIMAL in INT32 (p <= 9), INT64 (p <= 18), else FIXED_LEN_BYTE_ARRAY
//	timestamp         timestamp[ms,UTC] INT64 TIMESTAMP(MILLIS, UTC)
//	date              date32            INT32 DATE
//	binary            binary            BYTE_ARRAY
//	array<T>          list<element: T>  LIST, three levels
//	map<string,T>     map<utf8, T>      MAP
//	struct<n:T,…>     struct            group
//
// A column is nullable where its table says so; elements, map values and struct fields
// always are.
func ArrowSchema(t schemas.Table) (*arrow.Schema, error) {
	fields := make([]arrow.Field, len(t.Columns))
	for i, c := range t.Columns {
		dt, err := arrowType(c.Type)
		if err != nil {
			return nil, fmt.Errorf("map column %s of table %s: %w", c.Name, t.Name, err)
		}
		fields[i] = arrow.Field{Name: c.Name, Type: dt, Nullable: c.Nullable}
	}
	if len(fields) == 0 {
		return nil, fmt.Errorf("map table %s: it has no columns", t.Name)
	}
	return arrow.NewSchema(fields, nil), nil
}

func arrowType(t schemas.Type) (arrow.DataType, error) {
	switch t.Kind {
	case schemas.String:
		return arrow.BinaryTypes.String, nil
	case schemas.Boolean:
		return arrow.FixedWidthTypes.Boolean, nil
	case schemas.Int:
		return arrow.PrimitiveTypes.Int32, nil
	case schemas.BigInt:
		return arrow.PrimitiveTypes.Int64, nil
	case schemas.Double:
		return arrow.PrimitiveTypes.Float64, nil
	case schemas.Decimal:
		if t.Precision < 1 || t.Precision > maxDigits || t.Scale < 0 || t.Scale > t.Precision {
			return nil, fmt.Errorf("%s is not a decimal of at most %d digits", t, maxDigits)
		}
		return &arrow.Decimal128Type{Precision: int32(t.Precision), Scale: int32(t.Scale)}, nil
	case schemas.Timestamp:
		return timestampType, nil
	case schemas.Date:
		return arrow.FixedWidthTypes.Date32, nil
	case schemas.Binary:
		return arrow.BinaryTypes.Binary, nil
	case schemas.Array:
		elem, err := arrowType(*t.Elem)
		if err != nil {
			return nil, err
		}
		return arrow.ListOfField(arrow.Field{Name: "element", Type: elem, Nullable: true}), nil
	case schemas.Map:
		value, err := arrowType(*t.Elem)
		if err != nil {
			return nil, err
		}
		return arrow.MapOf(arrow.BinaryTypes.String, value), nil
	case schemas.Struct:
		if len(t.Fields) == 0 {
			return nil, fmt.Errorf("%s has no fields", t)
		}
		fields := make([]arrow.Field, len(t.Fields))
		for i, f := range t.Fields {
			dt, err := arrowType(f.Type)
			if err != nil {
				return nil, err
			}
			fields[i] = arrow.Field{Name: f.Name, Type: dt, Nullable: true}
		}
		return arrow.StructOf(fields...), nil
	}
	return nil, fmt.Errorf("no mapping for type %q", t)
}

// checkSchema refuses what ArrowSchema never makes, such as nanoseconds, unsigned
// integers, null columns and empty structs: some engine misreads or refuses each of them.
func checkSchema(s *arrow.Schema) error {
	if s.NumFields() == 0 {
		return fmt.Errorf("the schema has no columns")
	}
	for _, f := range s.Fields() {
		if err := checkType(f.Type); err != nil {
			return fmt.Errorf("column %s: %w", f.Name, err)
		}
	}
	return nil
}

func checkType(t arrow.DataType) error {
	switch t := t.(type) {
	case *arrow.StringType, *arrow.BooleanType, *arrow.Int32Type, *arrow.Int64Type, *arrow.Float64Type,
		*arrow.Date32Type, *arrow.BinaryType, *arrow.Decimal128Type:
		return nil
	case *arrow.TimestampType:
		if t.Unit == arrow.Millisecond && t.TimeZone == "UTC" {
			return nil
		}
	case *arrow.ListType:
		return checkType(t.Elem())
	case *arrow.MapType:
		if t.KeyType().ID() == arrow.STRING {
			return checkType(t.ItemType())
		}
	case *arrow.StructType:
		for _, f := range t.Fields() {
			if err := checkType(f.Type); err != nil {
				return fmt.Errorf("field %s: %w", f.Name, err)
			}
		}
		if t.NumFields() > 0 {
			return nil
		}
	}
	return fmt.Errorf("type %s has no place in the lake: write one that a contract can name", t)
}
