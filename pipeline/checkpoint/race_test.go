//go:build race

package checkpoint

const underRace = true
