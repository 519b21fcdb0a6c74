package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"telemetrylake/pipeline/observe"
	"telemetrylake/schemas"
)

// A composed is what the tests ask of docker-compose.yml.
type composed struct {
	Services map[string]struct {
		Image       string
		Profiles    []string
		Command     []string
		User        string
		ReadOnly    bool `yaml:"read_only"`
		Privileged  bool
		NetworkMode string   `yaml:"network_mode"`
		CapDrop     []string `yaml:"cap_drop"`
		SecurityOpt []string `yaml:"security_opt"`
		Ports       []string
		Environment map[string]string
		Healthcheck struct{ Test []string }
	}
}

func repoFile(t *testing.T, name ...string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{"..", ".."}, name...)...))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func readComposed(t *testing.T) composed {
	t.Helper()
	var c composed
	if err := yaml.Unmarshal(repoFile(t, "docker-compose.yml"), &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Services) == 0 {
		t.Fatal("docker-compose.yml has no services")
	}
	return c
}

// pins are the lines of testenv/versions.env, read by way of .env as compose does.
func pins(t *testing.T) map[string]string {
	t.Helper()
	p := map[string]string{}
	for line := range strings.Lines(string(repoFile(t, ".env"))) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			p[name] = value
		}
	}
	return p
}

func TestComposedServicesAreReachedFromThisMachineOnly(t *testing.T) {
	// In a container a service must listen on all addresses for its port to be published at all.
	published := regexp.MustCompile(`^127\.0\.0\.1:\$\{[A-Z]+_PORT:-(\d+)\}:\d+$`)
	ports := 0
	for name, s := range readComposed(t).Services {
		for _, p := range s.Ports {
			if ports++; !published.MatchString(p) {
				t.Errorf("%s publishes %q, not on 127.0.0.1 with a port to choose", name, p)
			}
		}
		if s.NetworkMode != "" {
			t.Errorf("%s has the network %s", name, s.NetworkMode)
		}
	}
	if ports == 0 {
		t.Error("no service publishes a port")
	}
}

func TestComposedServicesHaveFewRights(t *testing.T) {
	for name, s := range readComposed(t).Services {
		if !slices.Contains(s.SecurityOpt, "no-new-privileges:true") || s.Privileged {
			t.Errorf("%s can gain privileges", name)
		}
		if strings.Contains(s.Image, "LOCALSTACK") {
			continue // it writes all over its image, as root
		}
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) {
			t.Errorf("%s can write to its image, or has capabilities: read_only %v, cap_drop %v", name, s.ReadOnly, s.CapDrop)
		}
		if ours := strings.HasPrefix(s.Image, "telemetrylake/"); ours && (s.User == "" || strings.HasPrefix(s.User, "0") || strings.HasPrefix(s.User, "root")) {
			t.Errorf("%s runs as user %q", name, s.User)
		}
	}
}

func TestVersionsOfImagesArePinnedInOnePlace(t *testing.T) {
	pinned := pins(t)
	variable := regexp.MustCompile(`^\$\{([A-Z_]+):\?[^}]+\}$`)
	for name, s := range readComposed(t).Services {
		if s.Image == "telemetrylake/streamer:local" { // built here
			continue
		}
		m := variable.FindStringSubmatch(s.Image)
		if m == nil || !regexp.MustCompile(`^[a-z/-]+:v?\d+\.\d+`).MatchString(pinned[m[1]]) {
			t.Errorf("the image of %s is %q, which testenv/versions.env does not pin", name, s.Image)
		}
	}
	// docker build without compose takes the default.
	if want := "ARG GO_IMAGE=" + pinned["GO_IMAGE"] + "\n"; !strings.Contains(string(repoFile(t, "Dockerfile")), want) {
		t.Errorf("the Dockerfile has no line %q", want)
	}
}

func TestComposedCommandsAreThoseOfTheProgram(t *testing.T) {
	ours := 0
	for name, s := range readComposed(t).Services {
		if !strings.HasPrefix(s.Image, "telemetrylake/") {
			continue
		}
		ours++
		for _, args := range [][]string{s.Command, s.Healthcheck.Test[2:]} {
			c, rest, err := newRoot().Find(args)
			if err == nil && c.Parent() == nil {
				t.Errorf("%s: %q is no command", name, args)
			}
			if err == nil {
				err = c.ParseFlags(rest)
			}
			if err != nil {
				t.Errorf("%s: %q: %v", name, args, err)
			}
		}
		for variable := range s.Environment {
			if setting, ok := strings.CutPrefix(variable, "STREAMER_"); ok && newSettings().flags.Lookup(strings.ToLower(strings.ReplaceAll(setting, "_", "-"))) == nil {
				t.Errorf("%s: %s is no setting", name, variable)
			}
		}
	}
	if ours == 0 {
		t.Error("no service runs the program")
	}
}

func TestComposedLocalStackHasADeliveryStreamForEachContract(t *testing.T) {
	var want []string
	for _, name := range schemas.Names() {
		c, err := schemas.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, c.Table)
	}
	env := readComposed(t).Services["localstack"].Environment
	if got := strings.Fields(env["DELIVERY_STREAMS"]); !slices.Equal(got, want) {
		t.Errorf("delivery streams %q, tables %q", got, want)
	}
	if got := strings.Fields(env["BUCKETS"]); !slices.Equal(got, []string{stagingBucket, lakeBucket}) {
		t.Errorf("buckets %q", got)
	}
}

func TestDashboardShowsMetricsThatExist(t *testing.T) {
	kinds := map[string]observe.Kind{}
	for _, m := range observe.Metrics(nil) {
		kinds[m.Name] = m.Kind
	}
	var dashboard struct {
		Panels []struct {
			Title, Type string
			Targets     []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(repoFile(t, "testenv", "docker", "grafana", "dashboards", "telemetrylake.json"), &dashboard); err != nil {
		t.Fatal(err)
	}
	shown := 0
	for _, p := range dashboard.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			for _, name := range regexp.MustCompile(`streamer_\w+`).FindAllString(target.Expr, -1) {
				shown++
				of, bucket := strings.CutSuffix(name, "_bucket")
				kind := kinds[of]
				if kind == "" || bucket != (kind == observe.Histogram) {
					t.Errorf("panel %q: there is no metric %s", p.Title, name)
				}
				// A counter's value tells when the process started; only its growth tells something.
				if grows := strings.Contains(target.Expr, "rate(") || strings.Contains(target.Expr, "increase("); grows != (kind != observe.Gauge) {
					t.Errorf("panel %q: %q shows a %s", p.Title, target.Expr, kind)
				}
			}
		}
	}
	if shown == 0 {
		t.Error("the dashboard shows no metric")
	}
}

func TestLocalInAContainerIsReachedOnItsLoopback(t *testing.T) {
	for listens, want := range map[string]string{
		"0.0.0.0:4588":    "127.0.0.1:4588",
		"[::]:4588":       "127.0.0.1:4588",
		"127.0.0.1:4588":  "127.0.0.1:4588",
		"[::1]:4588":      "[::1]:4588",
		"172.18.0.2:4588": "172.18.0.2:4588",
	} {
		a, err := net.ResolveTCPAddr("tcp", listens)
		if err != nil {
			t.Fatal(err)
		}
		if got := reachable(a); got != want {
			t.Errorf("what listens on %s is reached at %s, want %s", listens, got, want)
		}
	}
}
