package seal

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/parquet-go/parquet-go"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/columnar"
)

// A liar merges and then changes what it writes.
type liar struct {
	Merger
	lie func(arrow.RecordBatch) arrow.RecordBatch
}

func (l liar) Merge(ctx context.Context, w io.Writer, parts []*io.SectionReader, order []string, meta map[string]string) error {
	var b bytes.Buffer
	if err := l.Merger.Merge(ctx, &b, parts, order, meta); err != nil {
		return err
	}
	f, err := file.NewParquetReader(bytes.NewReader(b.Bytes()))
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := pqarrow.NewFileReader(f, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		return err
	}
	tbl, err := r.ReadTable(ctx)
	if err != nil {
		return err
	}
	batches := array.NewTableReader(tbl, -1)
	batches.Next()
	return columnar.NewEncoder(memory.DefaultAllocator).Encode(w, l.lie(batches.RecordBatch()), meta)
}

// edit is the batch with one value of one column replaced; nil makes it null.
func edit(rows arrow.RecordBatch, column string, row int, v *int64) arrow.RecordBatch {
	i := rows.Schema().FieldIndices(column)[0]
	old := rows.Column(i)
	b := array.NewTimestampBuilder(memory.DefaultAllocator, old.DataType().(*arrow.TimestampType))
	for j := range old.Len() {
		switch {
		case j == row && v == nil, j != row && old.IsNull(j):
			b.AppendNull()
		case j == row:
			b.Append(arrow.Timestamp(*v))
		default:
			b.Append(old.(*array.Timestamp).Value(j))
		}
	}
	cols := make([]arrow.Array, rows.NumCols())
	for j := range cols {
		cols[j] = rows.Column(j)
	}
	cols[i] = b.NewArray()
	return array.NewRecordBatch(rows.Schema(), cols, rows.NumRows())
}

// What a merger gets wrong is never published: seal compares with another reader first.
func TestSealRefusesWhatTheMergerGotWrong(t *testing.T) {
	at := func(days int) *int64 {
		ms := day.AddDate(0, 0, days).UnixMilli()
		return &ms
	}
	for name, c := range map[string]struct {
		lie  func(arrow.RecordBatch) arrow.RecordBatch
		want string
	}{
		"a row is lost":                  {func(r arrow.RecordBatch) arrow.RecordBatch { return r.NewSlice(0, r.NumRows()-1) }, "rows"},
		"no row is left":                 {func(r arrow.RecordBatch) arrow.RecordBatch { return r.NewSlice(0, 0) }, "rows"},
		"a value is null":                {func(r arrow.RecordBatch) arrow.RecordBatch { return edit(r, "stream_created_at", 1, nil) }, "nulls"},
		"a null has a value":             {func(r arrow.RecordBatch) arrow.RecordBatch { return edit(r, "expires_at", 1, at(0)) }, "nulls"},
		"a time is the day before":       {func(r arrow.RecordBatch) arrow.RecordBatch { return edit(r, "taken_at", 0, at(-1)) }, "outside its partition"},
		"a time is the next day's first": {func(r arrow.RecordBatch) arrow.RecordBatch { return edit(r, "taken_at", 2, at(1)) }, "outside its partition"},
		"a row is doubled and one lost":  {doubleFirst, "other values"},
		"a value is another":             {func(r arrow.RecordBatch) arrow.RecordBatch { return edit(r, "stream_created_at", 1, at(0)) }, "other values"},
		"values change places":           {swapFirst("celsius"), "changed places"},
		"a column is missing":            {dropColumn("humidity"), "schema"},
		"a column has another name":      {renameColumn("humidity", "damp"), "schema"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlant(t)
			w := p.lane.window(on(0, 1, 2, 3)...)
			p.stage("a", w...)
			s := p.sealer(func(s *Stages) { s.Merger = liar{p.merger, c.lie} })
			_, err := s.Sweep(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "verify") {
				t.Errorf("sweep: %v, want a word on %s", err, c.want)
			}
			p.onlyTruth()
			p.sweep() // with a merger that does not lie
			p.wantRows(1, 2, 3)
		})
	}
}

// onlyTruth fails the test if an object of the lake holds what no part holds: a part of which the
// lie left alone what it has may be there.
func (p *plant) onlyTruth() {
	p.t.Helper()
	for _, key := range p.keys(p.lake) {
		r, err := p.lake.Read(p.t.Context(), pipeline.Object{Key: key})
		if err != nil {
			p.t.Fatal(err)
		}
		f, err := parquet.OpenFile(r, r.Size())
		if err != nil {
			p.t.Fatal(err)
		}
		if n := len(column(p.t, f, "humidity")); n == 0 || int64(n) != f.NumRows() {
			p.t.Errorf("%s has %d values of humidity in %d rows", key, n, f.NumRows())
		}
		for i, v := range column(p.t, f, "taken_at") {
			c := column(p.t, f, "celsius")[i]
			if want := day.Add(time.Duration(1000+c.Int64()) * time.Second).UnixMilli(); v.Int64() != want {
				p.t.Errorf("%s: reading %v was taken at %v, want %d", key, c, v, want)
			}
		}
		for _, v := range column(p.t, f, "stream_created_at") {
			if v.IsNull() || v.Int64() != day.AddDate(0, 0, 2).UnixMilli() {
				p.t.Errorf("%s: stream_created_at is %v", key, v)
			}
		}
		for _, v := range column(p.t, f, "expires_at") {
			if !v.IsNull() {
				p.t.Errorf("%s: expires_at is %v", key, v)
			}
		}
	}
	rows, _ := p.inLake()
	for c, n := range rows {
		if n != 1 {
			p.t.Errorf("reading %s is in the lake %d times", c, n)
		}
	}
}

