//go:build cgo && ((linux && (amd64 || arm64)) || (darwin && (amd64 || arm64)) || (windows && amd64))

package engine

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"telemetrylake/athena"
	"telemetrylake/schemas"
)

// telemetry is a row of device_telemetry as it lies in a file, with some of its columns.
type telemetry struct {
	DeviceID   string           `parquet:"device_id"`
	EventTS    time.Time        `parquet:"event_ts,timestamp(millisecond)"`
	JobSiteID  *string          `parquet:"job_site_id,optional"`
	BatteryPct *int32           `parquet:"battery_pct,optional,decimal(2:5)"`
	Charging   *bool            `parquet:"charging,optional"`
	RSSI       *int32           `parquet:"rssi_dbm,optional"`
	Payload    map[string]int64 `parquet:"payload,optional" parquet-value:",decimal(6:18)"`
	Tags       []string         `parquet:"tags,optional,list"`
}

func write[T any](t *testing.T, path string, rows ...T) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := parquet.WriteFile(path, rows); err != nil {
		t.Fatal(err)
	}
}

func tables(t *testing.T, name string) []schemas.Table {
	t.Helper()
	c, err := schemas.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return c.Tables()
}

func open(t *testing.T, root string, tables []schemas.Table) *Lake {
	t.Helper()
	l, err := OpenLake(t.Context(), root, tables)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func query(t *testing.T, l *Lake, sql string, args ...any) *Result {
	t.Helper()
	r, err := l.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantRows(t *testing.T, r *Result, want ...[]any) {
	t.Helper()
	if len(r.Rows) != len(want) {
		t.Fatalf("%d rows, want %d: %v", len(r.Rows), len(want), r.Rows)
	}
	for i := range want {
		if !reflect.DeepEqual(r.Rows[i], want[i]) {
			t.Errorf("row %d is %#v, want %#v", i, r.Rows[i], want[i])
		}
	}
}

func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return t
}

// twoDays writes a lake of two partitions, with a value of each kind and a null of each.
func twoDays(t *testing.T) string {
	root := t.TempDir()
	write(t, filepath.Join(root, "device_telemetry/dt=2026-11-29/a.parquet"),
		telemetry{DeviceID: "d1", EventTS: at("2026-11-29T23:59:59.999Z"), JobSiteID: new("north"), BatteryPct: new(int32(8050)),
			Charging: new(false), RSSI: new(int32(-90)), Payload: map[string]int64{"temperature_c": 21_500_000}, Tags: []string{"a", "b"}},
		telemetry{DeviceID: "d2", EventTS: at("2026-11-29T00:00:00Z"), JobSiteID: new("")})
	write(t, filepath.Join(root, "device_telemetry/dt=2026-11-30/b.parquet"),
		telemetry{DeviceID: "d1", EventTS: at("2026-11-30T00:00:00Z"), JobSiteID: new("north"), BatteryPct: new(int32(7950))})
	return root
}

func TestValuesComeBackAsTheyLieInTheLake(t *testing.T) {
	l := open(t, twoDays(t), tables(t, "device_telemetry"))
	r := query(t, l, `SELECT device_id, event_ts, job_site_id, battery_pct, charging, rssi_dbm, payload, tags, firmware, dt
		FROM device_telemetry ORDER BY event_ts`)
	wantRows(t, r,
		[]any{"d2", at("2026-11-29T00:00:00Z"), "", nil, nil, nil, nil, nil, nil, "2026-11-29"},
		[]any{"d1", at("2026-11-29T23:59:59.999Z"), "north", "80.50", false, int64(-90),
			map[string]any{"temperature_c": "21.500000"}, []any{"a", "b"}, nil, "2026-11-29"},
		[]any{"d1", at("2026-11-30T00:00:00Z"), "north", "79.50", nil, nil, nil, nil, nil, "2026-11-30"})
	if got, want := r.Columns[3], (ResultColumn{"battery_pct", "DECIMAL(5,2)"}); got != want {
		t.Errorf("column is %v, want %v", got, want)
	}
}

func TestColumnsAreThoseOfTheContractThenThePartition(t *testing.T) {
	for _, name := range schemas.Names() {
		all := tables(t, name)
		l := open(t, t.TempDir(), all)
		for _, table := range all {
			r := query(t, l, "SELECT * FROM "+table.Name)
			if len(r.Rows) != 0 {
				t.Errorf("%s without files has %d rows", table.Name, len(r.Rows))
			}
			var want []ResultColumn
			for _, c := range table.Columns {
				typ := strings.Replace(fileType(c.Type), "TIMESTAMP WITH TIME ZONE", "TIMESTAMP", 1)
				want = append(want, ResultColumn{c.Name, strings.ToUpper(typ)})
			}
			want = append(want, ResultColumn{"dt", "VARCHAR"})
			if !slices.Equal(r.Columns, want) {
				t.Errorf("%s has %v, want %v", table.Name, r.Columns, want)
			}
		}
	}
}

func TestAveragesAreOverReadingsAndBySite(t *testing.T) {
	l := open(t, twoDays(t), tables(t, "device_telemetry"))
	wantRows(t, shipped(t, l, "average_battery_by_site", nil),
		[]any{"", int64(0), nil},
		[]any{"north", int64(2), 80.0})
	wantRows(t, shipped(t, l, "average_battery_by_site", map[string]string{"from_day": "2026-11-30"}),
		[]any{"north", int64(1), 79.5})
	wantRows(t, query(t, l, "SELECT job_site_id, AVG(battery_pct) FROM device_telemetry WHERE job_site_id <> '' GROUP BY job_site_id"),
		[]any{"north", 80.0})
	wantRows(t, shipped(t, l, "telemetry_per_device_and_day", nil),
		[]any{"d1", "2026-11-29", int64(1)},
		[]any{"d1", "2026-11-30", int64(1)},
		[]any{"d2", "2026-11-29", int64(1)})
}

// shipped runs a query that we ship.
func shipped(t *testing.T, l *Lake, name string, values map[string]string) *Result {
	t.Helper()
	q, err := athena.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	args, err := q.Args(values)
	if err != nil {
		t.Fatal(err)
	}
	return query(t, l, q.SQL, args...)
}

func TestEveryShippedQueryRunsOnAnEmptyLake(t *testing.T) {
	for _, q := range athena.Queries() {
		l := open(t, t.TempDir(), tables(t, q.Contract))
		if r := shipped(t, l, q.Name, nil); len(r.Rows) != 0 {
			t.Errorf("%s finds %v", q.Name, r.Rows)
		}
	}
}

type climate struct {
	DeviceID string    `parquet:"device_id"`
	TakenAt  time.Time `parquet:"taken_at,timestamp(millisecond)"`
	Celsius  int32     `parquet:"celsius,decimal(2:5)"`
	Humidity int32     `parquet:"humidity,decimal(3:6)"`
}

func TestClimateQueries(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "sensor_readings/dt=2016-03-15/a.parquet"),
		climate{"1", at("2016-03-15T08:47:28.545Z"), 2048, 42332},
		climate{"1", at("2016-03-15T08:47:29.545Z"), 2049, 42333},
		climate{"2", at("2016-03-15T08:47:28.545Z"), -5, 100000})
	l := open(t, root, tables(t, "sensor_readings"))
	wantRows(t, shipped(t, l, "average_climate_by_device", nil),
		[]any{"1", int64(2), 20.485, 42.3325},
		[]any{"2", int64(1), -0.05, 100.0})
	wantRows(t, shipped(t, l, "readings_per_device_and_day", nil),
		[]any{"1", "2016-03-15", int64(2)},
		[]any{"2", "2016-03-15", int64(1)})
	wantRows(t, query(t, l, "SELECT SUM(celsius), SUM(humidity), MIN(celsius), SUM(1) FROM sensor_readings"),
		[]any{"40.92", "184.665", "-0.05", "3"})
}

