package seal

import (
	"context"
	"errors"
	"fmt"
	"io"

	"telemetrylake/pipeline"
)

// A StagedPart is one piece of a staging object, by what its footer says. No value is read.
type StagedPart struct {
	Offset int64
	Bytes  int64
	Meta   *pipeline.PartMeta // nil if it is no part, or one of a newer version
	Keep   Keep               // Newer or Foreign if Meta is nil and the piece is a Parquet file
	Err    error              // why Meta is nil
}

// Staged lists the pieces of a staging object in order, probes left out. It reads footers, and
// fails with pipeline.ErrNotFound if the object is gone.
func (s *Sealer) Staged(ctx context.Context, o pipeline.Object) ([]StagedPart, error) {
	var parts []StagedPart
	err := s.Staging.View(ctx, o, func(r *io.SectionReader) error {
		src := newSource(r)
		spans, err := splitSource(src)
		if err != nil {
			return err
		}
		for _, sp := range spans {
			p := StagedPart{Offset: sp.off, Bytes: sp.end - sp.off, Err: sp.damage}
			if sp.damage == nil {
				p.Meta, p.Keep, p.Err = footerMeta(src, sp)
			}
			if e := src.failed(); e != nil {
				return e
			}
			if p.Meta != nil && p.Meta.Probe {
				continue
			}
			parts = append(parts, p)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look into %s: %w", o.Key, err)
	}
	return parts, nil
}

func footerMeta(src *source, sp span) (*pipeline.PartMeta, Keep, error) {
	_, md, err := fileBefore(src, sp.end)
	if err != nil {
		return nil, "", err
	}
	text, ok := keyValue(md, pipeline.PartMetaKey)
	if !ok {
		return nil, Foreign, errors.New("it has no part metadata")
	}
	m, err := pipeline.DecodePartMeta(text)
	switch {
	case errors.Is(err, pipeline.ErrNewerFormat):
		return nil, Newer, err
	case err != nil:
		return nil, Foreign, err
	}
	return m, "", nil
}
