package athena

import (
	"fmt"
	"strings"

	"telemetrylake/schemas"
)

// A View is a query over tables of a contract, under a name of its own.
type View struct {
	Name string
	SQL  string // one SELECT that runs unchanged on Athena and on DuckDB
}

// Latest is the view of a mutable table's items as they are now: of each item the version that the
// stream put last, unless the item was deleted after it. ok is false for a table of readings.
//
// Versions and deletions are ordered by the second of their stream record, then by its sequence
// number as a number: along the shards of an item both only rise. A version that was backfilled has
// neither and stands in the second of its event time, before what the stream has of that second.
func Latest(c *schemas.Contract, o Options) (v View, ok bool) {
	if c.LatestName() == "" {
		return View{}, false
	}
	versions, deletions := c.LakeTable(schemas.Readings), c.LakeTable(schemas.Tombstones)
	var columns []string
	for _, col := range versions.Columns {
		columns = append(columns, "v."+quoteIdentifier(col.Name))
	}
	// Aliases begin with an underscore, as no column of a contract does.
	const query = `SELECT %[1]s
FROM (
  SELECT *, row_number() OVER (PARTITION BY item_keys ORDER BY "_position" DESC, %[2]s DESC) AS "_rank"
  FROM (SELECT *, %[3]s AS "_position" FROM %[4]s) p
) v
LEFT JOIN (
  SELECT item_keys, max(%[5]s) AS "_deleted"
  FROM %[6]s
  GROUP BY item_keys
) d ON d.item_keys = v.item_keys
WHERE v."_rank" = 1 AND (d."_deleted" IS NULL OR d."_deleted" < v."_position")
`
	return View{Name: c.LatestName(), SQL: fmt.Sprintf(query,
		strings.Join(columns, ",\n  "), quoteIdentifier(versions.TimeColumn),
		position("coalesce(stream_created_at, "+quoteIdentifier(versions.TimeColumn)+")"), o.table(versions.Name),
		position("stream_created_at"), o.table(deletions.Name))}, true
}

// position is a text that sorts as places in the stream do. Whole seconds have texts of one length
// in an engine; 128 digits are more than any sequence number has.
func position(created string) string {
	return fmt.Sprintf("CAST(date_trunc('second', %s) AS varchar) || ' ' || lpad(coalesce(stream_seq, ''), 128, '0')", created)
}

// DDL is the statement that creates or replaces the view. It ends with a newline and without a
// semicolon. Athena quotes names in it as in a query, not as in DDL of tables.
func (v View) DDL(o Options) string {
	return "CREATE OR REPLACE VIEW " + o.table(v.Name) + " AS\n" + v.SQL
}

// table names a table in a query.
func (o Options) table(name string) string {
	if o.Database == "" {
		return quoteIdentifier(name)
	}
	return quoteIdentifier(o.Database) + "." + quoteIdentifier(name)
}

// quoteIdentifier quotes an identifier for a query, where DDL of tables has backticks.
func quoteIdentifier(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}
