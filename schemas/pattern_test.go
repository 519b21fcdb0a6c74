package schemas

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func mustPattern(t testing.TB, s string) Pattern {
	t.Helper()
	p, err := ParsePattern(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const (
	devicePattern = "DEVICE#{device_id}[#{yyyy-mm}]"
	timePattern   = "TS#{event_time}[#{tie}]"
)

func TestPatternMatch(t *testing.T) {
	type values = map[string]string
	for _, tt := range []struct {
		pattern, text string
		want          values // nil: no match
	}{
		{"{device_id}", "d1", values{"device_id": "d1"}},
		{"{device_id}", "", nil},
		{"DEVICE#{device_id}", "DEVICE#d1", values{"device_id": "d1"}},
		{"DEVICE#{device_id}", "DEVICE#", nil},
		{"DEVICE#{device_id}", "device#d1", nil},
		{"DEVICE#{device_id}", "DEVICE#a#b", values{"device_id": "a#b"}},
		{"DEVICE#{device_id}#{yyyy-mm}", "DEVICE#d1#2026-11", values{"device_id": "d1", "yyyy-mm": "2026-11"}},
		{"DEVICE#{device_id}#{yyyy-mm}", "DEVICE#d1", nil},
		{"DEVICE#{device_id}#{yyyy-mm}", "DEVICE#d1#2026-13", nil},
		{"DEVICE#{device_id}#{yyyy-mm}", "DEVICE#d1#2026-00", nil},
		{"DEVICE#{device_id}#{yyyy-mm}", "DEVICE#d1#x026-11", nil},
		{devicePattern, "DEVICE#d1", values{"device_id": "d1"}},
		{devicePattern, "DEVICE#d1#2026-11", values{"device_id": "d1", "yyyy-mm": "2026-11"}},
		{devicePattern, "DEVICE#a#b", values{"device_id": "a#b"}},
		{devicePattern, "DEVICE#a#b#2026-11", values{"device_id": "a#b", "yyyy-mm": "2026-11"}},
		{devicePattern, "DEVICE#2026-11", values{"device_id": "2026-11"}},
		{devicePattern, "DEVICE#d1#", values{"device_id": "d1#"}},
		{timePattern, "TS#2026-11-30T00:00:00Z", values{"event_time": "2026-11-30T00:00:00Z"}},
		{timePattern, "TS#2026-11-30T00:00:00.5+01:00#7", values{"event_time": "2026-11-30T00:00:00.5+01:00", "tie": "7"}},
		{timePattern, "TS#2026-11-30T00:00:00Z#a#b", values{"event_time": "2026-11-30T00:00:00Z", "tie": "a#b"}},
		{timePattern, "TS#yesterday", nil},
		{timePattern, "TS#2026-11-30T00:00:00Z#", nil},
		{"{a}-{b}", "x-y-z", values{"a": "x-y", "b": "z"}},
		{"{a}--{b}", "x---y", values{"a": "x-", "b": "y"}},
		{"{a}[-{b}][-{c}]", "x", values{"a": "x"}},
		{"{a}[-{b}][-{c}]", "x-y", values{"a": "x", "b": "y"}},
		{"{a}[-{b}][-{c}]", "x-y-z", values{"a": "x", "b": "y", "c": "z"}},
		{"[{a}/]{b}", "x", values{"b": "x"}},
		{"[{a}/]{b}", "x/y/z", values{"a": "x/y", "b": "z"}},
		{"{a}/end", "x/end", values{"a": "x"}},
		{"{a}/end", "x/end/end", values{"a": "x/end"}},
	} {
		got, ok := mustPattern(t, tt.pattern).Match(tt.text)
		if ok != (tt.want != nil) || !maps.Equal(got, tt.want) {
			t.Errorf("%s matches %q as %v, want %v", tt.pattern, tt.text, got, tt.want)
		}
	}
}

func TestPatternMatchOfManySeparatorsEnds(t *testing.T) {
	p := mustPattern(t, "{a}#{b}#{c}#{d}#{e}#{yyyy-mm}")
	if _, ok := p.Match(strings.Repeat("#", 2048)); ok {
		t.Error("2,048 separators match")
	}
}

func TestPatternFormat(t *testing.T) {
	type values = map[string]string
	for _, tt := range []struct {
		pattern string
		values  values
		want    string
		problem string
	}{
		{devicePattern, values{"device_id": "d1"}, "DEVICE#d1", ""},
		{devicePattern, values{"device_id": "d1", "yyyy-mm": ""}, "DEVICE#d1", ""},
		{devicePattern, values{"device_id": "d1", "yyyy-mm": "2026-11"}, "DEVICE#d1#2026-11", ""},
		{devicePattern, values{"device_id": "a#b", "yyyy-mm": "2026-11"}, "DEVICE#a#b#2026-11", ""},
		{devicePattern, values{"device_id": "a#2026-10", "yyyy-mm": "2026-11"}, "DEVICE#a#2026-10#2026-11", ""},
		{devicePattern, values{"device_id": "a#2026-11"}, "", `"DEVICE#a#2026-11" would be read back differently`},
		{devicePattern, values{"yyyy-mm": "2026-11"}, "", "no value for {device_id}"},
		{devicePattern, values{"device_id": "d1", "yyyy-mm": "2026-13"}, "", `"2026-13" cannot be {yyyy-mm}`},
		{devicePattern, values{"device_id": "d1", "site": "s"}, "", "it has no capture {site}"},
		{timePattern, values{"event_time": "2026-11-30T00:00:00Z", "tie": "#1"}, "TS#2026-11-30T00:00:00Z##1", ""},
		{"{a}-{b}", values{"a": "x", "b": "y-z"}, "", `read back with {`},
		{"{a}[-{b}-{c}]", values{"a": "x", "b": "y"}, "", "no value for {c}"},
	} {
		got, err := mustPattern(t, tt.pattern).Format(tt.values)
		switch {
		case tt.problem == "" && (err != nil || got != tt.want):
			t.Errorf("%s of %v is %q, %v, want %q", tt.pattern, tt.values, got, err, tt.want)
		case tt.problem != "" && (err == nil || !strings.Contains(err.Error(), tt.problem)):
			t.Errorf("%s of %v: error is %v, want %q in it", tt.pattern, tt.values, err, tt.problem)
		}
	}
}

func TestParsePatternSaysWhatToWrite(t *testing.T) {
	for text, want := range map[string]string{
		"":                            `pattern is empty; write for example DEVICE#{device_id}`,
		"DEVICE":                      `pattern "DEVICE" has no capture, so every item would have the same key; write for example DEVICE#{device_id}`,
		"{a}{b}":                      `pattern "{a}{b}": nothing separates {a} from {b}; write a separator between them, such as #`,
		"{a}[{b}]":                    `pattern "{a}[{b}]": nothing separates {a} from {b}; write a separator between them, such as #`,
		"{a}[#{b}]{c}":                `pattern "{a}[#{b}]{c}": nothing separates {b} from {c}; write a separator between them, such as #`,
		"{a}#{a}":                     `pattern "{a}#{a}": {a} stands there twice; give each capture a name of its own`,
		"{a":                          `pattern "{a": "{" is never closed; write } after the capture's name`,
		"a}{b}":                       `pattern "a}{b}": "}" without its opening bracket; braces and brackets cannot be part of the text`,
		"{a}]":                        `pattern "{a}]": "]" without its opening bracket; braces and brackets cannot be part of the text`,
		"{a}[#{b}":                    `pattern "{a}[#{b}": "[" is never closed; write ] after the optional piece`,
		"{a}[#[{b}]]":                 `pattern "{a}[#[{b}]]": an optional piece stands inside another; write them one after the other, as in [#{a}][#{b}]`,
		"{a}[#]":                      `pattern "{a}[#]": the optional piece "[#]" has no capture, so nothing says when it is there; write it with one, as in [#{tie}]`,
		"{a b}":                       `pattern "{a b}": {a b} is no capture; write letters, digits and underscores, as in {device_id}, or {yyyy-mm}`,
		"{a}[-{b}][-{c}][-{d}][-{e}]": `pattern "{a}[-{b}][-{c}][-{d}][-{e}]": more than 3 optional pieces; make some of them required`,
	} {
		if _, err := ParsePattern(text); err == nil || err.Error() != want {
			t.Errorf("of %q: %v, want %s", text, err, want)
		}
	}
}

func TestPatternNamesItsCaptures(t *testing.T) {
	p := mustPattern(t, devicePattern)
	if got := p.Captures(); !slices.Equal(got, []string{"device_id", "yyyy-mm"}) {
		t.Errorf("captures are %v", got)
	}
	if p.Optional("device_id") || !p.Optional("yyyy-mm") {
		t.Error("only the month is optional")
	}
	if p.String() != devicePattern || p.IsZero() || !(Pattern{}).IsZero() {
		t.Errorf("pattern reads %q", p)
	}
}

func FuzzPattern(f *testing.F) {
	for _, p := range []string{devicePattern, timePattern, "{a}-{b}", "[{a}/]{b}", "{a}[-{b}][-{c}]"} {
		f.Add(p, "DEVICE#a#b#2026-11")
		f.Add(p, "TS#2026-11-30T00:00:00Z#1")
		f.Add(p, "x-y-z")
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		p, err := ParsePattern(pattern)
		if err != nil {
			return
		}
		if again := mustPattern(t, p.String()); !slices.Equal(again.Captures(), p.Captures()) {
			t.Errorf("%s has captures %v, then %v", p, p.Captures(), again.Captures())
		}
		values, ok := p.Match(text)
		if !ok {
			return
		}
		// What was read from a key makes that key again.
		key, err := p.Format(values)
		if err != nil || key != text {
			t.Errorf("%s reads %q as %v, which makes %q, %v", p, text, values, key, err)
		}
	})
}
