package pipeline_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/lake"
	"telemetrylake/pipeline/pipelinetest"
	"telemetrylake/pipeline/seal"
	"telemetrylake/schemas"
)

// switches turn one load-bearing rule off, from outside the code that keeps it.
type switches struct {
	fencing          bool // begin and commit with a stale token
	begin            bool // land before the manifest is stored
	claim            bool // publish without a claim
	offset           bool // a copy is named without its place in the object
	removeLast       bool // a staging object is removed before its parts are published
	createOnly       bool // an existing lake object is replaced
	totalOrder       bool // rows that share partition key and event time come in any order
	manifestContract bool // a pending window is replayed under today's contract
	lastWord         bool // an object that exists is taken for one's own
	sealed           bool // a window that is sealed takes claims
	early            bool // a window is given up while its parts may be on their way
	gapFirst         bool // a window is given up before its gaps are open
	order            bool // a child is read before its parent's end is committed
	horizon          bool // a new shard is read from its tip
	lastPage         bool // what a shard's last page holds is dropped
	emptyPage        bool // an empty page is taken for the end
	finished         bool // a finished shard is forgotten while the stream has it
	gaps             bool // what aged out is skipped
	seen             bool // a position is taken for young, whatever was read
	standby          bool // a standby does not wait
}

var search = flag.Bool("search", false, "look for the first seed that catches each mutation")

// TestMutations switches each rule off and expects a history to show it: a rule that no history
// misses is not tested by them. The seeds are those that `make mutations` found.
func TestMutations(t *testing.T) {
	for _, m := range []struct {
		name string
		off  switches
		seed uint64
	}{
		{"fencing", switches{fencing: true}, 10},
		{"begin", switches{begin: true}, 6},
		{"claim", switches{claim: true}, 0},
		{"offset", switches{offset: true}, 0},
		{"remove last", switches{removeLast: true}, 1},
		{"create only", switches{createOnly: true}, 0},
		{"total order", switches{totalOrder: true}, 254},
		{"manifest's contract", switches{manifestContract: true}, 49},
		{"sealed windows take no claims", switches{sealed: true}, 11},
		{"giving up waits", switches{early: true}, 0},
		{"gap before void", switches{gapFirst: true}, 1},
		{"parent before child", switches{order: true}, 5},
		{"new shards from their beginning", switches{horizon: true}, 1},
		{"last page", switches{lastPage: true}, 3},
		{"empty page", switches{emptyPage: true}, 0},
		{"finished shards are remembered", switches{finished: true}, 3},
		{"what aged out is a gap", switches{gaps: true}, 4},
		{"what was seen is written down", switches{seen: true}, 4},
		{"a standby waits", switches{standby: true}, 0},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			from, to := m.seed, m.seed
			if *search {
				from, to = 0, 999
			}
			for seed := from; seed <= to; seed++ {
				var wrong error
				synctest.Test(t, func(t *testing.T) { _, wrong = history(t, seed, m.off) })
				if wrong != nil {
					first, _, _ := strings.Cut(wrong.Error(), "\n")
					t.Logf("caught by seed %d: %.300s", seed, first)
					return
				}
			}
			t.Errorf("seeds %d to %d do not notice that it is off: look for one with -search", from, to)
		})
	}
}

// transport rewrites requests for the rules that a condition of the service keeps.
func (o switches) transport(next http.RoundTripper) http.RoundTripper {
	if !o.fencing && !o.createOnly && !o.sealed && !o.horizon && !o.lastPage && !o.emptyPage {
		return next
	}
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		if o.createOnly && r.Method == http.MethodPut {
			r.Header.Del("If-None-Match")
		}
		if o.fencing && strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".TransactWriteItems") {
			if err := rewrite(r, "#t = :token AND", "(#t = :token OR #t <> :token) AND"); err != nil {
				return nil, err
			}
		}
		if o.sealed && strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".TransactWriteItems") {
			if err := rewrite(r, "#s IN (:pending, :committed)", "(#s IN (:pending, :committed) OR #s <> :pending)"); err != nil {
				return nil, err
			}
		}
		if err := o.ask(r); err != nil {
			return nil, err
		}
		resp, err := next.RoundTrip(r)
		if err == nil {
			err = o.answer(r, resp)
		}
		return resp, err
	})
}

