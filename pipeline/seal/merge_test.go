package seal

import (
	"bytes"
	"io"
	"slices"
	"testing"
)

// More parts than are merged at once come out as if they were; one of them that no merge takes is
// found in whichever pass it is.
func TestManyPartsAreMergedInPasses(t *testing.T) {
	const n = 2*maxFanIn + 5
	p := newPlant(t)
	var want, centi []int
	for i := range 2 * n {
		centi = append(centi, i)
	}
	w := p.lane.window(on(0, centi...)...)
	if len(w) != n {
		t.Fatalf("%d parts", len(w))
	}
	parts := make([]*part, n)
	in := make([]*io.SectionReader, n)
	for i, b := range w {
		parts[i] = opened(t, b)
		in[i] = parts[i].body
	}
	job := &work{Sealer: p.sealer(), src: &source{}}
	b, err := job.merge(t.Context(), parts, "{}")
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	var once bytes.Buffer
	if err := p.merger.Merge(t.Context(), &once, in, parts[0].meta.Order, map[string]string{"telemetrylake.object": "{}"}); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(b.section())
	if err != nil || !bytes.Equal(got, once.Bytes()) {
		t.Errorf("in passes %d bytes, at once %d, %v", len(got), once.Len(), err)
	}

	p.stage("a", w...)
	bad := maxFanIn + 7
	for i := range 2 * n {
		if i/2 != bad {
			want = append(want, i)
		}
	}
	s := p.sealer(func(s *Stages) { s.Merger = picky{p.merger, w[bad], func(i int) error { return badPart(i) }} })
	if r, err := s.Sweep(t.Context()); err == nil || r.Kept[Broken] != 1 {
		t.Errorf("report %+v, %v", r, err)
	}
	p.wantRows(want...)
	p.sweep()
	p.wantRows(slices.Concat(want, []int{2 * bad, 2*bad + 1})...)
}
