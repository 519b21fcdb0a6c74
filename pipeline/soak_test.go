package pipeline_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/pipelinetest"
)

// TestSoakOfSevenDays runs one writer and one seal for a week of virtual time: shards end and are
// split every four hours, records are held for a day, the writer is restarted every day, and once
// it is gone for 30 hours. Nothing is lost but what aged out then, and the ledger has its bounds.
func TestSoakOfSevenDays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seed = 7
		rng := rand.New(rand.NewPCG(seed, 1))
		w := openWorld(t, seed, switches{}, plan{life: -1, expire: true, lease: 20*time.Second + 7*time.Millisecond}, rng)
		var gone, back time.Time
		err := w.tell(t, func(t *testing.T) (err error) {
			gone, back, err = w.week(t)
			return err
		})
		if err != nil {
			t.Errorf("%v", err)
		}
		lost := w.outageGaps(t, gone, back)
		t.Logf("records %d, of these in gaps of the outage %d; %s", len(w.book.records), lost, told(w.saw))
	})
}

const soakRate = 0.002 // share of steps that fail

// week lets seven days pass, and returns between which times nobody was there.
func (w *world) week(t *testing.T) (gone, back time.Time, err error) {
	ctx := t.Context()
	w.turns.SetRate(soakRate)
	start := time.Now()
	writer := w.startWriter(ctx, false)
	sealer := w.turns.Start(ctx, "seal", w.seal)
	for hour := range 7 * 24 {
		switch {
		case hour == 80:
			if writer.Ended() {
				writer = w.startWriter(ctx, false)
			}
			w.catchUp()
			w.halt(writer)
			gone, writer = time.Now(), nil
		case hour == 110:
			back = time.Now()
			writer = w.startWriter(ctx, false)
			w.catchUp()
		case hour%24 == 23 && writer != nil:
			w.halt(writer)
			writer = w.startWriter(ctx, false)
			w.happened("daily restarts", 1)
		}
		if hour%4 == 2 {
			must(t, w.env.SplitShard(w.table.Name, w.openShard()))
			w.happened("splits", 1)
		}
		for range 4 {
			for range 1 + w.rng.IntN(3) {
				w.book.device(t)
			}
			w.work(50)
		}
		w.book.sweep(t)
		time.Sleep(time.Until(start.Add(time.Duration(hour+1) * time.Hour)))
		w.env.Tick()
		if err := w.book.witness(ctx); err != nil {
			return gone, back, err
		}
		if writer != nil && writer.Ended() {
			writer = w.startWriter(ctx, false)
		}
		if sealer.Ended() {
			sealer = w.turns.Start(ctx, "seal", w.seal)
		}
	}
	w.turns.SetRate(0)
	w.work(400)
	w.turns.KillAll()
	synctest.Wait()
	return gone, back, nil
}

// openShard draws one of those that are open. Splitting them all would double them every time.
func (w *world) openShard() string {
	var open []string
	for id, s := range w.book.shards {
		if !s.done {
			open = append(open, string(id))
		}
	}
	slices.Sort(open)
	return open[w.rng.IntN(len(open))]
}

// work lets so many steps happen.
func (w *world) work(steps int) {
	for range steps {
		synctest.Wait()
		if !w.turns.Next() {
			time.Sleep(time.Second)
		}
	}
}

// catchUp lets everything be read, in hardly any time.
func (w *world) catchUp() {
	w.turns.SetRate(0)
	defer w.turns.SetRate(soakRate)
	for until := time.Now().Add(time.Minute); time.Now().Before(until); {
		w.work(1)
	}
}

// halt tells a writer to end, and waits until it has.
func (w *world) halt(a *pipelinetest.Actor) {
	if stop := w.stops[a]; stop != nil {
		close(stop)
		delete(w.stops, a)
	}
	for range 500 {
		if synctest.Wait(); a.Ended() {
			return
		}
		if !w.turns.Next() {
			time.Sleep(time.Second)
		}
	}
	w.turns.Kill(a)
}

// outageGaps checks that the gaps are those of the outage, and that exactly what it made unreadable
// lies in them: what was created in its first hours and not the records of its last day.
func (w *world) outageGaps(t *testing.T, gone, back time.Time) int {
	gaps, err := checkpoint.New(w.client, "checkpoint", checkpoint.Options{}).Gaps(context.WithoutCancel(t.Context()), w.table.StreamARN)
	if err != nil {
		t.Fatal(err)
	}
	if len(gaps) == 0 {
		t.Error("an outage of 30 hours left no gap")
	}
	j := judgement{w: w, gaps: gaps, held: make([]int, len(gaps))}
	for _, g := range gaps {
		if g.Cause == pipeline.GapWindow {
			t.Errorf("a window was given up: %s", describe(g))
		}
		if g.From.After(gone.Add(time.Minute)) || g.To.Before(back.Add(-24*time.Hour)) || g.Detected.Before(back) {
			t.Errorf("gone from %s to %s, a gap is %s", gone.UTC().Format(time.DateTime), back.UTC().Format(time.DateTime), describe(g))
		}
	}
	lost := 0
	for _, r := range w.book.records {
		unreadable := r.created.After(gone) && r.created.Before(back.Add(-24*time.Hour-2*time.Minute))
		g := j.lost(r)
		switch {
		case unreadable && g == nil && r.outcome != expiredRecord:
			t.Error(errors.New("an unreadable record lies in no gap"), r)
		case g != nil && !unreadable && (r.created.Before(gone.Add(-time.Minute)) || r.created.After(back.Add(-24*time.Hour+5*time.Minute))):
			t.Errorf("record %s, created %s, lies in the gap %s", r.seq, r.created.UTC().Format(time.DateTime), describe(*g))
		case g != nil:
			lost++
		}
	}
	if lost == 0 {
		t.Error("no record lies in a gap: the outage was none")
	}
	return lost
}