func (o switches) stages(s *pipeline.Stages, a *pipelinetest.Actor, c *schemas.Contract) {
	if o.begin {
		s.Checkpoints = lateBegin{s.Checkpoints}
	}
	if o.totalOrder {
		s.Decoder = shuffled{s.Decoder, a.Rand}
	}
	if o.manifestContract {
		s.Contracts = todays{s.Contracts, c}
	}
}

func (o switches) sealStages(s *seal.Stages, staging *lake.Bucket) {
	if o.lastWord {
		s.Lake = lastWord{s.Lake}
	}
	if o.claim {
		s.Ledger = unclaimed{s.Ledger}
	}
	if o.offset {
		s.Ledger = noOffset{s.Ledger}
	}
	if o.removeLast {
		s.Ledger = removeFirst{s.Ledger, staging}
	}
}

type lateBegin struct{ pipeline.Checkpoints }

func (lateBegin) Begin(context.Context, pipeline.Hold, *pipeline.Manifest) error { return nil }

func (l lateBegin) Commit(ctx context.Context, h pipeline.Hold, m *pipeline.Manifest) error {
	if err := l.Checkpoints.Begin(ctx, h, m); err != nil {
		return err
	}
	return l.Checkpoints.Commit(ctx, h, m)
}

type todays struct {
	pipeline.Contracts
	c *schemas.Contract
}

func (t todays) Contract(context.Context, string) (*schemas.Contract, error) { return t.c, nil }

// shuffled swaps rows that are equal in the order columns.
type shuffled struct {
	pipeline.Decoder
	rng *rand.Rand
}

func (s shuffled) Decode(c *schemas.Contract, b []pipeline.Batch) (*pipeline.Rows, error) {
	rows, err := s.Decoder.Decode(c, b)
	if err != nil {
		return nil, err
	}
	for i, g := range rows.Groups {
		if g.Table != c.Name {
			continue // the other tables hold shard and number: a merge would see it
		}
		n := int(g.Rows.NumRows())
		key := func(i int) string {
			var k strings.Builder
			for _, name := range g.Order {
				fmt.Fprintf(&k, "%s|", g.Rows.Column(g.Rows.Schema().FieldIndices(name)[0]).ValueStr(i))
			}
			return k.String()
		}
		perm := make([]int64, n)
		for i := range perm {
			perm[i] = int64(i)
		}
		for from := 0; from < n; {
			to := from + 1
			for to < n && key(to) == key(from) {
				to++
			}
			s.rng.Shuffle(to-from, func(i, j int) { perm[from+i], perm[from+j] = perm[from+j], perm[from+i] })
			from = to
		}
		ib := array.NewInt64Builder(memory.DefaultAllocator)
		ib.AppendValues(perm, nil)
		idx := ib.NewArray()
		cols := make([]arrow.Array, g.Rows.NumCols())
		for j := range cols {
			if cols[j], err = compute.TakeArray(context.Background(), g.Rows.Column(j), idx); err != nil {
				return nil, err
			}
		}
		rows.Groups[i].Rows = array.NewRecordBatch(g.Rows.Schema(), cols, int64(n))
	}
	return rows, nil
}

// unclaimed publishes whatever a seal holds and tells the ledger afterwards.
type unclaimed struct{ pipeline.Ledger }

func (unclaimed) Claim(_ context.Context, cs []pipeline.Claim) ([]pipeline.Claim, error) {
	return cs, nil
}

func (u unclaimed) Publish(ctx context.Context, cs []pipeline.Claim) error {
	held, err := u.Ledger.Claim(ctx, cs)
	if err != nil {
		return err
	}
	return u.Ledger.Publish(ctx, held)
}

type noOffset struct{ pipeline.Ledger }

func (n noOffset) Claim(ctx context.Context, cs []pipeline.Claim) ([]pipeline.Claim, error) {
	held, err := n.Ledger.Claim(ctx, cs)
	for i := range held {
		if held[i].Copy.Key == cs[i].Copy.Key && held[i].Copy.ETag == cs[i].Copy.ETag {
			held[i].Copy.Offset = cs[i].Copy.Offset
		}
	}
	return held, err
}

type removeFirst struct {
	pipeline.Ledger
	staging *lake.Bucket
}

func (r removeFirst) Claim(ctx context.Context, cs []pipeline.Claim) ([]pipeline.Claim, error) {
	held, err := r.Ledger.Claim(ctx, cs)
	if err != nil {
		return nil, err
	}
	return held, r.staging.Remove(ctx, pipeline.Object{Key: cs[0].Copy.Key})
}
