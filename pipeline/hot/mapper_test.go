package hot

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/schemas"
)

// one reads the only item of a file.
func one(t *testing.T, m *Mapper, name, content string) Item {
	t.Helper()
	r := reader(t, m, name, content)
	item, _, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the only item: %v", err)
	}
	return item
}

func num(s string) types.AttributeValue { return &types.AttributeValueMemberN{Value: s} }

func list(values ...types.AttributeValue) types.AttributeValue {
	return &types.AttributeValueMemberL{Value: values}
}

func wantItem(t *testing.T, got, want Item) {
	t.Helper()
	for name := range want {
		if !reflect.DeepEqual(got[name], want[name]) {
			t.Errorf("%s is %#v, want %#v", name, got[name], want[name])
		}
	}
	for name := range got {
		if want[name] == nil {
			t.Errorf("%s was not to be there: %#v", name, got[name])
		}
	}
}

// expiry is 30 days after the load began.
var expiry = number(start.AddDate(0, 0, 30).Unix())

func TestRoomClimateRowsAreTheReadingsOfTheDemo(t *testing.T) {
	c := contract(t, "sensor_readings")
	readings, err := NewReadings(c)
	if err != nil {
		t.Fatal(err)
	}
	want, err := readings.Item(Reading{DeviceID: "1", TakenAt: time.UnixMilli(1458031648545), Celsius: "20.480", Humidity: "42.332"})
	if err != nil {
		t.Fatal(err)
	}
	const content = "location,entry_id,taken_at_ms,node_id,celsius,humidity\nA,7,1458031648545,1,20.480,42.332\n"
	o := MapperOptions{Mapping: RoomClimateMapping(), Expires: ExpiresFromEvent}
	wantItem(t, one(t, mapper(t, c, o), "f.csv", content), want)
	want["expiresAt"] = expiry
	o.Expires = ExpiresFromLoad
	m := mapper(t, c, o)
	wantItem(t, one(t, m, "f.csv", content), want)
	if got := m.LeftOut(); !slices.Equal(got, []string{"entry_id", "location"}) {
		t.Errorf("left out %v", got)
	}
}

func TestEventTimesAreReadAsTheContractCountsThem(t *testing.T) {
	sensors, devices := contract(t, "sensor_readings"), contract(t, "device_telemetry")
	const ms = "TS#2016-03-15T08:47:28.545Z"
	for value, want := range map[string]string{
		"1458031648545":                    ms,
		"1458031648545.0":                  ms,
		"1.458031648545E12":                ms,
		"2016-03-15T08:47:28.545Z":         ms,
		"2016-03-15 09:47:28.545000+01:00": ms,
		"2016-03-15T08:47:28Z":             "TS#2016-03-15T08:47:28.000Z",
		"1458031648":                       "TS#1970-01-17T21:00:31.648Z", // the contract counts milliseconds
		"-1":                               "TS#1969-12-31T23:59:59.999Z",
		"2016-03-15T08:47:28.5451Z":        "",
		"1458031648545.5":                  "",
		"2016-03-15T08:47:28.545":          "",
		"9999999999999999":                 "",
		"1E125":                            "",
		"2016-02-30T00:00:00Z":             "",
		"yesterday":                        "",
	} {
		r := reader(t, mapper(t, sensors, nodeMapping()), "f.csv", nodeHeader+"1,"+value+",20,40\n")
		item, _, err := r.Next()
		if (err == nil) != (want != "") {
			t.Errorf("%s: %v", value, err)
			continue
		}
		if sk, _ := plainText(item["sk"]); sk != want {
			t.Errorf("%s is %s, want %s", value, sk, want)
		}
		if line, ok := errors.AsType[*LineError](err); err != nil && (!ok || line.Line != 2) {
			t.Errorf("%s: error %v has no line", value, err)
		}
	}
	// ISO 8601 says nothing about numbers: seconds and milliseconds are told by their size.
	for value, want := range map[string]string{
		"1458031648": "2016-03-15T08:47:28.000Z", "1458031648.545": "2016-03-15T08:47:28.545Z", "1458031648545": "2016-03-15T08:47:28.545Z",
	} {
		wantItem(t, one(t, mapper(t, devices, MapperOptions{}), "f.csv", "device_id,event_ts\nd,"+value+"\n"),
			Item{"device_id": text("d"), "event_ts": text(want), "expires_at": expiry})
	}
}

