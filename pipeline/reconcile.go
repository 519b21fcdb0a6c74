package pipeline

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Runs are rising, disjoint runs of window numbers, each from its first to its last.
type Runs [][2]int64

// Has reports whether n is in one of the runs.
func (r Runs) Has(n int64) bool {
	_, ok := slices.BinarySearchFunc(r, n, func(run [2]int64, n int64) int {
		switch {
		case run[1] < n:
			return -1
		case run[0] > n:
			return 1
		}
		return 0
	})
	return ok
}

// A LaneLife is one incarnation of a lane in the ledger.
type LaneLife struct {
	Lane        LaneID
	Incarnation string
	Watermark   int64 // every window up to it is folded, unless the ledger holds it
	Void        Runs  // of these, given up
	Unknown     Runs  // of these, nothing is known
}

// A Held is a window that a ledger holds: it is not folded.
type Held struct {
	State    WindowState
	Manifest *Manifest
	Claims   []Claim // of its parts; none of a window that is sealed or void
}

// A Books is what the ledger says of the windows whose parts are in a lake.
type Books struct {
	Lake  string // name of the lake, as in Manifest.Lake
	Lives []LaneLife
	Held  []Held
}

// A Sealed is an object of the lake.
type Sealed struct {
	Key  string
	Rows int64 // as the file itself counts them
	Meta *ObjectMeta
}

// A Difference is where manifest, ledger and lake disagree. Object or Window may be empty.
type Difference struct {
	Object  string `json:"object"`
	Window  string `json:"window"`
	Problem string `json:"problem"`
}

// Counted is what a reconciliation looked at.
type Counted struct {
	Objects int   `json:"lake_objects"`
	Rows    int64 `json:"lake_rows"`
	Parts   int   `json:"parts_in_lake"`
	Held    int   `json:"windows_held"`   // by the ledger
	Folded  int   `json:"windows_folded"` // of which the lake has parts
}

// Reconcile compares what a ledger, the manifests in it and the lake say of windows: each part is in
// the lake at most once, with the rows of its manifest, where the ledger has it; and what the ledger
// calls published, sealed or folded is there. Of a window that is folded the lake's own footers say
// how many parts it has.
//
// What is written meanwhile can make a difference of one reading of the ledger: take those that two
// have, one from before and one from after the reading of the lake.
func Reconcile(b Books, lake []Sealed) ([]Difference, Counted) {
	r := reconciler{b: b, lives: map[WindowID]*LaneLife{}, held: map[WindowID]*Held{}, found: map[WindowID]map[int]string{}, total: map[WindowID]int{}}
	for i, l := range b.Lives {
		r.lives[WindowID{Lane: l.Lane, Incarnation: l.Incarnation}] = &b.Lives[i]
	}
	for i, h := range b.Held {
		r.held[h.Manifest.Window] = &b.Held[i]
	}
	for _, o := range lake {
		r.object(o)
	}
	r.n.Held = len(b.Held)
	for _, h := range b.Held {
		r.window(h)
	}
	for _, id := range slices.SortedFunc(maps.Keys(r.found), compareWindows) {
		r.folded(id)
	}
	return r.out, r.n
}

func compareWindows(a, b WindowID) int {
	return cmp.Or(cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Incarnation, b.Incarnation), cmp.Compare(a.N, b.N))
}

type reconciler struct {
	b     Books
	lives map[WindowID]*LaneLife // by lane and incarnation
	held  map[WindowID]*Held
	found map[WindowID]map[int]string // object by part
	total map[WindowID]int            // parts, as the lake says
	n     Counted
	out   []Difference
}

func (r *reconciler) say(object string, w WindowID, format string, args ...any) {
	d := Difference{Object: object, Problem: fmt.Sprintf(format, args...)}
	if w.Lane != "" {
		d.Window = w.String()
	}
	r.out = append(r.out, d)
}

