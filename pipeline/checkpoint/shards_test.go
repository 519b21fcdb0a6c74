package checkpoint

import (
	"testing"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/pipelinetest"
)

func TestAShardKeepsWhenItWasMetAndItsStartMark(t *testing.T) {
	for name, open := range services {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t)
			sh := s.Shards(arn, pipelinetest.Lane, Run)
			want := pipeline.Position{MetAt: today, StartAt: today.Add(-time.Second)}
			for _, at := range []time.Duration{0, time.Hour} { // what is stored first stays
				p, err := sh.Own(t.Context(), pipeline.Shard{ID: "s", MetAt: today.Add(at), StartAt: today.Add(at - time.Second)})
				if err != nil || p != want {
					t.Errorf("position %+v, %v, want %+v", p, err, want)
				}
			}
			if p, ok, err := sh.Position(t.Context(), "s"); p != want || !ok || err != nil {
				t.Errorf("position %+v, %v, %v", p, ok, err)
			}
		})
	}
}

func TestAllShardsOfALaneAreReadAtOnce(t *testing.T) {
	for name, open := range services {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t)
			runs(t, s)
			_, err := s.Shards(arn, "other", Run).Own(t.Context(), pipeline.Shard{ID: "shardId-foreign"})
			works(t, "own", err)
			all, err := s.Shards(arn, pipelinetest.Lane, Run).All(t.Context())
			if err != nil || len(all) != 2 || all["shardId-A"].Seq != "10" || all["shardId-B"].Seq != "11" {
				t.Errorf("all %+v, %v", all, err)
			}
			if sh, ok, err := s.Shard(t.Context(), arn, "shardId-foreign"); err != nil || !ok || sh.Lane != "other" {
				t.Errorf("shard %+v, %v, %v", sh, ok, err)
			}
			if _, ok, err := s.Shard(t.Context(), arn, "never"); err != nil || ok {
				t.Errorf("a shard that never was: %v, %v", ok, err)
			}
		})
	}
}

func TestAFinishedShardIsForgottenWhenItIsUnlistedFor48Hours(t *testing.T) {
	for name, open := range services {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t)
			ctx := t.Context()
			seq := pipelinetest.Begun(t, memory(s))
			sh := s.Shards(arn, pipelinetest.Lane, Run)
			ids := []pipeline.ShardID{pipelinetest.Shard, "open", "foreign", "never"}
			_, err := sh.Own(ctx, pipeline.Shard{ID: "open"})
			works(t, "own", err)
			_, err = s.Shards(arn, "other", Run).Own(ctx, pipeline.Shard{ID: "foreign"})
			works(t, "own", err)
			there := func(want bool) {
				t.Helper()
				_, ok, err := sh.Position(ctx, pipelinetest.Shard)
				if err != nil || ok != want {
					t.Errorf("the shard is there: %v, %v, want %v", ok, err, want)
				}
			}
			works(t, "forget what is not finished", sh.Forget(ctx, ids, today))
			end := seq.Manifest(0)
			end.Shards[0].End = true
			works(t, "begin", s.Begin(ctx, seq.Hold, end))
			seq.Commit(t, end)
			for _, at := range []time.Duration{50 * time.Hour, 60 * time.Hour, 97 * time.Hour} {
				works(t, "forget", sh.Forget(ctx, ids, today.Add(at)))
				there(true)
			}
			works(t, "forget", sh.Forget(ctx, ids[1:], today.Add(120*time.Hour))) // it is listed again
			there(true)
			works(t, "forget", sh.Forget(ctx, ids, today.Add(98*time.Hour)))
			there(false)
			works(t, "forget again", sh.Forget(ctx, ids, today.Add(99*time.Hour)))
			for _, id := range []pipeline.ShardID{"open", "foreign"} {
				if _, ok, err := s.Shard(ctx, arn, id); err != nil || !ok {
					t.Errorf("shard %s is gone: %v", id, err)
				}
			}
		})
	}
}

func TestStatusTellsWhatWasCreatedLastAndHowLongWindowsWait(t *testing.T) {
	s, clock := newClocked(t)
	seq := pipelinetest.Begun(t, memory(s))
	m := seq.Manifest(2)
	m.Shards[0].Oldest, m.Shards[0].Newest = today.Add(-time.Hour), today.Add(-time.Minute)
	works(t, "begin", s.Begin(t.Context(), seq.Hold, m))
	open, err := s.Unsealed(t.Context(), pipelinetest.Lane)
	if err != nil || len(open) != 1 || open[0].State != pipeline.WindowPending || !open[0].CommittedAt.IsZero() {
		t.Errorf("unsealed %+v, %v", open, err)
	}
	seq.Commit(t, m)
	clock.Advance(3 * time.Hour)
	if _, err := s.Lane(t.Context(), pipelinetest.Lane); err != nil { // it hears of the time
		t.Fatal(err)
	}
	works(t, "landed", s.Landed(t.Context(), m.Window))
	open, err = s.Unsealed(t.Context(), pipelinetest.Lane)
	if err != nil || len(open) != 1 {
		t.Fatalf("unsealed %+v, %v", open, err)
	}
	w := open[0]
	if !w.Oldest.Equal(today.Add(-time.Hour)) || !w.CommittedAt.Equal(today) || !w.LandedAt.Equal(today.Add(3*time.Hour)) || w.Landings != 1 || w.Parts != 2 || w.Gaps {
		t.Errorf("window %+v", w)
	}
	shards, _, err := s.StreamStatus(t.Context(), arn)
	if err != nil || len(shards) != 1 || !shards[0].Created.Equal(today.Add(-time.Minute)) {
		t.Errorf("shards %+v, %v", shards, err)
	}
}

func TestNumbersOfWindows(t *testing.T) {
	var ns numbers
	for _, n := range []int64{7, 3, 8, 1, 9, 20, 2, 9} {
		ns = ns.add(n)
	}
	if got := ns.String(); got != "1-3,7-9,20" {
		t.Errorf("numbers are %s", got)
	}
	back, err := parseNumbers(ns.String())
	if err != nil || back.String() != ns.String() {
		t.Errorf("they come back as %s, %v", back, err)
	}
	for n := range int64(25) {
		if want := n >= 1 && n <= 3 || n >= 7 && n <= 9 || n == 20; back.has(n) != want {
			t.Errorf("%d is among them: %v", n, !want)
		}
	}
	for _, bad := range []string{"x", "0", "3-1", "1,1", "5,2", "1-2-3", "-4", "1,", ",", " 1"} {
		if _, err := parseNumbers(bad); err == nil {
			t.Errorf("%q are numbers", bad)
		}
	}
}
