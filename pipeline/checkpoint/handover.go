package checkpoint

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
)

// ErrPending means that a lane has a window that is begun and not committed.
var ErrPending = errors.New("a window is begun and not committed")

// A Handover moves a whole stream, with the positions of its shards, to the other side.
type Handover struct {
	Stream string // ARN
	To     Side
	Lane   func(pipeline.ShardID) pipeline.LaneID // who owns a shard on that side
}

// StreamSide says who reads a stream; false if nobody does yet.
func (s *Store) StreamSide(ctx context.Context, stream string) (Side, bool, error) {
	var it streamItem
	ok, err := s.get(ctx, sideKey(stream), &it)
	return Side(it.Side), ok, err
}

// Handover moves a stream. Its first step is that the lanes that are left can begin nothing: however
// busy they are, each has one window to come to its end at most. While there is one, the shards of
// its lane stay where they are, those of the others move, and it fails with ErrPending: let that
// side commit its window, or finish it, which a lane that is left still allows, and call it again.
// One that broke off goes on in the same way. New shards follow the stream's side. It returns how
// many shards changed their owner.
func (s *Store) Handover(ctx context.Context, h Handover) (int, error) {
	n, err := s.handover(ctx, h)
	if err != nil {
		return n, fmt.Errorf("hand stream %s over to %s: %w", h.Stream, h.To, err)
	}
	return n, nil
}

func (s *Store) handover(ctx context.Context, h Handover) (moved int, err error) {
	if !h.To.valid() {
		return 0, fmt.Errorf("%q is no side of a stream", h.To)
	}
	side, _, err := s.StreamSide(ctx, h.Stream)
	if err != nil {
		return 0, err
	}
	if side == Rebuilding {
		return 0, beingRebuilt(h.Stream)
	}
	for sided := false; ; sided = true {
		// The second time a lane that came to be since is left too.
		pending, err := s.leave(ctx, h)
		if err != nil {
			return moved, err
		}
		if !sided {
			if err := s.setSide(ctx, h); err != nil {
				return moved, err
			}
		}
		// No shard is created for the old side any more: what is listed now is all.
		shards, _, err := s.StreamStatus(ctx, h.Stream)
		if err != nil {
			return moved, err
		}
		var foreign, ready []ShardStatus
		for _, sh := range shards {
			if sh.Lane == h.Lane(sh.ID) {
				continue
			}
			foreign = append(foreign, sh)
			if pending[sh.Lane] == 0 {
				ready = append(ready, sh)
			}
		}
		if len(foreign) == 0 {
			return moved, s.arrive(ctx, h, shards)
		}
		if len(ready) == 0 {
			return moved, stillPending(pending)
		}
		n, err := s.reown(ctx, h, ready)
		moved += n
		if err != nil {
			return moved, err
		}
	}
}

func stillPending(pending map[pipeline.LaneID]int64) error {
	var errs []error
	for _, lane := range slices.Sorted(maps.Keys(pending)) {
		errs = append(errs, fmt.Errorf("lane %s, window %d: %w", lane, pending[lane], ErrPending))
	}
	return errors.Join(errs...)
}

// leave fences the lanes that own shards and are not to, so that no window of theirs can be begun.
// It returns those that have one pending, with its number.
func (s *Store) leave(ctx context.Context, h Handover) (map[pipeline.LaneID]int64, error) {
	shards, _, err := s.StreamStatus(ctx, h.Stream)
	if err != nil {
		return nil, err
	}
	pending, seen := map[pipeline.LaneID]int64{}, map[pipeline.LaneID]bool{}
	for _, sh := range shards {
		if seen[sh.Lane] || sh.Lane == h.Lane(sh.ID) {
			continue
		}
		seen[sh.Lane] = true
		n, err := s.fence(ctx, sh.Lane, h.To)
		if err != nil {
			return nil, fmt.Errorf("leave lane %s: %w", sh.Lane, err)
		}
		if n != 0 {
			pending[sh.Lane] = n
		}
	}
	return pending, nil
}

// nobody holds a lane that is left.
const nobody = "handover"

// fence has a lane begin nothing any more, and returns its pending window, 0 if it has none. Whoever
// holds the lane keeps it until that is committed; then it is nobody's.
func (s *Store) fence(ctx context.Context, lane pipeline.LaneID, to Side) (int64, error) {
	k := laneKey(lane)
	var it laneItem
	if ok, err := s.get(ctx, k, &it); err != nil || !ok {
		return 0, err
	}
	for {
		if it.Moved == string(to) && (it.Pending != 0 || it.Holder == nobody) {
			return it.Pending, nil
		}
		_, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
			TableName: &s.table, Key: k.av(),
			// A holder that reopens the lane as its own must find that it is not.
			UpdateExpression:         aws.String("SET moved = :to, #t = #t + :one, holder = :nobody REMOVE lease"),
			ConditionExpression:      aws.String("fmt <= :fmt AND attribute_not_exists(pending)"),
			ExpressionAttributeNames: map[string]string{"#t": "token"},
			ExpressionAttributeValues: map[string]types.AttributeValue{
				":to": str(string(to)), ":one": num(1), ":nobody": str(nobody), ":fmt": num(pipeline.FormatVersion),
			},
		})
		if begun := (*types.ConditionalCheckFailedException)(nil); !errors.As(err, &begun) {
			return 0, err
		}
		// Its window may be committed and another begun faster than anybody can look. Not behind this.
		out, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
			TableName: &s.table, Key: k.av(),
			UpdateExpression: aws.String("SET moved = :to"), ConditionExpression: aws.String("fmt <= :fmt"),
			ExpressionAttributeValues:           map[string]types.AttributeValue{":to": str(string(to)), ":fmt": num(pipeline.FormatVersion)},
			ReturnValues:                        types.ReturnValueAllNew,
			ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
		})
		item := map[string]types.AttributeValue(nil)
		if newer := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &newer) {
			item = newer.Item
		} else if err != nil {
			return 0, err
		} else {
			item = out.Attributes
		}
		it = laneItem{}
		if err := decode(k, item, &it); err != nil { // of a newer format, or gone
			return 0, err
		}
	}
}

