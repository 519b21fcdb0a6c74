package schemas

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Text is the contract's file, byte for byte.
func (c *Contract) Text() []byte { return slices.Clone(c.text) }

// Hash names the contract's text: the first 16 bytes of its SHA-256, in hex.
func (c *Contract) Hash() string {
	sum := sha256.Sum256(c.text)
	return hex.EncodeToString(sum[:16])
}

// Column finds one of the contract's own columns.
func (c *Contract) Column(name string) (Column, bool) { return findColumn(c.Columns, name) }

// Column finds a column of the table, the system's own included.
func (t Table) Column(name string) (Column, bool) { return findColumn(t.Columns, name) }

func findColumn(columns []Column, name string) (Column, bool) {
	i := slices.IndexFunc(columns, func(c Column) bool { return c.Name == name })
	if i < 0 {
		return Column{}, false
	}
	return columns[i], true
}

// Attributes are the key attributes, partition key first.
func (k Keys) Attributes() []string {
	if k.Sort.Attribute == "" {
		return []string{k.Partition.Attribute}
	}
	return []string{k.Partition.Attribute, k.Sort.Attribute}
}

// Key finds the key attribute whose pattern has the capture.
func (k Keys) Key(capture string) (Key, bool) {
	for _, key := range []Key{k.Partition, k.Sort} {
		if slices.Contains(key.Pattern.Captures(), capture) {
			return key, true
		}
	}
	return Key{}, false
}

// AttributeType is the DynamoDB type, S, N, B or BOOL, of a top-level attribute that is a
// key, the TTL, or has a scalar column. It serves the attribute definitions of the table
// and its indexes. ok is false for any other attribute.
func (c *Contract) AttributeType(attribute string) (typ string, ok bool) {
	for _, key := range []Key{c.Keys.Partition, c.Keys.Sort} {
		if key.Attribute == attribute && attribute != "" {
			return key.Type, true
		}
	}
	if attribute == c.TTL && attribute != "" {
		return "N", true
	}
	for _, col := range c.Columns {
		if col.Attribute == attribute && attribute != "" && !strings.Contains(attribute, ".") && !col.Type.Nested() {
			return col.ItemType(), true
		}
	}
	return "", false
}

// ItemType is the DynamoDB type of the value a column comes from: S, N, BOOL, B, L (also
// the set types, for arrays) or M. A column that comes from a key pattern is S.
func (c Column) ItemType() string {
	switch c.Type.Kind {
	case Int, BigInt, Double, Decimal:
		return "N"
	case Timestamp:
		if c.Encoding == ISO8601 {
			return "S"
		}
		return "N"
	case Boolean:
		return "BOOL"
	case Binary:
		return "B"
	case Array:
		return "L"
	case Map, Struct:
		return "M"
	}
	return "S"
}

// Tables are all lake tables of the contract. A mutable table has no changes: each of its
// versions is a row of the first table.
func (c *Contract) Tables() []Table {
	roles := []Role{Readings, Changes, Tombstones, Quarantine}
	if c.Mode == Versions {
		roles = []Role{Readings, Tombstones, Quarantine}
	}
	tables := make([]Table, len(roles))
	for i, r := range roles {
		tables[i] = c.LakeTable(r)
	}
	return tables
}

const latestSuffix = "_latest"

// LatestName is the name of the view that shows the latest version of each item of a mutable
// table; "" for a table of readings, each of which is the only one of its item.
func (c *Contract) LatestName() string {
	if c.Mode != Versions {
		return ""
	}
	return c.Name + latestSuffix
}

