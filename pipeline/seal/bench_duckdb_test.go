//go:build cgo && unix

package seal

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	_ "github.com/duckdb/duckdb-go/v2"
)

// BenchmarkSealBeside takes turns: seal, then DuckDB sorting and writing the same parts with one
// thread, then parquet-go merging them. Run it with -cpu 1 and some turns: -benchtime 7x. Rows for
// each second of processor time are what to compare, since a machine that does something else
// does not change them much; all figures are medians.
func BenchmarkSealBeside(b *testing.B) {
	p := newPlant(b)
	for name, stage := range map[string]func() staged{
		"fleet":   func() staged { return p.stagedFleet(16) },
		"devices": func() staged { return p.stagedDevices(16) },
		"rooms": func() staged {
			path := os.Getenv("STREAMER_TEST_READINGS")
			if path == "" {
				return staged{}
			}
			return p.stagedRooms(path)
		},
	} {
		b.Run(name, func(b *testing.B) {
			s := stage()
			if s.rows == 0 {
				b.Log("no real readings: set STREAMER_TEST_READINGS")
				return
			}
			beside(b, p, s)
		})
	}
}

func beside(b *testing.B, p *plant, s staged) {
	db, err := sql.Open("duckdb", "")
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(b.Context(), "SET threads = 1"); err != nil {
		b.Fatal(err)
	}
	out := filepath.Join(b.TempDir(), "out.parquet")
	statement := fmt.Sprintf("COPY (SELECT * FROM read_parquet('%s') ORDER BY %s) TO '%s' (FORMAT parquet, COMPRESSION zstd)", s.write(b), s.order, out)
	joined, size := s.joined(), int64(0)
	var sealed, copied, merged []float64
	rate := func(do func()) float64 {
		began := processor(b)
		do()
		return float64(s.rows) / (processor(b) - began).Seconds()
	}
	for b.Loop() {
		sealed = append(sealed, rate(func() { size = sealInMemory(b, p, joined) }))
		copied = append(copied, rate(func() {
			if _, err := db.ExecContext(b.Context(), statement); err != nil {
				b.Fatal(err)
			}
		}))
		merged = append(merged, rate(func() { mergeRowGroups(b, s) }))
	}
	st, err := os.Stat(out)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(len(s.parts)), "parts")
	b.ReportMetric(float64(s.rows), "rows")
	b.ReportMetric(median(sealed), "seal-rows/cpu-s")
	b.ReportMetric(median(copied), "duckdb-rows/cpu-s")
	b.ReportMetric(median(merged), "mergerowgroups-rows/cpu-s")
	b.ReportMetric(median(sealed)/median(copied), "x-duckdb")
	b.ReportMetric(median(sealed)/median(merged), "x-mergerowgroups")
	b.ReportMetric(float64(size)/float64(st.Size()), "bytes/duckdb-byte")
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// processor is how much processor time this process has used.
func processor(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
