package seal

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"slices"
	"strings"
	"testing"

	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/parquet-go/parquet-go"

	"telemetrylake/pipeline"
)

func TestSealDropsTheSecondCopyInTheSameObject(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1, 2, 3)...)
	p.stage("a", w[0], w[0], w[1], w[0])
	r := p.sweep()
	p.wantRows(1, 2, 3)
	if r.Published != 2 || r.Duplicates != 2 || r.Removed != 1 {
		t.Errorf("report %+v", r)
	}
}

func TestSealDropsACopyInAnotherObject(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1, 2, 3)...)
	p.stage("a", w[0])
	p.stage("b", w[0], w[1]) // the window is open until its second part is published
	r := p.sweep()
	p.wantRows(1, 2, 3)
	if r.Duplicates != 1 || r.Removed != 2 {
		t.Errorf("report %+v", r)
	}
}

// After its window is folded a copy is known by the window's number alone.
func TestSealDropsACopyOfAFoldedWindow(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1, 2, 3)...)
	p.stage("a", w...)
	p.sweep()
	p.stage("late", w...)
	r := p.sweep()
	p.wantRows(1, 2, 3)
	if r.Duplicates != 2 || r.Removed != 1 || r.Created != 0 {
		t.Errorf("report %+v", r)
	}
}

// A part may be sealed before its window is committed: the landing that committed it is the
// same whoever repeats it.
func TestSealPublishesPartsOfAPendingWindow(t *testing.T) {
	p := newPlant(t)
	p.lane.fail = errors.New("the answer was lost")
	w, err := p.lane.tryWindow(on(0, 1, 2)...)
	if err == nil {
		t.Fatal("the window was committed")
	}
	p.stage("a", w...)
	p.sweep()
	p.wantRows(1, 2)
}

func TestSealDropsPartsOfAVoidWindow(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1, 2)...)
	p.set("lane#run-sensors", windowKey(t, p), "state", &ddb.AttributeValueMemberS{Value: string(pipeline.WindowVoid)})
	p.stage("a", w...)
	r := p.sweep()
	p.wantRows()
	if r.Void != 1 || r.Removed != 1 {
		t.Errorf("report %+v", r)
	}
}

func TestSealDropsAVoidPart(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1, 2, 3)...)
	if _, err := p.store.Void(t.Context(), opened(t, w[0]).meta.ID()); err != nil {
		t.Fatal(err)
	}
	p.stage("a", w...)
	r := p.sweep()
	p.wantRows(3)
	if r.Void != 1 || r.Published != 1 || r.Removed != 1 {
		t.Errorf("report %+v", r)
	}
}

// windowKey is the sort key of the lane's first window.
func windowKey(t *testing.T, p *plant) string {
	t.Helper()
	lane := p.item("lane#run-sensors", "lane")
	return "window#" + lane["inc"].(*ddb.AttributeValueMemberS).Value + "#00000000000000000001"
}

