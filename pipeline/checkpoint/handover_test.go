package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/pipelinetest"
)

const arn = pipelinetest.Stream

func toLambda() Handover {
	return Handover{Stream: arn, To: Lambda, Lane: func(id pipeline.ShardID) pipeline.LaneID { return LambdaLane("readings", id) }}
}

func toRun() Handover {
	return Handover{Stream: arn, To: Run, Lane: func(pipeline.ShardID) pipeline.LaneID { return pipelinetest.Lane }}
}

// window begins and commits a window of one record of a shard in a lane.
func window(t *testing.T, s *Store, lane pipeline.LaneID, shard pipeline.ShardID, seq int) error {
	t.Helper()
	ctx := t.Context()
	st, err := s.Acquire(ctx, lane, false)
	if err != nil {
		return err
	}
	p, err := s.Position(ctx, st.Hold, arn, shard)
	if err != nil {
		return err
	}
	n := pipeline.SequenceNumber(fmt.Sprint(seq))
	m := &pipeline.Manifest{
		Format: 1, Layout: 1, Stream: arn, Contract: "c0ffee", Window: pipeline.WindowID{Lane: lane, Incarnation: st.Incarnation, N: st.Next},
		Shards: []pipeline.ShardRange{{Range: pipeline.Range{Shard: shard, First: n, Last: n}, After: p.Seq}},
	}
	if err := s.Begin(ctx, st.Hold, m); err != nil {
		return err
	}
	return s.Commit(ctx, st.Hold, m)
}

// owners says who owns which shard up to where.
func owners(t *testing.T, s *Store) string {
	t.Helper()
	shards, _, err := s.StreamStatus(t.Context(), arn)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, sh := range shards {
		out = append(out, fmt.Sprintf("%s=%s@%s", sh.ID, sh.Lane, sh.At.Seq))
	}
	return strings.Join(out, " ")
}

func works(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// runs is a stream that a run reads, with two shards that have a window each.
func runs(t *testing.T, s *Store) {
	t.Helper()
	for i, id := range []pipeline.ShardID{"shardId-A", "shardId-B"} {
		_, err := s.Shards(arn, pipelinetest.Lane, Run).Own(t.Context(), pipeline.Shard{ID: id})
		works(t, "own", err)
		works(t, "window", window(t, s, pipelinetest.Lane, id, 10+i))
	}
}

func TestHandoverMovesAStreamThereAndBack(t *testing.T) {
	for name, open := range services {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t)
			ctx := t.Context()
			runs(t, s)
			for round := range 3 {
				base := 100 * (round + 1)
				n, err := s.Handover(ctx, toLambda())
				works(t, "to lambda", err)
				if want := 2 + round; n != want {
					t.Errorf("%d shards moved, want %d", n, want)
				}
				if side, ok, err := s.StreamSide(ctx, arn); side != Lambda || !ok || err != nil {
					t.Errorf("side %s, %v, %v", side, ok, err)
				}
				pipelinetest.NeedsPerson(t, "run's window", window(t, s, pipelinetest.Lane, "shardId-A", base))
				_, err = s.Shards(arn, pipelinetest.Lane, Run).Own(ctx, pipeline.Shard{ID: "shardId-new"})
				pipelinetest.NeedsPerson(t, "own by run", err)
				_, err = s.Shards(arn, pipelinetest.Lane, Run).Own(ctx, pipeline.Shard{ID: "shardId-A"})
				pipelinetest.NeedsPerson(t, "own of a foreign shard", err)
				works(t, "lambda's window", window(t, s, LambdaLane("readings", "shardId-A"), "shardId-A", base+1))
				// Children follow the side.
				child := pipeline.ShardID(fmt.Sprint("shardId-C", round))
				_, err = s.Shards(arn, LambdaLane("readings", child), Lambda).Own(ctx, pipeline.Shard{ID: child})
				works(t, "own by lambda", err)
				works(t, "child's window", window(t, s, LambdaLane("readings", child), child, 5))

				n, err = s.Handover(ctx, toRun())
				works(t, "to run", err)
				if want := 3 + round; n != want {
					t.Errorf("%d shards moved back, want %d", n, want)
				}
				err = window(t, s, LambdaLane("readings", "shardId-A"), "shardId-A", base+2)
				pipelinetest.NeedsPerson(t, "lambda's window", err)
				works(t, "run's window", window(t, s, pipelinetest.Lane, child, base+3))
				works(t, "run's window", window(t, s, pipelinetest.Lane, "shardId-B", base+4))
				if n, err := s.Handover(ctx, toRun()); n != 0 || err != nil {
					t.Errorf("handed over again: %d, %v", n, err)
				}
			}
			if got, want := owners(t, s), "shardId-A=run-readings@301 shardId-B=run-readings@304 shardId-C0=run-readings@103 shardId-C1=run-readings@203 shardId-C2=run-readings@303"; got != want {
				t.Errorf("owners %s\nwant   %s", got, want)
			}
		})
	}
}

