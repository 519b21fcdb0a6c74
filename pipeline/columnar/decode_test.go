package columnar

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
	"telemetrylake/schemas"
)

var created = time.Date(2026, 11, 30, 16, 12, 5, 0, time.UTC)

// reading is a record of the types contract that fits it.
func reading(seq string, set item) pipeline.Record {
	r := pipeline.Record{
		Shard: "shard-1", Seq: pipeline.SequenceNumber(seq), Op: types.OperationTypeInsert, Created: created,
		Keys: item{"pk": S("DEVICE#dev#1#2026-11"), "sk": S("TS#2026-11-30T16:12:02.123Z#7")},
		New:  item{"nested": M(item{"needed": S("x")})},
	}
	for name, v := range r.Keys {
		r.New[name] = v
	}
	for name, v := range set {
		r.New[name] = v
	}
	return r
}

func batch(records ...pipeline.Record) pipeline.Batch {
	return pipeline.Batch{Shard: records[0].Shard, Records: records}
}

// text is an item as DynamoDB JSON.
func text(t *testing.T, it item) string {
	t.Helper()
	b, err := appendItemJSON(nil, it)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// onlyRow is the one row of a window, read by both readers, with its table.
func onlyRow(t *testing.T, c *schemas.Contract, r pipeline.Record) (string, map[string]any, pipeline.Counts) {
	t.Helper()
	mem := checked(t)
	rows := decode(t, mem, c, batch(r))
	if len(rows.Groups) != 1 || rows.Groups[0].Rows.NumRows() != 1 {
		t.Fatalf("got %d groups of %v", len(rows.Groups), rows.Counts)
	}
	g := rows.Groups[0]
	first, second := arrowRows(g.Rows), parquetRows(t, encode(t, mem, g.Rows))
	if !reflect.DeepEqual(first, second) {
		t.Errorf("parquet-go reads\n%v\nbut the rows are\n%v", second, first)
	}
	return g.Table, second[0], rows.Counts[r.Shard]
}

func TestDecodeIsExactOrQuarantines(t *testing.T) {
	text, err := os.ReadFile("testdata/records.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name   string
		Set    map[string]json.RawMessage
		PK, SK string
		Row    map[string]any
		Reason string
		Detail string
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	c := typesContract(t)
	for _, tc := range cases {
		t.Run(tc.Name, func(t *testing.T) {
			set := item{}
			for name, v := range tc.Set {
				set[name] = parseValue(t, v)
			}
			r := reading("1", set)
			if tc.PK != "" {
				r.Keys["pk"], r.New["pk"] = S(tc.PK), S(tc.PK)
			}
			if tc.SK != "" {
				r.Keys["sk"], r.New["sk"] = S(tc.SK), S(tc.SK)
			}
			table, row, counts := onlyRow(t, c, r)
			if tc.Reason == "" {
				if table != "types" || counts != (pipeline.Counts{Rows: 1}) {
					t.Fatalf("%s: a row of %s: %v, counted %+v", tc.Name, table, row, counts)
				}
				for name, want := range tc.Row {
					if got, ok := row[name]; !ok || !reflect.DeepEqual(got, want) {
						t.Errorf("%s is %#v, want %#v", name, got, want)
					}
				}
				return
			}
			if table != "types_quarantine" || counts != (pipeline.Counts{Quarantined: 1}) {
				t.Fatalf("a row of %s: %v, counted %+v", table, row, counts)
			}
			if row["reason"] != tc.Reason {
				t.Errorf("reason is %v (%v), want %s", row["reason"], row["detail"], tc.Reason)
			}
			if tc.Detail != "" && row["detail"] != tc.Detail {
				t.Errorf("detail is %v, want %s", row["detail"], tc.Detail)
			}
			back := parseItem(t, []byte(row["item"].(string)))
			want, err := appendItemJSON(nil, r.New)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := appendItemJSON(nil, back); err != nil || string(got) != string(want) {
				t.Errorf("item in quarantine is %s (%v), want %s", got, err, want)
			}
		})
	}
}

func TestQuarantineHoldsTheWholeRecord(t *testing.T) {
	c := typesContract(t)
	r := reading("21000000000000000000001", item{"dec5": N("1.234"), "a": S("é\n")})
	r.Op = types.OperationTypeModify
	table, row, counts := onlyRow(t, c, r)
	want := map[string]any{
		"item_keys":         `{"pk":{"S":"DEVICE#dev#1#2026-11"},"sk":{"S":"TS#2026-11-30T16:12:02.123Z#7"}}`,
		"item":              `{"a":{"S":"é\n"},"dec5":{"N":"1.234"},"nested":{"M":{"needed":{"S":"x"}}},"pk":{"S":"DEVICE#dev#1#2026-11"},"sk":{"S":"TS#2026-11-30T16:12:02.123Z#7"}}`,
		"event_name":        "MODIFY",
		"reason":            ReasonScale,
		"detail":            "column dec5: 1.234 has more than 2 digits behind the point",
		"contract_hash":     c.Hash(),
		"stream_created_at": "2026-11-30T16:12:05Z",
		"stream_shard":      "shard-1",
		"stream_seq":        "21000000000000000000001",
	}
	if table != "types_quarantine" || counts != (pipeline.Counts{Quarantined: 1}) || !reflect.DeepEqual(row, want) {
		t.Errorf("row of %s, counted %+v:\n%v\nwant\n%v", table, counts, row, want)
	}
}

func TestEveryOperationHasItsOutcome(t *testing.T) {
	onModify := func(s string) []string { return []string{"on_modify: changes", "on_modify: " + s} }
	expire := []string{"on_modify: changes", "on_expire: tombstones"}
	versions := []string{"mode: append", "mode: versions", "on_modify: changes\n", "", "positions: false\n", ""}
	for _, tc := range []struct {
		name     string
		contract []string
		op       types.OperationType
		expired  bool
		table    string // "" for no row
		counts   pipeline.Counts
	}{
		{"insert", nil, types.OperationTypeInsert, false, "types", pipeline.Counts{Rows: 1}},
		{"modify", nil, types.OperationTypeModify, false, "types_changes", pipeline.Counts{Changes: 1}},
		{"modify as row", onModify("row"), types.OperationTypeModify, false, "types", pipeline.Counts{Rows: 1}},
		{"modify rejected", onModify("reject"), types.OperationTypeModify, false, "", pipeline.Counts{Ignored: 1}},
		{"remove", nil, types.OperationTypeRemove, false, "types_tombstones", pipeline.Counts{Tombstones: 1}},
		{"remove by TTL", nil, types.OperationTypeRemove, true, "", pipeline.Counts{}},
		{"remove rejected", []string{"on_modify: changes", "on_remove: reject"}, types.OperationTypeRemove, false, "", pipeline.Counts{Ignored: 1}},
		{"remove by TTL kept", expire, types.OperationTypeRemove, true, "types_tombstones", pipeline.Counts{Tombstones: 1}},
		{"remove by TTL where a user's is rejected", []string{"on_modify: changes", "on_remove: reject"}, types.OperationTypeRemove, true, "", pipeline.Counts{}},
		{"remove of a version", versions, types.OperationTypeRemove, false, "types_tombstones", pipeline.Counts{Tombstones: 1}},
		{"insert of a version", versions, types.OperationTypeInsert, false, "types", pipeline.Counts{Rows: 1}},
		{"modify of a version", versions, types.OperationTypeModify, false, "types", pipeline.Counts{Rows: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := typesContract(t, tc.contract...)
			r := reading("5", nil)
			r.Op, r.Expired = tc.op, tc.expired
			if r.Op == types.OperationTypeRemove {
				r.New = nil
			}
			if tc.table == "" {
				rows := decode(t, checked(t), c, batch(r))
				if len(rows.Groups) != 0 || rows.Counts["shard-1"] != tc.counts {
					t.Errorf("%d groups, counted %+v", len(rows.Groups), rows.Counts)
				}
				return
			}
			table, row, counts := onlyRow(t, c, r)
			if table != tc.table || counts != tc.counts {
				t.Errorf("row of %s: %v, counted %+v", table, row, counts)
			}
			if keys, ok := row["item_keys"]; ok != (table != "types_changes" && (table != "types" || c.Mode == schemas.Versions)) || ok && keys != text(t, r.Keys) {
				t.Errorf("item_keys is %v", keys)
			}
			if seq, ok := row["stream_seq"]; ok != (table != "types" || c.Mode == schemas.Versions) || ok && seq != "5" {
				t.Errorf("stream_seq is %v", seq)
			}
		})
	}
}

func TestPositionsAreColumnsWhenTheContractSaysSo(t *testing.T) {
	c := typesContract(t, "positions: false", "positions: true")
	_, row, _ := onlyRow(t, c, reading("77", nil))
	if row["stream_shard"] != "shard-1" || row["stream_seq"] != "77" {
		t.Errorf("row is %v", row)
	}
}

func TestTombstonesLandWhateverTheKey(t *testing.T) {
	c := typesContract(t)
	for _, tc := range []struct {
		pk, sk          string
		device, takenAt any
	}{
		{"DEVICE#a", "TS#2026-11-30T16:12:02Z", "a", "2026-11-30T16:12:02Z"},
		{"SITE#1", "TS#2026-11-30T16:12:02Z", nil, "2026-11-30T16:12:02Z"},
		{"DEVICE#a", "TS#2026-99-30T16:12:02Z", "a", nil},
		{"DEVICE#a", "TS#1999-01-01T00:00:00Z", "a", "1999-01-01T00:00:00Z"},
		{"SITE#1", "META", nil, nil},
	} {
		r := reading("9", nil)
		r.Op, r.New = types.OperationTypeRemove, nil
		r.Keys = item{"pk": S(tc.pk), "sk": S(tc.sk)}
		table, row, counts := onlyRow(t, c, r)
		if table != "types_tombstones" || counts != (pipeline.Counts{Tombstones: 1}) {
			t.Errorf("%s %s: row of %s: %v, counted %+v", tc.pk, tc.sk, table, row, counts)
		}
		keys := fmt.Sprintf(`{"pk":{"S":"%s"},"sk":{"S":"%s"}}`, tc.pk, tc.sk)
		if row["device_id"] != tc.device || row["taken_at"] != tc.takenAt || row["item_keys"] != keys || row["delete_cause"] != "user" {
			t.Errorf("%s %s: row is %v", tc.pk, tc.sk, row)
		}
	}
}

// Only an identity says that TTL removed an item, and nothing else is taken for its word: not that
// the item had expired, as LocalStack leaves it, nor an identity of somebody else.
func TestATombstoneSaysWhoDeleted(t *testing.T) {
	c := typesContract(t, "on_modify: changes", "on_expire: tombstones")
	past, future := N(fmt.Sprint(created.Unix()-1)), N(fmt.Sprint(created.Unix()+1))
	for _, tc := range []struct {
		name string
		edit func(*pipeline.Record)
		want string
	}{
		{"the service's identity", func(r *pipeline.Record) { r.Expired = true }, "ttl"},
		{"the service's identity, on an item that had not expired", func(r *pipeline.Record) { r.Expired, r.Old = true, item{"expiresAt": future} }, "ttl"},
		{"no identity", func(*pipeline.Record) {}, "user"},
		{"no identity, not expired", func(r *pipeline.Record) { r.Old = item{"expiresAt": future} }, "user"},
		{"no identity, never expires", func(r *pipeline.Record) { r.Old = item{} }, "user"},
		{"no identity, a text for a time", func(r *pipeline.Record) { r.Old = item{"expiresAt": S("1")} }, "user"},
		{"no identity, expired", func(r *pipeline.Record) { r.Old = item{"expiresAt": past} }, "unknown"},
		{"no identity, expires in this second", func(r *pipeline.Record) { r.Old = item{"expiresAt": N(fmt.Sprint(created.Unix()))} }, "unknown"},
		{"another identity", func(r *pipeline.Record) { r.Foreign = true }, "unknown"},
		{"no stream record", func(r *pipeline.Record) { r.Shard = "" }, "unknown"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := reading("9", nil)
			r.Op, r.New = types.OperationTypeRemove, nil
			tc.edit(&r)
			if table, row, _ := onlyRow(t, c, r); table != "types_tombstones" || row["delete_cause"] != tc.want {
				t.Errorf("row of %s: %v", table, row)
			}
		})
	}
}

// An append-only table whose contract keeps readings past their TTL is not touched by it: of the
// removals that the service makes, nothing is in the lake.
func TestExpiryLeavesNothingInTheLakeUnlessTheContractSaysSo(t *testing.T) {
	for _, name := range []string{"device_telemetry", "sensor_readings", "lecturas", "dispositivos"} {
		c := loadContract(t, name)
		keys := item{}
		for _, a := range c.Keys.Attributes() {
			keys[a] = S("a")
		}
		r := pipeline.Record{Shard: "s", Seq: "1", Op: types.OperationTypeRemove, Created: created, Keys: keys, Expired: true}
		rows := decode(t, checked(t), c, batch(r))
		if len(rows.Groups) != 0 || rows.Counts["s"] != (pipeline.Counts{}) {
			t.Errorf("%s: %d groups, counted %+v", name, len(rows.Groups), rows.Counts)
		}
	}
}

func TestRowsLieInThePartitionOfTheirTime(t *testing.T) {
	c := typesContract(t, "partition_by: day", "partition_by: hour")
	late := reading("1", nil)
	late.Keys["sk"] = S("TS#2026-11-01T23:59:59.999-01:00")
	bad := reading("2", item{"big": S("x")})
	removed := reading("3", nil)
	removed.Op, removed.New = types.OperationTypeRemove, nil
	rows := decode(t, checked(t), c, batch(late, bad, removed))
	var got []string
	for _, g := range rows.Groups {
		got = append(got, g.Table+"/"+g.Partition)
	}
	want := []string{"types/dt=2026-11-02/hour=00", "types_quarantine/dt=2026-11-30/hour=16", "types_tombstones/dt=2026-11-30/hour=16"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("groups are %v, want %v", got, want)
	}
}

func TestRecordsThatCannotBePlacedStopTheWindow(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*pipeline.Record)
		want string
	}{
		{"unknown operation", func(r *pipeline.Record) { r.Op = "UPSERT" }, "operation \"UPSERT\" is unknown"},
		{"no image", func(r *pipeline.Record) { r.New = nil }, "view type must be NEW_IMAGE"},
		{"quarantine without creation time", func(r *pipeline.Record) { r.Created, r.New["big"] = time.Time{}, S("x") }, "no creation time"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := reading("4711", nil)
			tc.edit(&r)
			rows, err := NewDecoder(checked(t)).Decode(typesContract(t), []pipeline.Batch{batch(reading("1", nil), r)})
			if rows != nil || err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "4711") {
				t.Errorf("got %v, %v", rows, err)
			}
		})
	}
}

