package checkpoint

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/pipelinetest"
)

// Busy lanes never rest: whenever anybody looks, each has a window that is begun. The one before is
// committed and the next begun between any two requests of others.
type busyLanes struct {
	t    *testing.T
	s    *Store
	open map[pipeline.LaneID]*busyLane
}

type busyLane struct {
	shards  []pipeline.ShardID
	hold    pipeline.Hold
	pending *pipeline.Manifest
	next    int64
	at      map[pipeline.ShardID]int
	stopped error
	dead    bool // its process does nothing more
}

func newBusyLanes(t *testing.T, s *Store, lanes map[pipeline.LaneID][]pipeline.ShardID) *busyLanes {
	b := &busyLanes{t: t, s: s, open: map[pipeline.LaneID]*busyLane{}}
	for lane, shards := range lanes {
		st, err := s.Acquire(t.Context(), lane, false)
		works(t, "acquire", err)
		l := &busyLane{shards: shards, hold: st.Hold, next: st.Next, at: map[pipeline.ShardID]int{}}
		b.open[lane] = l
	}
	b.work()
	return b
}

// work commits what is begun and begins what comes next, in every lane.
func (b *busyLanes) work() {
	for lane, l := range b.open {
		if l.dead || l.stopped != nil {
			continue
		}
		l.stopped = b.turn(lane, l)
	}
}

func (b *busyLanes) turn(lane pipeline.LaneID, l *busyLane) error {
	if l.pending != nil {
		if err := b.s.Commit(b.t.Context(), l.hold, l.pending); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		for _, id := range l.shards {
			l.at[id]++
		}
		l.pending = nil
		l.next++
	}
	m := &pipeline.Manifest{
		Format: 1, Layout: 1, Stream: arn, Contract: "c0ffee", Window: pipeline.WindowID{Lane: lane, Incarnation: l.hold.Incarnation, N: l.next},
	}
	for _, id := range l.shards {
		n := pipeline.SequenceNumber(fmt.Sprint(l.at[id] + 1))
		r := pipeline.ShardRange{Range: pipeline.Range{Shard: id, First: n, Last: n}}
		if l.at[id] > 0 {
			r.After = pipeline.SequenceNumber(fmt.Sprint(l.at[id]))
		}
		m.Shards = append(m.Shards, r)
	}
	if err := b.s.Begin(b.t.Context(), l.hold, m); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	l.pending = m
	return nil
}

// A before lets others work before each request of its own.
type before struct {
	work func()
	next interface {
		Do(*http.Request) (*http.Response, error)
	}
}

func (b before) Do(r *http.Request) (*http.Response, error) {
	b.work()
	return b.next.Do(r)
}

// busy is a stream of five shards whose lanes never rest, and a store whose every request finds
// that they have moved on.
func busy(t *testing.T, h Handover) (*busyLanes, *Store) {
	t.Helper()
	table, s := newTable(t)
	lanes := map[pipeline.LaneID][]pipeline.ShardID{}
	side, from := Run, func(pipeline.ShardID) pipeline.LaneID { return pipelinetest.Lane }
	if h.To == Run {
		side, from = Lambda, toLambda().Lane
	}
	for i := range 5 {
		id := pipeline.ShardID(fmt.Sprintf("shardId-%d", i))
		_, err := s.Shards(arn, from(id), side).Own(t.Context(), pipeline.Shard{ID: id})
		works(t, "own", err)
		lanes[from(id)] = append(lanes[from(id)], id)
	}
	b := newBusyLanes(t, s, lanes)
	return b, table.store(before{b.work, table}, Options{})
}

