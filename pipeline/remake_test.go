package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"telemetrylake/pipeline"
)

// trimmedTape is a stream that holds nothing any more.
type trimmedTape struct{}

func (trimmedTape) Replay(context.Context, []pipeline.Range, func(pipeline.Batch) error) error {
	return pipeline.ErrTrimmed
}

func TestACommittedWindowIsMadeAgainPartForPart(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{Rows: 2}, "s")
	m := k.window(k.batch("s", 1, 5))[0]
	landed := k.shelf.parts
	// Another process knows nothing of how this one cuts.
	parts, err := pipeline.Remake(t.Context(), k.stages, m)
	if err != nil || len(parts) != len(landed) || len(parts) != 3 {
		t.Fatalf("%d parts, %v; %d were landed", len(parts), err, len(landed))
	}
	for i, p := range parts {
		if w := landed[i]; p.ID != w.ID || p.Table != w.Table || p.Partition != w.Partition || p.Rows != w.Rows || !bytes.Equal(p.Body, w.Body) {
			t.Errorf("part %s of %d rows differs from %s of %d rows that was landed", p.ID, p.Rows, w.ID, w.Rows)
		}
	}
	if n := len(k.shelf.parts); n != len(landed) {
		t.Errorf("making parts again landed %d", n-len(landed))
	}

	other := *m
	other.Shards = append([]pipeline.ShardRange(nil), m.Shards...)
	other.Shards[0].Counts.Rows++
	var person *pipeline.PersonError
	if _, err := pipeline.Remake(t.Context(), k.stages, &other); !errors.As(err, &person) {
		t.Errorf("of other records than the manifest's: %v, want what a person must do", err)
	}
	other = *m
	other.Rebuilt = true
	if _, err := pipeline.Remake(t.Context(), k.stages, &other); !errors.Is(err, pipeline.ErrRebuilt) {
		t.Errorf("of a window that was rebuilt: %v", err)
	}
	s := k.stages
	s.Replayer = trimmedTape{}
	if _, err := pipeline.Remake(t.Context(), s, m); !errors.Is(err, pipeline.ErrTrimmed) {
		t.Errorf("of records that have aged out: %v", err)
	}
}
