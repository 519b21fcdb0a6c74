package stream

import (
	"errors"
	"slices"
	"testing"
	"time"

	"telemetrylake/pipeline"
)

// gapsOf lists what a log says is missing.
func gapsOf(l log) []pipeline.Missing {
	var all []pipeline.Missing
	for _, b := range l {
		if b.Missing != nil {
			all = append(all, *b.Missing)
		}
	}
	return all
}

func wantGaps(t *testing.T, l log, want ...pipeline.Missing) {
	t.Helper()
	if got := gapsOf(l); !slices.Equal(got, want) {
		t.Errorf("missing %+v, want %+v", got, want)
	}
}

// A clocked stub is a server with a clock that the reader shares.
func clockedStub(shards ...*stubShard) (*stub, *time.Time) {
	now := start
	s := &stub{ranges: true, shards: shards, now: func() time.Time { return now }}
	return s, &now
}

// rounds reads and commits n rounds, advancing the clock by step before each.
func rounds(t *testing.T, r *Reader, c *checkpoint, l *log, n int, now *time.Time, step time.Duration) RoundInfo {
	t.Helper()
	var info RoundInfo
	for range n {
		*now = now.Add(step)
		seen := len(*l)
		var err error
		if info, err = r.Round(t.Context(), l.emit); err != nil {
			t.Fatal(err)
		}
		c.commit((*l)[seen:]...)
	}
	return info
}

func (s *stub) clockedReader(c *checkpoint, now *time.Time, o Options) *Reader {
	o.Now = func() time.Time { return *now }
	return s.reader(c, o)
}

func TestTrimmedRecordsAreAGapWithItsBoundsAndReadingGoesOn(t *testing.T) {
	w := newWorld(t, 1)
	c, l := newCheckpoint(), log{}
	w.put(10)
	if _, err := w.reader(c, Options{PageLimit: 3}).Round(t.Context(), l.emit); err != nil {
		t.Fatal(err)
	}
	c.commit(l...)
	w.clock.Advance(25 * time.Hour)
	w.put(5)
	w.catchUp(w.reader(c, Options{}), c, &l)
	if got := values(t, l.records()); !slices.Equal(got, []int{0, 1, 2, 10, 11, 12, 13, 14}) {
		t.Errorf("read %v", got)
	}
	wantGaps(t, l, pipeline.Missing{Cause: pipeline.GapTrimmed, From: start, To: start.Add(25 * time.Hour)})
	if l[1].Missing == nil {
		t.Errorf("the gap is not with the first records behind it")
	}
}

func TestRecordsTrimmedBehindABlockedConsumerAreAGap(t *testing.T) {
	w := newWorld(t, 1)
	c, l := newCheckpoint(), log{}
	r := w.reader(c, Options{PageLimit: 3})
	w.put(10)
	if _, err := r.Round(t.Context(), l.emit); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(25 * time.Hour)
	w.put(1)
	w.catchUp(r, c, &l)
	wantGaps(t, l, pipeline.Missing{Cause: pipeline.GapTrimmed, From: start, To: start.Add(25 * time.Hour)})
	if got := values(t, l.records()); !slices.Equal(got, []int{0, 1, 2, 10}) {
		t.Errorf("read %v", got)
	}
}

func TestARestartAfterAnIdleWeekendIsNoGap(t *testing.T) {
	a := &stubShard{id: "a", pages: [][]int{{1, 2}, {3}}, open: true, trimmed: 2, created: map[int]time.Time{3: start.Add(61 * time.Hour)}}
	s, now := clockedStub(a)
	c, l := newCheckpoint(), log{}
	// The last record is of Friday; the shard was polled until an hour ago.
	c.committed["a"] = pipeline.Position{Seq: seq(2), Created: start, TipAt: start.Add(60 * time.Hour)}
	*now = start.Add(61 * time.Hour)
	rounds(t, s.clockedReader(c, now, Options{}), c, &l, 5, now, time.Second)
	wantGaps(t, l)
	wantValues(t, l, 3)
}

