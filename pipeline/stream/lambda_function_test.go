package stream

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"

	"telemetrylake/pipeline"
	"telemetrylake/schemas"
)

// shardMemory is what a checkpoint keeps of shards that have a lane each: their positions, and the
// windows that moved them.
type shardMemory struct {
	at      map[pipeline.ShardID]pipeline.Position
	tips    map[pipeline.ShardID]time.Time // that were marked
	windows map[pipeline.ShardID][]pipeline.ShardRange
	asked   []pipeline.ShardID // positions, in order
	next    map[pipeline.LaneID]int64
	took    func(pipeline.ShardID) // called when a shard's lane is taken; may be nil
}

func newShardMemory() *shardMemory {
	return &shardMemory{
		at: map[pipeline.ShardID]pipeline.Position{}, tips: map[pipeline.ShardID]time.Time{},
		windows: map[pipeline.ShardID][]pipeline.ShardRange{}, next: map[pipeline.LaneID]int64{},
	}
}

func (m *shardMemory) Own(_ context.Context, s pipeline.Shard) (pipeline.Position, error) {
	if _, ok := m.at[s.ID]; !ok {
		m.at[s.ID] = pipeline.Position{MetAt: s.MetAt, Parent: s.Parent}
	}
	return m.at[s.ID], nil
}

func (m *shardMemory) Position(_ context.Context, id pipeline.ShardID) (pipeline.Position, bool, error) {
	m.asked = append(m.asked, id)
	pos, ok := m.at[id]
	return pos, ok, nil
}

func (m *shardMemory) MarkTip(_ context.Context, id pipeline.ShardID, read pipeline.SequenceNumber, at time.Time) error {
	pos := m.at[id]
	if pos.Seq.Compare(read) < 0 {
		return errors.New("the shard is not committed up to there")
	}
	pos.TipAt = later(pos.TipAt, at)
	m.at[id], m.tips[id] = pos, at
	return nil
}

func (m *shardMemory) Discard(context.Context, *Discarded) (bool, error) { return false, nil }

func (m *shardMemory) all(context.Context) (map[pipeline.ShardID]pipeline.Position, error) {
	return maps.Clone(m.at), nil
}

func (m *shardMemory) missing(id pipeline.ShardID) (all []pipeline.Missing) {
	for _, r := range m.windows[id] {
		if r.Missing != nil {
			all = append(all, *r.Missing)
		}
	}
	return all
}

// laneCheckpoints are the same memory as a lane sees it.
type laneCheckpoints struct{ m *shardMemory }

func (c laneCheckpoints) Acquire(_ context.Context, lane pipeline.LaneID, _ bool) (pipeline.State, error) {
	if c.m.took != nil {
		c.m.took(pipeline.ShardID(lane))
	}
	return pipeline.State{Hold: pipeline.Hold{Lane: lane, Incarnation: "i", Token: 1}, Next: c.m.next[lane] + 1}, nil
}

func (c laneCheckpoints) Begin(context.Context, pipeline.Hold, *pipeline.Manifest) error { return nil }

func (c laneCheckpoints) Commit(_ context.Context, h pipeline.Hold, man *pipeline.Manifest) error {
	c.m.next[h.Lane] = man.Window.N
	for _, r := range man.Shards {
		was, now := c.m.at[r.Shard], r.Position()
		now.MetAt, now.Parent = was.MetAt, was.Parent
		now.TipAt = later(was.TipAt, now.TipAt)
		if now.Created.IsZero() {
			now.Created = was.Created
		}
		if r.Missing != nil && r.Last == "" {
			now.TipAt = r.Missing.To
		}
		c.m.at[r.Shard] = now
		c.m.windows[r.Shard] = append(c.m.windows[r.Shard], r)
	}
	return nil
}

func (c laneCheckpoints) Position(_ context.Context, _ pipeline.Hold, _ string, s pipeline.ShardID) (pipeline.Position, error) {
	return c.m.at[s], nil
}

// counting decodes to no rows: what a window took stands in its ranges.
type counting struct{}

