//go:build race

package seal

// The race detector keeps several times the memory that it watches.
const raceDetector = true
