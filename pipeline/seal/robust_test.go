package seal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/parquet-go/parquet-go/encoding/thrift"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/lake"
)

// A merger that takes every part but one.
type picky struct {
	Merger
	bad []byte
	how func(part int) error
}

func (m picky) Merge(ctx context.Context, w io.Writer, parts []*io.SectionReader, order []string, meta map[string]string) error {
	for i, p := range parts {
		if b, _ := io.ReadAll(io.NewSectionReader(p, 0, p.Size())); bytes.Equal(b, m.bad) {
			return m.how(i)
		}
	}
	return m.Merger.Merge(ctx, w, parts, order, meta)
}

type badPart int

func (badPart) Error() string  { return "cannot read it" }
func (b badPart) BadPart() int { return int(b) }

// A part that no merge takes stays, with a reason; it stops neither its group nor the next sweep.
func TestAPartThatCannotBeMergedStopsNoOther(t *testing.T) {
	for name, how := range map[string]func(int) error{
		"named by an error":  func(i int) error { return badPart(i) },
		"found by its panic": func(int) error { panic("index out of range") },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlant(t)
			w := p.lane.window(on(0, 1, 2, 3, 4, 5, 6)...)
			p.stage("a", w...)
			s := p.sealer(func(s *Stages) { s.Merger = picky{p.merger, w[1], how} })
			for range 3 {
				r, err := s.Sweep(t.Context())
				if err == nil || r.Kept[Broken] != 1 || r.Removed != 0 {
					t.Errorf("report %+v, %v", r, err)
				}
				p.wantRows(1, 2, 5, 6)
			}
			p.sweep() // with a version that can
			p.wantRows(1, 2, 3, 4, 5, 6)
			p.noneLeft()
		})
	}
}

// What fails for another reason than a part is tried again, and no part is blamed.
func TestAFailingMergeBlamesNoPart(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1, 2, 3, 4)...)
	p.stage("a", w...)
	failed := errors.New("no memory")
	s := p.sealer(func(s *Stages) { s.Merger = picky{p.merger, w[1], func(int) error { return failed }} })
	if r, err := s.Sweep(t.Context()); !errors.Is(err, failed) || len(r.Kept) != 0 {
		t.Errorf("report %+v, %v", r, err)
	}
	s = p.sealer(func(s *Stages) { s.Spool = func() (Spool, error) { return &fullDisk{}, nil } })
	if r, err := s.Sweep(t.Context()); !errors.Is(err, errFull) || len(r.Kept) != 0 {
		t.Errorf("with a full disk: report %+v, %v", r, err)
	}
	p.wantRows()
	p.sweep()
	p.wantRows(1, 2, 3, 4)
}

var errFull = errors.New("no space left on device")

type fullDisk struct{ inMemory }

func (*fullDisk) Write([]byte) (int, error) { return 0, errFull }

// Rows outside of their partition are never claimed, and stop no other part.
func TestAPartOfAnotherDayIsKept(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1, 2, 3, 4)...)
	m := opened(t, w[0]).meta
	elsewhere := retold(t, p.lane.window(on(1, 8, 9)...)[0], func(to *pipeline.PartMeta) {
		*to = *m
		to.Ranges = slices.Clone(m.Ranges)
	})
	p.stage("a", elsewhere, w[1])
	r, err := p.sealer().Sweep(t.Context())
	if err == nil || !strings.Contains(err.Error(), "outside its partition") || r.Kept[Broken] != 1 {
		t.Errorf("report %+v, %v", r, err)
	}
	p.wantRows(3, 4)
	p.stage("b", w[0])
	if _, err := p.sealer().Object(t.Context(), p.object("b")); err != nil {
		t.Error(err)
	}
	p.wantRows(1, 2, 3, 4)
}

