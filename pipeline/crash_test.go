package pipeline_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

var oneSeed = flag.Int64("seed", -1, "run only this history of TestCrash, and print its steps")

// keptSeeds once failed.
var keptSeeds = []uint64{
	1219, // a process slept between taking the lane and reading its pending window, which was folded by then
}

// history runs one seed and returns what is wrong with its end.
func history(t *testing.T, seed uint64, off switches) (w *world, wrong error) {
	w = newWorld(t, seed, off)
	w.run(t)
	errs := w.turns.Errors()
	if err := w.drain(t); err != nil {
		errs = append(errs, fmt.Errorf("last process: %w", err))
	}
	w.turns.KillAll()
	synctest.Wait()
	errs = append(errs, w.compare(t))
	return w, errors.Join(errs...)
}

// TestCrash runs histories in which every step of encode, begin, land, commit, claim, merge,
// create, publish and remove fails, or its process dies, before and after its effect, also
// with the answer lost; writers pause and wake up after a successor took over; Firehose groups,
// repeats and refuses at will; two seals work at once. The lake equals the truth.
func TestCrash(t *testing.T) {
	if *oneSeed >= 0 {
		synctest.Test(t, func(t *testing.T) {
			w, err := history(t, uint64(*oneSeed), switches{})
			t.Logf("%s", strings.Join(w.log, "\n"))
			if err != nil {
				t.Errorf("seed %d: %v", *oneSeed, err)
			}
		})
		return
	}
	const seeds, chunk = crashSeeds, 25
	var mu sync.Mutex
	saw := map[string]int{}
	t.Cleanup(func() {
		for _, what := range slices.Sorted(maps.Keys(saw)) {
			t.Logf("%s: %d", what, saw[what])
		}
		for _, what := range []string{"windows replayed", "writers fenced", "copies dropped", "parts that waited for another copy", "reshards"} {
			if saw[what] == 0 && !t.Failed() {
				t.Errorf("no history saw this: %s", what)
			}
		}
	})
	run := func(name string, seeds []uint64) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, seed := range seeds {
				synctest.Test(t, func(t *testing.T) {
					w, err := history(t, seed, switches{})
					if err != nil {
						t.Errorf("seed %d: %.3000v\nlast steps:\n%s", seed, err, tail(w.log, 40))
					}
					mu.Lock()
					defer mu.Unlock()
					for what, n := range w.saw {
						saw[what] += n
					}
				})
			}
		})
	}
	run("kept", keptSeeds)
	for from := uint64(0); from < seeds; from += chunk {
		var some []uint64
		for seed := from; seed < from+chunk; seed++ {
			some = append(some, seed)
		}
		run(fmt.Sprintf("%d-%d", from, from+chunk-1), some)
	}
}

func tail(log []string, n int) string { return strings.Join(log[max(0, len(log)-n):], "\n") }
