package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"telemetrylake/schemas"
	"telemetrylake/testenv"
)

// A door stands before an embedded AWS of sensor_readings and refuses what it is told to.
type door struct {
	clients // past the door
	t       *testing.T
	env     *testenv.Env
	dir     string

	mu      sync.Mutex
	refuse  map[string]refusal // by operation
	refused map[string]int
}

// A refusal is an answer of AWS.
type refusal struct {
	status  int
	code    string
	message string
}

// openDoor makes the environment of this process that of a terminal after . DIR/env.
func openDoor(t *testing.T) *door {
	t.Helper()
	dir := t.TempDir()
	env, err := testenv.Open(testenv.Options{Dir: dir, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	d := &door{clients: newClients(env.AWSConfig()), t: t, env: env, dir: dir, refuse: map[string]refusal{}, refused: map[string]int{}}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	server := httptest.NewServer(d)
	t.Cleanup(server.Close)
	c, err := schemas.Load("sensor_readings")
	if err != nil {
		t.Fatal(err)
	}
	if err := furnish(t.Context(), d.clients, []*schemas.Contract{c}, 0); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(localEnv(dir, strings.TrimPrefix(server.URL, "http://"))) {
		if name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "="); ok {
			t.Setenv(name, strings.Trim(value, "'"))
		}
	}
	for name, value := range map[string]string{
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
		"AWS_MAX_ATTEMPTS":  "1", // what the SDK would try again reaches the program at once
		"STREAMER_CONTRACT": "sensor_readings", "STREAMER_WINDOW_AGE": "50ms", "STREAMER_SEAL_EVERY": "50ms",
	} {
		t.Setenv(name, value)
	}
	return d
}

// operation is what a request asks for.
func operation(r *http.Request) string {
	if _, op, ok := strings.Cut(r.Header.Get("X-Amz-Target"), "."); ok {
		return op
	}
	switch {
	case r.URL.Query().Has("list-type"):
		return "ListObjectsV2"
	case r.Method == http.MethodGet:
		return "GetObject"
	case r.Method == http.MethodPut:
		return "PutObject"
	case r.Method == http.MethodDelete:
		return "DeleteObject"
	}
	return r.Method
}

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	op := operation(r)
	d.mu.Lock()
	no, shut := d.refuse[op]
	if shut {
		d.refused[op]++
	}
	d.mu.Unlock()
	switch {
	case !shut:
		d.env.ServeHTTP(w, r)
	case r.Header.Get("X-Amz-Target") == "":
		w.WriteHeader(no.status)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", no.code, no.message)
	default:
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.WriteHeader(no.status)
		fmt.Fprintf(w, `{"__type":"com.amazonaws#%s","message":%q}`, no.code, no.message)
	}
}

// shut refuses an operation from now on.
func (d *door) shut(op string, no refusal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse[op] = no
}

// open lets everything pass.
func (d *door) open() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.refuse)
}

func (d *door) refusals(op string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refused[op]
}

// A command is a command line that runs in this process.
type command struct {
	t              *testing.T
	name           string
	stop           context.CancelFunc // as a signal does
	stdout, stderr output
	ended          chan int
}

func begin(t *testing.T, args ...string) *command {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &command{t: t, name: strings.Join(args, " "), stop: cancel, ended: make(chan int, 1)}
	go func() { c.ended <- execute(ctx, args, &c.stdout, &c.stderr) }()
	t.Cleanup(cancel)
	return c
}

// exits waits for the command's end, which must be with that exit code.
func (c *command) exits(code int) {
	c.t.Helper()
	select {
	case got := <-c.ended:
		if got != code {
			c.t.Fatalf("%s: exit code %d, want %d\n%s%s", c.name, got, code, &c.stdout, &c.stderr)
		}
	case <-time.After(patience):
		c.t.Fatalf("%s did not end\n%s%s", c.name, &c.stdout, &c.stderr)
	}
}

// lastWords is the one line that an error is, behind what was logged.
func (c *command) lastWords() string {
	c.t.Helper()
	var said []string
	for line := range strings.Lines(c.stderr.String()) {
		if !strings.HasPrefix(line, "time=") {
			said = append(said, line)
		}
	}
	if len(said) != 1 || !strings.HasPrefix(said[0], "streamer: ") {
		c.t.Errorf("%s says, beside its log, %q; want one line", c.name, said)
		return ""
	}
	return strings.TrimSpace(said[0])
}

// load writes a file of n readings to the hot table.
func (d *door) load(f *climateFile) {
	d.t.Helper()
	load := begin(d.t, "load", f.name, "--format", "room-climate")
	load.exits(exitOK)
}

// status is what the status command says.
func (d *door) status() status {
	d.t.Helper()
	code, stdout, stderr := streamer(d.t, "status", "-o", "json")
	if code != exitOK {
		d.t.Fatalf("status: exit code %d, %s", code, stderr)
	}
	var st status
	if err := json.Unmarshal([]byte(stdout), &st); err != nil {
		d.t.Fatal(err)
	}
	return st
}

// until waits for something.
func until(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for begun := time.Now(); !happened(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begun) > patience {
			t.Fatalf("%s: not yet", what)
		}
	}
}

// sealed waits until the readings of a file are in the lake, in however many windows, and no
// window is under way.
func (d *door) sealed(f *climateFile) {
	d.t.Helper()
	want := int64(len(f.lines) - 1)
	until(d.t, fmt.Sprintf("%d rows are sealed", want), func() bool {
		st := d.status()
		return st.Lane.CompleteWindow == st.Lane.NextWindow-1 && st.Staging.Objects == 0 && d.rows() >= want
	})
}

// rows counts the readings in the lake by the objects' footers.
func (d *door) rows() (n int64) {
	d.t.Helper()
	dir := filepath.Join(d.dir, "s3", lakeBucket, loadTable(d.t, "sensor_readings", schemas.Readings).Name)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".parquet") {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
		if err == nil {
			n += f.NumRows()
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.t.Fatal(err)
	}
	return n
}