func (counting) Decode(_ *schemas.Contract, batches []pipeline.Batch) (*pipeline.Rows, error) {
	rows := &pipeline.Rows{Counts: map[pipeline.ShardID]pipeline.Counts{}}
	for _, b := range batches {
		c := rows.Counts[b.Shard]
		for _, r := range b.Records {
			if !r.Expired {
				c.Ignored++
			}
		}
		rows.Counts[b.Shard] = c
	}
	return rows, nil
}

type anyContract struct{}

func (anyContract) PutContract(context.Context, *schemas.Contract) error { return nil }

func (anyContract) Contract(context.Context, string) (*schemas.Contract, error) {
	return schemas.Load("sensor_readings")
}

// function returns a Function whose clock, and the server's, is now: its waits move it on.
func (s *stub) function(t *testing.T, m *shardMemory, now *time.Time, change ...func(*FunctionOptions)) *Function {
	t.Helper()
	s.calls = map[string]int{}
	client := dynamodbstreams.New(dynamodbstreams.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://streams.internal"),
		HTTPClient: &http.Client{Transport: s}, Retryer: aws.NopRetryer{},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		}),
	})
	c, err := schemas.Load("sensor_readings")
	if err != nil {
		t.Fatal(err)
	}
	o := FunctionOptions{
		StreamARN: stubARN, Shards: m, All: m.all, Key: "id", RetryBase: 100 * time.Millisecond, RetryCap: time.Second,
		Now: func() time.Time { return *now },
		Wait: func(ctx context.Context, d time.Duration) error {
			*now = now.Add(d)
			return ctx.Err()
		},
		Lane: func(id pipeline.ShardID) (*pipeline.Lane, error) {
			return pipeline.NewLane(pipeline.Stages{Checkpoints: laneCheckpoints{m}, Decoder: counting{}, Contracts: anyContract{}},
				pipeline.LaneOptions{Lane: pipeline.LaneID(id), Stream: stubARN, Contract: c})
		},
	}
	for _, f := range change {
		f(&o)
	}
	return NewFunction(client, o)
}

// sweep sweeps, and fails the test if that fails.
func (f *Function) sweep(t *testing.T) Swept {
	t.Helper()
	s, err := f.Sweep(t.Context())
	if err != nil {
		t.Fatalf("swept %+v: %v", s, err)
	}
	return s
}

// desert is so many empty pages, and then pages.
func desert(n int, pages ...[]int) [][]int { return slices.Concat(make([][]int, n), pages) }

func TestASweepMarksNoTipInADesert(t *testing.T) {
	for name, empty := range map[string]int{"as many pages as a page or two say": 8, "nearly as many as a tip takes": walkPages - 1} {
		t.Run(name, func(t *testing.T) {
			a := &stubShard{id: "a", pages: desert(empty, []int{2}), open: true, created: map[int]time.Time{2: start.Add(19 * time.Hour)}}
			s, now := clockedStub(a)
			*now = start.Add(20 * time.Hour)
			m := newShardMemory()
			m.at["a"] = pipeline.Position{MetAt: start}
			if got := s.function(t, m, now).sweep(t); got.Busy != 1 || got.Tips != 0 || !m.tips["a"].IsZero() {
				t.Fatalf("swept %+v, tips %v: record 2 is not read", got, m.tips)
			}
			// Nobody comes until the record has aged out. That is told by the next sweep.
			a.trimmed, a.pages = 2, desert(empty+1)
			*now = start.Add(43*time.Hour + 30*time.Minute)
			if got := s.function(t, m, now).sweep(t); got.Tips != 1 {
				t.Errorf("swept %+v", got)
			}
			gaps := m.missing("a")
			if len(gaps) != 1 || gaps[0].Cause != pipeline.GapTrimmed || gaps[0].To.Before(start.Add(43*time.Hour)) {
				t.Fatalf("missing %+v", gaps)
			}
			if tip := m.at["a"].TipAt; tip.After(now.Add(-tipTime)) {
				t.Errorf("the tip of the window that holds only the gap is %s, now it is %s", tip, now)
			}
		})
	}
}

