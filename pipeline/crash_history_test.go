package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/pipelinetest"
	"telemetrylake/pipeline/stream"
	"telemetrylake/schemas"
)

// history runs one seed and returns what is wrong with its end.
func history(t *testing.T, seed uint64, off switches) (w *world, wrong error) {
	w = newWorld(t, seed, off)
	return w, w.tell(t, w.run)
}

// tell lets a history happen, ends it in order, and holds its end against the truth.
func (w *world) tell(t *testing.T, run func(*testing.T) error) error {
	errs := []error{run(t)}
	errs = append(errs, w.turns.Errors()...)
	if err := w.drain(t); err != nil {
		errs = append(errs, fmt.Errorf("end of the history: %w", err))
	}
	w.turns.KillAll()
	synctest.Wait()
	w.calm.Store(true)
	errs = append(errs, w.broken...)
	return errors.Join(append(errs, w.compare(t))...)
}

// run lets history happen: devices write, writers, functions and seals come, fail, pause and go,
// the stream goes to the other side and back, and for days nobody may be there.
func (w *world) run(t *testing.T) error {
	ctx := t.Context()
	p := w.plan
	pauses := map[*pipelinetest.Actor]int{}
	for step := 0; step < 2500 && (p.writes > 0 || p.outages > 0 || step < 600); step++ {
		synctest.Wait()
		for a, n := range pauses {
			if pauses[a] = n - 1; n <= 1 {
				w.turns.Resume(a)
				delete(pauses, a)
			}
		}
		w.handed(ctx)
		if w.staff(ctx) {
			continue
		}
		if p.lambda && (w.side == checkpoint.Lambda && w.rng.IntN(6) == 0 || w.rng.IntN(300) == 0) {
			if err := w.lambda(ctx); err != nil {
				return err
			}
		}
		switch x := w.rng.Float64(); {
		case x < 0.08 && p.writes > 0:
			p.writes--
			w.book.device(t)
		case x < 0.083 && p.reshards > 0:
			p.reshards--
			w.happened("reshards", 1)
			must(t, w.env.Reshard(w.table.Name))
		case x < 0.0845:
			w.changed = true
		case x < 0.0875 && p.lambda && w.handing == nil:
			w.handOver(ctx, map[checkpoint.Side]checkpoint.Side{checkpoint.Run: checkpoint.Lambda, checkpoint.Lambda: checkpoint.Run}[w.side])
		case x < 0.089 && p.expire:
			w.book.sweep(t)
		case x < 0.092 && p.outages > 0 && step > 150:
			p.outages--
			if err := w.outage(t, &p); err != nil {
				return err
			}
		case x < 0.103:
			w.pause(ctx, pauses)
		case x < 0.105:
			w.stop()
		default:
			if !w.turns.Next() {
				// Whole seconds: whatever waits for less, by a draw that is not the seed's, has come
				// back by then.
				time.Sleep(time.Duration(1+w.rng.IntN(5)) * time.Second)
			}
		}
	}
	for ; p.writes > 0; p.writes-- {
		w.book.device(t)
	}
	// Who slept wakes up, with no more failures; then all are gone and one clean process ends it.
	w.turns.SetRate(0)
	w.turns.ResumeAll()
	for range 150 {
		synctest.Wait()
		if !w.turns.Next() {
			time.Sleep(time.Second)
		}
	}
	synctest.Wait() // a step that was let go is not cut in two
	w.turns.KillAll()
	synctest.Wait()
	time.Sleep(31 * time.Second) // new shards are listed by then
	return w.book.witness(ctx)
}

// staff starts who is missing, and reports whether it did.
func (w *world) staff(ctx context.Context) bool {
	live := len(w.turns.Live("writer"))
	switch {
	case w.side == checkpoint.Run && live == 0, live < 3 && w.rng.Float64() < 0.004:
		w.startWriter(ctx, w.rng.IntN(4) == 0)
	case len(w.turns.Live("seal")) < 2:
		w.turns.Start(ctx, "seal", w.seal)
	default:
		return false
	}
	return true
}

