package main

import (
	"context"
	"slices"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/stream"
	"telemetrylake/schemas"
)

// shardLanes are the shards of a stream that Lambda reads: each is a lane of its own.
type shardLanes struct {
	store    *checkpoint.Store
	stream   string // ARN
	contract *schemas.Contract
}

var _ stream.LaneShards = (*shardLanes)(nil)

func (s *shardLanes) of(id pipeline.ShardID) *checkpoint.Shards {
	return s.store.Shards(s.stream, laneOfShard(s.contract, id), checkpoint.Lambda)
}

// Own implements stream.LaneShards.
func (s *shardLanes) Own(ctx context.Context, shard pipeline.Shard) (pipeline.Position, error) {
	return s.of(shard.ID).Own(ctx, shard)
}

// Position implements stream.LaneShards.
func (s *shardLanes) Position(ctx context.Context, id pipeline.ShardID) (pipeline.Position, bool, error) {
	return s.of(id).Position(ctx, id)
}

// all returns the positions of the shards that have their lane, with one query.
func (s *shardLanes) all(ctx context.Context) (map[pipeline.ShardID]pipeline.Position, error) {
	return s.store.LambdaPositions(ctx, s.stream, s.contract.Name)
}

// MarkTip implements stream.LaneShards.
func (s *shardLanes) MarkTip(ctx context.Context, id pipeline.ShardID, read pipeline.SequenceNumber, at time.Time) error {
	return s.of(id).MarkTip(ctx, id, read, at)
}

// Discard implements stream.LaneShards.
func (s *shardLanes) Discard(ctx context.Context, d *stream.Discarded) (bool, error) {
	_, opened, err := s.store.OpenGap(ctx, pipeline.Gap{
		Missing: pipeline.Missing{Cause: pipeline.GapDiscarded, From: d.From, To: d.To},
		Stream:  d.Stream, Shard: d.Shard, First: d.First, Last: d.Last,
	})
	return opened, err
}

// forget takes what a complete listing no longer names out of the checkpoint, in its time.
func (s *shardLanes) forget(ctx context.Context, f *stream.Function) error {
	listed, at := f.Listed()
	all, err := s.all(ctx)
	if err != nil {
		return err
	}
	for id, pos := range all {
		if pos.End && !slices.Contains(listed, id) {
			if err := s.of(id).Forget(ctx, []pipeline.ShardID{id}, at); err != nil {
				return err
			}
		}
	}
	return nil
}
