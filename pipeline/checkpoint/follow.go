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

// A Following has a lane leave a stream for the one that was enabled after it.
type Following struct {
	Lane     pipeline.LaneID
	From, To string    // ARNs
	At       time.Time // when To was enabled; zero if unknown
}

// Follow notes that a lane reads another stream from now on. What was written behind the last
// record that was read of the old one, and before the new one was enabled, is in neither, or nobody
// reads it any more: it becomes a gap of each shard that was not followed by others. Called again it
// changes nothing.
func (s *Store) Follow(ctx context.Context, f Following) error {
	if err := s.follow(ctx, f); err != nil {
		return fmt.Errorf("have lane %s follow from stream %s to %s: %w", f.Lane, f.From, f.To, err)
	}
	return nil
}

func (s *Store) follow(ctx context.Context, f Following) error {
	shards, _, err := s.StreamStatus(ctx, f.From)
	if err != nil {
		return err
	}
	followed := map[pipeline.ShardID]bool{}
	for _, sh := range shards {
		followed[sh.Parent] = true
	}
	for _, sh := range shards {
		if sh.At.End && followed[sh.ID] || sh.Lane != f.Lane {
			continue
		}
		g := pipeline.Gap{
			Missing: *pipeline.Missing{Cause: pipeline.GapDisabled, To: f.At}.Since(sh.At),
			ID:      gapID(sh.ID, sh.At.Seq, string(pipeline.GapDisabled)), Stream: f.From, Shard: sh.ID, Lane: f.Lane,
			After: sh.At.Seq, State: pipeline.GapOpen, Detected: s.serverNow(),
		}
		item, err := encode(gapKey(g.Stream, g.ID), newGapItem(g))
		if err != nil {
			return err
		}
		_, err = s.client.PutItem(ctx, &dynamodb.PutItemInput{
			TableName: &s.table, Item: item, ConditionExpression: aws.String("attribute_not_exists(pk)"),
		})
		if there := (*types.ConditionalCheckFailedException)(nil); err != nil && !errors.As(err, &there) {
			return fmt.Errorf("open gap %s: %w", g.ID, err)
		}
	}
	_, err = s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: laneKey(f.Lane).av(),
		UpdateExpression: aws.String("SET arn = :to"), ConditionExpression: aws.String("arn IN (:from, :to) AND fmt <= :fmt AND attribute_not_exists(pending)"),
		ExpressionAttributeValues: map[string]types.AttributeValue{":from": str(f.From), ":to": str(f.To), ":fmt": num(pipeline.FormatVersion)},
	})
	if other := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &other) {
		return pipeline.NeedPerson(errors.New("the lane has a window of the old stream that is not committed, or is at another stream"),
			"start it once more with the old stream, so that it commits the window: streamer run --until-drained --stream "+f.From)
	}
	return err
}
