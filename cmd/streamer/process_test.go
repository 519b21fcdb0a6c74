package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"telemetrylake/schemas"
	"telemetrylake/testenv"
)

// beStreamer makes the test binary the program: what is killed must be a process of its own.
const beStreamer = "TELEMETRYLAKE_TEST_BE_STREAMER"

func TestMain(m *testing.M) {
	if os.Getenv(beStreamer) != "" {
		main()
	}
	os.Exit(m.Run())
}

// patience is how long a test waits for what must happen. It says nothing about how long that
// may take.
const patience = 4 * time.Minute

// A process is a streamer that runs beside the test.
type process struct {
	t              *testing.T
	name           string
	cmd            *exec.Cmd
	stdin          io.WriteCloser
	stdout, stderr *output
	ended          chan struct{}
}

// An output can be read while it is written.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// startProcess starts a command that is, or becomes, the test binary.
func startProcess(t *testing.T, name string, arg ...string) *process {
	t.Helper()
	p := &process{t: t, name: strings.Join(arg, " "), cmd: exec.CommandContext(t.Context(), name, arg...),
		stdout: &output{}, stderr: &output{}, ended: make(chan struct{})}
	p.cmd.Env = []string{beStreamer + "=1", "AWS_CONFIG_FILE=" + os.DevNull, "AWS_SHARED_CREDENTIALS_FILE=" + os.DevNull}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "AWS_") && !strings.HasPrefix(v, "STREAMER_") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // the exit code tells
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
	})
	return p
}

// signal sends a signal to a process that must be running.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	p.running()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("%s: send %v: %v", p.name, s, err)
	}
}

// running fails if the process has ended.
func (p *process) running() {
	p.t.Helper()
	select {
	case <-p.ended:
		p.t.Fatalf("%s ended by itself: %v\n%s%s", p.name, p.cmd.ProcessState, p.stdout, p.stderr)
	default:
	}
}

// kill ends the process as no program can prevent.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// exits waits until the process ends, which must be with that exit code.
func (p *process) exits(code int) {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // Go prints where it hangs
		<-p.ended
		p.t.Fatalf("%s did not end\n%s%s", p.name, p.stdout, p.stderr)
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Fatalf("%s: exit code %d, want %d\n%s%s", p.name, got, code, p.stdout, p.stderr)
	}
}

// document reads what the ended process wrote as JSON.
func (p *process) document(v any) {
	p.t.Helper()
	if err := json.Unmarshal([]byte(p.stdout.String()), v); err != nil {
		p.t.Fatalf("%s: %v\n%s%s", p.name, err, p.stdout, p.stderr)
	}
}

// A laptop is a machine with an embedded AWS of sensor_readings in a process of its own.
type laptop struct {
	clients // of the embedded AWS
	t       *testing.T
	dir     string
	listen  string
	local   *process
}

func newLaptop(t *testing.T) *laptop {
	t.Helper()
	l := &laptop{t: t, dir: t.TempDir(), listen: fixedPort(t)}
	l.clients = newClients(aws.Config{
		Region: testenv.DefaultRegion, BaseEndpoint: aws.String("http://" + l.listen),
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	})
	l.startLocal()
	return l
}

var portsGiven sync.Map

// fixedPort finds a free port outside of the range that outgoing connections take theirs from:
// while the server is away, a client that tries again and again could get its own port for a
// server's, and be connected to itself. No other test of this process gets it: one that is free
// may be another's whose server starts in a moment.
func fixedPort(t *testing.T) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(10_000))
		if _, given := portsGiven.LoadOrStore(addr, true); given {
			continue
		}
		listener, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		return addr
	}
	t.Fatal("no free port")
	return ""
}

// startLocal starts the embedded AWS on the folder, again on the same address.
func (l *laptop) startLocal() {
	l.t.Helper()
	l.local = startProcess(l.t, os.Args[0], "local", "--dir", l.dir, "--listen", l.listen, "--contract", "sensor_readings", "--deliver-every", "1s")
	until(l.t, "local answers", func() bool {
		l.local.running()
		return strings.Contains(l.local.stdout.String(), "answers on")
	})
}

