package athena

import (
	"strings"
	"testing"

	"telemetrylake/schemas"
)

func TestOnlyMutableTablesHaveAViewOfTheLatest(t *testing.T) {
	for _, c := range contracts(t) {
		v, ok := Latest(c, Options{})
		if ok != (c.Mode == schemas.Versions) || ok && v.Name != c.LatestName() {
			t.Errorf("%s, a table of mode %s, has a view: %t, %q", c.Name, c.Mode, ok, v.Name)
		}
	}
}

// In Athena a name without database is looked up where the view is created, not where it lies.
func TestAViewNamesTheDatabaseOfItsTables(t *testing.T) {
	c, err := schemas.Load("dispositivos")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Database: "my db"}
	v, _ := Latest(c, o)
	for _, want := range []string{`FROM "my db"."dispositivos")`, `FROM "my db"."dispositivos_tombstones"` + "\n", `CREATE OR REPLACE VIEW "my db"."dispositivos_latest" AS` + "\n"} {
		if !strings.Contains(v.DDL(o), want) {
			t.Errorf("no %q in\n%s", want, v.DDL(o))
		}
	}
	v, _ = Latest(c, Options{})
	if !strings.Contains(v.SQL, `FROM "dispositivos")`) || strings.Contains(v.DDL(Options{}), ";") {
		t.Errorf("without database the view is\n%s", v.DDL(Options{}))
	}
}

func TestTheViewShowsEveryColumnOfItsTableInOrder(t *testing.T) {
	c, err := schemas.Load("dispositivos")
	if err != nil {
		t.Fatal(err)
	}
	v, _ := Latest(c, Options{})
	list, _, _ := strings.Cut(strings.TrimPrefix(v.SQL, "SELECT "), "\nFROM")
	var want []string
	for _, col := range c.LakeTable(schemas.Readings).Columns {
		want = append(want, `v."`+col.Name+`"`)
	}
	if list != strings.Join(want, ",\n  ") {
		t.Errorf("the columns are\n%s", list)
	}
}
