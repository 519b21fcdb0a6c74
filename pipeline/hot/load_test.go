package hot

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/schemas"
)

func mapper(t testing.TB, c *schemas.Contract, o MapperOptions) *Mapper {
	t.Helper()
	if o.Now.IsZero() {
		o.Now = start
	}
	m, err := NewMapper(c, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func reader(t testing.TB, m *Mapper, name, content string) *ItemReader {
	t.Helper()
	r, err := NewItemReader(strings.NewReader(content), name, m)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const nodeHeader = "node,ts,celsius,humidity\n"

// nodeMapping maps what nodeHeader does not name as sensor_readings does.
func nodeMapping() MapperOptions {
	return MapperOptions{Mapping: Mapping{Columns: map[string]string{"device_id": "node", "event_time": "ts"}}}
}

// nodeRows are n rows of different keys.
func nodeRows(n int) string {
	var b strings.Builder
	b.WriteString(nodeHeader)
	for i := range n {
		fmt.Fprintf(&b, "%d,%d,20.%02d,40\n", i%4, start.UnixMilli()+int64(i), i%100)
	}
	return b.String()
}

func load(t *testing.T, env *environment, c *schemas.Contract, content string, mo MapperOptions, o LoadOptions) (LoadCounts, error) {
	t.Helper()
	l := NewLoad(NewWriter(env.client, c, quick()), reader(t, mapper(t, c, mo), "f.csv", content), o)
	err := l.Run(t.Context())
	return l.Counts(), err
}

func wantCounts(t *testing.T, c LoadCounts, written, present, refused, malformed int) {
	t.Helper()
	if c.Written != written || c.Present != present || c.Refused != refused || c.Malformed != malformed {
		t.Errorf("written %d, present %d, refused %d, malformed %d; want %d, %d, %d, %d",
			c.Written, c.Present, c.Refused, c.Malformed, written, present, refused, malformed)
	}
}

func TestALoadTellsWrittenFromPresentFromRefused(t *testing.T) {
	env := open(t)
	c := create(t, env, "sensor_readings")
	content := nodeRows(200)
	counts, err := load(t, env, c, content, nodeMapping(), LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantCounts(t, counts, 200, 0, 0, 0)
	// A second load expires later, which makes no reading another one.
	later := nodeMapping()
	later.Now = start.AddDate(0, 0, 3)
	again := strings.Replace(content, ",20.07,40", ",20.070,4E1", 2)
	again = strings.Replace(again, ",20.08,40", ",99,40", 2)
	counts, err = load(t, env, c, again+"9,"+fmt.Sprint(start.UnixMilli())+",1,1\n", later, LoadOptions{Examples: 1})
	if err != nil {
		t.Fatal(err)
	}
	wantCounts(t, counts, 1, 198, 2, 0)
	if want := []RefusedLine{{10, "DEVICE#0#2026-03 TS#2026-03-02T08:00:00.008Z"}}; !reflect.DeepEqual(counts.RefusedLines, want) {
		t.Errorf("refused lines %v, want %v", counts.RefusedLines, want)
	}
}

func TestTheFirstOfAKeyInTheFileIsLoaded(t *testing.T) {
	env := open(t)
	c := create(t, env, "sensor_readings")
	var b strings.Builder
	b.WriteString(nodeHeader)
	for round := range 3 {
		for k := range 100 {
			fmt.Fprintf(&b, "%d,%d,%d.%d,40\n", k, start.UnixMilli(), k, round)
		}
	}
	for range 2 { // a restart finds the same
		counts, err := load(t, env, c, b.String(), nodeMapping(), LoadOptions{})
		if err != nil || counts.Refused != 200 || counts.Written+counts.Present != 100 {
			t.Errorf("%+v, %v", counts, err)
		}
		if len(counts.RefusedLines) != 10 || counts.RefusedLines[0].Line != 102 || counts.RefusedLines[9].Line != 111 {
			t.Errorf("refused lines %v: want the first ten", counts.RefusedLines)
		}
	}
	for k := range 100 {
		item := get(t, env, c, Item{"pk": text(fmt.Sprintf("DEVICE#%d#2026-03", k)), "sk": text("TS#2026-03-02T08:00:00.000Z")})
		if n := canonical(numberOf(t, item, "celsius")); n != canonical(fmt.Sprintf("%d.0", k)) {
			t.Errorf("item %d holds %s", k, n)
		}
	}
}

func TestALoadRepeatsThroughThrottlingAndLostCalls(t *testing.T) {
	env := open(t)
	c := create(t, env, "sensor_readings")
	env.faults.on = func(n int, _ *http.Request) fault { return fault(n % 4) }
	counts, err := load(t, env, c, nodeRows(100), nodeMapping(), LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantCounts(t, counts, 100, 0, 0, 0)
}

func TestAStoppedLoadGoesOnWhenStartedAgain(t *testing.T) {
	env := open(t)
	c := create(t, env, "sensor_readings")
	content := nodeRows(2000)
	written := 0
	for kill := range 4 {
		ctx, cancel := context.WithCancel(t.Context())
		at := 150 * (kill + 1)
		env.faults.mu.Lock()
		env.faults.n = 0
		env.faults.on = func(n int, _ *http.Request) fault {
			if n == at {
				cancel()
			}
			return none
		}
		env.faults.mu.Unlock()
		l := NewLoad(NewWriter(env.client, c, quick()), reader(t, mapper(t, c, nodeMapping()), "f.csv", content), LoadOptions{})
		if err := l.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("a stopped load returned %v", err)
		}
		counts := l.Counts()
		if counts.Refused != 0 || counts.Malformed != 0 || counts.Written+counts.Present == 0 || counts.Rows() >= 2000 {
			t.Errorf("stopped at call %d: %+v", at, counts)
		}
		written += counts.Written
	}
	env.faults.mu.Lock()
	env.faults.on = nil
	env.faults.mu.Unlock()
	counts, err := load(t, env, c, content, nodeMapping(), LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Puts in flight were counted, so nothing was written that no count tells.
	wantCounts(t, counts, 2000-written, written, 0, 0)
}

func TestALoadThatHangsInAReadCanBeStopped(t *testing.T) {
	env := open(t)
	c := create(t, env, "sensor_readings")
	pipe, in := io.Pipe()
	defer in.Close()
	go func() { _, _ = io.WriteString(in, nodeRows(3)) }()
	r, err := NewItemReader(pipe, "standard input", mapper(t, c, nodeMapping()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	env.faults.n = 0
	env.faults.on = func(n int, _ *http.Request) fault {
		if n == 3 {
			cancel()
		}
		return none
	}
	if err := NewLoad(NewWriter(env.client, c, quick()), r, LoadOptions{}).Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

const badRows = nodeHeader +
	"1,1458031648545,20.48,42.332\n" +
	"1,yesterday,20.48,42.332\n" +
	"1,1458031648546,warm,42.332\n" +
	"1,1458031648547,20.48\n" +
	",1458031648548,20.48,42.332\n" +
	"1,1458031648549,20.48,42.332\n"

func TestMalformedLinesAreCountedAndDescribed(t *testing.T) {
	env := open(t)
	c := create(t, env, "sensor_readings")
	counts, err := load(t, env, c, badRows, nodeMapping(), LoadOptions{Examples: 3})
	if err != nil {
		t.Fatal(err)
	}
	wantCounts(t, counts, 2, 0, 0, 4)
	want := []string{`f.csv:3: ts: "yesterday" is not a time`, `f.csv:4: celsius: "warm" is not a number`, `f.csv:5: wrong number of fields: 3, and the header has 4`}
	if len(counts.MalformedLines) != len(want) {
		t.Fatalf("%d lines described", len(counts.MalformedLines))
	}
	for i, w := range want {
		if got := counts.MalformedLines[i].Error(); !strings.HasPrefix(got, w) {
			t.Errorf("line %q, want %q", got, w)
		}
	}
}

func TestAStrictLoadStopsAtTheFirstMalformedLine(t *testing.T) {
	env := open(t)
	c := create(t, env, "sensor_readings")
	counts, err := load(t, env, c, badRows, nodeMapping(), LoadOptions{Strict: true})
	if line, ok := errors.AsType[*LineError](err); !ok || line.Line != 3 || line.Fatal {
		t.Errorf("error is %v", err)
	}
	wantCounts(t, counts, 1, 0, 0, 1)
}

func TestAQuoteThatIsNotClosedNamesWhatItSwallows(t *testing.T) {
	env := open(t)
	c := create(t, env, "sensor_readings")
	counts, err := load(t, env, c, nodeRows(2)+"1,\"1458031648545,20.48,42.332\n1,2,3,4\n1,2,3,5\n", nodeMapping(), LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if counts.Written != 2 || counts.Malformed < 3 || counts.MalformedLines[0].Line != 4 || !strings.Contains(counts.MalformedLines[0].Error(), "up to line") {
		t.Errorf("%+v: %v", counts, counts.MalformedLines)
	}
}

func TestAFileThatIsCutOffLoadsWhatItHolds(t *testing.T) {
	env := open(t)
	c := create(t, env, "sensor_readings")
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	io.WriteString(z, nodeRows(50))
	z.Flush()
	whole := zipped.String() // without what Close would add
	r, err := NewItemReader(strings.NewReader(whole), "f.csv.gz", mapper(t, c, nodeMapping()))
	if err != nil {
		t.Fatal(err)
	}
	l := NewLoad(NewWriter(env.client, c, quick()), r, LoadOptions{})
	err = l.Run(t.Context())
	if line, ok := errors.AsType[*LineError](err); !ok || !line.Fatal || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("error is %v", err)
	}
	wantCounts(t, l.Counts(), 50, 0, 0, 0)
}

func TestAnItemThatTheTableDoesNotTakeIsAMalformedLine(t *testing.T) {
	env := open(t)
	c := create(t, env, "device_telemetry")
	lines := `{"device_id":"a","event_ts":"2026-03-02T08:00:00Z","payload":{"x":1}}` + "\n" +
		`{"Item":{"device_id":{"S":"b"},"event_ts":{"S":"2026-03-02T08:00:00.000Z"},"tags":{"SS":[]}}}` + "\n" +
		`{"device_id":"c","event_ts":"2026-03-02T08:00:00Z"}` + "\n"
	l := NewLoad(NewWriter(env.client, c, quick()), reader(t, mapper(t, c, MapperOptions{}), "f.jsonl", lines), LoadOptions{})
	if err := l.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	counts := l.Counts()
	wantCounts(t, counts, 2, 0, 0, 1)
	if len(counts.MalformedLines) != 1 || !strings.HasPrefix(counts.MalformedLines[0].Error(), "f.jsonl:2: the table does not take the item: ") {
		t.Errorf("%v", counts.MalformedLines)
	}
}

func TestKeysOfTheTableAreChecked(t *testing.T) {
	env := open(t)
	c := create(t, env, "sensor_readings")
	if err := CheckKeys(t.Context(), env.client, c); err != nil {
		t.Error(err)
	}
	other := *contract(t, "device_telemetry")
	other.Table = c.Table
	if err := CheckKeys(t.Context(), env.client, &other); err == nil || !strings.Contains(err.Error(), "(pk, sk)") {
		t.Errorf("error is %v", err)
	}
	other.Table = "none"
	if _, ok := errors.AsType[*types.ResourceNotFoundException](CheckKeys(t.Context(), env.client, &other)); !ok {
		t.Error("a table that is not there was not missed")
	}
}

func BenchmarkLoad(b *testing.B) {
	env := open(b)
	c := create(b, env, "sensor_readings")
	content := nodeRows(b.N)
	r := reader(b, mapper(b, c, nodeMapping()), "f.csv", content)
	b.ResetTimer()
	b.ReportAllocs()
	if err := NewLoad(NewWriter(env.client, c, WriterOptions{}), r, LoadOptions{}).Run(b.Context()); err != nil {
		b.Fatal(err)
	}
}