func TestSealKeepsWhatIsNotItsToJudgeAndSealsTheRest(t *testing.T) {
	newer := func(t *testing.T, b []byte) []byte {
		text, err := opened(t, b).meta.Encode()
		if err != nil {
			t.Fatal(err)
		}
		text = strings.Replace(text, `"format":1`, `"format":2`, 1)
		return withMeta(t, b, map[string]string{pipeline.PartMetaKey: text})
	}
	change := func(f func(*pipeline.PartMeta)) func(*testing.T, []byte) []byte {
		return func(t *testing.T, b []byte) []byte { return retold(t, b, f) }
	}
	for name, c := range map[string]struct {
		want Keep
		body func(*testing.T, []byte) []byte
	}{
		"a newer format": {Newer, newer},
		"no metadata":    {Foreign, func(t *testing.T, b []byte) []byte { return withMeta(t, b, nil) }},
		"metadata that does not parse": {Foreign, func(t *testing.T, b []byte) []byte {
			return withMeta(t, b, map[string]string{pipeline.PartMetaKey: "?"})
		}},
		"rows it does not have":          {Foreign, change(func(m *pipeline.PartMeta) { m.Rows++ })},
		"a lane that never was":          {Unknown, change(func(m *pipeline.PartMeta) { m.Window.Lane = "other" })},
		"another incarnation":            {Unknown, change(func(m *pipeline.PartMeta) { m.Window.Incarnation = "00" })},
		"a window never begun":           {Unknown, change(func(m *pipeline.PartMeta) { m.Window.N = 9 })},
		"other ranges":                   {Mismatch, change(func(m *pipeline.PartMeta) { m.Ranges[0].Last += "0" })},
		"another stream":                 {Mismatch, change(func(m *pipeline.PartMeta) { m.Stream += "0" })},
		"another contract":               {Mismatch, change(func(m *pipeline.PartMeta) { m.Contract = "00" })},
		"another partition":              {Mismatch, change(func(m *pipeline.PartMeta) { m.Partition = "dt=2026-11-29" })},
		"an index the window never had":  {Mismatch, change(func(m *pipeline.PartMeta) { m.Part = 7 })},
		"another table of the same rows": {Mismatch, change(func(m *pipeline.PartMeta) { m.Table = "sensor_readings_changes" })},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlant(t)
			other := p.newLane("second", "shardId-2")
			w, o := p.lane.window(on(0, 1, 2)...), other.window(on(0, 3, 4)...)
			p.stage("a", c.body(t, w[0]), o[0])
			for range 2 { // the second finds it as the first left it
				r := p.sweep()
				if r.Kept[c.want] != 1 || len(r.Kept) != 1 || r.Removed != 0 {
					t.Errorf("report %+v, want one kept as %s", r, c.want)
				}
				p.wantRows(3, 4)
			}
			// The lane that it says it is of stops; the other goes on.
			_, err := p.store.Acquire(t.Context(), "run-sensors", false)
			var person *pipeline.PersonError
			if halted := errors.As(err, &person); halted != (c.want == Mismatch) {
				t.Errorf("acquire after it: %v", err)
			}
			other.window(on(0, 5)...)
		})
	}
}

func TestSealRemovesAnObjectOfProbesOnly(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1)...)
	probe := withMeta(t, w[0], map[string]string{pipeline.PartMetaKey: `{"format":1,"probe":true}`})
	p.stage("a", probe, w[0], probe)
	p.stage("b", probe)
	if r := p.sweep(); r.Removed != 2 || r.Published != 1 {
		t.Errorf("report %+v", r)
	}
	p.wantRows(1)
}

func TestSealPutsDamageAsideOnceThoughSealedTwice(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1)...)
	foreign := withMeta(t, w[0], nil) // keeps the object in staging
	p.stage("a", []byte("garbage"), w[0], []byte("\n"), foreign, w[0][:50])
	p.sweep()
	first := p.keys(p.damaged)
	p.sweep()
	if again := p.keys(p.damaged); len(first) != 6 || !slices.Equal(first, again) {
		t.Errorf("put aside %v, then %v", first, again)
	}
	r, err := p.damaged.Read(t.Context(), pipeline.Object{Key: first[0]})
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(r); string(b) != "garbage" {
		t.Errorf("%s holds %q", first[0], b)
	}
	p.wantRows(1)
}

// An object of damage alone goes once the damage is aside.
func TestSealRemovesAnObjectWhoseDamageIsAside(t *testing.T) {
	p := newPlant(t)
	p.stage("a", []byte("garbage"))
	if r := p.sweep(); r.Damaged != 1 || r.Removed != 1 {
		t.Errorf("report %+v", r)
	}
	got := p.keys(p.damaged)
	if len(got) != 2 || got[1] != got[0]+".json" {
		t.Fatalf("put aside %v, want the bytes and their reason", got)
	}
	r, err := p.damaged.Read(t.Context(), pipeline.Object{Key: got[1]})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(r)
	for _, want := range []string{`"object":"a"`, `"offset":0`, `"bytes":7`, `"reason":"no Parquet file ends here"`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the reason is %s, without %s", b, want)
		}
	}
}

