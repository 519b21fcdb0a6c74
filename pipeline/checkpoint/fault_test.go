package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/aws/aws-sdk-go-v2/aws"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/pipelinetest"
)

var errCut = errors.New("the line is cut")

// A line carries the requests of one process. At request number at (from 1) it calls meanwhile;
// then the line is cut before the effect of that request, or after it, unless it is to hold.
type line struct {
	next      aws.HTTPClient
	at, n     int
	after     bool
	hold      bool // the line is not cut: only meanwhile happens
	meanwhile func()
}

func (l *line) Do(r *http.Request) (*http.Response, error) {
	l.n++
	if l.n != l.at {
		if l.n > l.at && l.at > 0 && !l.hold {
			return nil, errCut
		}
		return l.next.Do(r)
	}
	if l.meanwhile != nil {
		l.meanwhile()
	}
	if l.hold {
		return l.next.Do(r)
	}
	if !l.after {
		return nil, errCut
	}
	if resp, err := l.next.Do(r); err == nil {
		resp.Body.Close()
	}
	return nil, errCut
}

// eachCut runs do once for each request that it makes, with the line cut before or after that
// request's effect, on a store that prepare has filled.
func eachCut(t *testing.T, prepare func(*testing.T, *Store) func(*Store) error, check func(*testing.T, *Store)) {
	t.Helper()
	for _, after := range []bool{false, true} {
		for at := 1; ; at++ {
			cfg, s := newService(t)
			do := prepare(t, s)
			l := &line{next: cfg.HTTPClient, at: at, after: after}
			err := do(over(cfg, l))
			if l.n < at {
				if err != nil {
					t.Fatalf("with no cut: %v", err)
				}
				if at < 2 {
					t.Fatal("no request was made")
				}
				break
			}
			if !errors.Is(err, errCut) {
				t.Errorf("cut at request %d, after its effect %v: %v", at, after, err)
			}
			t.Run(fmt.Sprintf("request %d, after %v", at, after), func(t *testing.T) { check(t, s) })
		}
	}
}

// history is four windows of 30 parts in a committed lane: the first three are in the lake, the
// fourth half.
func history(t *testing.T, s *Store) []*pipeline.Manifest {
	t.Helper()
	seq := pipelinetest.Begun(t, memory(s))
	var ws []*pipeline.Manifest
	for i := range 4 {
		w := seq.Window(t, 30)
		ws = append(ws, w)
		var cs []pipeline.Claim
		for p := range 30 {
			if i < 3 || p < 15 {
				cs = append(cs, pipelinetest.ClaimOf(w, p, "a"))
			}
		}
		held, err := s.Claim(t.Context(), cs)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Publish(t.Context(), held); err != nil {
			t.Fatal(err)
		}
	}
	return ws
}

// stillRefuses fails the test if a late copy of a part that is in the lake could be published.
func stillRefuses(t *testing.T, s *Store, ws []*pipeline.Manifest) {
	t.Helper()
	for _, w := range ws {
		state, _, err := s.Window(t.Context(), w.Window)
		if err != nil || state == pipeline.WindowUnknown {
			t.Errorf("window %d is %q, %v", w.Window.N, state, err)
		}
		late := pipelinetest.ClaimOf(w, 7, "late")
		held, err := s.Claim(t.Context(), []pipeline.Claim{late})
		if errors.Is(err, pipeline.ErrWindowClosed) {
			continue
		}
		if err != nil || held[0].Copy == late.Copy || !held[0].Published {
			t.Errorf("window %d gives a late copy %+v, %v", w.Window.N, held, err)
		}
	}
}

// done fails the test unless the first three windows are folded with nothing left of them, and
// the fourth is as it was.
func folded(t *testing.T, s *Store, ws []*pipeline.Manifest) {
	t.Helper()
	if err := s.Fold(t.Context(), pipelinetest.Lane); err != nil {
		t.Fatal(err)
	}
	for i, w := range ws {
		want := pipeline.WindowFolded
		if i == 3 {
			want = pipeline.WindowCommitted
		}
		if state, _, err := s.Window(t.Context(), w.Window); err != nil || state != want {
			t.Errorf("window %d is %s, %v, want %s", w.Window.N, state, err, want)
		}
	}
	windows, parts := 0, 0
	for k := range items(t, s) {
		switch {
		case strings.Contains(k, " window#"):
			windows++
		case strings.Contains(k, " part#"):
			parts++
		}
	}
	if windows != 1 || parts != 15 {
		t.Errorf("%d window items and %d part items are left", windows, parts)
	}
}

func TestFoldThatDiesAnywhereIsFinishedByTheNext(t *testing.T) {
	var ws []*pipeline.Manifest
	eachCut(t,
		func(t *testing.T, s *Store) func(*Store) error {
			ws = history(t, s)
			return func(s *Store) error { return s.Fold(t.Context(), pipelinetest.Lane) }
		},
		func(t *testing.T, s *Store) {
			stillRefuses(t, s, ws)
			folded(t, s, ws)
		})
}

func TestFoldThatIsOvertakenAnywhereDoesNoHarm(t *testing.T) {
	for at := 1; ; at++ {
		cfg, s := newService(t)
		ws := history(t, s)
		l := &line{next: cfg.HTTPClient, at: at, hold: true, meanwhile: func() {
			if err := s.Fold(t.Context(), pipelinetest.Lane); err != nil {
				t.Error(err)
			}
		}}
		if err := over(cfg, l).Fold(t.Context(), pipelinetest.Lane); err != nil {
			t.Errorf("overtaken at request %d: %v", at, err)
		}
		if l.n < at {
			break
		}
		stillRefuses(t, s, ws)
		folded(t, s, ws)
	}
}

