package schemas

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestOwnTablesBeginWithTheirMomentAndHaveAViewOfTheLast(t *testing.T) {
	var names []string
	for _, table := range OwnTables() {
		names = append(names, table.Name)
		if c := table.Columns[0]; c.Name != AsOf || c.Type.Kind != Timestamp || c.Nullable || table.TimeColumn != AsOf {
			t.Errorf("%s begins with %+v and is partitioned by %s", table.Name, c, table.TimeColumn)
		}
		if table.LatestName() != table.Name+"_latest" {
			t.Errorf("the view of %s is %q", table.Name, table.LatestName())
		}
		seen := map[string]bool{}
		for _, c := range table.Columns {
			if err := checkColumnName(c.Name); err != nil || seen[c.Name] || c.Description == "" {
				t.Errorf("%s.%s: %v, twice %t, description %q", table.Name, c.Name, err, seen[c.Name], c.Description)
			}
			seen[c.Name] = true
		}
		for _, name := range table.OneOf() {
			if c, ok := table.Column(name); !ok || c.Nullable {
				t.Errorf("rows of %s are told apart by %s, which is %+v", table.Name, name, c)
			}
		}
		if got := table.Layout.Path(time.Date(2026, 11, 30, 7, 0, 0, 0, time.UTC)); got != "dt=2026-11-30" {
			t.Errorf("%s lies in %s", table.Name, got)
		}
	}
	if !slices.Equal(names, []string{"windows", "gaps"}) {
		t.Errorf("tables %v", names)
	}
	if c := mustParse(t); c.LakeTable(Readings).LatestName() != "" || c.LakeTable(Changes).OneOf() != nil {
		t.Error("a contract's table passes for one of ours")
	}
}

func mustParse(t *testing.T) *Contract {
	t.Helper()
	c, err := Load("sensor_readings")
	if err != nil || strings.Contains(c.Name, "windows") {
		t.Fatal(c, err)
	}
	return c
}
