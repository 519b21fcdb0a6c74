package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
)

// Shards are the shards of one lane, as the reader of the stream sees them.
type Shards struct {
	store  *Store
	stream string
	lane   pipeline.LaneID
	side   Side
}

// Shards returns the view that a lane of one side has of a stream, named by its ARN.
func (s *Store) Shards(stream string, lane pipeline.LaneID, side Side) *Shards {
	return &Shards{s, stream, lane, side}
}

// Own makes a shard the lane's, if no lane has it, and returns its committed position. It
// fails if the stream belongs to the other side, or the shard to another lane.
func (s *Shards) Own(ctx context.Context, shard pipeline.Shard) (pipeline.Position, error) {
	pos, ok, err := s.Position(ctx, shard.ID)
	if ok || err != nil {
		return pos, err
	}
	if err := s.own(ctx, shard); err != nil {
		return pos, fmt.Errorf("own shard %s: %w", shard.ID, err)
	}
	pos, ok, err = s.Position(ctx, shard.ID)
	if err == nil && !ok {
		err = fmt.Errorf("own shard %s: its item vanished", shard.ID)
	}
	return pos, err
}

func (s *Shards) own(ctx context.Context, shard pipeline.Shard) error {
	side, err := encode(sideKey(s.stream), streamItem{Side: string(s.side)})
	if err != nil {
		return err
	}
	_, err = s.store.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName: &s.store.table, Item: side, ConditionExpression: aws.String("attribute_not_exists(pk)"),
	})
	if taken := (*types.ConditionalCheckFailedException)(nil); err != nil && !errors.As(err, &taken) {
		return err
	}
	item, err := encode(shardKey(s.stream, shard.ID), shardItem{Lane: string(s.lane), Parent: string(shard.Parent)})
	if err != nil {
		return err
	}
	reasons, err := s.store.transact(ctx, []types.TransactWriteItem{
		{ConditionCheck: &types.ConditionCheck{
			TableName: &s.store.table, Key: sideKey(s.stream).av(),
			ConditionExpression:       aws.String("side = :side AND fmt <= :fmt"),
			ExpressionAttributeValues: map[string]types.AttributeValue{":side": str(string(s.side)), ":fmt": num(pipeline.FormatVersion)},
		}},
		{Put: &types.Put{TableName: &s.store.table, Item: item, ConditionExpression: aws.String("attribute_not_exists(pk)")}},
	})
	if err != nil {
		return err
	}
	if reasons != nil && failed(reasons[0]) {
		var it streamItem
		if _, err := s.store.get(ctx, sideKey(s.stream), &it); err != nil {
			return err
		}
		return pipeline.NeedPerson(fmt.Errorf("stream %s is read by %s, not by %s", s.stream, it.Side, s.side),
			"stop this process, or hand the stream over")
	}
	return nil // created, or it exists: its owner is looked at next
}

// Position returns the committed position of a shard of the stream, and false if it has no
// item yet. It fails for a shard of another lane.
func (s *Shards) Position(ctx context.Context, shard pipeline.ShardID) (pipeline.Position, bool, error) {
	var it shardItem
	ok, err := s.store.get(ctx, shardKey(s.stream, shard), &it)
	if err != nil || !ok {
		return pipeline.Position{}, false, err
	}
	if it.Lane != string(s.lane) {
		return pipeline.Position{}, false, foreignShard(shard, it.Lane, s.lane)
	}
	return it.position(), true, nil
}

// MarkTip notes that at a time the shard was read to its tip and all it had shown was committed.
func (s *Shards) MarkTip(ctx context.Context, shard pipeline.ShardID, at time.Time) error {
	_, err := s.store.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &s.store.table, Key: shardKey(s.stream, shard).av(),
		UpdateExpression:    aws.String("SET tip_at = :at"),
		ConditionExpression: aws.String("lane = :lane"),
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":at": str(at.UTC().Format(time.RFC3339)), ":lane": str(string(s.lane)),
		},
	})
	if err != nil {
		return fmt.Errorf("mark tip of shard %s: %w", shard, err)
	}
	return nil
}
