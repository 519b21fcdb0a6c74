//go:build cgo && ((linux && (amd64 || arm64)) || (darwin && (amd64 || arm64)) || (windows && amd64))

package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"telemetrylake/athena/engine"
	"telemetrylake/schemas"
)

// climateLake makes a lake of a few readings and returns its folder.
func climateLake(t *testing.T) string {
	t.Helper()
	lines := []string{climateHeader}
	for i := range 12 {
		lines = append(lines, climateLine(i+1, climateStart.Add(time.Duration(i)*time.Millisecond), 1+i%4, "20.40", "42.3"))
	}
	dir := t.TempDir()
	if code, _, stderr := streamer(t, "demo", "--readings", writeLines(t, lines...), "--format", "room-climate", "--dir", dir); code != 0 {
		t.Fatal(stderr)
	}
	return filepath.Join(dir, "s3", lakeBucket)
}

func TestQueriesRunOnALake(t *testing.T) {
	dir := climateLake(t)
	t.Setenv("STREAMER_LAKE_DIR", dir)
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"name":    {[]string{"readings_per_device_and_day", "-o", "csv"}, "device_id,dt,readings\n1,2016-03-15,3\n2,2016-03-15,3\n3,2016-03-15,3\n4,2016-03-15,3\n"},
		"param":   {[]string{"readings_per_device_and_day", "-o", "csv", "--param", "from_day=2017-01-01"}, "device_id,dt,readings\n"},
		"no rows": {[]string{"readings_per_device_and_day", "-o", "json", "--param", "from_day=2017-01-01"}, "[]\n"},
		"decimal": {[]string{"SELECT SUM(celsius) AS s, CAST(1 AS DECIMAL(38,30)) AS d FROM sensor_readings", "-o", "json"},
			"[\n{\"s\":\"244.80\",\"d\":\"1.000000000000000000000000000000\"}\n]\n"},
		"null": {[]string{"SELECT NULL AS a, '' AS b, 'NULL' AS c, 'x,\"y' AS d", "-o", "csv"}, "a,b,c,d\n,\"\",NULL,\"x,\"\"y\"\n"},
		"null in JSON": {[]string{"SELECT NULL AS a, '' AS b, [1, NULL] AS c, 1.5::DOUBLE AS d, true AS e, 'nan'::DOUBLE AS f", "-o", "json"},
			"[\n{\"a\":null,\"b\":\"\",\"c\":[1,null],\"d\":1.5,\"e\":true,\"f\":\"NaN\"}\n]\n"},
		"null in a table": {[]string{"SELECT NULL AS a, '' AS b, 'NULL' AS c, 'x\n\x1b[2J' AS d, 7 AS n"},
			"   a  b   c       d           n\n----  --  ------  ----------  -\nNULL  \"\"  \"NULL\"  x\\n\\x1b[2J  7\n1 row\n"},
		"limit": {[]string{"SELECT dt FROM sensor_readings", "--limit", "1"}, "dt\n----------\n2016-03-15\n… 11 more rows; --limit 0 shows all\n"},
		"times": {[]string{"SELECT MIN(taken_at) AS t, DATE '2016-03-15' AS d FROM sensor_readings", "-o", "csv"}, "t,d\n" + timeText(climateStart, "TIMESTAMP") + ",2016-03-15\n"},
	} {
		code, stdout, stderr := runCommand(t, newQuery(), "", tt.args...)
		if code != exitOK || stdout != tt.want || stderr != "" {
			t.Errorf("%s: exit code %d, stderr %q\n%q, want\n%q", name, code, stderr, stdout, tt.want)
		}
	}
	if _, stdout, _ := runCommand(t, newQuery(), "", "SELECT * FROM sensor_readings", "--limit", "0"); !strings.HasSuffix(stdout, "\n12 rows\n") {
		t.Errorf("all rows:\n%s", stdout)
	}
}

