package checkpoint

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/pipelinetest"
)

// discardedGap is one of records behind all that is committed of the shard.
func discardedGap(t *testing.T, s *Store, first, last pipeline.SequenceNumber) pipeline.Gap {
	t.Helper()
	g, open, err := s.OpenGap(t.Context(), pipeline.Gap{
		Stream: arn, Shard: pipelinetest.Shard, First: first, Last: last,
		Missing: pipeline.Missing{Cause: pipeline.GapDiscarded, From: today, To: today.Add(time.Minute)},
	})
	if err != nil || !open {
		t.Fatalf("open gap: %v, %v", open, err)
	}
	return g
}

func stateOf(t *testing.T, s *Store, g pipeline.Gap) pipeline.Gap {
	t.Helper()
	all, err := s.Gaps(t.Context(), g.Stream)
	works(t, "gaps", err)
	for _, is := range all {
		if is.ID == g.ID {
			return is
		}
	}
	t.Fatalf("gap %s is gone", g.ID)
	return g
}

// Whatever the other does between any two requests of a step, one repair has the gap and knows it,
// and the other knows that it has not.
func TestOfTwoRepairsOneHasTheGap(t *testing.T) {
	for at := 1; ; at++ {
		cfg, s := newService(t)
		pipelinetest.Begun(t, memory(s))
		g := discardedGap(t, s, "5", "9")
		one, other := g, g
		one.Repair, other.Repair = "one", "other"
		var won bool
		l := &line{next: cfg.HTTPClient, at: at, hold: true, meanwhile: func() {
			err := s.MoveGap(t.Context(), other, pipeline.GapRepairing, "")
			if won = err == nil; err != nil && !errors.Is(err, ErrGapMoved) {
				t.Errorf("the other: %v", err)
			}
		}}
		err := over(cfg, l).MoveGap(t.Context(), one, pipeline.GapRepairing, "")
		if l.n < at {
			break
		}
		if won == (err == nil) || err != nil && !errors.Is(err, ErrGapMoved) {
			t.Errorf("overtaken at request %d: %v, and the other has it: %v", at, err, won)
		}
		want := map[bool]string{true: "other", false: "one"}[won]
		if is := stateOf(t, s, g); is.State != pipeline.GapRepairing || is.Repair != want {
			t.Errorf("overtaken at request %d: the gap is %s by %q, want %q", at, is.State, is.Repair, want)
		}
	}
}

// Each of two messages that come at once widens the gap: neither bound is lost.
func TestAGapThatGrowsAtBothEndsAtOnceHoldsBoth(t *testing.T) {
	for at := 1; ; at++ {
		cfg, s := newService(t)
		pipelinetest.Begun(t, memory(s))
		discardedGap(t, s, "50", "60")
		l := &line{next: cfg.HTTPClient, at: at, hold: true, meanwhile: func() { discardedGap(t, s, "40", "50") }}
		_, _, err := over(cfg, l).OpenGap(t.Context(), pipeline.Gap{Stream: arn, Shard: pipelinetest.Shard, First: "60", Last: "70", Missing: pipeline.Missing{Cause: pipeline.GapDiscarded}})
		if l.n < at {
			break
		}
		works(t, fmt.Sprintf("overtaken at request %d", at), err)
		gaps, err := s.Gaps(t.Context(), arn)
		works(t, "gaps", err)
		if len(gaps) != 1 || gaps[0].First != "40" || gaps[0].Last != "70" {
			t.Errorf("overtaken at request %d: gaps %+v, want one of 40 to 70", at, gaps)
		}
	}
}

// The position of a shard is what tells that given-up records were read after all: it is kept until
// it has told so.
func TestAShardIsForgottenOnlyWhenItsGapsAreSettled(t *testing.T) {
	for name, open := range services {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t)
			ctx := t.Context()
			seq := pipelinetest.Begun(t, memory(s))
			sh := s.Shards(arn, pipelinetest.Lane, Run)
			read, repaired := discardedGap(t, s, "5", "9"), pipeline.Gap{}
			seq.Window(t, 1)
			repaired = discardedGap(t, s, "205", "209")
			repaired.Repair = "somebody"
			works(t, "repair", s.MoveGap(ctx, repaired, pipeline.GapRepairing, ""))
			end := seq.Manifest(0)
			end.Shards[0].End = true
			works(t, "begin", s.Begin(ctx, seq.Hold, end))
			seq.Commit(t, end)
			forget := func(hours int, want bool) {
				t.Helper()
				works(t, "forget", sh.Forget(ctx, []pipeline.ShardID{pipelinetest.Shard}, today.Add(time.Duration(hours)*time.Hour)))
				if _, ok, err := s.Shard(ctx, arn, pipelinetest.Shard); err != nil || ok != want {
					t.Errorf("after %d hours the shard is there: %v, %v, want %v", hours, ok, err, want)
				}
			}
			forget(50, true)
			if is := stateOf(t, s, read); is.State != pipeline.GapOpen {
				t.Errorf("the gap is %s before the shard goes", is.State)
			}
			forget(99, true)
			if is := stateOf(t, s, read); is.State != pipeline.GapClosed || is.Evidence == "" {
				t.Errorf("the gap of what was read is %s, with evidence %q", is.State, is.Evidence)
			}
			repaired = stateOf(t, s, repaired)
			works(t, "break off", s.MoveGap(ctx, repaired, pipeline.GapOpen, ""))
			forget(100, false)
			if is := stateOf(t, s, repaired); is.State != pipeline.GapClosed {
				t.Errorf("the gap whose repair was broken off is %s", is.State)
			}
			// Of a shard without an item nothing is known.
			late := discardedGap(t, s, "307", "308")
			if n, err := s.SettleGaps(ctx, arn); n != 0 || err != nil {
				t.Errorf("settled %d, %v", n, err)
			}
			if is := stateOf(t, s, late); is.State != pipeline.GapOpen {
				t.Errorf("the gap of a message that came too late is %s", is.State)
			}
		})
	}
}

