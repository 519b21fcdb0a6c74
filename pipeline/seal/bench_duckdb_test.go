//go:build cgo && unix

package seal

import (
	"bytes"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	_ "github.com/duckdb/duckdb-go/v2"
)

// BenchmarkSealBesideDuckDB is seal and, in the same run, what sorts and writes the same parts in
// DuckDB with one thread. Run it with -cpu 1. Rows for each second of processor time are what to
// compare: a machine that does something else does not change them much.
func BenchmarkSealBesideDuckDB(b *testing.B) {
	p := newPlant(b)
	dir := b.TempDir()
	var parts [][]byte
	rows := p.fleetParts(16, func(body []byte) {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%04d.parquet", len(parts))), body, 0o666); err != nil {
			b.Fatal(err)
		}
		parts = append(parts, bytes.Clone(body))
	})
	joined := bytes.Join(parts, nil)
	b.Run("seal", func(b *testing.B) {
		size, began := int64(0), processor(b)
		for b.Loop() {
			size = sealInMemory(b, p, joined)
		}
		b.ReportMetric(float64(size), "bytes")
		b.ReportMetric(float64(rows)*float64(b.N)/(processor(b)-began).Seconds(), "rows/cpu-s")
	})
	b.Run("DuckDB COPY", func(b *testing.B) {
		db, err := sql.Open("duckdb", "")
		if err != nil {
			b.Fatal(err)
		}
		defer db.Close()
		if _, err := db.ExecContext(b.Context(), "SET threads = 1"); err != nil {
			b.Fatal(err)
		}
		out := filepath.Join(b.TempDir(), "out.parquet")
		copied := fmt.Sprintf("COPY (SELECT * FROM read_parquet('%s/*.parquet') ORDER BY device_id, taken_at) TO '%s' (FORMAT parquet, COMPRESSION zstd)", dir, out)
		began := processor(b)
		for b.Loop() {
			if _, err := db.ExecContext(b.Context(), copied); err != nil {
				b.Fatal(err)
			}
		}
		st, err := os.Stat(out)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(st.Size()), "bytes")
		b.ReportMetric(float64(rows)*float64(b.N)/(processor(b)-began).Seconds(), "rows/cpu-s")
	})
}

// processor is how much processor time this process has used.
func processor(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
