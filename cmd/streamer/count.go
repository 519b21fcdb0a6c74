package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"

	"telemetrylake/pipeline/columnar"
	"telemetrylake/schemas"
)

// A result is what the demo found, each number counted where the thing is.
type result struct {
	Written          int     `json:"written"`  // readings that the hot table took
	Refused          int     `json:"refused"`  // readings whose key was taken
	Modified         int     `json:"modified"` // overwritings and prolongations
	StreamRecords    int     `json:"stream_records"`
	TTLRemovals      int     `json:"ttl_removals"` // of the stream records
	Windows          int     `json:"windows"`
	Parts            int     `json:"parts"`
	FirehoseRecords  int     `json:"firehose_records"`
	StagingObjects   int     `json:"staging_objects"`
	PartsPerObject   spread  `json:"parts_per_staging_object"`
	SealedObjects    int     `json:"sealed_objects"` // of all lake tables
	LakeRows         int     `json:"lake_rows"`      // of the readings table
	LakeDistinctKeys int     `json:"lake_distinct_keys"`
	Changes          int     `json:"changes"`
	Tombstones       int     `json:"tombstones"`
	Quarantined      int     `json:"quarantined"`
	Ignored          int     `json:"ignored"` // refused by the contract
	Gaps             int     `json:"gaps"`
	HotRowsBeforeTTL int     `json:"hot_rows_before_ttl"`
	HotRowsAfterTTL  int     `json:"hot_rows_after_ttl"`
	LakePath         string  `json:"lake_path"` // "" if the lake was not kept
	Seconds          float64 `json:"seconds"`
}

type spread struct {
	Min    int `json:"min"`
	Median int `json:"median"`
	Max    int `json:"max"`
}

// A tableCount is what the files of one lake table hold.
type tableCount struct {
	Name    string
	Role    schemas.Role
	Objects int
	Bytes   int64
	Rows    int
	Keys    int // distinct; of the readings table only
}

// take puts the counts of the lake's tables into the result.
func (r *result) take(tables []tableCount) {
	r.SealedObjects = 0
	for _, t := range tables {
		r.SealedObjects += t.Objects
		switch t.Role {
		case schemas.Readings:
			r.LakeRows, r.LakeDistinctKeys = t.Rows, t.Keys
		case schemas.Changes:
			r.Changes = t.Rows
		case schemas.Tombstones:
			r.Tombstones = t.Rows
		case schemas.Quarantine:
			r.Quarantined = t.Rows
		}
	}
}

// countLake counts each table of the lake by reading its files.
func (s *show) countLake(ctx context.Context) ([]tableCount, error) {
	var counts []tableCount
	for _, t := range s.feed.contract.Tables() {
		n, err := s.countTable(ctx, t)
		if err != nil {
			return nil, fmt.Errorf("count table %s: %w", t.Name, err)
		}
		counts = append(counts, n)
	}
	return counts, nil
}

func (s *show) countTable(ctx context.Context, t schemas.Table) (tableCount, error) {
	n := tableCount{Name: t.Name, Role: t.Role}
	columns := []string{t.TimeColumn} // any serves to count rows
	if t.Role == schemas.Readings {
		columns = keyColumns(s.feed.contract)
	}
	keys := map[string]struct{}{}
	files, err := lakeFiles(s.tableFolder(t.Name))
	if err != nil {
		return n, err
	}
	for _, f := range files {
		n.Objects++
		n.Bytes += f.size
		err := f.read(ctx, columns, func(batch arrow.RecordBatch) error {
			n.Rows += int(batch.NumRows())
			if t.Role == schemas.Readings {
				addKeys(keys, batch)
			}
			return nil
		})
		if err != nil {
			return n, err
		}
	}
	n.Keys = len(keys)
	return n, nil
}

// keyColumns are the columns that tell readings apart: those that come from the key, and the
// event time, which may be stored beside it.
func keyColumns(c *schemas.Contract) []string {
	var names []string
	for _, col := range c.LakeTable(schemas.Tombstones).Columns {
		if col.System == "" {
			names = append(names, col.Name)
		}
	}
	if !slices.Contains(names, c.EventTime) {
		names = append(names, c.EventTime)
	}
	return names
}

func addKeys(keys map[string]struct{}, batch arrow.RecordBatch) {
	var key []byte
	for row := range int(batch.NumRows()) {
		key = key[:0]
		for _, col := range batch.Columns() {
			if !col.IsNull(row) {
				key = append(key, col.ValueStr(row)...)
				key = append(key, 1)
			}
			key = append(key, 0)
		}
		if _, ok := keys[string(key)]; !ok {
			keys[string(key)] = struct{}{}
		}
	}
}

// A lakeFile is a Parquet file of a lake table.
type lakeFile struct {
	path      string
	partition string // Hive path, dt=2026-11-30
	size      int64
}

// lakeFiles lists the Parquet files of a table, in order of their paths. A folder that is not
// there is an empty table.
func lakeFiles(folder string) ([]lakeFile, error) {
	var files []lakeFile
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".parquet" {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		partition, err := filepath.Rel(folder, filepath.Dir(path))
		if err != nil {
			return err
		}
		files = append(files, lakeFile{path, filepath.ToSlash(partition), info.Size()})
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return files, err
}

// read calls f with the named columns of the file, batch by batch.
func (l lakeFile) read(ctx context.Context, columns []string, f func(arrow.RecordBatch) error) error {
	file, err := os.Open(l.path)
	if err != nil {
		return err
	}
	// Nothing was written to it.
	defer func() { _ = file.Close() }()
	if err := columnar.ReadFile(ctx, io.NewSectionReader(file, 0, l.size), columns, f); err != nil {
		return fmt.Errorf("%s: %w", l.path, err)
	}
	return nil
}