func TestATipTakesASweepAsManyPagesAndAsLongAsAReader(t *testing.T) {
	s, now := clockedStub(&stubShard{id: "a", pages: [][]int{{1}}, open: true})
	begun := *now
	m := newShardMemory()
	m.at["a"] = pipeline.Position{Seq: seq(1), Created: start, MetAt: start}
	if got := s.function(t, m, now).sweep(t); got.Tips != 1 {
		t.Fatalf("swept %+v", got)
	}
	if n := s.calls["GetRecords a"]; n < walkPages {
		t.Errorf("a tip after %d pages", n)
	}
	if took := now.Sub(begun); took < tipTime || took > 2*tipTime {
		t.Errorf("a tip after %s", took)
	}
	if tip := m.tips["a"]; tip.Before(begun) || now.Sub(tip) < tipTime {
		t.Errorf("the tip is %s; the sweep took from %s to %s", tip, begun, now)
	}
}

func TestManyShardsAreLookedAtSideBySide(t *testing.T) {
	var shards []*stubShard
	m := newShardMemory()
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		shards = append(shards, &stubShard{id: id, pages: [][]int{{}}, open: true})
		m.at[pipeline.ShardID(id)] = pipeline.Position{MetAt: start}
	}
	s, now := clockedStub(shards...)
	if got := s.function(t, m, now).sweep(t); got.Tips != len(shards) {
		t.Fatalf("swept %+v", got)
	}
	if took := now.Sub(start); took > 2*tipTime {
		t.Errorf("%d shards took %s", len(shards), took)
	}
}

func TestASweepThatIsNotThroughBeginsTheNextTimeWithThoseThatWaited(t *testing.T) {
	m := newShardMemory()
	var shards []*stubShard
	for i := range 3 * atOnce {
		id := string(rune('a'+i/26)) + string(rune('a'+i%26))
		shards = append(shards, &stubShard{id: id, pages: [][]int{{}}, open: true})
		m.at[pipeline.ShardID(id)] = pipeline.Position{MetAt: start}
	}
	s, now := clockedStub(shards...)
	marked := map[pipeline.ShardID]int{}
	for sweep := range 6 {
		*now = now.Add(time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		end := now.Add(15 * time.Second) // enough for one tip after the other, but once
		// Each invocation may be in an environment of its own, which remembers nothing.
		f := s.function(t, m, now, func(o *FunctionOptions) {
			o.Wait = func(ctx context.Context, d time.Duration) error {
				if *now = now.Add(d); now.After(end) {
					cancel()
				}
				return ctx.Err()
			}
		})
		clear(m.tips)
		got, err := f.Sweep(ctx)
		cancel()
		if !errors.Is(err, context.Canceled) || got.Unreached == 0 || got.Tips != len(m.tips) || got.Tips == 0 {
			t.Fatalf("sweep %d: %+v, %v, %d tips", sweep, got, err, len(m.tips))
		}
		if got.Tips+got.Unreached != len(shards) {
			t.Errorf("sweep %d: %+v of %d shards", sweep, got, len(shards))
		}
		for id := range m.tips {
			marked[id]++
		}
	}
	for _, sh := range shards {
		if n := marked[pipeline.ShardID(sh.id)]; n != 2 {
			t.Errorf("shard %s was read to its tip %d times in 6 sweeps of a third each", sh.id, n)
		}
	}
}

func TestASweepThatLeavesAShardForHalfADayFails(t *testing.T) {
	s, now := clockedStub(&stubShard{id: "a", pages: [][]int{{}}, open: true})
	m := newShardMemory()
	m.at["a"] = pipeline.Position{MetAt: start, TipAt: start}
	for hours, fails := range map[int]bool{11: false, 12: true} {
		*now = start.Add(time.Duration(hours) * time.Hour)
		ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(time.Second)) // less than an invocation keeps in reserve
		got, err := s.function(t, m, now).Sweep(ctx)
		cancel()
		if got.Unreached != 1 || len(m.tips) != 0 || (err != nil) != fails || fails && !strings.Contains(err.Error(), "more time") {
			t.Errorf("after %d hours: %+v, %v", hours, got, err)
		}
	}
}