// A lane that cannot be halted, and a window that a newer version wrote, stop no other part.
func TestOneWindowThatFailsStopsNoOther(t *testing.T) {
	p := newPlant(t)
	first, second := p.newLane("first", "shardId-8"), p.newLane("second", "shardId-9")
	w, a, b := p.lane.window(on(0, 1)...), first.window(on(0, 2)...), second.window(on(0, 3)...)
	wrong := retold(t, a[0], func(m *pipeline.PartMeta) { m.Stream += "0" })
	inc := p.item("lane#second", "lane")["inc"].(*ddb.AttributeValueMemberS).Value
	p.set("lane#second", "window#"+inc+"#00000000000000000001", "fmt", &ddb.AttributeValueMemberN{Value: "9"})
	p.stage("a", wrong, b[0], w[0])
	failed := errors.New("no")
	r, err := p.sealer(func(s *Stages) { s.Folder = unhalting{p.store, failed} }).Object(t.Context(), p.object("a"))
	if !errors.Is(err, failed) || r.Kept[Mismatch] != 1 || r.Kept[Newer]+r.Waiting != 1 || r.Removed != 0 {
		t.Errorf("report %+v, %v", r, err)
	}
	p.wantRows(1)
}

type unhalting struct {
	Folder
	err error
}

func (u unhalting) Halt(context.Context, pipeline.LaneID, string) error { return u.err }
func (unhalting) Fold(context.Context, pipeline.LaneID) error           { return nil }

// That an object cannot be read is never taken for damage of it.
func TestAnObjectThatCannotBeReadIsNotDamaged(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1, 2, 3)...)
	p.stage("a", []byte("garbage"), w[0], []byte("\n"), w[1])
	size := int64(7 + len(w[0]) + 1 + len(w[1]))
	failed := errors.New("reset by peer")
	for from := int64(0); from < size; from += 101 {
		s := p.sealer(func(s *Stages) { s.Staging = flaky{p.staging, from, failed} })
		if r, err := s.Sweep(t.Context()); !errors.Is(err, failed) || r.Removed != 0 {
			t.Fatalf("unreadable from %d: %+v, %v", from, r, err)
		}
		for _, key := range p.keys(p.damaged) {
			if !strings.HasSuffix(key, ".json") && !strings.HasSuffix(key, "/0-7") && !strings.Contains(key, "-"+strconv.Itoa(8+len(w[0]))) {
				t.Fatalf("unreadable from %d: %s is put aside", from, key)
			}
		}
	}
	p.sweep()
	p.wantRows(1, 2, 3)
	p.noneLeft()
}

// flaky cannot read the byte at at.
type flaky struct {
	Store
	at  int64
	err error
}

func (f flaky) View(ctx context.Context, o pipeline.Object, use func(*io.SectionReader) error) error {
	return f.Store.View(ctx, o, func(r *io.SectionReader) error {
		return use(io.NewSectionReader(flakyReader{r, f}, 0, r.Size()))
	})
}

type flakyReader struct {
	r *io.SectionReader
	f flaky
}

func (r flakyReader) ReadAt(b []byte, off int64) (int, error) {
	if off <= r.f.at && r.f.at < off+int64(len(b)) {
		return 0, r.f.err
	}
	return r.r.ReadAt(b, off)
}

// Many seals work on the same objects at once, some told of an object twice, while services refuse.
func TestManySealsAtOnceDoubleNothing(t *testing.T) {
	p := newPlant(t)
	var want []int
	var parts [][]byte
	for i := range 12 {
		parts = append(parts, p.lane.window(on(i%2, 10*i, 10*i+1, 10*i+2)...)...)
		want = append(want, 10*i, 10*i+1, 10*i+2)
	}
	rng := rand.New(rand.NewPCG(5, 5))
	for i := range 8 {
		var some [][]byte
		for range 2 + rng.IntN(6) {
			some = append(some, parts[rng.IntN(len(parts))])
		}
		p.stage("o"+strconv.Itoa(i), some...)
	}
	p.stage("rest", parts...)
	var wg sync.WaitGroup
	var refused atomic.Int64
	for seed := range 6 {
		wg.Go(func() {
			s := p.refusing(uint64(seed), 0.15, &refused)
			for range 4 {
				_, _ = s.Sweep(t.Context()) // refused here and there: the next one goes on
				for o, err := range p.staging.List(t.Context()) {
					if err == nil {
						_, _ = s.Object(t.Context(), o)
					}
				}
			}
		})
	}
	wg.Wait()
	p.sweep()
	p.sweep()
	p.wantRows(want...)
	p.noneLeft()
	if refused.Load() == 0 {
		t.Error("no request was refused")
	}
}

