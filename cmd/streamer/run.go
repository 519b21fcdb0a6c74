package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/seal"
)

func newRun() *cobra.Command {
	s := newSettings()
	var untilDrained bool
	var level string
	var output string
	c := &cobra.Command{
		Use:   "run --contract NAME",
		Short: "Move a table's stream into its lake until it is stopped",
		Long: `Read the stream of a DynamoDB table, land its records through Firehose, and seal
what Firehose delivered into the lake. One process does it all. It can be killed
at any moment: the next start goes on where the checkpoint table says.

SIGTERM and Ctrl-C land what is gathered and end it. --until-drained ends it once
everything that was written before the start is in the lake.`,
		Example: `  streamer run --contract device_telemetry --staging s3://my-staging/delivered/ --lake s3://my-lake/
  streamer run --contract sensor_readings --until-drained
  streamer run --config streamer.yaml --log-level info`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := newLog(c.ErrOrStderr(), level)
			if err != nil {
				return err
			}
			if err := s.load(c); err != nil {
				return err
			}
			m, err := newMonitor(s, log)
			if err != nil {
				return err
			}
			defer m.close()
			r, err := openRunner(c.Context(), s, log, m)
			if err != nil {
				return explain(err)
			}
			r.untilDrained = untilDrained
			r.status = newStatusLine(c.ErrOrStderr())
			err = r.run(c.Context())
			r.status.clear()
			if err != nil {
				return explain(err)
			}
			return r.print(c.OutOrStdout(), output)
		},
	}
	s.use(c, "contract", "table", "stream", "checkpoint-table", "land", "delivery-stream", "staging", "damaged", "lake",
		"window-records", "window-bytes", "window-age", "start", "pages-per-second", "seal-every", "stop-within", "lease", "take-over", "standby", "http", "ready-within", "unsealed-within")
	s.makesTable(madeIfNone)
	f := c.Flags()
	f.BoolVar(&untilDrained, "until-drained", false, "end once everything written before the start is in the lake")
	outputFlag(f, &output, "table", "json")
	f.StringVar(&level, "log-level", "warn", "debug, info, warn or error")
	return c
}

// newLog writes lines of key=value pairs.
func newLog(w io.Writer, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usagef("unknown log level %q; write debug, info, warn or error", level)
	}
	if isTerminal(w) {
		w = overLine{w}
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l})), nil
}

// An overLine writes what is logged over the line that shows progress, not behind it.
type overLine struct{ out io.Writer }

func (o overLine) Write(p []byte) (int, error) {
	if _, err := o.out.Write(append([]byte(clearLine), p...)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// A runner moves one table's records and seals them, in two loops.
type runner struct {
	*line
	monitor      *monitor
	laneID       pipeline.LaneID
	audit        *auditor
	notes        *noter
	log          *slog.Logger
	sealEvery    time.Duration
	stopWithin   time.Duration
	untilDrained bool
	status       *statusLine
	start        time.Time
	since        time.Time // the start by the stream's clock; zero until its first answer
	session      session
	// A process that stands by has nothing under way: quit has a signal end it at once, unquit not.
	quit   func() func() bool
	unquit func() bool

	mu     sync.Mutex
	totals runTotals
}

// runTotals are what a run did, for its last words.
type runTotals struct {
	Records     int     `json:"records"` // read from the stream
	Windows     int     `json:"windows"`
	Rows        int     `json:"rows"`
	Changes     int     `json:"changes"`
	Tombstones  int     `json:"tombstones"`
	Quarantined int     `json:"quarantined"`
	Ignored     int     `json:"ignored"`
	Parts       int     `json:"parts"`
	Staging     int     `json:"staging_objects"`
	Sealed      int     `json:"sealed_objects"`
	SealedRows  int     `json:"sealed_rows"`
	Unsealed    int     `json:"unsealed_windows"`
	Drained     bool    `json:"drained"`
	Seconds     float64 `json:"seconds"`
}

// boundMemory has the collector work harder before the heap grows past what windows need, so
// that a backlog of any length takes no more memory than the stream at rest. Records take about
// five times their bytes on the wire while they are decoded. GOMEMLIMIT overrules it.
func boundMemory(windowBytes int) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(max(256<<20, 5*int64(windowBytes)))
	}
}