func (r *reconciler) object(o Sealed) {
	r.n.Objects++
	r.n.Rows += o.Rows
	m := o.Meta
	sum := 0
	for _, w := range m.Windows {
		r.total[w.Window] = max(r.total[w.Window], w.PartsTotal)
		for _, p := range w.Parts {
			sum += p.Rows
			r.part(o, w, p)
		}
	}
	if o.Rows != int64(m.Rows) || sum != m.Rows {
		r.say(o.Key, WindowID{}, "it has %d rows, its footer says %d, and the parts that it lists have %d", o.Rows, m.Rows, sum)
	}
	if !strings.HasPrefix(o.Key, m.Table+"/"+m.Partition+"/") {
		r.say(o.Key, WindowID{}, "it lies outside of %s/%s, which its rows are of", m.Table, m.Partition)
	}
}

func (r *reconciler) part(o Sealed, w ObjectWindow, p ObjectPart) {
	r.n.Parts++
	id := w.Window
	if r.found[id] == nil {
		r.found[id] = map[int]string{}
	}
	if other, twice := r.found[id][p.Part]; twice {
		r.say(o.Key, id, "part %d is in the lake twice, also in %s", p.Part, other)
		return
	}
	r.found[id][p.Part] = o.Key
	h := r.held[id]
	if h == nil {
		return
	}
	meta := PartMeta{
		Window: id, Part: p.Part, Stream: w.Stream, Contract: w.Contract, Table: o.Meta.Table, Partition: o.Meta.Partition, Rows: p.Rows, Ranges: w.Ranges,
	}
	if err := meta.Matches(h.Manifest); err != nil {
		r.say(o.Key, id, "%v", err)
		return
	}
	i := slices.IndexFunc(h.Claims, func(c Claim) bool { return c.Part.Index == p.Part })
	switch {
	case i >= 0 && h.Claims[i].Void:
		r.say(o.Key, id, "part %d is in the lake, and the ledger has it as given up", p.Part)
	case i >= 0 && h.Claims[i].Name != o.Key:
		r.say(o.Key, id, "part %d is in the lake here, and the ledger has it in %s", p.Part, h.Claims[i].Name)
	case i < 0 && h.Manifest.Lake == "" && (h.State == WindowCommitted || h.State == WindowPending):
		r.say(o.Key, id, "part %d is in the lake, and the ledger has no claim on it", p.Part)
	}
}

// window looks for what the ledger says is in the lake of a window that it holds.
func (r *reconciler) window(h Held) {
	m := h.Manifest
	if m.Lake != "" && m.Lake != r.b.Lake {
		return
	}
	for _, c := range h.Claims {
		if c.Published && r.found[m.Window][c.Part.Index] == "" {
			r.say(c.Name, m.Window, "the ledger has part %d of %d rows in it, and no object of the lake lists that", c.Part.Index, rowsOf(m, c.Part.Index))
		}
	}
	if h.State != WindowSealed {
		return
	}
	for i, p := range m.Parts {
		published := slices.ContainsFunc(h.Claims, func(c Claim) bool { return c.Part.Index == i })
		if r.found[m.Window][i] == "" && !published {
			r.say(p.Table+"/"+p.Partition+"/", m.Window, "the window is sealed, and part %d of %d rows is in no object of the lake", i, p.Rows)
		}
	}
}

func rowsOf(m *Manifest, part int) int {
	if part < 0 || part >= len(m.Parts) {
		return 0
	}
	return m.Parts[part].Rows
}

// folded judges a window that the lake has parts of and the ledger does not hold.
func (r *reconciler) folded(id WindowID) {
	if r.held[id] != nil {
		return
	}
	first := slices.Min(slices.Collect(maps.Values(r.found[id])))
	l := r.lives[WindowID{Lane: id.Lane, Incarnation: id.Incarnation}]
	switch {
	case l == nil:
		r.say(first, id, "parts of the window are in the lake, and the ledger knows no such life of its lane")
		return
	case id.N > l.Watermark:
		r.say(first, id, "parts of the window are in the lake, and the ledger never began it")
		return
	case l.Unknown.Has(id.N):
		r.say(first, id, "parts of the window are in the lake, and the ledger knows nothing of it")
		return
	}
	r.n.Folded++
	have, total := len(r.found[id]), r.total[id]
	if total > 0 && (have > total || have < total && !l.Void.Has(id.N)) {
		r.say(first, id, "the window is folded, and %d of its %d parts are in the lake", have, total)
	}
}
