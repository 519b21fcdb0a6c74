package seal

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/columnar"
)

// Any sequence of parts, copies of them, foreign files and bytes of anybody, cut into any objects,
// sealed by seals that die anywhere: the lake holds the rows of the parts that were whole in some
// object, each once, and two readers agree on it.
func TestAnySequenceCutAnywhereSealsEachGoodRowOnce(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 8
	}
	for seed := range seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 7))
			p := newPlant(t)
			q := newSequence(p, rng)
			for i := range 1 + rng.IntN(8) {
				q.stage(fmt.Sprintf("%d/%d", rng.IntN(3), i))
				for range rng.IntN(3) {
					s := p.sealer(func(s *Stages) { s.Ledger = &mortal{p.store, rng.IntN(12)} })
					_, _ = s.Sweep(t.Context()) // it may die
				}
			}
			for range 2 {
				if _, err := p.sealer().Sweep(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			want := slices.Collect(maps.Keys(q.good))
			p.wantRows(want...)
			if got := p.secondReader(); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
				t.Errorf("the second reader finds %v, want %v", got, want)
			}
			if left := p.keys(p.staging); len(left) != len(q.stays) {
				t.Errorf("staging holds %v, want what has foreign files: %v", left, q.stays)
			}
		})
	}
}

type piece struct {
	body    []byte
	centi   []int // readings of a part
	foreign bool
}

// A sequence is what is put into staging.
type sequence struct {
	p     *plant
	rng   *rand.Rand
	parts []piece
	good  map[int]bool // readings of parts that were whole in some object
	stays map[string]bool
}

func newSequence(p *plant, rng *rand.Rand) *sequence {
	q := &sequence{p: p, rng: rng, good: map[int]bool{}, stays: map[string]bool{}}
	lanes := []*lane{p.lane, p.newLane("second", "shardId-2")}
	for i := range 2 + rng.IntN(6) {
		var rs []reading
		for j := range 1 + rng.IntN(7) {
			rs = append(rs, reading{100*i + j, rng.IntN(2)})
		}
		for _, body := range lanes[rng.IntN(2)].window(rs...) {
			var centi []int
			for _, v := range column(p.t, fileOf(p.t, body), "celsius") {
				centi = append(centi, int(v.Int64()))
			}
			q.parts = append(q.parts, piece{body, centi, false})
		}
	}
	return q
}

func (q *sequence) any() piece {
	part := q.parts[q.rng.IntN(len(q.parts))]
	switch q.rng.IntN(12) {
	case 0:
		return piece{body: []byte("\n")}
	case 1:
		b := make([]byte, 1+q.rng.IntN(60))
		for i := range b {
			b[i] = byte(q.rng.Uint32())
		}
		return piece{body: b}
	case 2:
		return piece{body: []byte("PAR1")}
	case 3:
		return piece{body: withMeta(q.p.t, part.body, nil), foreign: true}
	case 4: // cut off in front or behind
		at := 1 + q.rng.IntN(len(part.body)-1)
		if q.rng.IntN(2) == 0 {
			return piece{body: part.body[at:]}
		}
		return piece{body: part.body[:at]}
	}
	return part
}

// stage puts an object of any pieces into staging, and notes which parts are whole in it.
func (q *sequence) stage(key string) {
	var pieces []piece
	for range 1 + q.rng.IntN(9) {
		pieces = append(pieces, q.any())
	}
	var bodies [][]byte
	for _, c := range pieces {
		bodies = append(bodies, c.body)
	}
	if q.rng.IntN(4) == 0 { // the object itself is cut off
		i := q.rng.IntN(2) * (len(pieces) - 1)
		if b := pieces[i].body; len(b) > 1 {
			at := 1 + q.rng.IntN(len(b)-1)
			bodies[i] = b[:at]
			if i == 0 && q.rng.IntN(2) == 0 {
				bodies[i] = b[at:]
			}
			pieces[i] = piece{body: bodies[i]}
		}
	}
	q.p.stage(key, bodies...)
	for _, c := range pieces {
		for _, centi := range c.centi {
			q.good[centi] = true
		}
		if c.foreign {
			q.stays[key] = true
		}
	}
}

// secondReader returns the readings of the lake in their order, as arrow-go reads them.
func (p *plant) secondReader() []int {
	p.t.Helper()
	got := []int{}
	for _, key := range p.keys(p.lake) {
		r, err := p.lake.Read(p.t.Context(), pipeline.Object{Key: key})
		if err != nil {
			p.t.Fatal(err)
		}
		err = columnar.ReadFile(p.t.Context(), io.NewSectionReader(r, 0, r.Size()), []string{"celsius"}, func(b arrow.RecordBatch) error {
			for i := range int(b.NumRows()) {
				got = append(got, int(b.Column(0).(*array.Decimal128).Value(i).LowBits()))
			}
			return nil
		})
		if err != nil {
			p.t.Fatal(err)
		}
	}
	slices.Sort(got)
	return got
}

// mortal is a ledger whose process dies after some calls: the last takes effect and nobody hears of it.
type mortal struct {
	pipeline.Ledger
	left int
}

func (m *mortal) step(do func() error) error {
	m.left--
	if m.left < -1 {
		return errStopped
	}
	err := do()
	if m.left < 0 {
		return errStopped
	}
	return err
}

func (m *mortal) Claim(ctx context.Context, cs []pipeline.Claim) (held []pipeline.Claim, err error) {
	err = m.step(func() error { held, err = m.Ledger.Claim(ctx, cs); return err })
	return held, err
}

func (m *mortal) Move(ctx context.Context, from, to pipeline.Claim) (held pipeline.Claim, err error) {
	err = m.step(func() error { held, err = m.Ledger.Move(ctx, from, to); return err })
	return held, err
}

func (m *mortal) Publish(ctx context.Context, cs []pipeline.Claim) error {
	return m.step(func() error { return m.Ledger.Publish(ctx, cs) })
}

func (m *mortal) Window(ctx context.Context, id pipeline.WindowID) (s pipeline.WindowState, mf *pipeline.Manifest, err error) {
	err = m.step(func() error { s, mf, err = m.Ledger.Window(ctx, id); return err })
	return s, mf, err
}
