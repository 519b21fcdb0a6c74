package pipeline

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Remains are what is found of a table's windows in its lake and in staging, and what the ledger
// still knows. From them alone it can be told up to where the shards have been read.
//
// The rule: whatever has a part in the lake has been read, since a record that was read twice would
// be there twice. What is only in staging has been read if it is whole there. What is not whole and
// of which nothing is in the lake is read again, with all that follows it in its shards, if the
// stream still holds it; its parts are given up first. Whatever else is missing is a gap.
type Remains struct {
	windows map[WindowID]*found
}

// found is what there is of one window.
type found struct {
	id       WindowID
	stream   string
	contract string
	ranges   []Range
	total    int // parts; 0 unknown
	lake     map[int]lakePart
	staged   map[int]PartSpec
	stored   WindowState // what the ledger says; "" if nothing
	fate     Fate
}

type lakePart struct {
	name string
	spec PartSpec
}

// Fate is what becomes of a window of the past.
type Fate string

// Fates.
const (
	FateWhole  Fate = "whole"  // all of it is in the lake
	FateStaged Fate = "staged" // what is not in the lake is in staging: seal finishes it
	FateLost   Fate = "lost"   // parts of it were found nowhere: its gaps are open until they come
	FateAgain  Fate = "again"  // nothing is in the lake: given up, and its records are read again
	FateDouble Fate = "double" // its records were read again before, and are in other windows: given up
	FateLeft   Fate = "left"   // how many parts it has is not known: what there is stays in staging, with a gap
	FateStored Fate = "stored" // the ledger knows it
)

// NewRemains returns Remains of nothing.
func NewRemains() *Remains { return &Remains{windows: map[WindowID]*found{}} }

// Object adds a lake object of that name. An object that holds parts of no window is none.
func (r *Remains) Object(name string, m *ObjectMeta) error {
	for _, w := range m.Windows {
		f, err := r.of(w.Window, w.Stream, w.Contract, w.Ranges)
		if err != nil {
			return fmt.Errorf("lake object %s: %w", name, err)
		}
		f.total = max(f.total, w.PartsTotal)
		for _, p := range w.Parts {
			f.lake[p.Part] = lakePart{name, PartSpec{m.Table, m.Partition, p.Rows}}
		}
	}
	return nil
}

// Part adds a part of a staging object.
func (r *Remains) Part(m *PartMeta) error {
	f, err := r.of(m.Window, m.Stream, m.Contract, m.Ranges)
	if err != nil {
		return err
	}
	if m.Last {
		f.total = max(f.total, m.Part+1)
	}
	f.staged[m.Part] = PartSpec{m.Table, m.Partition, m.Rows}
	return nil
}

// Stored adds what the ledger says of a window; its manifest may be nil.
func (r *Remains) Stored(id WindowID, state WindowState, m *Manifest) error {
	if m != nil {
		if _, err := r.of(id, m.Stream, m.Contract, m.Ranges()); err != nil {
			return err
		}
	}
	if f := r.windows[id]; f != nil && state != WindowUnknown {
		f.stored = state
	}
	return nil
}

// IDs lists the windows, in order.
func (r *Remains) IDs() []WindowID {
	ids := slices.Collect(maps.Keys(r.windows))
	slices.SortFunc(ids, func(a, b WindowID) int {
		return cmp.Or(cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Incarnation, b.Incarnation), cmp.Compare(a.N, b.N))
	})
	return ids
}

// Settled reports whether all of a window is in the lake, and nothing of it in staging: no more need
// be known of it.
func (r *Remains) Settled(id WindowID) bool {
	f := r.windows[id]
	return f != nil && len(f.staged) == 0 && f.inLake()
}

func (r *Remains) of(id WindowID, stream, contract string, ranges []Range) (*found, error) {
	f := r.windows[id]
	if f == nil {
		f = &found{id: id, stream: stream, contract: contract, ranges: ranges, lake: map[int]lakePart{}, staged: map[int]PartSpec{}}
		r.windows[id] = f
		return f, nil
	}
	if f.stream != stream || f.contract != contract || !slices.Equal(f.ranges, ranges) {
		return nil, NeedPerson(fmt.Errorf("window %s is of %s with ranges %v in one place, and of %s with %v in another", id, f.stream, f.ranges, stream, ranges),
			"find out which of the two streamer did not write, and move it away")
	}
	return f, nil
}

// inLake reports whether every part is in the lake. Where it was not written down how many there
// are, those found in the lake are taken for all.
func (f *found) inLake() bool {
	if f.total == 0 {
		return len(f.lake) > 0 && len(f.staged) == 0
	}
	return len(f.lake) >= f.total
}

// whole reports whether every part is somewhere.
func (f *found) whole() bool {
	n := f.parts()
	for i := range n {
		_, lake := f.lake[i]
		if _, staged := f.staged[i]; !lake && !staged {
			return false
		}
	}
	return f.total > 0 || len(f.lake) > 0
}

