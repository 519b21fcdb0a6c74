package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/pipelinetest"
)

// on runs a test in a bubble, on a table whose clock is an hour off: nobody compares with it.
func on(t *testing.T, test func(t *testing.T, m *memTable)) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := newTable(t)
		m.now = func() time.Time { return time.Now().Add(-time.Hour) }
		test(t, m)
	})
}

func (m *memTable) process(name string, change ...func(*Leased)) *Leased {
	l := &Leased{Store: m.store(nil, Options{Host: name}), For: time.Minute}
	for _, f := range change {
		f(l)
	}
	return l
}

func acquire(t *testing.T, l *Leased) pipeline.State {
	t.Helper()
	st, err := l.Acquire(t.Context(), pipelinetest.Lane, false)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// keep renews until the process dies.
func (l *Leased) keep(t *testing.T) (die context.CancelFunc, ended <-chan error) {
	ctx, cancel := context.WithCancel(t.Context())
	c := make(chan error, 1)
	go func() { c <- l.Keep(ctx) }()
	return cancel, c
}

func TestAStandbyTakesOverWithinTheLeaseOfAHolderThatDied(t *testing.T) {
	on(t, func(t *testing.T, m *memTable) {
		first := m.process("first/1")
		a := acquire(t, first)
		die, _ := first.keep(t)
		taken := make(chan pipeline.State)
		var told []string
		second := m.process("second/2", func(l *Leased) {
			l.Waits = func(lane pipeline.LaneID, h Holder, waiting bool) {
				told = append(told, fmt.Sprint(lane, " ", h.Host, " ", waiting))
			}
		})
		go func() { taken <- acquire(t, second) }()
		time.Sleep(time.Hour) // the holder lives: nobody takes its lane
		select {
		case <-taken:
			t.Fatal("a standby takes the lane of a holder that lives")
		default:
		}
		died := time.Now()
		die()
		b := <-taken
		if waited := time.Since(died); waited > time.Minute+20*time.Second {
			t.Errorf("the standby took over %s after the death", waited)
		}
		if b.Token != a.Token+1 {
			t.Errorf("tokens %d, then %d", a.Token, b.Token)
		}
		if want := "[run-readings first/1 true run-readings first/1 false]"; fmt.Sprint(told) != want {
			t.Errorf("told %v, want %s", told, want)
		}
		// Who died, or slept, can begin nothing.
		late := &pipeline.Manifest{Format: 1, Layout: 1, Window: pipeline.WindowID{Lane: pipelinetest.Lane, Incarnation: a.Incarnation, N: 1}}
		if err := first.Begin(t.Context(), a.Hold, late); !errors.Is(err, pipeline.ErrFenced) {
			t.Errorf("begin of the one that died: %v", err)
		}
		if err := first.Renew(t.Context(), a.Hold); !errors.Is(err, pipeline.ErrFenced) {
			t.Errorf("renewal of the one that died: %v", err)
		}
		if err := first.End(t.Context()); err != nil {
			t.Errorf("end of the one that died: %v", err)
		}
		if h, _, _ := second.Holder(t.Context(), pipelinetest.Lane); h.Lease == 0 || h.Host != "second/2" {
			t.Errorf("the one that died released the lane of its successor: %+v", h)
		}
	})
}

func TestALaneThatIsNewOrReleasedIsTakenAtOnce(t *testing.T) {
	on(t, func(t *testing.T, m *memTable) {
		start := time.Now()
		first, second := m.process("a"), m.process("b")
		acquire(t, first)
		if err := first.End(t.Context()); err != nil {
			t.Fatal(err)
		}
		acquire(t, second)
		if waited := time.Since(start); waited != 0 {
			t.Errorf("waited %s", waited)
		}
		// A lane that is held by a process without a lease has nobody to wait for.
		if _, err := m.store(nil, Options{}).Acquire(t.Context(), "plain", false); err != nil {
			t.Fatal(err)
		}
		if _, err := first.Acquire(t.Context(), "plain", false); err != nil || time.Since(start) != 0 {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

func TestOfTwoStandbysOneWinsAndTheOtherWaits(t *testing.T) {
	on(t, func(t *testing.T, m *memTable) {
		acquire(t, m.process("dead"))
		var mu sync.Mutex
		var order []string
		for _, name := range []string{"b", "c", "d"} {
			go func() {
				l := m.process(name)
				st, err := l.Acquire(t.Context(), pipelinetest.Lane, false)
				if err != nil {
					return // the test is over
				}
				mu.Lock()
				order = append(order, fmt.Sprint(st.Token))
				mu.Unlock()
				_ = l.Keep(t.Context())
			}()
		}
		time.Sleep(24 * time.Hour)
		mu.Lock()
		defer mu.Unlock()
		if fmt.Sprint(order) != "[2]" {
			t.Errorf("taken with tokens %v, want once with 2", order)
		}
	})
}

func TestTakingOverDoesNotWaitButOnce(t *testing.T) {
	on(t, func(t *testing.T, m *memTable) {
		first := m.process("a")
		acquire(t, first)
		_, fenced := first.keep(t)
		start := time.Now()
		second := m.process("b", func(l *Leased) { l.TakeOver = true })
		acquire(t, second)
		if time.Since(start) != 0 || second.TakeOver {
			t.Errorf("waited %s", time.Since(start))
		}
		if err := <-fenced; !errors.Is(err, pipeline.ErrFenced) {
			t.Errorf("the first keeps its lease: %v", err)
		}
		if _, err := first.Acquire(t.Context(), pipelinetest.Lane, true); !errors.Is(err, pipeline.ErrFenced) {
			t.Errorf("the first takes it back: %v", err)
		}
	})
}

func TestAProcessThatLostItsLaneBecomesAStandbyIfAsked(t *testing.T) {
	on(t, func(t *testing.T, m *memTable) {
		first := m.process("a", func(l *Leased) { l.Standby = true })
		acquire(t, first)
		second := m.process("b", func(l *Leased) { l.TakeOver = true })
		acquire(t, second)
		die, _ := second.keep(t)
		back := make(chan error, 1)
		go func() {
			_, err := first.Acquire(t.Context(), pipelinetest.Lane, true)
			back <- err
		}()
		time.Sleep(time.Hour)
		select {
		case err := <-back:
			t.Fatalf("it does not wait: %v", err)
		default:
		}
		die()
		if err := <-back; err != nil {
			t.Error(err)
		}
	})
}

// A renewal that fails for a moment loses nothing.
func TestAHolderOutlivesFailuresOfItsRenewals(t *testing.T) {
	on(t, func(t *testing.T, m *memTable) {
		cut := &failing{next: m}
		first := &Leased{Store: m.store(cut, Options{}), For: time.Minute}
		acquire(t, first)
		first.keep(t)
		second := m.process("b")
		taken := make(chan struct{})
		go func() {
			if _, err := second.Acquire(t.Context(), pipelinetest.Lane, false); err == nil {
				close(taken)
			}
		}()
		time.Sleep(10 * time.Second) // between two renewals
		for i := range 200 {
			cut.fail.Store(i%3 == 1) // of each three renewals one fails
			time.Sleep(20 * time.Second)
		}
		select {
		case <-taken:
			t.Error("a standby took over from a holder that renewed two times of three")
		default:
		}
	})
}

// A failing line carries nothing while it is told to fail.
type failing struct {
	next aws.HTTPClient
	fail atomic.Bool
}

func (f *failing) Do(r *http.Request) (*http.Response, error) {
	if f.fail.Load() {
		return nil, errCut
	}
	return f.next.Do(r)
}

func TestAStandbyStopsWaitingWhenItIsStopped(t *testing.T) {
	on(t, func(t *testing.T, m *memTable) {
		first := m.process("a")
		acquire(t, first)
		first.keep(t)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if _, err := m.process("b").Acquire(ctx, pipelinetest.Lane, false); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}
