package seal

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding"

	"telemetrylake/pipeline"
	"telemetrylake/schemas"
)

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
	got, err := count(f, within, &s.scratch)
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

// check fails with a *timesError unless all values are times within.
func (t times) check(v encoding.Values) error {
	if v.Kind() != encoding.Int64 {
		return t.fail(v.Kind())
	}
	for _, at := range v.Int64() {
		if !t.has(at) {
			return t.fail(at)
		}
	}
	return nil
}

func (t times) has(at int64) bool { return at >= t.from && at < t.to }

func (t times) fail(v any) error {
	return &timesError{fmt.Errorf("column %s holds %v, outside its partition", t.name, v)}
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
