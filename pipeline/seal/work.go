package seal

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"

	"telemetrylake/pipeline"
)

// work is the sealing of one staging object.
type work struct {
	*Sealer
	object pipeline.Object
	src    *source
	report Report
	parts  []*part // whose window takes claims, or took them
	kept   bool    // something in the object must stay
	errs   []error // what failed and did not stop the rest
}

// fail notes a failure that stops only what it is about.
func (w *work) fail(err error) { w.errs = append(w.errs, err) }

func (w *work) run(ctx context.Context) error {
	err := w.Staging.View(ctx, w.object, func(r *io.SectionReader) error {
		w.src = newSource(r)
		return w.seal(ctx)
	})
	if errors.Is(err, pipeline.ErrNotFound) && (w.src == nil || w.src.failed() != nil) {
		// Another seal was faster. What this one has claimed and not created is taken over when
		// another copy comes.
		return errors.Join(w.errs...)
	}
	if err = errors.Join(append(w.errs, err)...); err != nil || w.kept {
		return err
	}
	if err := w.Staging.Remove(ctx, w.object); err != nil {
		return err
	}
	w.report.Removed++
	return nil
}

func (w *work) seal(ctx context.Context) error {
	if err := w.find(ctx); err != nil {
		return err
	}
	w.report.Objects++
	if err := w.lookUp(ctx); err != nil {
		return err
	}
	for _, g := range w.groups() {
		if err := w.group(ctx, g); err != nil {
			if ctx.Err() != nil || w.src.failed() != nil {
				return err
			}
			w.fail(err)
		}
	}
	if err := w.settleOthers(ctx); err != nil {
		return err
	}
	for _, p := range w.parts {
		if !p.settled && !p.broken {
			w.report.Waiting++
			w.kept = true
		}
	}
	return nil
}

