package lake

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"telemetrylake/pipeline"
)

// maxStaged bounds the objects of a Stager, in bytes: as much as Firehose joins in one at most
// (its BufferingHints).
const maxStaged = 128 << 20

// A Stager lands parts straight in staging, joined as Firehose joins them. Nothing is on its way
// once they are landed, so what Firehose has lost is there for the next sweep.
type Stager struct{ staging *Bucket }

var _ pipeline.Sink = (*Stager)(nil)

// NewStager returns a sink into staging.
func NewStager(staging *Bucket) *Stager { return &Stager{staging} }

// Land implements pipeline.Sink.
func (s *Stager) Land(ctx context.Context, parts []pipeline.Part) error {
	for len(parts) > 0 {
		n, size := 0, 0
		for n < len(parts) && (n == 0 || size+len(parts[n].Body) <= maxStaged) {
			size += len(parts[n].Body)
			n++
		}
		if err := s.put(ctx, parts[:n]); err != nil {
			return err
		}
		parts = parts[n:]
	}
	return nil
}

func (s *Stager) put(ctx context.Context, parts []pipeline.Part) error {
	var body bytes.Buffer
	for _, p := range parts {
		body.Write(p.Body)
	}
	first, w := parts[0].ID, parts[0].ID.Window
	key := fmt.Sprintf("again/%s-%s-%d-%d-%x.parquet", w.Lane, w.Incarnation, w.N, first.Index, sha256.Sum256(body.Bytes()))
	// The name holds the content: what exists under it are these parts.
	err := s.staging.Create(ctx, key, body.Bytes())
	if err != nil && !errors.Is(err, pipeline.ErrExists) {
		return fmt.Errorf("stage %d parts from %s: %w", len(parts), first, err)
	}
	return nil
}
