//go:build cgo && ((linux && (amd64 || arm64)) || (darwin && (amd64 || arm64)) || (windows && amd64))

package engine

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"telemetrylake/athena"
	"telemetrylake/schemas"
)

// AddView makes a view over the tables of the lake, for queries after it.
func (l *Lake) AddView(ctx context.Context, v athena.View) error {
	if _, err := l.db.ExecContext(ctx, "CREATE VIEW "+quoteName(v.Name)+" AS "+v.SQL); err != nil {
		return fmt.Errorf("add view %s: %w", v.Name, oneLine(ctx, err))
	}
	return nil
}

// addView makes the view of one table.
func (l *Lake) addView(ctx context.Context, root string, t schemas.Table) error {
	if err := checkRoot(root, t); err != nil {
		return err
	}
	found, err := l.hasFiles(ctx, root, t)
	if err != nil {
		return err
	}
	source := emptyTable(t)
	if found {
		// By name, the empty table gives the order and the types of the columns, and those
		// that no file has.
		source += "\nUNION ALL BY NAME SELECT * FROM " + parquetSource(root, t)
		if err := l.checkTypes(ctx, t, source); err != nil {
			return err
		}
	}
	_, err = l.db.ExecContext(ctx, fmt.Sprintf("CREATE VIEW %s AS SELECT %s FROM (%s)", quoteName(t.Name), viewColumns(t), source))
	return err
}

// checkRoot refuses a root whose own path would be taken for partitions of the table.
func checkRoot(root string, t schemas.Table) error {
	for _, step := range strings.Split(filepath.ToSlash(root), "/") {
		name, _, ok := strings.Cut(step, "=")
		if _, taken := t.Column(strings.ToLower(name)); ok && (taken || slices.Contains(t.Layout.Columns(), strings.ToLower(name))) {
			return fmt.Errorf("folder %s in its path would hide column %s; move the lake to another folder", step, name)
		}
	}
	return nil
}

// hasFiles reports whether a table has a file, for reading none is an error in DuckDB.
func (l *Lake) hasFiles(ctx context.Context, root string, t schemas.Table) (bool, error) {
	result, err := l.query(ctx, "SELECT 1 FROM glob("+quoteText(glob(root, t))+") LIMIT 1", nil)
	return err == nil && len(result.Rows) > 0, err
}

// glob matches what Athena reads: files below the partition folders, but none that begins
// with an underscore or a dot.
func glob(root string, t schemas.Table) string {
	pattern := escapeGlob(filepath.ToSlash(filepath.Join(root, t.Name)))
	for _, c := range t.Layout.Columns() {
		pattern += "/" + c + "=*"
	}
	return pattern + "/**/[!_.]*.parquet"
}

func parquetSource(root string, t schemas.Table) string {
	var types []string
	for _, c := range t.Layout.Columns() {
		types = append(types, quoteText(c)+": VARCHAR")
	}
	return fmt.Sprintf("read_parquet(%s, hive_partitioning = true, hive_types = {%s}, union_by_name = true)",
		quoteText(glob(root, t)), strings.Join(types, ", "))
}

// emptyTable selects no rows, with the columns as they are in the files.
func emptyTable(t schemas.Table) string {
	var columns []string
	for _, c := range t.Columns {
		columns = append(columns, fmt.Sprintf("CAST(NULL AS %s) AS %s", fileType(c.Type), quoteName(c.Name)))
	}
	for _, c := range t.Layout.Columns() {
		columns = append(columns, "CAST(NULL AS VARCHAR) AS "+quoteName(c))
	}
	return "SELECT " + strings.Join(columns, ", ") + " WHERE false"
}

// checkTypes compares what table and files come to together with what the table declares.
func (l *Lake) checkTypes(ctx context.Context, t schemas.Table, source string) error {
	declared, err := l.query(ctx, "DESCRIBE "+emptyTable(t), nil)
	if err != nil {
		return err
	}
	joined, err := l.query(ctx, "DESCRIBE "+source, nil)
	if err != nil {
		return fmt.Errorf("read the files: %w", err)
	}
	types := map[any]any{}
	for _, row := range joined.Rows {
		types[row[0]] = row[1]
	}
	for _, row := range declared.Rows {
		if types[row[0]] != row[1] {
			return fmt.Errorf("column %s is declared %s but some files need %s; compare the contract with the files", row[0], row[1], types[row[0]])
		}
	}
	return nil
}

func viewColumns(t schemas.Table) string {
	var columns []string
	for _, c := range t.Columns {
		name := quoteName(c.Name)
		if c.Type.Kind == schemas.Timestamp {
			// Athena's timestamp has no zone, so that its text is that of UTC.
			name = fmt.Sprintf("timezone('UTC', %s) AS %s", name, name)
		}
		columns = append(columns, name)
	}
	for _, c := range t.Layout.Columns() {
		columns = append(columns, quoteName(c))
	}
	return strings.Join(columns, ", ")
}

// fileType is the type that DuckDB gives a column of our files.
func fileType(t schemas.Type) string {
	switch t.Kind {
	case schemas.String:
		return "VARCHAR"
	case schemas.Int:
		return "INTEGER"
	case schemas.Timestamp:
		return "TIMESTAMP WITH TIME ZONE"
	case schemas.Binary:
		return "BLOB"
	case schemas.Array:
		return fileType(*t.Elem) + "[]"
	case schemas.Map:
		return "MAP(VARCHAR, " + fileType(*t.Elem) + ")"
	case schemas.Struct:
		fields := make([]string, len(t.Fields))
		for i, f := range t.Fields {
			fields[i] = quoteName(f.Name) + " " + fileType(f.Type)
		}
		return "STRUCT(" + strings.Join(fields, ", ") + ")"
	}
	// boolean, bigint, double, date and decimal(p,s) are spelled alike.
	return t.String()
}

func quoteName(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

func quoteText(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// escapeGlob makes a path match itself only.
func escapeGlob(path string) string {
	return strings.NewReplacer("[", "[[]", "*", "[*]", "?", "[?]").Replace(path)
}
