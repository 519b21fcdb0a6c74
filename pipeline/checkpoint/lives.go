package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"telemetrylake/pipeline"
)

// Lives are what is stored of the lane's incarnations, the current one first and the others by
// name. None if there is no such lane.
func (s *Store) Lives(ctx context.Context, lane pipeline.LaneID) ([]pipeline.LaneLife, error) {
	var it laneItem
	ok, err := s.get(ctx, laneKey(lane), &it)
	if err != nil || !ok {
		return nil, err
	}
	current, err := lifeIn(laneKey(lane), lane, it.Incarnation, incarnationItem{Watermark: it.Watermark, Void: it.Void})
	if err != nil {
		return nil, err
	}
	lives := []pipeline.LaneLife{current}
	for item, err := range s.query(ctx, laneKey(lane).pk, "incarnation#") {
		if err != nil {
			return nil, fmt.Errorf("read incarnations of lane %s: %w", lane, err)
		}
		k := keyOf(item)
		var past incarnationItem
		if err := decode(k, item, &past); err != nil {
			return nil, err
		}
		inc := strings.TrimPrefix(k.sk, "incarnation#")
		if inc == it.Incarnation {
			continue
		}
		l, err := lifeIn(k, lane, inc, past)
		if err != nil {
			return nil, err
		}
		lives = append(lives, l)
	}
	return lives, nil
}

func lifeIn(k key, lane pipeline.LaneID, inc string, it incarnationItem) (pipeline.LaneLife, error) {
	void, errVoid := parseNumbers(it.Void)
	unknown, errUnknown := parseNumbers(it.Unknown)
	if err := errors.Join(errVoid, errUnknown); err != nil {
		return pipeline.LaneLife{}, damaged(k, err)
	}
	return pipeline.LaneLife{Lane: lane, Incarnation: inc, Watermark: it.Watermark, Void: pipeline.Runs(void), Unknown: pipeline.Runs(unknown)}, nil
}

// Manifests are the windows of a lane that are not folded, with what they are made of, by incarnation
// and number.
func (s *Store) Manifests(ctx context.Context, lane pipeline.LaneID) ([]pipeline.Held, error) {
	var held []pipeline.Held
	for item, err := range s.query(ctx, laneKey(lane).pk, "window#") {
		if err != nil {
			return nil, fmt.Errorf("read windows of lane %s: %w", lane, err)
		}
		k := keyOf(item)
		w, err := windowOf(lane, k.sk)
		if err != nil {
			return nil, damaged(k, err)
		}
		var it windowItem
		if err := decode(k, item, &it); err != nil {
			return nil, err
		}
		m, err := it.manifest(w)
		if err != nil {
			return nil, err
		}
		held = append(held, pipeline.Held{State: pipeline.WindowState(it.State), Manifest: m})
	}
	return held, nil
}