func TestRowWithoutCreationTimeHasNone(t *testing.T) {
	r := reading("", nil)
	r.Created, r.Shard = time.Time{}, ""
	_, row, _ := onlyRow(t, typesContract(t, "positions: false", "positions: true"), r)
	for _, name := range []string{"stream_created_at", "stream_shard", "stream_seq"} {
		if row[name] != nil {
			t.Errorf("%s is %v", name, row[name])
		}
	}
}

func TestOrderNamesTheKeyThenTheTime(t *testing.T) {
	telemetry, registry := loadContract(t, "device_telemetry"), loadContract(t, "dispositivos")
	for _, tc := range []struct {
		c    *schemas.Contract
		role schemas.Role
		want []string
	}{
		{telemetry, schemas.Readings, []string{"device_id", "event_ts"}},
		{telemetry, schemas.Changes, []string{"device_id", "event_ts"}},
		{telemetry, schemas.Tombstones, []string{"item_keys", "stream_created_at"}},
		{telemetry, schemas.Quarantine, []string{"item_keys", "stream_created_at"}},
		{registry, schemas.Readings, []string{"casa_id", "actualizado_en"}},
		{typesContract(t), schemas.Readings, []string{"device_id", "month", "taken_at"}},
	} {
		if got := Order(tc.c, tc.c.LakeTable(tc.role)); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("order of %s of %s is %v, want %v", tc.role, tc.c.Name, got, tc.want)
		}
	}
}

