package stream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"telemetrylake/pipeline"
)

func TestAListingThatComesBackToItsBeginningEndsAndItsShardsAreRead(t *testing.T) {
	s := &stub{perDescribe: 2, comesBack: true}
	for i := range 6 {
		s.shards = append(s.shards, &stubShard{id: fmt.Sprint("s", i), pages: [][]int{{i}}, open: true})
	}
	c, l := newCheckpoint(), log{}
	info, err := drive(t, s.reader(c, Options{}), c, &l, 1)
	if err != nil {
		t.Fatal(err)
	}
	if info.Failed == nil || info.Listed || info.CaughtUp() || len(l) < 3 {
		t.Errorf("%+v, read %v", info, l)
	}
	if n := s.calls["DescribeStream"]; n > 8 {
		t.Errorf("%d pages of a listing without end", n)
	}
}

func TestShardsOfTheListingPagesThatCameAreRead(t *testing.T) {
	s := &stub{perDescribe: 2}
	for i := range 6 {
		s.shards = append(s.shards, &stubShard{id: fmt.Sprint("s", i), pages: [][]int{{i}}, open: true})
	}
	n := 0
	s.fail = func(op, _ string) string {
		if op == "DescribeStream" {
			if n++; n == 3 {
				return "InternalServerError"
			}
		}
		return ""
	}
	c, l := newCheckpoint(), log{}
	r := s.reader(c, Options{})
	if info, err := drive(t, r, c, &l, 1); err != nil || info.Failed == nil || info.Listed {
		t.Fatalf("%+v, %v", info, err)
	}
	wantValues(t, l, 0, 1, 2, 3)
	if info, err := drive(t, r, c, &l, 5); err != nil || !info.CaughtUp() {
		t.Fatalf("%+v, %v", info, err)
	}
	wantValues(t, l, 0, 1, 2, 3, 4, 5)
}

func TestAChildThatIsListedBeforeItsParentWaitsForIt(t *testing.T) {
	s := &stub{shards: []*stubShard{
		{id: "z-grandparent", pages: [][]int{{1}}},
		{id: "a-child", parent: "m-parent", pages: [][]int{{3}}, open: true},
		{id: "m-parent", parent: "z-grandparent", pages: [][]int{{2}}},
	}}
	slices.Reverse(s.shards)
	c, l := newCheckpoint(), log{}
	if _, err := drive(t, s.reader(c, Options{}), c, &l, 9); err != nil {
		t.Fatal(err)
	}
	wantValues(t, l, 1, 2, 3)
}