func TestPartitionsByHour(t *testing.T) {
	all := tables(t, "sensor_readings")
	for i := range all {
		all[i].Layout.Unit = schemas.Hour
	}
	root := t.TempDir()
	write(t, filepath.Join(root, "sensor_readings/dt=2016-03-15/hour=08/a.parquet"),
		climate{"1", at("2016-03-15T08:47:28.545Z"), 2048, 42332})
	l := open(t, root, all)
	wantRows(t, query(t, l, "SELECT dt, hour, celsius FROM sensor_readings"), []any{"2016-03-15", "08", "20.48"})
}

func TestOnlyFilesThatAthenaReadsAreRead(t *testing.T) {
	root := t.TempDir()
	row := climate{"1", at("2016-03-15T08:47:28.545Z"), 2048, 42332}
	for _, name := range []string{"dt=2016-03-15/a.parquet", "dt=2016-03-15/_a.parquet", "dt=2016-03-15/.a.parquet",
		"stray.parquet", "day=2016-03-15/a.parquet", "dt=2016-03-15/a.parquet.tmp"} {
		write(t, filepath.Join(root, "sensor_readings", name), row)
	}
	l := open(t, root, tables(t, "sensor_readings"))
	wantRows(t, query(t, l, "SELECT COUNT(*) FROM sensor_readings"), []any{int64(1)})
}