// refusing is a seal of whose requests to S3 a share is refused with 503, before or after its effect.
func (p *plant) refusing(seed uint64, share float64, count *atomic.Int64) *Sealer {
	rng := rand.New(rand.NewPCG(seed, 6))
	var mu sync.Mutex
	cfg := p.env.AWSConfig()
	next := p.env.Transport()
	cfg.HTTPClient = &http.Client{Transport: tripper(func(r *http.Request) (*http.Response, error) {
		mu.Lock()
		x := rng.Float64()
		mu.Unlock()
		if x >= share {
			return next.RoundTrip(r)
		}
		count.Add(1)
		if x < share/2 {
			resp, err := next.RoundTrip(r)
			if err != nil {
				return nil, err
			}
			_ = resp.Body.Close()
		}
		return &http.Response{StatusCode: 503, Status: "503 Slow Down", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
			Body: io.NopCloser(strings.NewReader("<Error><Code>SlowDown</Code></Error>")), Request: r}, nil
	})}
	c := s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle, o.RetryMaxAttempts = true, 1 })
	return p.sealer(func(s *Stages) {
		s.Staging, s.Lake, s.Damaged = lake.NewBucket(c, "plant", "staging"), lake.NewBucket(c, "plant", "lake"), lake.NewBucket(c, "plant", "damaged")
	})
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// An object that arrives while a sweep lists is sealed by it or by the next.
func TestAnObjectThatAppearsWhileSealingIsSealed(t *testing.T) {
	p := newPlant(t)
	w1, w2 := p.lane.window(on(0, 1)...), p.lane.window(on(0, 2)...)
	p.stage("b", w1...)
	appeared := false
	s := p.sealer(func(s *Stages) {
		s.Staging = overtaken{p.staging, func() {
			if !appeared {
				appeared = true
				p.stage("a", w2...)
				p.stage("c", slices.Concat(w1, w2)...)
			}
		}}
	})
	if _, err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.sweep()
	p.wantRows(1, 2)
	p.noneLeft()
}

// Damaged bytes must not make a reader allocate what they claim.
func TestDamagedSizesAllocateNothing(t *testing.T) {
	parts := realParts(t)
	huge := binary.AppendUvarint(nil, 1<<31-2)
	for _, b := range parts {
		s := &source{r: bytes.NewReader(b), size: int64(len(b))}
		_, md, err := fileBefore(s, s.size)
		if err != nil {
			t.Fatal(err)
		}
		// The first page of each column claims 2 GiB; then its frame does.
		for _, c := range md.RowGroups[0].Columns {
			at := c.MetaData.DataPageOffset
			if d := c.MetaData.DictionaryPageOffset; d > 0 {
				at = min(at, d)
			}
			h, n, err := headerAt(s, at, s.size)
			if err != nil {
				t.Fatal(err)
			}
			h.UncompressedPageSize = 1<<31 - 1
			bad, err := thrift.Marshal(new(thrift.CompactProtocol), h)
			if err != nil {
				t.Fatal(err)
			}
			refuses(t, b, at, slices.Concat(bad, make([]byte, max(0, int(n)-len(bad))))[:max(int(n), len(bad))])
			if at+n+13 < s.size {
				refuses(t, b, at+n, []byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0})
			}
		}
		footer := len(b) - 8 - int(binary.LittleEndian.Uint32(b[len(b)-8:]))
		for at := footer; at < len(b)-8-len(huge); at++ {
			refuses(t, b, int64(at), huge)
			refuses(t, b, int64(at), append([]byte{0xfc}, huge...))
		}
	}
}

// refuses opens b with bytes of it replaced, and fails the test if that takes much memory.
func refuses(t *testing.T, b []byte, at int64, by []byte) {
	t.Helper()
	b = bytes.Clone(b)
	copy(b[at:], by)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, sp := range split(b) {
		if sp.damage == nil {
			_, _ = openBytes(b, sp)
		}
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 64<<20 {
		t.Fatalf("with %x at %d of %d bytes it allocates %d bytes", by, at, len(b), got)
	}
}
