package testenv

import (
	"math/big"
	"strings"
	"testing"
)

func TestNumberHasOneNormalText(t *testing.T) {
	nines := strings.Repeat("9", 38)
	for in, want := range map[string]string{
		"0": "0", "-0": "0", "0.00": "0", "0E9": "0", "+7": "7", "007": "7", "-007.50": "-7.5", ".5": "0.5", "5.": "5",
		"1E3": "1000", "1.25e2": "125", "12e-1": "1.2", "100": "100", "1e0": "1",
		"1556893286484340854": "1556893286484340854", "9007199254740993": "9007199254740993",
		nines: nines, "-" + nines: "-" + nines, nines + "0": nines + "0",
		"1E-130":                                 "0." + strings.Repeat("0", 129) + "1",
		"9." + strings.Repeat("9", 37) + "E+125": nines + strings.Repeat("0", 88),
	} {
		got, err := normalNumber(in)
		if err != nil || got != want {
			t.Errorf("%q became %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestNumberOutsideTheLimitsIsRefused(t *testing.T) {
	for in, want := range map[string]string{
		"":                             "cannot be converted",
		"-":                            "cannot be converted",
		".":                            "cannot be converted",
		"1e":                           "cannot be converted",
		"1e+-2":                        "cannot be converted",
		"NaN":                          "cannot be converted",
		"0x10":                         "cannot be converted",
		" 1":                           "cannot be converted",
		"1_0":                          "cannot be converted",
		"1.2.3":                        "cannot be converted",
		strings.Repeat("9", 39):        "38 significant digits",
		"1." + strings.Repeat("3", 38): "38 significant digits",
		"1E126":                        "overflow",
		"1E99999999999999999999":       "overflow",
		"1E-131":                       "underflow",
		"1E-99999999999999999999":      "underflow",
	} {
		if got, err := normalNumber(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q became %q, %v; want an error with %q", in, got, err, want)
		}
	}
}

var ascending = []string{
	"-" + strings.Repeat("9", 38) + strings.Repeat("0", 88), "-100", "-99.5", "-10", "-9", "-1.01", "-1", "-0.5", "-0.01", "-0.001",
	"0", "0.001", "0.01", "0.5", "1", "1.01", "9", "9.99", "10", "99.5", "100",
	"12345678901234567890123456789012345677", "12345678901234567890123456789012345678",
}

func TestNumbersOrderAsDecimals(t *testing.T) {
	for i, a := range ascending {
		for j, b := range ascending {
			want := max(min(i-j, 1), -1)
			if got := cmpNumbers(a, b); got != want {
				t.Errorf("cmp(%s, %s) = %d", a, b, got)
			}
			x, y := appendSort(nil, value{kind: kindNumber, text: a}), appendSort(nil, value{kind: kindNumber, text: b})
			if got := strings.Compare(string(x), string(y)); got != want {
				t.Errorf("keys of %s and %s order %d", a, b, got)
			}
		}
	}
}

func TestSumsAreExactOrRefused(t *testing.T) {
	for _, c := range []struct {
		a, b     string
		subtract bool
		want     string
	}{
		{"0.1", "0.2", false, "0.3"},
		{"9007199254740993", "1", false, "9007199254740994"},
		{"1", "1", true, "0"},
		{"0", "5", true, "-5"},
		{"1", "0.0000000000000000000000000000000000001", false, "1.0000000000000000000000000000000000001"},
		{"99", "1", false, "100"},
		{"-1.5", "0.5", true, "-2"},
	} {
		got, err := addNumbers(c.a, c.b, c.subtract)
		if err != nil || got != c.want {
			t.Errorf("%+v: got %q, %v", c, got, err)
		}
	}
	if got, err := addNumbers("1E40", "1", false); err == nil {
		t.Errorf("a sum of 41 digits became %s", got)
	}
}

func FuzzNumberKeepsItsValue(f *testing.F) {
	for _, s := range append([]string{"1E-130", "-0.00", "1e5", "9.99E+125", "+.5e-3", "1E400", "0E10000000000000000000"}, ascending...) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := normalNumber(s)
		if err != nil {
			return
		}
		mantissa, _, _ := strings.Cut(strings.ToLower(s), "e")
		if zero := strings.Trim(mantissa, "+-0.") == ""; zero || got == "0" {
			// Not for big.Rat, which would work out any power of ten.
			if !zero || got != "0" {
				t.Fatalf("%q became %q", s, got)
			}
		} else if len(s) < 400 {
			want, ok := new(big.Rat).SetString(s)
			have, ok2 := new(big.Rat).SetString(got)
			if !ok || !ok2 || want.Cmp(have) != 0 {
				t.Fatalf("%q became %q", s, got)
			}
		}
		again, err := normalNumber(got)
		if err != nil || again != got {
			t.Fatalf("the normal text %q of %q became %q, %v", got, s, again, err)
		}
		d, err := parseDecimal(got)
		if err != nil || d.String() != got || len(d.digits) > maxDigits {
			t.Fatalf("%q has the digits %+v, %v", got, d, err)
		}
	})
}
