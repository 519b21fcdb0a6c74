package schemas

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func goodText(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("testdata/contract.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func parseGood(t *testing.T) *Contract {
	t.Helper()
	c, err := Parse("good.yaml", []byte(goodText(t)))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestParseReadsEveryKeyOfTheFormat(t *testing.T) {
	c := parseGood(t)
	day := func(y, m, d int) time.Time { return time.Date(y, time.Month(m), d, 0, 0, 0, 0, time.UTC) }
	checks := []struct {
		what      string
		got, want any
	}{
		{"format", c.Format, 1},
		{"name", c.Name, "readings"},
		{"table", c.Table, "plant.readings-v2"},
		{"description", c.Description, "Readings of a plant"},
		{"mode", c.Mode, Append},
		{"partition key", c.Keys.Partition.Attribute + " " + c.Keys.Partition.Type + " " + c.Keys.Partition.Pattern.String(), "pk S DEVICE#{device_id}[#{yyyy-mm}]"},
		{"sort key", c.Keys.Sort.Attribute + " " + c.Keys.Sort.Type + " " + c.Keys.Sort.Pattern.String(), "sk S TS#{event_time}[#{tie}]"},
		{"ttl", c.TTL, "expiresAt"},
		{"retention", c.Retention, 30 * 24 * time.Hour},
		{"index", c.Indexes[0], Index{"by_site", "siteId", "takenAt", true}},
		{"columns", len(c.Columns), 7},
		{"key column", c.Columns[1].Key, "tie"},
		{"attribute", c.Columns[4].Attribute, "tank.level"},
		{"type", c.Columns[4].Type.String(), "decimal(7,3)"},
		{"encoding", c.Columns[2].Encoding, EpochMilli},
		{"unit", c.Columns[4].Unit, "m"},
		{"nullable", c.Columns[4].Nullable, true},
		{"not nullable", c.Columns[2].Nullable, false},
		{"column description", c.Columns[4].Description, "Level of the tank"},
		{"event time", c.EventTime, "taken_at"},
		{"layout", c.Layout, Layout{Hour, day(2020, 1, 1), day(2030, 12, 31)}},
		{"on_modify", c.OnModify, ModifyReject},
		{"on_remove by default", c.OnRemove, RemoveTombstones},
		{"on_expire by default", c.OnExpire, ExpireIgnore},
		{"positions", c.Positions, true},
		{"text", string(c.Text()), goodText(t)},
	}
	for _, check := range checks {
		if check.got != check.want {
			t.Errorf("%s is %v, want %v", check.what, check.got, check.want)
		}
	}
}

func TestParseFillsInDefaults(t *testing.T) {
	c, err := Parse("small.yaml", []byte(`
format: 1
name: small
table: small
keys: {partition: {attribute: deviceId}, sort: {attribute: ts, type: N}}
columns:
  - {name: device_id, key: deviceId, type: string}
  - {name: ts, attribute: ts, type: timestamp, encoding: epoch_milliseconds}
event_time: ts
layout: {first_partition: 2020-01-01}
`))
	if err != nil {
		t.Fatal(err)
	}
	if c.Mode != Append || c.OnModify != ModifyChanges || c.Layout.Unit != Day || c.Positions || c.TTL != "" || c.Retention != 0 {
		t.Errorf("defaults are %v %v %v %v %q %v", c.Mode, c.OnModify, c.Layout.Unit, c.Positions, c.TTL, c.Retention)
	}
	if got := c.Keys.Partition; got.Type != "S" || got.Pattern.String() != "{deviceId}" {
		t.Errorf("a key without type and pattern is %s %s, want S {deviceId}", got.Type, got.Pattern)
	}
	if !c.Keys.Sort.Pattern.IsZero() {
		t.Errorf("a key of type N has the pattern %s", c.Keys.Sort.Pattern)
	}
}

// Each case changes the good contract in one place. The message begins with its line.
var badContracts = []struct {
	name, old, new string
	want           []string
}{
	{"no format", "format: 1\n", "", []string{`1: contract: no format; write for example format: 1`}},
	{"newer format", "format: 1\n", "format: 2\n", []string{`1: contract: format 2 is newer than this program, which reads 1; use a newer program, or write 1`}},
	{"format in words", "format: 1\n", "format: one\n", []string{`1: contract: format is "one"; write 1`}},
	{"unknown key", "retention: 30d", "retension: 30d", []string{
		`15: contract: ttl without retention; write retention: 30d, how long the table keeps a row`,
		`16: contract: unknown key "retension"; write retention`}},
	{"unknown key like none", "ttl: expiresAt", "owner: me\nttl: expiresAt", []string{
		`15: contract: unknown key "owner"; write one of format, name, table, description, mode, keys, ttl, retention, indexes, columns, event_time, layout, on_modify, on_remove, on_expire, positions, or remove it`}},
	{"unknown key of a column", "    unit: m\n", "    units: m\n", []string{`42: column level: unknown key "units"; write unit`}},
	{"key twice", "retention: 30d\n", "retention: 30d\nretention: 40d\n", []string{`17: contract: key "retention" stands there twice, first in line 16; remove one`}},
	{"alias", "  first_partition: 2020-01-01\n  last_partition: 2030-12-31", "  first_partition: &a 2020-01-01\n  last_partition: *a", []string{`58: layout: last_partition is an alias; write its value out`}},
	{"second document", "positions: true\n", "positions: true\n---\nformat: 1\n", []string{`61: a second document; write one contract in a file`}},
	{"broken quotes", `table: plant.readings-v2`, `table: "plant`, []string{`11: not YAML: mapping values are not allowed in this context; check indentation and quotes here and in the line before`}},
	{"tab", "  partition_by: hour", "\tpartition_by: hour", []string{`56: not YAML: found character that cannot start any token; check indentation and quotes here and in the line before`}},
	{"not UTF-8", "Readings of a plant", "L\xf6sung", []string{`4: not UTF-8; save the file as UTF-8`}},
	{"name in upper case", "name: readings", "name: Readings", []string{`2: contract: name "Readings" has upper case letters, which Athena folds; write readings`}},
	{"name not plain", "name: readings", "name: my-readings", []string{`2: contract: name "my-readings" is not plain; write lower case letters, digits and underscores, a letter first`}},
	{"name too long", "name: readings", "name: " + strings.Repeat("x", 118), []string{`2: contract: name "` + strings.Repeat("x", 118) + `" is longer than 117 characters; shorten it`}},
	{"name of another contract's table", "name: readings", "name: plant_changes", []string{`2: contract: name plant_changes is that of the changes of a contract plant; write another name`}},
	{"no table", "table: plant.readings-v2\n", "", []string{`1: contract: no table; write for example table: device-telemetry`}},
	{"empty table", "table: plant.readings-v2", "table:", []string{`3: contract: table is empty; write a text, or remove the key`}},
	{"table not a name", "table: plant.readings-v2", "table: plant/readings", []string{`3: contract: table "plant/readings" is no name in DynamoDB; write 3 to 255 letters, digits, dots, dashes and underscores`}},
	{"bad mode", "mode: append", "mode: apend", []string{`5: contract: mode cannot be "apend"; write append`}},
	{"bad mode like none", "mode: append", "mode: mutable", []string{`5: contract: mode cannot be "mutable"; write one of append, versions`}},
	{"on_modify of versions", "mode: append", "mode: versions", []string{`59: contract: mode versions keeps every version, on_modify says nothing; remove it, or write mode: append`}},
	{"no partition key", "  partition:\n    attribute: pk\n    type: S\n    pattern: \"DEVICE#{device_id}[#{yyyy-mm}]\"\n", "", []string{
		`7: keys: no partition; write partition with attribute and type`}},
	{"keys as text", "keys:\n  partition:", "keys: pk\ncolums:\n  partition:", []string{
		`6: keys is the value "pk"; write a mapping with the keys partition, sort`,
		`7: contract: unknown key "colums"; write columns`}},
	{"key without attribute", "    attribute: sk\n", "", []string{`12: sort key: no attribute; write for example attribute: device_id`}},
	{"key type", "attribute: sk\n    type: S", "attribute: sk\n    type: B", []string{`13: sort key: type cannot be "B"; write one of S, N`}},
	{"same key twice", "attribute: sk", "attribute: pk", []string{`12: sort key: pk is the partition key already; write the sort key's attribute`}},
	{"pattern of a number", "attribute: sk\n    type: S", "attribute: sk\n    type: N", []string{`14: sort key: a key of type N has no pattern; remove it, or write type: S`}},
	{"pattern without capture", `"TS#{event_time}[#{tie}]"`, `"TS"`, []string{`14: sort key: pattern "TS" has no capture, so every item would have the same key; write for example DEVICE#{device_id}`}},
	{"capture in no column", "  - name: tie\n    key: tie\n    type: string\n    nullable: true\n", "", []string{
		`12: sort key: {tie} is in no column, so rows of two items could not be told apart; write a column with key: tie`}},
	{"capture unknown", "    key: tie\n", "    key: tye\n", []string{
		`12: sort key: {tie} is in no column, so rows of two items could not be told apart; write a column with key: tie`,
		`27: column tie: no key pattern has the capture {tye}; write one of device_id, yyyy-mm, event_time, tie`}},
	{"optional capture not nullable", "    key: tie\n    type: string\n    nullable: true\n", "    key: tie\n    type: string\n", []string{
		`26: column tie: {tie} is optional in the key sk; write nullable: true`}},
	{"number from a pattern", "    key: tie\n    type: string", "    key: tie\n    type: bigint", []string{
		`28: column tie: a key pattern holds text; write string or timestamp, or read the value from an attribute`}},
	{"epoch from a pattern", "    attribute: takenAt\n", "    key: event_time\n", []string{
		`20: index by_site: takenAt is no key and no column of a text or number attribute; write an attribute that is, or add its column`,
		`33: column taken_at: a key pattern holds text; write encoding: iso8601, or read the time from an attribute`}},
	{"attribute of a key of another type", "    attribute: tank.level", "    attribute: pk", []string{
		`41: column level: the key pk is S, but a column of type decimal(7,3) comes from N; make them agree`,
		`43: column level: every item has its key; remove nullable`}},
	{"ttl without retention", "retention: 30d\n", "", []string{`15: contract: ttl without retention; write retention: 30d, how long the table keeps a row`}},
	{"retention without ttl", "ttl: expiresAt\n", "", []string{`15: contract: retention without ttl; write ttl: the attribute that holds the time to delete at, in epoch seconds`}},
	{"retention in hours", "retention: 30d", "retention: 720h", []string{`16: contract: retention is "720h"; write whole days, as in 30d`}},
	{"retention as a number", "retention: 30d", "retention: 30", []string{`16: contract: retention is "30"; write whole days, as in 30d`}},
	{"retention of parts of days", "retention: 30d", "retention: 1.5d", []string{`16: contract: retention is "1.5d"; write whole days, as in 30d`}},
	{"retention of nothing", "retention: 30d", "retention: 0d", []string{`16: contract: retention is "0d"; write whole days, as in 30d`}},
	{"ttl in a map", "ttl: expiresAt", "ttl: meta.expiresAt", []string{`15: contract: ttl meta.expiresAt is inside a map, where DynamoDB does not look; write a top-level attribute`}},
	{"ttl is a key", "ttl: expiresAt", "ttl: sk", []string{`15: contract: ttl sk is a key; write an attribute of its own`}},
	{"ttl in milliseconds", "ttl: expiresAt", "ttl: takenAt", []string{`30: column taken_at: takenAt is the TTL, a number of epoch seconds; write type: timestamp and encoding: epoch_seconds`}},
	{"index twice", "    sparse: true\n", "    sparse: true\n  - {name: by_site, partition: takenAt}\n", []string{`22: index by_site stands there twice; rename one`}},
	{"index without partition", "    partition: siteId\n", "", []string{`18: index by_site: no partition; write for example partition: job_site_id`}},
	{"index on an unknown attribute", "    partition: siteId\n", "    partition: side\n", []string{`19: index by_site: side is no key and no column of a text or number attribute; write an attribute that is, or add its column`}},
	{"index on a list", "    partition: siteId\n", "    partition: states\n", []string{
		`19: index by_site: states is no key and no column of a text or number attribute; write an attribute that is, or add its column`}},
	{"index of one attribute", "    sort: takenAt", "    sort: siteId", []string{`20: index by_site: partition and sort are both siteId; write another sort, or remove it`}},
	{"sparse index not said to be", "    sparse: true\n", "", []string{`18: index by_site: items without siteId are not in it; write sparse: true`}},
	{"flag in words", "    sparse: true\n", "    sparse: yes\n", []string{
		`18: index by_site: items without siteId are not in it; write sparse: true`,
		`21: index by_site: sparse is the value "yes"; write true or false`}},
	{"indexes as a mapping", "indexes:\n  - name: by_site\n    partition: siteId\n    sort: takenAt\n    sparse: true\n", "indexes:\n  name: by_site\n", []string{
		`18: contract: indexes is a mapping; write a list, each entry after a dash`}},
	{"column without name", "  - name: site\n    attribute: siteId", "  - attribute: siteId", []string{`35: column: no name; write for example name: battery_pct`}},
	{"column name in upper case", "name: level", "name: Level", []string{`39: column: name "Level" has upper case letters, which Athena folds; write level`}},
	{"column twice", "name: states", "name: level", []string{`45: column level stands there twice, first in line 39; remove one`}},
	{"columns that differ by case", "name: states", "name: LEVEL", []string{
		`45: column: name "LEVEL" has upper case letters, which Athena folds; write level`,
		`45: columns level and LEVEL differ only by case, which Athena folds; rename one`}},
	{"partition column in the file", "name: level", "name: dt", []string{`39: column dt is a partition column and stands in the path, never in the file; rename it, for example to reading_dt`}},
	{"hour in the file", "name: level", "name: hour", []string{`39: column hour is a partition column and stands in the path, never in the file; rename it, for example to reading_hour`}},
	{"system column", "name: level", "name: stream_seq", []string{`39: column stream_seq has the name of a column that the pipeline adds; rename it, for example to device_stream_seq`}},
	{"system column of another table", "name: level", "name: reason", []string{`39: column reason has the name of a column that the pipeline adds; rename it, for example to device_reason`}},
	{"attribute and key", "    key: tie\n", "    key: tie\n    attribute: tie\n", []string{`27: column tie: both attribute and key; write attribute if the item holds the value, key if a key pattern does`}},
	{"no source", "    attribute: tank.level\n", "", []string{`39: column level: nothing says where its value comes from; write attribute: NAME, or key: CAPTURE`}},
	{"empty step", "tank.level", "tank..level", []string{`40: column level: attribute "tank..level" has an empty step; write names joined by dots, as in location.lat`}},
	{"same attribute twice", "tank.level", "siteId", []string{`40: column level: attribute siteId is in column site already; remove one`}},
	{"no type", "    type: decimal(7,3)\n", "", []string{`39: column level: no type; write for example type: decimal(5,2)`}},
	{"bad type", "decimal(7,3)", "decimal(39,3)", []string{`41: column level: type "decimal(39,3)": precision 39 is not within 1 and 38; write decimal(precision,scale), as in decimal(5,2)`}},
	{"type cut off by a comma", "  - name: tie\n    key: tie\n    type: string\n    nullable: true\n", "  - {name: tie, key: tie, type: decimal(5,2), nullable: true}\n", []string{
		`26: column tie: "2)" is cut off from the value before it by a comma; write that value in quotes`,
		`26: column tie: type "decimal(5": "," is missing; write decimal(precision,scale), as in decimal(5,2)`}},
	{"timestamp without encoding", "    encoding: epoch_milliseconds\n", "", []string{`30: column taken_at: a timestamp without encoding; write encoding: iso8601, epoch_seconds or epoch_milliseconds`}},
	{"unknown encoding", "epoch_milliseconds", "epoch_millisecond", []string{`33: column taken_at: encoding cannot be "epoch_millisecond"; write epoch_milliseconds`}},
	{"encoding of a number", "    unit: m\n", "    encoding: iso8601\n", []string{`42: column level: encoding is for timestamps, the type is decimal(7,3); remove it`}},
	{"description too long", "Level of the tank", strings.Repeat("x", 252), []string{`44: column level: description has 252 bytes, Athena keeps 251; shorten it`}},
	{"no event time", "event_time: taken_at\n", "", []string{`1: contract: no event_time; write for example event_time: event_ts, the column that says when a reading was taken`}},
	{"event time is no column", "event_time: taken_at", "event_time: takenAt", []string{`54: contract: event_time names no column "takenAt"; write taken_at or expires_at`}},
	{"event time is no timestamp", "event_time: taken_at", "event_time: level", []string{`54: contract: event_time level is decimal(7,3); write a column of type timestamp`}},
	{"event time is nullable", "event_time: taken_at", "event_time: expires_at", []string{`54: contract: event_time expires_at is nullable, and a row without a time has no partition; remove nullable there`}},
	{"no layout", "layout:\n  partition_by: hour\n  first_partition: 2020-01-01\n  last_partition: 2030-12-31\n", "", []string{
		`1: contract: no layout; write layout with partition_by: day and first_partition: the first day with readings`}},
	{"partitions of weeks", "partition_by: hour", "partition_by: week", []string{`56: layout: partition_by cannot be "week"; write one of day, hour`}},
	{"no first partition", "  first_partition: 2020-01-01\n", "", []string{`56: layout: no first_partition; write for example first_partition: 2020-01-01`}},
	{"first partition is no day", "first_partition: 2020-01-01", "first_partition: 2020-02-30", []string{`57: layout: first_partition is "2020-02-30"; write a day since 1970, as in 2020-01-01`}},
	{"last before first", "last_partition: 2030-12-31", "last_partition: 2020-01-01", []string{`58: layout: last_partition 2020-01-01 is not after first_partition; write a later day, or remove it`}},
	{"name of a table of ours", "name: readings", "name: gaps", []string{`2: contract: name gaps is that of a table in which the pipeline tells of itself; write another name`}},
	{"name of another contract's view", "name: readings", "name: plant_latest", []string{`2: contract: name plant_latest is that of the latest versions of a contract plant; write another name`}},
	{"unknown on_remove", "on_modify: reject", "on_remove: ignore", []string{`59: contract: on_remove cannot be "ignore"; write one of tombstones, reject`}},
	{"unknown on_expire", "on_modify: reject", "on_expire: rows", []string{`59: contract: on_expire cannot be "rows"; write one of ignore, tombstones`}},
	{"on_expire without ttl", "ttl: expiresAt\nretention: 30d\n", "on_expire: tombstones\n", []string{`15: contract: on_expire without ttl says nothing; remove it, or write ttl and retention`}},
	{"unknown on_modify", "on_modify: reject", "on_modify: refuse", []string{`59: contract: on_modify cannot be "refuse"; write one of changes, row, reject`}},
}

func TestParseSaysWhereWhatIsWrongAndWhatToWrite(t *testing.T) {
	good := goodText(t)
	for _, tt := range badContracts {
		t.Run(tt.name, func(t *testing.T) {
			if strings.Count(good, tt.old) != 1 {
				t.Fatalf("%q stands %d times in the good contract", tt.old, strings.Count(good, tt.old))
			}
			_, err := Parse("x.yaml", []byte(strings.Replace(good, tt.old, tt.new, 1)))
			var parse *ParseError
			if !errors.As(err, &parse) {
				t.Fatalf("error is %v, want a *ParseError", err)
			}
			var got []string
			for _, p := range parse.Problems {
				got = append(got, strings.TrimPrefix(p.String(), "x.yaml:"))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("problems are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

func TestParseOfNoContractSaysSo(t *testing.T) {
	for text, want := range map[string]string{
		"":            "x.yaml:1: the file is empty; write a contract, starting with format: 1",
		"# a comment": "x.yaml:1: the file is empty; write a contract, starting with format: 1",
		"hello":       `x.yaml:1: contract is the value "hello"; write a mapping with the keys format, name, table, description, mode, keys, ttl, retention, indexes, columns, event_time, layout, on_modify, on_remove, on_expire, positions`,
		"[1]":         `x.yaml:1: contract is a list; write a mapping with the keys format, name, table, description, mode, keys, ttl, retention, indexes, columns, event_time, layout, on_modify, on_remove, on_expire, positions`,
	} {
		if _, err := Parse("x.yaml", []byte(text)); err == nil || err.Error() != want {
			t.Errorf("of %q: %v, want %s", text, err, want)
		}
	}
}

func TestVersionsAlwaysHavePositions(t *testing.T) {
	text := strings.Replace(goodText(t), "mode: append", "mode: versions", 1)
	text = strings.Replace(text, "on_modify: reject\n", "", 1)
	c, err := Parse("x.yaml", []byte(strings.Replace(text, "positions: true\n", "", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if !c.Positions {
		t.Error("positions is false")
	}
	_, err = Parse("x.yaml", []byte(strings.Replace(text, "positions: true", "positions: false", 1)))
	want := "x.yaml:59: contract: mode versions always has positions, for they order the versions; remove positions"
	if err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
}

func TestWhatRemovalsBecomeIsTheContractsToSay(t *testing.T) {
	c, err := Parse("x.yaml", []byte(strings.Replace(goodText(t), "on_modify: reject", "on_remove: reject\non_expire: tombstones", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if c.OnRemove != RemoveReject || c.OnExpire != ExpireTombstones {
		t.Errorf("on_remove is %s, on_expire %s", c.OnRemove, c.OnExpire)
	}
	text := strings.NewReplacer("mode: append", "mode: versions", "on_modify: reject", "on_remove: reject").Replace(goodText(t))
	_, err = Parse("x.yaml", []byte(text))
	want := "x.yaml:59: contract: mode versions needs its deletions, or the latest version of a deleted item stays; write on_remove: tombstones, or remove it"
	if err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(goodText(f)))
	for _, name := range Names() {
		c, err := Load(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(c.Text())
	}
	for _, tt := range badContracts {
		f.Add([]byte(strings.Replace(goodText(f), tt.old, tt.new, 1)))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse("x.yaml", text)
		var parse *ParseError
		switch {
		case err == nil:
			for _, table := range c.Tables() {
				if _, ok := table.Column(table.TimeColumn); !ok {
					t.Errorf("table %s has no column %s", table.Name, table.TimeColumn)
				}
			}
		case !errors.As(err, &parse) || len(parse.Problems) == 0:
			t.Errorf("error is %v, want a *ParseError", err)
		default:
			for _, p := range parse.Problems {
				if p.Line < 1 || p.Line > strings.Count(string(text), "\n")+2 {
					t.Errorf("problem outside the file: %v", p)
				}
			}
		}
	})
}
