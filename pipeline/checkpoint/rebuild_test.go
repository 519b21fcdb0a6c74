package checkpoint

import (
	"errors"
	"fmt"
	"testing"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/pipelinetest"
)

// past is a manifest of an earlier life of the suites' lane.
func past(inc string, n int64, parts int) *pipeline.Manifest {
	seq := pipeline.SequenceNumber([]string{"10", "20", "30", "40", "50", "60"}[n-1])
	m := &pipeline.Manifest{
		Format: 1, Layout: 1, Stream: arn, Contract: "c0ffee", Window: pipeline.WindowID{Lane: pipelinetest.Lane, Incarnation: inc, N: n},
		Shards: []pipeline.ShardRange{{Range: pipeline.Range{Shard: pipelinetest.Shard, First: seq, Last: seq}}},
	}
	for range parts {
		m.Parts = append(m.Parts, pipeline.PartSpec{Table: "readings", Partition: "dt=2026-11-30", Rows: 1})
	}
	return m
}

// rebuilt is a lane whose earlier life had windows 1 and 2 whole in the lake, 3 half, and 4 and 5
// in staging; nothing is known of 6.
func rebuilt() Rebuilt {
	return Rebuilt{
		Lane: pipelinetest.Lane, Stream: arn, Side: Run,
		Shards: []RebuiltShard{{ID: pipelinetest.Shard, At: pipeline.Position{Seq: "50", Created: today}}, {ID: "done", Parent: "p", At: pipeline.Position{Seq: "9", End: true}}},
		Past: []PastLife{{Incarnation: "old", Watermark: 2, Windows: []PastWindow{
			{Manifest: past("old", 3, 2), Published: map[int]string{0: "readings/dt=2026-11-30/x.parquet"}},
			{Manifest: past("old", 4, 1)}, {Manifest: past("old", 5, 1)},
		}}},
	}
}

func wantStates(t *testing.T, s *Store, want map[pipeline.WindowID]pipeline.WindowState) {
	t.Helper()
	for w, state := range want {
		if got, _, err := s.Window(t.Context(), w); err != nil || got != state {
			t.Errorf("window %s is %s, %v, want %s", w, got, err, state)
		}
	}
}

func old(n int64) pipeline.WindowID {
	return pipeline.WindowID{Lane: pipelinetest.Lane, Incarnation: "old", N: n}
}

func TestARebuiltLaneGoesOnAndFinishesItsPast(t *testing.T) {
	for name, open := range services {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t)
			ctx := t.Context()
			inc, err := s.Rebuild(ctx, rebuilt())
			works(t, "rebuild", err)
			wantStates(t, s, map[pipeline.WindowID]pipeline.WindowState{
				old(1): pipeline.WindowFolded, old(2): pipeline.WindowFolded, old(3): pipeline.WindowCommitted,
				old(4): pipeline.WindowCommitted, old(5): pipeline.WindowCommitted, old(6): pipeline.WindowUnknown,
				{Lane: pipelinetest.Lane, Incarnation: "older", N: 1}: pipeline.WindowUnknown,
			})
			st, err := s.Acquire(ctx, pipelinetest.Lane, false)
			works(t, "acquire", err)
			if st.Incarnation != inc || inc == "old" || st.Next != 1 || st.Pending != nil {
				t.Errorf("state %+v", st)
			}
			p, err := s.Position(ctx, st.Hold, arn, pipelinetest.Shard)
			if err != nil || p != (pipeline.Position{Seq: "50", Created: today}) {
				t.Errorf("position %+v, %v", p, err)
			}
			works(t, "window", window(t, s, pipelinetest.Lane, pipelinetest.Shard, 60))

			// Of the window that is half in the lake one part is a duplicate, the other is published.
			m := past("old", 3, 2)
			held, err := s.Claim(ctx, []pipeline.Claim{pipelinetest.ClaimOf(m, 0, "a"), pipelinetest.ClaimOf(m, 1, "a")})
			works(t, "claim", err)
			if !held[0].Published || held[1] != pipelinetest.ClaimOf(m, 1, "a") {
				t.Errorf("held %+v", held)
			}
			works(t, "publish", s.Publish(ctx, held[1:]))
			held, err = s.Claim(ctx, []pipeline.Claim{pipelinetest.ClaimOf(past("old", 5, 1), 0, "a")})
			works(t, "claim", err)
			works(t, "publish", s.Publish(ctx, held))
			works(t, "fold", s.Fold(ctx, pipelinetest.Lane))
			works(t, "fold again", s.Fold(ctx, pipelinetest.Lane))
			wantStates(t, s, map[pipeline.WindowID]pipeline.WindowState{
				old(1): pipeline.WindowFolded, old(3): pipeline.WindowSealed, old(4): pipeline.WindowCommitted, old(5): pipeline.WindowSealed,
				old(6): pipeline.WindowUnknown, {Lane: pipelinetest.Lane, Incarnation: inc, N: 1}: pipeline.WindowFolded,
			})
			open, err := s.Unsealed(ctx, pipelinetest.Lane)
			if err != nil || len(open) != 1 || open[0].ID != old(4) {
				t.Errorf("unsealed %+v, %v", open, err)
			}
		})
	}
}

