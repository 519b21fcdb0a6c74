package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"telemetrylake/athena"
	"telemetrylake/athena/engine"
	"telemetrylake/schemas"
)

// queryOptions are the flags of the query command.
type queryOptions struct {
	query  string // a name or SQL
	params []string
	list   bool
	output string
	limit  int // rows of a table; 0: all
}

func newQuery() *cobra.Command {
	s := newSettings()
	var o queryOptions
	c := &cobra.Command{
		Use:   "query NAME|SQL",
		Short: "Query the lake in a folder with SQL",
		Long: `Run a query on the lake in a folder: one that the program knows, by its name
(--list shows them), or one SELECT; what has a space in it is taken for SQL. The
tables are those of the contracts: readings by the contract's name, and beside
them NAME_changes, NAME_tombstones and NAME_quarantine. Of a table whose items are
overwritten NAME_latest has the items as they are now. For the tables of a contract
of your own, name its file with --contract.

Decimals keep every digit: in JSON they are texts, for many readers of JSON round
numbers. NULL is not the empty text: a table shows NULL and "", CSV an empty field
and "", JSON null and "". Times are in UTC.

On a terminal long values are cut to fit 80 columns (or $COLUMNS), and a row of
many columns is shown as lines. Into a file or a pipe everything is written.`,
		Example: `  streamer query --list
  streamer query average_climate_by_device --param from_day=2016-03-15
  streamer query "SELECT device_id, MAX(celsius) FROM sensor_readings GROUP BY 1"
  streamer query "SELECT COUNT(*) FROM mine" --contract ./mine.yaml
  streamer query "SELECT * FROM device_telemetry WHERE dt = '2026-03-02'" -o csv > day.csv`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("%s takes one name or one SELECT in quotes, not %d arguments", c.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.query = args[0]
			}
			if err := o.check(c.Flags().Changed("limit")); err != nil {
				return err
			}
			if o.list {
				return listQueries(c.OutOrStdout(), o.output)
			}
			if err := s.load(c); err != nil {
				return err
			}
			return runQuery(c, s, o)
		},
	}
	s.use(c, "contract", "lake-dir")
	f := c.Flags()
	f.StringArrayVar(&o.params, "param", nil, "`NAME=VALUE` of a parameter of the query; may be repeated")
	f.BoolVar(&o.list, "list", false, "list the queries that the program knows")
	outputFlag(f, &o.output, "table", "json", "csv")
	f.IntVar(&o.limit, "limit", 100, "rows that a table shows; 0: all")
	return c
}

func (o queryOptions) check(limited bool) error {
	switch {
	case o.list && o.query != "":
		return usagef("--list takes no query %q; leave one of them out", o.query)
	case o.list && o.output == "csv":
		return usagef("--list prints no CSV; write -o table or -o json")
	case !o.list && o.query == "":
		return usagef("no query; name one (streamer query --list) or write a SELECT in quotes")
	case o.limit < 0:
		return usagef("--limit %d is below 0", o.limit)
	case limited && o.output != "table":
		return usagef("--limit is for tables; write LIMIT in the SQL")
	}
	return nil
}

// listedQuery is a query in a list.
type listedQuery struct {
	Name       string        `json:"name"`
	Purpose    string        `json:"purpose"`
	Contract   string        `json:"contract"`
	Parameters []listedParam `json:"parameters"`
}

type listedParam struct {
	Name    string `json:"name"`
	Type    string `json:"type"`
	Default string `json:"default"`
	Purpose string `json:"purpose"`
}

func listQueries(out io.Writer, output string) error {
	var list []listedQuery
	for _, q := range athena.Queries() {
		l := listedQuery{q.Name, q.Purpose, q.Contract, []listedParam{}}
		for _, p := range q.Parameters {
			l.Parameters = append(l.Parameters, listedParam{p.Name, string(p.Type), p.Default, p.Purpose})
		}
		list = append(list, l)
	}
	if output == "json" {
		return writeDocument(out, list)
	}
	for i, q := range list {
		var b strings.Builder
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%s\n  %s\n", q.Name, q.Purpose)
		for _, p := range q.Parameters {
			fmt.Fprintf(&b, "  --param %s=%s  %s\n", p.Name, strings.ToUpper(p.Type), p.Purpose)
		}
		if _, err := io.WriteString(out, b.String()); err != nil {
			return err
		}
	}
	return nil
}

