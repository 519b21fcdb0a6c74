package observe

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"telemetrylake/pipeline"
)

// reading is what is known of the reading of the stream.
type reading struct {
	round  Round     // the last
	begun  bool      // there was one
	listed time.Time // when the last round that listed all shards began
	// When each shard was last read, or waited for something that is no failure.
	good map[pipeline.ShardID]time.Time
}

func newReading() reading { return reading{good: map[pipeline.ShardID]time.Time{}} }

// A Round is what a round of the stream saw.
type Round struct {
	Began      time.Time // a time before it asked for anything
	Pages      int       // read, with the empty ones
	EmptyPages int
	Listed     bool // a complete listing was made
	Disabled   bool // the stream takes no more records
	Shards     []Shard
	Failed     error // why part of the stream could not be read; nil if all went well
}

// A Shard is what a round knows of one shard.
type Shard struct {
	ID     pipeline.ShardID
	Parent pipeline.ShardID
	State  string // waiting, reading, tip, closing, drained or finished
	// Failed is why it could not be read this time; nil if it could, or needed not to be.
	Failed error
	Until  time.Time // when it is tried again; zero if that is not known
	Why    string    // what it waits for, if it is none of the above: a few words
}

// Round notes what a round of the stream saw. Rounds do not overlap.
func (o *Observer) Round(r Round) {
	o.m.pages.Add(float64(r.Pages))
	o.m.emptyPages.Add(float64(r.EmptyPages))
	if r.Failed != nil {
		o.failed("read")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.o.Now()
	g := &o.read
	if r.Listed {
		g.listed = r.Began
	}
	g.round, g.begun = r, true
	if r.Pages > 0 || r.Failed == nil {
		o.move(StepRead)
	}
	named := make(map[pipeline.ShardID]bool, len(r.Shards))
	for _, s := range r.Shards {
		named[s.ID] = true
		if _, known := g.good[s.ID]; s.Failed == nil || !known {
			g.good[s.ID] = now
		}
	}
	maps.DeleteFunc(g.good, func(id pipeline.ShardID, _ time.Time) bool { return !named[id] })
	if r.Listed || r.Disabled {
		o.judge()
	}
}

// stuck lists the shards that could not be read for longer than the bound, longest first. o.mu is held.
func (o *Observer) stuck() []Shard {
	now := o.o.Now()
	var out []Shard
	for _, s := range o.read.round.Shards {
		if s.Failed != nil && now.Sub(o.read.good[s.ID]) > o.o.Within {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b Shard) int {
		return cmp.Or(o.read.good[a.ID].Compare(o.read.good[b.ID]), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// Readiness says whether the pipeline moves.
type Readiness struct {
	Ready    bool               `json:"ready"`
	Role     Role               `json:"role"`
	Detail   string             `json:"detail,omitempty"`
	Reasons  []string           `json:"reasons"`                // why it is not ready
	Progress map[Step]time.Time `json:"last_progress"`          // by step; a step that never was made is missing
	Failure  string             `json:"last_failure,omitempty"` // that made the lane start again, if it did
	Shards   map[string]int     `json:"shards"`                 // by state
	Waits    []Wait             `json:"waits"`                  // what shards wait for, at most 20
}

// A Wait says what one shard waits for.
type Wait struct {
	Shard pipeline.ShardID `json:"shard"`
	State string           `json:"state"`
	For   string           `json:"for"`
}

// Ready says whether the pipeline moves, or has nothing to move. It does not while, for longer
// than the bound, no round of the stream ends, a shard cannot be read, records that were read are
// not committed, or no sweep of staging ends well.
func (o *Observer) Ready() Readiness {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := Readiness{
		Role: cmp.Or(o.role, Starting), Detail: o.detail, Reasons: []string{}, Progress: maps.Clone(o.moved),
		Failure: o.failure, Shards: o.byState(), Waits: o.waits(),
	}
	now := o.o.Now()
	say := func(format string, args ...any) { r.Reasons = append(r.Reasons, fmt.Sprintf(format, args...)) }
	switch r.Role {
	case Starting, Stopping:
		say("%s", r.Role)
		if now.Sub(o.since) > o.o.Within {
			say("%s for %s", r.Role, bound(now.Sub(o.since)))
		}
	case Active:
		o.active(now, say)
	}
	r.Ready = len(r.Reasons) == 0
	return r
}

func (o *Observer) active(now time.Time, say func(string, ...any)) {
	within := o.o.Within
	if !o.read.begun {
		say("the stream was not read yet")
	}
	// A round may last as long as windows are committed within it.
	if idle := now.Sub(o.movedSince(StepRead, StepCommit)); idle > within {
		say("nothing was read from the stream for %s%s", bound(idle), o.standsAt(now))
	}
	if stuck := o.stuck(); len(stuck) > 0 {
		s := stuck[0]
		say("%d of %d shards could not be read for longer than %s; first %s, for %s: %s", len(stuck), len(o.read.round.Shards),
			bound(within), s.ID, bound(now.Sub(o.read.good[s.ID])), clip(s.Failed.Error()))
	}
	if age := o.uncommitted(now); age > within+o.o.WindowAge {
		say("records of %d shards were read and are not committed for %s", len(o.flow.waiting), bound(age))
	}
	if idle := now.Sub(o.movedSince(StepSeal)); idle > within+o.o.SealEvery {
		say("staging was not swept with success for %s", bound(idle))
	}
}

// standsAt says where reading stands, as far as is known.
func (o *Observer) standsAt(now time.Time) string {
	switch f := &o.flow; {
	case f.emitting != "":
		return fmt.Sprintf("; records of shard %s wait for their window since %s", f.emitting, bound(now.Sub(f.since)))
	case o.read.round.Failed != nil:
		return ": " + clip(o.read.round.Failed.Error())
	case o.failure != "":
		return ": " + o.failure
	}
	return ""
}

// uncommitted is how long records that were read have waited for their window's commit.
func (o *Observer) uncommitted(now time.Time) time.Duration {
	if len(o.flow.waiting) == 0 {
		return 0
	}
	return max(0, now.Sub(o.flow.waitingSince))
}

func (o *Observer) byState() map[string]int {
	n := make(map[string]int, len(shardStates))
	for _, s := range shardStates {
		n[s] = 0
	}
	for _, s := range o.read.round.Shards {
		n[s.State]++
	}
	return n
}

// maxWaits is how many shards an answer or a log line names.
const maxWaits = 20

// waits says what shards wait for, those that fail first. A shard that was read, or is finished,
// waits for nothing.
func (o *Observer) waits() []Wait {
	now := o.o.Now()
	failing, other := []Wait{}, []Wait{}
	for _, s := range o.read.round.Shards {
		w := Wait{Shard: s.ID, State: s.State}
		switch {
		case o.flow.emitting == s.ID:
			w.For = fmt.Sprintf("its window to be landed, since %s", bound(now.Sub(o.flow.since)))
		case s.Failed != nil:
			w.For = fmt.Sprintf("another attempt%s, after failures for %s: %s", at(s.Until), bound(now.Sub(o.read.good[s.ID])), clip(s.Failed.Error()))
			failing = append(failing, w)
			continue
		case s.Why != "":
			w.For = s.Why + at(s.Until)
		case s.State == "waiting" && s.Parent != "":
			w.For = fmt.Sprintf("its parent %s to be committed to its end", s.Parent)
		case s.State == "waiting":
			w.For = "its first round"
		case s.State == "closing":
			w.For = "a listing that says it is closed"
		case s.State == "drained":
			w.For = "its end to be committed"
		default:
			if _, uncommitted := o.flow.waiting[s.ID]; !uncommitted {
				continue
			}
			w.For = fmt.Sprintf("its records to be committed, for at most %s", bound(o.uncommitted(now)))
		}
		other = append(other, w)
	}
	all := append(failing, other...)
	return all[:min(len(all), maxWaits)]
}

func at(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " at " + t.UTC().Format(time.RFC3339)
}

// Watch tells in the log when nothing moved for the bound of readiness, with what each shard waits
// for, again after each such time, and when it moves again. It returns when ctx is done.
func (o *Observer) Watch(ctx context.Context) {
	every := max(time.Second, min(o.o.Within/4, 30*time.Second))
	for pipeline.Wait(ctx, every) == nil {
		o.Look(ctx)
	}
}

// Look is one look of the watchdog.
func (o *Observer) Look(ctx context.Context) {
	r := o.Ready()
	o.mu.Lock()
	now := o.o.Now()
	was := o.told
	// What only just began to start or stop is no news.
	news := !r.Ready && r.Role != Stopping && now.Sub(o.since) > o.o.Within
	tell := news && (was.IsZero() || now.Sub(was) >= o.o.Within)
	again := r.Ready && !was.IsZero()
	switch {
	case tell:
		o.told = now
	case again:
		o.told = time.Time{}
	}
	o.mu.Unlock()
	switch {
	case tell:
		o.log.WarnContext(ctx, "no progress", "role", string(r.Role), "reasons", r.Reasons, "shards", r.Shards, "last_failure", r.Failure)
		for _, w := range r.Waits {
			o.log.WarnContext(ctx, "shard waits", "shard", w.Shard, "state", w.State, "for", w.For)
		}
	case again:
		o.log.WarnContext(ctx, "there is progress again")
	}
}
