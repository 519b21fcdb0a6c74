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

// A Position says up to where a shard has been committed. Its times are the server's clock, zero
// where unknown: a shard of which all was read less than a day ago can have lost nothing.
type Position struct {
	Seq     SequenceNumber // last committed number; "" before the first
	End     bool           // the shard is closed and committed to its end
	Created time.Time      // of the last committed record, whole seconds rounded down
	TipAt   time.Time      // all that had been created by then is committed
	StartAt time.Time      // the start mark: reading began here at this time, not at the stream's beginning
	MetAt   time.Time      // a listing of this time named the shard for the first time
	Parent  ShardID        // which has to be read to its end first, as far as it is there
	// AwayAt is set for a shard that came when nobody had read the stream for a day: what it first
	// held may have aged out, and what had been created by then had been read.
	AwayAt time.Time
	Orphan bool // its ancestors came, and aged out, while nobody read
}

// Orphaned reports whether the gap of the shard's ancestors is still to be written.
func (p Position) Orphaned() bool {
	return p.Orphan && !p.AwayAt.IsZero() && p.Seq == "" && !p.End && !p.TipAt.After(p.AwayAt)
}

// A Record is one item-level change.
type Record struct {
	Shard   ShardID
	Seq     SequenceNumber
	Op      types.OperationType
	Created time.Time // ApproximateCreationDateTime: whole seconds, rounded down
	Expired bool      // a removal by TTL: the service's identity stood on it
	Foreign bool      // a removal on which another identity stood
	Keys    map[string]types.AttributeValue
	New     map[string]types.AttributeValue // nil for REMOVE
	Old     map[string]types.AttributeValue // what a REMOVE removed, where the stream has old images
}

// A Batch is a run of consecutive records of one shard.
type Batch struct {
	Shard   ShardID
	Records []Record
	End     bool // the shard is closed and nothing follows these records
	Bytes   int  // size of the records as received, 0 if unknown

	// Missing is set where records between the shard's position and the first of these aged
	// out. A batch may hold nothing else: what is missing is written down as soon as it is known.
	Missing *Missing
}

// A Shard is what a listing says of a shard.
type Shard struct {
	Stream string // ARN
	ID     ShardID
	Parent ShardID // "" for a root, also when the parent is no longer listed

	Later  bool // the stream was met before: the shard may have come while nobody read
	Orphan bool // the parent is neither there nor ever was met

	MetAt   time.Time // the listing's time, by the server's clock; stored with a shard that is new
	StartAt time.Time // the start mark to store with a shard that is new; zero: none
}

// An Object is what a listing says of a stored object.
type Object struct {
	Key  string
	ETag string // without quotes
	Size int64
}