func TestATableOfFilesThatAthenaDoesNotReadIsEmpty(t *testing.T) {
	root := t.TempDir()
	row := climate{"1", at("2016-03-15T08:47:28.545Z"), 2048, 42332}
	write(t, filepath.Join(root, "sensor_readings/dt=2016-03-15/_a.parquet"), row)
	write(t, filepath.Join(root, "sensor_readings/stray.parquet"), row)
	l := open(t, root, tables(t, "sensor_readings"))
	wantRows(t, query(t, l, "SELECT COUNT(*) FROM sensor_readings"), []any{int64(0)})
}

func TestFilesThatComeLaterAreSeen(t *testing.T) {
	root := t.TempDir()
	row := climate{"1", at("2016-03-15T08:47:28.545Z"), 2048, 42332}
	write(t, filepath.Join(root, "sensor_readings/dt=2016-03-15/a.parquet"), row)
	l := open(t, root, tables(t, "sensor_readings"))
	write(t, filepath.Join(root, "sensor_readings/dt=2016-03-16/a.parquet"), row)
	wantRows(t, query(t, l, "SELECT COUNT(*) FROM sensor_readings"), []any{int64(2)})
}

func TestTheRootIsTakenLiterally(t *testing.T) {
	root := filepath.Join(t.TempDir(), "it's [a] *lake?", "run=1")
	write(t, filepath.Join(root, "sensor_readings/dt=2016-03-15/a.parquet"),
		climate{"1", at("2016-03-15T08:47:28.545Z"), 2048, 42332})
	l := open(t, root, tables(t, "sensor_readings"))
	wantRows(t, query(t, l, "SELECT device_id FROM sensor_readings"), []any{"1"})

	hiding := filepath.Join(t.TempDir(), "device_id=2")
	if err := os.Mkdir(hiding, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := OpenLake(t.Context(), hiding, tables(t, "sensor_readings"))
	wantError(t, err, "folder device_id=2 in its path would hide column device_id; move the lake to another folder")
}

func wantError(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error is %v, want %q in it", err, want)
	}
}

func TestFilesOfAnotherTypeThanDeclaredAreRefused(t *testing.T) {
	type text struct {
		DeviceID string `parquet:"device_id"`
		Celsius  string `parquet:"celsius"`
	}
	type wide struct {
		DeviceID string `parquet:"device_id"`
		Celsius  int32  `parquet:"celsius,decimal(3:6)"`
	}
	for name, add := range map[string]func(path string){
		"VARCHAR":      func(path string) { write(t, path, text{"1", "20.48"}) },
		"DECIMAL(6,3)": func(path string) { write(t, path, wide{"1", 20480}) },
	} {
		root := t.TempDir()
		add(filepath.Join(root, "sensor_readings/dt=2016-03-15/a.parquet"))
		_, err := OpenLake(t.Context(), root, tables(t, "sensor_readings"))
		wantError(t, err, "add table sensor_readings: column celsius is declared DECIMAL(5,2) but some files need "+name)
	}
}