// LakeTable is the contract's lake table of a role. Rows of readings and changes lie in
// the partition of their event time, all others in that of the record's creation, for they
// may have no event time.
func (c *Contract) LakeTable(r Role) Table {
	t := Table{Name: c.Name, Role: r, Description: c.Description, Layout: c.Layout, TimeColumn: c.EventTime}
	if r != Readings {
		t.Name += "_" + string(r)
		t.Description = fmt.Sprintf(roleDescriptions[r], c.Name)
	}
	switch r {
	case Readings:
		t.Columns = append(slices.Clone(c.Columns), nullable(systemColumn(StreamCreatedAt)))
		if c.Mode == Versions {
			// Versions belong to an item, and the columns need not tell items apart: two key texts
			// can be the same instant.
			t.Columns = slices.Insert(t.Columns, len(c.Columns), systemColumn(ItemKeys))
		}
		if c.Positions || c.Mode == Versions {
			// A row that was backfilled has no place in the stream.
			t.Columns = append(t.Columns, nullable(systemColumn(StreamShard)), nullable(systemColumn(StreamSeq)))
		}
	case Changes:
		t.Columns = append(slices.Clone(c.Columns), systemColumns(StreamCreatedAt, StreamShard, StreamSeq)...)
	case Tombstones:
		t.Columns = append(c.keyColumns(), systemColumns(ItemKeys, DeleteCause, StreamCreatedAt, StreamShard, StreamSeq)...)
	case Quarantine:
		t.Columns = systemColumns(ItemKeys)
		t.Columns = append(t.Columns, nullable(systemColumn(ItemJSON)))
		t.Columns = append(t.Columns, systemColumns(EventName, Reason, Detail, ContractHash, StreamCreatedAt)...)
		t.Columns = append(t.Columns, nullable(systemColumn(StreamShard)), nullable(systemColumn(StreamSeq)))
	}
	if r == Tombstones || r == Quarantine {
		t.TimeColumn = string(StreamCreatedAt)
		// The bounds are on event times: a contract that ends in 2016 still gets a
		// tombstone today.
		t.Layout.LastPartition = time.Time{}
		if t.Layout.FirstPartition.After(firstRecord) {
			t.Layout.FirstPartition = firstRecord
		}
	}
	return t
}

// firstRecord is a day before which no record was created, unless the contract says that
// there are readings before it. It keeps tables partitioned by creation narrow.
var firstRecord = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// keyColumns are the columns that the key alone gives, for rows that have no image. The
// others are left out rather than null, so that nobody takes them for unknown.
func (c *Contract) keyColumns() []Column {
	var columns []Column
	for _, col := range c.Columns {
		if col.Key != "" || slices.Contains(c.Keys.Attributes(), col.Attribute) {
			// A deleted item's key need not fit the pattern, and its deletion counts nonetheless.
			columns = append(columns, nullable(col))
		}
	}
	return columns
}

func nullable(c Column) Column {
	c.Nullable = true
	return c
}

func systemColumns(names ...System) []Column {
	columns := make([]Column, len(names))
	for i, n := range names {
		columns[i] = systemColumn(n)
	}
	return columns
}

var roleDescriptions = map[Role]string{
	Changes:    "Rows of %s that were written over, as they read afterwards",
	Tombstones: "Items of %s that were deleted, and by whom",
	Quarantine: "Records that are not in %s, with the reason",
}

var systemDescriptions = map[System]string{
	StreamCreatedAt: "When DynamoDB made the stream record, in whole seconds",
	StreamShard:     "Shard of the stream record",
	StreamSeq:       "Sequence number of the stream record, to compare as a number",
	DeleteCause:     "Who deleted the item: user, ttl or unknown",
	ItemKeys:        "Key attributes of the item as DynamoDB JSON",
	ItemJSON:        "The item as DynamoDB JSON",
	EventName:       "INSERT, MODIFY or REMOVE",
	Reason:          "Why the record is not in the table, one stable word",
	Detail:          "Column and cause, for people",
	ContractHash:    "Hash of the contract that refused the record",
}

func systemColumn(s System) Column {
	typ := Type{Kind: String}
	if s == StreamCreatedAt {
		typ = Type{Kind: Timestamp}
	}
	return Column{Name: string(s), Type: typ, System: s, Description: systemDescriptions[s]}
}
