package observe

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler answers what monitors ask:
//
//	/metrics    for Prometheus
//	/healthz    200 for as long as the process answers
//	/readyz     200 if the pipeline moves or has nothing to move, else 503 with the reasons
//	/integrity  200 if everything is in the lake or on its way in time, else 503 with the reasons
//
// The last two answer in JSON, or as lines of text if the request accepts text/plain and not JSON,
// or says ?format=text.
func (o *Observer) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(o.o.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		a := o.Ready()
		answer(w, r, a.Ready, a)
	})
	mux.HandleFunc("GET /integrity", func(w http.ResponseWriter, r *http.Request) {
		a := o.Integrity()
		answer(w, r, a.OK, a)
	})
	return mux
}

// A text writes itself as lines for people.
type text interface{ writeText(w io.Writer) }

func answer(w http.ResponseWriter, r *http.Request, ok bool, body text) {
	status := http.StatusOK
	if !ok {
		status = http.StatusServiceUnavailable
	}
	w.Header().Set("Cache-Control", "no-store")
	if wantsText(r) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(status)
		body.writeText(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	_ = enc.Encode(body) // what fails here is the connection, and nobody is left to tell
}

func wantsText(r *http.Request) bool {
	if f := r.URL.Query().Get("format"); f != "" {
		return f == "text"
	}
	accept := r.Header.Get("Accept")
	return strings.Contains(accept, "text/plain") && !strings.Contains(accept, "json")
}

func (a Readiness) writeText(w io.Writer) {
	verdict := "ready"
	if !a.Ready {
		verdict = "not ready"
	}
	fmt.Fprintf(w, "%s (%s)", verdict, a.Role)
	if a.Detail != "" {
		fmt.Fprintf(w, ": %s", a.Detail)
	}
	fmt.Fprintln(w)
	reasons(w, a.Reasons)
	for _, s := range stepNames {
		fmt.Fprintf(w, "last %s: %s\n", s, when(a.Progress[Step(s)], "never"))
	}
	if a.Failure != "" {
		fmt.Fprintf(w, "last failure: %s\n", a.Failure)
	}
	for _, s := range shardStates {
		fmt.Fprintf(w, "shards %s: %d\n", s, a.Shards[s])
	}
	for _, s := range a.Waits {
		fmt.Fprintf(w, "shard %s (%s) waits for %s\n", s.Shard, s.State, s.For)
	}
}

func (a Integrity) writeText(w io.Writer) {
	verdict := "ok"
	if !a.OK {
		verdict = "not ok"
	}
	fmt.Fprintln(w, verdict)
	reasons(w, a.Reasons)
	for _, s := range gapStates {
		fmt.Fprintf(w, "gaps %s: %d\n", s, a.Gaps[s])
	}
	fmt.Fprintf(w, "windows not sealed: %d, the oldest for %gs, past the bound of %gs: %d\n",
		a.Unsealed.Windows, a.Unsealed.OldestAgeSeconds, a.Unsealed.BoundSeconds, a.Unsealed.PastBound)
	fmt.Fprintf(w, "quarantined in the last hour: %d of %d\n", a.Quarantine.Quarantined, a.Quarantine.Records)
	fmt.Fprintf(w, "complete through: %s\n", when(a.CompleteThrough, "unknown"))
	fmt.Fprintf(w, "committed through: %s\n", when(a.CommittedThrough, "unknown"))
	fmt.Fprintf(w, "as of: %s\n", when(a.AsOf, "never"))
}

func reasons(w io.Writer, all []string) {
	for _, r := range all {
		fmt.Fprintf(w, "- %s\n", strings.Join(strings.Fields(r), " "))
	}
}

func when(t time.Time, zero string) string {
	if t.IsZero() {
		return zero
	}
	return t.UTC().Format(time.RFC3339)
}
