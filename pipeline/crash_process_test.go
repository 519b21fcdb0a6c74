package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/firehose"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/columnar"
	"telemetrylake/pipeline/lake"
	"telemetrylake/pipeline/pipelinetest"
	"telemetrylake/pipeline/seal"
	"telemetrylake/pipeline/stream"
	"telemetrylake/schemas"
)

// process is the wiring of one simulated process.
type process struct {
	w       *world
	a       *pipelinetest.Actor
	now     func() time.Time
	streams *dynamodbstreams.Client
	store   *checkpoint.Store
	leased  *checkpoint.Leased
	patient bool // it has to wait until the lane's lease has not changed for its time
	shards  *checkpoint.Shards
	reader  *stream.Reader
	stages  pipeline.Stages
	lane    *pipeline.Lane
	sealer  *seal.Sealer
	staging *lake.Bucket
}

func (w *world) process(a *pipelinetest.Actor, c *schemas.Contract) (*process, error) {
	cfg := w.config(w.off.transport(a.Transport(w.watch(w.env.Transport()))))
	s3c := s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = true })
	p := &process{w: w, a: a, now: skewed(a.Rand), staging: lake.NewBucket(s3c, stagingBucket, stagingPrefix), streams: dynamodbstreams.NewFromConfig(cfg)}
	p.store = checkpoint.New(dynamodb.NewFromConfig(cfg), "checkpoint", checkpoint.Options{Rand: randReader{a.Rand}, Now: p.now, Host: a.Name})
	p.leased = &checkpoint.Leased{Store: p.store, For: w.plan.lease, Standby: a.Rand.IntN(2) == 0, Waits: w.waits}
	p.shards = p.store.Shards(w.table.StreamARN, laneName, checkpoint.Run)
	p.reader = stream.New(p.streams, w.off.reader(w, stream.Options{
		StreamARN: w.table.StreamARN, Shards: p.shards, PageLimit: 1 + a.Rand.IntN(9), Now: p.now, Logger: w.logger(a),
		RetryBase: 1, RetryCap: 1, // who waits how long is the seed's to say
	}))
	mem := memory.DefaultAllocator
	p.stages = pipeline.Stages{
		Decoder: columnar.NewDecoder(mem), Encoder: stepEncoder{columnar.NewEncoder(mem, columnar.Uncompressed()), a},
		Sink:        lake.NewFirehose(firehose.NewFromConfig(cfg), deliveryName, p.staging, nil),
		Checkpoints: p.store, Contracts: p.store, Replayer: countReplays{p.reader, w}, Gaps: countGaps{p.store, w},
	}
	if strings.HasPrefix(a.Name, "writer-") { // nobody else holds a lane for longer than a moment
		p.stages.Checkpoints = p.leased
	}
	w.off.stages(&p.stages, a, c)
	var err error
	if p.lane, err = p.newLane(laneName, c); err != nil {
		return nil, err
	}
	sst := seal.Stages{
		Staging: p.staging, Lake: lake.NewBucket(s3c, lakeBucket, ""), Damaged: lake.NewBucket(s3c, stagingBucket, "damaged"),
		Ledger: p.store, Folder: p.store, Merger: stepMerger{columnar.NewMerger(mem, columnar.Uncompressed()), a},
	}
	w.off.sealStages(&sst, p.staging)
	p.sealer = seal.New(sst)
	return p, nil
}

func (p *process) newLane(id pipeline.LaneID, c *schemas.Contract) (*pipeline.Lane, error) {
	return pipeline.NewLane(p.stages, pipeline.LaneOptions{
		Lane: id, Stream: p.w.table.StreamARN, Contract: c, Parts: pipeline.PartSize{Rows: 1 + p.a.Rand.IntN(4)},
	})
}

func (w *world) waits(_ pipeline.LaneID, _ checkpoint.Holder, waiting bool) {
	if waiting {
		w.happened("processes that stood by", 1)
	}
}

// logger puts what a process says among the steps, if they are going to be read.
func (w *world) logger(a *pipelinetest.Actor) *slog.Logger {
	if *oneSeed < 0 {
		return nil
	}
	return slog.New(slog.NewTextHandler(logLines{w}, nil)).With("process", a.Name)
}

