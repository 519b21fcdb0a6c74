package pipeline

import (
	"context"
	"errors"
	"fmt"
)

// ErrRebuilt means that a window's records or their order are not known well enough to make its
// parts again.
var ErrRebuilt = errors.New("the window was rebuilt from what was found of it")

// Remake makes the parts of a window again, as its manifest says: under the contract it was begun
// with, cut where it was cut, so that bytes may differ and rows may not. It fails with ErrTrimmed
// once the stream no longer holds all of its records, and with ErrRebuilt for a window that cannot be
// made again. Of the stages it needs those that read, decode and encode, and Contracts.
func Remake(ctx context.Context, s Stages, m *Manifest) ([]Part, error) {
	if m.Rebuilt {
		return nil, fmt.Errorf("make window %s again: %w", m.Window, ErrRebuilt)
	}
	parts, err := remake(ctx, s, m)
	if err != nil {
		return nil, fmt.Errorf("make window %s again: %w", m.Window, err)
	}
	return parts, nil
}

func remake(ctx context.Context, s Stages, m *Manifest) ([]Part, error) {
	c, err := s.Contracts.Contract(ctx, m.Contract)
	if err != nil {
		return nil, err
	}
	var batches []Batch
	err = s.Replayer.Replay(ctx, m.Ranges(), func(b Batch) error {
		batches = append(batches, b)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	l := Lane{stages: s, cut: newCutter(s.Encoder, PartSize{})}
	return l.again(c, m, batches)
}