// openRunner checks everything that a run needs before it reads the first record.
func openRunner(ctx context.Context, s *settings, log *slog.Logger, m *monitor) (*runner, error) {
	p, err := s.places()
	if err != nil {
		return nil, err
	}
	boundMemory(s.WindowBytes)
	c, err := connect(ctx, countCalls(m.Observer))
	if err != nil {
		return nil, err
	}
	if err := p.findStream(ctx, c); err != nil {
		return nil, err
	}
	l, err := wire(c, p, wireOptions{
		Limits: pipeline.Limits{Records: s.WindowRecords, Bytes: s.WindowBytes, Age: s.WindowAge},
		Latest: s.Start == "latest",
		Pages:  s.Pages,
		Lease:  &leaseOptions{For: s.Lease, TakeOver: s.TakeOver, Standby: s.Standby},
		Log:    log,
		Watch:  m.Observer,
	})
	if err != nil {
		return nil, err
	}
	if l.staging != nil {
		if err := l.staging.CheckRead(ctx); err != nil {
			return nil, fmt.Errorf("look at --staging: %w", err)
		}
	}
	if err := l.lake.Check(ctx); err != nil {
		return nil, fmt.Errorf("look at --lake: %w", err)
	}
	r := &runner{line: l, monitor: m, laneID: laneOf(p.Contract), log: log, sealEvery: s.SealEvery, stopWithin: s.StopWithin, start: time.Now()}
	l.gatherer.OnWindow = r.committed
	r.standBy()
	// A standby answers for what is stored too, and the table must be there for that.
	if err := l.store.Create(ctx); err != nil {
		return nil, err
	}
	m.beside(ctx, &bookkeeper{store: l.store, stream: p.StreamARN, contract: p.Contract})
	if err := checkStart(l.store, c, p).run(ctx); err != nil {
		return nil, err
	}
	if err := r.openKept(ctx); err != nil {
		return nil, errors.Join(err, r.release(ctx))
	}
	m.opened(s, l.sink.Interval())
	r.audit = newAuditor(c, giver{l.store, l.sealer, time.Now, log}, l.staging, s.unsealedWithin(l.sink.Interval()))
	r.notes = newNoter(l.store, l.lake, p.Checkpoint)
	return r, nil
}

func (r *runner) committed(m *pipeline.Manifest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := m.Counts()
	r.totals.Windows++
	r.totals.Parts += len(m.Parts)
	if m.Lake != "" {
		r.totals.Sealed += len(m.Parts)
		r.totals.SealedRows += c.Rows + c.Changes + c.Tombstones + c.Quarantined
	}
	r.totals.Rows += c.Rows
	r.totals.Changes += c.Changes
	r.totals.Tombstones += c.Tombstones
	r.totals.Quarantined += c.Quarantined
	r.totals.Ignored += c.Ignored
	r.status.show(r.totals)
}

func (r *runner) gathered(records int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.totals.Records += records
	r.status.show(r.totals)
}

func (r *runner) sealed(rep seal.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.totals.Staging += rep.Removed
	r.totals.Sealed += rep.Created
	r.totals.SealedRows += rep.Rows
	r.status.show(r.totals)
}

func (r *runner) run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	moved := make(chan struct{})
	kept, leave := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error {
		defer close(moved)
		defer leave()
		return r.move(gctx)
	})
	g.Go(func() error { return r.keepLease(kept) })
	g.Go(func() error { return r.seal(gctx, moved) })
	err := g.Wait()
	if left := r.release(ctx); left != nil {
		r.log.Warn("the lane was not released; a standby waits for the time of the lease", "error", explain(left))
	}
	if err != nil {
		return err
	}
	st, err := r.store.Lane(context.WithoutCancel(ctx), r.laneID)
	if err != nil {
		r.log.Warn("cannot tell how many windows are not sealed", "error", err)
	}
	r.totals.Unsealed = st.Unsealed()
	r.totals.Seconds = time.Since(r.start).Seconds()
	return nil
}

// move reads and lands until ctx is done or, if asked, the stream is drained. What was begun
// when ctx ends has stopWithin to get to its commit; what does not is recovered at the next start.
func (r *runner) move(ctx context.Context) error {
	work, cancel := graceful(ctx, r.stopWithin)
	defer cancel()
	r.quit = func() func() bool { return context.AfterFunc(ctx, cancel) }
	reopen := false
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		var err error
		if reopen {
			r.reader.Reset()
			err = r.lane.Open(work)
		}
		held, end := r.session.begin(ctx)
		if err == nil {
			err = r.read(held, work, func() { wait = time.Second })
		}
		if errors.Is(context.Cause(held), pipeline.ErrFenced) {
			err = cmp.Or(err, context.Cause(held))
		}
		end()
		switch {
		case err == nil:
			return nil
		case errors.Is(err, pipeline.ErrFenced) && r.leased.Standby:
		case errors.Is(err, pipeline.ErrFenced):
			return pipeline.NeedPerson(err, "if it is another streamer run, stop one of the two, or let it wait with --standby; streamer lanes rebuild and streamer lanes handover take a lane too: streamer lanes list says who reads the stream now")
		case needsPerson(err):
			return err
		case ctx.Err() != nil:
			r.log.Warn("stopped before the last window was committed; the next start goes on", "error", err)
			return nil
		}
		r.monitor.Restarting(explain(err))
		r.log.Warn("starting again from the checkpoint", "in", wait, "error", explain(err))
		reopen = true
		if err := pipeline.Wait(ctx, pipeline.Jitter(wait)); err != nil {
			return nil
		}
	}
}