func TestFilesOfANarrowerTypeAreRead(t *testing.T) {
	type narrow struct {
		DeviceID string `parquet:"device_id"`
		Celsius  int32  `parquet:"celsius,decimal(1:3)"`
	}
	root := t.TempDir()
	write(t, filepath.Join(root, "sensor_readings/dt=2016-03-15/a.parquet"), narrow{"1", 204})
	l := open(t, root, tables(t, "sensor_readings"))
	wantRows(t, query(t, l, "SELECT celsius FROM sensor_readings"), []any{"20.40"})
}

func TestADamagedFileIsReported(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "sensor_readings/dt=2016-03-15/a.parquet")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("no parquet at all"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := OpenLake(t.Context(), root, tables(t, "sensor_readings"))
	wantError(t, err, "a.parquet")
}

func TestOpenLakeNeedsAFolder(t *testing.T) {
	root := t.TempDir()
	_, err := OpenLake(t.Context(), filepath.Join(root, "none"), nil)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error is %v, want one that is fs.ErrNotExist", err)
	}
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = OpenLake(t.Context(), file, nil)
	wantError(t, err, "not a folder")
}

func TestOnlyOneSelectRuns(t *testing.T) {
	root := twoDays(t)
	l := open(t, root, tables(t, "device_telemetry"))
	out := filepath.Join(root, "device_telemetry", "dt=2026-11-30", "c.parquet")
	for sql, want := range map[string]string{
		"":                                 "0 statements; write one SELECT",
		"SELECT 1; SELECT 2":               "2 statements; write one SELECT",
		"COPY (SELECT 1) TO '" + out + "'": "not a SELECT",
		"COPY (SELECT 1) TO '" + out + "'; SELECT 1":                 "not a SELECT",
		"CREATE TABLE t (a int)":                                     "not a SELECT",
		"DROP VIEW device_telemetry":                                 "not a SELECT",
		"SET threads = 1":                                            "not a SELECT",
		"SELEC 1":                                                    `query lake: syntax error: syntax error at or near "SELEC"`,
		"SELECT nothing FROM device_telemetry":                       `query lake: Binder Error: Referenced column "nothing" not found in FROM clause!`,
		"SELECT * FROM nothing":                                      "Table with name nothing does not exist",
		"SELECT * FROM read_csv('/etc/hosts')":                       "file system operations are disabled",
		"SELECT * FROM read_parquet('http://127.0.0.1:1/x.parquet')": "disabled",
	} {
		_, err := l.Query(t.Context(), sql)
		wantError(t, err, want)
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("error of %q has more than one line: %v", sql, err)
		}
	}
	if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a query wrote into the lake: %v", err)
	}
	wantRows(t, query(t, l, "WITH a AS (SELECT 1 AS b) SELECT b FROM a;"), []any{int64(1)})
}

func TestValuesAreBoundNotPasted(t *testing.T) {
	l := open(t, twoDays(t), tables(t, "device_telemetry"))
	wantRows(t, query(t, l, "SELECT COUNT(*) FROM device_telemetry WHERE job_site_id = ?", "' OR 1=1 --"), []any{int64(0)})
	_, err := l.Query(t.Context(), "SELECT ?")
	wantError(t, err, "query lake: ")
}

