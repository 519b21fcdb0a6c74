package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/columnar"
	"telemetrylake/pipeline/observe"
	"telemetrylake/pipeline/seal"
	"telemetrylake/pipeline/stream"
	"telemetrylake/schemas"
)

// A monitor watches a run, and answers for it over HTTP if an address is set.
type monitor struct {
	*observe.Observer
	log    *slog.Logger
	every  time.Duration // how often the stored state is read for it; 0: never
	server *http.Server  // nil: no address is set
	end    func()        // of what goes on beside the run; nil before beside
}

// bookEvery is how often at most the stored state is read: one query for the stream and one for
// the lane, so that a stream of a thousand shards costs a few dollars a month.
const bookEvery = 15 * time.Second

// newMonitor listens first of all: an address that cannot be had starts nothing.
func newMonitor(s *settings, log *slog.Logger) (*monitor, error) {
	m := &monitor{log: log, Observer: observe.New(observe.Options{
		Log: log, Within: s.ReadyWithin, WindowAge: s.WindowAge, SealEvery: s.SealEvery, UnsealedWithin: s.UnsealedWithin,
		Reasons: columnar.Reasons(),
	})}
	if s.HTTP == "" {
		return m, nil
	}
	l, err := net.Listen("tcp", s.HTTP)
	if err != nil {
		return nil, usagef("--http %s: %w; name an address such as 127.0.0.1:8080", s.HTTP, err)
	}
	m.Runtime()
	m.every = min(bookEvery, s.SealEvery)
	m.server = &http.Server{Handler: m.Handler(), ReadHeaderTimeout: 5 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	log.Info("answering", "metrics", "http://"+l.Addr().String()+"/metrics")
	go func() {
		if err := m.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("no more answers to monitors", "error", err)
		}
	}()
	return m, nil
}

// close ends what watches and what answers.
func (m *monitor) close() {
	if m.end != nil {
		m.end()
	}
	if m.server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := m.server.Shutdown(ctx); err != nil {
		m.log.Debug("a monitor's request was cut short", "error", err)
	}
}

// beside watches what goes on until close.
func (m *monitor) beside(ctx context.Context, b *bookkeeper) {
	ctx, cancel := context.WithCancel(ctx)
	stopping := context.AfterFunc(ctx, func() { m.Become(observe.Stopping, "") })
	var wg sync.WaitGroup
	wg.Go(func() { m.Watch(ctx) })
	wg.Go(func() { m.keepBook(ctx, b.read) })
	m.end = func() {
		stopping()
		cancel()
		wg.Wait()
	}
}

// keepBook reads the stored state at intervals until ctx is done.
func (m *monitor) keepBook(ctx context.Context, read observe.BookReader) {
	for m.every > 0 {
		if err := m.Refresh(ctx, read); err != nil && ctx.Err() == nil {
			m.log.Warn("cannot tell monitors what is stored", "error", explain(err))
		}
		if pipeline.Wait(ctx, m.every) != nil {
			return
		}
	}
}

// A bookkeeper reads what is stored of a stream and of the windows of its lanes.
type bookkeeper struct {
	store    *checkpoint.Store
	stream   string // ARN
	contract *schemas.Contract
	others   map[pipeline.LaneID]bool // lanes, beside that of run, that may have windows to seal; nil before the first look
	earlier  map[string]bool          // earlier streams of the table with gaps that are not closed
}

// read implements observe.BookReader.
func (b *bookkeeper) read(ctx context.Context) (observe.Book, error) {
	var book observe.Book
	shards, _, err := b.store.StreamStatus(ctx, b.stream)
	if err != nil {
		return book, err
	}
	for _, s := range shards {
		book.Shards = append(book.Shards, observe.Point{ID: s.ID, Parent: s.Parent, End: s.At.End, Created: s.Created, TipAt: s.TipAt})
	}
	lane, err := b.store.Lane(ctx, laneOf(b.contract))
	if err != nil {
		return book, err
	}
	book.Halted = lane.Halted
	book.Windows = unsealedWindows(nil, lane.Windows)
	if err := b.lookAround(ctx, shards); err != nil {
		return book, err
	}
	for id := range b.others {
		windows, err := b.store.Unsealed(ctx, id)
		if err != nil {
			return book, err
		}
		if len(windows) == 0 {
			delete(b.others, id)
		}
		book.Windows = unsealedWindows(book.Windows, windows)
	}
	if book.Gaps, err = b.store.Gaps(ctx, b.stream); err != nil {
		return book, err
	}
	for stream := range b.earlier {
		gaps, err := b.store.Gaps(ctx, stream)
		if err != nil {
			return book, err
		}
		if !slices.ContainsFunc(gaps, notClosed) {
			delete(b.earlier, stream)
		}
		book.Gaps = append(book.Gaps, gaps...)
	}
	return book, nil
}