func TestAPositionThatWasNotReadToItsTipForADayIsAGap(t *testing.T) {
	a := &stubShard{id: "a", pages: [][]int{{1, 2}, {3}}, open: true, trimmed: 2, created: map[int]time.Time{3: start.Add(61 * time.Hour)}}
	s, now := clockedStub(a)
	c, l := newCheckpoint(), log{}
	c.committed["a"] = pipeline.Position{Seq: seq(2), Created: start, TipAt: start.Add(30 * time.Hour)}
	*now = start.Add(61 * time.Hour)
	rounds(t, s.clockedReader(c, now, Options{}), c, &l, 5, now, time.Second)
	wantGaps(t, l, pipeline.Missing{Cause: pipeline.GapTrimmed, From: start.Add(30 * time.Hour), To: start.Add(61 * time.Hour)})
	wantValues(t, l, 3)
}

func TestAPositionWithoutATimeThatAgedOutIsAGap(t *testing.T) {
	a := &stubShard{id: "a", pages: [][]int{{1, 2, 3, 4}, {5}}, open: true, trimmed: 4, created: map[int]time.Time{5: start.Add(61 * time.Hour)}}
	s, now := clockedStub(a)
	c, l := newCheckpoint(), log{}
	c.committed["a"] = pipeline.Position{Seq: seq(2)}
	*now = start.Add(61 * time.Hour)
	rounds(t, s.clockedReader(c, now, Options{}), c, &l, 5, now, time.Second)
	wantGaps(t, l, pipeline.Missing{Cause: pipeline.GapTrimmed, To: start.Add(61 * time.Hour)})
}

func TestARecordThatAgesOutWhileTheServiceFailsIsAGap(t *testing.T) {
	a := &stubShard{id: "a", pages: [][]int{{1, 2}, {3}, {4}}, open: true, trimmed: 2,
		created: map[int]time.Time{3: start.Add(10*time.Hour + 10*time.Minute), 4: start.Add(34 * time.Hour)}}
	s, now := clockedStub(a)
	c, l := newCheckpoint(), log{}
	tip := start.Add(10 * time.Hour)
	c.committed["a"] = pipeline.Position{Seq: seq(2), Created: start, TipAt: tip}
	*now = start.Add(33*time.Hour + 50*time.Minute)
	r := s.clockedReader(c, now, Options{})
	if _, err := r.Round(t.Context(), l.emit); err != nil { // the position is too old, and nothing is missing yet
		t.Fatal(err)
	}
	s.fail = func(op, _ string) string {
		if op == "GetRecords" || op == "GetShardIterator" {
			return "InternalServerError"
		}
		return ""
	}
	rounds(t, r, c, &l, 5, now, 10*time.Minute)
	a.trimmed, s.fail = 3, nil
	rounds(t, r, c, &l, 5, now, time.Second)
	wantGaps(t, l, pipeline.Missing{Cause: pipeline.GapTrimmed, From: tip, To: start.Add(34 * time.Hour)})
}

func TestAServerThatTrimsWhatItMustStillHoldIsAGap(t *testing.T) {
	a := &stubShard{id: "a", pages: [][]int{{1, 2}, {3}}, open: true, trimmed: 2}
	s, now := clockedStub(a)
	c, l := newCheckpoint(), log{}
	c.committed["a"] = pipeline.Position{Seq: seq(1), Created: start, TipAt: start}
	rounds(t, s.clockedReader(c, now, Options{}), c, &l, 5, now, time.Second)
	wantGaps(t, l, pipeline.Missing{Cause: pipeline.GapTrimmed, From: start, To: start})
	wantValues(t, l, 3)
}