// A statement is what runs: a query of ours with its values, or the caller's own.
type statement struct {
	sql  string
	args []any
	own  bool // the caller's
}

func (o queryOptions) statement() (statement, error) {
	if strings.ContainsFunc(o.query, unicode.IsSpace) {
		if len(o.params) > 0 {
			return statement{}, usagef("--param is for a query by name; write the value into the SQL")
		}
		return statement{sql: o.query, own: true}, nil
	}
	q, err := findQuery(o.query)
	if err != nil {
		return statement{}, err
	}
	values := map[string]string{}
	for _, pair := range o.params {
		name, value, ok := strings.Cut(pair, "=")
		if _, twice := values[name]; !ok || twice {
			return statement{}, usagef("--param %q is not of the form NAME=VALUE, or its name stands there twice", pair)
		}
		values[name] = value
	}
	args, err := q.Args(values)
	if err != nil {
		return statement{}, usage(err)
	}
	return statement{sql: q.SQL, args: args}, nil
}

// findQuery finds a query of ours; an unknown name is answered with those that are like it.
func findQuery(name string) (athena.Query, error) {
	queries := athena.Queries()
	for _, q := range queries {
		if q.Name == name {
			return q, nil
		}
	}
	var names []string
	for _, q := range queries {
		names = append(names, q.Name)
	}
	near := nearest(name, names)
	if len(near) == 0 {
		return athena.Query{}, usagef("there is no query %q; streamer query --list shows them", name)
	}
	return athena.Query{}, usagef("there is no query %q; did you mean %s?", name, strings.Join(near, " or "))
}

// nearest are at most three of the names that are like one, the likest first.
func nearest(name string, names []string) []string {
	var near []string
	for _, n := range names {
		if likeness(name, n) >= 0.4 {
			near = append(near, n)
		}
	}
	slices.SortStableFunc(near, func(a, b string) int { return cmp.Compare(likeness(name, b), likeness(name, a)) })
	return near[:min(len(near), 3)]
}

// likeness is the share of pairs of letters that two names have in common: 1 for equal names.
func likeness(a, b string) float64 {
	pairs := map[string]int{}
	for i := range len(a) - 1 {
		pairs[a[i:i+2]]++
	}
	common := 0
	for i := range len(b) - 1 {
		if pairs[b[i:i+2]] > 0 {
			pairs[b[i:i+2]]--
			common++
		}
	}
	return 2 * float64(common) / float64(max(len(a)+len(b)-2, 1))
}

func runQuery(c *cobra.Command, s *settings, o queryOptions) (err error) {
	st, err := o.statement()
	if err != nil {
		return err
	}
	tables, views, err := queryTables(s)
	if err != nil {
		return err
	}
	if err := checkLake(s.LakeDir, tables); err != nil {
		return err
	}
	ctx := c.Context()
	lake, err := engine.OpenLake(ctx, s.LakeDir, tables)
	if errors.Is(err, engine.ErrNoDuckDB) {
		return usage(err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lake.Close()) }()
	for _, v := range views {
		if err := lake.AddView(ctx, v); err != nil {
			return err
		}
	}
	err = st.run(ctx, lake, o, c.OutOrStdout())
	if name := missingTable(err); name != "" {
		return noTable(name, s.LakeDir, tables)
	}
	return err
}

// noSuchTable is how DuckDB begins to say it; its own proposals come from its catalog.
var noSuchTable = regexp.MustCompile(`Catalog Error: Table with name (\S+) does not exist!`)

// missingTable is the table that a query wanted and that there is not; "" for another error.
func missingTable(err error) string {
	if err == nil {
		return ""
	}
	if m := noSuchTable.FindStringSubmatch(err.Error()); m != nil {
		return m[1]
	}
	return ""
}

// noTable answers with the tables that there are.
func noTable(name, lake string, known []schemas.Table) error {
	filled, unknown, err := lakeTables(lake, known)
	if err != nil {
		return err
	}
	for _, u := range unknown {
		if strings.EqualFold(u, name) {
			return usagef("no contract here describes table %s, which the lake has; name its contract with --contract FILE", name)
		}
	}
	return usagef("the lake has no table %s; it has %s; for tables of a contract of your own name it with --contract FILE",
		name, strings.Join(filled, ", "))
}

