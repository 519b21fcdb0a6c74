package seal

import (
	"testing"

	"telemetrylake/pipeline"
)

// BenchmarkTallies is what seal pays, twice, for knowing each value of what it publishes.
func BenchmarkTallies(b *testing.B) {
	p := newPlant(b)
	l := p.newLaneOf("large", "shardId-9", pipeline.PartSize{Aim: 64 << 20, Limit: 64 << 20})
	var rs []reading
	for i := range 80_000 {
		rs = append(rs, reading{i % 50000, 0})
	}
	f := opened(b, l.window(rs...)[0]).file
	b.SetBytes(f.Size())
	for b.Loop() {
		if _, err := tallies(f); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(f.NumRows())*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}
