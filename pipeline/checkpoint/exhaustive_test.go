package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"math/bits"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/pipelinetest"
)

// What the exhaustive test explores: every order in which the steps of writers and seals can
// happen, on the real code of this package. A process is a program of phases; a phase is run from
// its beginning each time, with the answers that it had so far, and is put to sleep at the next
// request. So a state of the system is a value: the table, staging, the lake, and what each
// process has been told. No process needs a goroutine of its own, and to go back to a state is to
// keep it. That a process dies is that it never takes another step.

// A universe is one state of the system.
type universe struct {
	*shared
	procs []*proc
}

// What is shared is seen by all processes. It is never changed once it has its name.
type shared struct {
	name    name
	table   map[string]memItem
	staging map[string][]pipeline.PartID // object by name, its parts in order
	lake    map[string][]pipeline.PartID
	landed  map[int64]int  // landings of each window
	copies  int            // deliveries again that may still happen
	losses  int            // answers that may still be lost
	jumps   int            // times that the clock may still go on by more than what Firehose holds data
	late    int            // times that it did
	notes   map[string]int // what the scene remembers of the past

	wrong    string // what is wrong with it; "" if nothing is
	finished bool
}

// A proc is where a process is.
type proc struct {
	name  name
	phase string
	mem   recall
	told  []told // since the phase began
}

// A told is one answer: of the table, or of a step of the test's own.
type told struct {
	status int
	body   string
	lost   bool
}

// A name tells states apart: equal ones have the same, whichever way they came about.
type name [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func nameOf(parts ...string) name {
	text := strings.Join(parts, "\x00")
	return name{maphash.String(seeds[0], text), maphash.String(seeds[1], text)}
}

func (u *shared) setName() {
	var parts []string
	for k, it := range u.table {
		var b strings.Builder
		b.WriteString(k)
		for _, attribute := range slices.Sorted(maps.Keys(it)) {
			fmt.Fprintf(&b, "|%s=%s", attribute, it[attribute].text)
		}
		parts = append(parts, b.String())
	}
	for k, ids := range u.staging {
		parts = append(parts, fmt.Sprint("staging ", k, ids))
	}
	for k, ids := range u.lake {
		parts = append(parts, fmt.Sprint("lake ", k, ids))
	}
	for n, times := range u.landed {
		parts = append(parts, fmt.Sprint("landed ", n, times))
	}
	slices.Sort(parts)
	u.name = nameOf(append(parts, fmt.Sprint(u.copies, u.losses, u.jumps, u.late, u.notes))...)
}

func (p *proc) setName() {
	b, err := json.Marshal(p.mem)
	if err != nil {
		panic(err)
	}
	p.name = nameOf(p.phase, string(b), fmt.Sprint(p.told))
}

func (u *shared) clone() *shared {
	v := *u
	v.table, v.staging, v.lake, v.landed = maps.Clone(u.table), maps.Clone(u.staging), maps.Clone(u.lake), maps.Clone(u.landed)
	v.notes = maps.Clone(u.notes)
	return &v
}

// deliverAgain joins all that was landed so far to another object in staging, with the first part
// twice.
func (x *machine) deliverAgain(u universe) universe {
	v := u.shared.clone()
	v.copies--
	var parts []pipeline.PartID
	for n := int64(1); v.landed[n] > 0; n++ {
		parts = append(parts, partsOf(x.windows[n])...)
	}
	v.staging[fmt.Sprintf("again%d", v.copies)] = append(parts, parts[0])
	v.setName()
	return universe{x.known(v), u.procs}
}

// known is the one of its name that is kept, judged.
func (x *machine) known(v *shared) *shared {
	x.mu.Lock()
	defer x.mu.Unlock()
	if same := x.parts[v.name]; same != nil {
		return same
	}
	v.wrong, v.finished = x.judged(v, x.windows)
	x.parts[v.name] = v
	return v
}

func (u universe) phases() string {
	var at []string
	for _, p := range u.procs {
		at = append(at, p.phase)
	}
	return strings.Join(at, ", ")
}

var errAsleep = errors.New("the process is put to sleep here")

// An execution is one step of one process.
type execution struct {
	u     *shared
	at    int // answers of the past that were used
	told  []told
	gone  bool // copies can be gone that were claimed
	fresh int  // requests that took effect in this step
	fine  bool // a fold is as many steps as it makes requests
	whole bool // the phase is one step, however many requests it makes
	lose  bool // the answer of the request is lost
	slept bool
}

// ask is one request: answered from the past, or by do, or the process is put to sleep.
func (e *execution) ask(do func() (int, string)) (told, error) {
	if e.at == len(e.told) {
		if e.fresh > 0 && !e.whole {
			e.slept = true
			return told{}, errAsleep
		}
		status, body := do()
		e.fresh++
		a := told{status: status, body: body}
		if e.lose {
			a, e.lose = told{lost: true}, false
			e.u.losses--
		}
		e.told = append(e.told, a)
	}
	a := e.told[e.at]
	e.at++
	if a.lost {
		return a, errCut
	}
	return a, nil
}

// own is a step of the test's own: staging and lake.
func (e *execution) own(do func() any) (string, error) {
	a, err := e.ask(func() (int, string) {
		b, err := json.Marshal(do())
		if err != nil {
			panic(err)
		}
		return 0, string(b)
	})
	return a.body, err
}

// A gate carries the requests of one process to the table of the state that is explored.
type gate struct {
	e    *execution
	off  func(*memRequest)              // switches a rule off; nil: all are on
	heed func(*shared, memRequest, int) // sees each request and its status; may be nil
}

func (g *gate) Do(r *http.Request) (*http.Response, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	a, err := g.e.ask(func() (int, string) {
		var in memRequest
		if err := json.Unmarshal(text, &in); err != nil {
			panic(err)
		}
		if g.off != nil {
			g.off(&in)
		}
		_, op, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
		status, out := (&memTable{items: g.e.u.table}).serve(op, in)
		if g.heed != nil {
			g.heed(g.e.u, in, status)
		}
		b, err := json.Marshal(out)
		if err != nil {
			panic(err)
		}
		return status, string(b)
	})
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r, Header: http.Header{"Content-Type": {"application/x-amz-json-1.0"}},
		Body: io.NopCloser(strings.NewReader(a.body)), ContentLength: int64(len(a.body)),
	}, nil
}

