package seal

import (
	"bytes"
	"slices"
	"testing"

	"telemetrylake/pipeline"
)

func TestSealPutsEveryRowOfJoinedPartsIntoTheLakeOnce(t *testing.T) {
	p := newPlant(t)
	w1 := p.lane.window(append(on(0, 1, 2, 3), on(1, 4)...)...)
	w2 := p.lane.window(on(0, 5)...)
	p.stage("a", slices.Concat(w1, w2)...)
	r := p.sweep()
	p.wantRows(1, 2, 3, 4, 5)
	if r.Objects != 1 || r.Removed != 1 || r.Parts != 4 || r.Published != 4 || r.Created != 2 || r.Rows != 5 {
		t.Errorf("report %+v", r)
	}
	if left := p.keys(p.staging); len(left) != 0 {
		t.Errorf("staging still holds %v", left)
	}
}

// Two seals of different versions may name the same group differently. What is claimed under
// one name must not be created under another, or both names get it.
func TestSealCreatesANameOnlyWithThePartsClaimedUnderIt(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1, 2, 3, 4)...)
	p.stage("a", w...)
	o := p.object("a")
	second := opened(t, w[1])
	other := "sensor_readings/dt=2026-11-30/named-by-another-version-0.parquet"
	_, err := p.store.Claim(t.Context(), []pipeline.Claim{{
		Part: second.meta.ID(), Copy: pipeline.Copy{Key: "a", ETag: o.ETag, Offset: int64(len(w[0]))}, Name: other,
	}})
	if err != nil {
		t.Fatal(err)
	}
	p.sweep()
	p.wantRows(1, 2, 3, 4)
	if !slices.Contains(p.keys(p.lake), other) {
		t.Errorf("the name under which the part is claimed does not exist; the lake holds %v", p.keys(p.lake))
	}
}

// A part whose footer is whole and whose pages are not is damage: it must not take the claim
// from a whole copy, nor keep the others of its object from the lake.
func TestSealTakesAPartThatDoesNotDecodeForDamage(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1, 2, 3, 4)...)
	broken := bytes.Clone(w[0])
	for i := 4; i < 200; i++ {
		broken[i] ^= 0x5a
	}
	p.stage("a", broken, w[1])
	p.stage("b", w[0])
	r := p.sweep()
	p.wantRows(1, 2, 3, 4)
	if r.Damaged != 1 {
		t.Errorf("report %+v, want the broken part put aside", r)
	}
}