// A lane that is still there is fenced, and what its windows were is remembered.
func TestRebuildingALaneThatIsThereKeepsItsPast(t *testing.T) {
	s, _ := newClocked(t)
	ctx := t.Context()
	m := memory(s)
	seq := pipelinetest.Begun(t, m)
	done, half := seq.Window(t, 1), seq.Window(t, 2)
	held, err := s.Claim(ctx, []pipeline.Claim{pipelinetest.ClaimOf(done, 0, "a")})
	works(t, "claim", err)
	works(t, "publish", s.Publish(ctx, held))
	works(t, "fold", s.Fold(ctx, pipelinetest.Lane))
	first, err := s.Rebuild(ctx, rebuilt())
	works(t, "rebuild", err)
	if err := s.Begin(ctx, seq.Hold, seq.Manifest(1)); !errors.Is(err, pipeline.ErrFenced) {
		t.Errorf("begin of the old: %v", err)
	}
	second, err := s.Rebuild(ctx, rebuilt())
	works(t, "rebuild again", err)
	if first == second {
		t.Error("two lives have one name")
	}
	wantStates(t, s, map[pipeline.WindowID]pipeline.WindowState{done.Window: pipeline.WindowFolded, half.Window: pipeline.WindowCommitted, old(2): pipeline.WindowFolded})
	held, err = s.Claim(ctx, []pipeline.Claim{pipelinetest.ClaimOf(half, 0, "a"), pipelinetest.ClaimOf(half, 1, "a")})
	works(t, "claim", err)
	works(t, "publish", s.Publish(ctx, held))
	works(t, "fold", s.Fold(ctx, pipelinetest.Lane))
	wantStates(t, s, map[pipeline.WindowID]pipeline.WindowState{half.Window: pipeline.WindowSealed})
	works(t, "window", window(t, s, pipelinetest.Lane, pipelinetest.Shard, 60))
}

func TestRebuildRefusesWhatItCannotRead(t *testing.T) {
	s, _ := newClocked(t)
	foreign := rebuilt()
	foreign.Past[0].Windows[0].Manifest = past("other", 3, 2)
	noPart := rebuilt()
	noPart.Past[0].Windows[0].Published = map[int]string{7: "x"}
	nameless := rebuilt()
	nameless.Past[0].Incarnation = ""
	for what, r := range map[string]Rebuilt{"another life's window": foreign, "a part that is none": noPart, "a life without a name": nameless, "no lane": {}} {
		if _, err := s.Rebuild(t.Context(), r); err == nil {
			t.Errorf("%s: it is rebuilt", what)
		}
	}
	seq := pipelinetest.Begun(t, memory(s))
	seq.Begin(t, 1)
	_, err := s.Rebuild(t.Context(), rebuilt())
	pipelinetest.NeedsPerson(t, "with a pending window", err)
}