func TestAQueryEndsWithItsContext(t *testing.T) {
	l := open(t, t.TempDir(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Query(ctx, "SELECT 1"); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want context.Canceled", err)
	}
	wantRows(t, query(t, l, "SELECT 1"), []any{int64(1)})
}

func TestARunningQueryIsInterrupted(t *testing.T) {
	l := open(t, t.TempDir(), nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := l.Query(ctx, "SELECT COUNT(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range = -1")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v, want context.DeadlineExceeded", err)
	}
}

func TestQueriesRunAtTheSameTime(t *testing.T) {
	l := open(t, twoDays(t), tables(t, "device_telemetry"))
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			r, err := l.Query(t.Context(), "SELECT CAST(MIN(event_ts) AS VARCHAR), current_setting('TimeZone') FROM device_telemetry")
			if err != nil || r.Rows[0][0] != "2026-11-29 00:00:00" || r.Rows[0][1] != "UTC" {
				t.Errorf("%v, %v", r, err)
			}
		})
	}
	group.Wait()
}

func TestResultValues(t *testing.T) {
	l := open(t, t.TempDir(), nil)
	for sql, want := range map[string]any{
		"NULL":                                nil,
		"''":                                  "",
		"true":                                true,
		"CAST(-1 AS TINYINT)":                 int64(-1),
		"CAST(9223372036854775807 AS BIGINT)": int64(9223372036854775807),
		"CAST('170141183460469231731687303715884105727' AS HUGEINT)":          "170141183460469231731687303715884105727",
		"CAST(18446744073709551615 AS UBIGINT)":                               "18446744073709551615",
		"CAST(0.1 AS DOUBLE)":                                                 0.1,
		"CAST(0.5 AS FLOAT)":                                                  0.5,
		"CAST('99999999999999999999999999999999999999' AS DECIMAL(38,0))":     "99999999999999999999999999999999999999",
		"CAST('-0.00000000000000000000000000000000000001' AS DECIMAL(38,38))": "-0.00000000000000000000000000000000000001",
		"CAST(0 AS DECIMAL(5,2))":                                             "0.00",
		"CAST(-0.05 AS DECIMAL(5,2))":                                         "-0.05",
		"CAST(100 AS DECIMAL(5,2))":                                           "100.00",
		"DATE '2026-11-30'":                                                   at("2026-11-30T00:00:00Z"),
		"TIMESTAMP '2026-11-30 01:02:03.004'":                                 at("2026-11-30T01:02:03.004Z"),
		"TIMESTAMPTZ '2026-11-30 01:02:03+01'":                                at("2026-11-30T00:02:03Z"),
		"CAST('a' AS BLOB)":                                                   []byte("a"),
		"[CAST(1 AS DECIMAL(3,1)), NULL]":                                     []any{"1.0", nil},
		"CAST([] AS INTEGER[])":                                               []any{},
		"{'a': CAST(1 AS DECIMAL(3,1)), 'b': NULL}":                           map[string]any{"a": "1.0", "b": nil},
		"MAP {'k': [1]}":                                                      map[string]any{"k": []any{int64(1)}},
	} {
		r := query(t, l, "SELECT "+sql)
		if got := r.Rows[0][0]; !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %#v, want %#v", sql, got, want)
		}
	}
}

func TestRowsComeOneAtATimeAndCanBeLeft(t *testing.T) {
	l := open(t, twoDays(t), tables(t, "device_telemetry"))
	rows, err := l.Rows(t.Context(), "SELECT battery_pct FROM device_telemetry WHERE dt >= ? ORDER BY event_ts DESC", "2026-11-29")
	if err != nil {
		t.Fatal(err)
	}
	first, err := rows.Next()
	if err != nil || !reflect.DeepEqual(first, []any{"79.50"}) || rows.Columns[0].Type != "DECIMAL(5,2)" {
		t.Errorf("%v, %v, columns %v", first, err, rows.Columns)
	}
	// A row stays what it is when the next is read.
	if _, err := rows.Next(); err != nil || first[0] != "79.50" {
		t.Errorf("%v, %v", first, err)
	}
	if err := rows.Close(); err != nil {
		t.Error(err)
	}
	if rows, err = l.Rows(t.Context(), "SELECT 1 WHERE false"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if row, err := rows.Next(); err != io.EOF {
			t.Errorf("after the last row: %v, %v", row, err)
		}
	}
}
