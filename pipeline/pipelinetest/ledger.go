package pipelinetest

import (
	"fmt"
	"reflect"
	"testing"

	"telemetrylake/pipeline"
)

// TestLedger is what every implementation of pipeline.Ledger keeps, with what folds windows.
func TestLedger(t *testing.T, newStore func(testing.TB) Memory) {
	for name, test := range map[string]func(*testing.T, Memory){
		"a window's states":                         windowStates,
		"a claim is held by the first copy":         claimHeld,
		"of two copies in one call the first":       twoInOneCall,
		"claims of many parts and windows":          manyClaims,
		"a closed window takes no claim":            closedWindow,
		"a void part is never claimed":              voidPart,
		"a claim moves while it is unpublished":     moves,
		"publish succeeds again, also after a fold": publishAgain,
		"fold waits for every part":                 foldWaits,
		"the watermark follows the numbers":         watermark,
		"a window without parts folds":              noParts,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newStore(t))
		})
	}
}

// ClaimOf is a claim on a part for a copy in the named staging object.
func ClaimOf(m *pipeline.Manifest, part int, object string) pipeline.Claim {
	return pipeline.Claim{
		Part: pipeline.PartID{Window: m.Window, Index: part},
		Copy: pipeline.Copy{Key: object, ETag: "e-" + object, Offset: int64(1000 * part)},
		Name: "readings/dt=2026-11-30/of-" + object + "-0.parquet",
	}
}

func (m Memory) claim(t testing.TB, cs ...pipeline.Claim) []pipeline.Claim {
	t.Helper()
	held, err := m.Claim(t.Context(), cs)
	if err != nil {
		t.Fatal(err)
	}
	if len(held) != len(cs) {
		t.Fatalf("%d claims come back as %d", len(cs), len(held))
	}
	return held
}

func (m Memory) publish(t testing.TB, cs ...pipeline.Claim) {
	t.Helper()
	if err := m.Publish(t.Context(), cs); err != nil {
		t.Fatal(err)
	}
}

func (m Memory) fold(t testing.TB) {
	t.Helper()
	if err := m.Fold(t.Context(), Lane); err != nil {
		t.Fatal(err)
	}
}

// state fails the test unless the windows are in these states.
func (m Memory) state(t testing.TB, want pipeline.WindowState, ws ...*pipeline.Manifest) {
	t.Helper()
	for _, w := range ws {
		got, stored, err := m.Window(t.Context(), w.Window)
		if err != nil || got != want {
			t.Errorf("window %d is %q, %v, want %q", w.Window.N, got, err, want)
		}
		if there := want != pipeline.WindowFolded && want != pipeline.WindowUnknown; (stored != nil) != there {
			t.Errorf("window %d is %s and has a manifest: %v", w.Window.N, got, stored != nil)
		}
	}
}

// void fails the test unless the windows were given up and folded.
func (m Memory) void(t testing.TB, ws ...*pipeline.Manifest) {
	t.Helper()
	for _, w := range ws {
		if got, stored, err := m.Window(t.Context(), w.Window); err != nil || got != pipeline.WindowVoid || stored != nil {
			t.Errorf("window %d is %q, %v, and has a manifest: %v", w.Window.N, got, err, stored != nil)
		}
	}
}

func equal(t testing.TB, what string, got, want pipeline.Claim) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: ledger holds %+v, want %+v", what, got, want)
	}
}

func windowStates(t *testing.T, m Memory) {
	s := Begun(t, m)
	never := s.Manifest(1)
	never.Window.N = 5
	m.state(t, pipeline.WindowUnknown, never)
	w := s.Begin(t, 1)
	m.state(t, pipeline.WindowPending, w)
	_, stored, _ := m.Window(t.Context(), w.Window)
	if !reflect.DeepEqual(stored, w) {
		t.Errorf("manifest is %+v, was begun as %+v", stored, w)
	}
	s.Commit(t, w)
	m.state(t, pipeline.WindowCommitted, w)
	m.publish(t, m.claim(t, ClaimOf(w, 0, "a"))...)
	m.fold(t)
	m.state(t, pipeline.WindowFolded, w)
	m.state(t, pipeline.WindowUnknown, never)
	other := *w
	other.Window.Incarnation = "another"
	m.state(t, pipeline.WindowUnknown, &other)
	other.Window = pipeline.WindowID{Lane: "another", Incarnation: w.Window.Incarnation, N: 1}
	m.state(t, pipeline.WindowUnknown, &other)
}