// The created object has the last word: a part claimed under its name after it was created goes
// into the object of the next round.
func TestSealMovesAPartThatTheExistingObjectDoesNotListToTheNextRound(t *testing.T) {
	p := newPlant(t)
	w1, w2 := p.lane.window(on(0, 1)...), p.lane.window(on(0, 2)...)
	p.stage("a", w1[0], w2[0])
	// A seal that claims and creates with the first part only, and dies before it publishes.
	dying := p.sealer(func(s *Stages) { s.Ledger = stop{p.store, 1} })
	dying.Staging = half{p.staging, len(w1[0])}
	if _, err := dying.Sweep(t.Context()); !errors.Is(err, errStopped) {
		t.Fatalf("sweep: %v", err)
	}
	r := p.sweep()
	p.wantRows(1, 2)
	names := p.keys(p.lake)
	if len(names) != 2 || !strings.HasSuffix(names[0], "-0.parquet") || names[1] != strings.Replace(names[0], "-0.parquet", "-1.parquet", 1) {
		t.Errorf("lake holds %v, want one group in two rounds", names)
	}
	if r.Published != 2 || r.Created != 1 || r.Removed != 1 {
		t.Errorf("report %+v", r)
	}
}

var errStopped = errors.New("the process is gone")

// stop is a ledger whose process dies before its nth publish.
type stop struct {
	pipeline.Ledger
	n int
}

func (s stop) Publish(ctx context.Context, cs []pipeline.Claim) error {
	if s.n == 1 {
		return errStopped
	}
	return s.Ledger.Publish(ctx, cs)
}

// half is a store whose reader sees the first bytes of each object only: it stands for a seal
// that had not claimed the rest when it created.
type half struct {
	Store
	n int
}

func (h half) View(ctx context.Context, o pipeline.Object, f func(*io.SectionReader) error) error {
	return h.Store.View(ctx, o, func(r *io.SectionReader) error { return f(io.NewSectionReader(r, 0, int64(h.n))) })
}

// A staging object is removed only when each part in it is published or void, by whatever copy.
func TestSealKeepsAnObjectWhosePartAnotherCopyHasClaimedUnpublished(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1, 2, 3)...)
	p.stage("a", w[0])
	p.stage("b", w...)
	dying := p.sealer(func(s *Stages) { s.Ledger = stop{p.store, 1} })
	if _, err := dying.Object(t.Context(), p.object("a")); !errors.Is(err, errStopped) {
		t.Fatalf("seal: %v", err)
	}
	r, err := p.sealer().Object(t.Context(), p.object("b"))
	if err != nil {
		t.Fatal(err)
	}
	if r.Waiting != 1 || r.Removed != 0 || r.Published != 1 {
		t.Errorf("report %+v", r)
	}
	p.sweep()
	p.wantRows(1, 2, 3)
	if left := p.keys(p.staging); len(left) != 0 {
		t.Errorf("staging still holds %v", left)
	}
}

// An object that vanishes while it is listed or read belongs to another seal.
func TestSealLeavesAnObjectThatVanishesToTheOtherSeal(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1, 2, 3)...)
	p.stage("a", w...)
	o := p.object("a")
	slow := p.sealer(func(s *Stages) { s.Staging = overtaken{p.staging, func() { p.sweep() }} })
	r, err := slow.Object(t.Context(), o) // another seal does everything after it has read
	if err != nil {
		t.Fatal(err)
	}
	p.wantRows(1, 2, 3)
	if r.Duplicates != 2 || r.Created != 0 {
		t.Errorf("report %+v", r)
	}
	if r, err := slow.Object(t.Context(), o); err != nil || r.Objects != 0 {
		t.Errorf("seal of an object that is gone: %+v, %v", r, err)
	}
}

// overtaken lets something happen after each read.
type overtaken struct {
	Store
	meanwhile func()
}

func (o overtaken) View(ctx context.Context, ob pipeline.Object, f func(*io.SectionReader) error) error {
	return o.Store.View(ctx, ob, func(r *io.SectionReader) error {
		if _, err := r.ReadAt(make([]byte, 1), 0); err != nil {
			return err
		}
		o.meanwhile()
		return f(r)
	})
}

