package pipeline

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// leftovers builds Remains of one lane and one stream, window by window.
type leftovers struct {
	t *testing.T
	*Remains
}

func leftBehind(t *testing.T) *leftovers {
	t.Helper()
	return &leftovers{t, NewRemains()}
}

// ranges reads "a:10-20 b:5-9! c:!" as ranges of shards, of which ! are finished.
func ranges(s string) []Range {
	var rs []Range
	for f := range strings.FieldsSeq(s) {
		shard, bounds, _ := strings.Cut(f, ":")
		bounds, end := strings.CutSuffix(bounds, "!")
		first, last, _ := strings.Cut(bounds, "-")
		rs = append(rs, Range{Shard: ShardID(shard), First: SequenceNumber(first), Last: SequenceNumber(last), End: end})
	}
	return rs
}

func numbered(inc string, n int64) WindowID {
	return WindowID{Lane: "run-readings", Incarnation: inc, N: n}
}

// lake adds a window's parts of an object, of so many in all.
func (l *leftovers) lake(id WindowID, rs string, total int, parts ...int) {
	l.t.Helper()
	o := &ObjectMeta{Format: 1, Table: "readings", Partition: "dt=2026-11-30"}
	w := ObjectWindow{Window: id, Stream: "arn", Contract: "c", Ranges: ranges(rs), PartsTotal: total}
	for _, p := range parts {
		w.Parts = append(w.Parts, ObjectPart{Part: p, Rows: p + 1})
	}
	o.Windows = []ObjectWindow{w}
	if err := l.Object(fmt.Sprintf("%s-%v", id, parts), o); err != nil {
		l.t.Fatal(err)
	}
}

// staged adds parts in staging; the last of total says that it is.
func (l *leftovers) staged(id WindowID, rs string, total int, parts ...int) {
	l.t.Helper()
	for _, p := range parts {
		m := &PartMeta{Format: 1, Window: id, Part: p, Stream: "arn", Contract: "c", Table: "readings", Partition: "dt=2026-11-30", Rows: p + 1, Ranges: ranges(rs), Last: p == total-1}
		if err := l.Part(m); err != nil {
			l.t.Fatal(err)
		}
	}
}

// judged returns the past, with a stream that holds everything from a number on.
func (l *leftovers) judged(holds SequenceNumber) *Past {
	l.t.Helper()
	p, err := l.Judge(
		func(_ StreamShard, seq SequenceNumber) (bool, error) { return seq.Compare(holds) >= 0, nil },
		func(LaneID, string) int64 { return 0 })
	if err != nil {
		l.t.Fatal(err)
	}
	return p
}

// is compares the fates, positions and what is written of the first incarnation.
func (p *Past) is(t *testing.T, fates, positions, life string) {
	t.Helper()
	var got []string
	for _, f := range []Fate{FateWhole, FateStored, FateStaged, FateLost, FateAgain, FateDouble, FateLeft} {
		if n := p.Fates[f]; n > 0 {
			got = append(got, fmt.Sprintf("%s %d", f, n))
		}
	}
	if s := strings.Join(got, ", "); s != fates {
		t.Errorf("fates are %q, want %q", s, fates)
	}
	got = nil
	for _, shard := range []ShardID{"a", "b", "c"} {
		if at, ok := p.Position(StreamShard{"arn", shard}); ok {
			end := ""
			if at.End {
				end = "!"
			}
			got = append(got, fmt.Sprintf("%s:%s%s", shard, at.Seq, end))
		}
	}
	if s := strings.Join(got, " "); s != positions {
		t.Errorf("positions are %q, want %q", s, positions)
	}
	l := p.Lives[0]
	var kept []string
	for _, w := range l.Windows {
		text := fmt.Sprintf("%d of %d, %d in the lake", w.Manifest.Window.N, len(w.Manifest.Parts), len(w.Published))
		if w.Lost {
			text += ", lost"
		}
		kept = append(kept, text)
	}
	if s := fmt.Sprintf("through %d void %v unknown %v kept [%s]", l.Through, l.Void, l.Unknown, strings.Join(kept, "; ")); s != life {
		t.Errorf("the life is %q, want %q", s, life)
	}
}

