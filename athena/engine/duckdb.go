//go:build cgo && ((linux && (amd64 || arm64)) || (darwin && (amd64 || arm64)) || (windows && amd64))

package engine

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/duckdb/duckdb-go/v2"

	"telemetrylake/schemas"
)

// A Lake answers queries over a folder. It is safe for concurrent use.
type Lake struct {
	db *sql.DB
}

// OpenLake makes one view of each table over the Parquet files in root/TABLE, with the
// columns of the contract in its order and then the partition columns, as Athena has them:
// timestamps without zone, in UTC, partition columns as text. A column that some files lack
// is null there.
//
// It fails if files hold a column as a type that is not the declared one or a narrower one.
// Files that come later are seen by later queries, except in a table that had none: it
// stays empty until the lake is opened again. Queries read nothing outside root.
func OpenLake(ctx context.Context, root string, tables []schemas.Table) (*Lake, error) {
	l, err := openLake(ctx, root, tables)
	if err != nil {
		return nil, fmt.Errorf("open lake %s: %w", root, err)
	}
	return l, nil
}

func openLake(ctx context.Context, root string, tables []schemas.Table) (*Lake, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(root); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, errors.New("not a folder; name the folder that holds a folder for each table")
	}
	connector, err := duckdb.NewConnector("", nil)
	if err != nil {
		return nil, fmt.Errorf("start duckdb: %w", err)
	}
	l := &Lake{db: sql.OpenDB(connector)}
	if err := l.setUp(ctx, root, tables); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Lake) setUp(ctx context.Context, root string, tables []schemas.Table) error {
	// Paths are compared as text, so a pattern that matches a root with a bracket in its name
	// needs the root as it stands in the pattern too.
	allowed := []string{quoteText(filepath.ToSlash(root) + "/"), quoteText(escapeGlob(filepath.ToSlash(root)) + "/")}
	// The order matters: after the second to last statement no path can be added, after the
	// last none of it can be undone by a query.
	statements := []string{
		"SET GLOBAL TimeZone = 'UTC'",
		"SET autoinstall_known_extensions = false",
		"SET autoload_known_extensions = false",
		"SET allowed_directories = [" + strings.Join(allowed, ", ") + "]",
		"SET enable_external_access = false",
		"SET lock_configuration = true",
	}
	for _, s := range statements {
		if _, err := l.db.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("set up duckdb: %w", err)
		}
	}
	for _, t := range tables {
		if err := l.addView(ctx, root, t); err != nil {
			return fmt.Errorf("add table %s: %w", t.Name, oneLine(ctx, err))
		}
	}
	return nil
}

// Close stops the engine.
func (l *Lake) Close() error { return l.db.Close() }

// Query runs one SELECT, with a value for each question mark in it.
func (l *Lake) Query(ctx context.Context, query string, args ...any) (*Result, error) {
	rows, err := l.Rows(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return rows.collect()
}

// Rows runs one SELECT as Query does, for answers that are better not held as a whole. The
// caller reads them to the end or closes them.
func (l *Lake) Rows(ctx context.Context, query string, args ...any) (*Rows, error) {
	if err := l.checkSelect(ctx, query); err != nil {
		return nil, fmt.Errorf("query lake: %w", oneLine(ctx, err))
	}
	rows, err := l.rows(ctx, query, args)
	if err != nil {
		return nil, fmt.Errorf("query lake: %w", oneLine(ctx, err))
	}
	return rows, nil
}

// Rows are the rows of an answer, one at a time.
type Rows struct {
	Columns  []ResultColumn
	ctx      context.Context // of the query, for what an error means
	rows     *sql.Rows
	pointers []any
}

// Next returns the next row, with values as in a Result, or io.EOF.
func (r *Rows) Next() ([]any, error) {
	row, err := r.next()
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("query lake: %w", oneLine(r.ctx, err))
	}
	return row, err
}

func (r *Rows) next() ([]any, error) {
	if !r.rows.Next() {
		if err := errors.Join(r.rows.Err(), r.rows.Close()); err != nil {
			return nil, err
		}
		return nil, io.EOF
	}
	row := make([]any, len(r.pointers))
	for i := range row {
		r.pointers[i] = &row[i]
	}
	if err := r.rows.Scan(r.pointers...); err != nil {
		return nil, err
	}
	for i, v := range row {
		row[i] = plain(v)
	}
	return row, nil
}

// Close ends the query, whether or not all rows were read.
func (r *Rows) Close() error { return r.rows.Close() }

