package schemas

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Type is an Athena type.
type Type struct {
	Kind      Kind
	Precision int     // Decimal: 1..38
	Scale     int     // Decimal: 0..Precision
	Elem      *Type   // Array: the element; Map: the value (keys are strings)
	Fields    []Field // Struct
}

// A Field is one field of a struct type.
type Field struct {
	Name string // lower case; also the attribute's name in the item's map
	Type Type
}

// Kind is the outermost part of a Type, spelled as in Athena DDL.
type Kind string

// Kinds of types.
const (
	String    Kind = "string"
	Boolean   Kind = "boolean"
	Int       Kind = "int"
	BigInt    Kind = "bigint"
	Double    Kind = "double"
	Decimal   Kind = "decimal"
	Timestamp Kind = "timestamp" // milliseconds, UTC
	Date      Kind = "date"
	Binary    Kind = "binary"
	Array     Kind = "array"
	Map       Kind = "map"
	Struct    Kind = "struct"
)

// MaxPrecision is the number of digits of a DynamoDB number and of an Athena decimal.
const MaxPrecision = 38

// maxTypeDepth is DynamoDB's own limit on nesting.
const maxTypeDepth = 32

var scalarKinds = []Kind{String, Boolean, Int, BigInt, Double, Timestamp, Date, Binary}

// otherSpellings are type names of other systems, with the one to write here.
var otherSpellings = map[string]string{
	"bool": "boolean", "integer": "int", "long": "bigint", "number": "bigint or decimal(p,s)",
	"numeric": "decimal(p,s)", "float": "double or decimal(p,s)", "real": "double or decimal(p,s)",
	"text": "string", "varchar": "string", "char": "string", "smallint": "int", "tinyint": "int",
	"datetime": "timestamp", "bytes": "binary", "varbinary": "binary", "list": "array<…>", "set": "array<…>",
	"row": "struct<…>", "object": "struct<…> or map<string,…>",
}

// Nested reports whether the type is an array, a map or a struct.
func (t Type) Nested() bool { return t.Kind == Array || t.Kind == Map || t.Kind == Struct }

// Numeric reports whether the type holds a DynamoDB number.
func (t Type) Numeric() bool {
	return t.Kind == Int || t.Kind == BigInt || t.Kind == Double || t.Kind == Decimal
}

// Equal reports whether two types are the same, field by field.
func (t Type) Equal(u Type) bool {
	if t.Kind != u.Kind || t.Precision != u.Precision || t.Scale != u.Scale || (t.Elem == nil) != (u.Elem == nil) {
		return false
	}
	if t.Elem != nil && !t.Elem.Equal(*u.Elem) {
		return false
	}
	return slices.EqualFunc(t.Fields, u.Fields, func(a, b Field) bool { return a.Name == b.Name && a.Type.Equal(b.Type) })
}

// String spells the type as Athena does, without spaces: map<string,decimal(18,6)>.
func (t Type) String() string {
	switch t.Kind {
	case Decimal:
		return fmt.Sprintf("decimal(%d,%d)", t.Precision, t.Scale)
	case Array:
		return "array<" + t.Elem.String() + ">"
	case Map:
		return "map<string," + t.Elem.String() + ">"
	case Struct:
		fields := make([]string, len(t.Fields))
		for i, f := range t.Fields {
			fields[i] = f.Name + ":" + f.Type.String()
		}
		return "struct<" + strings.Join(fields, ",") + ">"
	}
	return string(t.Kind)
}

// ParseType reads an Athena type, with or without spaces. The error says what to write
// instead.
func ParseType(s string) (Type, error) {
	p := typeParser{rest: s}
	t, err := p.parse(0)
	if err == nil {
		if p.space(); p.rest != "" {
			err = fmt.Errorf("%q is left over; write %s", p.rest, t)
		}
	}
	if err != nil {
		return Type{}, fmt.Errorf("type %q: %w", s, err)
	}
	return t, nil
}

type typeParser struct{ rest string }

func (p *typeParser) space() { p.rest = strings.TrimLeft(p.rest, " \t\n") }

func (p *typeParser) word() string {
	p.space()
	end := strings.IndexFunc(p.rest, func(r rune) bool { return strings.ContainsRune("<>(),: \t\n", r) })
	if end < 0 {
		end = len(p.rest)
	}
	w := p.rest[:end]
	p.rest = p.rest[end:]
	return w
}

func (p *typeParser) expect(token, form string) error {
	if p.space(); !strings.HasPrefix(p.rest, token) {
		return fmt.Errorf("%q is missing; write %s", token, form)
	}
	p.rest = p.rest[len(token):]
	return nil
}

