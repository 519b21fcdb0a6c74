package pipeline_test

import (
	"math/big"
	"strings"
	"testing"

	"telemetrylake/pipeline"
)

func checkCompare(t *testing.T, a, b string) {
	t.Helper()
	x, okX := new(big.Int).SetString(a, 10)
	y, okY := new(big.Int).SetString(b, 10)
	if !okX || !okY {
		t.Fatalf("%q or %q is no number", a, b)
	}
	got := pipeline.SequenceNumber(a).Compare(pipeline.SequenceNumber(b))
	if want := x.Cmp(y); got != want {
		t.Errorf("%s against %s is %d, want %d", a, b, got, want)
	}
}

func TestSequenceNumbersCompareAsNumbersOfAnyLength(t *testing.T) {
	numbers := []string{
		"0", "00", "1", "01", "9", "10", "000000000000000000010", "99", "100", "100000000000000000001", "100000000000000000002",
		"99999999999999999999", "9223372036854775807", "9223372036854775808", "18446744073709551616",
		strings.Repeat("9", 40), "1" + strings.Repeat("0", 40), strings.Repeat("0", 60) + "7", "49599999999999999999999999999999999999999999999999999999999",
	}
	for _, a := range numbers {
		for _, b := range numbers {
			checkCompare(t, a, b)
		}
		if c := pipeline.SequenceNumber("").Compare(pipeline.SequenceNumber(a)); c != -1 {
			t.Errorf("nothing against %s is %d: it comes before all", a, c)
		}
		if c := pipeline.SequenceNumber(a).Compare(""); c != 1 {
			t.Errorf("%s against nothing is %d", a, c)
		}
	}
	if c := pipeline.SequenceNumber("").Compare(""); c != 0 {
		t.Errorf("nothing against nothing is %d", c)
	}
}

func FuzzSequenceNumberCompare(f *testing.F) {
	f.Add("1", "02")
	f.Add("100000000000000000000", "99999999999999999999")
	f.Add("0", "000")
	f.Fuzz(func(t *testing.T, a, b string) {
		if !isDigits(a) || !isDigits(b) {
			return // AWS sends digits
		}
		checkCompare(t, a, b)
		checkCompare(t, b, a)
	})
}

func isDigits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
