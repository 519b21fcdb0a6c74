package pipeline

import (
	"context"
	"io"

	"github.com/apache/arrow-go/v18/arrow"

	"telemetrylake/schemas"
)

// A Source reads every shard of a stream.
type Source interface {
	// Run calls emit with batches until the stream ends or ctx is done. Batches of one shard
	// arrive in order; a child's first batch arrives after its parent is committed to the end.
	// Run blocks while emit blocks and returns emit's error if emit fails.
	Run(ctx context.Context, emit func(Batch) error) error
}

// A Replayer reads ranges again, for recovery and re-landing.
type Replayer interface {
	// Replay calls emit with the records of each range, first to last inclusive, in order. It
	// fails with ErrTrimmed if the stream no longer holds all of them.
	Replay(ctx context.Context, ranges []Range, emit func(Batch) error) error
}

// A Decoder turns the records of a window into rows.
type Decoder interface {
	// Decode is pure: the same contract and records give the same rows in the same order,
	// whatever batches they came in. What does not fit the contract becomes a row of the
	// quarantine table. The caller releases the result.
	Decode(c *schemas.Contract, batches []Batch) (*Rows, error)
}

// Rows are the decoded records of a window, in total order: table, partition, the table's
// order columns, shard, sequence number.
type Rows struct {
	Groups  []Group
	Counts  map[ShardID]Counts
	Reasons map[string]int // quarantined records, by the word in their reason column
}

// A Group is all the rows that a window has for one table and partition.
type Group struct {
	Table     string
	Partition string   // Hive path, dt=2026-11-30
	Order     []string // columns the rows are sorted by, before shard and sequence number
	Rows      arrow.RecordBatch
}

// Release frees the Arrow buffers.
func (r *Rows) Release() {
	for _, g := range r.Groups {
		g.Rows.Release()
	}
	r.Groups = nil
}

// An Encoder writes rows as one self-contained file.
type Encoder interface {
	Encode(w io.Writer, rows arrow.RecordBatch, meta map[string]string) error
}

// A Part is one encoded file of a window.
type Part struct {
	ID        PartID
	Table     string
	Partition string
	Rows      int
	Body      []byte
}

// A Sink lands parts.
type Sink interface {
	// Land returns nil once every part is durable. After an error some may be; calling it
	// again with the same parts leaves one of each, or copies that seal tells apart.
	Land(ctx context.Context, parts []Part) error
}

// A Hold is a lane held by one process: whoever acquires the lane later has a higher token,
// and what an older token begins or commits is refused.
type Hold struct {
	Lane        LaneID
	Incarnation string // random; new when the lane is created or reset
	Token       int64
}

// A State is what a lane's checkpoint holds when it is acquired.
type State struct {
	Hold
	Next    int64     // number of the next window to begin
	Pending *Manifest // begun and not committed, or nil
}

// Checkpoints are a lane's memory.
type Checkpoints interface {
	// Acquire takes the lane over and creates it if it is new. With again set it is a process
	// that has held the lane before and wants it back after a failure: it fails with ErrFenced
	// if another has acquired the lane since, instead of fencing its own successor.
	Acquire(ctx context.Context, lane LaneID, again bool) (State, error)
	// Begin stores m as the lane's pending window, and opens the gaps of the shards that miss
	// records. It succeeds again for the same manifest, and fails with ErrFenced when another
	// process has acquired the lane.
	Begin(ctx context.Context, h Hold, m *Manifest) error
	// Commit ends the pending window and advances its shards. It succeeds again for the same
	// manifest, and fails with ErrFenced as Begin does.
	Commit(ctx context.Context, h Hold, m *Manifest) error
	// Position returns up to where a shard of the lane is committed. It fails for a shard that
	// the lane does not own.
	Position(ctx context.Context, h Hold, stream string, s ShardID) (Position, error)
}

// Gaps writes down what was begun and cannot be landed any more.
type Gaps interface {
	// Lose opens a gap for each shard of which the pending window m took records, before m is
	// committed as it stands. It succeeds again for the same manifest, and fails with ErrFenced
	// as Begin does.
	Lose(ctx context.Context, h Hold, m *Manifest) error
}

// Contracts stores contracts by their hash, so that a pending window is replayed under the
// contract it was begun with.
type Contracts interface {
	PutContract(ctx context.Context, c *schemas.Contract) error
	Contract(ctx context.Context, hash string) (*schemas.Contract, error)
}

// A Copy is one occurrence of a part: the second copy inside the same object is not the first.
type Copy struct {
	Key    string // of the staging object
	ETag   string
	Offset int64 // of the part's first byte
}

// A Claim is the ledger's word on one part.
type Claim struct {
	Part      PartID
	Void      bool // the part never will be in the lake
	Copy      Copy
	Name      string // of the lake object, a function of the copy's object, table, partition, schema and Round
	Round     int
	Published bool // the object exists and lists the part
}

// WindowState is the stored state of a window.
type WindowState string

// States of a window.
const (
	WindowPending   WindowState = "pending"
	WindowCommitted WindowState = "committed"
	WindowSealed    WindowState = "sealed"  // every part is published
	WindowVoid      WindowState = "void"    // given up: every part is published or void, and some are void
	WindowFolded    WindowState = "folded"  // at or below its incarnation's watermark: sealed, and its item is gone
	WindowUnknown   WindowState = "unknown" // of an unknown lane or incarnation, or never begun
)

// A Ledger remembers which copy of each part is in the lake.
type Ledger interface {
	// Window returns the state of a window and, while the item exists, its manifest. A window that
	// was given up stays void for ever, also when its item is gone.
	Window(ctx context.Context, w WindowID) (WindowState, *Manifest, error)
	// Claim stores each claim whose part has none and whose window is pending or committed,
	// and returns for each what the ledger holds now. It fails with ErrWindowClosed when a
	// window no longer takes claims: look at its state again.
	Claim(ctx context.Context, claims []Claim) ([]Claim, error)
	// Move replaces an unpublished claim by another, if the ledger still holds exactly from,
	// and returns what it holds now.
	Move(ctx context.Context, from, to Claim) (Claim, error)
	// Publish marks claims published under their names. It is idempotent.
	Publish(ctx context.Context, claims []Claim) error
}
