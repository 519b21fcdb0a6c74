package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"telemetrylake/pipeline"
)

// runFor runs a reader for a while of a bubble's time.
func runFor(t *testing.T, r *Reader, d time.Duration, emit func(pipeline.Batch) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := r.Run(ctx, emit); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

func TestAnIdleShardIsPolledEverMoreRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{shards: []*stubShard{{id: "a", pages: [][]int{{1}, {2}}, open: true}}}
		c, l := newCheckpoint(), log{}
		runFor(t, s.reader(c, Options{Floor: time.Second, Ceiling: 10 * time.Second}), time.Hour, l.emit)
		wantValues(t, l, 1, 2)
		// Between 5 and 10 s apart, once the tip is known; within a second until then.
		if n := s.calls["GetRecords"]; n < 360+walkPages || n > 720+2*walkPages {
			t.Errorf("%d pages were read in an hour", n)
		}
		if n := s.calls["DescribeStream"]; n < 50 || n > 61 {
			t.Errorf("%d listings in an hour", n)
		}
	})
}

func TestRecordsBringThePollsOfAShardBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &stubShard{id: "a", pages: [][]int{{1}}, open: true}
		s := &stub{shards: []*stubShard{a}}
		c, l := newCheckpoint(), log{}
		r := s.reader(c, Options{Floor: time.Second, Ceiling: time.Minute})
		runFor(t, r, time.Hour, l.emit)
		// From here on every page has a record.
		s.mu.Lock()
		before := s.calls["GetRecords"]
		for i := range 200 {
			for len(a.pages) < before {
				a.pages = append(a.pages, nil)
			}
			a.pages = append(a.pages, []int{10 + i})
		}
		s.mu.Unlock()
		runFor(t, r, 2*time.Minute, l.emit)
		if n := s.calls["GetRecords"] - before; n < 60 {
			t.Errorf("%d pages in the two minutes in which there were records", n)
		}
	})
}

func TestFullPagesAreReadWithoutWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &stubShard{id: "a", open: true}
		for i := range 100 {
			a.pages = append(a.pages, []int{2 * i, 2*i + 1})
		}
		s := &stub{shards: []*stubShard{a}}
		c, l := newCheckpoint(), log{}
		runFor(t, s.reader(c, Options{PageLimit: 2, Floor: time.Minute, Budget: 1000}), time.Second, l.emit)
		if len(l.records()) != 200 {
			t.Errorf("read %d records", len(l.records()))
		}
	})
}

func TestAFullPageIsForgottenWithItsShard(t *testing.T) {
	for name, after := range map[string]func(*stub){
		"it ended": func(s *stub) { s.shards[0].open = false },
		"it fails": func(s *stub) {
			s.fail = func(_, shard string) string { return map[string]string{"a": "InternalServerError"}[shard] }
		},
		"it is closed": func(s *stub) { s.noNext = 1 << 20 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &stub{shards: []*stubShard{{id: "a", pages: [][]int{{1, 2}}, open: true}, {id: "b", pages: [][]int{{}}, open: true}}}
				r := s.reader(newCheckpoint(), Options{PageLimit: 2, Parallel: 1, RetryBase: time.Second, RetryCap: time.Minute})
				emit := func(pipeline.Batch) error { return nil }
				for !r.hasFull() {
					if _, err := r.Poll(t.Context(), emit); err != nil {
						t.Fatal(err)
					}
				}
				after(s)
				for range 5 {
					if _, err := r.Poll(t.Context(), emit); err != nil {
						t.Fatal(err)
					}
				}
				if r.hasFull() {
					t.Error("a shard whose last page was not full still hurries the others")
				}
			})
		})
	}
}

func TestTheBudgetHoldsForAllShardsTogetherAndStarvesNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{}
		for i := range 50 {
			sh := &stubShard{id: fmt.Sprintf("s%02d", i), open: true}
			for p := range 1000 {
				sh.pages = append(sh.pages, []int{1 + p})
			}
			s.shards = append(s.shards, sh)
		}
		c := newCheckpoint()
		read := map[pipeline.ShardID]int{}
		r := s.reader(c, Options{PageLimit: 1, Budget: 10})
		waited := false
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		for ctx.Err() == nil {
			info, err := r.Poll(ctx, func(b pipeline.Batch) error { read[b.Shard]++; return nil })
			if err != nil && ctx.Err() == nil {
				t.Fatal(err)
			}
			waited = waited || slices.ContainsFunc(info.Shards, func(s ShardInfo) bool { return s.Wait == WaitBudget })
		}
		// 10 a second, and the bucket's 10.
		if n := s.calls["GetRecords"]; n < 2900 || n > 3011 {
			t.Errorf("%d pages in five minutes", n)
		}
		for id, n := range read {
			if n < 55 || n > 65 {
				t.Errorf("shard %s got %d pages of about 60", id, n)
			}
		}
		if len(read) != 50 || !waited {
			t.Errorf("%d shards were read; budget named as a reason: %t", len(read), waited)
		}
	})
}

func TestAFailingShardIsLeftAloneEverLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{shards: []*stubShard{{id: "a", pages: [][]int{{1}}, open: true}, {id: "b", pages: [][]int{{2}}, open: true}}}
		s.fail = func(_, shard string) string {
			if shard == "b" {
				return "ThrottlingException"
			}
			return ""
		}
		c, l := newCheckpoint(), log{}
		r := s.reader(c, Options{Ceiling: time.Second, RetryBase: time.Second, RetryCap: time.Minute})
		runFor(t, r, time.Hour, l.emit)
		wantValues(t, l, 1)
		// At most once in half a minute, once the wait has grown.
		if n := s.calls["GetShardIterator b"]; n < 60 || n > 130 {
			t.Errorf("the failing shard was tried %d times in an hour", n)
		}
		if n := s.calls["GetRecords a"]; n < 3000 {
			t.Errorf("the other shard was read %d times in an hour", n)
		}
		info, err := r.Poll(t.Context(), l.emit)
		if err != nil {
			t.Fatal(err)
		}
		if b := info.Shards[1]; b.Wait != WaitThrottled || b.Failures < 60 || b.Err == nil || !b.Until.After(time.Now()) {
			t.Errorf("shard b: %+v", b)
		}
		if a := info.Shards[0]; a.Wait != WaitPoll || a.Failures != 0 || a.ReadAt.IsZero() || a.TipAt.IsZero() {
			t.Errorf("shard a: %+v", a)
		}
	})
}

func TestRunEndsWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{shards: []*stubShard{{id: "a", open: true}}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.reader(newCheckpoint(), Options{Floor: 1000 * time.Hour}).Run(ctx, (&log{}).emit) }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

func TestAStreamWithoutShardsIsListedInPeace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{}
		runFor(t, s.reader(newCheckpoint(), Options{}), time.Minute, (&log{}).emit)
		if n := s.calls["DescribeStream"]; n < 30 || n > 62 {
			t.Errorf("%d listings in a minute", n)
		}
	})
}

func TestOutagesAreOutlived(t *testing.T) {
	for _, failure := range []string{"ThrottlingException", "InternalServerError", "LimitExceededException"} {
		t.Run(failure, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &stub{shards: []*stubShard{{id: "a", pages: [][]int{{1}, {2}}, open: true}}}
				begun := time.Now()
				s.fail = func(string, string) string {
					if time.Since(begun) < 3*time.Hour {
						return failure
					}
					return ""
				}
				c, l := newCheckpoint(), log{}
				runFor(t, s.reader(c, Options{RetryBase: 200 * time.Millisecond, RetryCap: 20 * time.Second}), 3*time.Hour+time.Minute, l.emit)
				wantValues(t, l, 1, 2)
				if n := s.calls["DescribeStream"]; n < 500 || n > 1200 {
					t.Errorf("%d attempts in three hours", n)
				}
			})
		})
	}
}

func TestParallelReadersHoldOnePageEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{}
		for i := range 40 {
			s.shards = append(s.shards, &stubShard{id: fmt.Sprintf("s%02d", i), pages: [][]int{{1}, {2}}, open: true})
		}
		const parallel = 8
		emitting, emitted := false, 0
		info, err := s.reader(newCheckpoint(), Options{Parallel: parallel}).Poll(t.Context(), func(pipeline.Batch) error {
			if emitting {
				t.Error("two batches are emitted at the same time")
			}
			emitting = true
			time.Sleep(time.Minute) // whoever may read on has read by then
			s.mu.Lock()
			held := s.calls["GetRecords"] - emitted
			s.mu.Unlock()
			if held > parallel+1 {
				t.Errorf("%d pages are held", held)
			}
			emitting = false
			emitted++
			return nil
		})
		if err != nil || info.Records != 40 {
			t.Fatalf("%+v, %v", info, err)
		}
	})
}

func TestCatchUpIsAsFastAsShardsAreReadInParallel(t *testing.T) {
	for parallel, want := range map[int]time.Duration{1: 16 * time.Second, 8: 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := &stub{}
			for i := range 16 {
				s.shards = append(s.shards, &stubShard{id: fmt.Sprintf("s%02d", i), pages: [][]int{{1}, {2}}, open: true})
			}
			c, l := newCheckpoint(), log{}
			for i := range 16 {
				c.committed[pipeline.ShardID(fmt.Sprintf("s%02d", i))] = pipeline.Position{}
			}
			r := s.reader(c, Options{Parallel: parallel})
			if _, err := r.Poll(t.Context(), l.emit); err != nil {
				t.Fatal(err)
			}
			s.delay = time.Second
			time.Sleep(time.Second)
			begun := time.Now()
			if _, err := r.Poll(t.Context(), l.emit); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begun); took != want || len(l.records()) != 32 {
				t.Errorf("with %d at a time a page of 16 shards took %v, want %v; %d records", parallel, took, want, len(l.records()))
			}
		})
	}
}

func TestRequestsAreCounted(t *testing.T) {
	w := newWorld(t, 2)
	c, l := newCheckpoint(), log{}
	r := w.reader(c, Options{})
	w.put(10)
	w.catchUp(r, c, &l)
	got := r.Requests()
	if got.DescribeStream != 1 || got.GetShardIterator != 2 || got.GetRecords != 4 || got.Retries != 0 {
		t.Errorf("requests %+v", got)
	}
}

func TestTheBucketFillsWithTimeUpToOneSecond(t *testing.T) {
	b := newBucket(10)
	if n := b.take(start, 100); n != 10 {
		t.Errorf("%d at first", n)
	}
	if n := b.take(start.Add(250*time.Millisecond), 100); n != 2 {
		t.Errorf("%d after a quarter of a second", n)
	}
	if d := b.wait(start.Add(250 * time.Millisecond)); d < 49*time.Millisecond || d > 51*time.Millisecond {
		t.Errorf("wait %v", d)
	}
	if n := b.take(start.Add(time.Hour), 100); n != 10 {
		t.Errorf("%d after an hour", n)
	}
	slow := newBucket(0.1)
	if n := slow.take(start, 5); n != 1 {
		t.Errorf("%d of a slow bucket", n)
	}
	if n := slow.take(start.Add(10*time.Second), 5); n != 1 {
		t.Errorf("%d of a slow bucket after ten seconds", n)
	}
}
