package pipelinetest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"telemetrylake/pipeline"
)

// A Shore is a sink, with the windows whose parts it lands and what can be seen of it.
type Shore struct {
	pipeline.Sink
	Memory Memory // what the windows are begun in; of it Checkpoints, Own, Ledger and Fold are used
	// Another is the same sink in another process.
	Another func() pipeline.Sink
	// Lake is what the manifests of its windows name.
	Lake string
	// Encode makes a part's file, of about so many bytes; salt makes them others.
	Encode func(m *pipeline.Manifest, meta pipeline.PartMeta, size, salt int) []byte
	// Found reads what each part says of itself that was landed and lies wherever the sink puts it.
	Found func() []*pipeline.PartMeta
	// Break has the sink's service fail, after some of what is asked of it, until mend is called.
	Break func() (mend func())
	// Once: each part is there once, however often it is landed. Else seal tells its copies apart.
	Once bool
}

// TestSink is what every implementation of pipeline.Sink keeps. newShore gives one on which nothing
// was landed.
func TestSink(t *testing.T, newShore func(testing.TB) *Shore) {
	for name, test := range map[string]func(*testing.T, *Shore){
		"what is landed is there":                    landed,
		"nothing is nothing":                         landsNothing,
		"landing again adds no other part":           landedTwice,
		"other bytes of the same rows are the part":  reencoded,
		"small parts, large ones and very large":     manyLanded,
		"windows do not mix":                         windowsApart,
		"a landing that broke off is finished":       brokenOff,
		"a landing is not begun when its time is up": timeIsUp,
		"two processes land one window at once":      atOnce,
		"a window that is sealed takes nothing more": afterSealed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newShore(t))
		})
	}
}

// begin begins the next window, with so many parts.
func (s *Shore) begin(t testing.TB, q *Sequence, parts int) *pipeline.Manifest {
	t.Helper()
	m := q.Manifest(parts)
	m.Lake = s.Lake
	for i := range m.Parts {
		m.Parts[i].Partition = fmt.Sprintf("dt=2026-11-%02d", 1+i%3)
	}
	if err := q.M.Begin(t.Context(), q.Hold, m); err != nil {
		t.Fatal(err)
	}
	return m
}

// parts encodes the parts of a window; sizes are those of the first, the others are small.
func (s *Shore) parts(m *pipeline.Manifest, salt int, sizes ...int) []pipeline.Part {
	var ps []pipeline.Part
	for i, spec := range m.Parts {
		meta := pipeline.PartMeta{
			Format: pipeline.FormatVersion, Window: m.Window, Part: i, Stream: m.Stream, Contract: m.Contract,
			Table: spec.Table, Partition: spec.Partition, Rows: spec.Rows, Ranges: m.Ranges(), Last: i == len(m.Parts)-1,
		}
		size := 0
		if i < len(sizes) {
			size = sizes[i]
		}
		ps = append(ps, pipeline.Part{
			ID: meta.ID(), Table: spec.Table, Partition: spec.Partition, Rows: spec.Rows, Body: s.Encode(m, meta, size, salt),
		})
	}
	return ps
}

func (s *Shore) land(t testing.TB, to pipeline.Sink, ps []pipeline.Part) {
	t.Helper()
	if err := to.Land(t.Context(), ps); err != nil {
		t.Fatal(err)
	}
}

// holds fails the test unless every part of the windows is there and nothing else; once if the sink
// says so, or if it was landed once.
func (s *Shore) holds(t testing.TB, once bool, ms ...*pipeline.Manifest) {
	t.Helper()
	found := map[pipeline.PartID]int{}
	for _, p := range s.Found() {
		found[p.ID()]++
		for _, m := range ms {
			if m.Window == p.Window && (p.Part >= len(m.Parts) || m.Parts[p.Part].Rows != p.Rows || m.Parts[p.Part].Partition != p.Partition) {
				t.Errorf("part %s says that it is %d rows of %s", p.ID(), p.Rows, p.Partition)
			}
		}
	}
	for _, m := range ms {
		for i := range m.Parts {
			id := pipeline.PartID{Window: m.Window, Index: i}
			if n := found[id]; n == 0 || n > 1 && (once || s.Once) {
				t.Errorf("part %s is there %d times", id, n)
			}
			delete(found, id)
		}
	}
	for id, n := range found {
		t.Errorf("part %s is there %d times and was never landed", id, n)
	}
}