func TestCSVFieldsGetTheTypesOfTheContract(t *testing.T) {
	m := mapper(t, contract(t, "device_telemetry"), MapperOptions{})
	got := one(t, m, "f.csv", "device_id,event_ts,sku,battery_pct,charging,uptime_s,signal.rssi_dbm,snr_db,payload.temperature_c,tags,firmware,colour\n"+
		`007,2026-03-02T08:00:00Z,0012,80.50,true,9007199254740993,-90,7.0,21.500000,"[""a"",1]",,red`+"\n")
	wantItem(t, got, Item{
		"device_id": text("007"), "event_ts": text("2026-03-02T08:00:00.000Z"), "sku": text("0012"), "battery_pct": num("80.50"),
		"charging": &types.AttributeValueMemberBOOL{Value: true}, "uptime_s": num("9007199254740993"),
		"signal":  object(Item{"rssi_dbm": num("-90"), "snr_db": num("7.0")}),
		"payload": object(Item{"temperature_c": num("21.500000")}), "tags": list(text("a"), text("1")), "expires_at": expiry,
	})
	if got := m.LeftOut(); !slices.Equal(got, []string{"colour"}) {
		t.Errorf("left out %v", got)
	}
}

func TestJSONKeepsItsTypesAndTheTextOfNumbers(t *testing.T) {
	m := mapper(t, contract(t, "device_telemetry"), MapperOptions{})
	got := one(t, m, "f.jsonl", "\n"+`{"device_id":7,"event_ts":"2026-03-02T09:00:00+01:00","battery_pct":"80.50","sku":12,"model":null,`+
		`"signal":{"rssi_dbm":-90,"odd":[1.10,{"a":null}]},"payload":{"t":1.50},"extra":1556893286484340854.10,"on":true,"s.t":"é\u00e9"}`)
	null := &types.AttributeValueMemberNULL{Value: true}
	wantItem(t, got, Item{
		"device_id": text("7"), "event_ts": text("2026-03-02T08:00:00.000Z"), "battery_pct": num("80.50"), "sku": text("12"), "model": null,
		"signal":  object(Item{"rssi_dbm": num("-90"), "odd": list(num("1.10"), object(Item{"a": null}))}),
		"payload": object(Item{"t": num("1.50")}), "extra": num("1556893286484340854.10"), "on": &types.AttributeValueMemberBOOL{Value: true},
		"s.t": text("éé"), "expires_at": expiry,
	})
}

func TestJSONMembersCanBeMapped(t *testing.T) {
	o := MapperOptions{Mapping: Mapping{Columns: map[string]string{"device_id": "meta.node", "taken_at": "at", "celsius": "t"}}}
	m := mapper(t, contract(t, "sensor_readings"), o)
	got := one(t, m, "f.jsonl", `{"meta":{"node":"1"},"at":1458031648545,"t":20.480,"humidity":40,"celsius":99,"note":"x"}`)
	wantItem(t, got, Item{
		"pk": text("DEVICE#1#2016-03"), "sk": text("TS#2016-03-15T08:47:28.545Z"), "takenAt": num("1458031648545"),
		"celsius": num("20.480"), "humidity": num("40"), "expiresAt": expiry,
	})
	if got := m.LeftOut(); !slices.Equal(got, []string{"celsius", "meta", "note"}) {
		t.Errorf("left out %v", got)
	}
}