// doubleFirst writes the first row again in the place of the last.
func doubleFirst(r arrow.RecordBatch) arrow.RecordBatch {
	cols := make([]arrow.Array, r.NumCols())
	for i := range cols {
		var err error
		first, most := array.NewSlice(r.Column(i), 0, 1), array.NewSlice(r.Column(i), 0, r.NumRows()-1)
		if cols[i], err = array.Concatenate([]arrow.Array{first, most}, memory.DefaultAllocator); err != nil {
			panic(err)
		}
	}
	return array.NewRecordBatch(r.Schema(), cols, r.NumRows())
}

// swapFirst exchanges the first two values of a column: every column holds what it held.
func swapFirst(name string) func(arrow.RecordBatch) arrow.RecordBatch {
	return func(r arrow.RecordBatch) arrow.RecordBatch {
		if r.NumRows() < 2 {
			return r
		}
		i := r.Schema().FieldIndices(name)[0]
		old := r.Column(i)
		swapped, err := array.Concatenate([]arrow.Array{
			array.NewSlice(old, 1, 2), array.NewSlice(old, 0, 1), array.NewSlice(old, 2, r.NumRows()),
		}, memory.DefaultAllocator)
		if err != nil {
			panic(err)
		}
		cols := make([]arrow.Array, r.NumCols())
		for j := range cols {
			cols[j] = r.Column(j)
		}
		cols[i] = swapped
		return array.NewRecordBatch(r.Schema(), cols, r.NumRows())
	}
}

func dropColumn(name string) func(arrow.RecordBatch) arrow.RecordBatch {
	return func(r arrow.RecordBatch) arrow.RecordBatch {
		var fields []arrow.Field
		var cols []arrow.Array
		for i, f := range r.Schema().Fields() {
			if f.Name != name {
				fields, cols = append(fields, f), append(cols, r.Column(i))
			}
		}
		return array.NewRecordBatch(arrow.NewSchema(fields, nil), cols, r.NumRows())
	}
}

func renameColumn(from, to string) func(arrow.RecordBatch) arrow.RecordBatch {
	return func(r arrow.RecordBatch) arrow.RecordBatch {
		fields := r.Schema().Fields()
		for i := range fields {
			if fields[i].Name == from {
				fields[i].Name = to
			}
		}
		return array.NewRecordBatch(arrow.NewSchema(fields, nil), r.Columns(), r.NumRows())
	}
}

// An honest merger that changes nothing is believed.
func TestSealBelievesAMergerThatOnlyRewrites(t *testing.T) {
	p := newPlant(t)
	p.stage("a", p.lane.window(on(0, 1, 2, 3)...)...)
	s := p.sealer(func(s *Stages) {
		s.Merger = liar{p.merger, func(r arrow.RecordBatch) arrow.RecordBatch { return r }}
	})
	if _, err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.wantRows(1, 2, 3)
}

// Rows that a part itself has in the wrong partition are not published either: a query that
// prunes would not see them.
func TestVerifyRefusesTimesOutsideThePartition(t *testing.T) {
	p := newPlant(t)
	body := p.lane.window(on(0, 1, 2)...)[0]
	pt := opened(t, body)
	src := &source{r: bytes.NewReader(body), size: int64(len(body))}
	if err := verify(src, []*part{pt}); err != nil {
		t.Errorf("where it belongs: %v", err)
	}
	pt.meta.Partition = "dt=2026-11-29"
	if err := verify(src, []*part{pt}); err == nil || !strings.Contains(err.Error(), "outside its partition") {
		t.Errorf("a day early: %v", err)
	}
}

func TestVerifyTimesKnowsHours(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1)...) // taken at 00:16:41
	f := fileOf(t, w[0])
	check := func(partition, column string) error {
		within, err := newTimes(f, &pipeline.PartMeta{Partition: partition, Order: []string{column}})
		if err == nil {
			_, err = count(f, within, new(scratch))
		}
		return err
	}
	for partition, ok := range map[string]bool{
		"dt=2026-11-30": true, "dt=2026-11-30/hour=00": true, "dt=2026-11-30/hour=01": false, "dt=2026-11-29": false,
		"dt=2026-12-01": false, "dt=yesterday": false, "": false,
	} {
		if err := check(partition, "taken_at"); (err == nil) != ok {
			t.Errorf("in %q: %v", partition, err)
		}
	}
	if err := check("dt=2026-11-30", "no_such"); err == nil {
		t.Error("a column that is not there is verified")
	}
}
