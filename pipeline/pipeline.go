// Package pipeline knows how change records become rows of a lake exactly once: the
// vocabulary, the stages' interfaces, and the lane that runs windows through begin, land
// and commit. Its one rule: a window is a pure function of its records and its manifest.
//
// # Delivery guarantee
//
// Every record of a stream is in the lake once, physically. A window's manifest is stored
// before any part of it is landed, so that whoever finds it pending lands the same rows
// again; seal decides, by claims in the ledger, which copy of each part is published.
package pipeline

import (
	"cmp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"
)

// A ShardID names a shard of a DynamoDB stream.
type ShardID string

// A SequenceNumber is a position in a shard: a decimal number of any length (AWS promises
// 21 to 40 digits, LocalStack sends more). "" comes before all.
type SequenceNumber string

// Compare orders sequence numbers as numbers.
func (a SequenceNumber) Compare(b SequenceNumber) int {
	if a == "" || b == "" {
		return cmp.Compare(len(a), len(b))
	}
	x, y := strings.TrimLeft(string(a), "0"), strings.TrimLeft(string(b), "0")
	return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y))
}

// A Position says up to where a shard has been committed.
type Position struct {
	Seq SequenceNumber // last committed number; "" before the first
	End bool           // the shard is closed and committed to its end
}

// A Record is one item-level change.
type Record struct {
	Shard   ShardID
	Seq     SequenceNumber
	Op      types.OperationType
	Created time.Time // ApproximateCreationDateTime: whole seconds, rounded down
	Expired bool      // a removal by TTL: the service's identity stood on it
	Keys    map[string]types.AttributeValue
	New     map[string]types.AttributeValue // nil for REMOVE
}

// A Batch is a run of consecutive records of one shard.
type Batch struct {
	Shard   ShardID
	Records []Record
	End     bool // the shard is closed and nothing follows these records
	Bytes   int  // size of the records as received, 0 if unknown
}

// A Shard is what a listing says of a shard.
type Shard struct {
	Stream string // ARN
	ID     ShardID
	Parent ShardID // "" for a root, also when the parent is no longer listed
}

// An Object is what a listing says of a stored object.
type Object struct {
	Key  string
	ETag string // without quotes
	Size int64
}
