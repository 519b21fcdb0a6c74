package columnar

import (
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestNumbersReadTheSameInEverySpelling(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"0", "0"}, {"-0", "0"}, {"0.000", "0"}, {"0E99", "0"}, {".0", "0"}, {"0E99999999999999999999", "0"},
		{"1", "1"}, {"+1", "1"}, {"001", "1"}, {"1.", "1"}, {"1.0", "1"}, {"1E0", "1"}, {"10e-1", "1"}, {"0.1E+1", "1"},
		{"-12.50", "-12.5"}, {".5", "0.5"}, {"100", "100"}, {"1E2", "100"}, {"100.001", "100.001"},
		{"0.00001", "0.00001"}, {"0.0000001", "1E-7"}, {"1e-130", "1E-130"}, {"1.5E100", "1.5E100"},
		{"9.9999999999999999999999999999999999999E+125", "9.9999999999999999999999999999999999999E125"},
		{"0000000000000000000000000000000000000000000000012", "12"},
		{"12000000000000000000000000000000000000000000000000", "1.2E49"},
		{"99999999999999999999999999999999999999", "99999999999999999999999999999999999999"},
	} {
		x, m := parseNumber(tc.text)
		if m != nil || x.String() != tc.want {
			t.Errorf("%s reads as %s (%v), want %s", tc.text, x, m, tc.want)
		}
		if again, m := parseNumber(x.String()); m != nil || again != x {
			t.Errorf("%s, written as %s, reads as %s (%v)", tc.text, x, again, m)
		}
	}
}

func TestWhatIsNoDynamoDBNumberIsRefused(t *testing.T) {
	for text, reason := range map[string]string{
		"": ReasonFormat, "-": ReasonFormat, ".": ReasonFormat, "E1": ReasonFormat, "1E": ReasonFormat, "1E+": ReasonFormat, "1.2.3": ReasonFormat,
		" 1": ReasonFormat, "1 ": ReasonFormat, "0x10": ReasonFormat, "1_000": ReasonFormat, "NaN": ReasonFormat, "Infinity": ReasonFormat, "１": ReasonFormat, "--1": ReasonFormat,
		"1E126": ReasonRange, "1E-131": ReasonRange, "1E99999999999999999999": ReasonRange, "1E-99999999999999999999": ReasonRange,
		"123456789012345678901234567890123456789": ReasonRange, "0.123456789012345678901234567890123456789": ReasonRange,
	} {
		if x, m := parseNumber(text); m == nil || m.reason != reason {
			t.Errorf("%q reads as %s, %v, want %s", text, x, m, reason)
		}
	}
}