func TestWhatIsLeftOfWindowsSaysWhatHasBeenRead(t *testing.T) {
	one := func(n int64) WindowID { return numbered("one", n) }
	for _, tt := range []struct {
		name                   string
		left                   func(l *leftovers)
		holds                  SequenceNumber
		fates, positions, life string
	}{
		{"all in the lake", func(l *leftovers) {
			l.lake(one(1), "a:10-19 b:5-5", 2, 0, 1)
			l.lake(one(2), "a:20-29!", 1, 0)
		}, "0", "whole 2", "a:29! b:5", "through 2 void [] unknown [] kept []"},
		{"part in the lake, part in staging", func(l *leftovers) {
			l.lake(one(1), "a:10-19", 2, 1)
			l.staged(one(1), "a:10-19", 2, 0)
		}, "0", "staged 1", "a:19", "through 1 void [] unknown [] kept [1 of 2, 1 in the lake]"},
		{"whole in staging", func(l *leftovers) {
			l.lake(one(1), "a:10-19", 1, 0)
			l.staged(one(2), "a:20-29", 2, 1, 0)
		}, "0", "whole 1, staged 1", "a:29", "through 2 void [] unknown [] kept [2 of 2, 0 in the lake]"},
		{"a copy in staging of what is in the lake", func(l *leftovers) {
			l.lake(one(1), "a:10-19", 1, 0)
			l.staged(one(1), "a:10-19", 1, 0)
		}, "0", "whole 1", "a:19", "through 1 void [] unknown [] kept []"},
		{"a part nowhere, another in the lake", func(l *leftovers) {
			l.lake(one(1), "a:10-19", 2, 1)
		}, "0", "lost 1", "a:19", "through 1 void [] unknown [] kept [1 of 2, 1 in the lake, lost]"},
		{"a part nowhere and none in the lake is read again", func(l *leftovers) {
			l.lake(one(1), "a:10-19", 1, 0)
			l.staged(one(2), "a:20-29! b:5-6", 2, 1)
		}, "0", "whole 1, again 1", "a:19", "through 2 void [2] unknown [] kept []"},
		{"with what follows it", func(l *leftovers) {
			l.lake(one(1), "a:10-19 b:1-4", 1, 0)
			l.staged(one(2), "a:20-29 b:5-6", 2, 1)
			l.staged(one(3), "b:7-9 c:1-2", 1, 0)
			l.staged(one(4), "c:3-4!", 1, 0)
		}, "0", "whole 1, again 3", "a:19 b:4", "through 4 void [2 3 4] unknown [] kept []"},
		{"not if something that follows it is in the lake", func(l *leftovers) {
			l.staged(one(2), "a:20-29", 2, 1)
			l.lake(one(3), "a:30-39", 1, 0)
		}, "0", "whole 1, lost 1", "a:39", "through 3 void [] unknown [[1 1]] kept [2 of 2, 0 in the lake, lost]"},
		{"not if the stream dropped it", func(l *leftovers) {
			l.staged(one(1), "a:20-29", 2, 1)
		}, "21", "lost 1", "a:29", "through 1 void [] unknown [] kept [1 of 2, 0 in the lake, lost]"},
		{"nobody knows how many parts", func(l *leftovers) {
			l.staged(one(1), "a:20-29", 3, 1)
		}, "21", "left 1", "a:29", "through 1 void [] unknown [[1 1]] kept []"},
		{"read again before, by another life", func(l *leftovers) {
			l.staged(one(1), "a:20-29", 1, 0)
			l.lake(numbered("two", 1), "a:20-25", 1, 0)
		}, "0", "whole 1, double 1", "a:25", "through 1 void [1] unknown [] kept []"},
		{"numbers without a trace", func(l *leftovers) {
			l.lake(one(2), "a:20-29", 1, 0)
			l.lake(one(6), "a:60-69", 1, 0)
		}, "0", "whole 2", "a:69", "through 6 void [] unknown [[1 1] [3 5]] kept []"},
		{"the ledger's word", func(l *leftovers) {
			l.staged(one(1), "a:20-29", 2, 0)
			l.staged(one(2), "b:1-2", 1, 0)
			for n, state := range map[int64]WindowState{1: WindowCommitted, 2: WindowVoid} {
				if err := l.Stored(one(n), state, nil); err != nil {
					l.t.Fatal(err)
				}
			}
		}, "0", "stored 1, double 1", "a:29", "through 2 void [2] unknown [] kept []"},
		{"footers that do not say how many", func(l *leftovers) {
			l.lake(one(1), "a:20-29", 0, 0)
		}, "0", "whole 1", "a:29", "through 1 void [] unknown [] kept []"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := leftBehind(t)
			tt.left(l)
			l.judged(tt.holds).is(t, tt.fates, tt.positions, tt.life)
		})
	}
}