func claimHeld(t *testing.T, m Memory) {
	s := Begun(t, m)
	w := s.Begin(t, 2) // pending takes claims too
	a, b := ClaimOf(w, 0, "a"), ClaimOf(w, 0, "b")
	equal(t, "fresh", m.claim(t, a)[0], a)
	equal(t, "again", m.claim(t, a)[0], a)
	equal(t, "another copy", m.claim(t, b)[0], a)
	near := a
	near.Copy.Offset = 77
	equal(t, "another offset in the object", m.claim(t, near)[0], a)
	s.Commit(t, w)
	equal(t, "another copy, committed", m.claim(t, b)[0], a)
	held := m.claim(t, b, ClaimOf(w, 1, "b"))
	equal(t, "held beside fresh", held[0], a)
	equal(t, "fresh beside held", held[1], ClaimOf(w, 1, "b"))
	m.publish(t, a)
	a.Published = true
	equal(t, "published", m.claim(t, b)[0], a)
}

func twoInOneCall(t *testing.T, m Memory) {
	w := Begun(t, m).Window(t, 2)
	first, second := ClaimOf(w, 0, "a"), ClaimOf(w, 0, "a")
	second.Copy.Offset = 5000
	other := ClaimOf(w, 1, "a")
	held := m.claim(t, first, other, second)
	equal(t, "first copy", held[0], first)
	equal(t, "other part", held[1], other)
	equal(t, "second copy", held[2], first)
	if got := m.claim(t); len(got) != 0 {
		t.Errorf("no claims come back as %v", got)
	}
}

func manyClaims(t *testing.T, m Memory) {
	s := Begun(t, m)
	w1, w2 := s.Window(t, 250), s.Window(t, 3)
	taken := ClaimOf(w1, 120, "earlier")
	m.claim(t, taken)
	var cs []pipeline.Claim
	for i := range 250 {
		cs = append(cs, ClaimOf(w1, i, "a"))
		if i < 3 {
			cs = append(cs, ClaimOf(w2, i, "a"))
		}
	}
	for i, h := range m.claim(t, cs...) {
		want := cs[i]
		if want.Part == taken.Part {
			want = taken
		}
		equal(t, "of many", h, want)
	}
}

func closedWindow(t *testing.T, m Memory) {
	s := Begun(t, m)
	w, open := s.Window(t, 1), s.Window(t, 1)
	never := s.Manifest(1)
	_, err := m.Claim(t.Context(), []pipeline.Claim{ClaimOf(never, 0, "a")})
	wants(t, "claim in a window never begun", err, pipeline.ErrWindowClosed)
	m.publish(t, m.claim(t, ClaimOf(w, 0, "a"))...)
	m.fold(t)
	late := ClaimOf(w, 0, "b")
	_, err = m.Claim(t.Context(), []pipeline.Claim{late, ClaimOf(open, 0, "b")})
	wants(t, "claim in a folded window", err, pipeline.ErrWindowClosed)
	_, err = m.Void(t.Context(), late.Part)
	wants(t, "void in a folded window", err, pipeline.ErrWindowClosed)
	_, err = m.Move(t.Context(), ClaimOf(w, 0, "a"), late)
	wants(t, "move in a folded window", err, pipeline.ErrWindowClosed)
	equal(t, "the open one after it", m.claim(t, ClaimOf(open, 0, "b"))[0], ClaimOf(open, 0, "b"))
}

func voidPart(t *testing.T, m Memory) {
	w := Begun(t, m).Window(t, 2)
	void := pipeline.Claim{Part: pipeline.PartID{Window: w.Window, Index: 0}, Void: true}
	for range 2 {
		got, err := m.Void(t.Context(), void.Part)
		works(t, "void", err)
		equal(t, "void", got, void)
	}
	equal(t, "claim", m.claim(t, ClaimOf(w, 0, "a"))[0], void)
	if err := m.Publish(t.Context(), []pipeline.Claim{ClaimOf(w, 0, "a")}); err == nil {
		t.Error("a void part is published")
	}
	held, err := m.Move(t.Context(), ClaimOf(w, 0, "a"), ClaimOf(w, 0, "b"))
	works(t, "move", err)
	equal(t, "move", held, void)
	claimed := m.claim(t, ClaimOf(w, 1, "a"))[0]
	got, err := m.Void(t.Context(), claimed.Part)
	works(t, "void of a claimed part", err)
	equal(t, "void of a claimed part", got, claimed)
}

