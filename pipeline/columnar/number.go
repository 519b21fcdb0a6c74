package columnar

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
)

// Limits of a DynamoDB number, from "Data types and naming rules in DynamoDB": 38 digits
// of precision, magnitudes from 1E-130 to 9.99…E+125.
const (
	maxDigits      = 38
	minMagnitude   = -130
	maxMagnitude   = 125
	exponentIsHuge = 1 << 30
)

// A number is ± digits × 10^exp, exactly. Digits neither begin nor end with a zero, so
// that equal numbers are equal structs; zero has no digits and no sign.
type number struct {
	neg    bool
	n      int // digits used
	digits [maxDigits]byte
	exp    int
}

// parseNumber reads the text of an N attribute: an optional sign, digits with an optional
// point among them, an optional exponent.
func parseNumber(s string) (number, *misfit) {
	var x number
	i := 0
	if i < len(s) && (s[i] == '+' || s[i] == '-') {
		x.neg = s[i] == '-'
		i++
	}
	var (
		zeros  int // zeros seen that are only digits if another digit follows
		places int // digits behind the point
		seen   bool
		point  bool
		long   bool
	)
	for ; i < len(s); i++ {
		c := s[i]
		if c == '.' && !point {
			point = true
			continue
		}
		if c < '0' || c > '9' {
			break
		}
		seen = true
		if point {
			places++
		}
		if c == '0' {
			if x.n > 0 {
				zeros++
			}
			continue
		}
		if x.n+zeros+1 > maxDigits {
			long = true
			zeros = 0
			continue
		}
		for ; zeros > 0; zeros-- {
			x.digits[x.n] = '0'
			x.n++
		}
		x.digits[x.n] = c
		x.n++
	}
	exp, ok := parseExponent(s[i:])
	if !seen || !ok {
		return number{}, misfitf(ReasonFormat, "%q is not a number", clip(s))
	}
	if long {
		return number{}, misfitf(ReasonRange, "%s has more than %d digits", clip(s), maxDigits)
	}
	if x.n == 0 {
		return number{}, nil
	}
	x.exp = exp - places + zeros
	if m := x.exp + x.n - 1; m < minMagnitude || m > maxMagnitude {
		return number{}, misfitf(ReasonRange, "%s is not a DynamoDB number", clip(s))
	}
	return x, nil
}

// parseExponent reads what follows the digits: nothing, or E and a whole number. It stops
// counting where no number of DynamoDB's can be.
func parseExponent(s string) (exp int, ok bool) {
	if s == "" {
		return 0, true
	}
	if s[0] != 'e' && s[0] != 'E' {
		return 0, false
	}
	s = s[1:]
	neg := false
	if s != "" && (s[0] == '+' || s[0] == '-') {
		neg = s[0] == '-'
		s = s[1:]
	}
	if s == "" {
		return 0, false
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		exp = min(exp*10+int(c-'0'), exponentIsHuge)
	}
	if neg {
		exp = -exp
	}
	return exp, true
}

// scaled is the number times 10^scale as a whole number of at most precision digits.
func (x number) scaled(precision, scale int) (decimal128.Num, *misfit) {
	if x.n == 0 {
		return decimal128.Num{}, nil
	}
	if x.n+x.exp > precision-scale {
		return decimal128.Num{}, misfitf(ReasonRange, "%s has more than %d digits before the point", x, precision-scale)
	}
	zeros := x.exp + scale
	if zeros < 0 {
		return decimal128.Num{}, misfitf(ReasonScale, "%s has more than %d digits behind the point", x, scale)
	}
	var hi, lo uint64
	for i := range x.n + zeros {
		d := uint64(0)
		if i < x.n {
			d = uint64(x.digits[i] - '0')
		}
		carry, low := bits.Mul64(lo, 10)
		lo, d = bits.Add64(low, d, 0)
		hi = hi*10 + carry + d
	}
	v := decimal128.New(int64(hi), lo)
	if x.neg {
		v = v.Negate()
	}
	return v, nil
}

