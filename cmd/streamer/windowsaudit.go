package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/columnar"
	"telemetrylake/pipeline/lake"
	"telemetrylake/pipeline/observe"
	"telemetrylake/pipeline/stream"
)

const (
	// landedAgainMost is how often a window is landed again before it is left to be given up.
	landedAgainMost = 3
	// landedAgainAtOnce bounds the windows of a lane that one audit lands again: after an outage many
	// are late, and most of them are on their way. Those whose records age out first come first.
	landedAgainAtOnce = 25
	// firehoseLongest is how long a delivery stream can be told to gather (BufferingHints,
	// IntervalInSeconds).
	firehoseLongest = 15 * time.Minute
)

// unsealedWithin is how long a landed window may wait to be in the lake: what is set, or the slack
// more than the delivery stream gathers, which is 0 if that is not known.
func (s *settings) unsealedWithin(gathers time.Duration) time.Duration {
	return cmp.Or(s.UnsealedWithin, cmp.Or(gathers, firehoseLongest)+firehoseSlack)
}

// An auditor sees to it that what was committed comes into the lake. A window that is late is landed
// again, straight into staging, while the stream holds its records, up to three times, each after
// twice the wait of the one before; seal drops the copies that were too many. What never came is
// given up.
type auditor struct {
	giver
	staging  *lake.Bucket // nil: nothing goes through one here
	sink     pipeline.Sink
	stages   pipeline.Stages // what makes parts again; the replayer is that of the window's stream
	replayer func(stream string) pipeline.Replayer
	within   time.Duration
	// Windows that cannot be made again, or could not the last time, and when that is tried again.
	resting map[pipeline.WindowID]time.Time
}

func newAuditor(c clients, g giver, staging *lake.Bucket, within time.Duration) *auditor {
	mem := memory.DefaultAllocator
	return &auditor{
		giver: g, staging: staging, sink: lake.NewStager(staging), within: within, resting: map[pipeline.WindowID]time.Time{},
		stages: pipeline.Stages{Decoder: columnar.NewDecoder(mem), Encoder: columnar.NewEncoder(mem), Contracts: g.store},
		replayer: func(arn string) pipeline.Replayer {
			return stream.New(c.streams, stream.Options{StreamARN: arn, Logger: g.log}) // it only replays, which asks for no position
		},
	}
}