func TestRowsAreInTotalOrder(t *testing.T) {
	at := func(shard, seq, device, sk string) pipeline.Record {
		r := reading(seq, nil)
		r.Shard = pipeline.ShardID(shard)
		r.Keys = item{"pk": S("DEVICE#" + device), "sk": S(sk)}
		return r
	}
	c := typesContract(t, "positions: false", "positions: true")
	rows := decode(t, checked(t), c,
		batch(at("s2", "100", "b", "TS#2026-11-30T10:00:00Z"), at("s2", "99", "b", "TS#2026-11-30T11:00:00+01:00")),
		batch(at("s1", "5", "b", "TS#2026-11-30T10:00:00.000Z"), at("s1", "6", "a", "TS#2026-11-30T12:00:00Z")),
		batch(at("s2", "101", "a", "TS#2026-11-29T12:00:00Z")),
		batch(at("s2", "102", "b", "TS#2026-11-30T09:00:00Z"), at("s2", "1000", "a#2026-11", "TS#2026-11-30T01:00:00Z")),
	)
	var got []string
	for _, g := range rows.Groups {
		for _, r := range arrowRows(g.Rows) {
			got = append(got, fmt.Sprint(g.Partition[3:], " ", r["device_id"], " ", r["month"], " ", r["taken_at"].(string)[11:], " ", r["stream_shard"], " ", r["stream_seq"]))
		}
	}
	want := []string{
		"2026-11-29 a <nil> 12:00:00Z s2 101",
		"2026-11-30 a <nil> 12:00:00Z s1 6",
		"2026-11-30 a 2026-11 01:00:00Z s2 1000",
		"2026-11-30 b <nil> 09:00:00Z s2 102",
		"2026-11-30 b <nil> 10:00:00Z s1 5",
		"2026-11-30 b <nil> 10:00:00Z s2 99",
		"2026-11-30 b <nil> 10:00:00Z s2 100",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("rows are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// randomRecords are n records of every outcome, in some shards.
func randomRecords(rng *rand.Rand, n int) []pipeline.Record {
	records := make([]pipeline.Record, n)
	for i := range records {
		r := reading(fmt.Sprint(100+i), nil)
		r.Shard = pipeline.ShardID(fmt.Sprint("shard-", rng.IntN(3)))
		r.Keys["pk"] = S(fmt.Sprint("DEVICE#", rng.IntN(4)))
		r.Keys["sk"] = S(time.Date(2026, 11, 29+rng.IntN(3), rng.IntN(2), 0, 0, 0, time.UTC).Format("TS#2006-01-02T15:04:05Z"))
		r.Created = created.Add(time.Duration(rng.IntN(5)) * time.Second)
		payload := item{}
		for range rng.IntN(5) {
			payload[fmt.Sprint("k", rng.IntN(9))] = N(fmt.Sprint(rng.IntN(100)))
		}
		r.New["payload"] = M(payload)
		if rng.IntN(3) == 0 {
			r.New["tags"] = &types.AttributeValueMemberSS{Value: []string{"x", "a", fmt.Sprint(rng.IntN(9))}}
		}
		switch rng.IntN(8) {
		case 0:
			r.New["dec5"] = N("0.001")
		case 1:
			r.Op = types.OperationTypeModify
		case 2:
			r.Op, r.New = types.OperationTypeRemove, nil
			r.Expired = rng.IntN(3) == 0
		}
		records[i] = r
	}
	return records
}

// batched cuts the records of each shard, in order, into batches of random length, and the
// batches of the shards into each other.
func batched(rng *rand.Rand, records []pipeline.Record) []pipeline.Batch {
	byShard := map[pipeline.ShardID][]pipeline.Record{}
	var shards []pipeline.ShardID
	for _, r := range records {
		if byShard[r.Shard] == nil {
			shards = append(shards, r.Shard)
		}
		byShard[r.Shard] = append(byShard[r.Shard], r)
	}
	var batches []pipeline.Batch
	for len(shards) > 0 {
		i := rng.IntN(len(shards))
		s := shards[i]
		n := min(len(byShard[s]), 1+rng.IntN(20))
		batches = append(batches, pipeline.Batch{Shard: s, Records: byShard[s][:n]})
		if byShard[s] = byShard[s][n:]; len(byShard[s]) == 0 {
			shards = append(shards[:i], shards[i+1:]...)
		}
	}
	return batches
}

func TestBatchingChangesNothing(t *testing.T) {
	c := typesContract(t)
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 1))
		records := randomRecords(rng, 1+rng.IntN(150))
		mem := checked(t)
		want := decode(t, mem, c, batched(rng, records)...)
		bytes := encodeAll(t, mem, want)
		for range 2 {
			got := decode(t, mem, c, batched(rng, records)...)
			if !reflect.DeepEqual(got.Counts, want.Counts) {
				t.Fatalf("seed %d: counts are %v, then %v", seed, want.Counts, got.Counts)
			}
			if string(encodeAll(t, mem, got)) != string(bytes) {
				t.Fatalf("seed %d: other batches, other bytes", seed)
			}
		}
	}
}

func TestEveryRecordIsCountedOnce(t *testing.T) {
	c := typesContract(t)
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 2))
		records := randomRecords(rng, 200)
		expired := 0
		for _, r := range records {
			if r.Expired {
				expired++
			}
		}
		rows := decode(t, checked(t), c, batched(rng, records)...)
		var sum pipeline.Counts
		for _, n := range rows.Counts {
			sum.Add(n)
		}
		inTables := map[string]int{}
		for _, g := range rows.Groups {
			inTables[g.Table] += int(g.Rows.NumRows())
		}
		want := map[string]int{"types": sum.Rows, "types_changes": sum.Changes, "types_tombstones": sum.Tombstones, "types_quarantine": sum.Quarantined}
		if !reflect.DeepEqual(inTables, want) {
			t.Errorf("seed %d: rows %v, counts %v", seed, inTables, want)
		}
		if total := sum.Rows + sum.Changes + sum.Tombstones + sum.Quarantined + sum.Ignored; total != len(records)-expired {
			t.Errorf("seed %d: %d records counted of %d, %d of them expired", seed, total, len(records), expired)
		}
	}
}
