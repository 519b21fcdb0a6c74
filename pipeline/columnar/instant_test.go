package columnar

import (
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestISO8601InEverySpelling(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"2026-11-30T16:12:02Z", "2026-11-30T16:12:02Z"},
		{"2026-11-30t16:12:02z", "2026-11-30T16:12:02Z"},
		{"2026-11-30 16:12:02Z", "2026-11-30T16:12:02Z"},
		{"2026-11-30T16:12:02.1Z", "2026-11-30T16:12:02.1Z"},
		{"2026-11-30T16:12:02,12Z", "2026-11-30T16:12:02.12Z"},
		{"2026-11-30T16:12:02.123000000000000Z", "2026-11-30T16:12:02.123Z"},
		{"2026-11-30T16:12:02+05:30", "2026-11-30T10:42:02Z"},
		{"2026-11-30T16:12:02-0800", "2026-12-01T00:12:02Z"},
		{"2026-11-30T16:12:02+01", "2026-11-30T15:12:02Z"},
		{"2026-11-30T16:12:02-00:00", "2026-11-30T16:12:02Z"},
		{"2024-02-29T00:00:00Z", "2024-02-29T00:00:00Z"},
		{"1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.999Z"},
		{"0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"},
		{"9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z"},
	} {
		v, m := parseISO8601(tc.text)
		if got := time.UnixMilli(int64(v)).UTC().Format(time.RFC3339Nano); m != nil || got != tc.want {
			t.Errorf("%s is %s (%v), want %s", tc.text, got, m, tc.want)
		}
	}
}

func TestISO8601IsExactOrRefused(t *testing.T) {
	for text, reason := range map[string]string{
		"2026-11-30T16:12:02.1234Z":           ReasonScale,
		"2026-01-01T00:00:00.123456789Z":      ReasonScale,
		"2026-11-30T16:12:02.00000000000001Z": ReasonScale,
		"0001-01-01T00:00:00+00:01":           ReasonRange,
		"9999-12-31T23:59:59-00:01":           ReasonRange,
		"0000-01-01T00:00:00Z":                ReasonRange,
		"":                                    ReasonFormat,
		"2026-11-30":                          ReasonFormat,
		"2026-11-30T16:12Z":                   ReasonFormat,
		"2026-11-30T16:12:02":                 ReasonFormat,
		"2026-11-30T16:12:02.Z":               ReasonFormat,
		"2026-11-30T16:12:02.123":             ReasonFormat,
		"2026-11-30T16:12:60Z":                ReasonFormat,
		"2026-11-30T24:00:00Z":                ReasonFormat,
		"2026-11-31T00:00:00Z":                ReasonFormat,
		"2025-02-29T00:00:00Z":                ReasonFormat,
		"2026-13-01T00:00:00Z":                ReasonFormat,
		"2026-11-30T16:12:02+24:00":           ReasonFormat,
		"2026-11-30T16:12:02+1":               ReasonFormat,
		"2026-11-30T16:12:02+01:0":            ReasonFormat,
		"2026-11-30T16:12:02ZZ":               ReasonFormat,
		"+2026-11-30T16:12:02Z":               ReasonFormat,
		"2026-11-30T16:12:02.12３Z":            ReasonFormat,
	} {
		if v, m := parseISO8601(text); m == nil || m.reason != reason {
			t.Errorf("%q gives %d, %v, want %s", text, v, m, reason)
		}
	}
}

func TestEpochs(t *testing.T) {
	for _, tc := range []struct {
		text   string
		places int
		want   int64
		reason string
	}{
		{"1796000523", 0, 1796000523000, ""},
		{"1796000523.004", 0, 1796000523004, ""},
		{"1.796000523004E9", 0, 1796000523004, ""},
		{"-0.001", 0, -1, ""},
		{"1796000523.0041", 0, 0, ReasonScale},
		{"1796000523004", 3, 1796000523004, ""},
		{"1796000523004.000", 3, 1796000523004, ""},
		{"0.5", 3, 0, ReasonScale},
		{"253402300800", 0, 0, ReasonRange},
		{"1E38", 3, 0, ReasonRange},
		{"99999999999999999999999999999999999999", 0, 0, ReasonRange},
		{"9223372036854775808", 3, 0, ReasonRange},
		{"2026", 3, 2026, ""},
		{"now", 3, 0, ReasonFormat},
	} {
		v, m := parseEpoch(tc.text, tc.places)
		if tc.reason == "" && (m != nil || int64(v) != tc.want) || tc.reason != "" && (m == nil || m.reason != tc.reason) {
			t.Errorf("%s with %d places gives %d, %v, want %d %s", tc.text, tc.places, v, m, tc.want, tc.reason)
		}
	}
}

var rfc3339 = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`)

// FuzzISO8601 compares with what package time reads of RFC 3339, of which we read more.
func FuzzISO8601(f *testing.F) {
	for _, s := range []string{
		"2026-11-30T16:12:02.123Z", "2026-11-30T16:12:02Z", "2026-11-30T16:12:02.123456789+01:00", "2026-02-29T00:00:00Z", "2024-02-29T23:59:59-23:59",
		"0000-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z", "2026-11-30 16:12:02z", "2026-11-30T16:12:02,5+0100", "2026-11-30T24:00:00Z", "1900-02-29T00:00:00Z", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, m := parseISO8601(s)
		want, err := time.Parse(time.RFC3339Nano, s)
		switch {
		case err == nil && !rfc3339.MatchString(s):
			// Package time takes hours of one digit, commas and offsets of days.
		case err != nil:
			// What only we read must at least mean the same in RFC 3339's spelling.
			if m == nil {
				sameInRFC3339(t, s, int64(v))
			}
		case len(fractionDigits(s)) > 9 && m != nil && m.reason == ReasonScale:
			// Package time drops what is below a nanosecond.
		case want.Nanosecond()%1e6 != 0:
			if m == nil || m.reason != ReasonScale {
				t.Fatalf("%q gives %d, %v, want scale", s, v, m)
			}
		case want.UTC().Year() < 1 || want.UTC().Year() > 9999:
			if m == nil || m.reason != ReasonRange {
				t.Fatalf("%q gives %d, %v, want range", s, v, m)
			}
		case m != nil || int64(v) != want.UnixMilli():
			t.Fatalf("%q gives %d, %v, want %d", s, v, m, want.UnixMilli())
		}
	})
}

func fractionDigits(s string) string {
	_, after, _ := strings.Cut(s, ".")
	return after[:len(after)-len(strings.TrimLeft(after, "0123456789"))]
}

func sameInRFC3339(t *testing.T, s string, got int64) {
	t.Helper()
	s = strings.Replace(s, ",", ".", 1)
	b := []byte(s)
	b[10] = 'T'
	s = string(b)
	switch body := s[19:]; {
	case strings.HasSuffix(body, "z"):
		s = s[:len(s)-1] + "Z"
	case strings.HasSuffix(body, "Z"):
	default:
		sign := 19 + strings.IndexAny(body, "+-")
		offset := strings.ReplaceAll(s[sign+1:], ":", "") + "00"
		s = s[:sign+1] + offset[:2] + ":" + offset[2:4]
	}
	want, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		t.Fatalf("accepted as %d, but %q is no time: %v", got, s, err)
	}
	if want.UnixMilli() != got {
		t.Fatalf("%q gives %d, want %d", s, got, want.UnixMilli())
	}
}