// parts is how many there are, as far as is known.
func (f *found) parts() int {
	n := f.total
	for i := range f.lake {
		n = max(n, i+1)
	}
	for i := range f.staged {
		n = max(n, i+1)
	}
	return n
}

// fixed reports whether the window's records must not be read again.
func (f *found) fixed() bool {
	return len(f.lake) > 0 || f.stored != "" && f.stored != WindowVoid
}

// A StreamShard is a shard of one stream: another may have one of that name.
type StreamShard struct {
	Stream string
	Shard  ShardID
}

// A KeptWindow is a window that is written into the ledger again.
type KeptWindow struct {
	Manifest  *Manifest
	Published map[int]string // lake objects of its parts, by index
	Lost      bool
}

// A Life is what is told of one incarnation of a lane.
type Life struct {
	Lane        LaneID
	Incarnation string
	Through     int64 // the highest number found
	Windows     []KeptWindow
	Void        []int64
	Unknown     [][2]int64 // numbers of which nothing was found, first and last
}

// A Past is what Remains come to.
type Past struct {
	Lives []Life
	Fates map[Fate]int
	// Taken are the ranges that have been read, in order, and Again where reading begins again before
	// some that were found.
	Taken map[StreamShard][]Range
	Again map[StreamShard]SequenceNumber
	Gaps  []Gap // of windows that are left
}

// Position is up to where a shard has been read; false if nothing of it was found.
func (p *Past) Position(s StreamShard) (Position, bool) {
	var at Position
	for _, r := range p.Taken[s] {
		if r.Last.Compare(at.Seq) > 0 {
			at.Seq = r.Last
		}
		at.End = at.End || r.End
	}
	if _, again := p.Again[s]; again {
		at.End = false
	}
	return at, len(p.Taken[s]) > 0
}

// Judge decides each window's fate. Readable reports whether the stream still holds a record;
// watermark up to where the ledger knows that all of an incarnation is in the lake.
func (r *Remains) Judge(readable func(StreamShard, SequenceNumber) (bool, error), watermark func(LaneID, string) int64) (*Past, error) {
	byShard := map[StreamShard][]*found{}
	for _, id := range r.IDs() {
		f := r.windows[id]
		for _, rg := range f.ranges {
			s := StreamShard{f.stream, rg.Shard}
			byShard[s] = append(byShard[s], f)
		}
	}
	if err := r.settle(byShard); err != nil {
		return nil, err
	}
	for _, id := range r.IDs() {
		f := r.windows[id]
		if f.fate != "" {
			continue
		}
		again, err := readAgain(f, byShard, readable)
		switch {
		case err != nil:
			return nil, err
		case again != nil:
			for _, a := range again {
				a.fate = FateAgain
			}
		case f.total == 0:
			f.fate = FateLeft
		default:
			f.fate = FateLost
		}
	}
	return r.past(watermark), nil
}

// settle decides what needs no look at the stream.
func (r *Remains) settle(byShard map[StreamShard][]*found) error {
	for _, id := range r.IDs() {
		f := r.windows[id]
		switch {
		case f.stored == WindowVoid && len(f.lake) == 0:
			f.fate = FateDouble
		case f.stored != "":
			f.fate = FateStored
		case f.inLake():
			f.fate = FateWhole
		case len(f.lake) > 0 && f.whole():
			f.fate = FateStaged
		case len(f.lake) > 0:
			f.fate = FateLost
		}
	}
	for _, id := range r.IDs() {
		f := r.windows[id]
		if f.fate != "" {
			continue
		}
		o := overlapping(f, byShard)
		switch {
		case o != nil && o.id.Lane == f.id.Lane && o.id.Incarnation == f.id.Incarnation:
			return NeedPerson(fmt.Errorf("windows %s and %s took the same records", f.id, o.id), "do not go on; report both windows")
		case o != nil:
			f.fate = FateDouble
		case f.whole():
			f.fate = FateStaged
		}
	}
	return nil
}

// overlapping finds a window that is kept and took records that f took.
func overlapping(f *found, byShard map[StreamShard][]*found) *found {
	for _, a := range f.ranges {
		if a.First == "" {
			continue
		}
		for _, o := range byShard[StreamShard{f.stream, a.Shard}] {
			if o == f || o.fate == "" || o.fate == FateDouble {
				continue
			}
			for _, b := range o.ranges {
				if b.Shard == a.Shard && b.First != "" && b.First.Compare(a.Last) <= 0 && a.First.Compare(b.Last) <= 0 {
					return o
				}
			}
		}
	}
	return nil
}

