package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"telemetrylake/athena"
	"telemetrylake/athena/engine"
	"telemetrylake/schemas"
)

// An answer is what a query of ours found in the lake, as text.
type answer struct {
	query   athena.Query
	columns []string
	rows    [][]string
	// without says that the answer was computed without the query, and what is missing; "" if
	// the query ran.
	without string
}

// ask runs our queries of the contract on the lake: by DuckDB, or where the program was built
// without it, by reading the files.
func (s *show) ask(ctx context.Context) ([]answer, error) {
	lake, err := engine.OpenLake(ctx, s.lakeFolder(), s.feed.contract.Tables())
	if errors.Is(err, engine.ErrNoDuckDB) {
		return s.askFiles(ctx)
	}
	if err != nil {
		return nil, err
	}
	answers, err := askDuckDB(ctx, lake, s.feed.contract.Name)
	return answers, errors.Join(err, lake.Close())
}

func askDuckDB(ctx context.Context, lake *engine.Lake, contract string) ([]answer, error) {
	var answers []answer
	for _, q := range athena.Queries() {
		if q.Contract != contract {
			continue
		}
		args, err := q.Args(nil)
		if err != nil {
			return nil, err
		}
		result, err := lake.Query(ctx, q.SQL, args...)
		if err != nil {
			return nil, fmt.Errorf("run query %s: %w", q.Name, err)
		}
		a := answer{query: q}
		for _, c := range result.Columns {
			a.columns = append(a.columns, c.Name)
		}
		for _, values := range result.Rows {
			row := make([]string, len(values))
			for i, v := range values {
				row[i] = cell(v)
			}
			a.rows = append(a.rows, row)
		}
		answers = append(answers, a)
	}
	return answers, nil
}

// noValue is how a null is printed.
const noValue = "(none)"

// averageDigits is how many decimals our queries round averages to.
const averageDigits = 4

func cell(v any) string {
	switch v := v.(type) {
	case nil:
		return noValue
	case float64:
		return strconv.FormatFloat(v, 'f', averageDigits, 64)
	}
	return fmt.Sprint(v)
}

// A grouping is what one of our queries computes, for programs without an SQL engine.
type grouping struct {
	by       string
	perDay   bool
	counted  string   // column whose values are counted; "" for rows
	averages []string // columns
}

var groupings = map[string]grouping{
	"average_battery_by_site":      {by: "job_site_id", counted: "battery_pct", averages: []string{"battery_pct"}},
	"average_climate_by_device":    {by: "device_id", averages: []string{"celsius", "humidity"}},
	"readings_per_device_and_day":  {by: "device_id", perDay: true},
	"telemetry_per_device_and_day": {by: "device_id", perDay: true},
}

const withoutDuckDB = "computed by this program from the files: it was built without DuckDB (cgo), which would run the query"

func (s *show) askFiles(ctx context.Context) ([]answer, error) {
	var answers []answer
	for _, q := range athena.Queries() {
		g, ok := groupings[q.Name]
		if q.Contract != s.feed.contract.Name || !ok {
			continue
		}
		files, err := lakeFiles(s.tableFolder(s.feed.contract.LakeTable(q.Role).Name))
		if err != nil {
			return nil, err
		}
		a, err := g.answer(ctx, files)
		if err != nil {
			return nil, fmt.Errorf("compute query %s: %w", q.Name, err)
		}
		a.query, a.without = q, withoutDuckDB
		answers = append(answers, a)
	}
	return answers, nil
}

// A group is the rows of one answer.
type group struct {
	null bool
	by   string
	day  string
}

type groupSum struct {
	count int
	n     []int
	sum   []*big.Rat
}

func (g grouping) answer(ctx context.Context, files []lakeFile) (answer, error) {
	a := answer{columns: []string{g.by}}
	if g.perDay {
		a.columns = append(a.columns, schemas.DayColumn)
	}
	a.columns = append(a.columns, "readings")
	for _, name := range g.averages {
		a.columns = append(a.columns, "avg_"+name)
	}
	columns := append([]string{g.by}, g.averages...)
	sums := map[group]*groupSum{}
	for _, f := range files {
		day := ""
		if g.perDay {
			first, _, _ := strings.Cut(f.partition, "/")
			day = strings.TrimPrefix(first, schemas.DayColumn+"=")
		}
		err := f.read(ctx, columns, func(b arrow.RecordBatch) error { return g.add(sums, day, b) })
		if err != nil {
			return a, err
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(sums), compareGroups) {
		a.rows = append(a.rows, g.row(k, sums[k]))
	}
	return a, nil
}

// compareGroups puts nulls last, as the engines do.
func compareGroups(a, b group) int {
	if a.null != b.null {
		if a.null {
			return 1
		}
		return -1
	}
	if c := strings.Compare(a.by, b.by); c != 0 {
		return c
	}
	return strings.Compare(a.day, b.day)
}

func (g grouping) add(sums map[group]*groupSum, day string, b arrow.RecordBatch) error {
	by := b.Column(0)
	for row := range int(b.NumRows()) {
		k := group{null: by.IsNull(row), day: day}
		if !k.null {
			k.by = by.ValueStr(row)
		}
		s := sums[k]
		if s == nil {
			s = &groupSum{n: make([]int, len(g.averages))}
			for range g.averages {
				s.sum = append(s.sum, new(big.Rat))
			}
			sums[k] = s
		}
		if g.counted == "" {
			s.count++
		}
		for i, name := range g.averages {
			col := b.Column(i + 1)
			if col.IsNull(row) {
				continue
			}
			v, ok := new(big.Rat).SetString(col.ValueStr(row))
			if !ok {
				return fmt.Errorf("column %s: %q is not a number", name, col.ValueStr(row))
			}
			s.sum[i].Add(s.sum[i], v)
			s.n[i]++
			if name == g.counted {
				s.count++
			}
		}
	}
	return nil
}

func (g grouping) row(k group, s *groupSum) []string {
	row := []string{k.by}
	if k.null {
		row[0] = noValue
	}
	if g.perDay {
		row = append(row, k.day)
	}
	row = append(row, strconv.Itoa(s.count))
	for i, sum := range s.sum {
		if s.n[i] == 0 {
			row = append(row, noValue)
			continue
		}
		row = append(row, sum.Quo(sum, new(big.Rat).SetInt64(int64(s.n[i]))).FloatString(averageDigits))
	}
	return row
}