func TestRebuildOfAnothersShardNeedsAPerson(t *testing.T) {
	s, _ := newClocked(t)
	_, err := s.Shards(arn, "other", Run).Own(t.Context(), pipeline.Shard{ID: pipelinetest.Shard})
	works(t, "own", err)
	_, err = s.Rebuild(t.Context(), rebuilt())
	pipelinetest.NeedsPerson(t, "rebuild", err)
}

func TestRebuildThatDiesAnywhereIsFinishedByTheNext(t *testing.T) {
	for name, prepare := range map[string]func(*testing.T, *Store){
		"no lane": func(*testing.T, *Store) {},
		"a lane":  func(t *testing.T, s *Store) { pipelinetest.Begun(t, memory(s)).Window(t, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			eachCut(t,
				func(t *testing.T, s *Store) func(*Store) error {
					prepare(t, s)
					return func(s *Store) error { _, err := s.Rebuild(t.Context(), rebuilt()); return err }
				},
				func(t *testing.T, s *Store) {
					_, err := s.Rebuild(t.Context(), rebuilt())
					works(t, "rebuild", err)
					wantStates(t, s, map[pipeline.WindowID]pipeline.WindowState{old(2): pipeline.WindowFolded, old(4): pipeline.WindowCommitted, old(6): pipeline.WindowUnknown})
					works(t, "window", window(t, s, pipelinetest.Lane, pipelinetest.Shard, 60))
				})
		})
	}
}

func TestARebuiltLaneKnowsWhatItsPastGaveUpAndWhatLeftNoTrace(t *testing.T) {
	s, _ := newClocked(t)
	ctx := t.Context()
	r := rebuilt()
	life := &r.Past[0]
	life.Watermark, life.Void, life.Unknown = 9, []int64{6}, [][2]int64{{7, 8}}
	life.Windows[0].Lost = true
	life.Windows[0].Manifest.Parts[1] = pipeline.PartSpec{} // found nowhere
	life.Windows[0].Manifest.Rebuilt = true
	r.Gaps = []pipeline.Gap{{Missing: pipeline.Missing{Cause: pipeline.GapRebuilt, From: today, To: today}, Shard: pipelinetest.Shard, After: "20", First: "22", Last: "25", Before: "30"}}
	for range 2 { // a second time changes nothing
		_, err := s.Rebuild(ctx, r)
		works(t, "rebuild", err)
	}
	wantStates(t, s, map[pipeline.WindowID]pipeline.WindowState{
		old(2): pipeline.WindowFolded, old(3): pipeline.WindowCommitted, old(6): pipeline.WindowVoid,
		old(7): pipeline.WindowUnknown, old(8): pipeline.WindowUnknown, old(9): pipeline.WindowFolded, old(10): pipeline.WindowUnknown,
	})
	gaps, err := s.Gaps(ctx, arn)
	if err != nil || len(gaps) != 2 || gaps[0].Cause != pipeline.GapWindow || *gaps[0].Window != old(3) ||
		gaps[1].Cause != pipeline.GapRebuilt || gaps[1].First != "22" || gaps[1].Lane != pipelinetest.Lane || gaps[1].State != pipeline.GapOpen {
		t.Fatalf("gaps %+v, %v", gaps, err)
	}
	// Should the missing part come, it is published, and the window's gap closes.
	late := pipelinetest.ClaimOf(past("old", 3, 2), 1, "late")
	held, err := s.Claim(ctx, []pipeline.Claim{late})
	works(t, "claim", err)
	works(t, "publish", s.Publish(ctx, held))
	works(t, "fold", s.Fold(ctx, pipelinetest.Lane))
	gaps, err = s.Gaps(ctx, arn)
	if err != nil || gaps[0].State != pipeline.GapClosed || gaps[1].State != pipeline.GapOpen {
		t.Errorf("gaps %+v, %v", gaps, err)
	}
	wantStates(t, s, map[pipeline.WindowID]pipeline.WindowState{old(6): pipeline.WindowVoid, old(7): pipeline.WindowUnknown})
}

