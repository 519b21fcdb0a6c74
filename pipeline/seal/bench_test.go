package seal

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"telemetrylake/pipeline/lake"
)

// BenchmarkSeal is all that seal does with a staging object of 16 MiB, and a part of it.
func BenchmarkSeal(b *testing.B) {
	p := newPlant(b)
	s := p.stagedFleet(16)
	joined := s.joined()
	rate := func(b *testing.B) {
		b.SetBytes(int64(len(joined)))
		b.ReportMetric(float64(s.rows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	}
	b.Run("split, count, merge, encode, verify", func(b *testing.B) {
		size := int64(0)
		for b.Loop() {
			size = sealInMemory(b, p, joined)
		}
		b.ReportMetric(float64(size), "bytes")
		rate(b)
	})
	b.Run("split and count", func(b *testing.B) {
		for b.Loop() {
			w := &work{Sealer: p.sealer(), src: &source{r: bytes.NewReader(joined), size: int64(len(joined))}}
			if err := w.find(b.Context()); err != nil || len(w.parts) != len(s.parts) {
				b.Fatal(err)
			}
		}
		rate(b)
	})
}

// sealInMemory does everything but ask the ledger and store the object; it returns the object's size.
func sealInMemory(b *testing.B, p *plant, joined []byte) int64 {
	spooled := p.sealer(func(s *Stages) { s.Spool = func() (Spool, error) { return lake.NewSpool(), nil } })
	w := &work{Sealer: spooled, src: &source{r: bytes.NewReader(joined), size: int64(len(joined))}}
	if err := w.find(b.Context()); err != nil {
		b.Fatal(err)
	}
	text, err := w.meta(w.parts).Encode()
	if err != nil {
		b.Fatal(err)
	}
	out, err := w.merge(b.Context(), w.parts, text)
	if err != nil {
		b.Fatal(err)
	}
	defer out.close()
	return out.n
}

// mergeRowGroups is what parquet-go takes for merging and writing alone.
func mergeRowGroups(b *testing.B, s staged) {
	var groups []parquet.RowGroup
	var schema *parquet.Schema
	for _, body := range s.parts {
		f := fileOf(b, body)
		schema = f.Schema()
		groups = append(groups, f.RowGroups()...)
	}
	var columns []parquet.SortingColumn
	for name := range strings.SplitSeq(s.order, ", ") {
		columns = append(columns, parquet.Ascending(name))
	}
	merged, err := parquet.MergeRowGroups(groups, parquet.SortingRowGroupConfig(
		parquet.SortingColumns(columns...)))
	if err != nil {
		b.Fatal(err)
	}
	out := parquet.NewWriter(io.Discard, schema, parquet.Compression(&parquet.Zstd))
	if _, err := parquet.CopyRows(out, merged.Rows()); err != nil {
		b.Fatal(err)
	}
	if err := out.Close(); err != nil {
		b.Fatal(err)
	}
}
