package checkpoint

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"telemetrylake/pipeline"
)

// A LaneStatus is what is stored of a lane and of the windows that are not folded yet, also those
// of its earlier incarnations.
type LaneStatus struct {
	Exists    bool
	Hold      pipeline.Hold // of whoever acquired it last
	Holder    Holder
	Moved     string // the side that its shards were handed over to; "" if they were not
	Next      int64  // number of the next window
	Pending   int64  // number of the pending window, 0 if none
	Watermark int64  // every window up to it is in the lake
	Stream    string // ARN of the stream that its last committed window is of; "" if not known
	Halted    string // why no window may be begun; "" if one may
	Windows   []WindowStatus
}

// A WindowStatus is what is stored of a window.
type WindowStatus struct {
	ID     pipeline.WindowID
	State  pipeline.WindowState
	Parts  int
	Counts pipeline.Counts
	Oldest time.Time // lowest creation time of its records; zero if it has none, or it is not known
	// When it was committed and when last landed, by the server's clock; zero while it is pending.
	CommittedAt, LandedAt time.Time
	Landings              int    // again, after its commit
	Gaps                  bool   // gaps were opened of its records
	Stream                string // ARN
	// Lake is where its parts are objects at once; "": they go through staging.
	Lake string
}

func (w *WindowStatus) open() bool {
	return w.State == pipeline.WindowPending || w.State == pipeline.WindowCommitted
}

// Unsealed counts the windows of which some part is not known to be in the lake.
func (s *LaneStatus) Unsealed() int {
	n := 0
	for _, w := range s.Windows {
		if w.open() {
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
	st := LaneStatus{
		Exists: true, Next: it.Next, Pending: it.Pending, Watermark: it.Watermark, Halted: it.Halted, Moved: it.Moved, Stream: it.Stream,
		Hold:   pipeline.Hold{Lane: lane, Incarnation: it.Incarnation, Token: it.Token},
		Holder: Holder{Host: it.Host, Token: it.Token, Lease: it.Lease},
	}
	for item, err := range s.query(ctx, laneKey(lane).pk, "window#") {
		if err != nil {
			return st, fmt.Errorf("read windows of lane %s: %w", lane, err)
		}
		k := keyOf(item)
		w, err := windowOf(lane, k.sk)
		if err != nil {
			return st, damaged(k, err)
		}
		var win windowItem
		if err := decode(k, item, &win); err != nil {
			return st, err
		}
		m, err := win.manifest(w)
		if err != nil {
			return st, err
		}
		st.Windows = append(st.Windows, win.status(m))
	}
	return st, nil
}

func (it windowItem) status(m *pipeline.Manifest) WindowStatus {
	w := WindowStatus{
		ID: m.Window, State: pipeline.WindowState(it.State), Parts: len(m.Parts), Counts: m.Counts(),
		CommittedAt: unstamp(it.CommittedAt), LandedAt: unstamp(it.LandedAt), Landings: it.Landings, Gaps: it.Gaps, Stream: m.Stream, Lake: m.Lake,
	}
	for _, r := range m.Shards {
		if !r.Oldest.IsZero() && (w.Oldest.IsZero() || r.Oldest.Before(w.Oldest)) {
			w.Oldest = r.Oldest
		}
	}
	return w
}

// A ShardStatus is what is stored of a shard.
type ShardStatus struct {
	ID     pipeline.ShardID
	Lane   pipeline.LaneID
	Parent pipeline.ShardID
	At     pipeline.Position
	TipAt  time.Time // when it was last read to its tip with all committed; zero if never
	// Created is when the last committed record was created, whole seconds rounded down; zero if
	// none was committed, or it is not known.
	Created time.Time
}

// Lanes lists the lanes by id. It scans the table.
func (s *Store) Lanes(ctx context.Context) ([]pipeline.LaneID, error) {
	var lanes []pipeline.LaneID
	for item, err := range s.scan(ctx, "sk = :x", "lane") {
		if err != nil {
			return nil, fmt.Errorf("list lanes: %w", err)
		}
		lanes = append(lanes, pipeline.LaneID(strings.TrimPrefix(keyOf(item).pk, "lane#")))
	}
	slices.Sort(lanes)
	return lanes, nil
}

// StreamStatus reads the shards of a stream, by id, whoever owns them, and counts its gaps that
// are not closed.
func (s *Store) StreamStatus(ctx context.Context, stream string) (shards []ShardStatus, gaps int, err error) {
	pk := sideKey(stream).pk
	for item, err := range s.query(ctx, pk, "") {
		if err != nil {
			return nil, 0, fmt.Errorf("read shards of stream %s: %w", stream, err)
		}
		sk := keyOf(item).sk
		if strings.HasPrefix(sk, "gap#") {
			var it gapItem
			if err := decode(key{pk, sk}, item, &it); err != nil {
				return nil, 0, err
			}
			if it.State != string(pipeline.GapClosed) {
				gaps++
			}
		}
		id, ok := strings.CutPrefix(sk, "shard#")
		if !ok {
			continue
		}
		var it shardItem
		if err := decode(key{pk, sk}, item, &it); err != nil {
			return nil, 0, err
		}
		shards = append(shards, it.status(pipeline.ShardID(id)))
	}
	return shards, gaps, nil
}

func (it shardItem) status(id pipeline.ShardID) ShardStatus {
	at := it.position()
	return ShardStatus{
		ID: id, Lane: pipeline.LaneID(it.Lane), Parent: pipeline.ShardID(it.Parent), At: at, TipAt: at.TipAt, Created: at.Created,
	}
}

// Shard reads what is stored of a shard, whoever owns it; false if nothing is.
func (s *Store) Shard(ctx context.Context, stream string, id pipeline.ShardID) (ShardStatus, bool, error) {
	var it shardItem
	ok, err := s.get(ctx, shardKey(stream, id), &it)
	if err != nil || !ok {
		return ShardStatus{}, false, err
	}
	return it.status(id), true, nil
}