func TestHandoverWaitsForAPendingWindow(t *testing.T) {
	s, _ := newClocked(t)
	seq := pipelinetest.Begun(t, memory(s))
	m := seq.Begin(t, 1)
	before := items(t, s)
	if _, err := s.Handover(t.Context(), toLambda()); !errors.Is(err, ErrPending) {
		t.Errorf("handover: %v", err)
	}
	if after := items(t, s); len(after) != len(before) || owners(t, s) != "shardId-1=run-readings@" {
		t.Errorf("it changed something: %s", owners(t, s))
	}
	seq.Commit(t, m)
	if n, err := s.Handover(t.Context(), toLambda()); n != 1 || err != nil {
		t.Errorf("moved %d, %v", n, err)
	}
}

// Whoever held the lane can begin nothing once the handover has begun, not even by taking it again.
func TestHandoverFencesTheLanesThatAreLeft(t *testing.T) {
	s, _ := newClocked(t)
	seq := pipelinetest.Begun(t, memory(s))
	if _, err := s.Handover(t.Context(), toLambda()); err != nil {
		t.Fatal(err)
	}
	if err := s.Begin(t.Context(), seq.Hold, seq.Manifest(1)); !errors.Is(err, pipeline.ErrFenced) {
		t.Errorf("begin: %v", err)
	}
	if _, err := s.Acquire(t.Context(), pipelinetest.Lane, true); !errors.Is(err, pipeline.ErrFenced) {
		t.Errorf("acquire again: %v", err)
	}
	_, err := s.Acquire(t.Context(), pipelinetest.Lane, false)
	pipelinetest.NeedsPerson(t, "acquire", err)
}

func TestHandoverOfAStreamThatNobodyReadsSetsItsSide(t *testing.T) {
	s, _ := newClocked(t)
	if n, err := s.Handover(t.Context(), toLambda()); n != 0 || err != nil {
		t.Errorf("moved %d, %v", n, err)
	}
	_, err := s.Shards(arn, pipelinetest.Lane, Run).Own(t.Context(), pipeline.Shard{ID: "s"})
	pipelinetest.NeedsPerson(t, "own by run", err)
	if _, err := s.Handover(t.Context(), Handover{Stream: arn, To: "sideways"}); err == nil {
		t.Error("a side that is none")
	}
}

func TestHandoverOfManyShards(t *testing.T) {
	_, s := newTable(t)
	const n = 130
	for i := range n {
		_, err := s.Shards(arn, pipelinetest.Lane, Run).Own(t.Context(), pipeline.Shard{ID: pipeline.ShardID(fmt.Sprintf("shardId-%03d", i))})
		works(t, "own", err)
	}
	for _, h := range []Handover{toLambda(), toRun(), toLambda()} {
		if got, err := s.Handover(t.Context(), h); got != n || err != nil {
			t.Errorf("to %s: moved %d, %v", h.To, got, err)
		}
	}
}

