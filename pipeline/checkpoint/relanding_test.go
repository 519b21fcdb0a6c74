package checkpoint

import (
	"errors"
	"testing"
	"time"

	"telemetrylake/pipeline"
)

// windowOfOnePart begins and commits window n of a lane with one part.
func windowOfOnePart(t testing.TB, s *Store, st pipeline.State, n int64) *pipeline.Manifest {
	t.Helper()
	m := &pipeline.Manifest{
		Format: pipeline.FormatVersion, Layout: pipeline.LayoutVersion,
		Window: pipeline.WindowID{Lane: st.Lane, Incarnation: st.Incarnation, N: n}, Stream: "arn:aws:dynamodb:us-east-1:1:table/t/stream/1", Contract: "c",
		Parts: []pipeline.PartSpec{{Table: "t", Partition: "dt=2026-11-30", Rows: 1}},
	}
	if err := s.Begin(t.Context(), st.Hold, m); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), st.Hold, m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestOneOfTwoProcessesLandsAWindowAgain(t *testing.T) {
	m, s := newTable(t)
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	m.now = func() time.Time { return now }
	ctx := t.Context()
	st, err := s.Acquire(ctx, "run-t", false)
	if err != nil {
		t.Fatal(err)
	}
	w := windowOfOnePart(t, s, st, 1)
	see := func() WindowStatus {
		t.Helper()
		all, err := s.Unsealed(ctx, "run-t")
		if err != nil || len(all) != 1 {
			t.Fatalf("%d windows, %v", len(all), err)
		}
		return all[0]
	}
	seen := see()
	now = now.Add(time.Hour)
	see() // the clock follows answers
	begun, err := s.BeginLanding(ctx, seen)
	if err != nil || begun.Landings != 1 || begun.LandedAt.Before(now) {
		t.Fatalf("begun %+v, %v", begun, err)
	}
	if _, err := s.BeginLanding(ctx, seen); !errors.Is(err, ErrLandedElsewhere) {
		t.Errorf("the second process: %v", err)
	}
	if got := see(); got.Landings != 1 || !got.LandedAt.Equal(begun.LandedAt) {
		t.Errorf("stored %+v, want what was begun", got)
	}
	now = now.Add(time.Minute)
	if err := s.EndLanding(ctx, begun, false); err != nil {
		t.Fatal(err)
	}
	if got := see(); got.Landings != 0 || !got.LandedAt.After(begun.LandedAt.Add(-time.Second)) {
		t.Errorf("a landing that failed counts: %+v", got)
	}
	if _, err := s.GiveUp(ctx, w.Window); !errors.Is(err, ErrTooEarly) {
		t.Errorf("given up after a landing that may have come through: %v", err)
	}
	if begun, err = s.BeginLanding(ctx, see()); err != nil {
		t.Fatal(err)
	}
	if err := s.EndLanding(ctx, begun, true); err != nil {
		t.Fatal(err)
	}
	if got := see(); got.Landings != 1 {
		t.Errorf("stored %+v, want one landing", got)
	}
	// Sealed meanwhile: nothing is to be landed, and nothing is noted.
	last := see()
	claim := []pipeline.Claim{{Part: pipeline.PartID{Window: w.Window}, Copy: pipeline.Copy{Key: "k", ETag: "e"}, Name: "n"}}
	if _, err := s.Claim(ctx, claim); err != nil {
		t.Fatal(err)
	}
	if err := s.Publish(ctx, claim); err != nil {
		t.Fatal(err)
	}
	if err := s.Fold(ctx, "run-t"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.BeginLanding(ctx, last); !errors.Is(err, ErrLandedElsewhere) {
		t.Errorf("begun although it is sealed: %v", err)
	}
	if err := s.EndLanding(ctx, last, true); err != nil {
		t.Errorf("ended after it was sealed: %v", err)
	}
	if state, _, err := s.Window(ctx, w.Window); err != nil || state != pipeline.WindowFolded {
		t.Errorf("the window is %s, %v", state, err)
	}
}

func TestLivesAndManifestsAreWhatIsStoredOfALane(t *testing.T) {
	_, s := newTable(t)
	ctx := t.Context()
	if lives, err := s.Lives(ctx, "run-t"); err != nil || len(lives) > 0 {
		t.Errorf("of no lane: %v, %v", lives, err)
	}
	st, err := s.Acquire(ctx, "run-t", false)
	if err != nil {
		t.Fatal(err)
	}
	for n := int64(1); n <= 3; n++ {
		w := windowOfOnePart(t, s, st, n)
		if n == 3 {
			continue
		}
		claim := []pipeline.Claim{{Part: pipeline.PartID{Window: w.Window}, Void: n == 2, Copy: pipeline.Copy{Key: "k", ETag: "e"}, Name: "n"}}
		if _, err := s.Claim(ctx, claim); err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			if err := s.Publish(ctx, claim); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Fold(ctx, "run-t"); err != nil {
		t.Fatal(err)
	}
	lives, err := s.Lives(ctx, "run-t")
	if err != nil || len(lives) != 1 {
		t.Fatalf("lives %+v, %v", lives, err)
	}
	if l := lives[0]; l.Incarnation != st.Incarnation || l.Watermark != 2 || !l.Void.Has(2) || l.Void.Has(1) {
		t.Errorf("life %+v", l)
	}
	held, err := s.Manifests(ctx, "run-t")
	if err != nil || len(held) != 1 || held[0].State != pipeline.WindowCommitted || held[0].Manifest.Window.N != 3 {
		t.Errorf("held %+v, %v", held, err)
	}
}