func TestAQueriedLakeCanBeLoadedAgain(t *testing.T) {
	serveAWS(t, "sensor_readings")
	_, text, _ := runCommand(t, newQuery(), "", "SELECT * FROM sensor_readings", "-o", "csv", "--lake-dir", climateLake(t))
	if records, err := csv.NewReader(strings.NewReader(text)).ReadAll(); err != nil || len(records) != 13 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	code, stdout, stderr := runCommand(t, newLoad(), text, "-", "--contract", "sensor_readings", "-o", "json")
	if r := loadJSON(t, stdout); code != exitOK || r.Written != 12 {
		t.Errorf("exit code %d, %+v, %s", code, r, stderr)
	}
}

func TestQueryRefusesInOneLine(t *testing.T) {
	lake, empty := climateLake(t), t.TempDir()
	in := func(dir string, args ...string) []string { return append(args, "--lake-dir", dir) }
	for name, tt := range map[string]struct {
		args []string
		code int
		want string
	}{
		"nothing":           {nil, exitUsage, "--list"},
		"no lake":           {[]string{"SELECT 1"}, exitUsage, "STREAMER_LAKE_DIR"},
		"missing lake":      {in(filepath.Join(empty, "none"), "SELECT 1"), exitUsage, "there is no folder"},
		"empty lake":        {in(empty, "SELECT 1"), exitFailed, "holds no rows yet"},
		"folder above":      {in(filepath.Join(lake, "..", ".."), "SELECT 1"), exitUsage, "set --lake-dir to that"},
		"folder of a table": {in(filepath.Join(lake, "sensor_readings"), "SELECT 1"), exitUsage, "set --lake-dir to that"},
		"unknown name":      {in(lake, "avg_climate_by_device"), exitUsage, "did you mean average_climate_by_device"},
		"like no name":      {in(lake, "xyzzy"), exitUsage, "--list"},
		"bad SQL":           {in(lake, "SELEC 1"), exitUsage, `near "SELEC"`},
		"not a SELECT":      {in(lake, "DROP TABLE sensor_readings"), exitUsage, "not a SELECT"},
		"unknown param":     {in(lake, "readings_per_device_and_day", "--param", "day=2016-03-15"), exitUsage, `no parameter "day"`},
		"bad param":         {in(lake, "readings_per_device_and_day", "--param", "from_day"), exitUsage, "NAME=VALUE"},
		"param of SQL":      {in(lake, "SELECT 1", "--param", "a=b"), exitUsage, "query by name"},
		"limit of CSV":      {in(lake, "SELECT 1", "--limit", "3", "-o", "csv"), exitUsage, "LIMIT"},
		"same names":        {in(lake, "SELECT 1 AS a, 2 AS a", "-o", "json"), exitUsage, "with AS"},
		"bad output":        {in(lake, "SELECT 1", "-o", "xml"), exitUsage, `"xml"`},
		"two arguments":     {in(lake, "SELECT 1", "SELECT 2"), exitUsage, "in quotes"},
	} {
		code, stdout, stderr := runCommand(t, newQuery(), "", tt.args...)
		if code != tt.code || stdout != "" || !strings.Contains(stderr, tt.want) || strings.Contains(stderr, "\n") {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q; want %d and %q", name, code, stdout, stderr, tt.code, tt.want)
		}
	}
}

