package testenv

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

func TestStoresScanInOrder(t *testing.T) {
	disk, err := openDiskStore(t.TempDir(), diskOptions{cache: 1 << 20, sync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.close()
	for name, s := range map[string]store{"memory": newMemoryStore(), "disk": disk} {
		t.Run(name, func(t *testing.T) { scansInOrder(t, s) })
	}
}

func scansInOrder(t *testing.T, s store) {
	var ws []write
	for _, k := range []string{"b", "a", "c", "b\x00", "d"} {
		ws = append(ws, write{key: k, value: []byte(k)})
	}
	if err := s.apply(ws); err != nil {
		t.Fatal(err)
	}
	if err := s.apply([]write{{key: "c"}, {key: "missing"}, {key: "d", value: []byte{}}}); err != nil {
		t.Fatal(err)
	}
	scan := func(from, to string, reverse bool, most int) string {
		var keys []string
		err := s.scan(from, to, reverse, func(k string, _ []byte) bool {
			keys = append(keys, k)
			return len(keys) < most
		})
		if err != nil {
			t.Error(err)
		}
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
	if v, err := s.get("c"); v != nil || err != nil {
		t.Error("a deleted key is still there")
	}
	if v, err := s.get("d"); v == nil || len(v) != 0 || err != nil {
		t.Error("a key with an empty value is not there")
	}
	// Writes of one call follow each other.
	err := s.apply([]write{{key: "b1", value: []byte("1")}, {key: "b", to: "c"}, {key: "b2", value: []byte("2")}, deleteAll("d")})
	if got := scan("", "\xff", false, 9); err != nil || got != fmt.Sprintf("%q", []string{"a", "b2"}) {
		t.Errorf("after deleting ranges there is %s, %v", got, err)
	}
	if err := s.apply(nil); err != nil {
		t.Error(err)
	}
}

func TestClosedStoreRefusesEverything(t *testing.T) {
	s, err := openDiskStore(t.TempDir(), diskOptions{cache: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
	_, err1 := s.get("k")
	err2 := s.scan("a", "b", false, func(string, []byte) bool { return true })
	err3 := s.apply([]write{{key: "k", value: []byte("v")}})
	for _, err := range []error{err1, err2, err3} {
		if !errors.Is(err, errStoreClosed) {
			t.Errorf("got %v", err)
		}
	}
}

func TestStoreThatCannotWriteSaysSoAndOpensAgainWithAllItAcknowledged(t *testing.T) {
	dir := t.TempDir()
	var broken atomic.Bool
	opt := diskOptions{cache: 1 << 20, fault: func(op, path string) error {
		if broken.Load() && strings.HasSuffix(path, ".log") {
			return syscall.EIO
		}
		return nil
	}}
	s, err := openDiskStore(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.apply([]write{{key: "k", value: []byte("v")}}); err != nil {
		t.Fatal(err)
	}
	broken.Store(true)
	if err := s.apply([]write{{key: "lost", value: []byte("v")}}); err == nil || !strings.Contains(err.Error(), "start again") {
		t.Errorf("the write that failed: %v", err)
	}
	<-s.failed
	if _, err := s.get("lost"); err == nil {
		t.Error("the store is still read")
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
	// The folder stays locked until this process ends; the next one finds it like this.
	broken.Store(false)
	left := t.TempDir()
	if err := os.CopyFS(left, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	s, err = openDiskStore(left, opt)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if v, err := s.get("k"); string(v) != "v" || err != nil {
		t.Errorf("got %q, %v", v, err)
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
