// Package schemas knows the table contracts: one YAML file says everything about a
// table, and every other shape of it (Arrow, Parquet, Athena DDL, DynamoDB table) is
// derived from what this package returns. Its one rule: a contract that parses is a
// contract that every deriver can serve.
package schemas

import (
	"time"
)

// A Contract describes one DynamoDB table and the lake tables made of it.
type Contract struct {
	Format      int    // version of the contract file's format: 1
	Name        string // name of the readings table in the lake and in Athena
	Description string
	Table       string // name of the DynamoDB table
	Mode        Mode
	Keys        Keys
	TTL         string        // name of the Number attribute holding epoch seconds; "" without TTL
	Retention   time.Duration // how long the hot table keeps a row; whole days
	Indexes     []Index
	Columns     []Column
	EventTime   string // name of the column that says when the reading was taken
	Layout      Layout
	OnModify    OnModify
	OnRemove    OnRemove
	OnExpire    OnExpire
	Positions   bool // readings carry stream_shard and stream_seq

	text []byte
}

// Mode says whether rows of the table are written once or overwritten.
type Mode string

// Modes of a table.
const (
	Append   Mode = "append"   // a row is a reading: written once, never changed
	Versions Mode = "versions" // a row is overwritten; the lake keeps each version
)

// OnModify says what the overwriting of a reading becomes in an append-only table.
type OnModify string

// What a MODIFY becomes.
const (
	ModifyChanges OnModify = "changes" // a row of the changes table (default)
	ModifyRow     OnModify = "row"     // a row of the readings table
	ModifyReject  OnModify = "reject"  // in no table: refused and counted
)

// OnRemove says what the deletion of an item by a user becomes.
type OnRemove string

// What a deletion becomes.
const (
	RemoveTombstones OnRemove = "tombstones" // a row of the tombstones table (default)
	RemoveReject     OnRemove = "reject"     // in no table: refused and counted
)

// OnExpire says what a removal by TTL becomes: the one on which the service's identity stands.
type OnExpire string

// What a removal by TTL becomes.
const (
	ExpireIgnore     OnExpire = "ignore"     // nothing: the lake keeps what the table lets go (default)
	ExpireTombstones OnExpire = "tombstones" // a row of the tombstones table, as of a user's deletion
)

// Causes of a deletion, the values of column delete_cause.
const (
	CauseTTL     = "ttl"     // the service's identity stood on the removal
	CauseUser    = "user"    // no identity stood on it: somebody asked for it
	CauseUnknown = "unknown" // another identity, or none though the item had expired, or no stream record at all
)

// Keys are the primary key of the DynamoDB table.
type Keys struct {
	Partition Key
	Sort      Key // zero for a table without sort key
}

// A Key is one key attribute; its text is composed by Pattern.
type Key struct {
	Attribute string
	Type      string  // S or N, as in DynamoDB
	Pattern   Pattern // zero for a key of type N
}

// An Index is a global secondary index.
type Index struct {
	Name      string
	Partition string // attribute
	Sort      string // attribute; may be empty
	Sparse    bool   // told to readers only: not every item has the key
}

// A Column is one column of a lake table.
type Column struct {
	Name        string // lower case
	Attribute   string // path in the item, map keys joined by dots; "" if Key is set
	Key         string // capture of a key pattern that the value comes from; "" if Attribute is set; text or an ISO 8601 time
	Type        Type
	Encoding    Encoding // how a timestamp stands in the item; "" for other types
	Unit        string
	Nullable    bool
	Description string
	System      System // set for columns that we add, "" for the contract's own
}

// Encoding says how a timestamp stands in an item.
type Encoding string

// Encodings of a timestamp.
const (
	ISO8601     Encoding = "iso8601"            // S: 2026-11-30T16:12:02.123Z, any fraction and offset
	EpochSecond Encoding = "epoch_seconds"      // N
	EpochMilli  Encoding = "epoch_milliseconds" // N
)

// System names the columns that the pipeline adds.
type System string

// System columns. Their names in the lake are their values.
const (
	StreamCreatedAt System = "stream_created_at" // timestamp, ApproximateCreationDateTime, whole seconds; null where backfill cannot know it
	StreamShard     System = "stream_shard"      // string, as received
	StreamSeq       System = "stream_seq"        // string, as received
	DeleteCause     System = "delete_cause"      // string: CauseTTL, CauseUser or CauseUnknown
	ItemKeys        System = "item_keys"         // string: the key attributes as DynamoDB JSON
	ItemJSON        System = "item"              // string: the new image as DynamoDB JSON
	EventName       System = "event_name"        // string: INSERT, MODIFY or REMOVE
	Reason          System = "reason"            // string: a stable word for why a record was quarantined
	Detail          System = "detail"            // string: column and cause, for people
	ContractHash    System = "contract_hash"     // string: the contract that refused it
)

// Layout is how a lake table is partitioned: by UTC day or hour, in the path only.
type Layout struct {
	Unit           Unit
	FirstPartition time.Time // rows before it are quarantined, never invisible
	LastPartition  time.Time // a day, inclusive; zero: the day after now
}

// Unit is the width of a partition.
type Unit string

// Units of a partition.
const (
	Day  Unit = "day"  // dt=2026-11-30
	Hour Unit = "hour" // dt=2026-11-30/hour=07
)

// Role says which of a contract's lake tables a table is.
type Role string

// Roles of a lake table.
const (
	Readings   Role = "readings"
	Changes    Role = "changes"
	Tombstones Role = "tombstones"
	Quarantine Role = "quarantine"
)

// A Table is one table of the lake with all its columns, in file order.
type Table struct {
	Name        string // Contract.Name, or that with _changes, _tombstones, _quarantine
	Role        Role
	Description string // one line, for people
	Columns     []Column
	Layout      Layout
	// TimeColumn is the column whose value decides the partition and orders the rows of a
	// partition key: the event time in readings and changes, stream_created_at elsewhere.
	TimeColumn string
}