// start runs a command as a person does: after . DIR/env.
func (l *laptop) start(args ...string) *process {
	l.t.Helper()
	return startProcess(l.t, "sh", slices.Concat([]string{"-c", `. "$0" && exec "$@"`, filepath.Join(l.dir, "env"), os.Args[0]}, args)...)
}

// startRun starts a run whose windows and sweeps are short.
func (l *laptop) startRun(more ...string) *process {
	l.t.Helper()
	return l.start(slices.Concat([]string{"run", "--contract", "sensor_readings", "--window-age", "300ms", "--seal-every", "500ms", "-o", "json"}, more)...)
}

func (l *laptop) status() status {
	l.t.Helper()
	p := l.start("status", "--contract", "sensor_readings", "-o", "json")
	p.exits(exitOK)
	var st status
	p.document(&st)
	return st
}

// next is the number of the lane's next window; of one that never started it is 1 too.
func (l *laptop) next() int64 {
	l.t.Helper()
	return max(1, l.status().Lane.NextWindow)
}

// drain runs until all is in the lake, and checks that nothing is left to do.
func (l *laptop) drain() {
	l.t.Helper()
	l.drainRun()
	// Also what lies beside the prefix of staging, where damage is put.
	if left := objectsBelow(l.t, filepath.Join(l.dir, "s3", stagingBucket)); len(left) > 0 {
		l.t.Errorf("left in the staging bucket: %v", left)
	}
}

// drainRun is drain of an AWS whose objects are not in the laptop's folder.
func (l *laptop) drainRun() {
	l.t.Helper()
	run := l.startRun("--until-drained")
	run.exits(exitOK)
	var totals runTotals
	if run.document(&totals); !totals.Drained || totals.Unsealed != 0 {
		l.t.Errorf("the run says %+v\n%s", totals, run.stderr)
	}
	seal := l.start("seal", "-o", "json")
	seal.exits(exitOK)
	var sealed map[string]any
	if seal.document(&sealed); sealed["staging_objects"] != 0.0 || sealed["sealed_objects"] != 0.0 {
		l.t.Errorf("seal found something to do after the run was drained: %v", sealed)
	}
	st := l.status()
	if st.Lane.Unsealed != 0 || st.Lane.PendingWindow != 0 || st.Lane.CompleteWindow != st.Lane.NextWindow-1 || st.Staging.Objects != 0 || st.Gaps != 0 || st.Lane.Halted != "" {
		l.t.Errorf("after the run was drained the status is %+v", st)
	}
	for _, table := range st.Lake {
		if table.Name != "sensor_readings" && table.Objects > 0 {
			l.t.Errorf("%d objects in table %s, all readings were good and written once", table.Objects, table.Name)
		}
	}
}

// checkReadings compares the lake in a folder of local's with the file, cell by cell, and
// returns how many rows it has.
func checkReadings(t *testing.T, dir string, f *climateFile) (rows int) {
	t.Helper()
	return checkReadingsIn(t, filepath.Join(dir, "s3", lakeBucket), f)
}

// checkReadingsIn is checkReadings of a lake in any folder.
func checkReadingsIn(t *testing.T, lake string, f *climateFile) (rows int) {
	t.Helper()
	table := loadTable(t, "sensor_readings", schemas.Readings)
	var got []string
	keys := map[string]bool{}
	for _, r := range readAlike(t, filepath.Join(lake, table.Name), table) {
		key := r.text(t, "device_id") + " " + r.text(t, "taken_at") + " " + r.text(t, "tie")
		if keys[key] {
			t.Errorf("key %s is in the lake twice", key)
		}
		keys[key] = true
		got = append(got, strings.Join([]string{r.text(t, "device_id"), r.text(t, "taken_at"), r.text(t, "celsius"), r.text(t, "humidity")}, " "))
	}
	slices.Sort(got)
	want := f.cells(t)
	if len(got) != len(want) {
		t.Errorf("%d rows in the lake, %d in the file", len(got), len(want))
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("in order, row %d is %q in the lake and %q in the file", i+1, got[i], want[i])
		}
	}
	return len(got)
}
