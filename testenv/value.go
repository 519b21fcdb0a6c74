package testenv

import (
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"
)

// kind is the type of an attribute value.
type kind byte

const (
	kindString kind = 1 + iota
	kindNumber
	kindBinary
	kindBool
	kindNull
	kindMap
	kindList
	kindStringSet
	kindNumberSet
	kindBinarySet
)

var kindNames = [...]string{"", "S", "N", "B", "BOOL", "NULL", "M", "L", "SS", "NS", "BS"}

func (k kind) String() string { return kindNames[k] }

// kindOf returns the kind called name, 0 for none.
func kindOf(name string) kind {
	for k, n := range kindNames[1:] {
		if n == name {
			return kind(k + 1)
		}
	}
	return 0
}

// element is the kind of a set's members, 0 for what is no set.
func (k kind) element() kind {
	if k >= kindStringSet {
		return k - kindStringSet + kindString
	}
	return 0
}

// value is one attribute value. Values are never changed once they are shared.
type value struct {
	kind kind
	text string  // S; N in normal form; B as bytes; BOOL "true" or "false"
	list []value // L, and sets sorted and without duplicates
	attr item    // M
}

// item is a map of attributes: an item, or a map inside one. Sorted by name.
type item []attribute

type attribute struct {
	name  string
	value value
}

func (it item) find(name string) (int, bool) {
	return slices.BinarySearchFunc(it, name, func(a attribute, name string) int {
		return strings.Compare(a.name, name)
	})
}

func (it item) get(name string) (value, bool) {
	if i, ok := it.find(name); ok {
		return it[i].value, true
	}
	return value{}, false
}

// with returns it with the attribute set; it may reuse it's memory.
func (it item) with(name string, v value) item {
	i, ok := it.find(name)
	if ok {
		it[i].value = v
		return it
	}
	return slices.Insert(it, i, attribute{name, v})
}

// without returns it without the attribute; it may reuse it's memory.
func (it item) without(name string) item {
	if i, ok := it.find(name); ok {
		return slices.Delete(it, i, i+1)
	}
	return it
}

const maxDepth = 32 // levels of nesting, the service's limit

// decodeItem reads an item in DynamoDB JSON.
func decodeItem(n *node) (item, error) { return decodeMap(n, 0) }

func decodeMap(n *node, depth int) (item, error) {
	if n.kind != '{' {
		return nil, serialization("expected a map of attribute values")
	}
	it := make(item, 0, len(n.kids))
	sorted := true
	for i := range n.kids {
		name := n.kids[i].name
		if name == "" {
			return nil, invalid("One or more parameter values were invalid: attribute name must not be empty")
		}
		if len(name) > 65535 {
			return nil, invalid("Attribute name is too large, must be less than 65536 bytes")
		}
		v, err := decodeValue(&n.kids[i], depth)
		if err != nil {
			return nil, err
		}
		if i > 0 && it[i-1].name >= name {
			sorted = false
		}
		it = append(it, attribute{name, v})
	}
	if !sorted {
		slices.SortStableFunc(it, func(a, b attribute) int { return strings.Compare(a.name, b.name) })
		for i := 1; i < len(it); i++ {
			if it[i].name == it[i-1].name {
				return nil, serialization("duplicate attribute name " + it[i].name)
			}
		}
	}
	return it, nil
}

// decodeValue reads {"S": "…"} and its like.
func decodeValue(n *node, depth int) (value, error) {
	if depth > maxDepth {
		return value{}, invalid("Nesting Levels have exceeded supported limits")
	}
	if n.kind != '{' || len(n.kids) != 1 {
		return value{}, invalid("Supplied AttributeValue is empty, must contain exactly one of the supported datatypes")
	}
	k, c := kindOf(n.kids[0].name), &n.kids[0]
	v := value{kind: k}
	var err error
	switch k {
	case kindString, kindNumber, kindBinary:
		if c.kind != '"' {
			return value{}, serialization("attribute value of type " + k.String() + " must be a string")
		}
		v.text, err = decodeScalar(k, c.text)
	case kindBool:
		if c.kind != 't' && c.kind != 'f' {
			return value{}, serialization("attribute value of type BOOL must be true or false")
		}
		v.text = c.text
	case kindNull:
		if c.kind != 't' {
			return value{}, invalid("One or more parameter values were invalid: Null attribute value types must have the value of true")
		}
	case kindMap:
		v.attr, err = decodeMap(c, depth+1)
	case kindList:
		if c.kind != '[' {
			return value{}, serialization("attribute value of type L must be an array")
		}
		v.list = make([]value, len(c.kids))
		for i := range c.kids {
			if v.list[i], err = decodeValue(&c.kids[i], depth+1); err != nil {
				return value{}, err
			}
		}
	case kindStringSet, kindNumberSet, kindBinarySet:
		v.list, err = decodeSet(k, c)
	default:
		return value{}, invalid("Supplied AttributeValue is empty, must contain exactly one of the supported datatypes")
	}
	return v, err
}

func decodeScalar(k kind, text string) (string, error) {
	switch k {
	case kindNumber:
		return normalNumber(text)
	case kindBinary:
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return "", serialization("attribute value of type B must be base64")
		}
		return string(b), nil
	}
	return text, nil
}