// A model is what is explored, and what was found out: a step depends on the process and on what
// is shared, and not on where the other processes are.
type model struct {
	windows map[int64]*pipeline.Manifest // all that can be: the first record of each shard, then the rest
	writers int                          // processes that are writers; the others are seals, which are all alike
	off     func(*memRequest)            // switches a rule off; nil: all are on
	heed    func(*shared, memRequest, int)
	fine    bool // folds are not one step
	gone    bool // seals look for claims whose copies are gone
	// judged says what is wrong with a state, and whether nothing is left to do in it.
	judged func(*shared, map[int64]*pipeline.Manifest) (wrong string, finished bool)

	mu    sync.Mutex
	taken map[stepKey]*taken
	parts map[name]*shared
}

type stepKey struct {
	who      int
	proc, in name
	lose     bool
}

// A taken is where a step led.
type taken struct {
	shared *shared
	proc   *proc
}

// A machine runs the steps of all processes, one at a time: a worker of the search has one.
type machine struct {
	*model
	stores []*Store
	gates  []*gate
}

func newMachine(m *model, procs int) *machine {
	x := &machine{model: m}
	for i := range procs {
		g := &gate{off: m.off, heed: m.heed}
		x.gates = append(x.gates, g)
		x.stores = append(x.stores, newMemTable().store(g, Options{
			Now: func() time.Time {
				if g.e == nil {
					return today
				}
				return today.Add(time.Duration(g.e.u.late) * (GiveUpAfter + time.Hour))
			},
			Rand: bytes.NewReader(bytes.Repeat([]byte{byte(i + 1)}, 1<<16)),
		}))
	}
	return x
}

// step lets process i take its next step.
func (x *machine) step(u universe, i int, lose bool) (universe, error) {
	k := stepKey{min(i, x.writers), u.procs[i].name, u.shared.name, lose}
	x.mu.Lock()
	r := x.taken[k]
	x.mu.Unlock()
	if r == nil {
		var err error
		if r, err = x.run(u, i, lose); err != nil {
			return u, err
		}
		r.shared = x.known(r.shared)
		x.mu.Lock()
		x.taken[k] = r
		x.mu.Unlock()
	}
	v := universe{r.shared, slices.Clone(u.procs)}
	v.procs[i] = r.proc
	return v, nil
}

func (x *machine) run(u universe, i int, lose bool) (*taken, error) {
	p := *u.procs[i]
	e := &execution{u: u.shared.clone(), told: slices.Clone(p.told), lose: lose, fine: x.fine, gone: x.gone}
	x.gates[i].e = e
	for e.fresh == 0 && p.phase != "stop" {
		e.at = 0
		mem := p.mem.clone()
		next, err := mem.run(p.phase, e, x.stores[i])
		if e.slept {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("process %d, %s: %w", i, p.phase, err)
		}
		p.phase, p.mem, e.told = next, mem, nil
	}
	p.told = e.told
	p.setName()
	e.u.setName()
	return &taken{e.u, &p}, nil
}

