package seal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"telemetrylake/pipeline"
	"telemetrylake/schemas"
)

// settleOthers looks again at parts whose claim another copy has: one in this same object may have
// been published since. A claim whose copy is gone is taken over: its name is created with the
// copies at hand, or its object says what was published under it, and a part that it does not list
// is claimed for the copy at hand.
func (w *work) settleOthers(ctx context.Context) error {
	const often = 4 // another seal may move claims at the same time: the next sweep looks again
	for range often {
		if err := w.refresh(ctx); err != nil {
			return err
		}
		rounds, err := w.gone(ctx)
		if err != nil || len(rounds) == 0 {
			return err
		}
		for _, round := range rounds {
			w.Log.WarnContext(ctx, "claimed copies are gone", "object", round[0].held.Copy.Key, "parts", len(round), "name", round[0].held.Name)
			err := w.publishRound(ctx, round)
			for _, p := range round {
				if p.settled || p.held.Copy == w.copyOf(p) {
					w.report.TakenOver++
				}
			}
			if err != nil {
				return err
			}
		}
		for _, g := range w.groups() {
			if err := w.publish(ctx, g); err != nil {
				return err
			}
		}
	}
	return nil
}

// refresh asks the ledger what it holds of the parts that are not settled.
func (w *work) refresh(ctx context.Context) error {
	for _, p := range w.parts {
		if p.settled || p.broken || p.held.Name == "" { // "": its window could not be asked
			continue
		}
		held, err := w.Ledger.Claim(ctx, []pipeline.Claim{p.held})
		if errors.Is(err, pipeline.ErrWindowClosed) {
			if err := w.recheck(ctx, p); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		w.take(p, held[0])
	}
	return nil
}

// gone returns the parts whose claimed copy is in no object any more, by the name of their claim,
// one copy of each part.
func (w *work) gone(ctx context.Context) ([][]*part, error) {
	exists := map[pipeline.Object]bool{}
	byName := map[string][]*part{}
	seen := map[pipeline.PartID]bool{}
	var names []string
	for _, p := range w.parts {
		at := pipeline.Object{Key: p.held.Copy.Key, ETag: p.held.Copy.ETag}
		if p.settled || p.broken || p.held.Name == "" || at == (pipeline.Object{Key: w.object.Key, ETag: w.object.ETag}) || seen[p.meta.ID()] {
			continue
		}
		there, asked := exists[at]
		if !asked {
			var err error
			if there, err = w.exists(ctx, at); err != nil {
				return nil, err
			}
			exists[at] = there
		}
		if there {
			continue
		}
		seen[p.meta.ID()] = true
		if byName[p.held.Name] == nil {
			names = append(names, p.held.Name)
		}
		byName[p.held.Name] = append(byName[p.held.Name], p)
	}
	slices.Sort(names)
	var rounds [][]*part
	for _, n := range names {
		rounds = append(rounds, byName[n])
	}
	return rounds, nil
}

// exists reports whether a staging object is there. Reads are strongly consistent, and nothing is
// put under a key and ETag again but the same bytes, for which the claimed name is taken.
func (s *Sealer) exists(ctx context.Context, o pipeline.Object) (bool, error) {
	o.Size = 1 // as much as is read
	err := s.Staging.View(ctx, o, func(r *io.SectionReader) error {
		_, err := r.ReadAt(make([]byte, 1), 0)
		return err
	})
	if errors.Is(err, pipeline.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// A Takeover says what has become of a window's claims that are not published.
type Takeover struct {
	Standing  int              // their copy is in staging: seal will publish it
	Published int              // it was published before its copy went
	Lost      []pipeline.Claim // no copy is known and none will be published under this claim
}

// TakeOver takes over the claims of a window whose copies are gone while no other is at hand: their
// names are created without rows, so that a seal that still holds such a copy finds the name taken.
// A part that is lost then is published by any other copy that comes; land the window again for it,
// or give it up.
func (s *Sealer) TakeOver(ctx context.Context, id pipeline.WindowID) (Takeover, error) {
	t, err := s.takeOver(ctx, id)
	if err != nil {
		return t, fmt.Errorf("take over claims of window %s: %w", id, err)
	}
	return t, nil
}

func (s *Sealer) takeOver(ctx context.Context, id pipeline.WindowID) (Takeover, error) {
	var t Takeover
	if s.Claims == nil {
		return t, errors.New("this seal cannot list claims")
	}
	_, m, err := s.Ledger.Window(ctx, id)
	if err != nil || m == nil || m.Lake != "" && m.Lake != s.LakeName {
		return t, err
	}
	claims, err := s.Claims.Claims(ctx, id)
	if err != nil {
		return t, err
	}
	for _, c := range claims {
		if c.Void || c.Published {
			continue
		}
		there, err := s.exists(ctx, pipeline.Object{Key: c.Copy.Key, ETag: c.Copy.ETag})
		if err != nil {
			return t, err
		}
		if there {
			t.Standing++
			continue
		}
		listed, err := s.occupy(ctx, c, m)
		if err != nil {
			return t, err
		}
		if !slices.Contains(listed, c.Part) {
			t.Lost = append(t.Lost, c)
			continue
		}
		if err := s.Ledger.Publish(ctx, []pipeline.Claim{c}); err != nil {
			return t, err
		}
		t.Published++
	}
	return t, nil
}

// occupy creates the name of a claim without rows, and returns what the object under it lists.
func (s *Sealer) occupy(ctx context.Context, c pipeline.Claim, m *pipeline.Manifest) ([]pipeline.PartID, error) {
	if c.Part.Index >= len(m.Parts) {
		return nil, fmt.Errorf("claim on part %s: its window has %d parts", c.Part, len(m.Parts))
	}
	spec := m.Parts[c.Part.Index]
	contract, err := s.Claims.Contract(ctx, m.Contract)
	if err != nil {
		return nil, err
	}
	tables := contract.Tables()
	i := slices.IndexFunc(tables, func(t schemas.Table) bool { return t.Name == spec.Table })
	if i < 0 {
		return nil, fmt.Errorf("part %s: contract %s has no table %s", c.Part, m.Contract, spec.Table)
	}
	meta := pipeline.ObjectMeta{Format: pipeline.FormatVersion, Table: spec.Table, Partition: spec.Partition}
	if m.Lake == "" {
		meta.Staging, meta.ETag, meta.Round = c.Copy.Key, c.Copy.ETag, c.Round
	}
	text, err := meta.Encode()
	if err != nil {
		return nil, err
	}
	b, err := s.build()
	if err != nil {
		return nil, err
	}
	defer b.close()
	if err := s.Merger.Empty(b, tables[i], map[string]string{pipeline.ObjectMetaKey: text}); err != nil {
		return nil, err
	}
	err = s.Lake.CreateFrom(ctx, c.Name, b.section())
	if err == nil {
		return nil, nil
	}
	if !errors.Is(err, pipeline.ErrExists) {
		return nil, err
	}
	return s.listed(ctx, c.Name, false)
}
