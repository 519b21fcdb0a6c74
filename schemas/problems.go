package schemas

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A ParseError is all that is wrong with one contract file, in order of lines.
type ParseError struct {
	Problems []Problem
}

// A Problem is one thing to change in a contract file.
type Problem struct {
	File string
	Line int    // 1 is the first
	Text string // what is wrong; what to write instead
}

// Error is one line for each problem.
func (e *ParseError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

func (p Problem) String() string { return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Text) }

// A reader walks the YAML of one contract and gathers problems rather than stopping at the
// first.
type reader struct {
	file     string
	problems []Problem
}

func (r *reader) fail(at *yaml.Node, format string, args ...any) {
	r.failLine(at.Line, format, args...)
}

func (r *reader) failLine(line int, format string, args ...any) {
	r.problems = append(r.problems, Problem{File: r.file, Line: max(line, 1), Text: fmt.Sprintf(format, args...)})
}

func (r *reader) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(r.problems, func(a, b Problem) int { return a.Line - b.Line })
	return &ParseError{Problems: r.problems}
}

// failSyntax reports an error of the YAML parser, whose text begins with the line.
func (r *reader) failSyntax(err error) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 1
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if number, after, ok := strings.Cut(rest, ": "); ok {
			if n, err := strconv.Atoi(number); err == nil {
				line, text = n, after
			}
		}
	}
	r.failLine(line, "not YAML: %s; check indentation and quotes here and in the line before", text)
}

// An object is a YAML mapping whose keys are all known and stand there once.
type object struct {
	r      *reader
	node   *yaml.Node
	what   string // how messages call it
	fields map[string]*yaml.Node
	keys   map[string]*yaml.Node // the nodes of the keys, for their lines
}

// object reads a mapping. It returns an empty object, and has reported why, if the node is
// something else.
func (r *reader) object(node *yaml.Node, what string, known ...string) *object {
	o := &object{r: r, node: node, what: what, fields: map[string]*yaml.Node{}, keys: map[string]*yaml.Node{}}
	if node.Kind != yaml.MappingNode {
		r.fail(node, "%s is %s; write a mapping with the keys %s", what, kindOf(node), strings.Join(known, ", "))
		return o
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		switch {
		case !slices.Contains(known, key.Value) && value.Tag == "!!null" && strings.ContainsAny(key.Value, ")>"):
			// {type: decimal(5,2)} is two keys in YAML.
			r.fail(key, "%s: %q is cut off from the value before it by a comma; write that value in quotes", what, key.Value)
		case !slices.Contains(known, key.Value):
			if near := nearest(strings.ToLower(key.Value), known); near != "" {
				r.fail(key, "%s: unknown key %q; write %s", what, key.Value, near)
			} else {
				r.fail(key, "%s: unknown key %q; write one of %s, or remove it", what, key.Value, strings.Join(known, ", "))
			}
		case o.fields[key.Value] != nil:
			r.fail(key, "%s: key %q stands there twice, first in line %d; remove one", what, key.Value, o.keys[key.Value].Line)
		case value.Kind == yaml.AliasNode:
			r.fail(value, "%s: %s is an alias; write its value out", what, key.Value)
			o.fields[key.Value], o.keys[key.Value] = &yaml.Node{Kind: yaml.AliasNode, Line: value.Line}, key
		default:
			o.fields[key.Value], o.keys[key.Value] = value, key
		}
	}
	return o
}

// named is how messages call an entry of a list: by its name, if it has one.
func named(what string, node *yaml.Node) string {
	if node.Kind != yaml.MappingNode {
		return what
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if value := node.Content[i+1]; node.Content[i].Value == "name" && value.Kind == yaml.ScalarNode && value.Value != "" {
			return what + " " + value.Value
		}
	}
	return what
}

func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	if n.Tag == "!!null" {
		return "empty"
	}
	return "the value " + strconv.Quote(n.Value)
}

// at is where to report a problem of a key: its value, or the object if the key is absent.
func (o *object) at(key string) *yaml.Node {
	if n := o.fields[key]; n != nil {
		return n
	}
	return o.node
}

func (o *object) has(key string) bool { return o.fields[key] != nil }

// text reads an optional text; "" means absent, or reported.
func (o *object) text(key string) string {
	n := o.fields[key]
	switch {
	case n == nil || n.Kind == yaml.AliasNode:
		return ""
	case n.Kind != yaml.ScalarNode || n.Tag == "!!null" || strings.TrimSpace(n.Value) == "":
		o.r.fail(n, "%s: %s is %s; write a text, or remove the key", o.what, key, kindOf(n))
		return ""
	}
	return strings.TrimSpace(n.Value)
}

// required reads a text that must be there; example is what to write.
func (o *object) required(key, example string) string {
	if !o.has(key) {
		if o.node.Kind == yaml.MappingNode {
			o.r.fail(o.node, "%s: no %s; write for example %s: %s", o.what, key, key, example)
		}
		return ""
	}
	return o.text(key)
}

// oneOf reads an optional word out of a few; the first word is the default.
func (o *object) oneOf(key string, words ...string) string {
	s := o.text(key)
	if s == "" {
		return words[0]
	}
	if !slices.Contains(words, s) {
		instead := "one of " + strings.Join(words, ", ")
		if near := nearest(strings.ToLower(s), words); near != "" {
			instead = near
		}
		o.r.fail(o.at(key), "%s: %s cannot be %q; write %s", o.what, key, s, instead)
		return words[0]
	}
	return s
}

// flag reads an optional true or false; absent is false.
func (o *object) flag(key string) bool {
	n := o.fields[key]
	if n == nil || n.Kind == yaml.AliasNode {
		return false
	}
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || n.Value != "true" && n.Value != "false" {
		o.r.fail(n, "%s: %s is %s; write true or false", o.what, key, kindOf(n))
	}
	return n.Value == "true"
}

// list reads an optional list; absent is empty.
func (o *object) list(key string) []*yaml.Node {
	n := o.fields[key]
	if n == nil || n.Kind == yaml.AliasNode {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		o.r.fail(n, "%s: %s is %s; write a list, each entry after a dash", o.what, key, kindOf(n))
		return nil
	}
	return n.Content
}

// document reads the one document of a file, or reports why it cannot.
func (r *reader) document(text []byte) *yaml.Node {
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	var first, second yaml.Node
	if err := decoder.Decode(&first); err != nil || len(first.Content) == 0 {
		if err == nil || errors.Is(err, io.EOF) {
			r.failLine(1, "the file is empty; write a contract, starting with format: %d", Format)
		} else {
			r.failSyntax(err)
		}
		return nil
	}
	if err := decoder.Decode(&second); err == nil {
		r.failLine(second.Line, "a second document; write one contract in a file")
	} else if !errors.Is(err, io.EOF) {
		r.failSyntax(err)
	}
	return first.Content[0]
}
