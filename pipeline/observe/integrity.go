package observe

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"telemetrylake/pipeline"
)

// staleAfter is how old the stored state may be that integrity is judged by, beyond the bound of
// readiness it has nothing to say.
func (o *Observer) staleAfter() time.Duration { return o.o.Within }

// Integrity says whether everything that the stream gave is in the lake, or on its way within its
// time, and understood.
type Integrity struct {
	OK      bool     `json:"ok"`
	Reasons []string `json:"reasons"` // why it is not

	Gaps       map[string]int `json:"gaps"` // by state
	Unsealed   Unsealed       `json:"unsealed"`
	Quarantine Quarantine     `json:"quarantine"`
	Kept       map[string]int `json:"kept_parts"` // that the last sweep left in staging for a person, by reason
	Damaged    int            `json:"damaged"`    // pieces that the last sweep put aside
	Halted     string         `json:"halted,omitempty"`

	// Every record of the stream with a creation time before CompleteThrough is sealed, and one with
	// a creation time before CommittedThrough is committed or lies in a gap; left out if unknown.
	CompleteThrough  time.Time `json:"complete_through,omitzero"`
	CommittedThrough time.Time `json:"committed_through,omitzero"`
	AsOf             time.Time `json:"as_of,omitzero"` // when the stored state was read; left out if it was not
}

// Unsealed are the windows of which some part is not known to be in the lake.
type Unsealed struct {
	Windows          int     `json:"windows"`
	OldestAgeSeconds float64 `json:"oldest_age_seconds"`
	BoundSeconds     float64 `json:"bound_seconds"`
	PastBound        int     `json:"past_bound"`
}

// Quarantine is how much of the last hour's records did not fit the contract.
type Quarantine struct {
	Records     int     `json:"records"`
	Quarantined int     `json:"quarantined"`
	Share       float64 `json:"share"`
	BoundShare  float64 `json:"bound_share"`
}

// Integrity says whether everything is in the lake or on its way. It is never OK while a gap is
// not closed, a window is not sealed within its bound, the lane is halted, staging holds parts
// that a person must look at, more records than the bound are quarantined, or the stored state is
// not known.
func (o *Observer) Integrity() Integrity {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.o.Now()
	book := &o.state.book
	in := Integrity{
		Reasons: []string{}, Gaps: gapsByState(book.Gaps), Unsealed: o.unsealed(book.Windows, now), Quarantine: o.quarantine(now),
		Kept: map[string]int{}, Damaged: o.sealing.last.Damaged, Halted: book.Halted, AsOf: o.state.at,
		CommittedThrough: o.state.committed, CompleteThrough: o.state.complete,
	}
	maps.Copy(in.Kept, o.sealing.last.Kept)
	say := func(format string, args ...any) { in.Reasons = append(in.Reasons, fmt.Sprintf(format, args...)) }
	switch s := &o.state; {
	case s.at.IsZero():
		say("the stored state was not read yet%s", because(s.err))
	case now.Sub(s.at) > o.staleAfter():
		say("the stored state was not read for %s%s", bound(now.Sub(s.at)), because(s.err))
	}
	if n := in.Gaps[string(pipeline.GapOpen)]; n > 0 {
		say("%s open: records aged out before they were landed", counted(n, "gap is", "gaps are"))
	}
	if n := in.Gaps[string(pipeline.GapRepairing)]; n > 0 {
		say("%s being repaired", counted(n, "gap is", "gaps are"))
	}
	if n := in.Unsealed.PastBound; n > 0 {
		say("%s not in the lake %s after landing; the oldest has waited for %s", counted(n, "window is", "windows are"),
			bound(o.o.UnsealedWithin), bound(time.Duration(in.Unsealed.OldestAgeSeconds*float64(time.Second))))
	}
	if q := in.Quarantine; q.Share > q.BoundShare {
		say("%d of the last hour's %d records are quarantined, more than %g%%", q.Quarantined, q.Records, 100*q.BoundShare)
	}
	for _, why := range slices.Sorted(maps.Keys(in.Kept)) {
		if n := in.Kept[why]; n > 0 {
			say("%s in staging: %s", counted(n, "part stays", "parts stay"), why)
		}
	}
	if in.Halted != "" {
		say("the lane is halted: %s", clip(in.Halted))
	}
	in.OK = len(in.Reasons) == 0
	return in
}

func because(err string) string {
	if err == "" {
		return ""
	}
	return ": " + err
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func gapsByState(gaps []pipeline.Gap) map[string]int {
	n := make(map[string]int, len(gapStates))
	for _, s := range gapStates {
		n[s] = 0
	}
	for _, g := range gaps {
		if _, known := n[string(g.State)]; known {
			n[string(g.State)]++
		} else {
			n[string(pipeline.GapOpen)]++ // a state of a newer version is not taken for closed
		}
	}
	return n
}

func (o *Observer) unsealed(windows []Window, now time.Time) Unsealed {
	u := Unsealed{Windows: len(windows), BoundSeconds: o.o.UnsealedWithin.Seconds()}
	for _, w := range windows {
		if w.Since.IsZero() {
			continue
		}
		age := max(0, now.Sub(w.Since))
		u.OldestAgeSeconds = max(u.OldestAgeSeconds, age.Seconds())
		if age > o.o.UnsealedWithin {
			u.PastBound++
		}
	}
	return u
}

func (o *Observer) quarantine(now time.Time) Quarantine {
	records, quarantined := o.flow.recent.sum(now)
	q := Quarantine{Records: records, Quarantined: quarantined, BoundShare: o.o.QuarantineShare}
	if records > 0 {
		q.Share = float64(quarantined) / float64(records)
	}
	return q
}
