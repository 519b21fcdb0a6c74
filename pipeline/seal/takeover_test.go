package seal

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
)

// claimAndDie claims the parts of a staging object as a seal does that dies before it creates.
func (p *plant) claimAndDie(key string) {
	p.t.Helper()
	dying := p.sealer(func(s *Stages) { s.Lake = full{p.lake} })
	if _, err := dying.Object(p.t.Context(), p.object(key)); !errors.Is(err, errStopped) {
		p.t.Fatalf("seal: %v", err)
	}
}

// full is a lake in which nothing is created.
type full struct{ Store }

func (full) CreateFrom(context.Context, string, *io.SectionReader) error { return errStopped }

// lose removes a staging object as no seal would.
func (p *plant) lose(key string) {
	p.t.Helper()
	if err := p.staging.Remove(p.t.Context(), p.object(key)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *plant) noneLeft() {
	p.t.Helper()
	if left := p.keys(p.staging); len(left) != 0 {
		p.t.Errorf("staging still holds %v", left)
	}
}

// unpublished are the claims of the parts' window that are neither void nor published.
func (p *plant) unpublished(id pipeline.WindowID) []pipeline.Claim {
	p.t.Helper()
	cs, err := p.store.Claims(p.t.Context(), id)
	if err != nil {
		p.t.Fatal(err)
	}
	return slices.DeleteFunc(cs, func(c pipeline.Claim) bool { return c.Void || c.Published })
}

func TestSealTakesOverAClaimWhoseCopyIsGone(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1, 2, 3)...)
	p.stage("a", w...)
	p.claimAndDie("a")
	p.lose("a")
	claimed := p.unpublished(opened(t, w[0]).meta.Window)[0].Name
	p.stage("b", w[1], w[0], w[1]) // two copies of one part are one row each all the same
	r := p.sweep()
	p.wantRows(1, 2, 3)
	p.noneLeft()
	if names := p.keys(p.lake); len(names) != 1 || names[0] != claimed {
		t.Errorf("lake holds %v, want the claimed name %s", names, claimed)
	}
	if r.TakenOver != 2 || r.Published != 2 || r.Duplicates != 1 {
		t.Errorf("report %+v", r)
	}
}

// While the claimed copy is there, nothing else is done with the part than wait.
func TestSealLeavesAClaimWhoseCopyIsThere(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1, 2)...)
	p.stage("a", w...)
	p.claimAndDie("a")
	p.stage("b", w...)
	r, err := p.sealer().Object(t.Context(), p.object("b"))
	if err != nil || r.Waiting != 1 || r.TakenOver != 0 || r.Created != 0 {
		t.Errorf("report %+v, %v", r, err)
	}
	p.sweep()
	p.wantRows(1, 2)
	p.noneLeft()
}

// The claimed name exists already: its footer has the last word. What it lists is published, what
// it does not list is published by the copy at hand.
func TestTakingOverBelievesTheObjectThatExists(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1, 2, 3, 4)...)
	p.stage("a", w...)
	o := p.object("a")
	// A seal that creates with the first part only, and dies before it publishes.
	dying := p.sealer(func(s *Stages) { s.Ledger, s.Staging = stop{p.store, 1}, half{p.staging, len(w[0])} })
	if _, err := dying.Sweep(t.Context()); !errors.Is(err, errStopped) {
		t.Fatalf("sweep: %v", err)
	}
	// The second part is claimed under the same name.
	first := p.unpublished(opened(t, w[0]).meta.Window)[0]
	_, err := p.store.Claim(t.Context(), []pipeline.Claim{{
		Part: opened(t, w[1]).meta.ID(), Copy: pipeline.Copy{Key: "a", ETag: o.ETag, Offset: int64(len(w[0]))}, Name: first.Name,
	}})
	if err != nil {
		t.Fatal(err)
	}
	p.lose("a")
	p.stage("b", w...)
	r := p.sweep()
	p.wantRows(1, 2, 3, 4)
	p.noneLeft()
	if len(p.keys(p.lake)) != 2 || r.TakenOver != 2 {
		t.Errorf("lake holds %v, report %+v", p.keys(p.lake), r)
	}
}

