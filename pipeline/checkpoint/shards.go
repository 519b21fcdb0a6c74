package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
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
	sided  atomic.Bool                  // the stream's side is known to be stored
	hold   func() (pipeline.Hold, bool) // nil: tips are marked without a token

	mu   sync.Mutex
	seen presence
}

// Shards returns the view that a lane of one side has of a stream, named by its ARN.
func (s *Store) Shards(stream string, lane pipeline.LaneID, side Side) *Shards {
	return &Shards{store: s, stream: stream, lane: lane, side: side}
}

// Own makes a shard the lane's, if no lane has it, and returns its committed position. A shard that
// is new keeps when it was met and its start mark. It fails if the stream belongs to the other
// side, or the shard to another lane.
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
	if !s.sided.Load() {
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
		s.sided.Store(true)
	}
	it := shardItem{Lane: string(s.lane), Parent: string(shard.Parent)}
	if !shard.MetAt.IsZero() {
		it.MetAt = stamp(shard.MetAt)
	}
	if !shard.StartAt.IsZero() {
		it.StartMark = stamp(shard.StartAt)
	}
	if shard.Later {
		away, err := s.awaySince(ctx, shard)
		if err != nil {
			return err
		}
		if !away.IsZero() {
			it.AwayAt, it.Orphan = stamp(away), shard.Orphan
		}
	}
	item, err := encode(shardKey(s.stream, shard.ID), it)
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
		if Side(it.Side) == Rebuilding {
			return beingRebuilt(s.stream)
		}
		return pipeline.NeedPerson(fmt.Errorf("stream %s is read by %s, not by %s", s.stream, it.Side, s.side),
			"stop this process, or hand the stream over: streamer lanes handover --to "+string(s.side))
	}
	return nil // created, or it exists: its owner is looked at next
}

// unlistedFor is how long a shard may be there before somebody who reads the stream meets it: the
// time between two listings, and what they may lag.
const unlistedFor = 5 * time.Minute

// awayAfter is how long nobody must have read a stream so that a shard can have come, held records
// for a day, and lost them unseen.
const awayAfter = pipeline.StreamRetention - unlistedFor

// presence is what the shards of a stream tell of when it was read.
type presence struct {
	at     time.Time // when that was looked up
	met    time.Time // the first time that any shard was met
	alive  time.Time // the last time that anything was read
	shards map[pipeline.ShardID]pipeline.Position
}

// awaySince is a time before which nothing can be missing of a new shard; zero if that is not
// known. What a child holds was created after all that its parent has shown. Of an orphan it is
// only known since when nobody had read, and nothing if the stream itself was met less than a day
// ago: its oldest shards have all lost their parents.
func (s *Shards) awaySince(ctx context.Context, shard pipeline.Shard) (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.store.serverNow()
	if s.seen.at.IsZero() || now.Sub(s.seen.at) > time.Minute { // shards are met many at a time
		p, err := s.presence(ctx, now)
		if err != nil {
			return time.Time{}, err
		}
		s.seen = p
	}
	p := s.seen
	old := func(at time.Time) bool { return !at.IsZero() && now.Sub(at) > awayAfter }
	if parent, ok := p.shards[shard.Parent]; ok {
		if at := latest(parent.Created, parent.TipAt, parent.StartAt, parent.AwayAt); !at.IsZero() {
			return at, nil
		}
		return parent.MetAt.Add(-unlistedFor), nil
	}
	if !old(p.met) {
		return time.Time{}, nil
	}
	if old(p.alive) {
		return p.alive.Add(-unlistedFor), nil
	}
	return p.met.Add(-unlistedFor), nil
}

