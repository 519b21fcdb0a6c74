package stream

import (
	"errors"
	"fmt"
	"strings"
	"time"

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
// that starts over where it should go on would double rows, so the page is refused. Reading it
// again gives the same, so a person is needed; the contract's own misfits are no matter of the page.
func convert(shard pipeline.ShardID, after pipeline.SequenceNumber, page []types.Record) (pipeline.Batch, error) {
	b := pipeline.Batch{Shard: shard}
	if len(page) == 0 {
		return b, nil
	}
	b.Records = make([]pipeline.Record, len(page))
	for i := range page {
		rec, size, err := convertRecord(shard, &page[i])
		if err != nil {
			return b, pipeline.NeedPerson(fmt.Errorf("read record of shard %s after %q: %w", shard, after, err),
				"check the table's stream and the endpoint that is called; nothing behind this record is read")
		}
		if rec.Seq.Compare(after) <= 0 {
			return b, pipeline.NeedPerson(fmt.Errorf("read shard %s: record %s came after %s: the server does not keep the order of sequence numbers", shard, rec.Seq, after),
				"check the endpoint that is called; it cannot be read exactly once")
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
	if strings.Trim(*d.SequenceNumber, "0123456789") != "" {
		return rec, 0, fmt.Errorf("its sequence number %.64q is no number", *d.SequenceNumber)
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
	// AWS rounds down to the second; moto does not.
	rec.Created = d.ApproximateCreationDateTime.UTC().Truncate(time.Second)
	switch in.EventName {
	case types.OperationTypeInsert, types.OperationTypeModify:
		if d.NewImage == nil {
			return rec, 0, fmt.Errorf("record %s (%s) has no new image: the stream's view type must be NEW_IMAGE or NEW_AND_OLD_IMAGES", rec.Seq, in.EventName)
		}
	case types.OperationTypeRemove:
		rec.New, rec.Old = nil, d.OldImage
		if id := in.UserIdentity; id != nil {
			kind, who := aws.ToString(id.Type), aws.ToString(id.PrincipalId)
			rec.Expired = kind == ttlIdentity && who == ttlPrincipal
			rec.Foreign = !rec.Expired && kind+who != ""
		}
	default:
		return rec, 0, fmt.Errorf("record %s has the unknown event name %q", rec.Seq, in.EventName)
	}
	return rec, int(aws.ToInt64(d.SizeBytes)), nil
}
