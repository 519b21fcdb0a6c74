package pipeline

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// books are a ledger with windows 1 to 6 of a lane: 1 to 3 are folded, of which 2 was given up; 4 is
// sealed, 5 committed with one of its two parts published, 6 pending.
func books() (Books, []Sealed) {
	const inc = "i"
	id := func(n int64) WindowID { return WindowID{"run-x", inc, n} }
	ranges := func(n int64) []Range {
		return []Range{{Shard: "s", First: SequenceNumber(fmt.Sprint(10 * n)), Last: SequenceNumber(fmt.Sprint(10*n + 5))}}
	}
	manifest := func(n int64) *Manifest {
		return &Manifest{Format: 1, Layout: 1, Window: id(n), Stream: "arn", Contract: "c", Shards: []ShardRange{{Range: ranges(n)[0]}},
			Parts: []PartSpec{{"x", "dt=2026-11-30", 3}, {"x_changes", "dt=2026-11-30", 2}}}
	}
	object := func(key string, parts int, windows ...int64) Sealed {
		table, _, _ := strings.Cut(key, "/")
		m := &ObjectMeta{Format: 1, Table: table, Partition: "dt=2026-11-30"}
		part := ObjectPart{0, 3}
		if table == "x_changes" {
			part = ObjectPart{1, 2}
		}
		for _, n := range windows {
			m.Windows = append(m.Windows, ObjectWindow{Window: id(n), Stream: "arn", Contract: "c", Ranges: ranges(n), PartsTotal: parts, Parts: []ObjectPart{part}})
			m.Rows += part.Rows
		}
		return Sealed{key, int64(m.Rows), m}
	}
	b := Books{Lives: []LaneLife{{Lane: "run-x", Incarnation: inc, Watermark: 3, Void: Runs{{2, 2}}}}, Held: []Held{
		{State: WindowSealed, Manifest: manifest(4)},
		{State: WindowCommitted, Manifest: manifest(5), Claims: []Claim{
			{Part: PartID{id(5), 0}, Name: "x/dt=2026-11-30/b-0.parquet", Published: true},
			{Part: PartID{id(5), 1}, Name: "x_changes/dt=2026-11-30/c-0.parquet"},
		}},
		{State: WindowPending, Manifest: manifest(6)},
	}}
	return b, []Sealed{
		object("x/dt=2026-11-30/a-0.parquet", 2, 1, 2, 3), object("x_changes/dt=2026-11-30/a-0.parquet", 2, 1, 3, 4),
		object("x/dt=2026-11-30/b-0.parquet", 2, 4, 5),
	}
}

func TestBooksThatAreInOrderHaveNoDifference(t *testing.T) {
	b, lake := books()
	got, n := Reconcile(b, lake)
	if len(got) > 0 {
		t.Errorf("differences %+v", got)
	}
	if want := (Counted{Objects: 3, Rows: 21, Parts: 8, Held: 3, Folded: 3}); n != want {
		t.Errorf("it counts %+v, want %+v", n, want)
	}
}

