package hot

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

func file(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func gzipped(t *testing.T, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const climateFile = "location,taken_at_ms,node_id,humidity,celsius,occupants\n" +
	"A,1458031648545,1,42.332,20.48,0\n" +
	"A,1458031648645,4,39.980,-0.50,0\n"

func TestReadingsComeWithTheirNumbersAsWritten(t *testing.T) {
	for name, content := range map[string][]byte{
		"plain.csv":     []byte(climateFile),
		"gzipped.gz":    gzipped(t, climateFile),
		"misnamed.csv":  gzipped(t, climateFile),
		"windows.csv":   []byte("\ufeff" + strings.ReplaceAll(climateFile, "location,", "x,")),
		"crlf.csv":      []byte(strings.ReplaceAll(climateFile, "\n", "\r\n")),
		"no-newline.gz": gzipped(t, strings.TrimSuffix(climateFile, "\n")),
	} {
		t.Run(name, func(t *testing.T) {
			r, err := OpenRoomClimate(file(t, name, content))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			want := []Reading{
				{"1", time.UnixMilli(1458031648545).UTC(), "20.48", "42.332", 2},
				{"4", time.UnixMilli(1458031648645).UTC(), "-0.50", "39.980", 3},
			}
			for _, w := range want {
				if got, err := r.Next(); err != nil || got != w {
					t.Errorf("read %+v, %v; want %+v", got, err, w)
				}
			}
			for range 2 {
				if _, err := r.Next(); err != io.EOF {
					t.Errorf("after the last reading: %v", err)
				}
			}
		})
	}
}

func TestABadHeaderIsAnErrorOfLineOne(t *testing.T) {
	for name, test := range map[string]struct{ content, want string }{
		"empty":   {"", "the file is empty"},
		"missing": {"node_id,celsius\n1,2\n", "the header lacks taken_at_ms, humidity"},
		"twice":   {"node_id,celsius,celsius,humidity,taken_at_ms\n", "the column celsius stands there twice"},
	} {
		t.Run(name, func(t *testing.T) {
			path := file(t, "readings.csv", []byte(test.content))
			_, err := OpenRoomClimate(path)
			line, ok := errors.AsType[*LineError](err)
			if !ok || line.Line != 1 || !line.Fatal || !strings.HasPrefix(err.Error(), path+":1: "+test.want) {
				t.Errorf("error %v, want %s:1: %s", err, path, test.want)
			}
		})
	}
}

func TestAMalformedLineIsNamedAndTheNextOneIsRead(t *testing.T) {
	const header = "node_id,taken_at_ms,celsius,humidity\n"
	const good = "2,1458031648545,20.5,40\n"
	for name, test := range map[string]struct{ line, want string }{
		"fields":     {"1,1458031648545,20.5", "wrong number of fields: 3, and the header has 4"},
		"no node":    {",1458031648545,20.5,40", "node_id is empty"},
		"time":       {"1,yesterday,20.5,40", `taken_at_ms: "yesterday" is not a time`},
		"fraction":   {"1,1458031648545.5,20.5,40", `taken_at_ms: "1458031648545.5" is not a time`},
		"far future": {"1,253402300800000,20.5,40", `taken_at_ms: "253402300800000" is not a time`},
		"number":     {"1,1458031648545,warm,40", `celsius: "warm" is not a number`},
		"empty":      {"1,1458031648545,,40", `celsius: "" is not a number`},
		"space":      {"1,1458031648545,20.5, 40", `humidity: " 40" is not a number`},
		"NaN":        {"1,1458031648545,NaN,40", `celsius: "NaN" is not a number`},
		"digits":     {"1,1458031648545,0.123456789012345678901234567890123456789,40", `celsius: "0.123456789012345678901234567890123456789" has more than 38 significant digits`},
		"range":      {"1,1458031648545,1e126,40", `celsius: "1e126" is out of a number's range`},
		"quote":      {`1,1458031648545,2"0.5,40`, `bare " in non-quoted`},
	} {
		t.Run(name, func(t *testing.T) {
			path := file(t, "readings.csv", []byte(header+good+test.line+"\n"+good))
			r, err := OpenRoomClimate(path)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if _, err := r.Next(); err != nil {
				t.Fatal(err)
			}
			_, err = r.Next()
			line, ok := errors.AsType[*LineError](err)
			if !ok || line.Fatal || line.Line != 3 || !strings.HasPrefix(err.Error(), path+":3: "+test.want) {
				t.Errorf("error %v, want %s:3: %s", err, path, test.want)
			}
			if got, err := r.Next(); err != nil || got.Line != 4 || got.DeviceID != "2" {
				t.Errorf("next reading is %+v, %v", got, err)
			}
		})
	}
}

func TestADamagedFileEndsWithTheLineItWasReadTo(t *testing.T) {
	long := climateFile + strings.Repeat("A,1458031648545,1,42.332,20.48,0\n", 5000)
	whole := gzipped(t, long)
	for name, content := range map[string][]byte{
		"cut":     whole[:len(whole)-6],
		"changed": append(bytes.Clone(whole[:len(whole)-8]), 1, 2, 3, 4, 5, 6, 7, 8),
	} {
		t.Run(name, func(t *testing.T) {
			r, err := OpenRoomClimate(file(t, "readings.csv.gz", content))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			last := 1
			for {
				reading, err := r.Next()
				if err == nil {
					last = reading.Line
					continue
				}
				line, ok := errors.AsType[*LineError](err)
				if !ok || !line.Fatal || line.Line != last+1 {
					t.Errorf("after line %d: %v", last, err)
				}
				if _, again := r.Next(); again != err {
					t.Errorf("then: %v", again)
				}
				break
			}
		})
	}
}

func TestAFileThatCannotBeOpenedIsNamed(t *testing.T) {
	for name, path := range map[string]string{
		"absent":      filepath.Join(t.TempDir(), "absent.csv"),
		"not gzipped": file(t, "plain.csv.gz", []byte(climateFile)),
		"header cut":  file(t, "cut.gz", []byte{0x1f, 0x8b, 8}),
		"folder":      t.TempDir(),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := OpenRoomClimate(path); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v does not name %s", err, path)
			}
		})
	}
}

