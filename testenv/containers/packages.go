package containers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A pkg is a look-alike that comes as Python packages, in an environment of its own.
type pkg struct {
	kind         Kind
	distribution string // whose version is pinned
	pin          string // name in versions.env
	services     []Service
	health       string // path that is answered with 200 once it is ready
	// command is what runs in the environment, with its variables. dir is for its files.
	command func(port, dir string) (argv, env []string)
}

// All listen on 127.0.0.1 only, which for MiniStack and LocalStack is not the default. Nothing
// is asked of other machines.
var packages = map[Kind]pkg{
	MiniStack: {MiniStack, "ministack", "MINISTACK_VERSION", allServices, ministackHealth, func(port, _ string) ([]string, []string) {
		return []string{"ministack"}, []string{"BIND_HOST=127.0.0.1", "GATEWAY_PORT=" + port, "MINISTACK_HOST=127.0.0.1", "IOT_MTLS_ENABLED=0"}
	}},
	Moto: {Moto, "moto", "MOTO_VERSION", allServices, motoHealth, func(port, _ string) ([]string, []string) {
		return []string{"moto_server", "-H", "127.0.0.1", "-p", port}, nil
	}},
	LocalStack: {LocalStack, "localstack-core", "LOCALSTACK_VERSION", localStackServices, localstackHealth, func(port, dir string) ([]string, []string) {
		return []string{"python", "-m", "localstack.runtime.main"}, append(localstackSettings(),
			"FILESYSTEM_ROOT="+dir, "GATEWAY_SERVER=hypercorn", "GATEWAY_LISTEN=127.0.0.1:"+port)
	}},
}

// localstackSettings load the services we use at once, refuse others, and have it neither
// report events nor fetch certificates nor answer DNS.
func localstackSettings() []string {
	return []string{
		"SERVICES=s3,firehose,iam,sts,sqs", "STRICT_SERVICE_LOADING=1", "EAGER_SERVICE_LOADING=1",
		"DISABLE_EVENTS=1", "SKIP_SSL_CERT_DOWNLOAD=1", "DNS_ADDRESS=0",
	}
}

// strangersDir is where testenv/strangers/install.sh puts the packages: STREAMER_TEST_STRANGERS,
// or telemetrylake/strangers in the user's cache.
func strangersDir() (string, error) {
	if dir := os.Getenv("STREAMER_TEST_STRANGERS"); dir != "" {
		return dir, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the packages: %w; set STREAMER_TEST_STRANGERS", err)
	}
	return filepath.Join(cache, "telemetrylake", "strangers"), nil
}

// startTries is for a port that another process took in the moment between finding and using it.
const startTries = 3

func startPackage(ctx context.Context, p pkg, dir string) (*AWS, func() error, error) {
	version, err := pinned(p.pin)
	if err != nil {
		return nil, nil, err
	}
	root, err := strangersDir()
	if err != nil {
		return nil, nil, err
	}
	bin := filepath.Join(root, string(p.kind)+"-"+version, "bin")
	if err := p.installed(ctx, bin, version); err != nil {
		return nil, nil, err
	}
	for try := 1; ; try++ {
		a, err := p.run(ctx, bin, dir)
		if err == nil {
			a.Name, a.Version = string(p.kind), version
			return a, a.process.stop, nil
		}
		if !errors.Is(err, errPortTaken) || try == startTries {
			return nil, nil, err
		}
	}
}

// installed checks that the environment has the version that is pinned.
func (p pkg) installed(ctx context.Context, bin, version string) error {
	install := fmt.Sprintf("testenv/strangers/install.sh %s", p.kind)
	python := filepath.Join(bin, "python")
	if _, err := os.Stat(python); err != nil {
		return fmt.Errorf("%s %s is not installed: %w; run %s, which takes it from PyPI into an environment of its own", p.distribution, version, err, install)
	}
	out, err := exec.CommandContext(ctx, python, "-c", "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))", p.distribution).Output()
	if err != nil {
		return fmt.Errorf("look for %s in %s: %w; remove the folder and run %s", p.distribution, bin, err, install)
	}
	if got := strings.TrimSpace(string(out)); got != version {
		return fmt.Errorf("%s has %s %s, %s pins %s; remove the folder and run %s", bin, p.distribution, got, versionsFile, version, install)
	}
	return nil
}

// run starts it and waits until it is ready.
func (p pkg) run(ctx context.Context, bin, dir string) (*AWS, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	argv, env := p.command(strconv.Itoa(port), dir)
	argv[0] = filepath.Join(bin, argv[0])
	// Python's bytecode and what they cache go where the test removes them.
	env = append(env, "HOME="+dir, "TMPDIR="+dir, "PATH="+bin+":/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1")
	proc, err := startProcess(argv, env, dir)
	if err != nil {
		return nil, err
	}
	a := newAWS(p.kind, fmt.Sprintf("http://127.0.0.1:%d", port), p.services)
	a.process = proc
	if err := proc.ready(ctx, a.endpoints[p.services[0]]+p.health); err != nil {
		return nil, errors.Join(err, proc.stop())
	}
	return a, nil
}

var errPortTaken = errors.New("the port was taken meanwhile")

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// ready waits until url is answered with 200, or the process has ended.
func (p *process) ready(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	for {
		if _, err := get(ctx, url); err == nil {
			return nil
		}
		select {
		case <-p.ended:
			text := p.lastWords()
			if bytes.Contains(text, []byte("ddress already in use")) {
				return errPortTaken
			}
			return fmt.Errorf("%s ended before it was ready: %v\n%s", p.name, p.cmd.ProcessState, text)
		case <-ctx.Done():
			return fmt.Errorf("wait for %s at %s: %w\n%s", p.name, url, ctx.Err(), p.lastWords())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// get reads what is answered with 200.
func get(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(resp.Body); err != nil {
		return nil, fmt.Errorf("get %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, &statusError{url, resp.Status}
	}
	return body.Bytes(), nil
}

// A statusError is an answer other than 200.
type statusError struct{ url, status string }

func (e *statusError) Error() string { return "get " + e.url + ": " + e.status }