// A shard whose position is not written yet would be read from its beginning.
func TestNoShardIsTakenUntilARebuildHasEnded(t *testing.T) {
	eachCut(t,
		func(t *testing.T, s *Store) func(*Store) error {
			return func(s *Store) error { _, err := s.Rebuild(t.Context(), rebuilt()); return err }
		},
		func(t *testing.T, s *Store) {
			side, begun, err := s.StreamSide(t.Context(), arn)
			works(t, "side", err)
			_, err = s.Shards(arn, pipelinetest.Lane, Run).Own(t.Context(), pipeline.Shard{ID: "other"})
			switch {
			case !begun: // it died before it wrote anything
			case side == Rebuilding:
				pipelinetest.NeedsPerson(t, "own", err)
			default:
				works(t, "own", err)
				if p, err := s.Position(t.Context(), pipeline.Hold{Lane: pipelinetest.Lane}, arn, pipelinetest.Shard); err != nil || p.Seq != "50" {
					t.Errorf("position %+v, %v", p, err)
				}
			}
		})
}

func TestRunsOfNumbersAreBounded(t *testing.T) {
	ns := numbers{{1, 1}, {3, 4}, {8, 8}, {10, 12}}
	for runs, want := range map[int]string{4: "1,3-4,8,10-12", 3: "1-4,8,10-12", 1: "1-12"} {
		if got := ns.atMost(runs).String(); got != want {
			t.Errorf("at most %d: %s, want %s", runs, got, want)
		}
	}
}

func TestALaneThatFollowsAStreamLeavesAGapBehind(t *testing.T) {
	s, _ := newClocked(t)
	ctx := t.Context()
	_, err := s.Shards(arn, pipelinetest.Lane, Run).Own(ctx, pipeline.Shard{ID: pipelinetest.Shard})
	works(t, "own", err)
	works(t, "window", window(t, s, pipelinetest.Lane, pipelinetest.Shard, 10))
	st, err := s.Lane(ctx, pipelinetest.Lane)
	if err != nil || st.Stream != arn {
		t.Fatalf("the lane is at stream %q, %v", st.Stream, err)
	}
	f := Following{Lane: pipelinetest.Lane, From: arn, To: "arn:next", At: today}
	for range 2 {
		works(t, "follow", s.Follow(ctx, f))
	}
	gaps, err := s.Gaps(ctx, arn)
	if err != nil || len(gaps) != 1 || gaps[0].Cause != pipeline.GapDisabled || gaps[0].After != "10" || !gaps[0].To.Equal(today) {
		t.Errorf("gaps %+v, %v", gaps, err)
	}
	if st, err = s.Lane(ctx, pipelinetest.Lane); err != nil || st.Stream != "arn:next" {
		t.Errorf("the lane is at stream %q, %v", st.Stream, err)
	}
	pipelinetest.NeedsPerson(t, "follow from elsewhere", s.Follow(ctx, Following{Lane: pipelinetest.Lane, From: arn, To: "arn:third"}))
}

// Whoever comes between the looks and the writes of a rebuild is stopped by a person, not by trying
// again.
func TestARebuildThatIsOvertakenNeedsAPerson(t *testing.T) {
	refused := 0
	for at := 1; ; at++ {
		cfg, s := newService(t)
		seq := pipelinetest.Begun(t, memory(s))
		seq.Window(t, 1)
		l := &line{next: cfg.HTTPClient, at: at, hold: true, meanwhile: func() {
			if err := s.Begin(t.Context(), seq.Hold, seq.Manifest(1)); err != nil {
				// It is fenced: somebody writes the lane's item without asking.
				set(t, s, laneKey(pipelinetest.Lane), "moved", nil)
			}
		}}
		_, err := over(cfg, l).Rebuild(t.Context(), Rebuilt{Lane: pipelinetest.Lane, Stream: arn, Side: Run, Shards: []RebuiltShard{{ID: pipelinetest.Shard, At: pipeline.Position{Seq: "100"}}}})
		if l.n < at {
			break
		}
		if err != nil {
			refused++
			pipelinetest.NeedsPerson(t, fmt.Sprintf("overtaken at request %d", at), err)
		}
	}
	if refused < 2 {
		t.Errorf("%d rebuilds were refused", refused)
	}
}