func TestAnUnknownTableIsAnsweredWithTheLakesOwn(t *testing.T) {
	lake := climateLake(t)
	code, stdout, stderr := runCommand(t, newQuery(), "", "SELECT * FROM sensor_reading", "--lake-dir", lake)
	if want := "the lake has no table sensor_reading; it has sensor_readings; "; code != exitUsage || stdout != "" || !strings.HasPrefix(stderr, want) ||
		!strings.Contains(stderr, "--contract FILE") || strings.Contains(stderr, "\n") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}

	// A lake of a contract that the program does not know.
	own := t.TempDir()
	if err := os.Rename(filepath.Join(lake, "sensor_readings"), filepath.Join(own, "mine")); err != nil {
		t.Fatal(err)
	}
	code, _, stderr = runCommand(t, newQuery(), "", "SELECT COUNT(*) FROM mine", "--lake-dir", own)
	if code != exitUsage || !strings.Contains(stderr, "no contract here describes what "+own+" holds: mine; name its contract") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	code, _, stderr = runCommand(t, newQuery(), "", "SELECT COUNT(*) FROM mine", "--lake-dir", filepath.Join(own, "mine"))
	if code != exitUsage || !strings.Contains(stderr, "folder of one table") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	c, err := schemas.Load("sensor_readings")
	if err != nil {
		t.Fatal(err)
	}
	contract := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.WriteFile(contract, bytes.Replace(c.Text(), []byte("name: sensor_readings"), []byte("name: mine"), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr = runCommand(t, newQuery(), "", "SELECT COUNT(*) AS n FROM mine", "--lake-dir", own, "--contract", contract, "-o", "csv")
	if code != exitOK || stdout != "n\n12\n" {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	code, _, stderr = runCommand(t, newQuery(), "", "SELECT 1 FROM sensor_reading", "--lake-dir", own, "--contract", contract)
	if code != exitUsage || !strings.Contains(stderr, "it has mine;") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	// Beside a table that is known.
	if err := os.CopyFS(filepath.Join(lake, "mine"), os.DirFS(filepath.Join(own, "mine"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(own, "mine"), filepath.Join(lake, "sensor_readings")); err != nil {
		t.Fatal(err)
	}
	code, _, stderr = runCommand(t, newQuery(), "", "SELECT 1 FROM MINE", "--lake-dir", lake)
	if code != exitUsage || !strings.Contains(stderr, "no contract here describes table MINE") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
}

func TestQueryListNamesEveryParameter(t *testing.T) {
	code, stdout, _ := runCommand(t, newQuery(), "", "--list")
	if code != exitOK || !strings.Contains(stdout, "average_battery_by_site\n  Average charge") || !strings.Contains(stdout, "--param from_day=DAY") {
		t.Errorf("exit code %d:\n%s", code, stdout)
	}
	code, stdout, _ = runCommand(t, newQuery(), "", "--list", "-o", "json")
	var list []listedQuery
	if err := json.Unmarshal([]byte(stdout), &list); code != exitOK || err != nil || len(list) < 4 || list[0].Parameters[0].Name != "from_day" {
		t.Errorf("exit code %d, %v:\n%s", code, err, stdout)
	}
}

func TestTablesFitATerminal(t *testing.T) {
	long := strings.Repeat("ä long text ", 20)
	when := "2016-03-15T08:47:28.545Z"
	show := func(columns []engine.ResultColumn, row ...any) string {
		var out strings.Builder
		r := &tableRows{out: &out, columns: columns, width: 80}
		if err := r.row(row); err != nil {
			t.Fatal(err)
		}
		if err := r.end(); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%d columns: %q", n, line)
			}
		}
		return out.String()
	}
	text, number, at := engine.ResultColumn{Name: "t", Type: "VARCHAR"}, engine.ResultColumn{Name: "n", Type: "DECIMAL(38,2)"}, engine.ResultColumn{Name: "at", Type: "TIMESTAMP"}
	digits := strings.Repeat("9", 36) + ".99"
	if got := show([]engine.ResultColumn{text, number, text}, long, digits, "short"); !strings.Contains(got, "…") || !strings.Contains(got, digits) || !strings.Contains(got, "short") {
		t.Errorf("text is cut, a number is not:\n%s", got)
	}
	// What does not fit even so is shown as lines.
	if got := show([]engine.ResultColumn{at, at, at, number, text}, when, when, when, digits, long); !strings.Contains(got, "-- row 1\nat  "+when) || !strings.Contains(got, "n   "+digits) {
		t.Errorf("a wide row:\n%s", got)
	}
	var out strings.Builder
	r := &tableRows{out: &out, columns: []engine.ResultColumn{text}}
	if err := r.row([]any{long}); err != nil {
		t.Fatal(err)
	}
	if err := r.end(); err != nil || !strings.Contains(out.String(), strings.TrimRight(long, " ")) {
		t.Errorf("outside a terminal nothing is cut: %v\n%s", err, out.String())
	}
}
