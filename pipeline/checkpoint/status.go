package checkpoint

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
)

// A LaneStatus is what is stored of a lane and of the windows that are not folded yet.
type LaneStatus struct {
	Exists    bool
	Next      int64  // number of the next window
	Pending   int64  // number of the pending window, 0 if none
	Watermark int64  // every window up to it is in the lake
	Halted    string // why no window may be begun; "" if one may
	Windows   []WindowStatus
}

// A WindowStatus is what is stored of a window.
type WindowStatus struct {
	ID     pipeline.WindowID
	State  pipeline.WindowState
	Parts  int
	Counts pipeline.Counts
}

// Unsealed counts the windows of which some part is not known to be in the lake.
func (s *LaneStatus) Unsealed() int {
	n := 0
	for _, w := range s.Windows {
		if w.State == pipeline.WindowPending || w.State == pipeline.WindowCommitted {
			n++
		}
	}
	return n
}

// Lane reads the status of a lane. It changes nothing.
func (s *Store) Lane(ctx context.Context, lane pipeline.LaneID) (LaneStatus, error) {
	var it laneItem
	ok, err := s.get(ctx, laneKey(lane), &it)
	if err != nil || !ok {
		return LaneStatus{}, err
	}
	st := LaneStatus{Exists: true, Next: it.Next, Pending: it.Pending, Watermark: it.Watermark, Halted: it.Halted}
	for item, err := range s.query(ctx, laneKey(lane).pk, windowPrefix(it.Incarnation)) {
		if err != nil {
			return st, fmt.Errorf("read windows of lane %s: %w", lane, err)
		}
		k := key{laneKey(lane).pk, item["sk"].(*types.AttributeValueMemberS).Value}
		w, err := windowOf(lane, k.sk)
		if err != nil {
			return st, err
		}
		var win windowItem
		if err := decode(k, item, &win); err != nil {
			return st, err
		}
		m, err := win.manifest(w)
		if err != nil {
			return st, err
		}
		st.Windows = append(st.Windows, WindowStatus{ID: w, State: pipeline.WindowState(win.State), Parts: len(m.Parts), Counts: m.Counts()})
	}
	return st, nil
}

// A ShardStatus is what is stored of a shard.
type ShardStatus struct {
	ID     pipeline.ShardID
	Lane   pipeline.LaneID
	Parent pipeline.ShardID
	At     pipeline.Position
	TipAt  time.Time // when it was last read to its tip with all committed; zero if never
}

// StreamStatus reads the shards of a stream, by id, and counts its gap items.
func (s *Store) StreamStatus(ctx context.Context, stream string) (shards []ShardStatus, gaps int, err error) {
	pk := sideKey(stream).pk
	for item, err := range s.query(ctx, pk, "") {
		if err != nil {
			return nil, 0, fmt.Errorf("read shards of stream %s: %w", stream, err)
		}
		sk := item["sk"].(*types.AttributeValueMemberS).Value
		if strings.HasPrefix(sk, "gap#") {
			gaps++
		}
		id, ok := strings.CutPrefix(sk, "shard#")
		if !ok {
			continue
		}
		var it shardItem
		if err := decode(key{pk, sk}, item, &it); err != nil {
			return nil, 0, err
		}
		st := ShardStatus{
			ID: pipeline.ShardID(id), Lane: pipeline.LaneID(it.Lane), Parent: pipeline.ShardID(it.Parent), At: it.position(),
		}
		if it.TipAt != "" {
			if st.TipAt, err = time.Parse(time.RFC3339, it.TipAt); err != nil {
				return nil, 0, fmt.Errorf("read shard %s: %w", id, err)
			}
		}
		shards = append(shards, st)
	}
	return shards, gaps, nil
}
