package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
)

// ErrTipUnproved means that a shard is committed less far than it had been read when its tip was seen.
var ErrTipUnproved = errors.New("the shard is not committed up to where its tip was seen")

// HeldBy has tips be marked only while hold says that this process holds the lane, and its token is
// the lane's. Without it they are marked by whoever has read the shard: an invocation that looks at
// a shard of Lambda's takes no token for that.
func (s *Shards) HeldBy(hold func() (pipeline.Hold, bool)) *Shards {
	s.hold = hold
	return s
}

// MarkTip notes that everything in a shard that was created before a time has been read, and lies
// at or before a number; "" if nothing had been read of it. A tip is only ever raised: an earlier
// one changes nothing, and is no error. It fails with ErrTipUnproved if the shard is committed less
// far, as after positions were written anew, with pipeline.ErrFenced if another process holds the
// lane, and for another lane's shard.
func (s *Shards) MarkTip(ctx context.Context, shard pipeline.ShardID, read pipeline.SequenceNumber, at time.Time) error {
	if err := s.markTip(ctx, shard, read, at); err != nil {
		return fmt.Errorf("mark tip of shard %s: %w", shard, err)
	}
	return nil
}

func (s *Shards) markTip(ctx context.Context, shard pipeline.ShardID, read pipeline.SequenceNumber, at time.Time) error {
	var tx []types.TransactWriteItem
	var h pipeline.Hold
	if s.hold != nil {
		var held bool
		if h, held = s.hold(); !held {
			return fmt.Errorf("lane %s: %w", s.lane, pipeline.ErrFenced)
		}
		tx = append(tx, s.store.laneHeld(h))
	}
	// What is committed since the tip was seen does not make it wrong, so the position may be later.
	// Numbers of any length are no order that a condition knows: it asks for the one that was compared.
	for k, seq := shardKey(s.stream, shard), read; ; {
		up := types.Update{
			TableName: &s.store.table, Key: k.av(), UpdateExpression: aws.String("SET tip_at = :at"),
			ConditionExpression: aws.String("lane = :lane AND fmt <= :fmt AND attribute_not_exists(seq) AND (attribute_not_exists(tip_at) OR tip_at < :at)"),
			ExpressionAttributeValues: map[string]types.AttributeValue{
				":at": str(stamp(at)), ":lane": str(string(s.lane)), ":fmt": num(pipeline.FormatVersion),
			},
			ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
		}
		if seq != "" {
			up.ConditionExpression = aws.String("lane = :lane AND fmt <= :fmt AND seq = :seq AND (attribute_not_exists(tip_at) OR tip_at < :at)")
			up.ExpressionAttributeValues[":seq"] = str(string(seq))
		}
		reasons, err := s.store.transact(ctx, append(tx[:len(tx):len(tx)], types.TransactWriteItem{Update: &up}))
		if err != nil || reasons == nil {
			return err
		}
		if len(tx) > 0 && failed(reasons[0]) {
			_, err := s.store.laneAfterRefusal(h, reasons[0].Item)
			return err
		}
		stored := reasons[len(tx)].Item
		if stored == nil {
			return errors.New("it has no item")
		}
		var it shardItem
		if err := decode(k, stored, &it); err != nil {
			return err
		}
		switch was := pipeline.SequenceNumber(it.Seq); {
		case it.Lane != string(s.lane):
			return foreignShard(shard, it.Lane, s.lane)
		case was.Compare(read) < 0:
			return fmt.Errorf("%w: it is committed up to %q, and was read up to %q", ErrTipUnproved, was, read)
		case it.TipAt != "" && !unstamp(it.TipAt).Before(unstamp(stamp(at))):
			return nil
		case was == seq:
			return errors.New("its item was refused as it is")
		default:
			seq = was
		}
	}
}

// laneHeld checks that h holds the lane.
func (s *Store) laneHeld(h pipeline.Hold) types.TransactWriteItem {
	return types.TransactWriteItem{ConditionCheck: &types.ConditionCheck{
		TableName: &s.table, Key: laneKey(h.Lane).av(),
		ConditionExpression:                 aws.String("#t = :token AND inc = :inc"),
		ExpressionAttributeNames:            map[string]string{"#t": "token"},
		ExpressionAttributeValues:           map[string]types.AttributeValue{":token": num(h.Token), ":inc": str(h.Incarnation)},
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}}
}