func TestSweepGoesOnAfterAnObjectThatFails(t *testing.T) {
	p := newPlant(t)
	w1, w2 := p.lane.window(on(0, 1)...), p.lane.window(on(0, 2)...)
	p.stage("a", w1...)
	p.stage("b", w2...)
	failed := errors.New("no")
	s := p.sealer(func(s *Stages) { s.Staging = unreadable{p.staging, "a", failed} })
	if _, err := s.Sweep(t.Context()); !errors.Is(err, failed) {
		t.Errorf("sweep: %v", err)
	}
	p.wantRows(2)
}

type unreadable struct {
	Store
	key string
	err error
}

func (u unreadable) View(ctx context.Context, o pipeline.Object, f func(*io.SectionReader) error) error {
	if o.Key == u.key {
		return u.err
	}
	return u.Store.View(ctx, o, f)
}

func TestSweepSaysThatItCannotList(t *testing.T) {
	p := newPlant(t)
	failed := errors.New("no")
	s := p.sealer(func(s *Stages) { s.Staging = unlistable{p.staging, failed} })
	if _, err := s.Sweep(t.Context()); !errors.Is(err, failed) {
		t.Errorf("sweep: %v", err)
	}
}

type unlistable struct {
	Store
	err error
}

func (u unlistable) List(context.Context) iter.Seq2[pipeline.Object, error] {
	return func(yield func(pipeline.Object, error) bool) { yield(pipeline.Object{}, u.err) }
}

// An object of our name that is not ours is nothing to guess about.
func TestSealNeedsAPersonForAForeignObjectUnderItsName(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1)...)
	p.stage("a", w...)
	foreign := withMeta(t, w[0], nil)
	s := p.sealer(func(s *Stages) { s.Lake = occupied{p.lake, foreign} })
	_, err := s.Sweep(t.Context())
	var person *pipeline.PersonError
	if !errors.As(err, &person) {
		t.Errorf("sweep: %v", err)
	}
	if got := p.keys(p.staging); len(got) != 1 {
		t.Errorf("staging holds %v", got)
	}
}

// occupied puts an object in the way of each create.
type occupied struct {
	Store
	body []byte
}

func (o occupied) CreateFrom(ctx context.Context, key string, body *io.SectionReader) error {
	if err := o.Store.CreateFrom(ctx, key, io.NewSectionReader(bytes.NewReader(o.body), 0, int64(len(o.body)))); err != nil {
		return err
	}
	return o.Store.CreateFrom(ctx, key, body)
}

// A window that was given up stays given up when nothing is left of it but the lane's memory.
func TestSealDropsLateCopiesOfAWindowThatWasGivenUpAndFolded(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(on(0, 1, 2)...)
	id := opened(t, w[0]).meta.ID()
	for range 2 {
		if _, err := p.store.Void(t.Context(), id); err != nil {
			break // folded by now
		}
		if err := p.store.Fold(t.Context(), id.Window.Lane); err != nil {
			t.Fatal(err)
		}
	}
	p.stage("late", w...)
	r := p.sweep()
	p.wantRows()
	if r.Void != 1 || r.Duplicates != 0 || r.Removed != 1 {
		t.Errorf("report %+v", r)
	}
}

// Whether a window is whole in the lake is told from the lake alone.
func TestSealWritesDownHowManyPartsAWindowHas(t *testing.T) {
	p := newPlant(t)
	w := p.lane.window(append(on(0, 1, 2), on(1, 3)...)...)
	p.stage("a", w[0])
	p.sweep()
	keys := p.keys(p.lake)
	if len(keys) != 1 || len(w) < 2 {
		t.Fatalf("%d objects of a window of %d parts", len(keys), len(w))
	}
	r, err := p.lake.Read(t.Context(), pipeline.Object{Key: keys[0]})
	if err != nil {
		t.Fatal(err)
	}
	f, err := parquet.OpenFile(r, r.Size())
	if err != nil {
		t.Fatal(err)
	}
	text, _ := f.Lookup(pipeline.ObjectMetaKey)
	meta, err := pipeline.DecodeObjectMeta(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := meta.Windows[0].PartsTotal; got != len(w) {
		t.Errorf("the object says that the window has %d parts, it has %d", got, len(w))
	}
}
