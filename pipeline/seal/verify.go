package seal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strings"

	"github.com/parquet-go/parquet-go"

	"telemetrylake/pipeline"
	"telemetrylake/schemas"
)

// A tally is what a file holds, in whatever order its rows are.
type tally struct {
	columns []columnTally
	rows    uint64 // sum of the hashes of whole rows: no two rows have exchanged a value
}

type columnTally struct {
	values, nulls int64
	sum           uint64 // of the hashes of its values: a merger that doubles one row and loses another keeps the rest
}

// hash is of a value and of how deep it is nested.
func hash(v parquet.Value) uint64 {
	h := uint64(v.DefinitionLevel())<<8 | uint64(v.RepetitionLevel())
	switch {
	case v.IsNull():
		return mix(h, 1)
	case v.Kind() == parquet.Int64, v.Kind() == parquet.Double:
		return mix(h, v.Uint64())
	case v.Kind() == parquet.Int32, v.Kind() == parquet.Float:
		return mix(h, uint64(v.Uint32()))
	case v.Kind() == parquet.ByteArray, v.Kind() == parquet.FixedLenByteArray:
		return hashBytes(h, v.ByteArray())
	}
	return hashBytes(h, v.Bytes())
}

func hashBytes(h uint64, b []byte) uint64 {
	n := len(b)
	for ; len(b) >= 8; b = b[8:] {
		h = mix(h, binary.LittleEndian.Uint64(b))
	}
	var last [8]byte
	copy(last[:], b)
	return mix(mix(h, binary.LittleEndian.Uint64(last[:])), uint64(n))
}

// mix is far from secret and good enough to tell rows apart: nobody chooses values against it.
func mix(h, v uint64) uint64 {
	hi, lo := bits.Mul64(h^0x9e3779b97f4a7c15, v^0xd6e8feb86659fd93)
	return (hi ^ lo) * 0xff51afd7ed558ccd
}

// verify re-opens a merged object with another reader than the one that wrote it, and compares
// it with its parts: schema, rows, values and nulls per column, whole rows, and event times inside
// the partition. parquet-go decodes every value for it.
func verify(s *source, parts []*part) error {
	f, err := openFile(s.section(0, s.size))
	if err != nil {
		return fmt.Errorf("re-open: %w", err)
	}
	if got := fingerprint(f); got != parts[0].schema {
		return errors.New("its schema is not the parts'")
	}
	want := tally{columns: make([]columnTally, len(f.Schema().Columns()))}
	var rows int64
	for _, p := range parts {
		rows += p.rows
		want.add(p.tally)
	}
	if f.NumRows() != rows {
		return fmt.Errorf("it has %d rows, its parts have %d", f.NumRows(), rows)
	}
	within, err := newTimes(f, parts[0].meta)
	if err != nil {
		return err
	}
	got, err := count(f, within)
	if err != nil {
		return fmt.Errorf("count values: %w", err)
	}
	for i, col := range f.Schema().Columns() {
		g, w := got.columns[i], want.columns[i]
		switch {
		case g.values != w.values, g.nulls != w.nulls:
			return fmt.Errorf("column %v has %d values and %d nulls, its parts have %d and %d", col, g.values, g.nulls, w.values, w.nulls)
		case g.sum != w.sum:
			return fmt.Errorf("column %v has other values than its parts", col)
		}
	}
	if got.rows != want.rows {
		return errors.New("its values are its parts' and its rows are not: values have changed places")
	}
	return nil
}

func (t *tally) add(u tally) {
	for i, c := range u.columns {
		t.columns[i].values += c.values
		t.columns[i].nulls += c.nulls
		t.columns[i].sum += c.sum
	}
	t.rows += u.rows
}

// count reads every value of a file, and fails with a *timesError if one lies outside of within.
// A number for each row of a row group is in memory.
func count(f *parquet.File, within times) (tally, error) {
	t := tally{columns: make([]columnTally, len(f.Schema().Columns()))}
	var rows []uint64
	for _, rg := range f.RowGroups() {
		n := rg.NumRows()
		if n < 0 || n > f.NumRows() {
			return t, fmt.Errorf("a row group claims %d rows of %d", n, f.NumRows())
		}
		rows = slices.Grow(rows[:0], int(n))[:n]
		clear(rows)
		for i, c := range rg.ColumnChunks() {
			col, row := &t.columns[i], -1
			err := eachPage(c, func(p parquet.Page) error {
				col.values += p.NumValues()
				col.nulls += p.NumNulls()
				return eachValue(p, func(v parquet.Value) error {
					h := hash(v)
					col.sum += h
					if v.RepetitionLevel() == 0 {
						row++
					}
					if row < 0 || row >= len(rows) {
						return fmt.Errorf("column %v has more rows than the %d of its group", f.Schema().Columns()[i], n)
					}
					rows[row] = mix(rows[row]+uint64(i), h)
					if i == within.column {
						return within.check(v)
					}
					return nil
				})
			})
			if err != nil {
				return t, err
			}
			if row != len(rows)-1 {
				return t, fmt.Errorf("column %v has %d rows, its group has %d", f.Schema().Columns()[i], row+1, n)
			}
		}
		for _, h := range rows {
			t.rows += h
		}
	}
	return t, nil
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

// times are the bounds of a partition, and the column that must lie within: a row elsewhere would
// be invisible to a query that prunes.
type times struct {
	column   int
	name     string
	from, to int64 // milliseconds, to exclusive
}

// A timesError is a row that is not its partition's.
type timesError struct{ error }

func newTimes(f *parquet.File, m *pipeline.PartMeta) (times, error) {
	layout := schemas.Layout{Unit: schemas.Day}
	if strings.Contains(m.Partition, "/") {
		layout.Unit = schemas.Hour
	}
	from, to, err := layout.Bounds(m.Partition)
	if err != nil {
		return times{}, fmt.Errorf("partition of part %s: %w", m.ID(), err)
	}
	name := m.Order[len(m.Order)-1]
	i := slices.IndexFunc(f.Schema().Columns(), func(path []string) bool { return len(path) == 1 && path[0] == name })
	if i < 0 {
		return times{}, fmt.Errorf("it has no column %s", name)
	}
	return times{i, name, from.UnixMilli(), to.UnixMilli()}, nil
}

func (t times) check(v parquet.Value) error {
	if v.IsNull() || v.Kind() != parquet.Int64 || v.Int64() < t.from || v.Int64() >= t.to {
		return &timesError{fmt.Errorf("column %s holds %v, outside its partition", t.name, v)}
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
