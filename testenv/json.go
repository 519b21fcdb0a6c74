package testenv

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// node is one JSON value of a request. Requests are read by hand because every
// conditional write passes here, and reflection would cost more than the write.
type node struct {
	kind byte   // the first byte of a JSON value: { [ " t f, '0' for a number; 0: absent
	name string // of a member of an object
	text string // of strings and numbers
	kids []node // of objects and arrays
}

const maxJSONDepth = 128

var errJSON = errors.New("malformed JSON")

// parseJSON reads one JSON text. Strings share body's memory.
func parseJSON(body string) (node, error) {
	if !utf8.ValidString(body) {
		return node{}, errJSON
	}
	p := jsonParser{s: body, stack: make([]node, 0, 16)}
	n, err := p.value(0)
	if err != nil {
		return node{}, err
	}
	p.space()
	if p.i != len(p.s) {
		return node{}, errJSON
	}
	return n, nil
}

type jsonParser struct {
	s string
	i int
	// A value's children gather on the stack and are moved to a slab when it ends: that
	// makes two allocations of a request instead of one for each object.
	stack, slab []node
}

// gather moves the children above the mark from the stack to where they stay.
func (p *jsonParser) gather(mark int) []node {
	kids := p.stack[mark:]
	if len(kids) > cap(p.slab)-len(p.slab) {
		p.slab = make([]node, 0, max(32, 2*len(kids)))
	}
	at := len(p.slab)
	p.slab = append(p.slab, kids...)
	p.stack = p.stack[:mark]
	return p.slab[at:len(p.slab):len(p.slab)]
}

func (p *jsonParser) space() {
	for p.i < len(p.s) {
		switch p.s[p.i] {
		case ' ', '\t', '\n', '\r':
			p.i++
		default:
			return
		}
	}
}

func (p *jsonParser) peek() byte {
	p.space()
	if p.i < len(p.s) {
		return p.s[p.i]
	}
	return 0
}

func (p *jsonParser) take(c byte) bool {
	if p.peek() == c {
		p.i++
		return true
	}
	return false
}

func (p *jsonParser) value(depth int) (node, error) {
	if depth > maxJSONDepth {
		return node{}, errJSON
	}
	switch c := p.peek(); c {
	case '{':
		return p.object(depth)
	case '[':
		return p.array(depth)
	case '"':
		s, err := p.str()
		return node{kind: '"', text: s}, err
	case 't', 'f', 'n':
		word := map[byte]string{'t': "true", 'f': "false", 'n': "null"}[c]
		if len(p.s)-p.i < len(word) || p.s[p.i:p.i+len(word)] != word {
			return node{}, errJSON
		}
		p.i += len(word)
		if c == 'n' {
			return node{}, nil // an explicit null is an absent member
		}
		return node{kind: c, text: word}, nil
	default:
		return p.number()
	}
}

func (p *jsonParser) number() (node, error) {
	start := p.i
	for p.i < len(p.s) {
		c := p.s[p.i]
		if (c < '0' || c > '9') && c != '-' && c != '+' && c != '.' && c != 'e' && c != 'E' {
			break
		}
		p.i++
	}
	if _, err := strconv.ParseFloat(p.s[start:p.i], 64); err != nil {
		return node{}, errJSON
	}
	return node{kind: '0', text: p.s[start:p.i]}, nil
}

func (p *jsonParser) object(depth int) (node, error) {
	p.i++
	if p.take('}') {
		return node{kind: '{'}, nil
	}
	mark := len(p.stack)
	for {
		if p.peek() != '"' {
			return node{}, errJSON
		}
		name, err := p.str()
		if err != nil {
			return node{}, err
		}
		if !p.take(':') {
			return node{}, errJSON
		}
		v, err := p.value(depth + 1)
		if err != nil {
			return node{}, err
		}
		v.name = name
		p.stack = append(p.stack, v)
		if p.take(',') {
			continue
		}
		if p.take('}') {
			return node{kind: '{', kids: p.gather(mark)}, nil
		}
		return node{}, errJSON
	}
}

func (p *jsonParser) array(depth int) (node, error) {
	p.i++
	if p.take(']') {
		return node{kind: '['}, nil
	}
	mark := len(p.stack)
	for {
		v, err := p.value(depth + 1)
		if err != nil {
			return node{}, err
		}
		p.stack = append(p.stack, v)
		if p.take(',') {
			continue
		}
		if p.take(']') {
			return node{kind: '[', kids: p.gather(mark)}, nil
		}
		return node{}, errJSON
	}
}

func (p *jsonParser) str() (string, error) {
	p.i++
	start := p.i
	for p.i < len(p.s) {
		switch c := p.s[p.i]; {
		case c == '"':
			s := p.s[start:p.i]
			p.i++
			return s, nil
		case c == '\\':
			return p.escaped(start)
		case c < ' ':
			return "", errJSON
		}
		p.i++
	}
	return "", errJSON
}

