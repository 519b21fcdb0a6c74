package pipeline

import "time"

// StreamRetention is how long a stream holds its records: DynamoDB's developer guide, Streams.
const StreamRetention = 24 * time.Hour

// A GapCause says why records were never read.
type GapCause string

// Causes of a gap.
const (
	GapTrimmed   GapCause = "trimmed"   // the shard's position is older than what the stream still holds
	GapVanished  GapCause = "vanished"  // the shard is gone from the stream and was not read to its end
	GapWindow    GapCause = "window"    // a window was begun of the records and could not be landed before they aged out
	GapRebuilt   GapCause = "rebuilt"   // the positions were rebuilt from the lake, and nothing was found of what lies between
	GapDisabled  GapCause = "disabled"  // the stream was disabled and another one enabled later
	GapDiscarded GapCause = "discarded" // Lambda gave a batch up and reported it to its on-failure destination
)

// GapState is the stored state of a gap.
type GapState string

// States of a gap.
const (
	GapOpen      GapState = "open"
	GapRepairing GapState = "repairing"
	GapClosed    GapState = "closed"
)

// A Missing is what a reader knows of records of a shard that it could not read: they lie between
// the shard's position and the first record that it could.
type Missing struct {
	Cause GapCause  `json:"cause"`
	From  time.Time `json:"from,omitzero"` // what was created before it has been read; zero if unknown
	To    time.Time `json:"to,omitzero"`   // what was created after it is read; zero if unknown
}

// A Gap is an entry of the gap ledger: records of one shard that aged out before they were read,
// or before a window of them was landed.
type Gap struct {
	Missing
	ID       string // unique within the stream: shard, position and a tail, with '#' between them
	Stream   string // ARN
	Shard    ShardID
	Lane     LaneID         // that owned the shard when the gap was found
	After    SequenceNumber // last record read before the gap; "" if none was
	Before   SequenceNumber // first record read after it; "" if none was by then, or the shard ended with the gap
	First    SequenceNumber // for GapWindow and GapDiscarded: the first of the missing records, "" otherwise
	Last     SequenceNumber // and the last
	Window   *WindowID      // for GapWindow: parts of it that were landed may still be published
	State    GapState
	Detected time.Time // server clock
	Evidence string    // how it was closed
	Repair   string    // who repairs it, or did: a name that no other repair has
}

// Since is m, with what the shard's position says of its beginning where m does not know it.
func (m Missing) Since(p Position) *Missing {
	if m.From.IsZero() {
		m.From = p.Created
		if p.TipAt.After(m.From) {
			m.From = p.TipAt
		}
	}
	return &m
}