// A window is lost between the fold's reading of it and its sealing: what the fold had read says
// nothing of gaps, and they close all the same.
func TestAGapThatIsOpenedWhileItsWindowIsFoldedIsClosed(t *testing.T) {
	opened := 0
	for at := 1; ; at++ {
		cfg, s := newService(t)
		seq := pipelinetest.Begun(t, memory(s))
		m := seq.Window(t, 2)
		var held []pipeline.Claim
		for i := range 2 {
			held = append(held, pipelinetest.ClaimOf(m, i, "a"))
		}
		held, err := s.Claim(t.Context(), held)
		works(t, "claim", err)
		works(t, "publish", s.Publish(t.Context(), held))
		l := &line{next: cfg.HTTPClient, at: at, hold: true, meanwhile: func() {
			if err := s.loseCommitted(t.Context(), m); err == nil {
				opened++
			} else if !errors.Is(err, pipeline.ErrWindowClosed) {
				t.Errorf("overtaken at request %d: lose: %v", at, err)
			}
		}}
		works(t, "fold", over(cfg, l).Fold(t.Context(), pipelinetest.Lane))
		if l.n < at {
			break
		}
		gaps, err := s.Gaps(t.Context(), arn)
		works(t, "gaps", err)
		for _, g := range gaps {
			if g.State != pipeline.GapClosed {
				t.Errorf("overtaken at request %d: a window of which every part is published has a gap that is %s", at, g.State)
			}
		}
	}
	if opened == 0 {
		t.Error("no gap was opened while the window was folded")
	}
}

// What fold tells is what a second look would.
func TestAFoldReturnsTheWindowsThatAreLeft(t *testing.T) {
	s, _ := newClocked(t)
	history(t, s)
	rest, err := s.FoldRest(t.Context(), pipelinetest.Lane)
	works(t, "fold", err)
	want, err := s.Unsealed(t.Context(), pipelinetest.Lane)
	works(t, "unsealed", err)
	if len(rest) != 1 || len(want) != 1 || rest[0] != want[0] {
		t.Errorf("left %+v, want %+v", rest, want)
	}
	if rest, err := s.FoldRest(t.Context(), "another"); len(rest) != 0 || err != nil {
		t.Errorf("of a lane that never was: %v, %v", rest, err)
	}
}

// What a mapping gave up and had aged out before anybody met the stream was never read, wherever the
// shard's first position is.
func TestAGapOfWhatWasGoneBeforeTheStreamWasMetStays(t *testing.T) {
	for name, met := range map[string]struct {
		after time.Duration
		state pipeline.GapState
	}{"a day after": {25 * time.Hour, pipeline.GapOpen}, "at once": {time.Hour, pipeline.GapClosed}} {
		t.Run(name, func(t *testing.T) {
			_, s := newService(t)
			ctx := t.Context()
			seq := pipelinetest.Begun(t, memory(s))
			const shard pipeline.ShardID = "shardId-2"
			_, err := s.Shards(arn, pipelinetest.Lane, Run).Own(ctx, pipeline.Shard{Stream: arn, ID: shard, MetAt: today.Add(met.after)})
			works(t, "own", err)
			g, _, err := s.OpenGap(ctx, pipeline.Gap{
				Stream: arn, Shard: shard, First: "5", Last: "9",
				Missing: pipeline.Missing{Cause: pipeline.GapDiscarded, From: today, To: today.Add(time.Minute)},
			})
			works(t, "open gap", err)
			m := seq.Manifest(1)
			m.Shards[0].Shard, m.Shards[0].End = shard, true
			works(t, "begin", s.Begin(ctx, seq.Hold, m))
			seq.Commit(t, m)
			_, err = s.SettleGaps(ctx, arn)
			works(t, "settle", err)
			if is := stateOf(t, s, g); is.State != met.state {
				t.Errorf("the gap is %s (%s), want %s", is.State, is.Evidence, met.state)
			}
		})
	}
}