// audit folds the lanes, gives up what is lost, and lands again what is late. swept is how the sweep
// of staging before it ended: unless that saw all there is, what lies in staging is not late.
func (a *auditor) audit(ctx context.Context, lanes []pipeline.LaneID, swept error) (observe.Audit, error) {
	now := a.store.ServerNow()
	maps.DeleteFunc(a.resting, func(_ pipeline.WindowID, until time.Time) bool { return until.Before(now) })
	var total observe.Audit
	var errs []error
	seen := &stagedParts{auditor: a, all: swept != nil}
	for _, lane := range lanes {
		windows, err := a.store.FoldRest(ctx, lane)
		errs = append(errs, err)
		n, err := a.giver.windows(ctx, windows)
		total.GivenUp += n
		errs = append(errs, err)
		n, err = a.again(ctx, windows, seen)
		total.Again += n
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return total, errors.Join(errs...)
}

// again lands those of the windows again that are due, and returns how many.
func (a *auditor) again(ctx context.Context, windows []checkpoint.WindowStatus, seen *stagedParts) (int, error) {
	now := a.store.ServerNow()
	windows = slices.DeleteFunc(slices.Clone(windows), func(w checkpoint.WindowStatus) bool { return !a.due(w, now) })
	slices.SortStableFunc(windows, func(x, y checkpoint.WindowStatus) int { return x.Oldest.Compare(y.Oldest) })
	n := 0
	var errs []error
	for _, w := range windows[:min(len(windows), landedAgainAtOnce)] {
		landed, err := a.window(ctx, w, seen)
		if landed {
			n++
		}
		if err != nil {
			errs = append(errs, refusedByAWS(fmt.Errorf("land window %s again: %w", w.ID, err)))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return n, errors.Join(errs...)
}

// refusedByAWS has a person allow what AWS refuses: it is not what sealing itself needs, which goes on.
func refusedByAWS(err error) error {
	if !needsPerson(err) {
		return err
	}
	return pipeline.NeedPerson(explain(err), "allow the role that seals to read the streams (dynamodb:GetRecords, dynamodb:GetShardIterator) and to put objects into staging")
}

// due reports whether a window is late. Of one whose gaps are open the records have aged out, and one
// whose parts are lake objects at once is in the lake when it is committed.
func (a *auditor) due(w checkpoint.WindowStatus, now time.Time) bool {
	since := w.LandedAt
	if since.IsZero() {
		since = w.CommittedAt
	}
	return a.staging != nil && w.Lake == "" && w.State == pipeline.WindowCommitted && w.Landings < landedAgainMost && !w.Gaps && w.Parts > 0 &&
		now.Sub(since) >= a.within<<w.Landings && !now.Before(a.resting[w.ID])
}

// window lands what is missing of a window again, if it can be had.
func (a *auditor) window(ctx context.Context, w checkpoint.WindowStatus, seen *stagedParts) (bool, error) {
	m, missing, err := a.missing(ctx, w.ID)
	if err == nil && len(missing) > 0 {
		missing, err = seen.without(ctx, missing)
	}
	if err != nil || len(missing) == 0 {
		return false, err
	}
	s := a.stages
	s.Replayer = a.replayer(m.Stream)
	parts, err := pipeline.Remake(ctx, s, m)
	switch _, differs := errors.AsType[*pipeline.PersonError](err); {
	case errors.Is(err, pipeline.ErrTrimmed), errors.Is(err, pipeline.ErrRebuilt):
		a.rest(w.ID, checkpoint.GiveUpAfter)
		a.log.Warn("a window is late and its records cannot be had any more: what does not come is given up", "window", w.ID.String(),
			"parts", len(missing), "given_up_from", w.LandedAt.Add(checkpoint.GiveUpAfter), "cause", err)
		return false, nil
	case differs:
		// Landing other rows under its name would lose or double some, and all others go on.
		a.rest(w.ID, a.within)
		a.log.Error("a window is late and cannot be landed again", "window", w.ID.String(), "parts", len(missing), "error", err)
		return false, nil
	case err != nil:
		return false, err
	}
	parts = slices.DeleteFunc(parts, func(p pipeline.Part) bool { return !missing[p.ID] })
	return a.land(ctx, w, parts)
}

func (a *auditor) land(ctx context.Context, w checkpoint.WindowStatus, parts []pipeline.Part) (bool, error) {
	begun, err := a.store.BeginLanding(ctx, w)
	if errors.Is(err, checkpoint.ErrLandedElsewhere) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	err = a.sink.Land(ctx, parts)
	if noted := a.store.EndLanding(context.WithoutCancel(ctx), begun, err == nil); noted != nil {
		err = errors.Join(err, noted)
	}
	if err != nil {
		return false, err
	}
	a.log.Warn("parts of a window did not come into the lake and are landed again", "window", w.ID.String(), "parts", len(parts), "time", begun.Landings)
	return true, nil
}

func (a *auditor) rest(w pipeline.WindowID, d time.Duration) {
	a.resting[w] = a.store.ServerNow().Add(d)
}

// missing are the parts of a committed window that no copy at hand will bring into the lake.
func (a *auditor) missing(ctx context.Context, id pipeline.WindowID) (*pipeline.Manifest, map[pipeline.PartID]bool, error) {
	state, m, err := a.store.Window(ctx, id)
	if err != nil || state != pipeline.WindowCommitted || m == nil || m.Rebuilt {
		return nil, nil, err
	}
	t, err := a.sealer.TakeOver(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	claims, err := a.store.Claims(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	missing := map[pipeline.PartID]bool{}
	for i := range m.Parts {
		missing[pipeline.PartID{Window: id, Index: i}] = true
	}
	for _, c := range claims {
		if !slices.ContainsFunc(t.Lost, func(lost pipeline.Claim) bool { return lost.Part == c.Part }) {
			delete(missing, c.Part)
		}
	}
	return m, missing, nil
}

// stagedParts are the parts that lie in staging. They are looked for once, and only if need be.
type stagedParts struct {
	*auditor
	all   bool // a sweep did not see all of staging
	found map[pipeline.PartID]bool
}

// without leaves out the parts that lie in staging and that a sweep has still to look at.
func (s *stagedParts) without(ctx context.Context, parts map[pipeline.PartID]bool) (map[pipeline.PartID]bool, error) {
	if !s.all {
		return parts, nil
	}
	if s.found == nil {
		found := map[pipeline.PartID]bool{}
		for o, err := range s.staging.List(ctx) {
			if err != nil {
				return nil, err
			}
			staged, err := s.sealer.Staged(ctx, o)
			if err != nil && !errors.Is(err, pipeline.ErrNotFound) {
				return nil, err
			}
			for _, p := range staged {
				if p.Meta != nil {
					found[p.Meta.ID()] = true
				}
			}
		}
		s.found = found
	}
	rest := map[pipeline.PartID]bool{}
	for id := range parts {
		if !s.found[id] {
			rest[id] = true
		}
	}
	return rest, nil
}