// readAgain returns f with all windows that follow it in its shards, if all of that can be read
// again; nil if not.
func readAgain(f *found, byShard map[StreamShard][]*found, readable func(StreamShard, SequenceNumber) (bool, error)) ([]*found, error) {
	again := []*found{f}
	from := map[StreamShard]SequenceNumber{}
	for i := 0; i < len(again); i++ {
		for _, a := range again[i].ranges {
			s := StreamShard{f.stream, a.Shard}
			if a.First != "" && (from[s] == "" || a.First.Compare(from[s]) < 0) {
				from[s] = a.First
			}
			for _, o := range byShard[s] {
				if slices.Contains(again, o) || o.fate == FateDouble || o.fate == FateAgain || !follows(o, a) {
					continue
				}
				if o.fixed() {
					return nil, nil
				}
				again = append(again, o)
			}
		}
	}
	for s, seq := range from {
		if ok, err := readable(s, seq); err != nil || !ok {
			return nil, err
		}
	}
	return again, nil
}

// follows reports whether o took records, or the end, behind a range.
func follows(o *found, a Range) bool {
	return slices.ContainsFunc(o.ranges, func(b Range) bool {
		return b.Shard == a.Shard && (b.First == "" && b.End || a.First != "" && b.First.Compare(a.First) > 0)
	})
}

func (r *Remains) past(watermark func(LaneID, string) int64) *Past {
	p := &Past{Fates: map[Fate]int{}, Taken: map[StreamShard][]Range{}, Again: map[StreamShard]SequenceNumber{}}
	for _, id := range r.IDs() {
		f := r.windows[id]
		p.Fates[f.fate]++
		for _, rg := range f.ranges {
			s := StreamShard{f.stream, rg.Shard}
			switch f.fate {
			case FateDouble:
			case FateAgain:
				if was := p.Again[s]; rg.First != "" && (was == "" || rg.First.Compare(was) < 0) {
					p.Again[s] = rg.First
				} else if was == "" {
					p.Again[s] = ""
				}
			default:
				p.Taken[s] = append(p.Taken[s], rg)
			}
		}
	}
	for _, rs := range p.Taken {
		slices.SortFunc(rs, func(a, b Range) int { return cmp.Or(a.First.Compare(b.First), a.Last.Compare(b.Last)) })
	}
	for _, id := range r.IDs() {
		f := r.windows[id]
		if n := len(p.Lives); n == 0 || p.Lives[n-1].Lane != id.Lane || p.Lives[n-1].Incarnation != id.Incarnation {
			p.Lives = append(p.Lives, Life{Lane: id.Lane, Incarnation: id.Incarnation, Through: watermark(id.Lane, id.Incarnation)})
		}
		l := &p.Lives[len(p.Lives)-1]
		if id.N > l.Through+1 {
			l.Unknown = append(l.Unknown, [2]int64{l.Through + 1, id.N - 1})
		}
		if id.N > l.Through && f.fate == FateLeft {
			l.Unknown = append(l.Unknown, [2]int64{id.N, id.N})
		}
		l.Through = max(l.Through, id.N)
		switch f.fate {
		case FateAgain, FateDouble:
			l.Void = append(l.Void, id.N)
		case FateStaged, FateLost:
			l.Windows = append(l.Windows, f.kept(p))
		case FateLeft:
			p.Gaps = append(p.Gaps, f.gaps(p)...)
		}
	}
	return p
}

// before is the last record of a shard that was read before one.
func (p *Past) before(s StreamShard, seq SequenceNumber) SequenceNumber {
	var last SequenceNumber
	for _, r := range p.Taken[s] {
		if r.Last.Compare(seq) < 0 && r.Last.Compare(last) > 0 {
			last = r.Last
		}
	}
	return last
}

func (f *found) kept(p *Past) KeptWindow {
	m := &Manifest{Format: FormatVersion, Layout: LayoutVersion, Window: f.id, Stream: f.stream, Contract: f.contract, Rebuilt: true}
	for _, rg := range f.ranges {
		s := ShardRange{Range: rg}
		if rg.First != "" {
			s.After = p.before(StreamShard{f.stream, rg.Shard}, rg.First)
		}
		m.Shards = append(m.Shards, s)
	}
	k := KeptWindow{Manifest: m, Published: map[int]string{}, Lost: f.fate == FateLost}
	for i := range f.parts() {
		spec := f.staged[i]
		if l, ok := f.lake[i]; ok {
			spec, k.Published[i] = l.spec, l.name
		}
		m.Parts = append(m.Parts, spec)
	}
	return k
}

func (f *found) gaps(p *Past) []Gap {
	var gaps []Gap
	for _, rg := range f.ranges {
		if rg.First != "" {
			gaps = append(gaps, Gap{
				Missing: Missing{Cause: GapRebuilt}, Stream: f.stream, Shard: rg.Shard, Window: &f.id,
				After: p.before(StreamShard{f.stream, rg.Shard}, rg.First), First: rg.First, Last: rg.Last,
			})
		}
	}
	return gaps
}
