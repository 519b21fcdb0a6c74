package seal

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"telemetrylake/pipeline/columnar"
)

// covers fails the test unless the spans are all of b, in order, and no damage touches damage.
func covers(t *testing.T, b []byte, spans []span) {
	t.Helper()
	at := int64(0)
	for i, sp := range spans {
		if sp.off != at || sp.end <= sp.off {
			t.Fatalf("span %d is [%d,%d), the one before ended at %d", i, sp.off, sp.end, at)
		}
		if i > 0 && sp.damage != nil && spans[i-1].damage != nil {
			t.Fatalf("spans %d and %d are both damage", i-1, i)
		}
		at = sp.end
	}
	if at != int64(len(b)) {
		t.Fatalf("spans end at %d of %d bytes", at, len(b))
	}
}

// realParts are parts of several sizes, tables and numbers of rows, as a lane made them.
func realParts(t testing.TB) [][]byte {
	p := newPlant(t)
	parts := p.lane.window(append(on(0, 1, 2, 3), on(1, 4, 5)...)...)
	parts = append(parts, p.lane.window(on(-700, 6)...)...)
	parts = append(parts, p.lane.window(on(0, 99999, 7)...)...)                   // 999.99 fits
	parts = append(parts, p.lane.window(append(on(0, 8), on(-9000, 9)...)...)...) // one is quarantined
	if len(parts) < 6 {
		t.Fatalf("%d parts", len(parts))
	}
	return parts
}

// Whatever Firehose joins, repeats or cuts off, and whatever somebody puts between: every byte
// is in one span, and each whole part is found where it is.
func TestSplitFindsEveryWholePartBetweenAnything(t *testing.T) {
	parts := realParts(t)
	rng := rand.New(rand.NewPCG(3, 3))
	for range 3000 {
		var b []byte
		var want []span
		for range rng.IntN(6) {
			part := parts[rng.IntN(len(parts))]
			switch rng.IntN(8) {
			case 0:
				b = append(b, '\n')
			case 1: // bytes of anybody
				for range 1 + rng.IntN(40) {
					b = append(b, byte(rng.Uint32()))
				}
			case 2: // magic without a file
				b = append(b, "PAR1"...)
			case 3: // its end is missing
				b = append(b, part[:1+rng.IntN(len(part)-1)]...)
			case 4: // its beginning is missing
				b = append(b, part[1+rng.IntN(len(part)-1):]...)
			default:
				want = append(want, span{int64(len(b)), int64(len(b) + len(part)), nil})
				b = append(b, part...)
			}
		}
		spans := split(b)
		covers(t, b, spans)
		for _, w := range want {
			if !slices.ContainsFunc(spans, func(s span) bool { return s.off == w.off && s.end == w.end && s.damage == nil }) {
				t.Fatalf("the part at [%d,%d) of %d bytes is not found: %v", w.off, w.end, len(b), spans)
			}
		}
		for _, s := range spans {
			// A part without its beginning may follow as many bytes that begin with magic as it lacks: only
			// its values show that it is none.
			if s.damage == nil && !slices.ContainsFunc(parts, func(part []byte) bool { return looksLike(b[s.off:s.end], part) }) {
				t.Fatalf("[%d,%d) is taken for a file and none was put there", s.off, s.end)
			}
		}
	}
}

// looksLike reports whether b has the magic, the length and the footer of a part.
func looksLike(b, part []byte) bool {
	n, err := FooterSize(part)
	return err == nil && len(b) == len(part) && bytes.HasPrefix(b, magic) && bytes.HasSuffix(b, part[int64(len(part))-n:])
}

func TestSplitOfNothingIsNothing(t *testing.T) {
	if s := split(nil); len(s) != 0 {
		t.Errorf("spans %v", s)
	}
}

// An object of one part is that part, bit for bit.
func TestSplitOfOnePartIsThePart(t *testing.T) {
	for _, b := range realParts(t) {
		if s := split(b); len(s) != 1 || s[0] != (span{0, int64(len(b)), nil}) {
			t.Errorf("spans %v of %d bytes", s, len(b))
		}
	}
}

// Parts with a few wrong bytes anywhere are opened, or refused with an error; what is opened is
// merged, or refused with an error.
func TestDamagedPartsNeverPanic(t *testing.T) {
	parts := realParts(t)
	w := &work{Sealer: New(Stages{Merger: columnar.NewMerger(memory.DefaultAllocator)}), src: &source{}}
	rng := rand.New(rand.NewPCG(9, 9))
	refused := 0
	for range 2000 {
		b := bytes.Clone(parts[rng.IntN(len(parts))])
		for range 1 + rng.IntN(4) {
			b[rng.IntN(len(b))] = byte(rng.Uint32())
		}
		spans := split(b)
		covers(t, b, spans)
		for _, sp := range spans {
			if sp.damage != nil {
				refused++
				continue
			}
			p, err := openBytes(b, sp)
			if err != nil || p.meta.Probe {
				refused++
				continue
			}
			_, _ = w.merge(t.Context(), []*part{p}, "{}")
		}
	}
	if refused < 200 {
		t.Errorf("only %d of 2000 are refused", refused)
	}
}

// No bytes make split or open fail other than by an error: staging holds what anybody put there.
func FuzzSplit(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("PAR1PAR1"))
	f.Add([]byte("PAR1\x00\x00\x00\x00PAR1"))
	f.Add([]byte("PAR1\x15\x00\x15\x00\x02\x00\x00\x00PAR1"))
	f.Add(append(bytes.Repeat([]byte{0xff}, 64), "\xff\xff\xff\xffPAR1"...))
	for _, b := range realParts(f) {
		f.Add(b)
		f.Add(append(bytes.Clone(b), '\n'))
		f.Add(append(bytes.Clone(b), b...))
		f.Add(append(bytes.Clone(b[:len(b)-9]), b...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		spans := split(b)
		covers(t, b, spans)
		for _, sp := range spans {
			if sp.damage == nil {
				_, _ = openBytes(b, sp)
			}
		}
	})
}