func TestAGapBeforeNothingIsEmittedOnceTheTipIsReached(t *testing.T) {
	a := &stubShard{id: "a", pages: [][]int{{1, 2}}, open: true, trimmed: 2}
	s, now := clockedStub(a)
	c, l := newCheckpoint(), log{}
	c.committed["a"] = pipeline.Position{Seq: seq(2), Created: start}
	*now = start.Add(48 * time.Hour)
	r := s.clockedReader(c, now, Options{})
	rounds(t, r, c, &l, 5, now, time.Second)
	if len(l) > 0 {
		t.Fatalf("after a few empty pages %+v was emitted: records may lie ahead", l)
	}
	rounds(t, r, c, &l, walkPages+5, now, time.Second)
	if len(l) != 1 || l[0].Missing == nil || l[0].End || len(l[0].Records) > 0 {
		t.Fatalf("emitted %+v", l)
	}
	m := l[0].Missing
	if !m.From.Equal(start) || m.To.Before(start.Add(48*time.Hour)) || m.To.After(*now) {
		t.Errorf("missing %+v at %s", m, now)
	}
	// Committed, it is not found again.
	rounds(t, s.clockedReader(c, now, Options{}), c, &l, walkPages+15, now, time.Second)
	if len(l) != 1 {
		t.Errorf("found again: %+v", l[1:])
	}
}

func TestAGapAtTheEndOfAShardIsEmittedWithTheEnd(t *testing.T) {
	a := &stubShard{id: "a", pages: [][]int{{1, 2}}, trimmed: 2}
	s, now := clockedStub(a)
	c, l := newCheckpoint(), log{}
	c.committed["a"] = pipeline.Position{Seq: seq(1), Created: start}
	*now = start.Add(30 * time.Hour)
	rounds(t, s.clockedReader(c, now, Options{}), c, &l, 3, now, 0)
	if len(l) != 1 || !l[0].End {
		t.Fatalf("emitted %+v", l)
	}
	wantGaps(t, l, pipeline.Missing{Cause: pipeline.GapTrimmed, From: start, To: start.Add(30 * time.Hour)})
}

func TestAFreshStreamThatCallsItsBeginningTrimmedIsReadAgain(t *testing.T) {
	s := &stub{shards: []*stubShard{{id: "a", pages: [][]int{{1}}, open: true}}}
	n := 0
	s.fail = func(op, _ string) string {
		if op == "GetRecords" {
			if n++; n == 1 {
				return "TrimmedDataAccessException"
			}
		}
		return ""
	}
	c, l := newCheckpoint(), log{}
	if _, err := drive(t, s.reader(c, Options{}), c, &l, 5); err != nil {
		t.Fatal(err)
	}
	wantValues(t, l, 1)
	wantGaps(t, l)
}

func TestAVanishedShardIsAGapAndItsChildrenGoOn(t *testing.T) {
	for name, pos := range map[string]pipeline.Position{
		"a day ago": {Seq: seq(1), Created: start.Add(-30 * time.Hour), TipAt: start.Add(-29 * time.Hour)},
		"before the day that the service promises": {Seq: seq(1), Created: start.Add(-time.Hour)},
		"never read": {MetAt: start.Add(-50 * time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			s, now := clockedStub(&stubShard{id: "b", parent: "a", pages: [][]int{{5}}, open: true})
			c, l := newCheckpoint(), log{}
			c.committed["a"] = pos
			rounds(t, s.clockedReader(c, now, Options{}), c, &l, 6, now, 0)
			want := pipeline.Missing{Cause: pipeline.GapVanished, From: later(pos.Created, pos.TipAt), To: start.Add(-retention)}
			if pos.Created.After(want.To) {
				want.To = start
			}
			wantGaps(t, l, want)
			wantValues(t, l, 5)
			if !l[0].End || l[0].Shard != "a" || !c.committed["a"].End {
				t.Errorf("emitted %+v", l)
			}
		})
	}
}