func (r *Rows) collect() (*Result, error) {
	defer r.Close()
	result := &Result{Columns: r.Columns}
	for {
		row, err := r.Next()
		if err == io.EOF {
			return result, nil
		}
		if err != nil {
			return nil, err
		}
		result.Rows = append(result.Rows, row)
	}
}

// oneLine takes the excerpt of the statement, with its caret, off an error of DuckDB. An end
// by the context stays what errors.Is finds.
func oneLine(ctx context.Context, err error) error {
	var e *duckdb.Error
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case !errors.As(err, &e):
		return err
	}
	message, _, _ := strings.Cut(e.Msg, "\n\nLINE ")
	return errors.New(strings.Join(strings.Fields(message), " "))
}

// checkSelect refuses what is not one SELECT: COPY could write into the lake, and of
// several statements the driver runs all and answers the last.
func (l *Lake) checkSelect(ctx context.Context, query string) error {
	var text string
	if err := l.db.QueryRowContext(ctx, "SELECT CAST(json_serialize_sql(CAST(? AS VARCHAR)) AS VARCHAR)", query).Scan(&text); err != nil {
		return fmt.Errorf("read the statement: %w", err)
	}
	var parsed struct {
		Error      bool              `json:"error"`
		Type       string            `json:"error_type"`
		Message    string            `json:"error_message"`
		Statements []json.RawMessage `json:"statements"`
	}
	if err := json.Unmarshal([]byte(text), &parsed); err != nil {
		return fmt.Errorf("read the statement: %w", err)
	}
	switch {
	case parsed.Error && parsed.Type == "parser":
		return fmt.Errorf("syntax error: %s", parsed.Message)
	case parsed.Error:
		return fmt.Errorf("not a SELECT (%s); a lake is read only, write one SELECT", parsed.Message)
	case len(parsed.Statements) != 1:
		return fmt.Errorf("%d statements; write one SELECT", len(parsed.Statements))
	}
	return nil
}

// rows runs what need not be checked.
func (l *Lake) rows(ctx context.Context, query string, args []any) (*Rows, error) {
	rows, err := l.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	types, err := rows.ColumnTypes()
	if err != nil {
		return nil, errors.Join(err, rows.Close())
	}
	r := &Rows{ctx: ctx, rows: rows, pointers: make([]any, len(types))}
	for _, t := range types {
		r.Columns = append(r.Columns, ResultColumn{Name: t.Name(), Type: t.DatabaseTypeName()})
	}
	return r, nil
}

// query collects the rows of what need not be checked.
func (l *Lake) query(ctx context.Context, query string, args []any) (*Result, error) {
	rows, err := l.rows(ctx, query, args)
	if err != nil {
		return nil, err
	}
	return rows.collect()
}

// plain turns a value of the driver into one of those that Result promises.
func plain(v any) any {
	switch v := v.(type) {
	case int8:
		return int64(v)
	case int16:
		return int64(v)
	case int32:
		return int64(v)
	case uint8:
		return int64(v)
	case uint16:
		return int64(v)
	case uint32:
		return int64(v)
	case uint64:
		return fmt.Sprint(v)
	case float32:
		return float64(v)
	case *big.Int:
		return v.String()
	case duckdb.Decimal:
		return decimalText(v)
	case []any:
		list := make([]any, len(v))
		for i, e := range v {
			list[i] = plain(e)
		}
		return list
	case map[string]any:
		object := make(map[string]any, len(v))
		for name, e := range v {
			object[name] = plain(e)
		}
		return object
	case duckdb.OrderedMap:
		object := make(map[string]any, len(v.Keys()))
		for i, k := range v.Keys() {
			object[fmt.Sprint(plain(k))] = plain(v.Values()[i])
		}
		return object
	case time.Time:
		return v.UTC()
	case nil, bool, int64, float64, string, []byte:
		return v
	}
	// A type that no column of ours has, such as an interval that a query computes.
	return fmt.Sprint(v)
}

// decimalText writes all digits of the scale, as Athena does: the driver's own text leaves
// out zeros at the end.
func decimalText(d duckdb.Decimal) string {
	digits := new(big.Int).Abs(d.Value).String()
	scale := int(d.Scale)
	if missing := scale + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	if scale > 0 {
		digits = digits[:len(digits)-scale] + "." + digits[len(digits)-scale:]
	}
	if d.Value.Sign() < 0 {
		return "-" + digits
	}
	return digits
}
