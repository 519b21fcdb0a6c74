//go:build !race

package seal

const raceDetector = false
