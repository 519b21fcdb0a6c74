package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/observe"
)

// leaseOptions say how a process holds its lane.
type leaseOptions struct {
	For      time.Duration
	TakeOver bool // the holder is known to be gone
	Standby  bool // wait again after another process has taken the lane
}

// hostText says which process this is, for people who look for it.
func hostText() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

// holderText names who holds a lane, for people.
func holderText(h checkpoint.Holder) string {
	return cmp.Or(h.Host, "a process that does not say where it is")
}

// refuseHeld refuses lanes that somebody holds under a lease. Whether that lives cannot be told
// without watching the lease for its time, which only its holder knows.
func (b *rebuild) refuseHeld(ctx context.Context, lanes ...pipeline.LaneID) error {
	if b.gone {
		return nil
	}
	for _, lane := range lanes {
		h, _, err := b.store.Holder(ctx, lane)
		if missing := (*types.ResourceNotFoundException)(nil); errors.As(err, &missing) {
			return nil // no table: nobody holds anything
		}
		if err != nil {
			return err
		}
		if h.Lease != 0 {
			return pipeline.NeedPerson(fmt.Errorf("lane %s is held by %s", lane, holderText(h)),
				"stop that streamer run first; if it is known to be gone add --holder-is-gone")
		}
	}
	return nil
}

// standBy tells people when this process waits for another to give its lane up.
func (r *runner) standBy() {
	if r.leased == nil {
		return
	}
	r.leased.Waits = func(lane pipeline.LaneID, h checkpoint.Holder, waiting bool) {
		holder := h.Host
		if holder == "" {
			holder = "another process"
		}
		if !waiting {
			if r.unquit != nil {
				r.unquit()
			}
			r.log.Info("no longer standing by", "lane", lane)
			r.monitor.Become(observe.Active, "")
			return
		}
		if r.quit != nil {
			r.unquit = r.quit()
		}
		r.monitor.Become(observe.Standby, "the lane is held by "+holder)
		r.log.Warn("standing by: another process holds the lane; this one takes over when that has ended, or has not been seen for the time of the lease",
			"lane", lane, "holder", holder, "lease", r.leased.For)
	}
	r.leased.Failed = func(err error) { r.log.Warn("the lease was not renewed; trying again", "error", explain(err)) }
}

// release lets a standby have the lane at once.
func (l *line) release(ctx context.Context) error {
	if l.leased == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	return l.leased.End(ctx)
}

// releaseWithin bounds how long the end of a process waits for the word that it has ended: without
// it a standby waits for the time of the lease.
const releaseWithin = 3 * time.Second

// A session is one opening of the lane: it ends when the lane is lost.
type session struct {
	mu   sync.Mutex
	lose context.CancelCauseFunc
}

// begin returns a context of ctx that ends, with pipeline.ErrFenced as its cause, when the lane is
// lost.
func (s *session) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.mu.Lock()
	s.lose = cancel
	s.mu.Unlock()
	return ctx, func() { cancel(nil) }
}

// lost ends the session that is going on.
func (s *session) lost() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lose != nil {
		s.lose(pipeline.ErrFenced)
	}
}

// openKept opens the lane and keeps its lease meanwhile: landing a window that was left pending can
// take longer than a standby waits.
func (r *runner) openKept(ctx context.Context) error {
	if r.leased == nil {
		return r.open(ctx)
	}
	opening, opened := context.WithCancel(ctx)
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		// Who is fenced learns it from begin or commit.
		if err := r.leased.Keep(opening); err != nil {
			r.log.Warn("the lane's lease is not kept", "error", explain(err))
		}
	}()
	err := r.open(ctx)
	opened()
	<-kept
	return err
}

// keepLease renews the lease until ctx is done. When another process has the lane the session ends.
func (r *runner) keepLease(ctx context.Context) error {
	for r.leased != nil && ctx.Err() == nil {
		err := r.leased.Keep(ctx)
		if !errors.Is(err, pipeline.ErrFenced) {
			return err
		}
		r.session.lost()
		if !r.leased.Standby {
			return nil // moving says so
		}
		if pipeline.Wait(ctx, time.Second) != nil {
			return nil
		}
	}
	return nil
}