func decodeSet(k kind, n *node) ([]value, error) {
	if n.kind != '[' {
		return nil, serialization("attribute value of type " + k.String() + " must be an array")
	}
	if len(n.kids) == 0 {
		return nil, invalid("One or more parameter values were invalid: An " + setName(k) + " set  may not be empty")
	}
	set := make([]value, len(n.kids))
	for i := range n.kids {
		if n.kids[i].kind != '"' {
			return nil, serialization("members of a " + k.String() + " must be strings")
		}
		text, err := decodeScalar(k.element(), n.kids[i].text)
		if err != nil {
			return nil, err
		}
		set[i] = value{kind: k.element(), text: text}
	}
	sortSet(set)
	for i := 1; i < len(set); i++ {
		if set[i].text == set[i-1].text {
			return nil, invalid("One or more parameter values were invalid: Input collection contains duplicates.")
		}
	}
	return set, nil
}

func setName(k kind) string {
	return map[kind]string{kindStringSet: "string", kindNumberSet: "number", kindBinarySet: "binary"}[k]
}

func sortSet(set []value) {
	slices.SortFunc(set, func(a, b value) int { c, _ := a.cmp(b); return c })
}

// appendItem appends the one encoding of an item: DynamoDB JSON with sorted names,
// sorted sets and normal numbers, so that equal items have equal bytes.
func appendItem(b []byte, it item) []byte {
	b = append(b, '{')
	for i, a := range it {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, a.name)
		b = append(b, ':')
		b = appendValue(b, a.value)
	}
	return append(b, '}')
}

func appendValue(b []byte, v value) []byte {
	b = append(b, '{', '"')
	b = append(b, v.kind.String()...)
	b = append(b, '"', ':')
	switch v.kind {
	case kindBool:
		b = append(b, v.text...)
	case kindNull:
		b = append(b, "true"...)
	case kindMap:
		b = appendItem(b, v.attr)
	case kindList:
		b = append(b, '[')
		for i, e := range v.list {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendValue(b, e)
		}
		b = append(b, ']')
	case kindStringSet, kindNumberSet, kindBinarySet:
		b = append(b, '[')
		for i, e := range v.list {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendScalar(b, e)
		}
		b = append(b, ']')
	default:
		b = appendScalar(b, v)
	}
	return append(b, '}')
}

func appendScalar(b []byte, v value) []byte {
	if v.kind != kindBinary {
		return appendString(b, v.text)
	}
	b = append(b, '"')
	b = base64.StdEncoding.AppendEncode(b, []byte(v.text))
	return append(b, '"')
}

// size is what the service counts an item as: names and values in bytes, a number as
// about half its digits, and small overheads for nesting.
func (it item) size() int {
	n := 0
	for _, a := range it {
		n += len(a.name) + a.value.size()
	}
	return n
}

func (v value) size() int {
	switch v.kind {
	case kindString, kindBinary:
		return len(v.text)
	case kindNumber:
		return numberSize(v.text)
	case kindBool, kindNull:
		return 1
	case kindMap:
		return 3 + len(v.attr) + v.attr.size()
	case kindList:
		n := 3 + len(v.list)
		for _, e := range v.list {
			n += e.size()
		}
		return n
	}
	n := 0
	for _, e := range v.list {
		n += e.size()
	}
	return n
}

func numberSize(text string) int {
	digits := strings.Trim(strings.Replace(strings.TrimPrefix(text, "-"), ".", "", 1), "0")
	n := 1 + (len(digits)+1)/2
	if text[0] == '-' {
		n++
	}
	return n
}

func (v value) equal(o value) bool {
	if v.kind != o.kind {
		return false
	}
	switch v.kind {
	case kindMap:
		return slices.EqualFunc(v.attr, o.attr, func(a, b attribute) bool {
			return a.name == b.name && a.value.equal(b.value)
		})
	case kindString, kindNumber, kindBinary, kindBool, kindNull:
		return v.text == o.text // numbers are in normal form
	}
	return slices.EqualFunc(v.list, o.list, value.equal)
}

// cmp orders two values of the same scalar kind; ok is false for all others.
func (v value) cmp(o value) (c int, ok bool) {
	if v.kind != o.kind {
		return 0, false
	}
	switch v.kind {
	case kindString, kindBinary:
		return strings.Compare(v.text, o.text), true
	case kindNumber:
		return cmpNumbers(v.text, o.text), true
	}
	return 0, false
}

// Stored items are their size followed by their encoding.

func encodeStored(it item) []byte {
	size := it.size()
	b := make([]byte, 0, size+size/2+16*len(it)+16)
	b = binary.AppendUvarint(b, uint64(size))
	return appendItem(b, it)
}

// openStored splits a stored item into its size and its DynamoDB JSON.
func openStored(b []byte) (size int, text []byte) {
	n, k := binary.Uvarint(b)
	return int(n), b[k:]
}

// decodeStored reads an item this package has encoded.
func decodeStored(b []byte) (item, error) {
	_, text := openStored(b)
	n, err := parseJSON(string(text))
	if err != nil {
		return nil, err
	}
	return decodeItem(&n)
}
