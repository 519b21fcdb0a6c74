// Package observe knows how a pipeline tells of itself: metrics, readiness, integrity, and what
// each shard waits for. Its one rule: what it does not know it never takes for good news.
//
// An [Observer] stands around the stages of one lane as their decorator and is told what rounds
// and sweeps saw. It reads nothing of items: no metric, answer or log line of it holds their
// contents, and none is labelled by shard or object.
package observe

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Options of an Observer. The zero value of a field means its default.
type Options struct {
	Registry *prometheus.Registry // default: one of its own; metrics of a program's run are added by [Runtime]
	Now      func() time.Time     // default time.Now
	Log      *slog.Logger         // default: none

	// Within is how long nothing may move although there is work: default 5 minutes. WindowAge and
	// SealEvery are what a window and a sweep may take by their settings, on top of it.
	Within    time.Duration
	WindowAge time.Duration
	SealEvery time.Duration

	// UnsealedWithin is how long a window may wait to be in the lake: default 30 minutes, the 15
	// for which Firehose may be told to gather and 15 more.
	UnsealedWithin time.Duration
	// QuarantineShare is how much of an hour's records may be quarantined: default 0.01.
	QuarantineShare float64
	// Reasons are the words that say why a record is quarantined. Any other counts as "other".
	Reasons []string
}

// An Observer watches one lane. It is safe for concurrent use.
type Observer struct {
	o   Options
	log *slog.Logger
	m   *metrics

	mu      sync.Mutex
	role    Role
	detail  string    // of the role, for people
	since   time.Time // of the role
	moved   map[Step]time.Time
	failure string // last failure that made the lane start again

	read     reading
	flow     flow
	delivery delivering // of parts to the delivery stream
	sealing  sweeping
	state    stored
	told     time.Time // when the watchdog last spoke; zero while all moves
}

// New returns an Observer whose metrics are in the registry.
func New(o Options) *Observer {
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Within = cmp.Or(o.Within, 5*time.Minute)
	o.UnsealedWithin = cmp.Or(o.UnsealedWithin, 30*time.Minute)
	o.QuarantineShare = cmp.Or(o.QuarantineShare, 0.01)
	o.Reasons = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(o.Reasons), otherReason))))
	ob := &Observer{
		o: o, log: o.Log, m: newMetrics(o.Registry, o.Reasons),
		moved: map[Step]time.Time{},
		read:  newReading(), flow: newFlow(), state: newStored(),
	}
	ob.since = o.Now()
	o.Registry.MustRegister(&sampler{ob})
	return ob
}

// Runtime adds the metrics of the Go runtime and of the process to the registry.
func (o *Observer) Runtime() {
	o.o.Registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
}

// A Role is what the process is to its lane.
type Role string

// Roles of a process.
const (
	Starting Role = "starting"
	Standby  Role = "standby" // another process has the lane; this one takes over when it is gone
	Active   Role = "active"
	Stopping Role = "stopping"
)

// Become notes what the process is to its lane from now on. detail is for people.
func (o *Observer) Become(r Role, detail string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.role != r {
		o.since = o.o.Now()
	}
	o.role, o.detail = r, detail
}

// AllowUnsealed sets how long a window may wait to be in the lake, once that is known.
func (o *Observer) AllowUnsealed(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.o.UnsealedWithin = d
}

// Restarting notes why the lane starts again from its checkpoint.
func (o *Observer) Restarting(err error) {
	o.m.restarts.Inc()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failure = clip(err.Error())
	o.flow.forget()
}

// A Step is one of the ways in which a pipeline moves on.
type Step string

// Steps of a pipeline.
const (
	StepRead   Step = "read"   // a round of the stream in which something could be read
	StepCommit Step = "commit" // a window was committed
	StepSeal   Step = "seal"   // a sweep of staging ended well
)

// move notes that the pipeline moved on. o.mu is held.
func (o *Observer) move(s Step) { o.moved[s] = o.o.Now() }

// movedSince is when the pipeline last moved on in one of the ways, or got its role.
func (o *Observer) movedSince(steps ...Step) time.Time {
	last := o.since
	for _, s := range steps {
		if at := o.moved[s]; at.After(last) {
			last = at
		}
	}
	return last
}

// maxText bounds what an answer repeats of an error.
const maxText = 300

func clip(s string) string {
	r := []rune(s)
	if len(r) <= maxText {
		return s
	}
	return string(r[:maxText]) + "…"
}

// bound says a duration as people read it.
func bound(d time.Duration) string { return d.Round(time.Second).String() }