func moves(t *testing.T, m Memory) {
	w := Begun(t, m).Window(t, 1)
	from := m.claim(t, ClaimOf(w, 0, "a"))[0]
	to := from
	to.Round, to.Name = 1, "readings/dt=2026-11-30/of-a-1.parquet"
	for range 2 { // the second after an answer that was lost
		held, err := m.Move(t.Context(), from, to)
		works(t, "move", err)
		equal(t, "move", held, to)
	}
	for what, change := range map[string]func(*pipeline.Claim){
		"key": func(c *pipeline.Claim) { c.Copy.Key = "z" }, "etag": func(c *pipeline.Claim) { c.Copy.ETag = "z" },
		"offset": func(c *pipeline.Claim) { c.Copy.Offset++ }, "name": func(c *pipeline.Claim) { c.Name = "z" },
		"round": func(c *pipeline.Claim) { c.Round++ },
	} {
		wrong := to
		change(&wrong)
		held, err := m.Move(t.Context(), wrong, from)
		works(t, "move from another "+what, err)
		equal(t, "move from another "+what, held, to)
	}
	other := to
	other.Copy = pipeline.Copy{Key: "b", ETag: "eb", Offset: 9}
	held, err := m.Move(t.Context(), to, other)
	works(t, "move to another copy", err)
	equal(t, "move to another copy", held, other)
	m.publish(t, other)
	other.Published = true
	held, err = m.Move(t.Context(), other, from)
	works(t, "move of a published claim", err)
	equal(t, "move of a published claim", held, other)
}

func publishAgain(t *testing.T, m Memory) {
	w := Begun(t, m).Window(t, 1)
	c := m.claim(t, ClaimOf(w, 0, "a"))[0]
	wrong := c
	wrong.Name = "another"
	if err := m.Publish(t.Context(), []pipeline.Claim{wrong}); err == nil {
		t.Error("a claim is published under a name that is not its own")
	}
	m.publish(t, c)
	m.publish(t, c)
	m.fold(t)
	m.publish(t, c)
	m.publish(t)
}

// A part that nobody claimed is not published by saying so.
func foldWaits(t *testing.T, m Memory) {
	s := Begun(t, m)
	w := s.Begin(t, 3)
	if err := m.Publish(t.Context(), []pipeline.Claim{ClaimOf(w, 0, "a")}); err == nil {
		t.Error("a part without claim is published")
	}
	m.publish(t, m.claim(t, ClaimOf(w, 0, "a"), ClaimOf(w, 1, "a"))...)
	m.fold(t)
	m.state(t, pipeline.WindowPending, w)
	last := m.claim(t, ClaimOf(w, 2, "a"))
	m.publish(t, last...)
	m.fold(t)
	m.state(t, pipeline.WindowPending, w) // all published, but its positions have not advanced
	s.Commit(t, w)
	m.fold(t)
	m.state(t, pipeline.WindowFolded, w)

	w = s.Window(t, 3)
	m.claim(t, ClaimOf(w, 0, "a"), ClaimOf(w, 1, "a"))
	m.publish(t, ClaimOf(w, 0, "a"))
	m.fold(t)
	m.state(t, pipeline.WindowCommitted, w)
	if _, err := m.Void(t.Context(), pipeline.PartID{Window: w.Window, Index: 2}); err != nil {
		t.Fatal(err)
	}
	m.fold(t)
	m.state(t, pipeline.WindowCommitted, w) // part 1 is claimed and not published
	m.publish(t, ClaimOf(w, 1, "a"))
	m.fold(t)
	m.void(t, w)
	works(t, "fold of a lane that never was", m.Fold(t.Context(), "another"))
}

func watermark(t *testing.T, m Memory) {
	s := Begun(t, m)
	var ws []*pipeline.Manifest
	for range 12 {
		ws = append(ws, s.Window(t, 1))
	}
	done := func(i int) { m.publish(t, m.claim(t, ClaimOf(ws[i], 0, fmt.Sprint(i)))...) }
	// Out of order: a window is sealed at once, and folds when all before it are.
	for _, i := range []int{11, 2, 1, 3, 10, 9} {
		done(i)
	}
	m.fold(t)
	m.state(t, pipeline.WindowSealed, ws[11], ws[2], ws[1], ws[3], ws[10], ws[9])
	m.state(t, pipeline.WindowCommitted, ws[0], ws[4])
	done(0)
	m.fold(t)
	m.state(t, pipeline.WindowFolded, ws[:4]...)
	m.state(t, pipeline.WindowCommitted, ws[4:9]...)
	m.state(t, pipeline.WindowSealed, ws[9:]...)
	for i := 4; i < 9; i++ {
		done(i)
	}
	m.fold(t)
	m.fold(t)
	m.state(t, pipeline.WindowFolded, ws...)
	w := s.Window(t, 1)
	m.fold(t)
	m.state(t, pipeline.WindowCommitted, w)
}

func noParts(t *testing.T, m Memory) {
	s := Begun(t, m)
	w := s.Window(t, 0)
	m.fold(t)
	m.state(t, pipeline.WindowFolded, w)
	pending := s.Begin(t, 0)
	m.fold(t)
	m.state(t, pipeline.WindowPending, pending)
}