func (w *world) lambda(ctx context.Context) (err error) {
	if w.rng.IntN(20) == 0 {
		w.mapping.sweeps = append(w.mapping.sweeps, w.mapping.call(ctx, &invocation{}))
	}
	w.beCalm(func() { _, err = w.mapping.step(ctx) })
	synctest.Wait() // what it started waits for its first turn now
	return err
}

// pause lets a process sleep. It does not know when it wakes up that others went on.
func (w *world) pause(ctx context.Context, pauses map[*pipelinetest.Actor]int) {
	kinds := []string{"writer", "seal"}
	if w.plan.lambda {
		kinds = append(kinds, "function", "handover")
	}
	kind := kinds[w.rng.IntN(len(kinds))]
	live := w.turns.Live(kind)
	if len(live) == 0 {
		return
	}
	a := live[w.rng.IntN(len(live))]
	w.turns.Pause(a)
	pauses[a] = 20 + w.rng.IntN(300)
	w.happened("processes that slept", 1)
	if kind == "writer" && w.rng.IntN(2) == 0 {
		w.startWriter(ctx, w.rng.IntN(2) == 0) // it takes over from the one that sleeps
	}
}

// stop tells a writer to end.
func (w *world) stop() {
	live := w.turns.Live("writer")
	if len(live) == 0 {
		return
	}
	a := live[w.rng.IntN(len(live))]
	if stop := w.stops[a]; stop != nil {
		close(stop)
		delete(w.stops, a)
	}
}

// outage lets hours or days pass in which nobody reads. Some of those who read before are dead
// when it ends, the others wake up.
func (w *world) outage(t *testing.T, p *plan) error {
	w.happened("outages", 1)
	if w.rng.IntN(3) == 0 {
		// It begins in a quiet hour: all is read, and known to be.
		for range 400 {
			synctest.Wait()
			if !w.turns.Next() {
				time.Sleep(time.Second)
			}
		}
		synctest.Wait()
	}
	var asleep []*pipelinetest.Actor
	for _, kind := range []string{"writer", "seal", "function", "handover"} {
		for _, a := range w.turns.Live(kind) {
			if w.rng.IntN(2) == 0 {
				w.turns.Kill(a)
			} else {
				asleep = append(asleep, a)
			}
		}
	}
	synctest.Wait()
	quiet := w.rng.IntN(4) == 0
	w.down.Store(w.rng.IntN(4) == 0)
	for hours := 2 + w.rng.IntN(60); hours > 0; {
		d := 1 + w.rng.IntN(5)
		hours -= d
		if err := w.pass(t, time.Duration(d)*time.Hour); err != nil {
			return err
		}
		if w.plan.expire && w.rng.IntN(3) == 0 {
			w.book.sweep(t)
		}
		for ; !quiet && p.writes > 0 && w.rng.IntN(2) == 0; p.writes-- {
			w.book.device(t)
		}
	}
	w.down.Store(false)
	w.happened("processes that slept through an outage", len(asleep))
	return nil
}

// pass lets time pass in which no process gets a turn.
func (w *world) pass(t *testing.T, d time.Duration) error {
	time.Sleep(d)
	w.env.Tick()
	return w.book.witness(t.Context())
}

func (w *world) contract() *schemas.Contract {
	if w.changed {
		return w.new
	}
	return w.old
}

// drain ends the history with processes that do not fail, and returns what is wrong.
func (w *world) drain(t *testing.T) error {
	ctx := t.Context()
	w.calm.Store(true)
	w.down.Store(false)
	w.turns.SetRate(0)
	if w.side == checkpoint.Lambda && w.handing == nil && w.rng.IntN(2) == 0 {
		if err := w.deliverAll(ctx); err != nil {
			return err
		}
	}
	result := make(chan error, 1)
	w.turns.Start(ctx, "last", func(ctx context.Context, a *pipelinetest.Actor) error {
		err := w.finish(ctx, a)
		result <- err
		return err
	})
	wait := time.Second
	for range 20_000 {
		synctest.Wait()
		select {
		case err := <-result:
			return err
		default:
		}
		if w.turns.Next() {
			wait = time.Second
			continue
		}
		time.Sleep(wait)
		wait = min(2*wait, 30*time.Minute)
	}
	return errors.New("the last process does not come to an end")
}

