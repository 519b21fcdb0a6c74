package hot

import (
	"math/big"
	"testing"
)

func TestNumbersAreJudgedAsDynamoDBDoes(t *testing.T) {
	for s, ok := range map[string]bool{
		"0": true, "-0.00": true, "+1": true, ".5": true, "5.": true, "1e125": true, "9.99E+125": true, "1E-130": true, "000123": true,
		"12345678901234567890123456789012345678": true, "1000000000000000000000000000000000000000000": true,
		"": false, "-": false, ".": false, "1e": false, "1e1.5": false, "1 ": false, "0x1": false, "1_0": false, "--1": false, "∞": false,
		"1e126": false, "1e-131": false, "123456789012345678901234567890123456789": false, "1e99999999999": false,
	} {
		if _, err := parseDecimal(s); (err == nil) != ok {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestEqualNumbersHaveOneText(t *testing.T) {
	for _, group := range [][]string{
		{"20.5", "20.50", "+20.5", "2.05e1", "0020.5", "205E-1"}, {"0", "-0", "0.000", "0e5"}, {"-1", "-1.0", "-0.1e1"}, {"1", "1e0"}, {"10"}, {"warm"},
	} {
		for _, s := range group {
			if canonical(s) != canonical(group[0]) {
				t.Errorf("%q and %q differ", s, group[0])
			}
		}
	}
	if canonical("1") == canonical("10") || canonical("1") == canonical("-1") || canonical("0.1") == canonical("0.01") {
		t.Error("different numbers have one text")
	}
}

func FuzzCanonicalKeepsTheValue(f *testing.F) {
	for _, s := range []string{"20.50", "-0.5e3", ".5", "5.", "1e-130", "00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := parseDecimal(s); err != nil {
			return
		}
		want, ok := new(big.Rat).SetString(s)
		if !ok {
			t.Fatalf("%q is no number", s)
		}
		d, _ := parseDecimal(s)
		mantissa := d.digits
		if mantissa == "" {
			mantissa = "0"
		}
		sign := ""
		if d.negative {
			sign = "-"
		}
		exp := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(abs(d.exponent-len(d.digits)))), nil))
		got, _ := new(big.Rat).SetString(sign + mantissa)
		if d.exponent-len(d.digits) < 0 {
			got.Quo(got, exp)
		} else {
			got.Mul(got, exp)
		}
		if got.Cmp(want) != 0 {
			t.Errorf("%q is read as %v", s, got)
		}
	})
}

func abs(n int) int { return max(n, -n) }
