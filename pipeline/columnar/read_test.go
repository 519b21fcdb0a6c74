package columnar

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

func TestReadFileReadsWhatWasWritten(t *testing.T) {
	c := typesContract(t)
	rng := rand.New(rand.NewPCG(1, 5))
	mem := checked(t)
	rows := decode(t, mem, c, batched(rng, randomRecords(rng, 500))...)
	for _, g := range rows.Groups {
		b := encode(t, mem, g.Rows)
		var got []map[string]any
		err := ReadFile(t.Context(), section(b), nil, func(batch arrow.RecordBatch) error {
			got = append(got, arrowRows(batch)...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if want := arrowRows(g.Rows); !reflect.DeepEqual(got, want) {
			t.Errorf("%s reads otherwise than it was written", g.Table)
		}
		// Nested columns are several in Parquet: each name must bring all of its own.
		var names []string
		for _, f := range slices.Backward(g.Rows.Schema().Fields()) {
			names = append(names, f.Name)
		}
		row := 0
		err = ReadFile(t.Context(), section(b), names, func(batch arrow.RecordBatch) error {
			for i, f := range batch.Schema().Fields() {
				if f.Name != names[i] {
					t.Fatalf("column %d is %s, want %s", i, f.Name, names[i])
				}
			}
			for _, r := range arrowRows(batch) {
				if !reflect.DeepEqual(r, got[row]) {
					t.Fatalf("row %d of %s differs when its columns are named", row, g.Table)
				}
				row++
			}
			return nil
		})
		if err != nil || row != len(got) {
			t.Errorf("%d rows of %d, %v", row, len(got), err)
		}
	}
}

func TestReadFileReadsNamedColumnsOfManyBatches(t *testing.T) {
	const n = 2*batchRows + 5
	b := flatPart(t, memory.DefaultAllocator, 1, n, func(_, i int) decimal128.Num { return decimal128.FromI64(int64(i)) })
	var all []string
	for _, c := range openParquet(t, b).Root().Columns() {
		all = append(all, c.Name())
	}
	name := all[len(all)-1]
	rows, batches := 0, 0
	err := ReadFile(t.Context(), section(b), []string{name}, func(batch arrow.RecordBatch) error {
		if batch.NumCols() != 1 || batch.ColumnName(0) != name {
			t.Errorf("columns %v, want %s alone", batch.Schema(), name)
		}
		rows += int(batch.NumRows())
		batches++
		return nil
	})
	if err != nil || rows != n || batches < 2 {
		t.Errorf("%d rows of %d in %d batches, %v", rows, n, batches, err)
	}
}

func TestReadFileStops(t *testing.T) {
	b := flatPart(t, memory.DefaultAllocator, 1, 10, same)
	cut := slices.Clone(b)
	for i := range cut[:len(cut)/2] {
		cut[i] = 0xff
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	enough := errors.New("enough")
	none := func(arrow.RecordBatch) error { return nil }
	tests := []struct {
		name    string
		ctx     context.Context
		file    []byte
		columns []string
		f       func(arrow.RecordBatch) error
		is      error
		says    string
	}{
		{"when told to", t.Context(), b, nil, func(arrow.RecordBatch) error { return enough }, enough, "enough"},
		{"with its context", cancelled, b, nil, none, context.Canceled, ""},
		{"at a column that is not there", t.Context(), b, []string{"colour"}, none, nil, "no column colour"},
		{"at what is no Parquet file", t.Context(), []byte(strings.Repeat("no", 20)), nil, none, nil, "read Parquet file"},
		{"at damage", t.Context(), cut, nil, none, nil, "read Parquet file"},
		{"at nothing", t.Context(), nil, nil, none, nil, "read Parquet file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := ReadFile(tt.ctx, section(tt.file), tt.columns, tt.f)
			if err == nil || tt.is != nil && !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.says) || errors.Is(err, io.EOF) && tt.file != nil {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}