// deliverAll has the mapping deliver all that there is.
func (w *world) deliverAll(ctx context.Context) error {
	w.mapping.envs, w.mapping.sweeps = nil, nil
	for _, s := range w.mapping.shards {
		s.call = nil
	}
	still := 0
	for range 10_000 {
		synctest.Wait()
		if w.turns.Next() {
			continue
		}
		idle, err := w.mapping.step(ctx)
		if err != nil {
			return err
		}
		if still++; !idle {
			still = 0
		}
		if still == 50 && w.rng.IntN(2) == 0 {
			w.mapping.sweeps = append(w.mapping.sweeps, w.mapping.call(ctx, &invocation{}))
		}
		if still > 100 {
			w.happened("histories that a mapping finished", 1)
			return nil
		}
		time.Sleep(time.Second)
	}
	return errors.New("the mapping does not come to an end")
}

func (w *world) finish(ctx context.Context, a *pipelinetest.Actor) error {
	p, err := w.process(a, w.contract())
	if err != nil {
		return err
	}
	if _, err := p.handOver(ctx, checkpoint.Run); err != nil {
		return err
	}
	if err := p.lane.Open(ctx); err != nil {
		return err
	}
	g := pipeline.NewGatherer(p.lane, pipeline.Limits{}, p.now)
	for since, rounds := (time.Time{}), 0; ; rounds++ {
		info, err := p.reader.Round(ctx, func(b pipeline.Batch) error { return g.Add(ctx, w.off.emit(b)) })
		if err != nil {
			return err
		}
		if err := g.Flush(ctx); err != nil {
			return err
		}
		if since.IsZero() {
			since = info.At
		}
		if drained(info, since) {
			break
		}
		if rounds > 1000 {
			return fmt.Errorf("the stream does not come to its end: %+v", info)
		}
		if info.Records == 0 {
			if err := idle(ctx); err != nil {
				return err
			}
		}
	}
	if _, err := p.store.SettleGaps(ctx, w.table.StreamARN); err != nil {
		return err
	}
	late := w.plan.later && a.Rand.IntN(2) == 0 // what Firehose holds then comes after it was given up
	for range 40 {
		if !late {
			w.env.FlushFirehose()
		}
		r, err := p.sealer.Sweep(ctx)
		w.note(r)
		if err != nil {
			return err
		}
		left := 0
		for _, err := range p.staging.List(ctx) {
			if err != nil {
				return err
			}
			left++
		}
		open, err := p.tend(ctx)
		if err != nil {
			return err
		}
		if !late && left == 0 && open == 0 {
			return w.folded(ctx)
		}
		if late || left == 0 {
			if err := pipeline.Wait(ctx, checkpoint.GiveUpAfter+time.Minute); err != nil {
				return err
			}
			late = false
			if _, err := p.tend(ctx); err != nil {
				return err
			}
		}
	}
	return errors.New("staging, or the list of windows that are not sealed, is not empty after 40 sweeps")
}

// drained reports whether each shard has ended, or was read to its tip after a time.
func drained(info stream.RoundInfo, since time.Time) bool {
	for _, s := range info.Shards {
		if s.State != stream.Finished && (s.State > stream.Tip || s.State < stream.Reading || !s.TipAt.After(since)) {
			return false
		}
	}
	return len(info.Shards) > 0 && info.Failed == nil
}

// folded checks that nothing is left of the windows but the lanes' watermarks.
func (w *world) folded(ctx context.Context) error {
	out, err := w.client.Scan(ctx, &dynamodb.ScanInput{TableName: aws.String("checkpoint")})
	if err != nil {
		return err
	}
	for _, it := range out.Items {
		sk := it["sk"].(*types.AttributeValueMemberS).Value
		if strings.HasPrefix(sk, "window#") || strings.HasPrefix(sk, "part#") {
			return fmt.Errorf("item %s is left", sk)
		}
	}
	return nil
}
