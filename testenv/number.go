package testenv

import (
	"cmp"
	"math/big"
	"strconv"
	"strings"
)

// decimal is a DynamoDB number: the value is 0.digits times 10 to the power exp,
// negated when neg. Digits have neither leading nor trailing zeros; zero has none.
// Limits are the service's: 38 significant digits, magnitudes from 1E-130 to
// 9.9999999999999999999999999999999999999E+125.
type decimal struct {
	neg    bool
	digits string
	exp    int
}

const (
	maxDigits   = 38
	maxExponent = 126  // of 0.999… × 10^126
	minExponent = -129 // of 0.1 × 10^-129
)

// parseDecimal reads a number as the service accepts it: an optional sign, digits with
// an optional point, an optional exponent. Errors are the service's own texts.
func parseDecimal(s string) (decimal, error) {
	var d decimal
	t := s
	if t != "" && (t[0] == '-' || t[0] == '+') {
		d.neg = t[0] == '-'
		t = t[1:]
	}
	mantissa, exponent := t, 0
	if i := strings.IndexAny(t, "eE"); i >= 0 {
		mantissa = t[:i]
		e := t[i+1:]
		n, err := strconv.Atoi(e)
		if err != nil {
			// An exponent of more digits than an int holds overflows or underflows;
			// anything else is no number.
			rest := strings.TrimLeft(e, "+-")
			if len(e)-len(rest) > 1 || !allDigits(rest) || rest == "" {
				return decimal{}, notANumber(s)
			}
			n = 1 << 30
			if e[0] == '-' {
				n = -n
			}
		}
		exponent = max(min(n, 1<<30), -1<<30)
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	if whole == "" && fraction == "" || !allDigits(whole) || !allDigits(fraction) {
		return decimal{}, notANumber(s)
	}
	whole = strings.TrimLeft(whole, "0")
	fraction = strings.TrimRight(fraction, "0")
	switch {
	case fraction == "":
		d.digits = strings.TrimRight(whole, "0")
		d.exp = len(whole) + exponent
	case whole == "":
		d.digits = strings.TrimLeft(fraction, "0")
		d.exp = len(d.digits) - len(fraction) + exponent
	default:
		d.digits = whole + fraction
		d.exp = len(whole) + exponent
	}
	return d.check()
}

func notANumber(s string) error {
	return invalid("The parameter cannot be converted to a numeric value: " + s)
}

func allDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// check applies the limits and gives zero its one form.
func (d decimal) check() (decimal, error) {
	switch {
	case d.digits == "":
		return decimal{}, nil
	case len(d.digits) > maxDigits:
		return decimal{}, invalid("Attempting to store more than 38 significant digits in a Number")
	case d.exp > maxExponent:
		return decimal{}, invalid("Number overflow. Attempting to store a number with magnitude larger than supported range")
	case d.exp < minExponent:
		return decimal{}, invalid("Number underflow. Attempting to store a number with magnitude smaller than supported range")
	}
	return d, nil
}

// String returns the one text by which the service returns this value: no exponent, no
// leading or trailing zeros.
func (d decimal) String() string {
	if d.digits == "" {
		return "0"
	}
	var b strings.Builder
	if d.neg {
		b.WriteByte('-')
	}
	n := len(d.digits)
	switch {
	case d.exp >= n:
		b.WriteString(d.digits)
		b.WriteString(strings.Repeat("0", d.exp-n))
	case d.exp > 0:
		b.WriteString(d.digits[:d.exp])
		b.WriteByte('.')
		b.WriteString(d.digits[d.exp:])
	default:
		b.WriteString("0.")
		b.WriteString(strings.Repeat("0", -d.exp))
		b.WriteString(d.digits)
	}
	return b.String()
}

// normalNumber returns the normal text of the number in s.
func normalNumber(s string) (string, error) {
	if isNormal(s) {
		return s, nil
	}
	d, err := parseDecimal(s)
	if err != nil {
		return "", err
	}
	return d.String(), nil
}

// isNormal recognizes the common texts that already are in normal form: it may miss
// one, it never accepts another.
func isNormal(s string) bool {
	t := strings.TrimPrefix(s, "-")
	if t == "" || len(t) > maxDigits || !allDigits(t[:1]) {
		return false
	}
	whole, fraction, point := strings.Cut(t, ".")
	if whole == "0" && !point {
		return s == "0"
	}
	if whole[0] == '0' && len(whole) > 1 || !allDigits(whole) {
		return false
	}
	return !point || fraction != "" && fraction[len(fraction)-1] != '0' && allDigits(fraction)
}

func (d decimal) cmp(o decimal) int {
	if s, t := d.sign(), o.sign(); s != t || s == 0 {
		return cmp.Compare(s, t)
	}
	c := cmp.Compare(d.exp, o.exp)
	if c == 0 {
		// Digits of equal exponents compare as text: they have no leading zeros, and a
		// missing digit is a zero, which sorts below every digit that can follow.
		c = strings.Compare(d.digits, o.digits)
	}
	if d.neg {
		c = -c
	}
	return c
}

func (d decimal) sign() int {
	switch {
	case d.digits == "":
		return 0
	case d.neg:
		return -1
	}
	return 1
}

// cmpNumbers compares two texts in normal form.
func cmpNumbers(a, b string) int {
	if a == b {
		return 0
	}
	x, _ := parseDecimal(a)
	y, _ := parseDecimal(b)
	return x.cmp(y)
}

// addNumbers returns a + b, or a - b when subtract is set, of two texts in normal form.
// A result that needs more than 38 digits is refused rather than rounded.
func addNumbers(a, b string, subtract bool) (string, error) {
	x, err := parseDecimal(a)
	if err != nil {
		return "", err
	}
	y, err := parseDecimal(b)
	if err != nil {
		return "", err
	}
	if subtract && y.digits != "" {
		y.neg = !y.neg
	}
	// Both as integers times 10 to the power of the smaller unit.
	unit := min(x.unit(), y.unit())
	sum := new(big.Int).Add(x.scaled(unit), y.scaled(unit))
	r, err := parseDecimal(sum.String() + "E" + strconv.Itoa(unit))
	if err != nil {
		return "", err
	}
	return r.String(), nil
}

// unit is the power of ten of the last digit.
func (d decimal) unit() int { return d.exp - len(d.digits) }

// scaled returns the value divided by 10 to the power unit, which must not exceed the
// decimal's own unit.
func (d decimal) scaled(unit int) *big.Int {
	n := new(big.Int)
	if d.digits == "" {
		return n
	}
	n.SetString(d.digits+strings.Repeat("0", d.unit()-unit), 10)
	if d.neg {
		n.Neg(n)
	}
	return n
}

// appendKey appends bytes that order as the numbers do, none a prefix of another.
func (d decimal) appendKey(b []byte) []byte {
	if d.digits == "" {
		return append(b, 0x80)
	}
	flip := byte(0)
	if d.neg {
		flip = 0xff
	}
	e := uint16(d.exp + 1024)
	b = append(b, 0xc0^flip, byte(e>>8)^flip, byte(e)^flip)
	for i := range len(d.digits) {
		b = append(b, d.digits[i]^flip)
	}
	return append(b, flip)
}