func TestAListingThatMakesNoSenseNeedsAPerson(t *testing.T) {
	for name, shards := range map[string][]*stubShard{
		"own parent": {{id: "a", parent: "a", open: true}},
		"circle":     {{id: "a", parent: "c"}, {id: "b", parent: "a"}, {id: "c", parent: "b"}},
		"no id":      {{id: "", open: true}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &stub{shards: shards}
			_, err := s.reader(newCheckpoint(), Options{}).Round(t.Context(), (&log{}).emit)
			if _, ok := errors.AsType[*pipeline.PersonError](err); !ok {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestAPositionThatIsNoneOfTheShardsNeedsAPerson(t *testing.T) {
	for name, pos := range map[string]pipeline.SequenceNumber{"before": "7", "behind the end": seq(99999) + "0"} {
		t.Run(name, func(t *testing.T) {
			s := &stub{ranges: true, shards: []*stubShard{{id: "a", pages: [][]int{{1}}}}}
			c := newCheckpoint()
			c.committed["a"] = pipeline.Position{Seq: pos}
			_, err := s.reader(c, Options{}).Round(t.Context(), (&log{}).emit)
			if _, ok := errors.AsType[*pipeline.PersonError](err); !ok || !strings.Contains(err.Error(), string(pos)) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestAPositionThatTheServiceRefusesNeedsAPerson(t *testing.T) {
	s := &stub{shards: []*stubShard{{id: "a", pages: [][]int{{1}}, open: true}}}
	s.fail = func(op, _ string) string {
		if op == "GetShardIterator" {
			return "ValidationException"
		}
		return ""
	}
	c := newCheckpoint()
	c.committed["a"] = pipeline.Position{Seq: seq(1)}
	_, err := s.reader(c, Options{}).Round(t.Context(), (&log{}).emit)
	if _, ok := errors.AsType[*pipeline.PersonError](err); !ok || !strings.Contains(err.Error(), "shard a") {
		t.Errorf("error %v", err)
	}
}

func TestALastPageOfAShardThatIsListedAsOpenIsNotItsEnd(t *testing.T) {
	// What a server says that was started anew, of an iterator that it does not know.
	a := &stubShard{id: "a", pages: [][]int{{1}, {2}}, open: true}
	s := &stub{ranges: true, shards: []*stubShard{a}}
	s.noNext = 1
	c, l := newCheckpoint(), log{}
	info, err := drive(t, s.reader(c, Options{}), c, &l, 9)
	if err != nil || !info.CaughtUp() {
		t.Fatalf("%+v, %v", info, err)
	}
	wantValues(t, l, 1, 2)
	for _, b := range l {
		if b.End {
			t.Errorf("an open shard ended: %+v", b)
		}
	}
}

func TestAShardThatClosedAfterItsListingEndsOnceThatIsConfirmed(t *testing.T) {
	for name, noFilter := range map[string]bool{"by its child": false, "by a listing": true} {
		t.Run(name, func(t *testing.T) {
			a := &stubShard{id: "a", pages: [][]int{{1}, {2}}, open: true}
			s := &stub{ranges: true, noFilter: noFilter, shards: []*stubShard{a}}
			c, l := newCheckpoint(), log{}
			r := s.reader(c, Options{Now: func() time.Time { return start }})
			if _, err := drive(t, r, c, &l, 1); err != nil {
				t.Fatal(err)
			}
			a.open = false
			s.shards = append(s.shards, &stubShard{id: "b", parent: "a", pages: [][]int{{3}}, open: true})
			if info, err := drive(t, r, c, &l, 9); err != nil || !info.CaughtUp() {
				t.Fatalf("%+v, %v", info, err)
			}
			wantValues(t, l, 1, 2, 3)
			if !c.committed["a"].End || c.committed["b"].End {
				t.Errorf("committed %+v", c.committed)
			}
		})
	}
}

func TestSevenHundredShardsStartThoughSomeCheckpointsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{perDescribe: 100, delay: 40 * time.Millisecond}
		for i := range 700 {
			s.shards = append(s.shards, &stubShard{id: fmt.Sprintf("s%03d", i), pages: [][]int{{1}}, open: true})
		}
		c := newCheckpoint()
		rng := rand.New(rand.NewPCG(1, 1))
		var refusals atomic.Int32
		slow := slowCheckpoint{c, 40 * time.Millisecond}
		c.fail = func(pipeline.ShardID) error {
			if rng.IntN(100) == 0 {
				refusals.Add(1)
				return context.DeadlineExceeded
			}
			return nil
		}
		r := s.reader(c, Options{RetryBase: time.Second, RetryCap: time.Minute})
		r.o.Shards = slow
		l := log{}
		runFor(t, r, time.Minute, l.emit)
		if len(l.records()) != 700 || refusals.Load() == 0 {
			t.Errorf("%d records of 700 shards were read, with %d refusals", len(l.records()), refusals.Load())
		}
	})
}

// A slowCheckpoint takes its time for each answer.
type slowCheckpoint struct {
	*checkpoint
	delay time.Duration
}

func (c slowCheckpoint) Own(ctx context.Context, s pipeline.Shard) (pipeline.Position, error) {
	if err := pipeline.Wait(ctx, c.delay); err != nil {
		return pipeline.Position{}, err
	}
	return c.checkpoint.Own(ctx, s)
}

func TestAShardThatCannotBeOwnedYetKeepsNobodyWaiting(t *testing.T) {
	s := &stub{shards: []*stubShard{{id: "a", pages: [][]int{{1}}, open: true}, {id: "b", pages: [][]int{{2}}, open: true}, {id: "c", pages: [][]int{{3}}, open: true}}}
	c, l := newCheckpoint(), log{}
	broken := true
	c.fail = func(id pipeline.ShardID) error {
		if broken && id == "b" {
			return context.DeadlineExceeded
		}
		return nil
	}
	r := s.reader(c, Options{})
	info, err := drive(t, r, c, &l, 3)
	if err != nil || info.Failed == nil || info.CaughtUp() || info.Shards[1].Wait != WaitOwner || info.Shards[1].Err == nil {
		t.Fatalf("%+v, %v", info, err)
	}
	wantValues(t, l, 1, 3)
	broken = false
	if info, err = drive(t, r, c, &l, 3); err != nil || !info.CaughtUp() {
		t.Fatalf("%+v, %v", info, err)
	}
	wantValues(t, l, 1, 3, 2)
}

func TestThousandsOfFinishedShardsCostOneQuery(t *testing.T) {
	s := &stub{perDescribe: 100}
	c, l := newCheckpoint(), log{}
	for i := range 5000 {
		id := fmt.Sprintf("s%04d", i)
		s.shards = append(s.shards, &stubShard{id: id, pages: [][]int{{i}}})
		c.committed[pipeline.ShardID(id)] = pipeline.Position{Seq: seq(i), End: true}
	}
	s.shards = append(s.shards, &stubShard{id: "z", parent: "s0001", pages: [][]int{{7}}, open: true})
	info, err := drive(t, s.reader(c, Options{}), c, &l, 5)
	if err != nil || !info.CaughtUp() {
		t.Fatal(err)
	}
	wantValues(t, l, 7)
	if c.queries != 1 || len(c.owned) != 1 || s.calls["DescribeStream"] != 51 || s.calls["GetShardIterator"] != 1 || s.calls["GetRecords"] != 2 {
		t.Errorf("%d queries, %d owned, calls %v", c.queries, len(c.owned), s.calls)
	}
}

func TestFinishedShardsThatAreNoLongerListedAreNamedToTheCheckpoint(t *testing.T) {
	a := &stubShard{id: "a", pages: [][]int{{1}}}
	s, now := clockedStub(a, &stubShard{id: "b", parent: "a", pages: [][]int{{2}}, open: true})
	c, l := newCheckpoint(), log{}
	c.committed["old"] = pipeline.Position{Seq: seq(1), End: true}
	c.committed["begun"] = pipeline.Position{Seq: seq(1), Created: start}
	r := s.clockedReader(c, now, Options{})
	rounds(t, r, c, &l, 3, now, time.Second)
	if !slices.Equal(c.forgotten, []pipeline.ShardID{"old"}) {
		t.Errorf("forgotten %v", c.forgotten)
	}
	a.gone = true
	rounds(t, r, c, &l, 3, now, time.Hour)
	if !slices.Contains(c.forgotten, "a") || slices.Contains(c.forgotten, "b") {
		t.Errorf("forgotten %v", c.forgotten)
	}
	rounds(t, r, c, &l, 50, now, time.Second)
	if n := len(c.forgotten); n > 10 {
		t.Errorf("%d times within a minute", n)
	}
}

func TestAStreamWithoutImagesNeedsAPerson(t *testing.T) {
	s := &stub{viewType: "KEYS_ONLY", shards: []*stubShard{{id: "a", open: true}}}
	_, err := s.reader(newCheckpoint(), Options{}).Round(t.Context(), (&log{}).emit)
	if _, ok := errors.AsType[*pipeline.PersonError](err); !ok || !strings.Contains(err.Error(), "KEYS_ONLY") {
		t.Errorf("error %v", err)
	}
}

func TestAnAnswerOfAnotherStreamNeedsAPerson(t *testing.T) {
	s := &stub{shards: []*stubShard{{id: "a", open: true}}}
	r := s.reader(newCheckpoint(), Options{})
	r.o.StreamARN += "7"
	_, err := r.Round(t.Context(), (&log{}).emit)
	if _, ok := errors.AsType[*pipeline.PersonError](err); !ok || !strings.Contains(err.Error(), stubARN) {
		t.Errorf("error %v", err)
	}
}

// The start.

func TestLatestBeginsWithTheFirstDiscoveryAndStoresItsTime(t *testing.T) {
	old := &stubShard{id: "a", pages: [][]int{{1}, {2}}, created: map[int]time.Time{1: start.Add(-3 * time.Hour), 2: start.Add(-2 * time.Hour)}}
	open := &stubShard{id: "b", parent: "a", open: true, pages: [][]int{{3}, {4, 5}, {6}}, created: map[int]time.Time{
		3: start.Add(-time.Hour), 4: start.Add(-time.Second), 5: start, 6: start.Add(-time.Second), // no hole behind 5
	}}
	s, now := clockedStub(old, open)
	c, l := newCheckpoint(), log{}
	info := rounds(t, s.clockedReader(c, now, Options{Start: Latest}), c, &l, 8, now, 0)
	wantValues(t, l, 5, 6)
	if s.calls["GetRecords a"] != 0 || !c.committed["a"].End {
		t.Errorf("the shard that was closed before was read %d times, position %+v", s.calls["GetRecords a"], c.committed["a"])
	}
	for id, pos := range c.committed {
		if !pos.StartAt.Equal(start) {
			t.Errorf("shard %s has the start mark %s", id, pos.StartAt)
		}
	}
	if !info.CaughtUp() {
		t.Errorf("%+v", info)
	}
}

func TestAProcessThatDiesBeforeItsFirstRecordNeitherSkipsNorReadsBeyondTheStartMark(t *testing.T) {
	a := &stubShard{id: "a", open: true, pages: [][]int{{1}}, created: map[int]time.Time{1: start.Add(-time.Hour), 2: start.Add(time.Minute)}}
	b := &stubShard{id: "b", open: true, pages: [][]int{{3}}, created: map[int]time.Time{3: start.Add(-time.Hour), 4: start.Add(time.Minute)}}
	s, now := clockedStub(a, b)
	c, l := newCheckpoint(), log{}
	// It dies having stored the mark with one shard of two.
	died := errors.New("died")
	c.fail = func(id pipeline.ShardID) error {
		if id == "b" {
			return died
		}
		return nil
	}
	if _, err := s.clockedReader(c, now, Options{Start: Latest}).Round(t.Context(), l.emit); !errors.Is(err, died) {
		t.Fatal(err)
	}
	c.fail = nil
	*now = start.Add(5 * time.Minute)
	a.pages, b.pages = append(a.pages, []int{2}), append(b.pages, []int{4})
	for _, first := range []Start{Latest, Horizon} { // whatever is asked for now
		rounds(t, s.clockedReader(c, now, Options{Start: first}), c, &l, 5, now, time.Second)
		wantValues(t, l, 2, 4)
	}
}

func TestChildrenThatAreFoundLaterAreReadFromTheirBeginning(t *testing.T) {
	a := &stubShard{id: "a", open: true, pages: [][]int{{1}}, created: map[int]time.Time{1: start.Add(-time.Hour)}}
	s, now := clockedStub(a)
	c, l := newCheckpoint(), log{}
	rounds(t, s.clockedReader(c, now, Options{Start: Latest}), c, &l, 3, now, 0)
	// It splits, five rows are written to the child, and only then is it discovered: by the same
	// process or by another, which finds no checkpoint of it.
	a.open = false
	child := &stubShard{id: "b", parent: "a", open: true, pages: [][]int{{2, 3}, {4, 5, 6}}, created: map[int]time.Time{}}
	for i := 2; i <= 6; i++ {
		child.created[i] = start.Add(time.Minute)
	}
	s.shards = append(s.shards, child)
	*now = start.Add(2 * time.Minute)
	rounds(t, s.clockedReader(c, now, Options{Start: Latest}), c, &l, 8, now, 0)
	wantValues(t, l, 2, 3, 4, 5, 6)
}

func TestHorizonIsTheDefaultAndLatestHasNoMeaningLater(t *testing.T) {
	a := &stubShard{id: "a", open: true, pages: [][]int{{1}, {2}}, created: map[int]time.Time{1: start.Add(-time.Hour), 2: start.Add(-time.Minute)}}
	s, now := clockedStub(a)
	c, l := newCheckpoint(), log{}
	if _, err := s.clockedReader(c, now, Options{}).Round(t.Context(), l.emit); err != nil {
		t.Fatal(err)
	}
	wantValues(t, l, 1) // and not committed
	l = nil
	rounds(t, s.clockedReader(c, now, Options{Start: Latest}), c, &l, 4, now, 0)
	wantValues(t, l, 1, 2)
}

func TestOnlyTheFirstListingOfTheFirstProcessIsTheFirstMeeting(t *testing.T) {
	later := func(c *checkpoint) map[pipeline.ShardID]bool {
		m := map[pipeline.ShardID]bool{}
		for _, s := range c.owned {
			m[s.ID] = s.Later
		}
		return m
	}
	for name, children := range map[string]bool{"by its parent's end": true, "by a listing": false} {
		t.Run(name, func(t *testing.T) {
			a := &stubShard{id: "a", pages: [][]int{{1}}, open: true}
			s, now := clockedStub(a, &stubShard{id: "b", pages: [][]int{{2}}, open: true})
			c, l := newCheckpoint(), log{}
			r := s.clockedReader(c, now, Options{})
			rounds(t, r, c, &l, 2, now, time.Second)
			a.open = !children
			s.shards = append(s.shards, &stubShard{id: "c", parent: map[bool]string{true: "a"}[children], pages: [][]int{{3}}, open: true})
			rounds(t, r, c, &l, 5, now, map[bool]time.Duration{true: time.Second, false: time.Minute}[children])
			if got := later(c); len(got) != 3 || got["a"] || got["b"] || !got["c"] {
				t.Errorf("met later: %v, want only c", got)
			}
		})
	}
	t.Run("a process that comes after the first", func(t *testing.T) {
		s, now := clockedStub(&stubShard{id: "a", pages: [][]int{{1}}, open: true})
		c, l := newCheckpoint(), log{}
		rounds(t, s.clockedReader(c, now, Options{}), c, &l, 1, now, time.Second)
		s.shards = append(s.shards, &stubShard{id: "b", pages: [][]int{{2}}, open: true})
		rounds(t, s.clockedReader(c, now, Options{}), c, &l, 1, now, time.Second)
		if got := later(c); got["a"] || !got["b"] {
			t.Errorf("met later: %v, want only b", got)
		}
	})
}