// One that breaks off anywhere goes on when it is called again. Until then each shard has one
// owner, and what an owner commits is kept.
func TestHandoverThatDiesAnywhereIsFinishedByTheNext(t *testing.T) {
	for _, h := range []Handover{toLambda(), toRun()} {
		eachCut(t,
			func(t *testing.T, s *Store) func(*Store) error {
				runs(t, s)
				if h.To == Run {
					if _, err := s.Handover(t.Context(), toLambda()); err != nil {
						t.Fatal(err)
					}
				}
				return func(s *Store) error { _, err := s.Handover(context.Background(), h); return err }
			},
			func(t *testing.T, s *Store) {
				old := pipelinetest.Lane
				if h.To == Run {
					old = LambdaLane("readings", "shardId-A")
				}
				last := "10"
				if window(t, s, old, "shardId-A", 50) == nil {
					last = "50" // it had not begun to leave
				}
				if _, err := s.Handover(t.Context(), h); err != nil {
					t.Fatal(err)
				}
				want := fmt.Sprintf("shardId-A=%s@%s shardId-B=%s@11", h.Lane("shardId-A"), last, h.Lane("shardId-B"))
				if got := owners(t, s); got != want {
					t.Errorf("owners %s, want %s", got, want)
				}
				works(t, "the new side's window", window(t, s, h.Lane("shardId-A"), "shardId-A", 60))
				if err := window(t, s, old, "shardId-A", 70); err == nil {
					t.Error("the old side commits a window")
				}
			})
	}
}

// Between any two of its steps the old side may come and take what it still owns. The handover then
// says so, or ends, and nothing is lost or owned twice.
func TestHandoverThatIsOvertakenAnywhereMovesWhatIsCommitted(t *testing.T) {
	for at := 1; ; at++ {
		cfg, s := newService(t)
		runs(t, s)
		last, begun := "10", false
		l := &line{next: cfg.HTTPClient, at: at, hold: true, meanwhile: func() {
			if window(t, s, pipelinetest.Lane, "shardId-A", 50) == nil {
				last = "50"
			}
			// A child that is met just now.
			_, err := s.Shards(arn, pipelinetest.Lane, Run).Own(t.Context(), pipeline.Shard{ID: "shardId-child"})
			begun = err == nil
		}}
		_, err := over(cfg, l).Handover(t.Context(), toLambda())
		if l.n < at {
			break
		}
		if err != nil {
			t.Errorf("overtaken at request %d: %v", at, err)
		}
		want := []string{"shardId-A=" + string(LambdaLane("readings", "shardId-A")) + "@" + last, "shardId-B=" + string(LambdaLane("readings", "shardId-B")) + "@11"}
		if begun {
			want = append(want, "shardId-child="+string(LambdaLane("readings", "shardId-child"))+"@")
		}
		if got := owners(t, s); got != strings.Join(want, " ") {
			t.Errorf("overtaken at request %d: owners %s, want %s", at, got, want)
		}
	}
}

func TestLambdaLanesAreNames(t *testing.T) {
	seen := map[pipeline.LaneID]bool{}
	for _, id := range []pipeline.ShardID{"shardId-00000001414576573621-f55eea83", "shardId-00000001414576573621-f55eea84", "a/b", "a b", pipeline.ShardID(strings.Repeat("x", 300)), ""} {
		l := LambdaLane("device_telemetry", id)
		if !l.Valid() || seen[l] {
			t.Errorf("shard %q has lane %q", id, l)
		}
		seen[l] = true
	}
	if got := LambdaLane("readings", "shardId-00000001414576573621-f55eea83"); got != "lambda-readings-shardid-00000001414576573621-f55eea83" {
		t.Errorf("lane %s", got)
	}
}

func TestLanesAreListed(t *testing.T) {
	for name, open := range services {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t)
			runs(t, s)
			works(t, "acquire", window(t, s, pipelinetest.Lane, "shardId-A", 70))
			_, err := s.Acquire(t.Context(), "backfill", false)
			works(t, "acquire", err)
			lanes, err := s.Lanes(t.Context())
			if err != nil || !slices.Equal(lanes, []pipeline.LaneID{"backfill", pipelinetest.Lane}) {
				t.Errorf("lanes %v, %v", lanes, err)
			}
		})
	}
}
