package hot

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// DynamoDB's limits on numbers: 38 significant digits, 1E-130 to 9.99…E+125. Source: Amazon
// DynamoDB Developer Guide, Service quotas.
const (
	maxDigits   = 38
	minExponent = -130
	maxExponent = 125
)

// A decimal is ±0.digits × 10^exponent, digits without zeros at either end.
type decimal struct {
	negative bool
	digits   string
	exponent int
}

// parseDecimal reads a number as DynamoDB takes it: digits, a point, an exponent, no spaces.
func parseDecimal(s string) (decimal, error) {
	var d decimal
	mantissa, exponent := s, 0
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		n, err := strconv.ParseInt(s[i+1:], 10, 32)
		if err != nil {
			return d, fmt.Errorf("%q is not a number", s)
		}
		mantissa, exponent = s[:i], int(n)
	}
	unsigned := strings.TrimPrefix(mantissa, "-")
	if d.negative = len(unsigned) < len(mantissa); !d.negative {
		unsigned = strings.TrimPrefix(mantissa, "+")
	}
	whole, fraction, _ := strings.Cut(unsigned, ".")
	digits := whole + fraction
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return d, fmt.Errorf("%q is not a number", s)
	}
	trimmed := strings.TrimLeft(digits, "0")
	d.exponent = exponent + len(whole) - (len(digits) - len(trimmed))
	d.digits = strings.TrimRight(trimmed, "0")
	if d.digits == "" {
		return decimal{}, nil
	}
	switch scientific := d.exponent - 1; {
	case len(d.digits) > maxDigits:
		return d, fmt.Errorf("%q has more than %d significant digits", s, maxDigits)
	case scientific < minExponent || scientific > maxExponent:
		return d, errors.New(strconv.Quote(s) + " is out of a number's range")
	}
	return d, nil
}

// canonical is the same text for equal numbers; what is no number stays as it is.
func canonical(s string) string {
	d, err := parseDecimal(s)
	if err != nil {
		return s
	}
	sign := ""
	if d.negative {
		sign = "-"
	}
	return sign + d.digits + "e" + strconv.Itoa(d.exponent)
}

// sameItem reports whether two items hold the same values, numbers compared as numbers and
// sets without order, since the service gives back neither as it got them.
func sameItem(a, b Item) bool {
	if len(a) != len(b) {
		return false
	}
	for name, v := range a {
		w, ok := b[name]
		if !ok || !sameValue(v, w) {
			return false
		}
	}
	return true
}

func sameValue(a, b types.AttributeValue) bool {
	switch x := a.(type) {
	case *types.AttributeValueMemberN:
		y, ok := b.(*types.AttributeValueMemberN)
		return ok && canonical(x.Value) == canonical(y.Value)
	case *types.AttributeValueMemberM:
		y, ok := b.(*types.AttributeValueMemberM)
		return ok && sameItem(x.Value, y.Value)
	case *types.AttributeValueMemberL:
		y, ok := b.(*types.AttributeValueMemberL)
		return ok && slices.EqualFunc(x.Value, y.Value, sameValue)
	case *types.AttributeValueMemberSS:
		y, ok := b.(*types.AttributeValueMemberSS)
		return ok && slices.Equal(slices.Sorted(slices.Values(x.Value)), slices.Sorted(slices.Values(y.Value)))
	case *types.AttributeValueMemberNS:
		y, ok := b.(*types.AttributeValueMemberNS)
		return ok && slices.Equal(canonicals(x.Value), canonicals(y.Value))
	case *types.AttributeValueMemberBS:
		y, ok := b.(*types.AttributeValueMemberBS)
		return ok && slices.EqualFunc(sortedBytes(x.Value), sortedBytes(y.Value), slices.Equal)
	}
	return reflect.DeepEqual(a, b)
}

func canonicals(numbers []string) []string {
	out := make([]string, len(numbers))
	for i, n := range numbers {
		out[i] = canonical(n)
	}
	slices.Sort(out)
	return out
}

func sortedBytes(values [][]byte) [][]byte {
	return slices.SortedFunc(slices.Values(values), slices.Compare)
}