func TestExportedItemsStayAsTheyAre(t *testing.T) {
	const line = `{"Item":{"pk":{"S":"DEVICE#1"},"sk":{"S":"TS#2016-03-15T08:47:28.545Z"},"celsius":{"N":"20.480"},"b":{"B":"AQI="},"on":{"BOOL":false},` +
		`"no":{"NULL":true},"l":{"L":[{"N":"1"},{"M":{"S":{"S":"x"}}}]},"ss":{"SS":["a","b"]},"ns":{"NS":["1","2.0"]},"bs":{"BS":["AQ=="]},"expiresAt":{"N":"5"}}}`
	want := Item{
		"pk": text("DEVICE#1"), "sk": text("TS#2016-03-15T08:47:28.545Z"), "celsius": num("20.480"),
		"b": &types.AttributeValueMemberB{Value: []byte{1, 2}}, "on": &types.AttributeValueMemberBOOL{}, "no": &types.AttributeValueMemberNULL{Value: true},
		"l": list(num("1"), object(Item{"S": text("x")})), "ss": &types.AttributeValueMemberSS{Value: []string{"a", "b"}},
		"ns": &types.AttributeValueMemberNS{Value: []string{"1", "2.0"}}, "bs": &types.AttributeValueMemberBS{Value: [][]byte{{1}}}, "expiresAt": num("5"),
	}
	c := contract(t, "sensor_readings")
	wantItem(t, one(t, mapper(t, c, MapperOptions{Expires: ExpiresFromEvent}), "export.json", line), want)
	want["expiresAt"] = expiry
	wantItem(t, one(t, mapper(t, c, MapperOptions{}), "export.json", line), want)
	// Without an expiry in the file it counts from the event, here told by the sort key alone.
	bare := `{"Item":{"pk":{"S":"DEVICE#1"},"sk":{"S":"TS#2016-03-15T08:47:28.545Z"}}}`
	got := one(t, mapper(t, c, MapperOptions{Expires: ExpiresFromEvent}), "export.json", bare)
	if n := numberOf(t, got, "expiresAt"); n != fmt.Sprint(1458031648+30*24*3600) {
		t.Errorf("expires at %s", n)
	}
}

func TestKeysOfTheFileAreTakenAsTheyAre(t *testing.T) {
	m := mapper(t, contract(t, "sensor_readings"), MapperOptions{})
	got := one(t, m, "f.csv", "pk,sk,celsius\nDEVICE#1,TS#2016-03-15T08:47:28.545Z#b,20\n")
	wantItem(t, got, Item{
		"pk": text("DEVICE#1"), "sk": text("TS#2016-03-15T08:47:28.545Z#b"), "takenAt": num("1458031648545"), "celsius": num("20"), "expiresAt": expiry,
	})
	r := reader(t, mapper(t, contract(t, "lecturas"), MapperOptions{}), "f.csv", "dispositivoId,ts,valor\nd,2016-03-15T08:47:28Z,1\n,2016-03-15T08:47:28Z,1\n")
	if item, _, err := r.Next(); err != nil || item["dispositivoId"].(*types.AttributeValueMemberS).Value != "d" {
		t.Errorf("%v, %v", item, err)
	}
	if _, _, err := r.Next(); err == nil || !strings.Contains(err.Error(), "no value for dispositivoId") {
		t.Errorf("error is %v", err)
	}
}

func TestAKeyCanBeTheEventTime(t *testing.T) {
	const (
		device    = "{attribute: truck, type: S}"
		truck     = "  - {name: truck, key: truck, type: string}\n"
		stopped   = "  - {name: stopped_at, type: timestamp, "
		formatted = "2016-03-15T08:47:28.000Z"
	)
	// The event time as the sort key, and as the partition key.
	sorted := func(typ, column string) string {
		return "keys:\n  partition: " + device + "\n  sort: {attribute: at, type: " + typ + "}\ncolumns:\n" + truck + stopped + column + "}\n"
	}
	parted := func(typ, column string) string {
		return "keys:\n  partition: {attribute: at, type: " + typ + "}\n  sort: " + device + "\ncolumns:\n" + truck + stopped + column + "}\n"
	}
	for name, tt := range map[string]struct {
		keys string
		want types.AttributeValue
	}{
		"sort, N, seconds":      {sorted("N", "attribute: at, encoding: epoch_seconds"), num("1458031648")},
		"sort, N, milliseconds": {sorted("N", "attribute: at, encoding: epoch_milliseconds"), num("1458031648000")},
		"sort, S, attribute":    {sorted("S", "attribute: at, encoding: iso8601"), text(formatted)},
		"sort, S, capture":      {sorted("S", "key: at, encoding: iso8601"), text(formatted)},
		"partition, N":          {parted("N", "attribute: at, encoding: epoch_seconds"), num("1458031648")},
		"partition, S":          {parted("S", "attribute: at, encoding: iso8601"), text(formatted)},
		"partition, S, capture": {parted("S", "key: at, encoding: iso8601"), text(formatted)},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := schemas.Parse("stops.yaml", []byte("format: 1\nname: stops\ntable: stops\n"+tt.keys+
				"event_time: stopped_at\nlayout: {partition_by: day, first_partition: 2016-01-01}\n"))
			if err != nil {
				t.Fatal(err)
			}
			want := Item{"truck": text("7"), "at": tt.want}
			at, _ := plainText(tt.want)
			for _, column := range []string{"at", "stopped_at", "event_time", "when"} {
				for _, mapped := range []string{"", "at", "stopped_at", "event_time"} {
					if (mapped == "") == (column == "when") {
						continue // such a column needs a mapping, and only such a column
					}
					o := MapperOptions{}
					if mapped != "" {
						o.Columns = map[string]string{mapped: column}
					}
					for _, value := range []string{at, "2016-03-15T08:47:28Z"} {
						wantItem(t, one(t, mapper(t, c, o), "f.csv", "truck,"+column+"\n7,"+value+"\n"), want)
						wantItem(t, one(t, mapper(t, c, o), "f.jsonl", `{"truck":7,"`+column+`":"`+value+`"}`), want)
					}
				}
			}
			_, err = NewItemReader(strings.NewReader("truck,speed\n7,50\n"), "f.csv", mapper(t, c, MapperOptions{}))
			if err == nil || !strings.Contains(err.Error(), "no column gives at, ") {
				t.Errorf("without the key: %v", err)
			}
		})
	}
}

