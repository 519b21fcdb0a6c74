// Package pipelinetest simulates processes that fail: actors whose steps happen one at a time,
// in an order and with fates that a seed decides. Its one rule: the same seed gives the same
// history.
package pipelinetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
)

// A Fate is what becomes of one step.
type Fate int

// Fates of a step.
const (
	Proceed    Fate = iota
	FailBefore      // an error, without effect
	LoseAnswer      // the effect, and an error
	DieBefore       // the process is gone before the effect
	DieAfter        // the process is gone after the effect
)

var fateNames = [...]string{"proceeds", "fails before", "loses its answer", "dies before", "dies after"}

// String says it in words.
func (f Fate) String() string { return fateNames[f] }

// Errors that steps return.
var (
	ErrInjected = errors.New("injected failure")
	ErrDied     = errors.New("the process is dead")
)

// Turns hands out turns to actors. It belongs into a testing/synctest bubble: the test calls
// synctest.Wait, then lets one of the waiting actors take its step.
type Turns struct {
	rng    *rand.Rand
	rate   float64 // share of steps that do not simply proceed
	mu     sync.Mutex
	actors []*Actor
	log    func(string)
}

// NewTurns returns turns whose order and fates rng decides; rate is the share of steps that
// fail in some way. log takes one line a step; nil is none.
func NewTurns(rng *rand.Rand, rate float64, log func(string)) *Turns {
	return &Turns{rng: rng, rate: rate, log: log}
}

// SetRate changes the share of steps that fail.
func (t *Turns) SetRate(rate float64) { t.rate = rate }

// An Actor is one simulated process.
type Actor struct {
	Name string
	Rand *rand.Rand // its own, so that what it draws does not depend on the others

	turns  *Turns
	cancel context.CancelFunc
	steps  []*step // that wait for their turn, in the order of their coming
	dead   bool
	done   bool
	paused bool
	err    error
}

// A step waits for its turn.
type step struct {
	actor *Actor
	op    string
	fate  chan Fate
}

// Start runs an actor in a goroutine of its own. It may start more of them: their steps are the
// actor's, and so is what becomes of it. They must not wake at the same instant.
func (t *Turns) Start(ctx context.Context, name string, run func(context.Context, *Actor) error) *Actor {
	ctx, cancel := context.WithCancel(ctx)
	a := &Actor{
		Name: fmt.Sprintf("%s-%d", name, len(t.actors)), turns: t, cancel: cancel,
		Rand: rand.New(rand.NewPCG(t.rng.Uint64(), t.rng.Uint64())),
	}
	t.mu.Lock()
	t.actors = append(t.actors, a)
	t.mu.Unlock()
	go func() {
		defer cancel()
		err := run(ctx, a)
		t.mu.Lock()
		defer t.mu.Unlock()
		a.done, a.err = true, err
	}()
	return a
}

// Step waits for the actor's turn and does what its fate allows.
func (a *Actor) Step(op string, do func() error) error {
	a.turns.mu.Lock()
	if a.dead {
		a.turns.mu.Unlock()
		return ErrDied
	}
	st := &step{a, op, make(chan Fate, 1)}
	a.steps = append(a.steps, st)
	a.turns.mu.Unlock()
	fate := <-st.fate
	switch fate {
	case FailBefore:
		return fmt.Errorf("%s: %w", op, ErrInjected)
	case DieBefore:
		return ErrDied
	}
	err := do()
	switch fate {
	case LoseAnswer:
		return fmt.Errorf("%s: %w after its effect", op, ErrInjected)
	case DieAfter:
		a.cancel() // not before: the service would not see the request
		return ErrDied
	}
	return err
}

// Transport makes each request through next a step.
func (a *Actor) Transport(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		op := r.Header.Get("X-Amz-Target")
		if op == "" {
			op = r.Method + " " + r.URL.Path
		}
		var resp *http.Response
		err := a.Step(op, func() (err error) {
			resp, err = next.RoundTrip(r)
			return err
		})
		if err != nil {
			return nil, err
		}
		return resp, nil
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Next lets one waiting actor take its step and reports whether there was one. Call it when
// every goroutine is blocked.
func (t *Turns) Next() bool {
	t.mu.Lock()
	var ready []*step
	for _, a := range t.actors {
		if !a.paused {
			ready = append(ready, a.steps...)
		}
	}
	if len(ready) == 0 {
		t.mu.Unlock()
		return false
	}
	st := ready[t.rng.IntN(len(ready))]
	fate := Proceed
	if t.rng.Float64() < t.rate {
		fate = FailBefore + Fate(t.rng.IntN(4))
	}
	t.mu.Unlock()
	t.release(st, fate)
	return true
}

// release ends the wait of a step. With a death the actor's other steps end too: they never
// happen.
func (t *Turns) release(st *step, f Fate) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := st.actor
	if t.log != nil {
		t.log(fmt.Sprintf("%s: %s %s", a.Name, st.op, f))
	}
	a.steps = slices.DeleteFunc(a.steps, func(o *step) bool { return o == st })
	if f == DieBefore || f == DieAfter {
		a.die()
	}
	if f == DieBefore {
		a.cancel()
	}
	st.fate <- f
}

// die lets no further step of the actor happen; the caller holds the lock.
func (a *Actor) die() {
	a.dead = true
	for _, st := range a.steps {
		st.fate <- DieBefore
	}
	a.steps = nil
}

// Ended reports whether the actor is dead or done.
func (a *Actor) Ended() bool {
	a.turns.mu.Lock()
	defer a.turns.mu.Unlock()
	return a.dead || a.done
}

// Kill ends one actor where it stands.
func (t *Turns) Kill(a *Actor) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a.die()
	a.cancel()
}

// Live returns the actors of a name that are neither dead nor done.
func (t *Turns) Live(name string) []*Actor {
	t.mu.Lock()
	defer t.mu.Unlock()
	var live []*Actor
	for _, a := range t.actors {
		if !a.dead && !a.done && len(a.Name) > len(name) && a.Name[:len(name)+1] == name+"-" {
			live = append(live, a)
		}
	}
	return live
}

// Pause stops an actor at its next step until Resume.
func (t *Turns) Pause(a *Actor) { t.mu.Lock(); a.paused = true; t.mu.Unlock() }

// Resume lets a paused actor go on.
func (t *Turns) Resume(a *Actor) { t.mu.Lock(); a.paused = false; t.mu.Unlock() }

// ResumeAll lets every paused actor go on.
func (t *Turns) ResumeAll() {
	for _, a := range t.actors {
		t.Resume(a)
	}
}

// KillAll ends every actor where it stands.
func (t *Turns) KillAll() {
	for _, a := range t.actors {
		t.Kill(a)
	}
}

// Errors returns what actors ended with, but for failures that were injected.
func (t *Turns) Errors() []error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, a := range t.actors {
		if a.err != nil && !errors.Is(a.err, ErrInjected) && !errors.Is(a.err, ErrDied) && !errors.Is(a.err, context.Canceled) {
			errs = append(errs, fmt.Errorf("%s: %w", a.Name, a.err))
		}
	}
	return slices.Clip(errs)
}
