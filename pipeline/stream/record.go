package stream

import (
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
)

// Who a removal by TTL says it is: the API reference of Identity.
const (
	ttlIdentity  = "Service"
	ttlPrincipal = "dynamodb.amazonaws.com"
)

// convert reads a page of one shard's records. Their numbers must rise from after: a server
// that starts over where it should go on would double rows, so the page is refused.
func convert(shard pipeline.ShardID, after pipeline.SequenceNumber, page []types.Record) (pipeline.Batch, error) {
	b := pipeline.Batch{Shard: shard}
	if len(page) == 0 {
		return b, nil
	}
	b.Records = make([]pipeline.Record, len(page))
	for i := range page {
		rec, size, err := convertRecord(shard, &page[i])
		if err != nil {
			return b, fmt.Errorf("read record of shard %s after %q: %w", shard, after, err)
		}
		if rec.Seq.Compare(after) <= 0 {
			return b, fmt.Errorf("read shard %s: record %s came after %s: the server does not keep the order of sequence numbers", shard, rec.Seq, after)
		}
		after = rec.Seq
		b.Records[i] = rec
		b.Bytes += size
	}
	return b, nil
}

func convertRecord(shard pipeline.ShardID, in *types.Record) (rec pipeline.Record, size int, err error) {
	d := in.Dynamodb
	if d == nil || aws.ToString(d.SequenceNumber) == "" {
		return rec, 0, errors.New("it has no sequence number")
	}
	rec = pipeline.Record{
		Shard: shard,
		Seq:   pipeline.SequenceNumber(*d.SequenceNumber),
		Op:    in.EventName,
		Keys:  d.Keys,
		New:   d.NewImage,
	}
	switch {
	case len(d.Keys) == 0:
		return rec, 0, fmt.Errorf("record %s has no keys", rec.Seq)
	case d.ApproximateCreationDateTime == nil:
		return rec, 0, fmt.Errorf("record %s has no creation time", rec.Seq)
	}
	rec.Created = d.ApproximateCreationDateTime.UTC()
	switch in.EventName {
	case types.OperationTypeInsert, types.OperationTypeModify:
		if d.NewImage == nil {
			return rec, 0, fmt.Errorf("record %s (%s) has no new image: the stream's view type must be NEW_IMAGE or NEW_AND_OLD_IMAGES", rec.Seq, in.EventName)
		}
	case types.OperationTypeRemove:
		rec.New = nil
		if id := in.UserIdentity; id != nil {
			rec.Expired = aws.ToString(id.Type) == ttlIdentity && aws.ToString(id.PrincipalId) == ttlPrincipal
		}
	default:
		return rec, 0, fmt.Errorf("record %s has the unknown event name %q", rec.Seq, in.EventName)
	}
	return rec, int(aws.ToInt64(d.SizeBytes)), nil
}
