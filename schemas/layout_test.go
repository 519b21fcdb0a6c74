package schemas

import (
	"slices"
	"testing"
	"time"
)

func instant(t testing.TB, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestLayoutPathIsInUTC(t *testing.T) {
	for _, tt := range []struct {
		unit     Unit
		at, want string
	}{
		{Day, "2026-11-30T00:00:00Z", "dt=2026-11-30"},
		{Day, "2026-11-30T23:59:59.999999999Z", "dt=2026-11-30"},
		{Day, "2026-11-30T23:30:00-01:00", "dt=2026-12-01"},
		{Hour, "2026-11-30T07:59:59.999Z", "dt=2026-11-30/hour=07"},
		{Hour, "2026-11-30T00:30:00+01:00", "dt=2026-11-29/hour=23"},
		{Day, "0001-01-01T00:00:00Z", "dt=0001-01-01"},
	} {
		if got := (Layout{Unit: tt.unit}).Path(instant(t, tt.at)); got != tt.want {
			t.Errorf("%s of %s is %s, want %s", tt.unit, tt.at, got, tt.want)
		}
	}
}

func TestLayoutColumnsAreThoseOfThePath(t *testing.T) {
	if got := (Layout{Unit: Day}).Columns(); !slices.Equal(got, []string{"dt"}) {
		t.Errorf("by day: %v", got)
	}
	if got := (Layout{Unit: Hour}).Columns(); !slices.Equal(got, []string{"dt", "hour"}) {
		t.Errorf("by hour: %v", got)
	}
}

func TestLayoutBoundsEncloseWhatHasThePath(t *testing.T) {
	for _, unit := range []Unit{Day, Hour} {
		l := Layout{Unit: unit}
		at := instant(t, "2024-02-29T23:59:59.999Z")
		from, to, err := l.Bounds(l.Path(at))
		if err != nil {
			t.Fatal(err)
		}
		if at.Before(from) || !at.Before(to) {
			t.Errorf("%s: %v is not within %v and %v", unit, at, from, to)
		}
		if l.Path(from) != l.Path(at) || l.Path(to.Add(-1)) != l.Path(at) || l.Path(to) == l.Path(at) || l.Path(from.Add(-1)) == l.Path(at) {
			t.Errorf("%s: bounds %v and %v are not those of %s", unit, from, to, l.Path(at))
		}
	}
}

func TestLayoutBoundsRefusesWhatPathDoesNotMake(t *testing.T) {
	for path, unit := range map[string]Unit{
		"":                         Day,
		"dt=2026-11-30/hour=07":    Day,
		"dt=2026-11-30/":           Day,
		"dt=2026-02-30":            Day,
		"dt=2026-1-30":             Day,
		"day=2026-11-30":           Day,
		"dt=2026-11-30":            Hour,
		"dt=2026-11-30/hour=7":     Hour,
		"dt=2026-11-30/hour=24":    Hour,
		"dt=2026-11-30/hour=07/x":  Hour,
		"../dt=2026-11-30/hour=07": Hour,
	} {
		if _, _, err := (Layout{Unit: unit}).Bounds(path); err == nil {
			t.Errorf("by %s, %q has bounds", unit, path)
		}
	}
}

func TestLayoutOutside(t *testing.T) {
	first, last := instant(t, "2020-01-01T00:00:00Z"), instant(t, "2020-12-31T00:00:00Z")
	open, closed := Layout{Unit: Day, FirstPartition: first}, Layout{Unit: Hour, FirstPartition: first, LastPartition: last}
	for _, tt := range []struct {
		name           string
		layout         Layout
		event, created string
		want           string
	}{
		{"first instant", open, "2020-01-01T00:00:00Z", "2026-11-30T12:00:00Z", ""},
		{"before the first", open, "2019-12-31T23:59:59.999Z", "2026-11-30T12:00:00Z", BeforeFirstPartition},
		{"end of the day after creation", open, "2026-12-01T23:59:59.999Z", "2026-11-30T00:00:00Z", ""},
		{"two days after creation", open, "2026-12-02T00:00:00Z", "2026-11-30T23:59:59Z", AfterLastPartition},
		{"creation in another zone", open, "2026-12-02T00:00:00Z", "2026-12-01T00:30:00+01:00", AfterLastPartition},
		{"last instant", closed, "2020-12-31T23:59:59.999Z", "2026-11-30T12:00:00Z", ""},
		{"after the last", closed, "2021-01-01T00:00:00Z", "2026-11-30T12:00:00Z", AfterLastPartition},
		{"year 10000", open, "9999-12-31T23:59:59Z", "2026-11-30T12:00:00Z", AfterLastPartition},
	} {
		got, outside := tt.layout.Outside(instant(t, tt.event), instant(t, tt.created))
		if got != tt.want || outside != (tt.want != "") {
			t.Errorf("%s: %q, %t, want %q", tt.name, got, outside, tt.want)
		}
	}
	if reason, outside := open.Outside(instant(t, "2070-01-01T00:00:00Z"), time.Time{}); outside {
		t.Errorf("without a known creation there is an upper bound: %s", reason)
	}
}
