package seal

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"

	"github.com/parquet-go/parquet-go"

	"telemetrylake/pipeline"
)

// A part is one of our files inside a staging object.
type part struct {
	off    int
	body   *io.SectionReader
	file   *parquet.File
	schema string
	tally  []tally // by column
	meta   *pipeline.PartMeta

	held    pipeline.Claim // what the ledger holds
	settled bool           // in the lake by some copy, or void
}

// work is the sealing of one staging object.
type work struct {
	*Sealer
	object pipeline.Object
	report Report
	parts  []*part // whose window takes claims, or took them
	kept   bool    // something in the object must stay
}

func (w *work) run(ctx context.Context) error {
	body, err := w.Staging.Read(ctx, w.object)
	if errors.Is(err, pipeline.ErrNotFound) {
		return nil // another seal was faster
	}
	if err != nil {
		return err
	}
	w.report.Objects++
	b := make([]byte, body.Size())
	if _, err := io.ReadFull(body, b); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if err := w.find(ctx, b); err != nil {
		return err
	}
	if err := w.lookUp(ctx); err != nil {
		return err
	}
	for _, g := range w.groups() {
		if err := w.claim(ctx, g); err != nil {
			return err
		}
		if err := w.publish(ctx, g); err != nil {
			return err
		}
	}
	if err := w.settleOthers(ctx); err != nil {
		return err
	}
	for _, p := range w.parts {
		if !p.settled {
			w.report.Waiting++
			w.kept = true
		}
	}
	if w.kept {
		return nil
	}
	if err := w.Staging.Remove(ctx, w.object); err != nil {
		return err
	}
	w.report.Removed++
	return nil
}

// find splits the object, puts damage aside and keeps what is not ours to judge.
func (w *work) find(ctx context.Context, b []byte) error {
	for _, sp := range split(b) {
		if sp.damage != nil {
			if err := w.putAside(ctx, sp, b[sp.off:sp.end]); err != nil {
				return err
			}
			continue
		}
		p, err := open(b, sp)
		if bad := (*damageError)(nil); errors.As(err, &bad) {
			sp.damage = err
			if err := w.putAside(ctx, sp, b[sp.off:sp.end]); err != nil {
				return err
			}
			continue
		}
		w.report.Parts++
		switch {
		case errors.Is(err, pipeline.ErrNewerFormat):
			w.keep(ctx, Newer, sp, err)
		case err != nil:
			w.keep(ctx, Foreign, sp, err)
		case p.meta.Probe:
			// A probe is no reading: it goes with the object.
		default:
			w.parts = append(w.parts, p)
		}
	}
	return nil
}

func open(b []byte, sp span) (p *part, err error) {
	// The reader panics on some damaged files. One of them must not stop all sealing.
	defer func() {
		if e := recover(); e != nil {
			p, err = nil, &damageError{fmt.Errorf("read file: the reader panics: %v", e)}
		}
	}()
	body := io.NewSectionReader(bytes.NewReader(b), int64(sp.off), int64(sp.end-sp.off))
	f, err := parquet.OpenFile(body, body.Size())
	if err != nil {
		return nil, err
	}
	text, ok := f.Lookup(pipeline.PartMetaKey)
	if !ok {
		return nil, errors.New("it has no part metadata")
	}
	meta, err := pipeline.DecodePartMeta(text)
	if err != nil {
		return nil, err
	}
	if !meta.Probe && (f.NumRows() != int64(meta.Rows) || len(meta.Order) == 0) {
		return nil, fmt.Errorf("part %s holds %d rows in order %v, its metadata says %d", meta.ID(), f.NumRows(), meta.Order, meta.Rows)
	}
	p = &part{off: sp.off, body: body, file: f, schema: fingerprint(f), meta: meta}
	if meta.Probe {
		return p, nil
	}
	// A part is counted before it is claimed: a copy that cannot be read must not have the claim
	// while another could.
	if p.tally, err = tallies(f); err != nil {
		return nil, &damageError{fmt.Errorf("count values of part %s: %w", meta.ID(), err)}
	}
	return p, nil
}

// A damageError is why a part of ours cannot be read.
type damageError struct{ error }

func (e *damageError) Unwrap() error { return e.error }

// putAside stores damaged bytes under a name that says where they were.
func (w *work) putAside(ctx context.Context, sp span, b []byte) error {
	key := fmt.Sprintf("%s/%s/%d-%d", w.object.Key, digest(w.object.ETag), sp.off, sp.end)
	if err := w.Damaged.Create(ctx, key, b); err != nil && !errors.Is(err, pipeline.ErrExists) {
		return fmt.Errorf("put damage aside: %w", err)
	}
	w.report.Damaged++
	w.Log.ErrorContext(ctx, "damage in staging", "object", w.object.Key, "offset", sp.off, "bytes", len(b), "reason", sp.damage.Error(), "aside", key)
	return nil
}

func (w *work) keep(ctx context.Context, why Keep, sp span, err error) {
	w.kept = true
	w.report.keep(why)
	w.Log.ErrorContext(ctx, "part stays in staging", "object", w.object.Key, "offset", sp.off, "why", string(why), "reason", err.Error())
}

