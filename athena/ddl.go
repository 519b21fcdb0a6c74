// Package athena knows how a table contract reads in Athena: as DDL, and in the queries
// that we ship. It does no I/O. Its one rule: what it writes comes from the contract, so
// the declared types, the partitions and the files cannot disagree.
package athena

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"telemetrylake/schemas"
)

// Options say where the tables are.
type Options struct {
	Database string // Glue database; "" leaves it to the session
	Location string // the lake, as in s3://bucket/lake; each table is a folder in it, named as the table
}

// DDL is the statement that creates a table over the lake: external, partitioned by
// projection, so that no partition is ever registered. It ends with a newline and without a
// semicolon, as StartQueryExecution takes it. Descriptions are column comments, with the
// unit in brackets.
//
// Properties and their values follow the Athena user guide, "Partition projection".
func DDL(t schemas.Table, o Options) string {
	location := strings.TrimRight(o.Location, "/") + "/" + t.Name + "/"
	var b strings.Builder
	b.WriteString("CREATE EXTERNAL TABLE IF NOT EXISTS ")
	if o.Database != "" {
		b.WriteString(quoteName(o.Database) + ".")
	}
	b.WriteString(quoteName(t.Name) + " (\n")
	for i, c := range t.Columns {
		comma := ","
		if i == len(t.Columns)-1 {
			comma = ""
		}
		fmt.Fprintf(&b, "  %s %s%s%s\n", quoteName(c.Name), typeText(c.Type), commentClause(columnComment(c)), comma)
	}
	b.WriteString(")\n")
	if t.Description != "" {
		b.WriteString(strings.TrimPrefix(commentClause(t.Description), " ") + "\n")
	}
	b.WriteString("PARTITIONED BY (\n")
	columns := t.Layout.Columns()
	for i, name := range columns {
		comma := ","
		if i == len(columns)-1 {
			comma = ""
		}
		fmt.Fprintf(&b, "  %s string%s%s\n", quoteName(name), commentClause(fmt.Sprintf("UTC %s of %s", partWord(name), t.TimeColumn)), comma)
	}
	b.WriteString(")\nSTORED AS PARQUET\n")
	fmt.Fprintf(&b, "LOCATION %s\n", quoteText(location))
	b.WriteString("TBLPROPERTIES (\n")
	properties := projection(t.Layout, location)
	for i, p := range properties {
		comma := ","
		if i == len(properties)-1 {
			comma = ""
		}
		fmt.Fprintf(&b, "  %s = %s%s\n", quoteText(p[0]), quoteText(p[1]), comma)
	}
	b.WriteString(")\n")
	return b.String()
}

func partWord(column string) string {
	if column == schemas.HourColumn {
		return "hour, two digits,"
	}
	return "day"
}

func columnComment(c schemas.Column) string {
	if c.Unit == "" {
		return c.Description
	}
	return strings.TrimSpace(c.Description + " [" + c.Unit + "]")
}

// projection lists the table's properties. The range ends a day after now, so that a row
// of a device whose clock is ahead, or of tomorrow's first second, is never invisible.
func projection(l schemas.Layout, location string) [][2]string {
	const day = time.DateOnly
	end := "NOW+1DAYS"
	if !l.LastPartition.IsZero() {
		end = l.LastPartition.Format(day)
	}
	dt := "projection." + schemas.DayColumn
	properties := [][2]string{
		{"classification", "parquet"},
		{"projection.enabled", "true"},
		{dt + ".type", "date"},
		{dt + ".format", "yyyy-MM-dd"},
		{dt + ".range", l.FirstPartition.Format(day) + "," + end},
		{dt + ".interval", "1"},
		{dt + ".interval.unit", "DAYS"},
	}
	if slices.Contains(l.Columns(), schemas.HourColumn) {
		hour := "projection." + schemas.HourColumn
		properties = append(properties,
			[2]string{hour + ".type", "integer"},
			[2]string{hour + ".range", "0,23"},
			[2]string{hour + ".digits", "2"})
	}
	template := location
	for _, c := range l.Columns() {
		template += c + "=${" + c + "}/"
	}
	return append(properties, [2]string{"storage.location.template", template})
}

// quoteName quotes an identifier for Athena DDL, where a backtick is doubled.
func quoteName(name string) string {
	return "`" + strings.ReplaceAll(name, "`", "``") + "`"
}

// quoteText quotes a text for Athena DDL, which escapes with a backslash as Hive does; a
// doubled quote, as in a query, would end the text.
func quoteText(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", " ").Replace(s) + "'"
}

// commentClause writes a comment. A semicolon becomes a comma: tools that cut a script into
// statements do not look whether one stands inside quotes.
func commentClause(s string) string {
	if s == "" {
		return ""
	}
	return " COMMENT " + quoteText(strings.ReplaceAll(s, ";", ","))
}

// typeText spells a type for DDL: as Type.String does, and with struct fields in backticks
// where their names are reserved.
func typeText(t schemas.Type) string {
	switch t.Kind {
	case schemas.Array:
		return "array<" + typeText(*t.Elem) + ">"
	case schemas.Map:
		return "map<string," + typeText(*t.Elem) + ">"
	case schemas.Struct:
		fields := make([]string, len(t.Fields))
		for i, f := range t.Fields {
			name := f.Name
			if slices.Contains(reservedWords, name) {
				name = quoteName(name)
			}
			fields[i] = name + ":" + typeText(f.Type)
		}
		return "struct<" + strings.Join(fields, ",") + ">"
	}
	return t.String()
}

// reservedWords are those of the Athena user guide, "Reserved keywords to escape in DDL
// statements".
var reservedWords = strings.Fields(`all alter and array as authorization between bigint binary boolean both by case
cashe cast char column conf constraint commit create cross cube current current_date current_timestamp cursor database
date dayofweek decimal delete describe distinct div double drop else end exchange exists extended external extract false
fetch float floor following for foreign from full function grant group grouping having if import in inner insert int
integer intersect interval into is join lateral left less like local macro map more none not null numeric of on only or
order out outer over partialscan partition percent preceding precision preserve primary procedure range reads reduce
regexp references revoke right rlike rollback rollup row rows select set smallint start table tablesample then time
timestamp to transform trigger true truncate unbounded union uniquejoin update user using utc_timestamp values varchar
views when where window with`)
