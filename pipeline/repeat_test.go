package pipeline_test

import (
	"slices"
	"testing"
	"testing/synctest"
)

// TestAHistoryIsWhollyItsSeeds replays some histories: a failing seed is worth keeping only if it
// fails again.
func TestAHistoryIsWhollyItsSeeds(t *testing.T) {
	for _, seed := range []uint64{18, 22, 29, 58, 86} { // once differed from run to run
		var first []string
		for n := range 2 {
			var log []string
			synctest.Test(t, func(t *testing.T) {
				w, err := history(t, seed, switches{})
				if log = w.log; err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
			})
			if n == 0 {
				first = log
				continue
			}
			if !slices.Equal(first, log) {
				i := 0
				for i < min(len(first), len(log)) && first[i] == log[i] {
					i++
				}
				t.Errorf("seed %d went on in two ways after step %d of %d:\n%s\nfirst\n%s\nthen\n%s", seed, i, len(first),
					tail(first[:i], 5), tail(first[:min(i+3, len(first))], 3), tail(log[:min(i+3, len(log))], 3))
			}
		}
	}
}
