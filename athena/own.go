package athena

import (
	"fmt"
	"strings"

	"telemetrylake/schemas"
)

// LatestOfOwn is the view of one of the pipeline's own tables that shows what was stored last. ok is
// false for a contract's table.
func LatestOfOwn(t schemas.Table, o Options) (v View, ok bool) {
	if t.LatestName() == "" {
		return View{}, false
	}
	var columns, of []string
	for _, c := range t.Columns {
		columns = append(columns, "w."+quoteIdentifier(c.Name))
	}
	for _, name := range t.OneOf() {
		of = append(of, quoteIdentifier(name))
	}
	const query = `SELECT %[1]s
FROM (
  SELECT *, max(%[2]s) OVER (PARTITION BY %[3]s) AS "_latest"
  FROM %[4]s
) w
WHERE w.%[2]s = w."_latest"
`
	return View{Name: t.LatestName(), SQL: fmt.Sprintf(query,
		strings.Join(columns, ",\n  "), quoteIdentifier(schemas.AsOf), strings.Join(of, ", "), o.table(t.Name))}, true
}