// lookUp compares each part with its window: what is not the window's is kept, what belongs to
// a window that takes no more claims is settled.
func (w *work) lookUp(ctx context.Context) error {
	type window struct {
		state    pipeline.WindowState
		manifest *pipeline.Manifest
	}
	seen := map[pipeline.WindowID]window{}
	var ours []*part
	for _, p := range w.parts {
		id := p.meta.Window
		win, ok := seen[id]
		if !ok {
			var err error
			if win.state, win.manifest, err = w.Ledger.Window(ctx, id); err != nil {
				return err
			}
			seen[id] = win
		}
		sp := span{off: p.off}
		if win.state == pipeline.WindowUnknown {
			w.keep(ctx, Unknown, sp, fmt.Errorf("window %s was never begun", id))
			continue
		}
		if win.manifest != nil {
			if err := p.meta.Matches(win.manifest); err != nil {
				w.keep(ctx, Mismatch, sp, err)
				if err := w.Folder.Halt(ctx, id.Lane, err.Error()); err != nil {
					return err
				}
				continue
			}
		}
		ours = append(ours, p)
		w.close(p, win.state)
	}
	w.parts = ours
	return nil
}

// close settles p if its window takes no more claims: every part of it is published or void.
func (w *work) close(p *part, s pipeline.WindowState) {
	switch s {
	case pipeline.WindowSealed, pipeline.WindowFolded:
		p.settled = true
		w.report.Duplicates++
	case pipeline.WindowVoid:
		p.settled = true
		w.report.Void++
	}
}

// groups returns the unsettled parts by table, partition and schema.
func (w *work) groups() [][]*part {
	byName := map[string][]*part{}
	var names []string
	for _, p := range w.parts {
		if p.settled {
			continue
		}
		n := w.name(p, 0)
		if byName[n] == nil {
			names = append(names, n)
		}
		byName[n] = append(byName[n], p)
	}
	slices.Sort(names)
	var gs [][]*part
	for _, n := range names {
		gs = append(gs, byName[n])
	}
	return gs
}

// name is where the parts like p of this staging object go in one round. It holds nothing that
// two seals of the same object could see differently.
func (w *work) name(p *part, round int) string {
	m := p.meta
	return fmt.Sprintf("%s/%s/%s-%d.parquet", m.Table, m.Partition,
		digest(w.object.Key, w.object.ETag, m.Table, m.Partition, p.schema), round)
}

func digest(s ...string) string {
	h := sha256.New()
	for _, s := range s {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:16])
}

func (w *work) copyOf(p *part) pipeline.Copy {
	return pipeline.Copy{Key: w.object.Key, ETag: w.object.ETag, Offset: int64(p.off)}
}

// claim claims the parts of a group for this copy. A window that was closed meanwhile settles
// its parts, and the others are claimed again.
func (w *work) claim(ctx context.Context, g []*part) error {
	for {
		var open []*part
		var claims []pipeline.Claim
		for _, p := range g {
			if !p.settled {
				open = append(open, p)
				claims = append(claims, pipeline.Claim{Part: p.meta.ID(), Copy: w.copyOf(p), Name: w.name(p, 0)})
			}
		}
		if len(open) == 0 {
			return nil
		}
		held, err := w.Ledger.Claim(ctx, claims)
		if err == nil {
			for i, p := range open {
				w.take(p, held[i])
			}
			return nil
		}
		if !errors.Is(err, pipeline.ErrWindowClosed) {
			return err
		}
		closed := false
		for _, p := range open {
			state, _, e := w.Ledger.Window(ctx, p.meta.Window)
			if e != nil {
				return e
			}
			w.close(p, state)
			closed = closed || p.settled
		}
		if !closed {
			return err
		}
	}
}

// take notes what the ledger holds of p.
func (w *work) take(p *part, c pipeline.Claim) {
	p.held = c
	switch {
	case c.Void:
		p.settled = true
		w.report.Void++
	case c.Published:
		p.settled = true
		w.report.Duplicates++
	}
}

// publish creates the objects of a group, a name at a time, earlier rounds first, each with the
// parts that are claimed for this copy under that very name: a version that names the group
// otherwise may be creating its object at this moment.
func (w *work) publish(ctx context.Context, g []*part) error {
	for {
		var round []*part
		for _, p := range g {
			if p.settled || p.held.Copy != w.copyOf(p) {
				continue
			}
			if len(round) > 0 && p.held.Round < round[0].held.Round {
				round = nil
			}
			if len(round) == 0 || p.held.Name == round[0].held.Name {
				round = append(round, p)
			}
		}
		if len(round) == 0 {
			return nil
		}
		if err := w.publishRound(ctx, round); err != nil {
			return err
		}
	}
}