func TestAColumnWithoutANameIsLeftOut(t *testing.T) {
	m := mapper(t, contract(t, "lecturas"), MapperOptions{})
	wantItem(t, one(t, m, "f.csv", ",dispositivoId,ts\n0,d,2016-03-15T08:47:28Z\n"),
		Item{"dispositivoId": text("d"), "ts": text("2016-03-15T08:47:28.000Z"), "expira": number(start.AddDate(0, 0, 90).Unix())})
}

func TestMalformedLinesSayWhatIsWrong(t *testing.T) {
	const at = `"event_ts":"2026-03-02T08:00:00Z"`
	for line, want := range map[string]string{
		`{"device_id":"d",` + at + `,"battery_pct":"full"}`:      `battery_pct: "full" is not a number`,
		`{"device_id":"d",` + at + `,"battery_pct":true}`:        `battery_pct: true is not a number`,
		`{"device_id":"d",` + at + `,"charging":2}`:              `charging: 2 is not true or false`,
		`{"device_id":"d",` + at + `,"signal":{"rssi_dbm":"x"}}`: `signal: rssi_dbm: "x" is not a number`,
		`{"device_id":"d",` + at + `,"payload":[1]}`:             `payload: a list is not of type map<string,decimal(18,6)>`,
		`{"device_id":"d",` + at + `,"payload":{"t":"hot"}}`:     `payload: t: "hot" is not a number`,
		`{"device_id":"d",` + at + `,"battery_pct":1E400}`:       `out of a number's range`,
		`{"device_id":"d"}`:                            `no value for event_time`,
		`{` + at + `}`:                                 `no value for device_id`,
		`{"device_id":null,` + at + `}`:                `no value for device_id`,
		`{"device_id":["d"],` + at + `}`:               `a list cannot be part of a key`,
		`{"device_id":"d",` + at + `,"device_id":"e"}`: `the member "device_id" stands there twice`,
		`{"device_id":"d",` + at:                       `the JSON ends in the middle`,
		`{"device_id":"d",` + at + `} {}`:              `something follows the object`,
		`["d"]`:                                        `a list is not an object`,
		`device d`:                                     `malformed JSON`,
		"{\"device_id\":\"\xff\"," + at + "}":          `not UTF-8`,
		`{"a":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`: `nested deeper than 32`,
		`{"Item":{"device_id":{"S":"d"}}}`:                                `no value for event_ts, a key`,
		`{"Item":{"device_id":{"N":"1"},"event_ts":{"S":"x"}}}`:           `key device_id: 1 is no key of type S`,
		`{"Item":{"device_id":{"S":1},"event_ts":{"S":"x"}}}`:             `device_id: 1 is no value of type S`,
		`{"Item":{"device_id":{"S":"d"},"n":{"N":"1x"}}}`:                 `n: "1x" is not a number`,
		`{"Item":{"device_id":{"S":"d"},"n":{"NS":["1",2]}}}`:             `n: 2 is no value of type N`,
	} {
		r := reader(t, mapper(t, contract(t, "device_telemetry"), MapperOptions{}), "f.jsonl", "\n"+line+"\n"+`{"device_id":"next",`+at+`}`)
		_, _, err := r.Next()
		if le, ok := errors.AsType[*LineError](err); !ok || le.Line != 2 || le.Fatal || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q of line 2", line, err, want)
		}
		if item, n, err := r.Next(); err != nil || n != 3 || item == nil {
			t.Errorf("%s: the next line is %v, %v", line, item, err)
		}
	}
}