func TestNumbersCompareByValue(t *testing.T) {
	sorted := []string{"-1E100", "-10", "-9.5", "-9", "-0.1", "-1E-9", "0", "1E-130", "0.1", "0.11", "0.2", "1", "1.5", "2", "10", "99", "1E2", "1E125"}
	for i, a := range sorted {
		for j, b := range sorted {
			x, _ := parseNumber(a)
			y, _ := parseNumber(b)
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := x.compare(y); got != want {
				t.Errorf("compare %s with %s gives %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestDoublesKeepTheirText(t *testing.T) {
	for _, text := range []string{"0.1", "-273.15", "1E-130", "9.5E125", "9007199254740992", "5E-324", "1.7976931348623157E308", "123456.789"} {
		f, m := parseDouble(text)
		want, err := strconv.ParseFloat(text, 64)
		if strings.Contains(text, "324") || strings.Contains(text, "308") {
			if m == nil || m.reason != ReasonRange {
				t.Errorf("%s, no DynamoDB number, gives %g, %v", text, f, m)
			}
		} else if err != nil || m != nil || f != want {
			t.Errorf("%s gives %g, %v, want %g", text, f, m, want)
		}
	}
	if f, m := parseDouble("-0"); m != nil || math.Signbit(f) {
		t.Errorf("-0 gives %g, %v", f, m)
	}
}

var numberForm = regexp.MustCompile(`^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$`)

// FuzzNumber compares all that is done with numbers with math/big.
func FuzzNumber(f *testing.F) {
	for _, s := range []string{
		"0", "-0", "1", "+1", "007", "1.50", ".5", "5.", "1E2", "1e-2", "1.5E+3", "1556893286484340854", "9007199254740993", "9223372036854775807",
		"9223372036854775808", "-9223372036854775808", "-9223372036854775809", "2147483648", "99999999999999999999999999999999999999",
		"-99999999999999999999999999999999999999", "1E-130", "9.9999999999999999999999999999999999999E+125", "1E126", "0.123344", "1.2.3", "e", "",
		"170141183460469231731687303715884105728", "18446744073709551616", "0.1", "0.30000000000000004", "20.48", "42.332",
	} {
		f.Add(s, uint8(38), uint8(6))
	}
	f.Fuzz(func(t *testing.T, s string, p, q uint8) {
		if len(s) > 200 {
			return
		}
		x, m := parseNumber(s)
		if !numberForm.MatchString(s) {
			// Exponents of more than three digits are no matter for math/big.
			if m == nil && !regexp.MustCompile(`[eE][+-]?[0-9]{4,}$`).MatchString(s) {
				t.Fatalf("%q reads as %s", s, x)
			}
			return
		}
		want, ok := new(big.Rat).SetString(strings.TrimPrefix(s, "+"))
		if !ok {
			t.Fatalf("math/big does not read %q", s)
		}
		if m != nil {
			if m.reason != ReasonRange || fitsDynamoDB(want) {
				t.Fatalf("%q is refused: %v", s, *m)
			}
			return
		}
		if !fitsDynamoDB(want) {
			t.Fatalf("%q is accepted as %s", s, x)
		}
		if back, ok := new(big.Rat).SetString(x.String()); !ok || back.Cmp(want) != 0 {
			t.Fatalf("%q is written as %s", s, x)
		}
		precision := int(p)%maxDigits + 1
		scale := int(q) % (precision + 1)
		checkDecimal(t, x, want, precision, scale)
		checkInteger(t, x, want)
		if f, m := x.double(); m == nil {
			shortest, ok := new(big.Rat).SetString(strconv.FormatFloat(f, 'g', -1, 64))
			if !ok || shortest.Cmp(want) != 0 {
				t.Fatalf("%q becomes the double %g", s, f)
			}
		}
	})
}

func fitsDynamoDB(r *big.Rat) bool {
	if r.Sign() == 0 {
		return true
	}
	abs := new(big.Rat).Abs(r)
	if abs.Cmp(power(maxMagnitude+1)) >= 0 || abs.Cmp(power(minMagnitude)) < 0 {
		return false
	}
	// The digits are the number without its zeros at either end.
	digits := strings.Trim(strings.Replace(abs.FloatString(400), ".", "", 1), "0")
	return len(digits) <= maxDigits
}

func power(n int) *big.Rat {
	p := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(n, -n))), nil)
	if n < 0 {
		return new(big.Rat).SetFrac(big.NewInt(1), p)
	}
	return new(big.Rat).SetInt(p)
}

func checkDecimal(t *testing.T, x number, want *big.Rat, precision, scale int) {
	t.Helper()
	v, m := x.scaled(precision, scale)
	shifted := new(big.Rat).Mul(want, power(scale))
	tooLarge := new(big.Rat).Abs(want).Cmp(power(precision-scale)) >= 0
	switch {
	case tooLarge:
		if m == nil || m.reason != ReasonRange {
			t.Fatalf("%s in decimal(%d,%d) gives %v, %v, want range", x, precision, scale, v, m)
		}
	case !shifted.IsInt():
		if m == nil || m.reason != ReasonScale {
			t.Fatalf("%s in decimal(%d,%d) gives %v, %v, want scale", x, precision, scale, v, m)
		}
	default:
		if m != nil || v.BigInt().Cmp(shifted.Num()) != 0 {
			t.Fatalf("%s in decimal(%d,%d) gives %v, %v, want %s", x, precision, scale, v, m, shifted)
		}
	}
}

func checkInteger(t *testing.T, x number, want *big.Rat) {
	t.Helper()
	v, m := x.integer(math.MinInt64, math.MaxInt64)
	if fits := want.IsInt() && want.Num().IsInt64(); fits != (m == nil) || fits && want.Num().Int64() != v {
		t.Fatalf("%s as a whole number gives %d, %v", x, v, m)
	}
}