func notClosed(g pipeline.Gap) bool { return g.State != pipeline.GapClosed }

// lookAround finds, the first time, what was left by others before this run: lanes that had shards
// of the stream, whose windows may not be sealed yet, and gaps of earlier streams of the table.
// Nobody but a run's lane gets new windows while it runs.
func (b *bookkeeper) lookAround(ctx context.Context, shards []checkpoint.ShardStatus) error {
	run := laneOf(b.contract)
	if b.others == nil {
		lanes, err := b.store.Lanes(ctx)
		if err != nil {
			return err
		}
		gaps, err := b.store.Gaps(ctx, "")
		if err != nil {
			return err
		}
		b.others, b.earlier = map[pipeline.LaneID]bool{}, map[string]bool{}
		for _, s := range shards {
			if id := laneOfShard(b.contract, s.ID); slices.Contains(lanes, id) {
				b.others[id] = true
			}
		}
		for _, g := range gaps {
			if g.Stream != b.stream && tableOf(g.Stream) == tableOf(b.stream) && notClosed(g) {
				b.earlier[g.Stream] = true
			}
		}
	}
	for _, s := range shards {
		if s.Lane != run {
			b.others[s.Lane] = true
		}
	}
	return nil
}

// unsealedWindows adds those that have parts which are not known to be in the lake.
func unsealedWindows(to []observe.Window, from []checkpoint.WindowStatus) []observe.Window {
	for _, w := range from {
		// A window without parts has nothing to seal; it is folded by the next sweep.
		if w.Parts > 0 && (w.State == pipeline.WindowPending || w.State == pipeline.WindowCommitted) {
			to = append(to, observe.Window{Oldest: w.Oldest, Since: w.LandedAt})
		}
	}
	return to
}

// seenRound is what a round saw, for an observer.
func seenRound(began time.Time, info stream.RoundInfo) observe.Round {
	r := observe.Round{
		Began: began, Pages: info.Pages, EmptyPages: info.EmptyPages, Listed: info.Listed, Disabled: info.Disabled,
		Shards: make([]observe.Shard, len(info.Shards)),
	}
	if info.Failed != nil {
		r.Failed = explain(info.Failed)
	}
	for i, s := range info.Shards {
		to := observe.Shard{ID: s.ID, Parent: s.Parent, State: s.State.String(), Until: s.Until}
		if s.Err != nil {
			to.Failed = explain(s.Err)
		}
		switch s.Wait {
		case stream.WaitOwner:
			to.Why = "its checkpoint to be made"
		case stream.WaitBudget:
			to.Why = "one of the calls that a second has"
		case stream.WaitThrottled:
			to.Why = "the service, which throttles"
		}
		r.Shards[i] = to
	}
	return r
}

// seenSweep is what a sweep did, for an observer.
func seenSweep(took time.Duration, r seal.Report) observe.Sweep {
	s := observe.Sweep{
		Took: took, Objects: r.Objects, Removed: r.Removed, Published: r.Published, Duplicates: r.Duplicates, Void: r.Void,
		Created: r.Created, Rows: r.Rows, Damaged: r.Damaged, Waiting: r.Waiting, Kept: make(map[string]int, len(r.Kept)),
	}
	for why, n := range r.Kept {
		s.Kept[string(why)] = n
	}
	return s
}

// firehoseSlack is what sealing may take beside Firehose's gathering.
const firehoseSlack = 15 * time.Minute

// opened tells the monitor what is known once the run is open.
func (m *monitor) opened(s *settings, gathers time.Duration) {
	if s.UnsealedWithin == 0 && gathers > 0 {
		m.AllowUnsealed(gathers + firehoseSlack)
	}
	m.Become(observe.Active, fmt.Sprintf("reads %s", s.Contract))
}
