// Package engine runs SQL over a lake. Its one rule: a value comes back as it lies in the
// lake; a decimal stays a decimal, a null stays apart from an empty text.
//
// A lake in a folder is read by DuckDB, which is linked into the program and needs cgo. A
// program built without it has everything else, and says what is missing.
package engine

import "errors"

// ErrNoDuckDB says that the program was built without DuckDB.
var ErrNoDuckDB = errors.New("this program was built without DuckDB")

// A Result is the answer to a query.
type Result struct {
	Columns []ResultColumn
	// Rows hold, for each column: nil for null; bool, int64, float64, string, []byte;
	// time.Time in UTC for dates and timestamps; a string of all digits for decimals and for
	// integers of more than 64 bits; []any for arrays, map[string]any for maps and structs.
	Rows [][]any
}

// A ResultColumn is a column of a Result.
type ResultColumn struct {
	Name string
	Type string // as the engine spells it, such as DECIMAL(5,2)
}