func (p *jsonParser) escaped(start int) (string, error) {
	b := append([]byte(nil), p.s[start:p.i]...)
	for p.i < len(p.s) {
		c := p.s[p.i]
		p.i++
		switch {
		case c == '"':
			return string(b), nil
		case c < ' ':
			return "", errJSON
		case c != '\\':
			b = append(b, c)
			continue
		}
		if p.i == len(p.s) {
			return "", errJSON
		}
		c = p.s[p.i]
		p.i++
		switch c {
		case '"', '\\', '/':
			b = append(b, c)
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'u':
			r, err := p.hex4()
			if err != nil {
				return "", err
			}
			if utf16.IsSurrogate(r) {
				if len(p.s)-p.i < 6 || p.s[p.i] != '\\' || p.s[p.i+1] != 'u' {
					return "", errJSON
				}
				p.i += 2
				low, err := p.hex4()
				if err != nil {
					return "", err
				}
				if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
					return "", errJSON
				}
			}
			b = utf8.AppendRune(b, r)
		default:
			return "", errJSON
		}
	}
	return "", errJSON
}

func (p *jsonParser) hex4() (rune, error) {
	if len(p.s)-p.i < 4 {
		return 0, errJSON
	}
	v, err := strconv.ParseUint(p.s[p.i:p.i+4], 16, 16)
	if err != nil {
		return 0, errJSON
	}
	p.i += 4
	return rune(v), nil
}

// get returns the member called name, or an absent node.
func (n *node) get(name string) *node {
	for i := range n.kids {
		if n.kids[i].name == name && n.kind == '{' {
			return &n.kids[i]
		}
	}
	return &node{}
}

func (n *node) absent() bool { return n.kind == 0 }

// str returns the text of the string member called name, or "".
func (n *node) str(name string) string {
	if m := n.get(name); m.kind == '"' {
		return m.text
	}
	return ""
}

// flag returns whether the member called name is true.
func (n *node) flag(name string) bool { return n.get(name).kind == 't' }

// integer returns the whole number of the member called name; ok is false when it is
// absent or none.
func (n *node) integer(name string) (v int, ok bool) {
	m := n.get(name)
	if m.kind != '0' {
		return 0, false
	}
	v, err := strconv.Atoi(m.text)
	return v, err == nil
}

// appendCanonical appends the value with the members of its objects sorted by name, so
// that two requests which say the same have the same bytes: clients write maps in any order.
func (n *node) appendCanonical(b []byte) []byte {
	switch n.kind {
	case '{':
		kids := slices.SortedStableFunc(slices.Values(n.kids), func(a, b node) int { return strings.Compare(a.name, b.name) })
		b = append(b, '{')
		for i := range kids {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, kids[i].name), ':')
			b = kids[i].appendCanonical(b)
		}
		return append(b, '}')
	case '[':
		b = append(b, '[')
		for i := range n.kids {
			if i > 0 {
				b = append(b, ',')
			}
			b = n.kids[i].appendCanonical(b)
		}
		return append(b, ']')
	case '"':
		return appendString(b, n.text)
	case 0:
		return append(b, "null"...)
	}
	return append(b, n.text...)
}

// appendString appends s as a JSON string.
func appendString(b []byte, s string) []byte {
	const digits = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[start:i]...)
		if c == '"' || c == '\\' {
			b = append(b, '\\', c)
		} else {
			b = append(b, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		}
		start = i + 1
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

// jsonObject builds one JSON object of a response, member by member.
type jsonObject struct{ b []byte }

func (o *jsonObject) name(name string) {
	if len(o.b) == 0 {
		o.b = append(o.b, '{')
	} else {
		o.b = append(o.b, ',')
	}
	o.b = appendString(o.b, name)
	o.b = append(o.b, ':')
}

func (o *jsonObject) str(name, v string) {
	o.name(name)
	o.b = appendString(o.b, v)
}

func (o *jsonObject) integer(name string, v int64) {
	o.name(name)
	o.b = strconv.AppendInt(o.b, v, 10)
}

func (o *jsonObject) flag(name string, v bool) {
	o.name(name)
	o.b = strconv.AppendBool(o.b, v)
}

// raw adds a member whose value is JSON already.
func (o *jsonObject) raw(name string, v []byte) {
	o.name(name)
	o.b = append(o.b, v...)
}

// done closes the object; an object without members is {}.
func (o *jsonObject) done() []byte {
	if len(o.b) == 0 {
		return []byte("{}")
	}
	return append(o.b, '}')
}

// appendArray appends the JSON values as one array.
func appendArray(b []byte, values [][]byte) []byte {
	b = append(b, '[')
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, v...)
	}
	return append(b, ']')
}
