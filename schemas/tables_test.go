package schemas

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func load(t *testing.T, name string) *Contract {
	t.Helper()
	c, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// spell writes a table as its columns, a question mark behind those that can be null.
func spell(table Table) string {
	var columns []string
	for _, c := range table.Columns {
		mark := ""
		if c.Nullable {
			mark = "?"
		}
		columns = append(columns, c.Name+mark)
	}
	return fmt.Sprintf("%s by %s: %s", table.Name, table.TimeColumn, strings.Join(columns, " "))
}

func TestTablesOfAnAppendOnlyContract(t *testing.T) {
	want := []string{
		"sensor_readings by taken_at: device_id taken_at tie? celsius? humidity? expires_at? stream_created_at?",
		"sensor_readings_changes by taken_at: device_id taken_at tie? celsius? humidity? expires_at? stream_created_at stream_shard stream_seq",
		"sensor_readings_tombstones by stream_created_at: device_id? tie? item_keys delete_cause stream_created_at stream_shard stream_seq",
		"sensor_readings_quarantine by stream_created_at: item_keys item? event_name reason detail contract_hash stream_created_at stream_shard? stream_seq?",
	}
	for i, table := range load(t, "sensor_readings").Tables() {
		if got := spell(table); got != want[i] {
			t.Errorf("table is\n%s\nwant\n%s", got, want[i])
		}
	}
}

func TestTablesOfAMutableContract(t *testing.T) {
	want := []string{
		"dispositivos by actualizado_en: casa_id dispositivo_id tipo nombre? averia? actualizado_en item_keys stream_created_at? stream_shard? stream_seq?",
		"dispositivos_tombstones by stream_created_at: casa_id? dispositivo_id? item_keys delete_cause stream_created_at stream_shard stream_seq",
		"dispositivos_quarantine by stream_created_at: item_keys item? event_name reason detail contract_hash stream_created_at stream_shard? stream_seq?",
	}
	tables := load(t, "dispositivos").Tables()
	if len(tables) != len(want) {
		t.Fatalf("%d tables, want %d", len(tables), len(want))
	}
	for i, table := range tables {
		if got := spell(table); got != want[i] {
			t.Errorf("table is\n%s\nwant\n%s", got, want[i])
		}
	}
}

func TestReadingsHavePositionsWhenTheContractSaysSo(t *testing.T) {
	got := spell(parseGood(t).LakeTable(Readings))
	if !strings.HasSuffix(got, "stream_created_at? stream_shard? stream_seq?") {
		t.Errorf("readings are %s", got)
	}
}

func TestTombstonesTakeColumnsOfKeysWithoutPattern(t *testing.T) {
	c, err := Parse("x.yaml", []byte(`
format: 1
name: counts
table: counts
keys: {partition: {attribute: meterId}, sort: {attribute: ts, type: N}}
columns:
  - {name: meter_id, attribute: meterId, type: string}
  - {name: ts, attribute: ts, type: timestamp, encoding: epoch_milliseconds}
  - {name: n, attribute: n, type: int}
event_time: ts
layout: {first_partition: 2020-01-01}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := "counts_tombstones by stream_created_at: meter_id? ts? item_keys delete_cause stream_created_at stream_shard stream_seq"
	if got := spell(c.LakeTable(Tombstones)); got != want {
		t.Errorf("tombstones are %s, want %s", got, want)
	}
}

func TestTablesByCreationAreNotBoundByEventTime(t *testing.T) {
	c := parseGood(t)
	created := time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC) // after the contract's last partition
	for _, r := range []Role{Tombstones, Quarantine} {
		if reason, outside := c.LakeTable(r).Layout.Outside(created, created); outside {
			t.Errorf("a row of %s is outside: %s", r, reason)
		}
	}
	if _, outside := c.LakeTable(Changes).Layout.Outside(created, created); !outside {
		t.Error("a change after the last partition is inside")
	}
	late, err := Parse("x.yaml", []byte(strings.Replace(goodText(t), "first_partition: 2020-01-01", "first_partition: 2030-01-01", 1)))
	if err != nil {
		t.Fatal(err)
	}
	created = time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC) // before the contract's first partition
	if reason, outside := late.LakeTable(Quarantine).Layout.Outside(created, created); outside {
		t.Errorf("a quarantined row of a contract that begins later is outside: %s", reason)
	}
}

func TestOnlyMutableTablesHaveAViewOfTheLatest(t *testing.T) {
	for name, want := range map[string]string{"dispositivos": "dispositivos_latest", "lecturas": ""} {
		if got := load(t, name).LatestName(); got != want {
			t.Errorf("the view of %s is %q, want %q", name, got, want)
		}
	}
}

func TestTablesDoNotShareTheirColumns(t *testing.T) {
	c := load(t, "sensor_readings")
	c.LakeTable(Readings).Columns[0].Name = "changed"
	if got := c.LakeTable(Changes).Columns[0].Name; got != "device_id" {
		t.Errorf("another table's column became %s", got)
	}
}

func TestAttributeTypesServeTheTableAndItsIndexes(t *testing.T) {
	c := parseGood(t)
	for attribute, want := range map[string]string{
		"pk": "S", "sk": "S", "expiresAt": "N", "takenAt": "N", "siteId": "S",
		"states": "", "tank.level": "", "tank": "", "nothing": "", "": "",
	} {
		got, ok := c.AttributeType(attribute)
		if got != want || ok != (want != "") {
			t.Errorf("%q is %q, %t, want %q", attribute, got, ok, want)
		}
	}
	if got, _ := load(t, "device_telemetry").AttributeType("event_ts"); got != "S" {
		t.Errorf("event_ts is %s", got)
	}
}

func TestHashNamesTheText(t *testing.T) {
	a := parseGood(t)
	b, err := Parse("other name.yaml", append([]byte("# a comment\n"), a.Text()...))
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Hash()) != 32 || a.Hash() == b.Hash() || a.Hash() != parseGood(t).Hash() {
		t.Errorf("hashes are %s and %s", a.Hash(), b.Hash())
	}
	a.Text()[0] = 'X'
	if a.Hash() != parseGood(t).Hash() {
		t.Error("the text can be changed from outside")
	}
}

func TestColumnsAreFoundByName(t *testing.T) {
	c := load(t, "device_telemetry")
	if col, ok := c.Column("battery_pct"); !ok || col.Type.String() != "decimal(5,2)" {
		t.Errorf("battery_pct is %v, %t", col, ok)
	}
	if _, ok := c.Column("stream_created_at"); ok {
		t.Error("the contract's own columns include stream_created_at")
	}
	if col, ok := c.LakeTable(Readings).Column("stream_created_at"); !ok || col.System != StreamCreatedAt {
		t.Errorf("stream_created_at is %v, %t", col, ok)
	}
	if key, ok := c.Keys.Key("event_time"); !ok || key.Attribute != "event_ts" {
		t.Errorf("the key of event_time is %v, %t", key, ok)
	}
}
