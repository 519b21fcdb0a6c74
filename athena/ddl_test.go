package athena

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"telemetrylake/schemas"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

func contracts(t *testing.T) []*schemas.Contract {
	t.Helper()
	var all []*schemas.Contract
	for _, name := range schemas.Names() {
		c, err := schemas.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

func TestDDLOfTheShippedContracts(t *testing.T) {
	options := Options{Database: "telemetrylake", Location: "s3://BUCKET/lake"}
	var want []string
	compare := func(name, got string) {
		file := filepath.Join("ddl", name+".sql")
		want = append(want, file)
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		golden, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(golden) {
			t.Errorf("%s is out of date, write it with go test ./athena -update; now it is\n%s", file, got)
		}
	}
	for _, c := range contracts(t) {
		for _, table := range c.Tables() {
			compare(table.Name, DDL(table, options))
		}
		if v, ok := Latest(c, options); ok {
			compare(v.Name, v.DDL(options))
		}
	}
	for _, table := range schemas.OwnTables() {
		compare(table.Name, DDL(table, options))
		if v, ok := LatestOfOwn(table, options); ok {
			compare(v.Name, v.DDL(options))
		}
	}
	files, err := filepath.Glob("ddl/*")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	if !slices.Equal(files, want) {
		t.Errorf("files are %v, want %v", files, want)
	}
}

// example is a table with everything that needs care in DDL.
func example(unit schemas.Unit, last time.Time) schemas.Table {
	text := schemas.Type{Kind: schemas.String}
	number := schemas.Type{Kind: schemas.Decimal, Precision: 5, Scale: 2}
	pair := schemas.Type{Kind: schemas.Struct, Fields: []schemas.Field{{Name: "date", Type: text}, {Name: "a", Type: number}}}
	return schemas.Table{
		Name:        "order",
		Description: "One; two",
		Columns: []schemas.Column{
			{Name: "timestamp", Type: schemas.Type{Kind: schemas.Timestamp}, Description: `It's; 10\100`, Unit: "ms"},
			{Name: "level", Type: number, Unit: "m"},
			{Name: "plain", Type: text},
			{Name: "pairs", Type: schemas.Type{Kind: schemas.Array, Elem: &pair}},
			{Name: "by_name", Type: schemas.Type{Kind: schemas.Map, Elem: &pair}},
		},
		Layout:     schemas.Layout{Unit: unit, FirstPartition: time.Date(2016, 1, 2, 0, 0, 0, 0, time.UTC), LastPartition: last},
		TimeColumn: "timestamp",
	}
}

func TestDDLQuotesNamesAndTexts(t *testing.T) {
	got := DDL(example(schemas.Day, time.Time{}), Options{Location: "s3://b/l/"})
	for _, want := range []string{
		"CREATE EXTERNAL TABLE IF NOT EXISTS `order` (\n",
		"  `timestamp` timestamp COMMENT 'It\\'s, 10\\\\100 [ms]',\n",
		"  `level` decimal(5,2) COMMENT '[m]',\n",
		"  `plain` string,\n",
		"  `pairs` array<struct<`date`:string,a:decimal(5,2)>>,\n",
		"  `by_name` map<string,struct<`date`:string,a:decimal(5,2)>>\n)\n",
		")\nCOMMENT 'One, two'\nPARTITIONED BY (\n",
		"LOCATION 's3://b/l/order/'\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, ";") {
		t.Errorf("a semicolon in\n%s", got)
	}
}

// properties reads the table properties back out of a statement.
func properties(t *testing.T, ddl string) map[string]string {
	t.Helper()
	_, block, ok := strings.Cut(ddl, "TBLPROPERTIES (\n")
	if !ok {
		t.Fatalf("no properties in\n%s", ddl)
	}
	found := map[string]string{}
	for line := range strings.Lines(strings.TrimSuffix(block, ")\n")) {
		name, value, ok := strings.Cut(strings.TrimRight(strings.TrimSpace(line), ","), " = ")
		if !ok {
			t.Fatalf("property %q has no value", line)
		}
		found[strings.Trim(name, "'")] = strings.Trim(value, "'")
	}
	return found
}

func TestProjectionByDay(t *testing.T) {
	got := properties(t, DDL(example(schemas.Day, time.Time{}), Options{Location: "s3://b/l"}))
	want := map[string]string{
		"classification":              "parquet",
		"projection.enabled":          "true",
		"projection.dt.type":          "date",
		"projection.dt.format":        "yyyy-MM-dd",
		"projection.dt.range":         "2016-01-02,NOW+1DAYS",
		"projection.dt.interval":      "1",
		"projection.dt.interval.unit": "DAYS",
		"storage.location.template":   "s3://b/l/order/dt=${dt}/",
	}
	compareProperties(t, got, want)
}

func TestProjectionByHourWithALastPartition(t *testing.T) {
	got := properties(t, DDL(example(schemas.Hour, time.Date(2016, 12, 31, 0, 0, 0, 0, time.UTC)), Options{Location: "s3://b/l"}))
	want := map[string]string{
		"classification":              "parquet",
		"projection.enabled":          "true",
		"projection.dt.type":          "date",
		"projection.dt.format":        "yyyy-MM-dd",
		"projection.dt.range":         "2016-01-02,2016-12-31",
		"projection.dt.interval":      "1",
		"projection.dt.interval.unit": "DAYS",
		"projection.hour.type":        "integer",
		"projection.hour.range":       "0,23",
		"projection.hour.digits":      "2",
		"storage.location.template":   "s3://b/l/order/dt=${dt}/hour=${hour}/",
	}
	compareProperties(t, got, want)
}

func compareProperties(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %q, want %q", name, got[name], value)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("more properties: %v", got)
	}
}

// Athena looks for a partition where the template says, and a row lies where the layout
// says: both must be the same place.
func TestTheTemplateIsTheLayoutOfTheLake(t *testing.T) {
	at := time.Date(2026, 11, 30, 7, 5, 0, 0, time.UTC)
	for _, unit := range []schemas.Unit{schemas.Day, schemas.Hour} {
		table := example(unit, time.Time{})
		template := properties(t, DDL(table, Options{Location: "s3://b/l"}))["storage.location.template"]
		got := strings.NewReplacer("${dt}", at.Format("2006-01-02"), "${hour}", at.Format("15")).Replace(template)
		if want := "s3://b/l/order/" + table.Layout.Path(at) + "/"; got != want {
			t.Errorf("by %s the template gives %s, the layout %s", unit, got, want)
		}
	}
}

func TestTypesInDDLReadBackAsTheContractDeclaresThem(t *testing.T) {
	for _, c := range contracts(t) {
		for _, table := range c.Tables() {
			ddl := DDL(table, Options{Location: "s3://b/l"})
			for _, col := range table.Columns {
				_, rest, ok := strings.Cut(ddl, "\n  `"+col.Name+"` ")
				if !ok {
					t.Errorf("%s has no column %s in its DDL", table.Name, col.Name)
					continue
				}
				text, _, _ := strings.Cut(rest, " COMMENT ")
				typ, err := schemas.ParseType(text)
				if err != nil || !typ.Equal(col.Type) {
					t.Errorf("%s.%s is %s in the contract and %q in DDL", table.Name, col.Name, col.Type, text)
				}
			}
		}
	}
}

func TestCommentsFitIntoGlue(t *testing.T) {
	for _, c := range contracts(t) {
		for _, table := range c.Tables() {
			for _, col := range table.Columns {
				if n := len(columnComment(col)); n > 255 {
					t.Errorf("the comment of %s.%s has %d bytes", table.Name, col.Name, n)
				}
			}
		}
	}
}
