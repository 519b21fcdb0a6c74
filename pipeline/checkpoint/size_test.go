package checkpoint

import (
	"fmt"
	"testing"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/pipelinetest"
)

// A ledgerLife runs windows through a store from begin to fold, as a run and a seal do.
type ledgerLife struct {
	t     testing.TB
	table *memTable
	store *Store
	state pipeline.State
	n     int64 // windows done
	peak  int   // items, while windows are open
}

const (
	lifeShards = 4
	lifeParts  = 6
	lifeFold   = 10 // windows between two folds
)

func newLedgerLife(t testing.TB) *ledgerLife {
	t.Helper()
	l := &ledgerLife{t: t}
	l.table, l.store = newTable(t)
	var err error
	if l.state, err = l.store.Acquire(t.Context(), pipelinetest.Lane, false); err != nil {
		t.Fatal(err)
	}
	for i := range lifeShards {
		if _, err := l.store.Shards(arn, pipelinetest.Lane, Run).Own(t.Context(), pipeline.Shard{Stream: arn, ID: lifeShard(i)}); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func lifeShard(i int) pipeline.ShardID {
	return pipeline.ShardID(fmt.Sprintf("shardId-%020d-%08x", 1796025600000+i, i))
}

// windows takes so many more windows from begin to fold.
func (l *ledgerLife) windows(n int) {
	l.t.Helper()
	ctx, seq := l.t.Context(), func(n int64, i int) pipeline.SequenceNumber {
		return pipeline.SequenceNumber(fmt.Sprintf("1%020d%02d", n, i))
	}
	for range n {
		l.n++
		m := &pipeline.Manifest{
			Format: pipeline.FormatVersion, Layout: pipeline.LayoutVersion, Stream: arn, Contract: "c",
			Window: pipeline.WindowID{Lane: l.state.Lane, Incarnation: l.state.Incarnation, N: l.n},
		}
		for i := range lifeShards {
			r := pipeline.ShardRange{
				Range:  pipeline.Range{Shard: lifeShard(i), First: seq(l.n, 1), Last: seq(l.n, 9)},
				Counts: pipeline.Counts{Rows: 9}, Oldest: today, Newest: today,
			}
			if l.n > 1 {
				r.After = seq(l.n-1, 9)
			}
			m.Shards = append(m.Shards, r)
		}
		var claims []pipeline.Claim
		for i := range lifeParts {
			m.Parts = append(m.Parts, pipeline.PartSpec{Table: "readings", Partition: fmt.Sprintf("dt=2026-11-%02d", i+1), Rows: 6})
			claims = append(claims, pipeline.Claim{
				Part: pipeline.PartID{Window: m.Window, Index: i}, Copy: pipeline.Copy{Key: fmt.Sprint("2026/11/30/object-", l.n), ETag: "0123456789abcdef", Offset: int64(i) * 900_000},
				Name: fmt.Sprintf("readings/dt=2026-11-%02d/0123456789abcdef-%d.parquet", i+1, l.n),
			})
		}
		for _, err := range []error{l.store.Begin(ctx, l.state.Hold, m), l.store.Commit(ctx, l.state.Hold, m)} {
			if err != nil {
				l.t.Fatal(err)
			}
		}
		held, err := l.store.Claim(ctx, claims)
		if err == nil {
			err = l.store.Publish(ctx, held)
		}
		l.peak = max(l.peak, len(l.table.items))
		if err == nil && l.n%lifeFold == 0 {
			err = l.store.Fold(ctx, l.state.Lane)
		}
		if err != nil {
			l.t.Fatal(err)
		}
	}
}

// size is the table's items and bytes, as DynamoDB bills them: names and texts by their bytes, a
// number by half its digits and a byte (Developer Guide, "DynamoDB Item sizes and formats").
func (l *ledgerLife) size() (items, bytes int) {
	for _, it := range l.table.items {
		for name, v := range it {
			bytes += len(name)
			switch v.kind {
			case "N":
				bytes += (len(v.text)+1)/2 + 1
			case "BOOL":
				bytes++
			default:
				bytes += len(v.text)
			}
		}
	}
	return len(l.table.items), bytes
}

func TestTheTableIsAsSmallAfterManyWindowsAsAfterFew(t *testing.T) {
	l := newLedgerLife(t)
	l.windows(lifeFold)
	items, bytes := l.size()
	l.windows(999 * lifeFold / 10)
	l.windows(lifeFold - int(l.n)%lifeFold)
	later, more := l.size()
	// A lane, its stream's side, and a shard each; numbers grow by a digit now and then.
	if want := 2 + lifeShards; items != want || later != items {
		t.Errorf("%d items after %d windows and %d after %d, want %d", items, lifeFold, later, l.n, want)
	}
	if more > bytes+10 {
		t.Errorf("%d bytes after %d windows and %d after %d", bytes, lifeFold, more, l.n)
	}
	if most := later + lifeFold*(1+lifeParts); l.peak > most {
		t.Errorf("%d items while %d windows were open, want at most %d", l.peak, lifeFold, most)
	}
	st, err := l.store.Lane(t.Context(), l.state.Lane)
	if err != nil || st.Watermark != l.n || len(st.Windows) != 0 {
		t.Errorf("watermark %d of %d, %d windows held, %v", st.Watermark, l.n, len(st.Windows), err)
	}
}

// With -benchtime 1000000x it says what a million windows leave in the table.
func BenchmarkWindowsInTheTable(b *testing.B) {
	l := newLedgerLife(b)
	for b.Loop() {
		l.windows(1)
	}
	if err := l.store.Fold(b.Context(), l.state.Lane); err != nil {
		b.Fatal(err)
	}
	items, bytes := l.size()
	b.ReportMetric(float64(l.n), "windows")
	b.ReportMetric(float64(items), "items")
	b.ReportMetric(float64(bytes), "bytes")
	b.ReportMetric(float64(l.peak), "most_items")
}
