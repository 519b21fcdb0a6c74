package columnar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

// ReadFile calls f with the rows of one Parquet file, in their order and batch by batch. A
// batch has the named columns in the order they are named, or all columns if none is; f may
// keep it beyond the call only if it retains it. Values are as stored: decimals exact,
// timestamps in milliseconds UTC. It stops at f's first error and returns it.
func ReadFile(ctx context.Context, p *io.SectionReader, columns []string, f func(arrow.RecordBatch) error) error {
	mem := memory.DefaultAllocator
	in, err := file.NewParquetReader(p, file.WithReadProps(parquet.NewReaderProperties(mem)))
	if err != nil {
		return fmt.Errorf("read Parquet file: %w", err)
	}
	// Closes the section, if that can be closed: it belongs to the caller and cannot.
	defer func() { _ = in.Close() }()
	leaves, err := leavesOf(in, columns)
	if err != nil {
		return fmt.Errorf("read Parquet file: %w", err)
	}
	reader, err := pqarrow.NewFileReader(in, pqarrow.ArrowReadProperties{BatchSize: batchRows}, mem)
	if err != nil {
		return fmt.Errorf("read Parquet file: %w", err)
	}
	rows, err := reader.GetRecordReader(ctx, leaves, nil)
	if err != nil {
		return fmt.Errorf("read Parquet file: %w", err)
	}
	defer rows.Release()
	for rows.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := inOrder(rows.RecordBatch(), columns, f); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read Parquet file: %w", err)
	}
	return nil
}

// leavesOf returns the Parquet columns of the named columns; a nested one has several.
func leavesOf(in *file.Reader, columns []string) ([]int, error) {
	if len(columns) == 0 {
		return nil, nil
	}
	schema := in.MetaData().Schema
	found := make(map[string]bool, len(columns))
	var leaves []int
	for i := range schema.NumColumns() {
		if root := schema.Column(i).ColumnPath()[0]; slices.Contains(columns, root) {
			found[root] = true
			leaves = append(leaves, i)
		}
	}
	for _, name := range columns {
		if !found[name] {
			return nil, fmt.Errorf("it has no column %s", name)
		}
	}
	return leaves, nil
}

// inOrder hands f the batch with its columns as they were named.
func inOrder(batch arrow.RecordBatch, columns []string, f func(arrow.RecordBatch) error) error {
	if len(columns) == 0 {
		return f(batch)
	}
	fields, arrays := make([]arrow.Field, len(columns)), make([]arrow.Array, len(columns))
	for i, name := range columns {
		at := batch.Schema().FieldIndices(name)
		if len(at) != 1 {
			return fmt.Errorf("read Parquet file: column %s stands there %d times", name, len(at))
		}
		fields[i], arrays[i] = batch.Schema().Field(at[0]), batch.Column(at[0])
	}
	ordered := array.NewRecordBatch(arrow.NewSchema(fields, nil), arrays, batch.NumRows())
	defer ordered.Release()
	return f(ordered)
}