func (p *typeParser) parse(depth int) (Type, error) {
	if depth > maxTypeDepth {
		return Type{}, fmt.Errorf("nested deeper than %d, which no DynamoDB item is", maxTypeDepth)
	}
	word := p.word()
	kind := Kind(word)
	if depth > 0 && kind == Timestamp {
		// A nested timestamp would need an encoding, and an encoding belongs to a column.
		return Type{}, errors.New("a timestamp inside another type has no encoding; write string, or give it a column of its own")
	}
	if slices.Contains(scalarKinds, kind) {
		if p.space(); strings.HasPrefix(p.rest, "(") {
			return Type{}, fmt.Errorf("%s takes no argument; write %s", word, word)
		}
		return Type{Kind: kind}, nil
	}
	switch kind {
	case Decimal:
		return p.decimal()
	case Array:
		return p.array(depth)
	case Map:
		return p.mapOf(depth)
	case Struct:
		return p.structOf(depth)
	}
	if instead, ok := otherSpellings[strings.ToLower(word)]; ok {
		return Type{}, fmt.Errorf("no type %q here; write %s", word, instead)
	}
	if near := nearest(strings.ToLower(word), kindNames()); near != "" {
		return Type{}, fmt.Errorf("no type %q; write %s", word, near)
	}
	return Type{}, fmt.Errorf("no type %q; write one of %s", word, strings.Join(kindNames(), ", "))
}

func kindNames() []string {
	var names []string
	for _, k := range append(slices.Clone(scalarKinds), Decimal, Array, Map, Struct) {
		names = append(names, string(k))
	}
	return names
}

func (p *typeParser) decimal() (Type, error) {
	const form = "decimal(precision,scale), as in decimal(5,2)"
	if err := p.expect("(", form); err != nil {
		return Type{}, err
	}
	precision, errP := strconv.Atoi(p.word())
	if err := p.expect(",", form); err != nil {
		return Type{}, err
	}
	scale, errS := strconv.Atoi(p.word())
	if err := p.expect(")", form); err != nil {
		return Type{}, err
	}
	switch {
	case errP != nil || errS != nil:
		return Type{}, fmt.Errorf("precision and scale are whole numbers; write %s", form)
	case precision < 1 || precision > MaxPrecision:
		return Type{}, fmt.Errorf("precision %d is not within 1 and %d; write %s", precision, MaxPrecision, form)
	case scale < 0 || scale > precision:
		return Type{}, fmt.Errorf("scale %d is not within 0 and the precision, %d; write %s", scale, precision, form)
	}
	return Type{Kind: Decimal, Precision: precision, Scale: scale}, nil
}

func (p *typeParser) array(depth int) (Type, error) {
	const form = "array<element>, as in array<string>"
	if err := p.expect("<", form); err != nil {
		return Type{}, err
	}
	elem, err := p.parse(depth + 1)
	if err != nil {
		return Type{}, err
	}
	return Type{Kind: Array, Elem: &elem}, p.expect(">", form)
}

func (p *typeParser) mapOf(depth int) (Type, error) {
	const form = "map<string,value>, as in map<string,decimal(18,6)>"
	if err := p.expect("<", form); err != nil {
		return Type{}, err
	}
	if key := p.word(); key != string(String) {
		return Type{}, fmt.Errorf("map keys are strings in DynamoDB, not %q; write %s", key, form)
	}
	if err := p.expect(",", form); err != nil {
		return Type{}, err
	}
	elem, err := p.parse(depth + 1)
	if err != nil {
		return Type{}, err
	}
	return Type{Kind: Map, Elem: &elem}, p.expect(">", form)
}

func (p *typeParser) structOf(depth int) (Type, error) {
	const form = "struct<name:type,…>, as in struct<code:int,text:string>"
	if err := p.expect("<", form); err != nil {
		return Type{}, err
	}
	t := Type{Kind: Struct}
	for {
		name := p.word()
		if err := checkColumnName(name); err != nil {
			return Type{}, fmt.Errorf("field %w", err)
		}
		if slices.ContainsFunc(t.Fields, func(f Field) bool { return f.Name == name }) {
			return Type{}, fmt.Errorf("field %q stands there twice; give each field a name of its own", name)
		}
		if err := p.expect(":", form); err != nil {
			return Type{}, err
		}
		ft, err := p.parse(depth + 1)
		if err != nil {
			return Type{}, err
		}
		t.Fields = append(t.Fields, Field{Name: name, Type: ft})
		if p.space(); !strings.HasPrefix(p.rest, ",") {
			return t, p.expect(">", form)
		}
		p.rest = p.rest[1:]
	}
}

// checkColumnName accepts the names that Athena, Glue and every Parquet reader keep as
// they are.
func checkColumnName(name string) error {
	switch lower := strings.ToLower(name); {
	case name == "":
		return errors.New("name is empty; write lower case letters, digits and underscores")
	case name != lower && isIdentifier(name):
		return fmt.Errorf("name %q has upper case letters, which Athena folds; write %s", name, lower)
	case !isIdentifier(name) || name[0] == '_':
		return fmt.Errorf("name %q is not plain; write lower case letters, digits and underscores, a letter first", name)
	case len(name) > 128:
		return fmt.Errorf("name %q is longer than 128 characters; shorten it", name)
	}
	return nil
}

// nearest is the candidate that a misspelt word most likely means, or "".
func nearest(word string, candidates []string) string {
	best, bestDistance := "", 3
	for _, c := range candidates {
		if d := distance(word, c); d < bestDistance && d < len(c) && d < len(word) {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance counts the letters to insert, delete or replace to get from a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