// graceful returns a context that ends some time after ctx does.
func graceful(ctx context.Context, within time.Duration) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(within, cancel)
		context.AfterFunc(work, func() { t.Stop() })
	})
	return work, func() { stop(); cancel() }
}

// needsPerson reports whether starting again would meet the same error: a missing permission,
// for instance, is not waited for.
func needsPerson(err error) bool { return exitCode(explain(err)) == exitPerson }

// read makes windows of the stream. It returns nil once ctx is done or the stream is drained,
// with everything gathered committed.
func (r *runner) read(ctx, work context.Context, progressed func()) error {
	var tips tips
	add := r.monitor.Emit(func(b pipeline.Batch) error { return r.gatherer.Add(work, b) })
	for ctx.Err() == nil {
		began := time.Now()
		info, err := r.reader.Poll(ctx, add)
		if err != nil {
			if ctx.Err() != nil {
				break // the round was cut short, not the gathering
			}
			return err
		}
		r.monitor.Round(seenRound(began, info))
		r.gathered(info.Records)
		if info.Failed != nil {
			r.log.Warn("part of the stream could not be read", "error", explain(info.Failed))
		}
		if err := r.gatherer.FlushDue(work); err != nil {
			return err
		}
		if r.since.IsZero() {
			r.since = info.At
		}
		if r.untilDrained && drained(info, r.since) {
			r.totals.Drained = true
			tips.see(info)
			break
		}
		tips.see(info)
		if r.gatherer.Empty() && tips.due(time.Now()) {
			r.markTips(work, &tips)
		}
		if info.Records > 0 {
			progressed()
		}
	}
	if err := r.gatherer.Flush(work); err != nil {
		return err
	}
	r.markTips(work, &tips)
	return nil
}

// seal sweeps staging at intervals. Once moving has ended with a drained stream it sweeps until
// every window is in the lake.
func (r *runner) seal(ctx context.Context, moved <-chan struct{}) error {
	every := r.sealEvery
	for {
		began := time.Now()
		rep, err := r.sealer.Sweep(ctx)
		r.sealed(rep)
		// A window without parts, or one whose seal died before folding, is in no staging object.
		audited, late := r.audit.audit(ctx, []pipeline.LaneID{r.laneID}, err)
		r.monitor.Audited(audited)
		err = errors.Join(err, late, r.notes.note(ctx))
		r.monitor.Swept(seenSweep(time.Since(began), rep), err)
		switch {
		case err != nil && needsPerson(err):
			return err
		case ctx.Err() != nil:
			return nil
		case err != nil:
			r.log.Warn("sealing goes on at the next sweep", "error", explain(err))
		}
		select {
		case <-moved:
			if !r.totals.Drained {
				return nil
			}
			st, err := r.store.Lane(ctx, r.laneID)
			if err == nil && st.Unsealed() == 0 {
				return nil
			}
		default:
		}
		select {
		case <-moved:
			every = min(every, time.Second)
			if pipeline.Wait(ctx, every) != nil {
				return nil
			}
		case <-time.After(every):
		case <-ctx.Done():
			// What is gathered is being landed; it is sealed by the next start or another sweep.
			<-moved
			return nil
		}
	}
}

func (r *runner) print(w io.Writer, output string) error {
	t := r.totals
	if output == "json" {
		return writeDocument(w, t)
	}
	table(w, nil, [][]string{
		{"Stream records read", count(t.Records)},
		{"Windows committed", count(t.Windows)},
		{"  rows", count(t.Rows)},
		{"  changes", count(t.Changes)},
		{"  tombstones", count(t.Tombstones)},
		{"  quarantined", count(t.Quarantined)},
		{"  refused by the contract", count(t.Ignored)},
		{"  parts", count(t.Parts)},
		{"Staging objects sealed", count(t.Staging)},
		{"Lake objects made", count(t.Sealed)},
		{"  rows in them", count(t.SealedRows)},
		{"Windows not sealed yet", count(t.Unsealed)},
	})
	return nil
}
