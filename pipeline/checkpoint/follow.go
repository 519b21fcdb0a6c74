package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
)

// A Following has a reader leave a stream for the one that was enabled after it: a lane, or for
// Lambda, where each shard has a lane of its own, all those of a contract.
type Following struct {
	Lane     pipeline.LaneID // "" for Lambda
	Contract string          // name, for Lambda
	From, To string          // ARNs
	At       time.Time       // when To was enabled; zero if unknown
}

func (f Following) String() string {
	if f.Lane == "" {
		return "Lambda's lanes of contract " + f.Contract
	}
	return "lane " + string(f.Lane)
}

func (f Following) owns(sh ShardStatus) bool {
	if f.Lane == "" {
		return sh.Lane == LambdaLane(f.Contract, sh.ID)
	}
	return sh.Lane == f.Lane
}

// Follow notes that a reader reads another stream from now on. What was written behind the last
// record that was read of the old one, and before the new one was enabled, is in neither, or nobody
// reads it any more: it becomes a gap of each shard that was not followed by others. Called again it
// changes nothing, unless the old stream was read on meanwhile: then the gap begins where that ended,
// and the earlier one is closed.
func (s *Store) Follow(ctx context.Context, f Following) error {
	if err := s.follow(ctx, f); err != nil {
		return fmt.Errorf("have %s follow from stream %s to %s: %w", f, f.From, f.To, err)
	}
	return nil
}

func (s *Store) follow(ctx context.Context, f Following) error {
	shards, _, err := s.StreamStatus(ctx, f.From)
	if err != nil {
		return err
	}
	if f.Lane == "" {
		if err := s.nonePending(ctx, f, shards); err != nil {
			return err
		}
	}
	followed := map[pipeline.ShardID]bool{}
	for _, sh := range shards {
		followed[sh.Parent] = true
	}
	behind := map[pipeline.ShardID]string{} // the gap behind a shard's position; "" for none
	reads := map[pipeline.ShardID]ShardStatus{}
	for _, sh := range shards {
		if !f.owns(sh) {
			continue
		}
		reads[sh.ID], behind[sh.ID] = sh, ""
		if sh.At.End && followed[sh.ID] {
			continue
		}
		if behind[sh.ID], err = s.openDisabled(ctx, f, sh); err != nil {
			return err
		}
	}
	if err := s.closeReadOn(ctx, f.From, reads, behind); err != nil {
		return err
	}
	if f.Lane == "" {
		return s.ReadByLambda(ctx, f.Contract, f.To)
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

// openDisabled opens the gap behind a shard's position, and returns its id.
func (s *Store) openDisabled(ctx context.Context, f Following, sh ShardStatus) (string, error) {
	g := pipeline.Gap{
		Missing: *pipeline.Missing{Cause: pipeline.GapDisabled, To: f.At}.Since(sh.At),
		ID:      gapID(sh.ID, sh.At.Seq, string(pipeline.GapDisabled)), Stream: f.From, Shard: sh.ID, Lane: sh.Lane,
		After: sh.At.Seq, State: pipeline.GapOpen, Detected: s.serverNow(),
	}
	item, err := encode(gapKey(g.Stream, g.ID), newGapItem(g))
	if err != nil {
		return g.ID, err
	}
	_, err = s.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName: &s.table, Item: item, ConditionExpression: aws.String("attribute_not_exists(pk)"),
	})
	if there := (*types.ConditionalCheckFailedException)(nil); err != nil && !errors.As(err, &there) {
		return g.ID, fmt.Errorf("open gap %s: %w", g.ID, err)
	}
	return g.ID, nil
}

// closeReadOn closes the gaps behind positions at which a reader left the stream, came back, and read
// on: it leaves nothing out between two positions that it does not write down.
func (s *Store) closeReadOn(ctx context.Context, stream string, reads map[pipeline.ShardID]ShardStatus, behind map[pipeline.ShardID]string) error {
	gaps, err := s.Gaps(ctx, stream)
	if err != nil {
		return err
	}
	for _, g := range gaps {
		sh, ours := reads[g.Shard]
		if !ours || g.Cause != pipeline.GapDisabled || g.State != pipeline.GapOpen || g.ID == behind[g.Shard] {
			continue
		}
		evidence := fmt.Sprintf("read after all: the shard was read on, and is committed up to %s (end %v)", sh.At.Seq, sh.At.End)
		if behind[g.Shard] != "" {
			evidence += "; what lies behind that is gap " + behind[g.Shard]
		}
		if err := s.MoveGap(ctx, g, pipeline.GapClosed, evidence); err != nil && !errors.Is(err, ErrGapMoved) {
			return err
		}
	}
	return nil
}

// nonePending refuses to leave a window behind: its parts may be landed, so that what is repaired as
// a gap could be there twice.
func (s *Store) nonePending(ctx context.Context, f Following, shards []ShardStatus) error {
	for _, sh := range shards {
		if !f.owns(sh) {
			continue
		}
		st, err := s.Lane(ctx, sh.Lane)
		if err != nil {
			return err
		}
		if st.Pending != 0 {
			return fmt.Errorf("lane %s has window %d of the old stream, which is not committed", sh.Lane, st.Pending)
		}
	}
	return nil
}

// readingItem says which of a table's streams the functions of a contract read: pk
// "lambda#<contract>", sk "stream". The lanes of Lambda are of one shard each, and do not tell.
type readingItem struct {
	ARN string `dynamodbav:"arn"`
}

func readingKey(contract string) key { return key{"lambda#" + contract, "stream"} }

// ReadByLambda notes that the functions of a contract read a stream.
func (s *Store) ReadByLambda(ctx context.Context, contract, stream string) error {
	item, err := encode(readingKey(contract), readingItem{ARN: stream})
	if err != nil {
		return err
	}
	_, err = s.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName: &s.table, Item: item, ConditionExpression: aws.String("attribute_not_exists(pk) OR fmt <= :fmt"),
		ExpressionAttributeValues: map[string]types.AttributeValue{":fmt": num(pipeline.FormatVersion)},
	})
	if err != nil {
		return fmt.Errorf("note that contract %s is read from stream %s: %w", contract, stream, err)
	}
	return nil
}

// LambdaReads returns the stream that the functions of a contract read last; "" if Lambda has no
// shard of one. Where it is not noted it is the latest stream of the table, named by its ARN: to find
// that costs a scan.
func (s *Store) LambdaReads(ctx context.Context, contract, table string) (stream string, noted bool, err error) {
	var it readingItem
	if noted, err = s.get(ctx, readingKey(contract), &it); err != nil {
		return "", noted, err
	}
	if noted {
		shards, err := s.LambdaPositions(ctx, it.ARN, contract)
		if err != nil || len(shards) == 0 {
			return "", noted, err
		}
		return it.ARN, noted, nil
	}
	latest := ""
	for item, err := range s.scan(ctx, "sk = :x", "side") {
		if err != nil {
			return "", noted, fmt.Errorf("look for streams that Lambda reads: %w", err)
		}
		arn := strings.TrimPrefix(keyOf(item).pk, "stream#")
		if !strings.HasPrefix(arn, table+"/stream/") || arn <= latest { // they end in the time they were enabled
			continue
		}
		shards, err := s.LambdaPositions(ctx, arn, contract)
		if err != nil {
			return "", noted, err
		}
		if len(shards) > 0 {
			latest = arn
		}
	}
	return latest, noted, nil
}
