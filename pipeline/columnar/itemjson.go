package columnar

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"
)

// appendItemJSON writes an item as DynamoDB JSON, {"device_id":{"S":"dev-1"}}: what
// `aws dynamodb get-item` prints as Item, without spaces. The same item always gives the
// same text: names are sorted, and so are sets, which have no order of their own. Numbers
// are as they were received.
func appendItemJSON(b []byte, item map[string]types.AttributeValue) ([]byte, error) {
	b = append(b, '{')
	for i, name := range slices.Sorted(maps.Keys(item)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendJSONString(b, name), ':')
		var err error
		if b, err = appendValueJSON(b, item[name]); err != nil {
			return nil, fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	return append(b, '}'), nil
}

func appendValueJSON(b []byte, v types.AttributeValue) ([]byte, error) {
	b = append(b, '{')
	switch v := v.(type) {
	case *types.AttributeValueMemberS:
		b = appendJSONString(append(b, `"S":`...), v.Value)
	case *types.AttributeValueMemberN:
		b = appendJSONString(append(b, `"N":`...), v.Value)
	case *types.AttributeValueMemberB:
		b = appendBase64(append(b, `"B":`...), v.Value)
	case *types.AttributeValueMemberBOOL:
		b = fmt.Appendf(b, `"BOOL":%t`, v.Value)
	case *types.AttributeValueMemberNULL:
		b = fmt.Appendf(b, `"NULL":%t`, v.Value)
	case *types.AttributeValueMemberSS:
		b = appendSetJSON(b, "SS", slices.Sorted(slices.Values(v.Value)), appendJSONString)
	case *types.AttributeValueMemberNS:
		b = appendSetJSON(b, "NS", sortedNumbers(v.Value), appendJSONString)
	case *types.AttributeValueMemberBS:
		b = appendSetJSON(b, "BS", slices.SortedFunc(slices.Values(v.Value), bytes.Compare), appendBase64)
	case *types.AttributeValueMemberL:
		b = append(b, `"L":[`...)
		for i, elem := range v.Value {
			if i > 0 {
				b = append(b, ',')
			}
			var err error
			if b, err = appendValueJSON(b, elem); err != nil {
				return nil, err
			}
		}
		b = append(b, ']')
	case *types.AttributeValueMemberM:
		var err error
		if b, err = appendItemJSON(append(b, `"M":`...), v.Value); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("write value as DynamoDB JSON: unknown type %T", v)
	}
	return append(b, '}'), nil
}

func appendSetJSON[T any](b []byte, name string, elems []T, appendElem func([]byte, T) []byte) []byte {
	b = fmt.Appendf(b, `"%s":[`, name)
	for i, e := range elems {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendElem(b, e)
	}
	return append(b, ']')
}

// sortedNumbers sorts the texts of numbers by value, and by text where they are no numbers.
func sortedNumbers(set []string) []string {
	return slices.SortedFunc(slices.Values(set), func(a, b string) int {
		x, errX := parseNumber(a)
		y, errY := parseNumber(b)
		if errX == nil && errY == nil {
			if c := x.compare(y); c != 0 {
				return c
			}
		}
		return strings.Compare(a, b)
	})
}

func appendBase64(b, data []byte) []byte {
	b = append(b, '"')
	b = base64.StdEncoding.AppendEncode(b, data)
	return append(b, '"')
}

// appendJSONString leaves <, > and & as they are, which the JSON package would escape.
func appendJSONString(b []byte, s string) []byte {
	plain := true
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			plain = false
			break
		}
	}
	if plain {
		b = append(b, '"')
		b = append(b, s...)
		return append(b, '"')
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	// A string always encodes, into memory.
	_ = enc.Encode(s)
	return append(b, bytes.TrimSuffix(buf.Bytes(), []byte("\n"))...)
}