func TestAVanishedShardWithoutAnyRelativeIsFoundAtStart(t *testing.T) {
	s, now := clockedStub(&stubShard{id: "c", parent: "b", pages: [][]int{{5}}, open: true})
	c, l := newCheckpoint(), log{}
	// b was born, read by nobody, and gone during an outage of 30 hours.
	c.committed["a"] = pipeline.Position{Seq: seq(1), Created: start.Add(-30 * time.Hour)}
	c.away = start.Add(-30 * time.Hour)
	rounds(t, s.clockedReader(c, now, Options{}), c, &l, 6, now, 0)
	wantValues(t, l, 5)
	got := map[pipeline.ShardID]pipeline.Missing{}
	for _, b := range l {
		if b.Missing != nil {
			got[b.Shard] = *b.Missing
		}
	}
	if m := got["a"]; m.Cause != pipeline.GapVanished || !m.From.Equal(start.Add(-30*time.Hour)) || !m.To.Equal(start.Add(-24*time.Hour)) {
		t.Errorf("gap of the shard that was begun: %+v", m)
	}
	if m := got["c"]; m.Cause != pipeline.GapVanished || !m.From.Equal(start.Add(-30*time.Hour)) || !m.To.Equal(start) {
		t.Errorf("gap of the generation that nobody met: %+v", m)
	}
}

func TestAShardThatDiesWithItsIteratorIsAGap(t *testing.T) {
	a := &stubShard{id: "a", pages: [][]int{{1}, {2}}, open: true}
	s, now := clockedStub(a, &stubShard{id: "b", parent: "a", pages: [][]int{{3}}, open: true})
	c, l := newCheckpoint(), log{}
	r := s.clockedReader(c, now, Options{})
	rounds(t, r, c, &l, 1, now, 0)
	a.gone = true
	s.fail = func(op, shard string) string {
		if op == "GetRecords" && shard == "a" {
			return "ExpiredIteratorException"
		}
		return ""
	}
	rounds(t, r, c, &l, 6, now, 0)
	wantValues(t, l, 1, 3)
	wantGaps(t, l, pipeline.Missing{Cause: pipeline.GapVanished, From: start, To: start})
}

func TestOneAnswerThatAShardIsGoneIsNotBelieved(t *testing.T) {
	s, now := clockedStub(&stubShard{id: "a", pages: [][]int{{1}}, open: true})
	n := 0
	s.fail = func(op, _ string) string {
		if op == "GetShardIterator" {
			if n++; n <= 5 {
				return "ResourceNotFoundException"
			}
		}
		return ""
	}
	c, l := newCheckpoint(), log{}
	info := rounds(t, s.clockedReader(c, now, Options{}), c, &l, 3, now, 0)
	if info.Failed == nil || info.CaughtUp() || info.Shards[0].Failures != 3 || info.Shards[0].Wait != WaitBackoff {
		t.Errorf("round info %+v", info)
	}
	rounds(t, s.clockedReader(c, now, Options{}), c, &l, 5, now, 0)
	wantGaps(t, l)
	wantValues(t, l, 1)
}

func TestAChildWhoseFirstRecordsAgedOutWhileItsParentWasReadIsAGap(t *testing.T) {
	a := &stubShard{id: "a", pages: [][]int{{1}}}
	b := &stubShard{id: "b", parent: "a", pages: [][]int{{2}, {3}}, open: true, created: map[int]time.Time{2: start.Add(time.Second), 3: start.Add(20 * time.Hour)}}
	s, now := clockedStub(a, b)
	s.ranges = true
	c, l := newCheckpoint(), log{}
	r := s.clockedReader(c, now, Options{})
	*now = start.Add(23 * time.Hour)
	if _, err := r.Round(t.Context(), l.emit); err != nil {
		t.Fatal(err)
	}
	*now, b.trimmed = start.Add(25*time.Hour), 2
	c.commit(l...)
	rounds(t, r, c, &l, 5, now, 0)
	wantValues(t, l, 1, 3)
	wantGaps(t, l, pipeline.Missing{Cause: pipeline.GapTrimmed, From: start, To: start.Add(20 * time.Hour)})
}

