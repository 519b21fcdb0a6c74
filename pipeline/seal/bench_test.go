package seal

import (
	"bytes"
	"io"
	"testing"

	"github.com/parquet-go/parquet-go"
)

// BenchmarkSeal is all that seal does with a staging object of 16 MiB, beside what other libraries
// take for merging alone. Compare them in one run with -cpu 1.
func BenchmarkSeal(b *testing.B) {
	p := newPlant(b)
	var parts [][]byte
	rows := p.fleetParts(16, func(body []byte) { parts = append(parts, bytes.Clone(body)) })
	joined := bytes.Join(parts, nil)
	rate := func(b *testing.B) {
		b.SetBytes(int64(len(joined)))
		b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
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
			if err := w.find(b.Context()); err != nil || len(w.parts) != len(parts) {
				b.Fatal(err)
			}
		}
		rate(b)
	})
	b.Run("parquet-go MergeRowGroups", func(b *testing.B) {
		for b.Loop() {
			mergeRowGroups(b, parts)
		}
		rate(b)
	})
}

// sealInMemory does everything but ask the ledger and store the object; it returns the object's size.
func sealInMemory(b *testing.B, p *plant, joined []byte) int64 {
	w := &work{Sealer: p.sealer(), src: &source{r: bytes.NewReader(joined), size: int64(len(joined))}}
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

func mergeRowGroups(b *testing.B, parts [][]byte) {
	var groups []parquet.RowGroup
	var schema *parquet.Schema
	for _, body := range parts {
		f := fileOf(b, body)
		schema = f.Schema()
		groups = append(groups, f.RowGroups()...)
	}
	merged, err := parquet.MergeRowGroups(groups, parquet.SortingRowGroupConfig(
		parquet.SortingColumns(parquet.Ascending("device_id"), parquet.Ascending("taken_at"))))
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
