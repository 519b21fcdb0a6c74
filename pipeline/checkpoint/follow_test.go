package checkpoint

import (
	"strings"
	"testing"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/pipelinetest"
)

// disabledGaps are the gaps of the stream, by state.
func disabledGaps(t *testing.T, s *Store) (open, closed []pipeline.Gap) {
	t.Helper()
	gaps, err := s.Gaps(t.Context(), arn)
	works(t, "gaps", err)
	for _, g := range gaps {
		if g.State == pipeline.GapOpen {
			open = append(open, g)
		} else {
			closed = append(closed, g)
		}
	}
	return open, closed
}

func TestAGapBehindAStreamIsClosedByWhoComesBackAndReadsOn(t *testing.T) {
	for name, test := range map[string]struct {
		f      Following
		lane   pipeline.LaneID
		shards *Shards
	}{
		"a lane": {f: Following{Lane: pipelinetest.Lane, From: arn, To: "arn:next", At: today}, lane: pipelinetest.Lane},
		"Lambda": {f: Following{Contract: "readings", From: arn, To: "arn:next", At: today}, lane: LambdaLane("readings", pipelinetest.Shard)},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newClocked(t)
			ctx := t.Context()
			_, err := s.Shards(arn, test.lane, Run).Own(ctx, pipeline.Shard{ID: pipelinetest.Shard})
			works(t, "own", err)
			works(t, "window", window(t, s, test.lane, pipelinetest.Shard, 10))
			works(t, "follow", s.Follow(ctx, test.f))
			first, closed := disabledGaps(t, s)
			if len(first) != 1 || len(closed) != 0 || first[0].After != "10" || first[0].Lane != test.lane || !first[0].To.Equal(today) {
				t.Fatalf("open %+v, closed %+v", first, closed)
			}
			// Back, and forth again without a record: nothing has changed.
			works(t, "follow", s.Follow(ctx, test.f))
			if open, closed := disabledGaps(t, s); len(open) != 1 || len(closed) != 0 {
				t.Fatalf("open %+v, closed %+v", open, closed)
			}
			// Back, and on: what lies behind the new position is the gap now.
			works(t, "window", window(t, s, test.lane, pipelinetest.Shard, 20))
			works(t, "follow", s.Follow(ctx, test.f))
			open, closed := disabledGaps(t, s)
			if len(open) != 1 || open[0].After != "20" || len(closed) != 1 || closed[0].ID != first[0].ID {
				t.Fatalf("open %+v, closed %+v", open, closed)
			}
			if e := closed[0].Evidence; !strings.Contains(e, "committed up to 20") || !strings.Contains(e, open[0].ID) {
				t.Errorf("evidence %q", e)
			}
		})
	}
}

func TestLambdaFollowsOnlyWhenItsLanesHaveNoWindowPending(t *testing.T) {
	s, _ := newClocked(t)
	ctx := t.Context()
	lane := LambdaLane("readings", pipelinetest.Shard)
	_, err := s.Shards(arn, lane, Lambda).Own(ctx, pipeline.Shard{ID: pipelinetest.Shard})
	works(t, "own", err)
	st, err := s.Acquire(ctx, lane, false)
	works(t, "acquire", err)
	m := &pipeline.Manifest{
		Format: 1, Layout: 1, Stream: arn, Contract: "c0ffee", Window: pipeline.WindowID{Lane: lane, Incarnation: st.Incarnation, N: st.Next},
		Shards: []pipeline.ShardRange{{Range: pipeline.Range{Shard: pipelinetest.Shard, First: "5", Last: "5"}}},
	}
	works(t, "begin", s.Begin(ctx, st.Hold, m))
	f := Following{Contract: "readings", From: arn, To: "arn:next", At: today}
	if err := s.Follow(ctx, f); err == nil || !strings.Contains(err.Error(), string(lane)) {
		t.Errorf("a pending window is left: %v", err)
	}
	if open, _ := disabledGaps(t, s); len(open) != 0 {
		t.Errorf("gaps %+v of a stream that is not left", open)
	}
	works(t, "commit", s.Commit(ctx, st.Hold, m))
	works(t, "follow", s.Follow(ctx, f))
	if open, _ := disabledGaps(t, s); len(open) != 1 || open[0].After != "5" {
		t.Errorf("gaps %+v", open)
	}
}

func TestWhichStreamLambdaReadsIsNotedForEachContract(t *testing.T) {
	s, _ := newClocked(t)
	ctx := t.Context()
	reads := func(contract string) (string, bool) {
		t.Helper()
		was, noted, err := s.LambdaReads(ctx, contract, "arn:table")
		works(t, "look", err)
		return was, noted
	}
	if was, noted := reads("readings"); was != "" || noted {
		t.Errorf("before anybody has read: %q, %t", was, noted)
	}
	for _, stream := range []string{"arn:table/stream/1", "arn:table/stream/2", "arn:table-two/stream/9"} {
		_, err := s.Shards(stream, LambdaLane("readings", "shardId-A"), Lambda).Own(ctx, pipeline.Shard{ID: "shardId-A"})
		works(t, "own", err)
	}
	if was, noted := reads("readings"); was != "arn:table/stream/2" || noted {
		t.Errorf("found %q, %t; want the table's latest", was, noted)
	}
	works(t, "note", s.ReadByLambda(ctx, "readings", "arn:table/stream/1"))
	if was, noted := reads("readings"); was != "arn:table/stream/1" || !noted {
		t.Errorf("noted %q, %t", was, noted)
	}
	works(t, "note", s.ReadByLambda(ctx, "others", "arn:table/stream/1"))
	if was, noted := reads("others"); was != "" || !noted {
		t.Errorf("%q, %t of a contract whose functions have no shard there", was, noted)
	}
}