func (w *work) publishRound(ctx context.Context, round []*part) error {
	name, n := round[0].held.Name, round[0].held.Round
	listed, err := w.create(ctx, name, round)
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	var in []pipeline.Claim
	for _, p := range round {
		if slices.Contains(listed, p.meta.ID()) {
			in = append(in, p.held)
		}
	}
	if err := w.Ledger.Publish(ctx, in); err != nil {
		return err
	}
	for _, p := range round {
		if slices.Contains(listed, p.meta.ID()) {
			p.settled = true
			w.report.Published++
			continue
		}
		// The object came to be before p was claimed under its name.
		to := pipeline.Claim{Part: p.meta.ID(), Copy: w.copyOf(p), Name: w.name(p, n+1), Round: n + 1}
		held, err := w.Ledger.Move(ctx, p.held, to)
		if errors.Is(err, pipeline.ErrWindowClosed) {
			p.settled = true // every part of its window is published or void
			w.report.Duplicates++
			continue
		}
		if err != nil {
			return err
		}
		w.take(p, held)
	}
	return nil
}

// create makes the object and returns the parts that the object under this name lists, ours or
// an earlier one.
func (w *work) create(ctx context.Context, name string, parts []*part) ([]pipeline.PartID, error) {
	parts = slices.Clone(parts)
	slices.SortFunc(parts, func(a, b *part) int {
		x, y := a.meta.Window, b.meta.Window
		return cmp.Or(cmp.Compare(x.Lane, y.Lane), cmp.Compare(x.Incarnation, y.Incarnation), cmp.Compare(x.N, y.N), cmp.Compare(a.meta.Part, b.meta.Part))
	})
	meta := w.meta(parts)
	text, err := meta.Encode()
	if err != nil {
		return nil, err
	}
	body, err := w.merge(ctx, parts, text)
	if err != nil {
		return nil, err
	}
	err = w.Lake.Create(ctx, name, body)
	if err == nil {
		w.report.Created++
		w.report.Rows += meta.Rows
		return meta.PartIDs(), nil
	}
	if !errors.Is(err, pipeline.ErrExists) {
		return nil, err
	}
	return w.listed(ctx, name)
}

// merge makes the object of the parts and verifies it.
func (w *work) merge(ctx context.Context, parts []*part, meta string) (body []byte, err error) {
	// Both libraries panic on some damaged schemas: the object fails, the others go on.
	defer func() {
		if e := recover(); e != nil {
			body, err = nil, fmt.Errorf("merge %d parts: panic: %v\n%s", len(parts), e, debug.Stack())
		}
	}()
	readers := make([]*io.SectionReader, len(parts))
	for i, p := range parts {
		readers[i] = p.body
	}
	var buf bytes.Buffer
	if err := w.Merger.Merge(ctx, &buf, readers, parts[0].meta.Order, map[string]string{pipeline.ObjectMetaKey: meta}); err != nil {
		return nil, fmt.Errorf("merge %d parts: %w", len(parts), err)
	}
	if err := verify(buf.Bytes(), parts); err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	return buf.Bytes(), nil
}

// listed reads which parts an existing object holds.
func (w *work) listed(ctx context.Context, name string) ([]pipeline.PartID, error) {
	r, err := w.Lake.Read(ctx, pipeline.Object{Key: name})
	if err != nil {
		return nil, err
	}
	f, err := parquet.OpenFile(r, r.Size())
	if err != nil {
		return nil, fmt.Errorf("open the existing object: %w", err)
	}
	text, ok := f.Lookup(pipeline.ObjectMetaKey)
	if !ok {
		return nil, pipeline.NeedPerson(errors.New("an object of that name exists and is not ours"), "find out who wrote it and move it away")
	}
	meta, err := pipeline.DecodeObjectMeta(text)
	if err != nil {
		return nil, err
	}
	return meta.PartIDs(), nil
}

func (w *work) meta(parts []*part) *pipeline.ObjectMeta {
	first := parts[0]
	o := &pipeline.ObjectMeta{
		Format: pipeline.FormatVersion, Table: first.meta.Table, Partition: first.meta.Partition,
		Staging: w.object.Key, ETag: w.object.ETag, Round: first.held.Round,
	}
	for _, p := range parts {
		m := p.meta
		o.Rows += m.Rows
		if n := len(o.Windows); n == 0 || o.Windows[n-1].Window != m.Window {
			o.Windows = append(o.Windows, pipeline.ObjectWindow{Window: m.Window, Stream: m.Stream, Contract: m.Contract, Ranges: m.Ranges})
		}
		last := &o.Windows[len(o.Windows)-1]
		last.Parts = append(last.Parts, pipeline.ObjectPart{Part: m.Part, Rows: m.Rows})
	}
	return o
}

// settleOthers looks again at parts whose claim another copy has: one in this same object may
// have been published since.
func (w *work) settleOthers(ctx context.Context) error {
	for _, p := range w.parts {
		if p.settled {
			continue
		}
		held, err := w.Ledger.Claim(ctx, []pipeline.Claim{p.held})
		if errors.Is(err, pipeline.ErrWindowClosed) {
			state, _, err := w.Ledger.Window(ctx, p.meta.Window)
			if err != nil {
				return err
			}
			w.close(p, state)
			continue
		}
		if err != nil {
			return err
		}
		w.take(p, held[0])
	}
	return nil
}
