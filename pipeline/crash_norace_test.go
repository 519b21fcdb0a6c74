//go:build !race

package pipeline_test

const crashSeeds = 500
