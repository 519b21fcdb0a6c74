package seal

import (
	"errors"
	"testing"

	"telemetrylake/pipeline"
)

func TestPiecesOfAStagingObjectAreListedByTheirFooters(t *testing.T) {
	p := newPlant(t)
	parts := p.lane.window(on(0, 1, 2, 3)...)
	newer := retold(t, parts[0], func(m *pipeline.PartMeta) { m.Format++ })
	probe := retold(t, parts[0], func(m *pipeline.PartMeta) { m.Probe = true })
	foreign := withMeta(t, parts[0], nil)
	p.stage("joined", parts[0], probe, []byte("damage"), newer, foreign)
	got, err := p.sealer().Staged(t.Context(), p.object("joined"))
	if err != nil || len(got) != 4 {
		t.Fatalf("%d pieces, %v, want 4: %+v", len(got), err, got)
	}
	want := opened(t, parts[0]).meta
	if g := got[0]; g.Meta == nil || g.Meta.ID() != want.ID() || g.Meta.Rows != want.Rows || g.Offset != 0 || g.Bytes != int64(len(parts[0])) || g.Err != nil {
		t.Errorf("the part is %+v", g)
	}
	for i, keep := range map[int]Keep{1: "", 2: Newer, 3: Foreign} {
		if g := got[i]; g.Meta != nil || g.Keep != keep || g.Err == nil {
			t.Errorf("piece %d is %+v, want none of ours, %q", i, g, keep)
		}
	}
	at := int64(0)
	for _, g := range got[1:] {
		if g.Offset <= at {
			t.Errorf("a piece at %d follows one at %d", g.Offset, at)
		}
		at = g.Offset
	}
	if _, err := p.sealer().Staged(t.Context(), pipeline.Object{Key: "gone"}); !errors.Is(err, pipeline.ErrNotFound) {
		t.Errorf("of none: %v", err)
	}
}

func TestALakeObjectTellsItsRowsTwice(t *testing.T) {
	p := newPlant(t)
	p.stage("one", p.lane.window(on(0, 1, 2, 3)...)...)
	p.sweep()
	keys := p.keys(p.lake)
	if len(keys) != 1 {
		t.Fatalf("lake has %v", keys)
	}
	end, err := p.lake.Tail(t.Context(), pipeline.Object{Key: keys[0]}, 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	m, rows, err := ReadObject(end)
	if err != nil || m == nil || rows != 3 || m.Rows != 3 {
		t.Errorf("%d rows in the file, %+v, %v", rows, m, err)
	}
	if _, _, err := ReadObject(end[len(end)-9:]); !errors.Is(err, ErrShort) {
		t.Errorf("of too few bytes: %v", err)
	}
}
