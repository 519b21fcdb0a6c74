package columnar

import (
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

// Least size of a row group. Trino, and so Athena, reads ranges that lie within 1 MB of
// each other as one: below about 1.5 MB it reads whole row groups for one column.
const (
	minGroupRows  = 250_000
	minGroupBytes = 2 << 20
)

// A groupWriter cuts a stream of rows whose number is known into row groups of about equal
// size, none below the least size unless the whole file is.
type groupWriter struct {
	out       *pqarrow.FileWriter
	schema    *arrow.Schema
	remaining int64 // rows that are still to come
	inGroup   int64 // rows in the current group
	target    int64 // rows after which the current group may end
	minRows   int64 // rows that a group needs for the least size, as far as known
}

func newGroupWriter(out *pqarrow.FileWriter, schema *arrow.Schema, total int64) *groupWriter {
	g := &groupWriter{out: out, schema: schema, remaining: total, minRows: minGroupRows}
	g.plan()
	return g
}

// plan divides the remaining rows evenly.
func (g *groupWriter) plan() {
	groups := max(1, g.remaining/g.minRows)
	g.inGroup, g.target = 0, (g.remaining+groups-1)/groups
}

// room is how many rows the next batch may have.
func (g *groupWriter) room() int64 { return max(1, g.target-g.inGroup) }

func (g *groupWriter) write(batch arrow.RecordBatch) error {
	if err := g.out.WriteBuffered(batch); err != nil {
		return err
	}
	g.inGroup += batch.NumRows()
	g.remaining -= batch.NumRows()
	if g.inGroup < g.target || g.remaining <= 0 {
		return nil
	}
	// Pages that are not full yet and dictionaries are not in this number: a group comes
	// out larger than it says, never smaller.
	bytes := g.out.RowGroupTotalCompressedBytes()
	if bytes < minGroupBytes {
		g.target += batchRows
		return nil
	}
	// A little more than that: the rows to come may compress better than those before.
	needed := math.Ceil(1.1 * float64(g.inGroup) * minGroupBytes / float64(bytes))
	g.minRows = max(minGroupRows, int64(needed))
	if g.remaining < g.minRows {
		// Too few for a group of their own.
		g.target += g.remaining
		return nil
	}
	g.plan()
	return g.out.NewBufferedRowGroupChecked()
}

func (g *groupWriter) close() error { return g.out.Close() }