func TestAChildThatWaitedForADayWithAllItsRecordsIsNoGap(t *testing.T) {
	a := &stubShard{id: "a", pages: [][]int{{1}}}
	b := &stubShard{id: "b", parent: "a", pages: [][]int{{2}}, open: true, created: map[int]time.Time{2: start.Add(20 * time.Hour)}}
	s, now := clockedStub(a, b)
	c, l := newCheckpoint(), log{}
	r := s.clockedReader(c, now, Options{})
	if _, err := r.Round(t.Context(), l.emit); err != nil {
		t.Fatal(err)
	}
	c.commit(l...)
	*now = start.Add(25 * time.Hour)
	rounds(t, r, c, &l, 5, now, 0)
	wantValues(t, l, 1, 2)
	wantGaps(t, l)
}

func TestTimesAreTheServersClock(t *testing.T) {
	ours := start.Add(300 * time.Hour) // a machine whose clock is days ahead
	server := start
	s := &stub{ranges: true, shards: []*stubShard{{id: "a", pages: [][]int{{1}}, open: true}}, now: func() time.Time { return server }}
	c, l := newCheckpoint(), log{}
	r := s.reader(c, Options{Now: func() time.Time { return ours }})
	var info RoundInfo
	for range walkPages + 5 {
		ours, server = ours.Add(time.Second), server.Add(time.Second)
		var err error
		if info, err = r.Round(t.Context(), l.emit); err != nil {
			t.Fatal(err)
		}
	}
	if met := c.committed["a"].MetAt; !met.Equal(start.Add(time.Second)) {
		t.Errorf("met at %s", met)
	}
	if at := info.Shards[0].TipAt; at.Before(start) || at.After(server) || server.Sub(at) > tipTime+2*time.Second {
		t.Errorf("tip at %s, the server's clock is %s", at, server)
	}
	if !info.At.Equal(server) {
		t.Errorf("round at %s", info.At)
	}
}

func TestTheTipTakesManyEmptyPagesAndTime(t *testing.T) {
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	t.Run("time", func(t *testing.T) {
		var p tip
		for range 10 * walkPages {
			if _, ok := p.empty(start); ok {
				t.Fatal("a tip within one second")
			}
		}
		if got, ok := p.empty(at(10)); !ok || !got.Equal(start) {
			t.Errorf("tip %s, %t", got, ok)
		}
	})
	t.Run("pages", func(t *testing.T) {
		var p tip
		for i := range walkPages - 1 {
			if _, ok := p.empty(at(60 * i)); ok {
				t.Fatalf("a tip after %d pages of a new iterator", i+1)
			}
		}
		if _, ok := p.empty(at(60 * walkPages)); !ok {
			t.Error("no tip")
		}
		p.records()
		for i := range tipPages - 1 {
			if _, ok := p.empty(at(60 * (walkPages + 1 + i))); ok {
				t.Fatalf("a tip %d pages after records", i+1)
			}
		}
		if got, ok := p.empty(at(60 * (walkPages + 10))); !ok || !got.Equal(at(60*(walkPages+1))) {
			t.Errorf("tip %s, %t", got, ok)
		}
		p.moved()
		if _, ok := p.empty(at(60 * (walkPages + 11))); ok {
			t.Error("a tip right after a new iterator")
		}
	})
	t.Run("it moves on", func(t *testing.T) {
		var p tip
		for i := range 1000 {
			got, ok := p.empty(at(i))
			if i > 60 && (!ok || at(i).Sub(got) > tipTime+time.Second) {
				t.Fatalf("at %d the tip is %s, %t", i, got, ok)
			}
			if len(p.run) > 64 {
				t.Fatalf("%d pages are remembered", len(p.run))
			}
		}
	})
}

func TestAMalformedRecordNeedsAPerson(t *testing.T) {
	for name, pages := range map[string][][]int{"twice": {{1, 1}}, "out of order": {{2, 1}}, "of an earlier page": {{1, 2}, {2, 3}}} {
		t.Run(name, func(t *testing.T) {
			s := &stub{shards: []*stubShard{{id: "a", pages: pages, open: true}}}
			c, l := newCheckpoint(), log{}
			_, err := drive(t, s.reader(c, Options{}), c, &l, 3)
			if _, ok := errors.AsType[*pipeline.PersonError](err); !ok {
				t.Errorf("error %v", err)
			}
		})
	}
}