// A seal still holds the bytes of the object that is gone when another takes its claims over.
func TestASlowSealOfAnObjectThatIsGoneDoublesNothing(t *testing.T) {
	for name, parts := range map[string]int{"all parts are taken over": 2, "one of two is": 1} {
		t.Run(name, func(t *testing.T) {
			p := newPlant(t)
			w := p.lane.window(on(0, 1, 2, 3, 4)...)
			p.stage("a", w...)
			o := p.object("a")
			slow := p.sealer(func(s *Stages) {
				s.Lake = &meanwhile{p.lake, func() { // it has claimed and merged, and is about to create
					p.lose("a")
					p.stage("b", w[:parts]...)
					p.sweep()
				}}
			})
			if _, err := slow.Object(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			p.sweep()
			p.wantRows(1, 2, 3, 4)
			p.noneLeft()
		})
	}
}

// meanwhile lets something happen before the first create.
type meanwhile struct {
	Store
	once func()
}

func (m *meanwhile) CreateFrom(ctx context.Context, key string, body *io.SectionReader) error {
	if once := m.once; once != nil {
		m.once = nil
		once()
	}
	return m.Store.CreateFrom(ctx, key, body)
}

// Nothing is at hand: the claimed name is created without rows, so that no late writer takes it, and
// a copy that comes is published under its own.
func TestTakeOverOccupiesTheNameOfALostClaim(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(append(on(0, 1, 2), on(1, 3)...)...)
	id := opened(t, w[0]).meta.Window
	p.stage("a", w...)
	p.claimAndDie("a")
	if got, err := p.sealer().TakeOver(t.Context(), id); err != nil || got.Standing != 2 || len(got.Lost) != 0 {
		t.Fatalf("with the copies there: %+v, %v", got, err)
	}
	o := p.object("a")
	slow := p.sealer(func(s *Stages) {
		s.Lake = &meanwhile{p.lake, func() {
			p.lose("a")
			got, err := p.sealer().TakeOver(t.Context(), id)
			if err != nil || len(got.Lost) != 2 || got.Standing+got.Published != 0 {
				t.Errorf("take over: %+v, %v", got, err)
			}
		}}
	})
	// The slow one still has the bytes: it finds the name taken and goes to the next round.
	if _, err := slow.Object(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	p.wantRows(1, 2, 3)
	for range 2 {
		got, err := p.sealer().TakeOver(t.Context(), id)
		if err != nil || len(got.Lost)+got.Standing+got.Published != 0 {
			t.Errorf("of a window that is whole: %+v, %v", got, err)
		}
	}
}

func TestAPartThatWasLostIsPublishedByACopyThatComesOrGivenUp(t *testing.T) {
	for name, comes := range map[string]bool{"a copy comes": true, "it is given up first": false} {
		t.Run(name, func(t *testing.T) {
			p := newPlant(t)
			now := time.Now()
			p.store = checkpoint.New(p.db, "checkpoint", checkpoint.Options{Now: func() time.Time { return now }})
			w := p.lane.window(on(0, 1, 2)...)
			id := opened(t, w[0]).meta.Window
			p.stage("a", w...)
			p.claimAndDie("a")
			p.lose("a")
			got, err := p.sealer().TakeOver(t.Context(), id)
			if err != nil || len(got.Lost) != 1 {
				t.Fatalf("take over: %+v, %v", got, err)
			}
			if _, err := p.store.GiveUpLost(t.Context(), id, got.Lost); !errors.Is(err, checkpoint.ErrTooEarly) {
				t.Errorf("given up at once: %v", err)
			}
			if !comes {
				p.set("lane#run-sensors", windowKey(t, p), "landed_at", text(time.Now().Add(-26*time.Hour).UTC().Format("2006-01-02T15:04:05.000Z")))
				if n, err := p.store.GiveUpLost(t.Context(), id, got.Lost); n != 1 || err != nil {
					t.Fatalf("give up: %d, %v", n, err)
				}
				if n, err := p.store.GiveUpLost(t.Context(), id, got.Lost); n != 0 || err != nil {
					t.Errorf("give up again: %d, %v", n, err)
				}
			}
			p.stage("late", w...)
			r := p.sweep()
			p.noneLeft()
			if comes {
				p.wantRows(1, 2)
				return
			}
			p.wantRows()
			if r.Void != 1 {
				t.Errorf("report %+v", r)
			}
			gaps, err := p.store.Gaps(t.Context(), streamARN)
			if err != nil || len(gaps) != 1 {
				t.Errorf("gaps %v, %v", gaps, err)
			}
		})
	}
}

// A claim that has moved since it was found lost is not given up.
func TestGivingUpLeavesAClaimThatMoved(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1, 2)...)
	id := opened(t, w[0]).meta.Window
	p.stage("a", w...)
	p.claimAndDie("a")
	p.lose("a")
	got, err := p.sealer().TakeOver(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	p.stage("b", w...)
	to := got.Lost[0]
	to.Copy, to.Name, to.Round = pipeline.Copy{Key: "b", ETag: p.object("b").ETag}, "sensor_readings/dt=2026-11-30/of-b-0.parquet", 0
	if held, err := p.store.Move(t.Context(), got.Lost[0], to); err != nil || held != to {
		t.Fatalf("move: %+v, %v", held, err)
	}
	p.set("lane#run-sensors", windowKey(t, p), "landed_at", text(time.Now().Add(-26*time.Hour).UTC().Format("2006-01-02T15:04:05.000Z")))
	if n, err := p.store.GiveUpLost(t.Context(), id, got.Lost); n != 0 || err != nil {
		t.Errorf("give up: %d, %v", n, err)
	}
	p.sweep()
	p.wantRows(1, 2)
}

func TestTakeOverNeedsAWindow(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1)...)
	id := opened(t, w[0]).meta.Window
	id.N = 77
	if got, err := p.sealer().TakeOver(t.Context(), id); err != nil || len(got.Lost) != 0 {
		t.Errorf("of a window never begun: %+v, %v", got, err)
	}
	id.N = 1
	s := p.sealer(func(s *Stages) { s.Claims = nil })
	if _, err := s.TakeOver(t.Context(), id); err == nil || !strings.Contains(err.Error(), "cannot list claims") {
		t.Errorf("without claims: %v", err)
	}
}