type logLines struct{ w *world }

func (l logLines) Write(b []byte) (int, error) {
	l.w.sawMu.Lock()
	defer l.w.sawMu.Unlock()
	l.w.log = append(l.w.log, strings.TrimSpace(string(b)))
	return len(b), nil
}

type randReader struct{ *rand.Rand }

func (r randReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return len(p), nil
}

// Encoding is a step like any other: it can fail, and the process can die in it.
type stepEncoder struct {
	pipeline.Encoder
	a *pipelinetest.Actor
}

func (s stepEncoder) Encode(wr io.Writer, rows arrow.RecordBatch, meta map[string]string) error {
	return s.a.Step("encode", func() error { return s.Encoder.Encode(wr, rows, meta) })
}

type stepMerger struct {
	seal.Merger
	a *pipelinetest.Actor
}

func (s stepMerger) Merge(ctx context.Context, wr io.Writer, parts []*io.SectionReader, order []string, meta map[string]string) error {
	return s.a.Step("merge", func() error { return s.Merger.Merge(ctx, wr, parts, order, meta) })
}

type countReplays struct {
	pipeline.Replayer
	w *world
}

func (c countReplays) Replay(ctx context.Context, rs []pipeline.Range, emit func(pipeline.Batch) error) error {
	c.w.happened("windows replayed", 1)
	return c.Replayer.Replay(ctx, rs, emit)
}

type countGaps struct {
	pipeline.Gaps
	w *world
}

func (c countGaps) Lose(ctx context.Context, h pipeline.Hold, m *pipeline.Manifest) error {
	c.w.happened("pending windows that aged out", 1)
	return c.Gaps.Lose(ctx, h, m)
}

// startWriter starts one streamer run. takeOver is what a person says who knows that the holder
// is gone.
func (w *world) startWriter(ctx context.Context, takeOver bool) *pipelinetest.Actor {
	c, stop := w.contract(), make(chan struct{})
	a := w.turns.Start(ctx, "writer", func(ctx context.Context, a *pipelinetest.Actor) error {
		return w.write(ctx, a, writing{c, takeOver, stop})
	})
	w.stops[a] = stop
	return a
}

type writing struct {
	contract *schemas.Contract
	takeOver bool
	stop     chan struct{}
}

// write is one streamer run: it opens the lane again after each failure, until it is told to
// stop, is dead, fenced, or needs a person.
func (w *world) write(ctx context.Context, a *pipelinetest.Actor, o writing) error {
	p, err := w.process(a, o.contract)
	if err != nil {
		return err
	}
	p.leased.TakeOver = o.takeOver || w.off.standby
	p.patient = !o.takeOver
	for {
		err := w.session(ctx, p, o.stop)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil: // told to stop
			w.happened("processes that ended in order", 1)
			if err := p.leased.End(ctx); err != nil && !passing(err) {
				return err
			}
			return nil
		case errors.Is(err, pipeline.ErrFenced):
			w.happened("writers fenced", 1)
			if !p.leased.Standby {
				return nil
			}
		case moved(err):
			w.happened("processes that found the stream the other side's", 1)
			return nil
		case !passing(err):
			return err
		}
		if err := idle(ctx); err != nil {
			return err
		}
	}
}

// session reads from an opening of the lane to its loss.
func (w *world) session(ctx context.Context, p *process, stop chan struct{}) error {
	held, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	p.reader.Reset()
	if err := p.lane.Open(w.patience(ctx, p)); err != nil {
		return err
	}
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		if err := p.leased.Keep(held); errors.Is(err, pipeline.ErrFenced) {
			w.happened("leases found lost", 1)
			lose(pipeline.ErrFenced)
		}
	}()
	err := w.read(held, p, stop)
	if errors.Is(context.Cause(held), pipeline.ErrFenced) {
		err = pipeline.ErrFenced
	}
	lose(nil)
	<-kept
	return err
}