// group claims and publishes what can be.
func (w *work) group(ctx context.Context, g []*part) error {
	if err := w.claim(ctx, g); err != nil {
		return err
	}
	return w.publish(ctx, g)
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
		if p.settled || p.broken {
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
	return pipeline.Copy{Key: w.object.Key, ETag: w.object.ETag, Offset: p.off}
}

// claim claims the parts of a group for this copy. A window that was closed meanwhile settles
// its parts, and the others are claimed again; one that needs a person keeps its own parts only.
func (w *work) claim(ctx context.Context, g []*part) error {
	for {
		var open []*part
		var claims []pipeline.Claim
		for _, p := range g {
			if !p.settled && !p.broken {
				open = append(open, p)
				claims = append(claims, pipeline.Claim{Part: p.meta.ID(), Copy: w.copyOf(p), Name: w.name(p, 0)})
			}
		}
		if len(open) == 0 {
			return nil
		}
		held, err := w.Ledger.Claim(ctx, claims)
		switch {
		case err == nil:
			for i, p := range open {
				w.take(p, held[i])
			}
			return nil
		case needsPerson(err):
			return w.claimEach(ctx, open, claims)
		case !errors.Is(err, pipeline.ErrWindowClosed):
			return err
		}
		closed := false
		for _, p := range open {
			if err := w.recheck(ctx, p); err != nil {
				return err
			}
			closed = closed || p.settled
		}
		if !closed {
			return err
		}
	}
}

// recheck looks again at the window of p, which took no claim.
func (w *work) recheck(ctx context.Context, p *part) error {
	state, _, err := w.Ledger.Window(ctx, p.meta.Window)
	if err != nil {
		return err
	}
	w.close(p, state)
	return nil
}

// claimEach claims parts one by one: some window's items need a person.
func (w *work) claimEach(ctx context.Context, open []*part, claims []pipeline.Claim) error {
	for i, p := range open {
		held, err := w.Ledger.Claim(ctx, claims[i:i+1])
		switch {
		case err == nil:
			w.take(p, held[0])
		case errors.Is(err, pipeline.ErrNewerFormat):
			p.broken = true
			w.keep(ctx, Newer, p.span, err)
		case needsPerson(err):
			w.fail(err) // it waits
		case errors.Is(err, pipeline.ErrWindowClosed):
			if err := w.recheck(ctx, p); err != nil {
				return err
			}
		default:
			return err
		}
	}
	return nil
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
			if p.settled || p.broken || p.held.Copy != w.copyOf(p) {
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

// publishRound creates the name under which the parts of a round are claimed, for whatever copy,
// and settles or moves each.
func (w *work) publishRound(ctx context.Context, round []*part) error {
	name := round[0].held.Name
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
			p.settled, p.broken = true, false
			w.report.Published++
			continue
		}
		if p.broken {
			continue
		}
		// The object came to be before p was claimed under its name, or without this copy.
		to := pipeline.Claim{Part: p.meta.ID(), Copy: w.copyOf(p), Name: w.name(p, 0)}
		if p.held.Copy == to.Copy {
			to.Round = p.held.Round + 1
			to.Name = w.name(p, to.Round)
		}
		held, err := w.Ledger.Move(ctx, p.held, to)
		if errors.Is(err, pipeline.ErrWindowClosed) {
			// Every part of its window is published or void.
			if err := w.recheck(ctx, p); err != nil {
				return err
			}
			if !p.settled {
				return fmt.Errorf("part %s has no claim any more and its window is open", p.meta.ID())
			}
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
// an earlier one. What cannot be merged is left out.
func (w *work) create(ctx context.Context, name string, parts []*part) ([]pipeline.PartID, error) {
	parts = slices.Clone(parts)
	slices.SortFunc(parts, func(a, b *part) int {
		x, y := a.meta.Window, b.meta.Window
		return cmp.Or(cmp.Compare(x.Lane, y.Lane), cmp.Compare(x.Incarnation, y.Incarnation), cmp.Compare(x.N, y.N), cmp.Compare(a.meta.Part, b.meta.Part))
	})
	body, parts, err := w.mergeable(ctx, parts, func(ps []*part) (string, error) { return w.meta(ps).Encode() })
	if err != nil {
		return nil, err
	}
	if body == nil {
		return w.listed(ctx, name, true)
	}
	defer body.close()
	err = w.Lake.CreateFrom(ctx, name, body.section())
	if err == nil {
		meta := w.meta(parts)
		w.report.Created++
		w.report.Rows += meta.Rows
		return meta.PartIDs(), nil
	}
	if !errors.Is(err, pipeline.ErrExists) {
		return nil, err
	}
	return w.listed(ctx, name, false)
}

// listed reads which parts an existing object holds; with absent set it need not exist.
func (s *Sealer) listed(ctx context.Context, name string, absent bool) ([]pipeline.PartID, error) {
	var ids []pipeline.PartID
	err := s.Lake.View(ctx, pipeline.Object{Key: name}, func(r *io.SectionReader) error {
		src := newSource(r)
		_, md, err := fileBefore(src, src.size)
		if e := src.failed(); e != nil {
			return e
		}
		text, ok := "", false
		if err == nil {
			text, ok = keyValue(md, pipeline.ObjectMetaKey)
		}
		if !ok {
			return pipeline.NeedPerson(errors.New("an object of that name exists and is not ours"), "find out who wrote it and move it away")
		}
		meta, err := pipeline.DecodeObjectMeta(text)
		if err != nil {
			return fmt.Errorf("the existing object: %w", err)
		}
		ids = meta.PartIDs()
		return nil
	})
	if absent && errors.Is(err, pipeline.ErrNotFound) {
		return nil, nil
	}
	return ids, err
}

// meta describes an object of parts that are claimed under one name.
func (w *work) meta(parts []*part) *pipeline.ObjectMeta {
	first := parts[0]
	o := &pipeline.ObjectMeta{
		Format: pipeline.FormatVersion, Table: first.meta.Table, Partition: first.meta.Partition,
		Staging: first.held.Copy.Key, ETag: first.held.Copy.ETag, Round: first.held.Round,
	}
	for _, p := range parts {
		m := p.meta
		o.Rows += m.Rows
		if n := len(o.Windows); n == 0 || o.Windows[n-1].Window != m.Window {
			o.Windows = append(o.Windows, pipeline.ObjectWindow{Window: m.Window, Stream: m.Stream, Contract: m.Contract, Ranges: m.Ranges, PartsTotal: p.total})
		}
		last := &o.Windows[len(o.Windows)-1]
		last.Parts = append(last.Parts, pipeline.ObjectPart{Part: m.Part, Rows: m.Rows})
	}
	return o
}