// integer is the number as a whole number within the given bounds.
func (x number) integer(least, most int64) (int64, *misfit) {
	// A whole number of 64 bits has at most 19 digits.
	v, m := x.scaled(19, 0)
	if m != nil {
		if m.reason == ReasonRange {
			return 0, misfitf(ReasonRange, "%s is not within %d and %d", x, least, most)
		}
		return 0, misfitf(ReasonScale, "%s is not a whole number", x)
	}
	low := v.LowBits()
	i := int64(low)
	if v.HighBits() != i>>63 || i < least || i > most {
		return 0, misfitf(ReasonRange, "%s is not within %d and %d", x, least, most)
	}
	return i, nil
}

// double is the float64 whose shortest text is the number: any other would show a value
// that the item did not have.
func (x number) double() (float64, *misfit) {
	if x.n == 0 {
		return 0, nil
	}
	// Every DynamoDB number is within float64's range.
	f, err := strconv.ParseFloat(x.String(), 64)
	if err != nil {
		return 0, misfitf(ReasonRange, "%s is not a double", x)
	}
	var text [32]byte
	back, m := parseNumber(string(strconv.AppendFloat(text[:0], f, 'e', -1, 64)))
	if m != nil || back != x {
		return 0, misfitf(ReasonScale, "%s has more digits than a double keeps", x)
	}
	return f, nil
}

// compare orders numbers by value.
func (x number) compare(y number) int {
	sign := func(x number) int {
		switch {
		case x.n == 0:
			return 0
		case x.neg:
			return -1
		}
		return 1
	}
	sx, sy := sign(x), sign(y)
	if sx != sy || sx == 0 {
		return cmp.Compare(sx, sy)
	}
	magnitude := cmp.Or(cmp.Compare(x.exp+x.n, y.exp+y.n), slices.Compare(x.digits[:x.n], y.digits[:y.n]))
	return sx * magnitude
}

// String writes the number in full if it is short, else with an exponent.
func (x number) String() string {
	if x.n == 0 {
		return "0"
	}
	var b []byte
	if x.neg {
		b = append(b, '-')
	}
	digits := x.digits[:x.n]
	point := x.n + x.exp // digits before the point
	switch {
	case x.exp >= 0 && point <= maxDigits:
		b = append(b, digits...)
		for range x.exp {
			b = append(b, '0')
		}
	case point > 0 && x.exp < 0:
		b = append(b, digits[:point]...)
		b = append(b, '.')
		b = append(b, digits[point:]...)
	case point > -6 && x.exp < 0:
		b = append(b, "0."...)
		for range -point {
			b = append(b, '0')
		}
		b = append(b, digits...)
	default:
		b = append(b, digits[0])
		if x.n > 1 {
			b = append(b, '.')
			b = append(b, digits[1:]...)
		}
		b = append(b, 'E')
		b = strconv.AppendInt(b, int64(point-1), 10)
	}
	return string(b)
}

// parseInt32 and its siblings read the text of an N attribute as one column type.

func parseInt32(s string) (int32, *misfit) {
	x, m := parseNumber(s)
	if m != nil {
		return 0, m
	}
	v, m := x.integer(math.MinInt32, math.MaxInt32)
	return int32(v), m
}

func parseInt64(s string) (int64, *misfit) {
	x, m := parseNumber(s)
	if m != nil {
		return 0, m
	}
	return x.integer(math.MinInt64, math.MaxInt64)
}

func parseDouble(s string) (float64, *misfit) {
	x, m := parseNumber(s)
	if m != nil {
		return 0, m
	}
	return x.double()
}

func parseDecimal(s string, precision, scale int) (decimal128.Num, *misfit) {
	x, m := parseNumber(s)
	if m != nil {
		return decimal128.Num{}, m
	}
	return x.scaled(precision, scale)
}
