package columnar

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/parquet-go/parquet-go/encoding/delta"
	"github.com/parquet-go/parquet-go/encoding/rle"
)

// inPieces reads n values, some at a time.
func inPieces[T any](t testing.TB, rng *rand.Rand, n int, read func([]T) error) []T {
	t.Helper()
	var all []T
	for len(all) < n {
		piece := make([]T, 1+rng.IntN(min(200, n-len(all))))
		if err := read(piece); err != nil {
			t.Fatalf("after %d of %d values: %v", len(all), n, err)
		}
		all = append(all, piece...)
	}
	return all
}

// words are values in which much repeats, or little, or nothing.
func words(rng *rand.Rand, n int, narrow bool) []int64 {
	values := make([]int64, n)
	step, v := []int64{0, 1, 1000, math.MaxInt32, math.MaxInt64}[rng.IntN(5)], int64(rng.Uint64())
	for i := range values {
		if step > 0 && rng.IntN(10) > 0 {
			v += rng.Int64N(step) - step/3
		}
		if narrow {
			v = int64(int32(v))
		}
		values[i] = v
	}
	return values
}

func TestDifferencesAreReadAsTheyWereWritten(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 21))
	for range 2000 {
		narrow := rng.IntN(2) == 0
		values := words(rng, 1+rng.IntN(700), narrow)
		b := appendDelta([]byte("before"), values, narrow)[6:]
		var r deltaReader
		if err := r.reset(b, narrow); err != nil {
			t.Fatal(err)
		}
		if got := inPieces(t, rng, len(values), r.read); !slices.Equal(got, values) {
			t.Fatalf("%d values come back as others", len(values))
		}
		if err := r.read(make([]int64, 1)); err == nil {
			t.Fatal("there is one value more than there are")
		}
		if got := otherDelta(t, b, narrow); !slices.Equal(got, values) {
			t.Fatalf("parquet-go reads other values, narrow %t", narrow)
		}
	}
}

// otherDelta reads with parquet-go.
func otherDelta(t testing.TB, b []byte, narrow bool) []int64 {
	t.Helper()
	var e delta.BinaryPackedEncoding
	if !narrow {
		values, err := e.DecodeInt64(nil, b)
		if err != nil {
			t.Fatal(err)
		}
		return values
	}
	half, err := e.DecodeInt32(nil, b)
	if err != nil {
		t.Fatal(err)
	}
	var values []int64
	for _, v := range half {
		values = append(values, int64(v))
	}
	return values
}

func TestDifferencesOfOtherWritersAreRead(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 21))
	var e delta.BinaryPackedEncoding
	for range 500 {
		values := words(rng, 1+rng.IntN(700), false)
		b, err := e.EncodeInt64(nil, values)
		if err != nil {
			t.Fatal(err)
		}
		var r deltaReader
		if err := r.reset(b, false); err != nil {
			t.Fatal(err)
		}
		if got := inPieces(t, rng, len(values), r.read); !slices.Equal(got, values) {
			t.Fatal("other values")
		}
	}
}

// codes are values of a width, in runs and not.
func codes(rng *rand.Rand, n, width int) []uint32 {
	values := make([]uint32, 0, n)
	for len(values) < n {
		v, times := rng.Uint32()&(1<<width-1), 1
		if rng.IntN(4) == 0 {
			times = 1 + rng.IntN(40)
		}
		for range min(times, n-len(values)) {
			values = append(values, v)
		}
	}
	return values
}

func TestRunsAndPackedValuesAreReadAsTheyWereWritten(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 21))
	for range 3000 {
		width := rng.IntN(32)
		values := codes(rng, 1+rng.IntN(500), width)
		b := appendHybrid([]byte("before"), values, width)[6:]
		var r hybridReader
		if err := r.reset(b, width); err != nil {
			t.Fatal(err)
		}
		if got := inPieces(t, rng, len(values), r.read); !slices.Equal(got, values) {
			t.Fatalf("%d values of %d bits come back as others", len(values), width)
		}
		if width == 0 {
			continue // parquet-go has no such
		}
		others, err := (&rle.DictionaryEncoding{}).DecodeInt32(nil, append([]byte{byte(width)}, b...))
		if err != nil || len(others) < len(values) {
			t.Fatalf("parquet-go reads %d of %d values of %d bits: %v", len(others), len(values), width, err)
		}
		for i, v := range values {
			if uint32(others[i]) != v {
				t.Fatalf("parquet-go reads another value than %d, of %d bits", v, width)
			}
		}
	}
}

func TestLevelsThatAreAllTheSameAreNotSpelledOut(t *testing.T) {
	var l levels
	l.repeat(1, 1_000_000)
	if b := l.appendTo(nil, 1); len(b) > 8 {
		t.Errorf("%d bytes", len(b))
	}
	l.repeat(0, 3)
	l.repeat(1, 2)
	if l.n != 1_000_005 || len(l.each) != l.n || !slices.Equal(l.each[999_999:], []uint8{1, 0, 0, 0, 1, 1}) {
		t.Errorf("%d levels, %d spelled out", l.n, len(l.each))
	}
}

// Whatever stands in a page, reading it ends, with values or an error.
func FuzzPackedValues(f *testing.F) {
	rng := rand.New(rand.NewPCG(4, 21))
	for range 20 {
		width := rng.IntN(33)
		f.Add(appendHybrid(nil, codes(rng, 100, min(width, 31)), width), uint8(width), uint16(100))
		f.Add(appendDelta(nil, words(rng, 200, false), false), uint8(0), uint16(200))
	}
	f.Add(binary.AppendUvarint(nil, 1<<40), uint8(7), uint16(9))
	f.Fuzz(func(t *testing.T, b []byte, width uint8, n uint16) {
		before := bytes.Clone(b)
		var h hybridReader
		if h.reset(b, int(width)) == nil {
			for _, k := range []int{int(n) / 3, 1, int(n)} {
				if h.read(make([]uint32, k)) != nil {
					break
				}
			}
		}
		for _, narrow := range []bool{false, true} {
			var d deltaReader
			if d.reset(b, narrow) == nil {
				for _, k := range []int{int(n) / 3, 1, int(n)} {
					if d.read(make([]int64, k)) != nil {
						break
					}
				}
			}
		}
		v := byteValues{size: int(width % 5)}
		if rest, err := v.add(b, int(n)); err == nil {
			total := len(rest)
			for i := range v.at {
				total += len(v.value(uint32(i)))
			}
			if v.size == 0 {
				total += 4 * len(v.at)
			}
			if total != len(b) {
				t.Fatalf("%d bytes of %d are read", total, len(b))
			}
		}
		if !bytes.Equal(b, before) {
			t.Fatal("reading has changed the page")
		}
	})
}