func landed(t *testing.T, s *Shore) {
	m := s.begin(t, Begun(t, s.Memory), 4)
	s.land(t, s, s.parts(m, 1))
	s.holds(t, true, m)
}

func landsNothing(t *testing.T, s *Shore) {
	s.land(t, s, nil)
	s.holds(t, true)
}

func landedTwice(t *testing.T, s *Shore) {
	m := s.begin(t, Begun(t, s.Memory), 4)
	for range 2 {
		s.land(t, s, s.parts(m, 1))
	}
	s.land(t, s.Another(), s.parts(m, 1))
	s.holds(t, false, m)
}

func reencoded(t *testing.T, s *Shore) {
	m := s.begin(t, Begun(t, s.Memory), 3)
	for salt := range 3 {
		s.land(t, s.Another(), s.parts(m, salt, salt*1000))
	}
	s.holds(t, false, m)
}

// manyLanded lands more than a call or an object takes anywhere.
func manyLanded(t *testing.T, s *Shore) {
	m := s.begin(t, Begun(t, s.Memory), 530)
	const record = 1000 << 10
	s.land(t, s, s.parts(m, 1, 10, record-4096, record+4096, record-4096, 10, record-4096, 3<<20, 700<<10))
	s.holds(t, true, m)
}

func windowsApart(t *testing.T, s *Shore) {
	q := Begun(t, s.Memory)
	var ms []*pipeline.Manifest
	for n := range 3 {
		m := s.begin(t, q, n+1)
		s.land(t, s, s.parts(m, 1))
		q.Commit(t, m)
		ms = append(ms, m)
	}
	s.holds(t, true, ms...)
}

func brokenOff(t *testing.T, s *Shore) {
	m := s.begin(t, Begun(t, s.Memory), 40)
	ps := s.parts(m, 1, 900<<10, 900<<10, 900<<10, 900<<10, 900<<10, 900<<10)
	mend := s.Break()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := s.Land(ctx, ps)
	mend()
	if err == nil {
		t.Fatal("it says that it landed, and its service failed")
	}
	s.land(t, s.Another(), s.parts(m, 2))
	s.holds(t, false, m)
}

func timeIsUp(t *testing.T, s *Shore) {
	m := s.begin(t, Begun(t, s.Memory), 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Land(ctx, s.parts(m, 1)); err == nil {
		t.Error("it landed")
	}
	s.land(t, s, s.parts(m, 1))
	s.holds(t, false, m)
}

func atOnce(t *testing.T, s *Shore) {
	m := s.begin(t, Begun(t, s.Memory), 30)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		ps, to := s.parts(m, i), s.Another()
		wg.Go(func() { errs[i] = to.Land(t.Context(), ps) })
	}
	wg.Wait()
	for _, err := range errs {
		works(t, "land beside others", err)
	}
	s.holds(t, false, m)
}

// afterSealed is a process that was taken for dead: it lands what another has landed, and all of
// which is in the lake.
func afterSealed(t *testing.T, s *Shore) {
	q := Begun(t, s.Memory)
	m := s.begin(t, q, 3)
	s.land(t, s, s.parts(m, 1))
	q.Commit(t, m)
	var claims []pipeline.Claim
	for i, p := range s.parts(m, 1) {
		c := ClaimOf(m, i, "an object")
		if s.Lake != "" {
			c = pipeline.ClaimOf(p.ID, p.ObjectName())
		}
		claims = append(claims, c)
	}
	held := s.Memory.claim(t, claims...)
	s.Memory.publish(t, held...)
	s.Memory.fold(t)
	s.Memory.state(t, pipeline.WindowFolded, m)
	s.land(t, s.Another(), s.parts(m, 2))
	s.holds(t, false, m)
}