func TestReconcileNamesWhatDiffers(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Books, *[]Sealed)
		want   []string // parts of the differences, as object, window and problem
	}{
		{"an object with other rows than it says", func(_ *Books, l *[]Sealed) { (*l)[0].Rows = 8 }, []string{"x/dt=2026-11-30/a-0.parquet||it has 8 rows, its footer says 9"}},
		{"parts with other rows than their object", func(_ *Books, l *[]Sealed) { (*l)[0].Meta.Windows[0].Parts[0].Rows = 4 }, []string{"a-0.parquet||it has 9 rows, its footer says 9, and the parts that it lists have 10"}},
		{"an object in another partition", func(_ *Books, l *[]Sealed) { (*l)[0].Key = "x/dt=2026-11-29/a-0.parquet" }, []string{"x/dt=2026-11-29/a-0.parquet||it lies outside of x/dt=2026-11-30"}},
		{"a part with other rows than its manifest", func(b *Books, _ *[]Sealed) { b.Held[0].Manifest.Parts[1].Rows = 7 }, []string{"x_changes/dt=2026-11-30/a-0.parquet|run-x/i/4|part run-x/i/4/1 holds 2 rows"}},
		{"a part of other records", func(b *Books, _ *[]Sealed) { b.Held[1].Manifest.Shards[0].Last = "99" }, []string{"b-0.parquet|run-x/i/5|part run-x/i/5/0: its ranges"}},
		{"a part that is there twice", func(_ *Books, l *[]Sealed) {
			again := (*l)[2]
			again.Key = "x/dt=2026-11-30/d-0.parquet"
			*l = append(*l, again)
		}, []string{"d-0.parquet|run-x/i/4|part 0 is in the lake twice, also in x/dt=2026-11-30/b-0.parquet", "d-0.parquet|run-x/i/5|part 0 is in the lake twice"}},
		{"a part that was given up", func(b *Books, _ *[]Sealed) { b.Held[1].Claims[0] = Claim{Part: b.Held[1].Claims[0].Part, Void: true} }, []string{"b-0.parquet|run-x/i/5|part 0 is in the lake, and the ledger has it as given up"}},
		{"a part in another object than the ledger's", func(b *Books, _ *[]Sealed) { b.Held[1].Claims[0].Name = "x/dt=2026-11-30/e-0.parquet" }, []string{"b-0.parquet|run-x/i/5|part 0 is in the lake here, and the ledger has it in x/dt=2026-11-30/e-0.parquet"}},
		{"a part without a claim", func(b *Books, _ *[]Sealed) { b.Held[1].Claims = nil }, []string{"b-0.parquet|run-x/i/5|part 0 is in the lake, and the ledger has no claim on it"}},
		{"a published part that is nowhere", func(_ *Books, l *[]Sealed) {
			o := &(*l)[2]
			o.Meta.Windows, o.Meta.Rows, o.Rows = o.Meta.Windows[:1], 3, 3
		}, []string{"x/dt=2026-11-30/b-0.parquet|run-x/i/5|the ledger has part 0 of 3 rows in it"}},
		{"a sealed window that is not there", func(_ *Books, l *[]Sealed) { *l = slices.Delete(*l, 2, 3) }, []string{"x/dt=2026-11-30/|run-x/i/4|the window is sealed, and part 0 of 3 rows is in no object", "x/dt=2026-11-30/b-0.parquet|run-x/i/5|the ledger has part 0 of 3 rows in it"}},
		{"a folded window that lacks a part", func(_ *Books, l *[]Sealed) {
			o := &(*l)[1]
			o.Meta.Windows, o.Meta.Rows, o.Rows = o.Meta.Windows[1:], 4, 4
		}, []string{"x/dt=2026-11-30/a-0.parquet|run-x/i/1|the window is folded, and 1 of its 2 parts are in the lake"}},
		{"a folded window with more parts than it has", func(_ *Books, l *[]Sealed) {
			(*l)[0].Meta.Windows[2].PartsTotal, (*l)[1].Meta.Windows[1].PartsTotal = 1, 1
		}, []string{"|run-x/i/3|the window is folded, and 2 of its 1 parts"}},
		{"a window of another life", func(b *Books, _ *[]Sealed) { b.Lives[0].Incarnation = "j" }, []string{"|run-x/i/1|parts of the window are in the lake, and the ledger knows no such life", "|run-x/i/2|", "|run-x/i/3|"}},
		{"a window that was never begun", func(b *Books, _ *[]Sealed) { b.Lives[0].Watermark = 2 }, []string{"|run-x/i/3|parts of the window are in the lake, and the ledger never began it"}},
		{"a window that left no trace", func(b *Books, _ *[]Sealed) { b.Lives[0].Unknown = Runs{{1, 1}} }, []string{"|run-x/i/1|parts of the window are in the lake, and the ledger knows nothing of it"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, lake := books()
			tt.change(&b, &lake)
			got, _ := Reconcile(b, lake)
			if len(got) != len(tt.want) {
				t.Fatalf("differences %+v, want %d", got, len(tt.want))
			}
			for i, d := range got {
				want := strings.SplitN(tt.want[i], "|", 3)
				if !strings.Contains(d.Object, want[0]) || d.Window != want[1] || !strings.Contains(d.Problem, want[2]) {
					t.Errorf("difference %+v, want %q", d, tt.want[i])
				}
			}
		})
	}
}

// A window that lands in another lake has nothing in this one.
func TestReconcileLeavesOtherLakesAlone(t *testing.T) {
	b, lake := books()
	b.Held[1].Manifest.Lake = "s3://other/"
	b.Lake = "s3://this/"
	lake = lake[:2]
	b.Held[0].Manifest.Parts = b.Held[0].Manifest.Parts[1:]
	lake[1].Meta.Windows[2].Parts[0].Part = 0
	if got, _ := Reconcile(b, lake); len(got) > 0 {
		t.Errorf("differences %+v", got)
	}
	b.Held[1].Manifest.Lake = b.Lake
	if got, _ := Reconcile(b, lake); len(got) != 1 || got[0].Window != "run-x/i/5" {
		t.Errorf("differences %+v, want one of the window that lands here", got)
	}
}

func TestRunsHaveTheNumbersBetweenTheirEnds(t *testing.T) {
	r := Runs{{2, 4}, {7, 7}}
	var in []int64
	for n := range int64(9) {
		if r.Has(n) {
			in = append(in, n)
		}
	}
	if !slices.Equal(in, []int64{2, 3, 4, 7}) || (Runs)(nil).Has(1) {
		t.Errorf("it has %v", in)
	}
}