func TestHandoverConvergesHoweverBusyTheLanesAre(t *testing.T) {
	for _, h := range []Handover{toLambda(), toRun()} {
		t.Run("to "+string(h.To), func(t *testing.T) {
			b, s := busy(t, h)
			calls, moved := 0, 0
			for {
				calls++
				n, err := s.Handover(t.Context(), h)
				moved += n
				if err == nil {
					break
				}
				if !errors.Is(err, ErrPending) || calls == 3 {
					t.Fatalf("call %d: %v", calls, err)
				}
			}
			if moved != 5 {
				t.Errorf("%d shards moved in %d calls, want 5", moved, calls)
			}
			var want []string
			for i := range 5 {
				id := pipeline.ShardID(fmt.Sprintf("shardId-%d", i))
				for lane, l := range b.open {
					if at, its := l.at[id]; its {
						want = append(want, fmt.Sprintf("%s=%s@%d", id, h.Lane(id), at))
						if l.stopped == nil || !strings.HasPrefix(l.stopped.Error(), "begin: ") {
							t.Errorf("lane %s stopped with %v: it should have committed what it had begun, and begun nothing", lane, l.stopped)
						}
					}
				}
			}
			if got := owners(t, b.s); got != strings.Join(want, " ") {
				t.Errorf("owners %s\nwant   %s", got, strings.Join(want, " "))
			}
			for i := range 5 {
				id := pipeline.ShardID(fmt.Sprintf("shardId-%d", i))
				works(t, "the new side's window", window(t, b.s, h.Lane(id), id, 1000))
			}
		})
	}
}

// What the others have to do does not keep a shard from moving whose lane is at rest, and a window
// whose process died is finished by whoever takes the lane, which can begin nothing there.
func TestAWindowThatIsPendingInALaneThatIsLeftIsFinishedThere(t *testing.T) {
	h := toRun()
	b, s := busy(t, h)
	dead := h.Lane("")
	for lane, l := range b.open {
		if l.shards[0] == "shardId-3" {
			dead, l.dead = lane, true
		}
	}
	for range 3 {
		if _, err := s.Handover(t.Context(), h); !errors.Is(err, ErrPending) || !strings.Contains(err.Error(), string(dead)) {
			t.Fatalf("handover with a dead lane: %v", err)
		}
	}
	if got := owners(t, b.s); strings.Count(got, "="+string(h.Lane(""))) != 4 {
		t.Errorf("owners %s, want 4 that have moved", got)
	}
	st, err := b.s.Acquire(t.Context(), dead, false)
	works(t, "take the dead one's lane", err)
	if st.Pending == nil {
		t.Fatal("it has nothing to finish")
	}
	works(t, "commit", b.s.Commit(t.Context(), st.Hold, st.Pending))
	next := *st.Pending
	next.Window.N++
	next.Shards = []pipeline.ShardRange{{Range: pipeline.Range{Shard: "shardId-3", First: "900", Last: "900"}, After: next.Shards[0].Last}}
	pipelinetest.NeedsPerson(t, "begin in a lane that is left", b.s.Begin(t.Context(), st.Hold, &next))
	if _, err := b.s.Acquire(t.Context(), dead, true); err == nil {
		t.Error("a lane that is left and has nothing to finish is taken again")
	}
	if n, err := s.Handover(t.Context(), h); n != 1 || err != nil {
		t.Errorf("at last: moved %d, %v", n, err)
	}
	if err := b.s.Begin(t.Context(), st.Hold, &next); !errors.Is(err, pipeline.ErrFenced) {
		t.Errorf("begin by the one that finished it: %v", err)
	}
}

// A handover that is not wanted any more is taken back from wherever it stands.
func TestAHandoverIsTakenBackWhereverItStands(t *testing.T) {
	b, s := busy(t, toRun())
	for _, l := range b.open {
		l.dead = l.shards[0] == "shardId-1" || l.shards[0] == "shardId-2"
	}
	if _, err := s.Handover(t.Context(), toRun()); !errors.Is(err, ErrPending) {
		t.Fatalf("handover: %v", err)
	}
	if _, err := s.Handover(t.Context(), toLambda()); err != nil {
		t.Fatalf("back: %v", err)
	}
	for lane, l := range b.open {
		id := l.shards[0]
		if l.dead {
			works(t, "commit", b.s.Commit(t.Context(), l.hold, l.pending))
		}
		works(t, "window of "+string(lane), window(t, b.s, lane, id, 1000))
	}
}
