package hot

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// maxDepth is DynamoDB's limit on nesting. Source: Amazon DynamoDB Developer Guide, Service
// quotas.
const maxDepth = 32

// parseObject reads one JSON object: texts as S, numbers as N with their text, and BOOL,
// NULL, L and M. A member that stands there twice is an error, for one of them would be lost.
func parseObject(line []byte) (Item, error) {
	if !utf8.Valid(line) {
		return nil, errors.New("the line is not UTF-8")
	}
	p := json.NewDecoder(bytes.NewReader(line))
	p.UseNumber()
	v, err := parseValue(p, 0)
	if err != nil {
		return nil, err
	}
	m, ok := v.(*types.AttributeValueMemberM)
	if !ok {
		return nil, fmt.Errorf("%s is not an object; write one object a line", kindOf(v))
	}
	if _, err := p.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the object; write one object a line")
	}
	return m.Value, nil
}

func jsonCause(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the JSON ends in the middle")
	}
	return fmt.Errorf("malformed JSON: %w", err)
}

func parseValue(p *json.Decoder, depth int) (types.AttributeValue, error) {
	t, err := p.Token()
	if err != nil {
		return nil, jsonCause(err)
	}
	// The item itself is no level of nesting.
	if depth > maxDepth+1 {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	switch t := t.(type) {
	case string:
		return text(t), nil
	case json.Number:
		return &types.AttributeValueMemberN{Value: t.String()}, nil
	case bool:
		return &types.AttributeValueMemberBOOL{Value: t}, nil
	case json.Delim:
		if t == '[' {
			return parseList(p, depth)
		}
		return parseMembers(p, depth)
	}
	return &types.AttributeValueMemberNULL{Value: true}, nil
}

func parseList(p *json.Decoder, depth int) (types.AttributeValue, error) {
	list := []types.AttributeValue{}
	for p.More() {
		v, err := parseValue(p, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	if _, err := p.Token(); err != nil {
		return nil, jsonCause(err)
	}
	return &types.AttributeValueMemberL{Value: list}, nil
}

func parseMembers(p *json.Decoder, depth int) (types.AttributeValue, error) {
	members := Item{}
	for p.More() {
		t, err := p.Token()
		if err != nil {
			return nil, jsonCause(err)
		}
		name, ok := t.(string)
		if !ok {
			return nil, fmt.Errorf("malformed JSON: %v where a member's name must be", t)
		}
		if _, twice := members[name]; twice {
			return nil, fmt.Errorf("the member %q stands there twice", name)
		}
		if members[name], err = parseValue(p, depth+1); err != nil {
			return nil, err
		}
	}
	if _, err := p.Token(); err != nil {
		return nil, jsonCause(err)
	}
	return object(members), nil
}

// asExported reads a line of an export, {"Item":{…}} of DynamoDB JSON. ok is false if the
// object is none: the type of each attribute must stand there.
func asExported(fields Item) (item Item, ok bool, err error) {
	m, isMap := fields["Item"].(*types.AttributeValueMemberM)
	if !isMap || len(fields) != 1 || len(m.Value) == 0 {
		return nil, false, nil
	}
	for _, v := range m.Value {
		if _, _, tagged := tagOf(v); !tagged {
			return nil, false, nil
		}
	}
	item, err = untagAll(m.Value)
	return item, true, err
}

// tagOf splits {"S":"text"} into its type and value.
func tagOf(v types.AttributeValue) (tag string, value types.AttributeValue, ok bool) {
	m, isMap := v.(*types.AttributeValueMemberM)
	if !isMap || len(m.Value) != 1 {
		return "", nil, false
	}
	for tag, value = range m.Value {
	}
	switch tag {
	case "S", "N", "B", "BOOL", "NULL", "L", "M", "SS", "NS", "BS":
		return tag, value, true
	}
	return "", nil, false
}

func untagAll(in Item) (Item, error) {
	out := make(Item, len(in))
	for name, v := range in {
		var err error
		if out[name], err = untag(v); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return out, nil
}

func untag(v types.AttributeValue) (types.AttributeValue, error) {
	tag, value, ok := tagOf(v)
	if !ok {
		return nil, errors.New(`a value is not of the form {"TYPE":VALUE}`)
	}
	switch value := value.(type) {
	case *types.AttributeValueMemberS:
		switch tag {
		case "S":
			return value, nil
		case "N":
			_, err := parseDecimal(value.Value)
			return &types.AttributeValueMemberN{Value: value.Value}, err
		case "B":
			b, err := base64.StdEncoding.DecodeString(value.Value)
			if err != nil {
				return nil, errors.New("a B is not base64")
			}
			return &types.AttributeValueMemberB{Value: b}, nil
		}
	case *types.AttributeValueMemberBOOL:
		switch {
		case tag == "BOOL":
			return value, nil
		case tag == "NULL" && value.Value:
			return &types.AttributeValueMemberNULL{Value: true}, nil
		}
	case *types.AttributeValueMemberM:
		if tag == "M" {
			m, err := untagAll(value.Value)
			return object(m), err
		}
	case *types.AttributeValueMemberL:
		return untagList(tag, value.Value)
	}
	return nil, fmt.Errorf("%s is no value of type %s", kindOf(value), tag)
}

func untagList(tag string, values []types.AttributeValue) (types.AttributeValue, error) {
	if tag == "L" {
		list := make([]types.AttributeValue, len(values))
		for i, v := range values {
			var err error
			if list[i], err = untag(v); err != nil {
				return nil, err
			}
		}
		return &types.AttributeValueMemberL{Value: list}, nil
	}
	elem := map[string]string{"SS": "S", "NS": "N", "BS": "B"}[tag]
	if elem == "" {
		return nil, fmt.Errorf("a list is no value of type %s", tag)
	}
	var texts []string
	var blobs [][]byte
	for _, v := range values {
		e, err := untag(object(Item{elem: v}))
		if err != nil {
			return nil, err
		}
		switch e := e.(type) {
		case *types.AttributeValueMemberS:
			texts = append(texts, e.Value)
		case *types.AttributeValueMemberN:
			texts = append(texts, e.Value)
		case *types.AttributeValueMemberB:
			blobs = append(blobs, e.Value)
		}
	}
	switch tag {
	case "SS":
		return &types.AttributeValueMemberSS{Value: texts}, nil
	case "NS":
		return &types.AttributeValueMemberNS{Value: texts}, nil
	}
	return &types.AttributeValueMemberBS{Value: blobs}, nil
}

// kindOf names a value's type for people.
func kindOf(v types.AttributeValue) string {
	switch v := v.(type) {
	case *types.AttributeValueMemberS:
		return fmt.Sprintf("%q", clip(v.Value))
	case *types.AttributeValueMemberN:
		return clip(v.Value)
	case *types.AttributeValueMemberBOOL:
		return fmt.Sprint(v.Value)
	case *types.AttributeValueMemberNULL:
		return "null"
	case *types.AttributeValueMemberL:
		return "a list"
	case *types.AttributeValueMemberM:
		return "a map"
	case *types.AttributeValueMemberB:
		return "a binary"
	}
	return "a set"
}

// clip keeps a message short.
func clip(s string) string {
	const most = 40
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
