package observe_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"telemetrylake/pipeline/observe"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs from what is made now (-update writes it anew):\n%s", path, got)
	}
}

var someReasons = []string{"type", "range"}

func TestTheListOfMetricsIsWhatAScrapeHas(t *testing.T) {
	reg := prometheus.NewRegistry()
	o := observe.New(observe.Options{Registry: reg, Reasons: someReasons})
	o.Call("DynamoDB Streams", "GetRecords", observe.CallThrottled, false)
	o.Call("DynamoDB Streams", "GetRecords", observe.CallOK, true)

	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range families {
		labels := map[string]bool{}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = true
			}
		}
		got[f.GetName()] = fmt.Sprint(strings.ToLower(f.GetType().String()), len(labels), f.GetHelp())
	}
	var list strings.Builder
	for _, m := range observe.Metrics(someReasons) {
		if want := fmt.Sprint(string(m.Kind), len(m.Labels), m.Help); got[m.Name] != want {
			t.Errorf("%s is scraped as %q, the list says %q", m.Name, got[m.Name], want)
		}
		delete(got, m.Name)
		fmt.Fprintf(&list, "%s %s", m.Name, m.Kind)
		if m.Unit != "" {
			fmt.Fprintf(&list, " [%s]", m.Unit)
		}
		for _, l := range m.Labels {
			fmt.Fprintf(&list, " %s=%s", l.Name, cmp.Or(strings.Join(l.Values, "|"), "(of AWS)"))
		}
		fmt.Fprintf(&list, "\n\t%s\n", m.Help)
	}
	for name := range got {
		t.Errorf("%s is scraped and on no list", name)
	}
	golden(t, "metrics.txt", list.String())
}

func TestMetricsFollowTheConventions(t *testing.T) {
	reg := prometheus.NewRegistry()
	o := observe.New(observe.Options{Registry: reg, Reasons: someReasons})
	o.Call("S3", "GetObject", observe.CallFailed, true)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, m := range observe.Metrics(nil) {
		if !strings.HasPrefix(m.Name, "streamer_") {
			t.Errorf("%s does not begin with streamer_", m.Name)
		}
		for _, l := range m.Labels {
			if slices.Contains([]string{"shard", "object", "device", "window", "part"}, l.Name) {
				t.Errorf("%s has a label %s, which grows without bound", m.Name, l.Name)
			}
			if l.Values == nil && l.Name != "service" && l.Name != "operation" {
				t.Errorf("%s: the values of label %s are not listed", m.Name, l.Name)
			}
		}
	}
}

func TestTwoObserversLiveInOneProcess(t *testing.T) {
	a, b := observe.New(observe.Options{}), observe.New(observe.Options{})
	a.Runtime()
	b.Runtime()
}

// sample is the value of the one series whose line begins so.
func sample(t *testing.T, o *observe.Observer, series string) string {
	t.Helper()
	for line := range strings.Lines(get(t, o, "/metrics").Body.String()) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("no series %s", series)
	return ""
}

func check(t *testing.T, o *observe.Observer, want map[string]string) {
	t.Helper()
	for series, value := range want {
		if got := sample(t, o, series); got != value {
			t.Errorf("%s is %s, want %s", series, got, value)
		}
	}
}
