package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/spf13/cobra"

	"telemetrylake/pipeline/hot"
	"telemetrylake/schemas"
	"telemetrylake/testenv"
)

// runCommand runs one command as execute does and returns what it leaves.
func runCommand(t *testing.T, c *cobra.Command, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(args)
	c.SetIn(strings.NewReader(stdin))
	c.SetOut(&out)
	c.SetErr(&errOut)
	if err := c.ExecuteContext(t.Context()); err != nil {
		return exitCode(err), out.String(), errOut.String() + oneLine(err)
	}
	return exitOK, out.String(), errOut.String()
}

// serveAWS makes the SDK's own chain find an embedded AWS with the table of a contract.
func serveAWS(t *testing.T, contracts ...string) *testenv.Env {
	t.Helper()
	env, err := testenv.Open(testenv.Options{Dir: t.TempDir(), Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	server := httptest.NewServer(env)
	t.Cleanup(server.Close)
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL": server.URL, "AWS_REGION": testenv.DefaultRegion, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull, "AWS_EC2_METADATA_DISABLED": "true",
	} {
		t.Setenv(name, value)
	}
	for _, name := range contracts {
		c, err := schemas.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hot.Create(t.Context(), newClients(env.AWSConfig()).dynamodb, c); err != nil {
			t.Fatal(err)
		}
	}
	return env
}

func loadJSON(t *testing.T, stdout string) loadReport {
	t.Helper()
	var r loadReport
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	return r
}

func TestLoadSaysWhatBecameOfEachRow(t *testing.T) {
	serveAWS(t, "sensor_readings")
	lines := []string{climateHeader}
	for i := range 500 {
		lines = append(lines, climateLine(i+1, climateStart.Add(time.Duration(i)*time.Millisecond), 1+i%4, "20.48", "42.332"))
	}
	file := writeLines(t, append(lines, climateLine(501, climateStart, 1, "99", "42.332"))...)
	args := []string{file, "--format", "room-climate", "-o", "json"}
	for run, want := range []loadReport{
		{Written: 500, Refused: 1, Rows: 501, Complete: true},
		{Present: 500, Refused: 1, Rows: 501, Complete: true},
	} {
		code, stdout, stderr := runCommand(t, newLoad(), "", args...)
		r := loadJSON(t, stdout)
		if code != exitOK || stderr != "" {
			t.Errorf("run %d: exit code %d, stderr %q", run, code, stderr)
		}
		if r.Written != want.Written || r.Present != want.Present || r.Refused != want.Refused || r.Rows != want.Rows || r.Complete != want.Complete || r.Malformed != 0 {
			t.Errorf("run %d: %+v", run, r)
		}
		if len(r.RefusedRows) != 1 || r.RefusedRows[0].Line != 502 || !strings.HasPrefix(r.RefusedRows[0].Key, "DEVICE#1#2016-") {
			t.Errorf("run %d: refused %v", run, r.RefusedRows)
		}
		if r.Contract != "sensor_readings" || r.Table != "sensor_readings" || r.File != file || len(r.LeftOut) == 0 {
			t.Errorf("run %d: %+v", run, r)
		}
	}
	code, stdout, _ := runCommand(t, newLoad(), "", file, "--contract", "sensor_readings", "--format", "room-climate")
	for _, want := range []string{"already there", "500", file + ":502  DEVICE#1", "501 rows in"} {
		if code != exitOK || !strings.Contains(stdout, want) {
			t.Errorf("exit code %d; the table lacks %q:\n%s", code, want, stdout)
		}
	}
}

func TestLoadReportsMalformedLines(t *testing.T) {
	serveAWS(t, "sensor_readings")
	lines := []string{"node,ts,celsius,humidity", "1,2016-03-15T08:47:28Z,20,40"}
	for range 12 {
		lines = append(lines, "1,never,20,40")
	}
	file := writeLines(t, append(lines, "2,2016-03-15T08:47:28Z,20,40")...)
	args := []string{file, "--contract", "sensor_readings", "--map", "device_id=node", "--map", "event_time=ts"}
	code, stdout, stderr := runCommand(t, newLoad(), "", append(args, "--strict", "-o", "json")...)
	if r := loadJSON(t, stdout); code != exitUsage || r.Written != 1 || r.Complete || r.Malformed != 1 {
		t.Errorf("strict: exit code %d, %+v", code, r)
	}
	if !strings.Contains(stderr, file+`:3: ts: "never" is not a time`) || !strings.Contains(stderr, "1 row before it is done: 1 written") {
		t.Errorf("strict: stderr %q", stderr)
	}
	code, stdout, stderr = runCommand(t, newLoad(), "", args...)
	if code != exitFailed || !strings.Contains(stderr, "12 lines are malformed and left out") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	for _, want := range []string{file + `:3: ts: "never" is not a time`, file + ":12: ", "… 2 more", "already there                       1\n"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the table lacks %q:\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, file+":13: ") {
		t.Errorf("more than ten lines are described:\n%s", stdout)
	}
}

func TestLoadReadsTheStandardInput(t *testing.T) {
	env := serveAWS(t, "device_telemetry")
	const lines = `{"device_id":"d","event_ts":"2026-03-02T08:00:00Z","battery_pct":80.50}` + "\n" +
		`{"Item":{"device_id":{"S":"e"},"event_ts":{"S":"2026-03-02T08:00:00.000Z"}}}` + "\n"
	code, stdout, stderr := runCommand(t, newLoad(), lines, "-", "--contract", "device_telemetry", "-o", "json")
	if r := loadJSON(t, stdout); code != exitOK || r.Written != 2 || r.File != "standard input" {
		t.Errorf("exit code %d, %+v, %s", code, r, stderr)
	}
	c, err := schemas.Load("device_telemetry")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := hot.NewWriter(newClients(env.AWSConfig()).dynamodb, c, hot.WriterOptions{}).Count(t.Context()); n != 2 || err != nil {
		t.Errorf("the table holds %d items, %v", n, err)
	}
}

func TestLoadRefusesInOneLine(t *testing.T) {
	serveAWS(t, "sensor_readings")
	file := writeLines(t, climateHeader, climateLine(1, climateStart, 1, "20", "40"))
	empty := writeLines(t)
	cutOff := filepath.Join(t.TempDir(), "f.csv.gz")
	if err := os.WriteFile(cutOff, []byte("\x1f\x8b"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no file":           {[]string{"--format", "room-climate"}, exitUsage, "takes one file"},
		"missing file":      {[]string{"/none.csv", "--format", "room-climate"}, exitUsage, "/none.csv"},
		"folder":            {[]string{t.TempDir(), "--format", "room-climate"}, exitUsage, "is a folder"},
		"no contract":       {[]string{file}, exitUsage, "no contract named"},
		"unknown format":    {[]string{file, "--format", "excel"}, exitUsage, "room-climate"},
		"format and map":    {[]string{file, "--format", "room-climate", "--map", "a=b"}, exitUsage, "leave out --map"},
		"bad map":           {[]string{file, "--contract", "sensor_readings", "--map", "a"}, exitUsage, "ATTRIBUTE=COLUMN"},
		"map twice":         {[]string{file, "--contract", "sensor_readings", "--map", "tie=b", "--map", "tie=c"}, exitUsage, "tie twice"},
		"unknown attribute": {[]string{file, "--contract", "sensor_readings", "--map", "warmth=celsius"}, exitUsage, "knows no warmth"},
		"missing column":    {[]string{file, "--contract", "sensor_readings", "--map", "device_id=sensor"}, exitUsage, file + ":1: the header lacks sensor"},
		"key without":       {[]string{file, "--contract", "sensor_readings"}, exitUsage, "no column gives device_id"},
		"empty file":        {[]string{empty, "--format", "room-climate"}, exitUsage, "the file is empty"},
		"cut off":           {[]string{cutOff, "--format", "room-climate"}, exitUsage, cutOff},
		"bad output":        {[]string{file, "--format", "room-climate", "-o", "csv"}, exitUsage, `"csv"`},
		"bad expiry":        {[]string{file, "--format", "room-climate", "--expires-from", "now"}, exitUsage, "neither load nor event"},
		"no puts":           {[]string{file, "--format", "room-climate", "--parallel", "0"}, exitUsage, "--parallel 0"},
		"missing table":     {[]string{file, "--format", "room-climate", "--table", "none"}, exitPerson, "none"},
		"another table":     {[]string{file, "--contract", "device_telemetry", "--table", "sensor_readings", "--map", "device_id=node_id"}, exitFailed, "(pk, sk)"},
	} {
		code, stdout, stderr := runCommand(t, newLoad(), "", tt.args...)
		if code != tt.code || stdout != "" || !strings.Contains(stderr, tt.want) || strings.Contains(stderr, "\n") {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q; want %d and %q", name, code, stdout, stderr, tt.code, tt.want)
		}
	}
}

// openLoad opens what newLoading makes.
func openLoad(ctx context.Context, client *dynamodb.Client, c *schemas.Contract, in *input, o loadOptions) (*loading, error) {
	l, err := newLoading(c, in, o)
	if err != nil {
		return nil, err
	}
	return l, l.open(ctx, client)
}

// stoppingInput stops the load when so much of the file was read.
type stoppingInput struct {
	*strings.Reader
	stop func()
	left atomic.Int64
}

func (in *stoppingInput) Read(p []byte) (int, error) {
	n, err := in.Reader.Read(p[:min(len(p), 4096)])
	if in.left.Add(-int64(n)) <= 0 {
		in.stop()
	}
	return n, err
}

func (in *stoppingInput) Close() error { return nil }

func TestAnInterruptedLoadSaysHowFarItCame(t *testing.T) {
	env := serveAWS(t, "sensor_readings")
	c, err := schemas.Load("sensor_readings")
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{climateHeader}
	for i := range 5000 {
		lines = append(lines, climateLine(i+1, climateStart.Add(time.Duration(i)*time.Millisecond), 1, "20.48", "42.332"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	source := &stoppingInput{Reader: strings.NewReader(strings.Join(lines, "\n")), stop: cancel}
	source.left.Store(100_000)
	in := &input{ReadCloser: source, name: "f.csv", size: source.Size()}
	o := loadOptions{format: "room-climate", expiresFrom: "load", parallel: 4, output: "json"}
	client := newClients(env.AWSConfig()).dynamodb
	l, err := openLoad(ctx, client, c, in, o)
	if err != nil {
		t.Fatal(err)
	}
	var stdout bytes.Buffer
	err = l.run(ctx, &stdout, &bytes.Buffer{})
	r := loadJSON(t, stdout.String())
	if u, ok := errors.AsType[*unfinished](err); !ok || !errors.Is(err, context.Canceled) ||
		u.Error() != "load f.csv: interrupted; "+r.far("")+"; the same command goes on" {
		t.Errorf("error is %v", err)
	}
	n, err := hot.NewWriter(client, c, hot.WriterOptions{}).Count(t.Context())
	if err != nil || r.Complete || r.Written != n || n >= 5000 {
		t.Errorf("%+v, and the table holds %d items, %v", r, n, err)
	}
	var table bytes.Buffer
	if err := r.print(&table, "table"); err != nil || !strings.Contains(table.String(), "Not the whole file.") {
		t.Errorf("%v: %s", err, table.String())
	}
}

func TestLoadProgressTellsRateAndTimeLeft(t *testing.T) {
	env := serveAWS(t, "sensor_readings")
	c, err := schemas.Load("sensor_readings")
	if err != nil {
		t.Fatal(err)
	}
	text := climateHeader + "\n" + climateLine(1, climateStart, 1, "20.48", "42.332") + "\n" + climateLine(2, climateStart.Add(time.Millisecond), 1, "x", "1") + "\n"
	in := &input{ReadCloser: &stoppingInput{Reader: strings.NewReader(text), stop: func() {}}, name: "f.csv", size: int64(4 * len(text))}
	l, err := openLoad(t.Context(), newClients(env.AWSConfig()).dynamodb, c, in, loadOptions{format: "room-climate", expiresFrom: "load", parallel: 1, output: "table"})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Load.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := l.progressText(2*time.Second), "1 row, 0 a second, 1 line is malformed, 25%, 6s left"; got != want {
		t.Errorf("progress is %q, want %q", got, want)
	}
	in.size = 0
	if got := l.progressText(time.Second); strings.Contains(got, "left") {
		t.Errorf("a pipe has no end to tell: %q", got)
	}
}

// An outage is an endpoint that can be told to fail every put.
type outage struct {
	http.Handler
	down atomic.Bool
	puts atomic.Int64
}

func (o *outage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".PutItem") {
		o.puts.Add(1)
		if o.down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
	}
	o.Handler.ServeHTTP(w, r)
}

func TestALoadIntoAnOutageSaysSoAndGivesUp(t *testing.T) {
	o := &outage{Handler: serveAWS(t, "sensor_readings")}
	o.down.Store(true)
	server := httptest.NewServer(o)
	t.Cleanup(server.Close)
	t.Setenv("AWS_ENDPOINT_URL", server.URL)
	aws, err := connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := schemas.Load("sensor_readings")
	if err != nil {
		t.Fatal(err)
	}
	begin := func(tol tolerance) *loading {
		t.Helper()
		text := climateHeader + "\n" + climateLine(1, climateStart, 1, "20", "40") + "\n"
		in := &input{ReadCloser: &stoppingInput{Reader: strings.NewReader(text), stop: func() {}}, name: "f.csv", size: int64(len(text))}
		l, err := openLoad(t.Context(), aws.dynamodb, c, in, loadOptions{format: "room-climate", expiresFrom: "load", parallel: 2, output: "json", tolerance: tol})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	var stdout, stderr bytes.Buffer
	err = begin(tolerance{warnAfter: time.Millisecond, warnEvery: time.Hour, giveUp: time.Second}).run(t.Context(), &stdout, &stderr)
	if err == nil || exitCode(err) != exitFailed || !strings.Contains(err.Error(), "nothing but failures") || strings.Contains(oneLine(err), "\n") {
		t.Errorf("error is %v", err)
	}
	if r := loadJSON(t, stdout.String()); r.Complete || r.Rows != 0 {
		t.Errorf("%+v", r)
	}
	if text := stderr.String(); !strings.HasPrefix(text, "streamer: load f.csv: no put has succeeded for ") || !strings.HasSuffix(text, "; still trying\n") || strings.Count(text, "\n") != 1 {
		t.Errorf("stderr %q", text)
	}

	// The end of an outage is told too.
	stderr.Reset()
	l := begin(tolerance{warnAfter: time.Millisecond, warnEvery: time.Hour, giveUp: time.Hour})
	heard := &listener{Writer: &stderr, heard: func(string) { o.down.Store(false) }}
	if err := l.run(t.Context(), &stdout, heard); err != nil || o.puts.Load() == 0 {
		t.Errorf("%v after %d puts", err, o.puts.Load())
	}
	if r := l.report(true); r.Written != 1 {
		t.Errorf("%+v", r)
	}
}

// A listener hears what is written.
type listener struct {
	io.Writer
	heard func(string)
}

func (l *listener) Write(p []byte) (int, error) {
	if len(p) > 0 {
		l.heard(string(p))
	}
	return l.Writer.Write(p)
}

func TestAWarningIsRepeatedSeldomAndTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := warner{tolerance: usualTolerance}
		begun := time.Now()
		var said []string
		look := func(h hot.Health) {
			if text := w.look(h); text != "" {
				said = append(said, time.Since(begun).String()+" "+text)
			}
		}
		failing := hot.Health{Since: begun, Err: errors.New("the line is cut")}
		for range 70 {
			look(failing)
			time.Sleep(time.Second)
		}
		look(hot.Health{}) // all calls were given up, which is no success
		look(hot.Health{Since: time.Now(), Answered: 1})
		for range 4 {
			look(hot.Health{Since: time.Now(), Answered: 2})
			time.Sleep(time.Second)
		}
		hanging := hot.Health{Since: time.Now(), Answered: 3}
		for range 7 {
			look(hanging)
			time.Sleep(time.Second)
		}
		want := []string{
			"5s no put has succeeded for 5s: the line is cut; still trying",
			"35s no put has succeeded for 35s: the line is cut; still trying",
			"1m5s no put has succeeded for 1m5s: the line is cut; still trying",
			"1m10s puts succeed again, after 1m10s",
			"1m19s no put has succeeded for 5s: no answer; still trying",
		}
		if !slices.Equal(said, want) {
			t.Errorf("said\n%s\nwant\n%s", strings.Join(said, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestLoadNeedsNoAWSToSayWhatIsWrongWithTheCommand(t *testing.T) {
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	file := writeLines(t, climateHeader, climateLine(1, climateStart, 1, "20", "40"))
	for want, args := range map[string][]string{
		"no contract named":    {file},
		"knows no warmth":      {file, "--contract", "sensor_readings", "--map", "warmth=celsius"},
		"no such contract":     {file, "--contract", "none"},
		". FOLDER/env":         {file, "--contract", "sensor_readings"},
		"no such file":         {file + "x", "--contract", "sensor_readings"},
		"takes one file, or -": {"--contract", "sensor_readings"},
	} {
		code, _, stderr := runCommand(t, newLoad(), "", args...)
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("exit code %d, stderr %q; want %q", code, stderr, want)
		}
	}
}

func TestAnEventTimeCanBeTheSortKeyOfALoadedTable(t *testing.T) {
	env := serveAWS(t)
	contract := filepath.Join(t.TempDir(), "stops.yaml")
	text := "format: 1\nname: stops\ntable: stops\nkeys:\n  partition: {attribute: truck}\n  sort: {attribute: at, type: N}\ncolumns:\n" +
		"  - {name: truck, key: truck, type: string}\n  - {name: stopped_at, attribute: at, type: timestamp, encoding: epoch_seconds}\n" +
		"event_time: stopped_at\nlayout: {partition_by: day, first_partition: 2016-01-01}\n"
	if err := os.WriteFile(contract, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := loadContract(contract)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hot.Create(t.Context(), newClients(env.AWSConfig()).dynamodb, c); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := runCommand(t, newLoad(), "truck,stopped_at\n7,2016-03-15T08:47:28Z\n7,1458031649\n", "-", "--contract", contract, "-o", "json")
	if r := loadJSON(t, stdout); code != exitOK || r.Written != 2 {
		t.Errorf("exit code %d, %+v, %s", code, r, stderr)
	}
}
