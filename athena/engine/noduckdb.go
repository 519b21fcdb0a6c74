//go:build !cgo || !((linux && (amd64 || arm64)) || (darwin && (amd64 || arm64)) || (windows && amd64))

package engine

import (
	"context"
	"fmt"

	"telemetrylake/athena"
	"telemetrylake/schemas"
)

// A Lake cannot be opened in this build.
type Lake struct{}

// OpenLake fails with an error that wraps ErrNoDuckDB.
func OpenLake(_ context.Context, root string, _ []schemas.Table) (*Lake, error) {
	return nil, fmt.Errorf("open lake %s: %w; build it with CGO_ENABLED=1 and a C compiler on linux, darwin (amd64, arm64) or windows (amd64), or query the lake by Athena", root, ErrNoDuckDB)
}

// AddView fails as Query does.
func (*Lake) AddView(_ context.Context, v athena.View) error {
	return fmt.Errorf("add view %s: %w", v.Name, ErrNoDuckDB)
}

// Query fails: there is no Lake to call it on.
func (*Lake) Query(context.Context, string, ...any) (*Result, error) {
	return nil, fmt.Errorf("query lake: %w", ErrNoDuckDB)
}

// Rows fails as Query does.
func (*Lake) Rows(context.Context, string, ...any) (*Rows, error) {
	return nil, fmt.Errorf("query lake: %w", ErrNoDuckDB)
}

// Rows are those of an answer, of which there is none in this build.
type Rows struct{ Columns []ResultColumn }

// Next fails: there are no Rows to call it on.
func (*Rows) Next() ([]any, error) { return nil, ErrNoDuckDB }

// Close does nothing.
func (*Rows) Close() error { return nil }

// Close does nothing.
func (*Lake) Close() error { return nil }