// A process that begins or commits and does not hear of it finds out when it asks again.
func TestBeginAndCommitSucceedAgainAfterALostAnswer(t *testing.T) {
	cfg, s := newService(t)
	seq := pipelinetest.Begun(t, memory(s))
	for range 3 {
		m := seq.Manifest(2)
		if err := over(cfg, &line{next: cfg.HTTPClient, at: 1, after: true}).Begin(t.Context(), seq.Hold, m); !errors.Is(err, errCut) {
			t.Fatalf("begin: %v", err)
		}
		if err := s.Begin(t.Context(), seq.Hold, m); err != nil {
			t.Fatalf("begin again: %v", err)
		}
		if err := over(cfg, &line{next: cfg.HTTPClient, at: 1, after: true}).Commit(t.Context(), seq.Hold, m); !errors.Is(err, errCut) {
			t.Fatalf("commit: %v", err)
		}
		seq.Commit(t, m)
	}
}

func TestClaimMoveAndPublishSucceedAgainAfterALostAnswer(t *testing.T) {
	cfg, s := newService(t)
	lossy := func() *Store { return over(cfg, &line{next: cfg.HTTPClient, at: 1, after: true}) }
	w := pipelinetest.Begun(t, memory(s)).Window(t, 1)
	c := pipelinetest.ClaimOf(w, 0, "a")
	to := c
	to.Round, to.Name = 1, "x-1.parquet"
	if _, err := lossy().Claim(t.Context(), []pipeline.Claim{c}); !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	if held, err := s.Claim(t.Context(), []pipeline.Claim{c}); err != nil || held[0] != c {
		t.Fatalf("claim again: %+v, %v", held, err)
	}
	if _, err := lossy().Move(t.Context(), c, to); !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	if held, err := s.Move(t.Context(), c, to); err != nil || held != to {
		t.Fatalf("move again: %+v, %v", held, err)
	}
	if err := lossy().Publish(t.Context(), []pipeline.Claim{to}); !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	if err := s.Publish(t.Context(), []pipeline.Claim{to}); err != nil {
		t.Fatalf("publish again: %v", err)
	}
}

func TestOwnThatDiesAnywhereIsFinishedByTheNext(t *testing.T) {
	shard := pipeline.Shard{Stream: pipelinetest.Stream, ID: "s-1", Parent: "s-0"}
	own := func(s *Store) error {
		_, err := s.Shards(pipelinetest.Stream, "one", Run).Own(t.Context(), shard)
		return err
	}
	eachCut(t,
		func(*testing.T, *Store) func(*Store) error { return own },
		func(t *testing.T, s *Store) {
			if err := own(s); err != nil {
				t.Error(err)
			}
		})
}

// The service may report a conflict on one item beside a condition that failed on another. The
// condition may have failed for what our own earlier try did, so nothing is decided by it.
func TestARefusalBesideAConflictIsAskedAgain(t *testing.T) {
	for name, last := range map[string]string{"begin": "begin", "commit": "commit"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg, s := newService(t)
				seq := pipelinetest.Begun(t, memory(s))
				m := seq.Begin(t, 1)
				if last == "commit" {
					seq.Commit(t, m)
				}
				c := over(cfg, &conflict{next: cfg.HTTPClient, times: 5})
				var err error
				if last == "commit" {
					err = c.Commit(t.Context(), seq.Hold, m)
				} else {
					err = c.Begin(t.Context(), seq.Hold, m)
				}
				if err != nil {
					t.Errorf("again: %v", err)
				}
			})
		})
	}
}

// conflict answers the first transactions with a conflict on their first item and a failed
// condition on their second.
type conflict struct {
	next  aws.HTTPClient
	times int
}

func (c *conflict) Do(r *http.Request) (*http.Response, error) {
	if !strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".TransactWriteItems") || c.times == 0 {
		return c.next.Do(r)
	}
	c.times--
	body := `{"__type":"com.amazonaws.dynamodb.v20120810#TransactionCanceledException","message":"Transaction cancelled",` +
		`"CancellationReasons":[{"Code":"TransactionConflict"},{"Code":"ConditionalCheckFailed"},{"Code":"None"}]}`
	return &http.Response{
		Status: "400 Bad Request", StatusCode: http.StatusBadRequest, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/x-amz-json-1.0"}}, Body: io.NopCloser(bytes.NewReader([]byte(body))),
		ContentLength: int64(len(body)), Request: r,
	}, nil
}

// Between taking the lane and reading its pending window, a process can sleep for so long that
// its successor has finished that window, sealed and folded it.
func TestAcquireThatIsOvertakenAnywhereIsFencedOrHoldsTheLane(t *testing.T) {
	for at := 1; at <= 4; at++ {
		cfg, s := newService(t)
		m := pipelinetest.Begun(t, memory(s)).Begin(t, 1)
		l := &line{next: cfg.HTTPClient, at: at, hold: true, meanwhile: func() {
			st, err := s.Acquire(t.Context(), pipelinetest.Lane, false)
			if err != nil || st.Pending == nil {
				return // the window is finished already
			}
			held, err := s.Claim(t.Context(), []pipeline.Claim{pipelinetest.ClaimOf(m, 0, "a")})
			for _, err := range []error{err, s.Publish(t.Context(), held), s.Commit(t.Context(), st.Hold, m), s.Fold(t.Context(), pipelinetest.Lane)} {
				if err != nil {
					t.Error(err)
				}
			}
		}}
		st, err := over(cfg, l).Acquire(t.Context(), pipelinetest.Lane, false)
		if err != nil && !errors.Is(err, pipeline.ErrFenced) {
			t.Errorf("overtaken at request %d: %v", at, err)
		}
		if err == nil && at > 1 && l.n >= at {
			t.Errorf("overtaken at request %d: acquired %+v", at, st)
		}
	}
}
