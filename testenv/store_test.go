package testenv

import (
	"fmt"
	"slices"
	"testing"
)

func TestStoreScansInOrder(t *testing.T) {
	var s store = newMemoryStore()
	var ws []write
	for _, k := range []string{"b", "a", "c", "b\x00", "d"} {
		ws = append(ws, write{k, []byte(k)})
	}
	if err := s.apply(ws); err != nil {
		t.Fatal(err)
	}
	if err := s.apply([]write{{"c", nil}, {"missing", nil}, {"d", []byte{}}}); err != nil {
		t.Fatal(err)
	}
	scan := func(from, to string, reverse bool, most int) string {
		var keys []string
		s.scan(from, to, reverse, func(k string, _ []byte) bool {
			keys = append(keys, k)
			return len(keys) < most
		})
		return fmt.Sprintf("%q", keys)
	}
	for _, c := range []struct {
		from, to string
		reverse  bool
		most     int
		want     []string
	}{
		{"", "\xff", false, 9, []string{"a", "b", "b\x00", "d"}},
		{"", "\xff", true, 9, []string{"d", "b\x00", "b", "a"}},
		{"b", "d", false, 9, []string{"b", "b\x00"}},
		{"b", "d", true, 9, []string{"b\x00", "b"}},
		{"b", "d", true, 1, []string{"b\x00"}},
		{"", "\xff", false, 2, []string{"a", "b"}},
		{"b", "b", false, 9, nil},
		{"e", "a", true, 9, nil},
	} {
		if got := scan(c.from, c.to, c.reverse, c.most); got != fmt.Sprintf("%q", c.want) {
			t.Errorf("%+v: got %s", c, got)
		}
	}
	if _, ok := s.get("c"); ok {
		t.Error("a deleted key is still there")
	}
	if v, ok := s.get("d"); !ok || len(v) != 0 {
		t.Error("a key with an empty value is not there")
	}
}

func TestKeysOrderAsTheirValues(t *testing.T) {
	texts := []string{"", "\x00", "\x00\x00", "\x00\x01", "\x00\xff", "\x01", "a", "a\x00", "a\x00b", "ab", "b", "\xff", "\xff\xff"}
	for i, a := range texts {
		for j, b := range texts {
			x := string(appendSort(nil, value{kind: kindBinary, text: a})) + "z"
			y := string(appendSort(nil, value{kind: kindBinary, text: b})) + "a"
			if i != j && (i < j) != (x < y) {
				t.Errorf("keys of %q and %q are in the wrong order", a, b)
			}
		}
	}
}

func TestSegmentsCoverAllHashesOnce(t *testing.T) {
	for _, total := range []int{1, 2, 3, 7, 250, 1000000} {
		next := uint64(0)
		for n := range total {
			lo, hi := segment(n, total)
			if lo != next || hi < lo {
				t.Fatalf("segment %d of %d is %x to %x, want it to start at %x", n, total, lo, hi, next)
			}
			next = hi + 1
		}
		if next != 0 {
			t.Errorf("%d segments end at %x", total, next)
		}
	}
}

func TestMalformedJSONIsRefused(t *testing.T) {
	for _, s := range []string{"", "{", "}", "{}x", `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `[1,]`, `[1 2]`, `"`, `"\x"`, `"\u12"`, `"\ud800"`, `"\ud800\u0041"`,
		"\"\x01\"", "tru", "nul", "-", "1.2.3", "{\"a\":\"\xff\"}", `{1:2}`} {
		if n, err := parseJSON(s); err == nil {
			t.Errorf("%q was read as %+v", s, n)
		}
	}
	deep := make([]byte, 0, 2000)
	for range 1000 {
		deep = append(deep, '[')
	}
	if _, err := parseJSON(string(deep) + string(slices.Repeat([]byte("]"), 1000))); err == nil {
		t.Error("a thousand levels were read")
	}
}

func TestCanonicalFormDoesNotDependOnOrder(t *testing.T) {
	a := parse(t, `{"b":[1,{"y":"é","x":true}],"a":{"d":null,"c":"\n"}}`)
	b := parse(t, `{ "a" : {"c":"\u000a","d":null}, "b":[1,{"x":true,"y":"\u00e9"}] }`)
	if x, y := string(a.appendCanonical(nil)), string(b.appendCanonical(nil)); x != y {
		t.Errorf("%s is not %s", x, y)
	}
	c := parse(t, `{"b":[{"y":"é","x":true},1],"a":{"d":null,"c":"\n"}}`)
	if string(a.appendCanonical(nil)) == string(c.appendCanonical(nil)) {
		t.Error("the order of an array makes no difference")
	}
}