func TestALineOfMebibytesIsPassedOver(t *testing.T) {
	r := reader(t, mapper(t, contract(t, "device_telemetry"), MapperOptions{}), "f.jsonl",
		`{"device_id":"`+strings.Repeat("x", maxLine)+"\"}\n"+`{"device_id":"d","event_ts":"2026-03-02T08:00:00Z"}`)
	if _, _, err := r.Next(); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("error is %v", err)
	}
	if _, line, err := r.Next(); err != nil || line != 2 {
		t.Errorf("line %d, %v", line, err)
	}
}

func TestMappingsThatCannotBeAreRefused(t *testing.T) {
	c := contract(t, "sensor_readings")
	for _, tt := range []struct {
		columns map[string]string
		want    string
	}{
		{map[string]string{"celcius": "t"}, "knows no celcius; write one of celsius, device_id"},
		{map[string]string{"celsius": "t", "humidity": "t"}, "the column gives celsius already"},
		{map[string]string{"taken_at": "a", "event_time": "b"}, "it is the same as event_time"},
	} {
		if _, err := NewMapper(c, MapperOptions{Mapping: Mapping{Columns: tt.columns}}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: error %v, want %q", tt.columns, err, tt.want)
		}
	}
	for content, want := range map[string]string{
		"":                               "the file is empty",
		"ts,celsius\n":                   "the header lacks node, which is to give device_id",
		"celsius\n":                      "the header lacks node, which is to give device_id, and ts, which is to give ",
		"node,ts,celsius,celsius\n":      "celsius stands there twice",
		"node,ts,expiresAt,expires_at\n": "both give expiresAt",
	} {
		_, err := NewItemReader(strings.NewReader(content), "f.csv", mapper(t, c, nodeMapping()))
		if le, ok := errors.AsType[*LineError](err); !ok || le.Line != 1 || !strings.Contains(err.Error(), want) {
			t.Errorf("header %q: error %v, want %q", content, err, want)
		}
	}
	_, err := NewItemReader(strings.NewReader("device_id,celsius\n"), "f.csv", mapper(t, c, MapperOptions{}))
	if err == nil || !strings.Contains(err.Error(), "no column gives event_time, which the key sk is made of") {
		t.Errorf("error is %v", err)
	}
}

func TestFilesAreKnownByNameOrContent(t *testing.T) {
	const jsonLine = `{"device_id":"d","event_ts":"2026-03-02T08:00:00Z"}`
	const csvText = "device_id,event_ts\nd,2026-03-02T08:00:00Z\n"
	zip := func(s string) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		io.WriteString(z, s)
		z.Close()
		return b.String()
	}
	for _, f := range []struct{ name, content string }{
		{"a.jsonl", jsonLine}, {"a.ndjson", jsonLine}, {"a.json.gz", zip(jsonLine)}, {"standard input", jsonLine}, {"-", "\ufeff \n" + jsonLine},
		{"standard input", zip(jsonLine)}, {"a.csv", csvText}, {"a.CSV", "\ufeff" + csvText}, {"standard input", csvText}, {"a.csv", zip(csvText)},
		{"a.csv", strings.ReplaceAll(csvText, "\n", "\r\n")}, {"a.jsonl", jsonLine + "\r\n\r\n"}, {"a.csv.gz", zip("device_id,event_ts\n") + zip("d,2026-03-02T08:00:00Z\n")},
	} {
		wantItem(t, one(t, mapper(t, contract(t, "device_telemetry"), MapperOptions{}), f.name, f.content),
			Item{"device_id": text("d"), "event_ts": text("2026-03-02T08:00:00.000Z"), "expires_at": expiry})
	}
	if _, err := NewItemReader(strings.NewReader(csvText), "a.csv.gz", mapper(t, contract(t, "device_telemetry"), MapperOptions{})); err == nil || !strings.Contains(err.Error(), "not gzipped") {
		t.Errorf("error is %v", err)
	}
}