// lakeTables are the tables of the lake that hold rows, those that a contract describes and the
// others, each in alphabetical order.
func lakeTables(lake string, known []schemas.Table) (filled, unknown []string, err error) {
	entries, err := os.ReadDir(lake)
	if err != nil {
		return nil, nil, usagef("look at the lake: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		if slices.ContainsFunc(known, func(t schemas.Table) bool { return t.Name == name }) {
			found, err := hasObject(filepath.Join(lake, name))
			if err != nil {
				return nil, nil, fmt.Errorf("look at the lake: %w", err)
			}
			if found {
				filled = append(filled, name)
			}
			continue
		}
		// No deeper than a table can be: the folder may be one that has nothing to do with a lake.
		for _, pattern := range []string{"*.parquet", "*=*/*.parquet"} {
			if found, err := fs.Glob(os.DirFS(filepath.Join(lake, name)), pattern); err == nil && len(found) > 0 {
				unknown = append(unknown, name)
				break
			}
		}
	}
	return filled, unknown, nil
}

func (st statement) run(ctx context.Context, lake *engine.Lake, o queryOptions, out io.Writer) error {
	rows, err := lake.Rows(ctx, st.sql, st.args...)
	if err != nil {
		if st.own && ctx.Err() == nil {
			return usage(err)
		}
		return err
	}
	defer rows.Close()
	r, err := newRenderer(o, out, rows.Columns)
	if err != nil {
		return err
	}
	for {
		row, err := rows.Next()
		if errors.Is(err, io.EOF) {
			return r.end()
		}
		if err != nil {
			return err
		}
		if err := r.row(row); err != nil {
			return err
		}
	}
}

// queryTables are the tables of all contracts that the program knows, and of the one named, and
// the views over them.
func queryTables(s *settings) (tables []schemas.Table, views []athena.View, err error) {
	contracts := map[string]*schemas.Contract{}
	for _, name := range schemas.Names() {
		c, err := schemas.Load(name)
		if err != nil {
			return nil, nil, err
		}
		contracts[c.Name] = c
	}
	if s.Contract != "" {
		c, err := loadContract(s.Contract)
		if err != nil {
			return nil, nil, err
		}
		contracts[c.Name] = c
	}
	for _, c := range contracts {
		tables = append(tables, c.Tables()...)
		if v, ok := athena.Latest(c, athena.Options{}); ok {
			views = append(views, v)
		}
	}
	for _, t := range schemas.OwnTables() {
		tables = append(tables, t)
		if v, ok := athena.LatestOfOwn(t, athena.Options{}); ok {
			views = append(views, v)
		}
	}
	return tables, views, nil
}

// checkLake says in one line what is wrong with a folder that is no lake.
func checkLake(dir string, tables []schemas.Table) error {
	if dir == "" {
		return usagef("no lake named; set --lake-dir or STREAMER_LAKE_DIR to the folder that holds a folder for each table")
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return usagef("there is no folder %s; set --lake-dir to the folder that holds a folder for each table", dir)
	case err != nil:
		return usagef("look at the lake: %w", err)
	case !info.IsDir():
		return usagef("%s is a file; set --lake-dir to the folder that holds a folder for each table", dir)
	}
	filled, unknown, err := lakeTables(dir, tables)
	if err != nil || len(filled) > 0 {
		return err
	}
	for inside := range strings.SplitSeq("s3/"+lakeBucket+" ..", " ") {
		other := filepath.Join(dir, inside)
		for _, t := range tables {
			if found, err := hasObject(filepath.Join(other, t.Name)); err == nil && found {
				return usagef("%s holds no tables, but %s does; set --lake-dir to that", dir, other)
			}
		}
	}
	switch {
	case slices.ContainsFunc(unknown, func(name string) bool { return strings.Contains(name, "=") }):
		return usagef("%s seems to be the folder of one table; set --lake-dir to the one above it", dir)
	case len(unknown) > 0:
		return usagef("no contract here describes what %s holds: %s; name its contract with --contract FILE", dir, strings.Join(unknown, ", "))
	}
	return fmt.Errorf("the lake %s holds no rows yet; streamer run and streamer seal bring them there", dir)
}

// hasObject reports whether a folder, which need not be there, holds a Parquet file.
func hasObject(dir string) (bool, error) {
	found := false
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if !d.IsDir() && filepath.Ext(path) == ".parquet" {
			found = true
			return fs.SkipAll
		}
		return nil
	})
	return found, err
}
