package checkpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
)

// A Way is how a stream's parts come into a lake.
type Way string

// Ways into a lake.
const (
	ThroughStaging Way = "firehose" // seal makes objects of what Firehose joined
	AtOnce         Way = "objects"  // each part is an object
)

// lakeItem: pk "lake#<lake>", sk "way". Stream lanes land in one lake in one way.
type lakeItem struct {
	Way string `dynamodbav:"way"`
}

func (it lakeItem) check() error {
	if Way(it.Way) != ThroughStaging && Way(it.Way) != AtOnce {
		return fmt.Errorf("its way is %q", it.Way)
	}
	return nil
}

func lakeKey(lake string) key { return key{"lake#" + lake, "way"} }

// LandIn notes in which way stream lanes land in a lake, s3://bucket/prefix/ or dir:/path, and fails
// with a PersonError if they land there in the other: one that is read again after a restored or
// lost table would not find what the other way left of it. The first to ask decides.
func (s *Store) LandIn(ctx context.Context, lake string, way Way) error {
	k := lakeKey(lake)
	item, err := encode(k, lakeItem{string(way)})
	if err != nil {
		return err
	}
	_, err = s.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName: &s.table, Item: item,
		ConditionExpression:                 aws.String("attribute_not_exists(pk)"),
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	var there *types.ConditionalCheckFailedException
	if !errors.As(err, &there) {
		if err != nil {
			return fmt.Errorf("note how lanes land in %s: %w", lake, err)
		}
		return nil
	}
	var it lakeItem
	if err := decode(k, there.Item, &it); err != nil {
		return err
	}
	if Way(it.Way) != way {
		return pipeline.NeedPerson(fmt.Errorf("stream lanes land in %s by way of %s, and this one would by way of %s", lake, it.Way, way),
			"land as they do (--land), or give this one a lake of its own; to change all, stop them, wait until streamer windows list --unsealed is empty, and remove the item lake#"+lake+" from the checkpoint table")
	}
	return nil
}