func TestAShardThatFailsKeepsNoOtherFromItsTip(t *testing.T) {
	s, now := clockedStub(&stubShard{id: "a", pages: [][]int{{}}, open: true}, &stubShard{id: "b", pages: [][]int{{}}, open: true})
	m := newShardMemory()
	end := now.Add(time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := s.function(t, m, now, func(o *FunctionOptions) {
		o.Wait = func(ctx context.Context, d time.Duration) error {
			if *now = now.Add(d); now.After(end) {
				cancel()
			}
			return ctx.Err()
		}
	})
	s.fail = func(_, shard string) string {
		if shard == "a" {
			return "InternalServerError"
		}
		return ""
	}
	got, err := f.Sweep(ctx)
	if got.Tips != 1 || got.Unreached != 1 || m.tips["b"].IsZero() || !errors.Is(err, context.Canceled) {
		t.Errorf("swept %+v, %v; tips %v", got, err, m.tips)
	}
}

func TestAClosedShardIsReadToItsEndThroughAnyDesert(t *testing.T) {
	for _, empty := range []int{0, 9, walkPages + 3, closeFree + 200} {
		a := &stubShard{id: "a", pages: desert(empty + 1)}
		b := &stubShard{id: "b", parent: "a", pages: [][]int{{}}, open: true}
		t.Run("before its child", func(t *testing.T) {
			s, now := clockedStub(a, b)
			m := newShardMemory()
			m.at["a"] = pipeline.Position{MetAt: start}
			f := s.function(t, m, now)
			if err := f.list(t.Context()); err != nil {
				t.Fatal(err)
			}
			child := f.shards["b"].Shard
			if err := f.finishParents(t.Context(), &child); err != nil {
				t.Fatalf("behind %d empty pages: %v", empty, err)
			}
			if !m.at["a"].End || len(m.missing("a")) > 0 {
				t.Errorf("behind %d empty pages: position %+v, missing %v", empty, m.at["a"], m.missing("a"))
			}
		})
		t.Run("by a sweep", func(t *testing.T) {
			s, now := clockedStub(a, b)
			m := newShardMemory()
			m.at["a"] = pipeline.Position{MetAt: start}
			got := s.function(t, m, now).sweep(t)
			if got.Finished != 1 || got.Tips != 1 || got.Waiting != 0 || !m.at["a"].End || m.tips["b"].IsZero() {
				t.Errorf("behind %d empty pages: swept %+v", empty, got)
			}
			if n := s.calls["GetRecords a"]; n != empty+1 {
				t.Errorf("%d pages were read, there are %d", n, empty+1)
			}
		})
	}
}

func TestAWalkThatAnInvocationCannotEndIsGoneOnWithByTheNext(t *testing.T) {
	a := &stubShard{id: "a", pages: desert(500)}
	s, now := clockedStub(a, &stubShard{id: "b", parent: "a", pages: [][]int{{}}, open: true})
	m := newShardMemory()
	m.at["a"] = pipeline.Position{MetAt: start}
	f := s.function(t, m, now)
	if err := f.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	child := f.shards["b"].Shard
	invocations := 0
	for ; !m.at["a"].End && invocations < 20; invocations++ {
		// The walk's reserve begins at once: each invocation reads a page.
		ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(4*time.Second))
		err := f.finishParents(ctx, &child)
		cancel()
		if err == nil {
			t.Fatal("500 pages were read in no time")
		}
		if n := s.calls["GetRecords a"]; n != invocations+1 || s.calls["GetShardIterator a"] != 1 {
			t.Fatalf("%d pages and %d iterators in %d invocations", n, s.calls["GetShardIterator a"], invocations+1)
		}
	}
	a.pages = a.pages[:invocations+1] // the desert's end
	if err := f.finishParents(t.Context(), &child); err != nil || !m.at["a"].End {
		t.Errorf("%v; position %+v", err, m.at["a"])
	}
}

