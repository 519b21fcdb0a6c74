package seal

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"telemetrylake/pipeline"
)

// A Settlement says what became of the parts of a window, landed as lake objects at once, on which
// the ledger had no word.
type Settlement struct {
	Published int // their objects are there: whoever landed them ended before it said so
	Occupied  int // their names are taken by objects without rows: they can be given up
}

// Settle looks for the parts of a window that lands as lake objects at once and are not claimed: the
// object is the claim. With giveUp set it takes the names of those that are not there, so that a
// process which still lands them finds them taken; only then may they be void. A window that goes
// through staging, or into another lake than this seal's, is left alone.
func (s *Sealer) Settle(ctx context.Context, id pipeline.WindowID, giveUp bool) (Settlement, error) {
	t, err := s.settle(ctx, id, giveUp)
	if err != nil {
		return t, fmt.Errorf("settle window %s: %w", id, err)
	}
	return t, nil
}

func (s *Sealer) settle(ctx context.Context, id pipeline.WindowID, giveUp bool) (Settlement, error) {
	var t Settlement
	if s.Claims == nil {
		return t, errors.New("this seal cannot list claims")
	}
	state, m, err := s.Ledger.Window(ctx, id)
	if err != nil || m == nil || m.Lake == "" || m.Lake != s.LakeName || state != pipeline.WindowCommitted {
		return t, err
	}
	claimed, err := s.Claims.Claims(ctx, id)
	if err != nil {
		return t, err
	}
	var found []pipeline.Claim
	for i := range m.Parts {
		part := pipeline.PartID{Window: id, Index: i}
		if slices.ContainsFunc(claimed, func(c pipeline.Claim) bool { return c.Part == part }) {
			continue
		}
		name, err := m.ObjectName(i)
		if err != nil {
			return t, err
		}
		c := pipeline.ClaimOf(part, name)
		var landed []pipeline.PartID
		if giveUp {
			landed, err = s.occupy(ctx, c, m)
		} else {
			landed, err = s.listed(ctx, name, true)
		}
		switch {
		case err != nil:
			return t, err
		case slices.Contains(landed, part):
			found = append(found, c)
		case giveUp:
			t.Occupied++
		}
	}
	switch err := pipeline.PublishInLake(ctx, s.Ledger, found); {
	case errors.Is(err, pipeline.ErrWindowClosed):
		return t, nil
	case err != nil:
		return t, err
	}
	t.Published = len(found)
	return t, nil
}
