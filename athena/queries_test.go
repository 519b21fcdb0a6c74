package athena

import (
	"slices"
	"strings"
	"testing"

	"telemetrylake/schemas"
)

func TestShippedQueriesReadATableOfTheirContract(t *testing.T) {
	var names []string
	for _, q := range Queries() {
		names = append(names, q.Name)
		c, err := schemas.Load(q.Contract)
		if err != nil {
			t.Errorf("%s: %v", q.Name, err)
			continue
		}
		tables := c.Tables()
		i := slices.IndexFunc(tables, func(table schemas.Table) bool { return table.Role == q.Role })
		if i < 0 {
			t.Errorf("%s reads the %s of %s, which has none", q.Name, q.Role, q.Contract)
			continue
		}
		if !strings.Contains(q.SQL, "FROM "+tables[i].Name+"\n") {
			t.Errorf("%s does not read %s:\n%s", q.Name, tables[i].Name, q.SQL)
		}
		if _, err := q.Args(nil); err != nil {
			t.Error(err)
		}
	}
	want := []string{"average_battery_by_site", "average_climate_by_device", "readings_per_device_and_day", "telemetry_per_device_and_day"}
	if !slices.Equal(names, want) {
		t.Errorf("queries are %v, want %v", names, want)
	}
}

func TestFindOfAnUnknownQueryListsTheKnownOnes(t *testing.T) {
	if q, err := Find("average_battery_by_site"); err != nil || q.Contract != "device_telemetry" {
		t.Errorf("found %v, %v", q, err)
	}
	_, err := Find("nothing")
	want := `find query "nothing": no such query; write one of average_battery_by_site, average_climate_by_device, readings_per_device_and_day, telemetry_per_device_and_day`
	if err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
}

func TestArgsBindInOrderWithDefaults(t *testing.T) {
	q, err := Find("readings_per_device_and_day")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		values  map[string]string
		want    []any
		problem string
	}{
		{nil, []any{"0001-01-01", "9999-12-31"}, ""},
		{map[string]string{"to_day": "2026-11-30"}, []any{"0001-01-01", "2026-11-30"}, ""},
		{map[string]string{"from_day": "2026-11-30", "to_day": "2026-12-01"}, []any{"2026-11-30", "2026-12-01"}, ""},
		{map[string]string{"to_day": "' OR 1=1"}, nil, `bind query readings_per_device_and_day: parameter to_day is "' OR 1=1"; write a day, as in 2026-11-30`},
		{map[string]string{"to_day": ""}, nil, `bind query readings_per_device_and_day: parameter to_day is ""; write a day, as in 2026-11-30`},
		{map[string]string{"day": "2026-11-30"}, nil, `bind query readings_per_device_and_day: it has no parameter "day"; write one of from_day, to_day`},
	} {
		got, err := q.Args(tt.values)
		if tt.problem != "" {
			if err == nil || err.Error() != tt.problem {
				t.Errorf("of %v: error is %v, want %s", tt.values, err, tt.problem)
			}
			continue
		}
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("of %v: %v, %v, want %v", tt.values, got, err, tt.want)
		}
	}
}

func TestQueryFilesAreReadStrictly(t *testing.T) {
	const header = "-- purpose: P\n-- contract: c\n-- role: readings\n"
	const parameter = "-- parameter: day day 2020-01-01 The day\n"
	for _, tt := range []struct{ text, problem string }{
		{header + "SELECT 1\n", ""},
		{header + parameter + "SELECT ?\n", ""},
		{"SELECT 1\n", "read query q.sql: the header must have purpose, contract and role"},
		{header + "-- owner: me\nSELECT 1", `read query q.sql: unknown header key "owner"`},
		{header + "-- hello\nSELECT 1", `read query q.sql: header line "-- hello" is not of the form -- key: value`},
		{header + "SELECT ?", "read query q.sql: 0 parameters for 1 question marks"},
		{header + parameter + "SELECT 1", "read query q.sql: 1 parameters for 0 question marks"},
		{header + "SELECT 1; SELECT 2", "read query q.sql: a semicolon; a file holds one statement without one"},
		{header + "-- parameter: day day 2020\nSELECT ?", `read query q.sql: parameter "day day 2020" is not name, type, default and purpose`},
		{header + "-- parameter: n int 1 Count\nSELECT ?", `read query q.sql: parameter n has no type "int"; write day`},
		{header + "-- parameter: day day now The day\nSELECT ?", `read query q.sql: default: parameter day is "now"; write a day, as in 2026-11-30`},
	} {
		_, err := parseQuery("q.sql", tt.text)
		if tt.problem == "" && err != nil || tt.problem != "" && (err == nil || err.Error() != tt.problem) {
			t.Errorf("of %q: error is %v, want %s", tt.text, err, tt.problem)
		}
	}
}