func TestAShardThatIsOnlyInTheCheckpointIsFinishedByASweep(t *testing.T) {
	t.Run("gone", func(t *testing.T) {
		s, now := clockedStub(&stubShard{id: "b", parent: "a", pages: [][]int{{}}, open: true})
		*now = start.Add(60 * time.Hour)
		m := newShardMemory()
		m.at["a"] = pipeline.Position{Seq: seq(1), Created: start, MetAt: start}
		got := s.function(t, m, now).sweep(t)
		gaps := m.missing("a")
		if got.Finished != 1 || !m.at["a"].End || len(gaps) != 1 {
			t.Fatalf("swept %+v, position %+v, missing %+v", got, m.at["a"], gaps)
		}
		if g := gaps[0]; g.Cause != pipeline.GapVanished || !g.From.Equal(start) || g.To.Before(start.Add(36*time.Hour)) || g.To.After(start.Add(36*time.Hour+time.Second)) {
			t.Errorf("missing %+v, want what it had held until a day ago", g)
		}
		if n := s.calls["DescribeStream"]; n < 2 {
			t.Errorf("%d listings: one answer that it is gone was believed", n)
		}
		if m.tips["b"].IsZero() {
			t.Error("its child was not looked at")
		}
	})
	t.Run("there", func(t *testing.T) {
		a := &stubShard{id: "a", pages: [][]int{{}, {}}, hidden: -1}
		s, now := clockedStub(a, &stubShard{id: "b", parent: "a", pages: [][]int{{}}, open: true})
		m := newShardMemory()
		m.at["a"] = pipeline.Position{MetAt: start}
		if got := s.function(t, m, now).sweep(t); got.Finished != 1 || !m.at["a"].End || len(m.missing("a")) > 0 {
			t.Errorf("swept %+v, position %+v, missing %+v", got, m.at["a"], m.missing("a"))
		}
	})
	t.Run("and has no child", func(t *testing.T) {
		s, now := clockedStub(&stubShard{id: "z", pages: [][]int{{}}, open: true})
		*now = start.Add(60 * time.Hour)
		m := newShardMemory()
		m.at["a"] = pipeline.Position{Seq: seq(1), Created: start, MetAt: start}
		if got := s.function(t, m, now).sweep(t); got.Finished != 1 || len(m.missing("a")) != 1 {
			t.Errorf("swept %+v, missing %+v", got, m.missing("a"))
		}
	})
}

func TestAPageThatEndsAnOpenShardIsNotBelieved(t *testing.T) {
	s, now := clockedStub(&stubShard{id: "a", pages: [][]int{{}}, open: true})
	s.noNext = 2
	m := newShardMemory()
	m.at["a"] = pipeline.Position{MetAt: start}
	if got := s.function(t, m, now).sweep(t); got.Finished != 0 || got.Tips != 1 || m.at["a"].End {
		t.Errorf("swept %+v, position %+v: no listing says that it is closed", got, m.at["a"])
	}
}

func TestWhatASweepSawIsNotCommittedBehindAnotherPosition(t *testing.T) {
	// The shard lost its position; meanwhile the mapping delivers what it had held back.
	a := &stubShard{id: "a", pages: desert(40), open: true, trimmed: 2}
	s, now := clockedStub(a)
	*now = start.Add(60 * time.Hour)
	m := newShardMemory()
	m.at["a"] = pipeline.Position{Seq: seq(1), Created: start, MetAt: start}
	m.took = func(id pipeline.ShardID) {
		m.at[id] = pipeline.Position{Seq: seq(9), Created: *now, MetAt: start}
	}
	if got := s.function(t, m, now).sweep(t); got.Busy != 1 || got.Tips != 0 || len(m.missing("a")) > 0 || len(m.tips) > 0 {
		t.Errorf("swept %+v, missing %+v, tips %v", got, m.missing("a"), m.tips)
	}
}