func (s *Shards) presence(ctx context.Context, now time.Time) (presence, error) {
	p := presence{at: now, shards: map[pipeline.ShardID]pipeline.Position{}}
	for item, err := range s.store.query(ctx, sideKey(s.stream).pk, "shard#") {
		if err != nil {
			return p, fmt.Errorf("read shards of stream %s: %w", s.stream, err)
		}
		k := keyOf(item)
		var it shardItem
		if err := decode(k, item, &it); err != nil {
			return p, err
		}
		pos := it.position()
		p.shards[pipeline.ShardID(strings.TrimPrefix(k.sk, "shard#"))] = pos
		if !pos.MetAt.IsZero() && (p.met.IsZero() || pos.MetAt.Before(p.met)) {
			p.met = pos.MetAt
		}
		p.alive = latest(p.alive, pos.Created, pos.TipAt, pos.StartAt)
		if pos.AwayAt.IsZero() { // or others that came in the same time may not have been met
			p.alive = latest(p.alive, pos.MetAt)
		}
	}
	return p, nil
}

func latest(times ...time.Time) (at time.Time) {
	for _, t := range times {
		if t.After(at) {
			at = t
		}
	}
	return at
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

// All returns the positions of all shards of the stream that the lane owns, with one query. Shards
// of other lanes are left out.
func (s *Shards) All(ctx context.Context) (map[pipeline.ShardID]pipeline.Position, error) {
	all := map[pipeline.ShardID]pipeline.Position{}
	for item, err := range s.store.query(ctx, sideKey(s.stream).pk, "shard#") {
		if err != nil {
			return nil, fmt.Errorf("read shards of stream %s: %w", s.stream, err)
		}
		k := keyOf(item)
		var it shardItem
		if err := decode(k, item, &it); err != nil {
			return nil, err
		}
		if it.Lane == string(s.lane) {
			all[pipeline.ShardID(strings.TrimPrefix(k.sk, "shard#"))] = it.position()
		}
	}
	return all, nil
}

// ForgetAfter is how long a finished shard is kept after a complete listing first left it out.
// Twice the time that the service keeps records: a listing that names it again, because one was
// inconsistent, can show nothing of it that could be read a second time.
const ForgetAfter = 48 * time.Hour

// Forget takes the finished shards that a complete listing, made at a time by the server's clock,
// does not name, and removes those that have been missing for ForgetAfter. A shard that is not
// finished, or another lane's, is left as it is. So is one with a gap that only its position can
// close: what is committed to its end was read, and those that are open are closed before it goes.
func (s *Shards) Forget(ctx context.Context, unlisted []pipeline.ShardID, at time.Time) error {
	for _, id := range unlisted {
		if err := s.forget(ctx, id, at); err != nil {
			return fmt.Errorf("forget shard %s: %w", id, err)
		}
	}
	return nil
}

func (s *Shards) forget(ctx context.Context, id pipeline.ShardID, at time.Time) error {
	k := shardKey(s.stream, id)
	ours := "lane = :lane AND #end = :true AND fmt <= :fmt"
	names := map[string]string{"#end": "end"}
	values := map[string]types.AttributeValue{
		":lane": str(string(s.lane)), ":true": &types.AttributeValueMemberBOOL{Value: true}, ":fmt": num(pipeline.FormatVersion), ":at": str(stamp(at)),
	}
	out, err := s.store.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &s.store.table, Key: k.av(), UpdateExpression: aws.String("SET unlisted_at = if_not_exists(unlisted_at, :at)"),
		ConditionExpression: &ours, ExpressionAttributeNames: names, ExpressionAttributeValues: values, ReturnValues: types.ReturnValueAllNew,
	})
	if kept := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &kept) {
		return nil
	}
	if err != nil {
		return err
	}
	var it shardItem
	if err := decode(k, out.Attributes, &it); err != nil {
		return err
	}
	if at.Sub(unstamp(it.Unlisted)) < ForgetAfter {
		return nil
	}
	// None can be opened of a finished shard, so that none is missed here.
	if _, left, err := s.store.settle(ctx, s.stream, "gap#"+string(id)+"#"); err != nil || left > 0 {
		return err
	}
	values[":at"] = str(it.Unlisted)
	_, err = s.store.client.DeleteItem(ctx, &dynamodb.DeleteItemInput{
		TableName: &s.store.table, Key: k.av(), ConditionExpression: aws.String(ours + " AND unlisted_at = :at"),
		ExpressionAttributeNames: names, ExpressionAttributeValues: values,
	})
	if changed := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &changed) {
		return nil
	}
	return err
}