// successors are the states that one step leads to.
func (x *machine) successors(u universe) ([]universe, error) {
	var out []universe
	for i, p := range u.procs {
		if p.phase == "stop" {
			continue
		}
		for _, lose := range []bool{false, true} {
			if lose && u.losses == 0 {
				continue
			}
			v, err := x.step(u, i, lose)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
	}
	if u.copies > 0 && u.landed[1] > 0 {
		out = append(out, x.deliverAgain(u))
	}
	if u.jumps > 0 {
		v := u.shared.clone()
		v.jumps, v.late = v.jumps-1, v.late+1
		v.setName()
		out = append(out, universe{x.known(v), u.procs})
	}
	return out, nil
}

// key is the name of the whole state. Seals change places: one is as good as the other.
func (m *model) key(u universe) name {
	k := u.shared.name
	mix := func(i uint64, n name) {
		k[0] = bits.RotateLeft64((k[0]^n[0])*0x9E3779B97F4A7C15+i, 29)
		k[1] = bits.RotateLeft64((k[1]^n[1])*0xC2B2AE3D27D4EB4F+i, 31)
	}
	for i, p := range u.procs[:m.writers] {
		mix(uint64(i), p.name)
	}
	seals := slices.Clone(u.procs[m.writers:])
	slices.SortFunc(seals, func(a, b *proc) int { return cmp.Compare(a.name[0], b.name[0]) })
	for _, p := range seals {
		mix(99, p.name)
	}
	return k
}

// A search visits every state that can be reached.
type search struct {
	*model
	index    map[name]int32
	from, to []int32 // steps
	goals    []int32
	wrong    string // what is wrong with the first state that is
}

type visit struct {
	id int32
	u  universe
}

// explore visits every state that can be reached from start, until one is wrong: something is lost
// or doubled in it, or a process meets what it must not, or the end cannot be reached from it.
func explore(m *model, start universe) *search {
	s := &search{model: m, index: map[name]int32{}}
	level := s.add(nil, -1, start)
	for len(level) > 0 && s.wrong == "" {
		level = s.level(level)
	}
	if n := 0; s.wrong == "" {
		if n = s.stuck(); n > 0 {
			s.wrong = fmt.Sprintf("from %d of %d states the end cannot be reached", n, len(s.index))
		}
	}
	return s
}

// stuck counts the states from which the end cannot be reached: it walks back from the ends.
func (s *search) stuck() int {
	// The steps that lead to state i are back[start[i]:start[i+1]].
	start, back := make([]int32, len(s.index)+1), make([]int32, len(s.to))
	for _, to := range s.to {
		start[to+1]++
	}
	for i := range len(s.index) {
		start[i+1] += start[i]
	}
	at := slices.Clone(start)
	for i, to := range s.to {
		back[at[to]] = s.from[i]
		at[to]++
	}
	reached, n := make([]bool, len(s.index)), 0
	for next := s.goals; len(next) > 0; {
		id := next[len(next)-1]
		next = next[:len(next)-1]
		if !reached[id] {
			reached[id] = true
			n++
			next = append(next, back[start[id]:start[id+1]]...)
		}
	}
	return len(s.index) - n
}

// add notes a step, and appends the state to those to visit if it is new.
func (s *search) add(to []visit, from int32, u universe) []visit {
	k := s.key(u)
	id, known := s.index[k]
	if !known {
		id = int32(len(s.index))
		s.index[k] = id
		if u.wrong != "" && s.wrong == "" {
			s.wrong = fmt.Sprintf("state %d: %s; processes are at %s", id, u.wrong, u.phases())
		}
		if u.finished {
			s.goals = append(s.goals, id)
		}
		to = append(to, visit{id, u})
	}
	if from >= 0 {
		s.from, s.to = append(s.from, from), append(s.to, id)
	}
	return to
}

// level visits states and returns those that are new behind them.
func (s *search) level(now []visit) []visit {
	const workers = 2
	found, failed := make([][]visit, workers), make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			x := newMachine(s.model, len(now[0].u.procs))
			for i := w; i < len(now); i += workers {
				next, err := x.successors(now[i].u)
				if err != nil {
					failed[w] = err
					return
				}
				for _, v := range next {
					found[w] = append(found[w], visit{now[i].id, v})
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		s.wrong = err.Error()
		return nil
	}
	var next []visit
	for _, f := range found {
		for _, v := range f {
			next = s.add(next, v.id, v.u)
		}
	}
	return next
}

// began is a stream of two shards of whose first records a writer has begun a window: it sleeps
// before it lands them, and is the zombie that wakes up at any time later, or never.
func began(t *testing.T, writers, seals int) (*model, universe) {
	t.Helper()
	table := newMemTable()
	sh := &shared{notes: map[string]int{}, table: table.items, staging: map[string][]pipeline.PartID{}, lake: map[string][]pipeline.PartID{}, landed: map[int64]int{}}
	s := table.store(nil, Options{Now: func() time.Time { return today }, Rand: bytes.NewReader(bytes.Repeat([]byte{1}, 1<<10))})
	for id := range records {
		_, err := s.Shards(arn, pipelinetest.Lane, Run).Own(t.Context(), pipeline.Shard{ID: id})
		works(t, "own", err)
	}
	zombie := recall{}
	for _, phase := range []string{"open", "read", "begin"} {
		if _, err := zombie.run(phase, &execution{u: sh, whole: true}, s); err != nil {
			t.Fatal(err)
		}
	}
	procs := []*proc{{phase: "land", mem: zombie}}
	for range writers {
		procs = append(procs, &proc{phase: "open"})
	}
	for range seals {
		procs = append(procs, &proc{phase: "pick"})
	}
	for _, p := range procs {
		p.setName()
	}
	first := zombie.M
	second := *first
	second.Window.N = 2
	second.Shards = []pipeline.ShardRange{{Range: pipeline.Range{Shard: "a", First: "2", Last: "2"}, After: "1"}}
	second.Parts = []pipeline.PartSpec{{Table: "readings", Partition: "a-2", Rows: 1}}
	return &model{
		windows: map[int64]*pipeline.Manifest{1: first, 2: &second}, writers: writers + 1, judged: (*shared).judge,
		taken: map[stepKey]*taken{}, parts: map[name]*shared{},
	}, universe{sh, procs}
}

// A scene is how many take part.
type scene struct{ writers, seals, copies, losses int }

func (c scene) explore(t *testing.T, off func(*memRequest)) *search {
	t.Helper()
	m, u := began(t, c.writers, c.seals)
	m.off = off
	u.copies, u.losses = c.copies, c.losses
	u.shared.setName()
	return explore(m, u)
}

// In every order of steps nothing is lost, nothing is doubled, and the end can be reached.
func TestEveryOrderOfStepsKeepsEachRecordOnce(t *testing.T) {
	scenes := map[string]scene{
		"a zombie, its successor, a seal, a copy delivered again, an answer lost": {1, 1, 1, 1},
	}
	if !underRace { // ten times slower, and the search shares little
		scenes["a zombie, its successor, two seals, a copy delivered again"] = scene{1, 2, 1, 0}
		scenes["a zombie, two writers, a seal"] = scene{2, 1, 0, 0}
	}
	if os.Getenv("STREAMER_TEST_EXHAUSTIVE") != "" { // minutes, and gigabytes
		scenes["a zombie, two writers, two seals"] = scene{2, 2, 0, 0}
		scenes["a zombie, two writers, a seal, a copy delivered again, an answer lost"] = scene{2, 1, 1, 1}
		scenes["a zombie, two writers, two seals, a copy delivered again"] = scene{2, 2, 1, 0}
	}
	states := 0
	for _, what := range slices.Sorted(maps.Keys(scenes)) {
		t.Run(what, func(t *testing.T) {
			s := scenes[what].explore(t, nil)
			if s.wrong != "" {
				t.Error(s.wrong)
			}
			states += len(s.index)
			t.Logf("%d states, %d steps, %d of them different", len(s.index), len(s.from), len(s.taken))
		})
	}
	t.Logf("states %d", states)
}

// eachOf writes a request anew, the parts of a transaction too.
func eachOf(change func(*memRequest)) func(*memRequest) {
	return func(in *memRequest) {
		change(in)
		for _, x := range in.TransactItems {
			for kind, r := range x {
				change(&r)
				x[kind] = r
			}
		}
	}
}

// replaced writes conditions anew.
func replaced(from, to string) func(*memRequest) {
	return eachOf(func(r *memRequest) { r.ConditionExpression = strings.Replace(r.ConditionExpression, from, to, 1) })
}

// A search that misses a rule which is switched off would find nothing wrong in a store without it.
func TestTheSearchNoticesRulesThatAreOff(t *testing.T) {
	isPart := func(r *memRequest) bool { return strings.HasPrefix(r.Item["sk"].text, "part#") }
	for what, c := range map[string]struct {
		scene
		off func(*memRequest)
	}{
		"fencing": {scene{1, 1, 0, 0}, replaced("#t = :token AND", "(#t = :token OR #t <> :token) AND")},
		"a part is claimed once": {scene{1, 2, 1, 0}, eachOf(func(r *memRequest) {
			if isPart(r) {
				r.ConditionExpression = ""
			}
		})},
		"a sealed window takes none": {scene{1, 2, 1, 0}, replaced(takesClaims, "(attribute_not_exists(pk) OR attribute_exists(pk))")},
	} {
		t.Run(what, func(t *testing.T) {
			s := c.explore(t, c.off)
			if s.wrong == "" {
				t.Errorf("it finds nothing wrong in %d states", len(s.index))
			}
			t.Logf("after %d states: %s", len(s.index), s.wrong)
		})
	}
}
