//go:build race

package pipeline_test

// crashSeeds under the race detector, which makes each about ten times as slow.
const crashSeeds = 50
