package checkpoint

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/pipelinetest"
)

// tipOf is when a shard of the suites' stream was last read to its tip.
func tipOf(t *testing.T, s *Store, id pipeline.ShardID) time.Time {
	t.Helper()
	sh, ok, err := s.Shard(t.Context(), arn, id)
	if err != nil || !ok {
		t.Fatalf("shard %s: %v, %v", id, ok, err)
	}
	return sh.TipAt
}

func TestATipIsOnlyEverRaised(t *testing.T) {
	for name, open := range services {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t)
			shards := s.Shards(arn, pipelinetest.Lane, Run)
			_, err := shards.Own(t.Context(), pipeline.Shard{ID: "shardId-A"})
			works(t, "own", err)
			at := today.Add(time.Hour)
			works(t, "the first", shards.MarkTip(t.Context(), "shardId-A", "", at))
			works(t, "one that comes late", shards.MarkTip(t.Context(), "shardId-A", "", at.Add(-time.Minute)))
			works(t, "the same again", shards.MarkTip(t.Context(), "shardId-A", "", at.Add(time.Millisecond)))
			if got := tipOf(t, s, "shardId-A"); !got.Equal(at) {
				t.Errorf("tip at %s, want %s", got, at)
			}
			works(t, "a later one", shards.MarkTip(t.Context(), "shardId-A", "", at.Add(time.Minute)))
			if got := tipOf(t, s, "shardId-A"); !got.Equal(at.Add(time.Minute)) {
				t.Errorf("tip at %s after a later one", got)
			}
		})
	}
}

func TestATipIsNotedByTheShardsLaneAlone(t *testing.T) {
	s, _ := newClocked(t)
	ours, other := s.Shards(arn, "ours", Run), s.Shards(arn, "other", Run)
	_, err := ours.Own(t.Context(), pipeline.Shard{ID: "s1"})
	works(t, "own", err)
	pipelinetest.NeedsPerson(t, "the tip of another lane's shard", other.MarkTip(t.Context(), "s1", "", today.Add(time.Hour)))
	if err := ours.MarkTip(t.Context(), "unknown", "", today); err == nil {
		t.Error("the tip of a shard without an item is noted")
	}
	works(t, "its own", ours.MarkTip(t.Context(), "s1", "", today))
	if got := tipOf(t, s, "s1"); !got.Equal(today) {
		t.Errorf("tip at %s, want %s", got, today)
	}
}

// Positions of any length: 9 lies before 10, and a tip that was seen at 10 says nothing of a shard
// that is committed up to 9.
func TestATipIsNotedOnlyWhereWhatHadBeenReadIsCommitted(t *testing.T) {
	for name, open := range services {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t)
			shards := s.Shards(arn, pipelinetest.Lane, Run)
			_, err := shards.Own(t.Context(), pipeline.Shard{ID: "shardId-A"})
			works(t, "own", err)
			for i, c := range []struct {
				commit int
				read   pipeline.SequenceNumber
				want   error
			}{
				{0, "5", ErrTipUnproved},
				{9, "10", ErrTipUnproved},
				{0, "9", nil},
				{0, "", nil}, // it was seen before anything was committed, and marked late
				{100, "20", nil},
				{0, "101", ErrTipUnproved},
			} {
				if c.commit != 0 {
					works(t, "window", window(t, s, pipelinetest.Lane, "shardId-A", c.commit))
				}
				before, at := tipOf(t, s, "shardId-A"), today.Add(time.Duration(i)*time.Minute)
				if err := shards.MarkTip(t.Context(), "shardId-A", c.read, at); !errors.Is(err, c.want) {
					t.Errorf("mark %d, read up to %q: %v, want %v", i, c.read, err, c.want)
				}
				want := at
				if c.want != nil {
					want = before
				}
				if got := tipOf(t, s, "shardId-A"); !got.Equal(want) {
					t.Errorf("mark %d: tip at %s, want %s", i, got, want)
				}
			}
		})
	}
}

// A rebuild may put a shard back to where less was read. What its old reader saw is no tip then.
func TestATipThatIsOvertakenByARebuildIsNotNoted(t *testing.T) {
	s, _ := newClocked(t)
	runs(t, s)
	old := s.Shards(arn, pipelinetest.Lane, Run)
	_, err := s.Rebuild(t.Context(), Rebuilt{Lane: pipelinetest.Lane, Stream: arn, Side: Run, Shards: []RebuiltShard{{ID: "shardId-A", At: pipeline.Position{Seq: "7"}}}})
	works(t, "rebuild", err)
	if err := old.MarkTip(t.Context(), "shardId-A", "10", today.Add(time.Hour)); !errors.Is(err, ErrTipUnproved) {
		t.Errorf("mark: %v", err)
	}
	if got := tipOf(t, s, "shardId-A"); !got.IsZero() {
		t.Errorf("tip at %s", got)
	}
}

func TestATipUnderALeaseNeedsTheTokenOfTheLane(t *testing.T) {
	s, _ := newClocked(t)
	l := &Leased{Store: s, For: time.Minute}
	shards := s.Shards(arn, pipelinetest.Lane, Run).HeldBy(l.Hold)
	_, err := shards.Own(t.Context(), pipeline.Shard{ID: "shardId-A"})
	works(t, "own", err)
	mark := func(at time.Duration) error { return shards.MarkTip(t.Context(), "shardId-A", "", today.Add(at)) }
	if err := mark(0); !errors.Is(err, pipeline.ErrFenced) {
		t.Errorf("before the lane is held: %v", err)
	}
	_, err = l.Acquire(t.Context(), pipelinetest.Lane, false)
	works(t, "acquire", err)
	works(t, "held", mark(time.Minute))
	_, err = s.Acquire(t.Context(), pipelinetest.Lane, false)
	works(t, "another acquires", err)
	if err := mark(time.Hour); !errors.Is(err, pipeline.ErrFenced) {
		t.Errorf("by a process that was displaced: %v", err)
	}
	if got := tipOf(t, s, "shardId-A"); !got.Equal(today.Add(time.Minute)) {
		t.Errorf("tip at %s", got)
	}
}

// Whatever happens between any two requests of a mark, it is noted if it is still true.
func TestATipThatIsOvertakenAnywhereIsStillTrue(t *testing.T) {
	for at := 1; ; at++ {
		cfg, s := newService(t)
		runs(t, s)
		l := &line{next: cfg.HTTPClient, at: at, hold: true, meanwhile: func() {
			works(t, "a window meanwhile", window(t, s, pipelinetest.Lane, "shardId-A", 50+at))
		}}
		err := over(cfg, l).Shards(arn, pipelinetest.Lane, Run).MarkTip(t.Context(), "shardId-A", "10", today)
		if l.n < at {
			break
		}
		works(t, fmt.Sprintf("overtaken at request %d", at), err)
		if got := tipOf(t, s, "shardId-A"); !got.Equal(today) {
			t.Errorf("overtaken at request %d: tip at %s", at, got)
		}
	}
}