func TestAReadingBecomesAnItemOfTheContract(t *testing.T) {
	c := contract(t, "sensor_readings")
	r, err := NewReadings(c)
	if err != nil {
		t.Fatal(err)
	}
	taken := time.UnixMilli(1458031648545)
	item, err := r.Item(Reading{DeviceID: "1", TakenAt: taken, Celsius: "20.480", Humidity: "42.332", Line: 2})
	if err != nil {
		t.Fatal(err)
	}
	want := Item{
		"pk": text("DEVICE#1#2016-03"), "sk": text("TS#2016-03-15T08:47:28.545Z"),
		"takenAt": number(taken.UnixMilli()), "expiresAt": number(taken.Unix() + 30*24*3600),
		"celsius":  &types.AttributeValueMemberN{Value: "20.480"},
		"humidity": &types.AttributeValueMemberN{Value: "42.332"},
	}
	if !sameItem(item, want) || numberOf(t, item, "celsius") != "20.480" {
		t.Errorf("item is %v", item)
	}
	if m, ok := c.Keys.Partition.Pattern.Match("DEVICE#1#2016-03"); !ok || m["device_id"] != "1" {
		t.Errorf("the partition key reads as %v", m)
	}
	if m, ok := c.Keys.Sort.Pattern.Match("TS#2016-03-15T08:47:28.545Z"); !ok || m["event_time"] != "2016-03-15T08:47:28.545Z" {
		t.Errorf("the sort key reads as %v", m)
	}
}

func TestAContractThatReadingsDoNotFitIsRefused(t *testing.T) {
	if _, err := NewReadings(contract(t, "device_telemetry")); err == nil || !strings.Contains(err.Error(), "device_telemetry") {
		t.Errorf("error %v", err)
	}
}