func (s *Store) setSide(ctx context.Context, h Handover) error {
	_, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: sideKey(h.Stream).av(),
		UpdateExpression:    aws.String("SET side = :to, fmt = if_not_exists(fmt, :fmt)"),
		ConditionExpression: aws.String("attribute_not_exists(pk) OR fmt <= :fmt"),
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":to": str(string(h.To)), ":fmt": num(pipeline.FormatVersion),
		},
	})
	if newer := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &newer) {
		var it streamItem
		_, err := s.get(ctx, sideKey(h.Stream), &it)
		return err
	}
	return err
}

// reown gives shards to their lanes of the new side, each under the condition that its old lane is
// left and has nothing pending. Those that are refused are found again by the caller.
func (s *Store) reown(ctx context.Context, h Handover, shards []ShardStatus) (int, error) {
	n := 0
	for chunk := range slices.Chunk(shards, 50) { // with a lane each: 100 items
		var tx []types.TransactWriteItem
		seen := map[pipeline.LaneID]bool{}
		for _, sh := range chunk {
			if !seen[sh.Lane] {
				seen[sh.Lane] = true
				tx = append(tx, types.TransactWriteItem{ConditionCheck: &types.ConditionCheck{
					TableName: &s.table, Key: laneKey(sh.Lane).av(),
					ConditionExpression:       aws.String("attribute_not_exists(pk) OR (moved = :to AND attribute_not_exists(pending))"),
					ExpressionAttributeValues: map[string]types.AttributeValue{":to": str(string(h.To))},
				}})
			}
			tx = append(tx, types.TransactWriteItem{Update: &types.Update{
				TableName: &s.table, Key: shardKey(h.Stream, sh.ID).av(),
				UpdateExpression:    aws.String("SET lane = :to"),
				ConditionExpression: aws.String("lane = :from"),
				ExpressionAttributeValues: map[string]types.AttributeValue{
					":from": str(string(sh.Lane)), ":to": str(string(h.Lane(sh.ID))),
				},
			}})
		}
		reasons, err := s.transact(ctx, tx)
		if err != nil {
			return n, fmt.Errorf("give %d shards to their new lanes: %w", len(chunk), err)
		}
		if reasons == nil {
			n += len(chunk)
		}
	}
	return n, nil
}

// arrive lets the lanes of the new side begin windows, which an earlier handover may have ended.
func (s *Store) arrive(ctx context.Context, h Handover, shards []ShardStatus) error {
	lanes := map[pipeline.LaneID]bool{h.Lane(""): h.To == Run} // a run's lane is there without shards too
	for _, sh := range shards {
		lanes[h.Lane(sh.ID)] = true
	}
	for _, lane := range slices.Sorted(maps.Keys(lanes)) {
		if !lanes[lane] {
			continue
		}
		_, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
			TableName: &s.table, Key: laneKey(lane).av(),
			UpdateExpression: aws.String("REMOVE moved"), ConditionExpression: aws.String("moved IN (:run, :lambda)"),
			ExpressionAttributeValues: map[string]types.AttributeValue{":run": str(string(Run)), ":lambda": str(string(Lambda))},
		})
		if notLeft := (*types.ConditionalCheckFailedException)(nil); err != nil && !errors.As(err, &notLeft) {
			return fmt.Errorf("open lane %s: %w", lane, err)
		}
	}
	return nil
}

// LambdaPositions returns the positions of the shards of a stream that Lambda's lanes of a contract,
// named by it, own, with one query.
func (s *Store) LambdaPositions(ctx context.Context, stream, contract string) (map[pipeline.ShardID]pipeline.Position, error) {
	shards, _, err := s.StreamStatus(ctx, stream)
	if err != nil {
		return nil, err
	}
	all := map[pipeline.ShardID]pipeline.Position{}
	for _, sh := range shards {
		if sh.Lane == LambdaLane(contract, sh.ID) {
			all[sh.ID] = sh.At
		}
	}
	return all, nil
}

// LambdaLane names the lane in which Lambda moves a shard of a table, by its contract's name.
func LambdaLane(contract string, shard pipeline.ShardID) pipeline.LaneID {
	lane := pipeline.LaneID("lambda-" + contract + "-" + strings.ToLower(string(shard)))
	if !lane.Valid() {
		// No shard of AWS comes here; a stand-in's might.
		sum := sha256.Sum256([]byte(shard))
		lane = pipeline.LaneID(fmt.Sprintf("lambda-%.80s-%x", contract, sum[:8]))
	}
	return lane
}
