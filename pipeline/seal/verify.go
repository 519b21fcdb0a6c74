package seal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"

	"telemetrylake/schemas"
)

// A tally is what a column holds, in whatever order.
type tally struct {
	values, nulls int64
	sum           uint64 // of the hashes of its values: a merger that doubles one row and loses another keeps the rest
}

// add counts one value.
func (t *tally) add(v parquet.Value, buf []byte) []byte {
	buf = append(v.AppendBytes(buf[:0]), byte(v.DefinitionLevel()), byte(v.RepetitionLevel()))
	h := uint64(14695981039346656037) // FNV-1a
	for _, b := range buf {
		h = (h ^ uint64(b)) * 1099511628211
	}
	t.sum += h
	return buf
}

// verify re-opens a merged object with another reader than the one that wrote it, and compares
// it with its parts: schema, rows, values and nulls per column, and event times inside the
// partition. parquet-go decodes every value for it.
func verify(body []byte, parts []*part) error {
	f, err := parquet.OpenFile(bytes.NewReader(body), int64(len(body)))
	if err != nil {
		return fmt.Errorf("re-open: %w", err)
	}
	if got := fingerprint(f); got != parts[0].schema {
		return errors.New("its schema is not the parts'")
	}
	want := make([]tally, len(f.Schema().Columns()))
	var rows int64
	for _, p := range parts {
		rows += p.file.NumRows()
		for i, t := range p.tally {
			want[i].values += t.values
			want[i].nulls += t.nulls
			want[i].sum += t.sum
		}
	}
	if f.NumRows() != rows {
		return fmt.Errorf("it has %d rows, its parts have %d", f.NumRows(), rows)
	}
	got, err := tallies(f)
	if err != nil {
		return fmt.Errorf("count values: %w", err)
	}
	for i, col := range f.Schema().Columns() {
		switch {
		case got[i].values != want[i].values, got[i].nulls != want[i].nulls:
			return fmt.Errorf("column %v has %d values and %d nulls, its parts have %d and %d", col, got[i].values, got[i].nulls, want[i].values, want[i].nulls)
		case got[i].sum != want[i].sum:
			return fmt.Errorf("column %v has other values than its parts", col)
		}
	}
	m := parts[0].meta
	return verifyTimes(f, m.Partition, m.Order[len(m.Order)-1])
}

func tallies(f *parquet.File) ([]tally, error) {
	ts := make([]tally, len(f.Schema().Columns()))
	var buf []byte
	for _, rg := range f.RowGroups() {
		for i, c := range rg.ColumnChunks() {
			err := eachPage(c, func(p parquet.Page) error {
				ts[i].values += p.NumValues()
				ts[i].nulls += p.NumNulls()
				return eachValue(p, func(v parquet.Value) error {
					buf = ts[i].add(v, buf)
					return nil
				})
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return ts, nil
}

func eachPage(c parquet.ColumnChunk, f func(parquet.Page) error) error {
	pages := c.Pages()
	defer pages.Close()
	for {
		p, err := pages.ReadPage()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		err = f(p)
		parquet.Release(p)
		if err != nil {
			return err
		}
	}
}

// verifyTimes checks that every value of the time column lies in the partition: a row elsewhere
// would be invisible to a query that prunes.
func verifyTimes(f *parquet.File, partition, column string) error {
	layout := schemas.Layout{Unit: schemas.Day}
	if strings.Contains(partition, "/") {
		layout.Unit = schemas.Hour
	}
	from, to, err := layout.Bounds(partition)
	if err != nil {
		return fmt.Errorf("partition of the object: %w", err)
	}
	i := slices.IndexFunc(f.Schema().Columns(), func(path []string) bool { return len(path) == 1 && path[0] == column })
	if i < 0 {
		return fmt.Errorf("it has no column %s", column)
	}
	for _, rg := range f.RowGroups() {
		err := eachPage(rg.ColumnChunks()[i], func(p parquet.Page) error {
			return eachValue(p, func(v parquet.Value) error {
				if t := time.UnixMilli(v.Int64()).UTC(); v.IsNull() || t.Before(from) || !t.Before(to) {
					return fmt.Errorf("column %s holds %v, outside partition %s", column, v, partition)
				}
				return nil
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func eachValue(p parquet.Page, f func(parquet.Value) error) error {
	var vs [256]parquet.Value
	for r := p.Values(); ; {
		n, err := r.ReadValues(vs[:])
		for _, v := range vs[:n] {
			if err := f(v); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// fingerprint names a file's schema: parts of different schemas are not merged.
func fingerprint(f *parquet.File) string { return f.Schema().String() }