func (w *world) read(ctx context.Context, p *process, stop chan struct{}) error {
	g := pipeline.NewGatherer(p.lane, pipeline.Limits{Records: 1 + p.a.Rand.IntN(15), Age: 10 * time.Second}, p.now)
	tips := tips{at: map[pipeline.ShardID]time.Time{}, read: map[pipeline.ShardID]pipeline.SequenceNumber{}}
	for {
		info, err := p.reader.Round(ctx, func(b pipeline.Batch) error { return g.Add(ctx, w.off.emit(b)) })
		if err != nil {
			return err
		}
		if p.a.Rand.IntN(3) == 0 {
			err = g.Flush(ctx)
		} else {
			err = g.FlushDue(ctx)
		}
		if err != nil {
			return err
		}
		w.happened("gaps that a reader found", info.Gaps)
		tips.see(info)
		if g.Empty() {
			tips.mark(ctx, p)
		}
		select {
		case <-stop:
			return g.Flush(ctx)
		default:
		}
		if info.Records == 0 {
			if err := idle(ctx); err != nil {
				return err
			}
		}
	}
}

// tips are what has been read to its tip and not been marked so.
type tips struct {
	at   map[pipeline.ShardID]time.Time
	read map[pipeline.ShardID]pipeline.SequenceNumber
	todo []pipeline.ShardID
}

func (t *tips) see(info stream.RoundInfo) {
	t.todo = t.todo[:0]
	for _, s := range info.Shards {
		// As a run does, not at every round.
		if s.State <= stream.Tip && s.TipAt.After(t.at[s.ID].Add(10*time.Second)) {
			t.at[s.ID], t.read[s.ID] = s.TipAt, s.Last
			t.todo = append(t.todo, s.ID)
		}
	}
}

func (t *tips) mark(ctx context.Context, p *process) {
	for _, id := range t.todo {
		p.w.happened("tips marked", 1)
		if err := p.shards.MarkTip(ctx, id, t.read[id], t.at[id]); err != nil {
			return // it is said again later: a run warns, and goes on
		}
	}
}

// seal sweeps staging again and again, and sees to the windows of every lane now and then.
func (w *world) seal(ctx context.Context, a *pipelinetest.Actor) error {
	p, err := w.process(a, w.old)
	if err != nil {
		return err
	}
	for {
		r, err := p.sealer.Sweep(ctx)
		w.note(r)
		if err == nil && a.Rand.IntN(4) == 0 {
			_, err = p.tend(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !passing(err):
			return err
		}
		if err := idle(ctx); err != nil {
			return err
		}
	}
}

// tend folds every lane and gives windows up whose time has come. It returns how many are not
// sealed.
func (p *process) tend(ctx context.Context) (int, error) {
	lanes, err := p.store.Lanes(ctx)
	if err != nil {
		return 0, err
	}
	open := 0
	for _, lane := range lanes {
		windows, err := p.store.Unsealed(ctx, lane)
		if err != nil {
			return open, err
		}
		for _, win := range windows {
			if win.State == pipeline.WindowPending {
				continue
			}
			n, err := p.w.off.giveUp(ctx, p, win)
			p.w.happened("parts given up", n)
			if age := time.Since(win.LandedAt); n > 0 && age < checkpoint.GiveUpAfter-2*time.Second {
				p.w.broken = append(p.w.broken, fmt.Errorf("window %s was given up %s after its landing: its parts may be on their way", win.ID, age))
			}
			if err != nil && !errors.Is(err, checkpoint.ErrTooEarly) && !errors.Is(err, pipeline.ErrWindowClosed) {
				return open, err
			}
		}
		if err := p.store.Fold(ctx, lane); err != nil {
			return open, err
		}
		if windows, err = p.store.Unsealed(ctx, lane); err != nil {
			return open, err
		}
		open += len(windows)
	}
	return open, nil
}

func (w *world) note(r seal.Report) {
	w.happened("staging objects sealed", r.Removed)
	w.happened("parts in them", r.Parts)
	w.happened("copies dropped", r.Duplicates)
	w.happened("parts that came after they were given up", r.Void)
	w.happened("parts that waited for another copy", r.Waiting)
	w.happened("lake objects", r.Created)
}