func TestAKeptWindowTakesItsPartsAndThoseThatCome(t *testing.T) {
	l := leftBehind(t)
	l.lake(numbered("one", 1), "a:10-19", 1, 0)
	l.lake(numbered("one", 2), "a:20-29", 3, 1)
	l.staged(numbered("one", 2), "a:20-29", 3, 0)
	p := l.judged("0")
	m := p.Lives[0].Windows[0].Manifest
	if m.Shards[0].After != "19" {
		t.Errorf("it follows %q", m.Shards[0].After)
	}
	part := func(i, rows int) *PartMeta {
		return &PartMeta{Window: m.Window, Part: i, Stream: "arn", Contract: "c", Table: "readings", Partition: "dt=2026-11-30", Rows: rows, Ranges: ranges("a:20-29")}
	}
	for i, rows := range []int{1, 2, 77} { // the last was not found
		if err := part(i, rows).Matches(m); err != nil {
			t.Errorf("part %d: %v", i, err)
		}
	}
	for what, p := range map[string]*PartMeta{"other rows": part(0, 2), "a part too many": part(3, 1)} {
		if p.Matches(m) == nil {
			t.Errorf("%s: it matches", what)
		}
	}
	other := part(2, 77)
	other.Ranges = ranges("a:20-30")
	if other.Matches(m) == nil {
		t.Error("other ranges match")
	}
}

func TestALeftWindowIsAGapOfItsRanges(t *testing.T) {
	l := leftBehind(t)
	l.lake(numbered("one", 1), "a:10-19", 1, 0)
	l.staged(numbered("one", 2), "a:20-29 b:!", 3, 0)
	gaps := l.judged("30").Gaps
	if len(gaps) != 1 || gaps[0].After != "19" || gaps[0].First != "20" || gaps[0].Last != "29" || *gaps[0].Window != numbered("one", 2) {
		t.Errorf("gaps %+v", gaps)
	}
}

func TestFootersThatContradictEachOtherNeedAPerson(t *testing.T) {
	l := leftBehind(t)
	l.lake(numbered("one", 1), "a:10-19", 1, 0)
	err := l.Part(&PartMeta{Window: numbered("one", 1), Stream: "arn", Contract: "c", Table: "readings", Ranges: ranges("a:10-20")})
	if err == nil || !strings.Contains(err.Error(), "window run-readings/one/1") {
		t.Errorf("another range: %v", err)
	}
	l.staged(numbered("one", 2), "a:15-25", 1, 0)
	if _, err := l.Judge(func(StreamShard, SequenceNumber) (bool, error) { return true, nil }, func(LaneID, string) int64 { return 0 }); err == nil {
		t.Error("two windows of one life took the same records")
	}
	if ids := l.IDs(); !slices.Equal(ids, []WindowID{numbered("one", 1), numbered("one", 2)}) {
		t.Errorf("windows %v", ids)
	}
}
