package main

import (
	"context"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/stream"
)

// drained tells when everything written before a time has been read: every shard has shown a
// record created after it, or was read to its tip after it. Both times are the stream's clock.
func drained(info stream.RoundInfo, since time.Time) bool {
	for _, s := range info.Shards {
		switch s.State {
		case stream.Finished:
		case stream.Reading, stream.Tip:
			// Creation times are whole seconds, rounded down.
			if !s.Created.After(since) && !s.TipAt.After(since) {
				return false
			}
		default:
			return false
		}
	}
	return len(info.Shards) > 0 && info.Failed == nil
}

// tips remembers up to when each shard has shown all, until that can be stored: once all that it
// had shown is committed. It tells a stream at rest from one that nobody reads.
type tips struct {
	at       map[pipeline.ShardID]time.Time
	read     map[pipeline.ShardID]pipeline.SequenceNumber // up to where it had been read by then
	unmarked map[pipeline.ShardID]bool
	next     time.Time
}

// tipEvery is the least time between two marks of a shard. Each is a write, so that of very many
// shards each is marked more rarely: about one of them a second.
const tipEvery = 10 * time.Second

func (t *tips) see(info stream.RoundInfo) {
	if t.at == nil {
		t.at, t.read, t.unmarked = map[pipeline.ShardID]time.Time{}, map[pipeline.ShardID]pipeline.SequenceNumber{}, map[pipeline.ShardID]bool{}
	}
	for _, s := range info.Shards {
		if s.State <= stream.Tip && s.TipAt.After(t.at[s.ID]) {
			t.at[s.ID], t.read[s.ID], t.unmarked[s.ID] = s.TipAt, s.Last, true
		}
	}
}

func (t *tips) due(now time.Time) bool { return !now.Before(t.next) && len(t.unmarked) > 0 }

func (r *runner) markTips(ctx context.Context, t *tips) {
	t.next = time.Now().Add(max(tipEvery, time.Duration(len(t.unmarked))*time.Second))
	for id := range t.unmarked {
		if err := r.shards.MarkTip(ctx, id, t.read[id], t.at[id]); err != nil {
			r.log.Warn("status shows an older lag than there is", "error", explain(err))
			return
		}
		delete(t.unmarked, id)
	}
}
