package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"telemetrylake/schemas"
)

// Stages are what a lane runs a window through.
type Stages struct {
	Decoder     Decoder
	Encoder     Encoder
	Sink        Sink
	Checkpoints Checkpoints
	Contracts   Contracts
	Replayer    Replayer
	Gaps        Gaps // nil: a pending window whose records aged out stops the lane
}

// LaneOptions say which lane it is and how its parts are cut.
type LaneOptions struct {
	Lane     LaneID
	Stream   string // ARN
	Contract *schemas.Contract
	Parts    PartSize
	Lake     string       // of which parts are objects at once; "": they go to staging
	Log      *slog.Logger // nil: none
}

// A Lane makes windows, one after the other. It is not safe for concurrent use. After an
// error, Open must be called again: it finds out how far the failed window came.
type Lane struct {
	stages Stages
	opt    LaneOptions
	cut    cutter
	log    *slog.Logger

	held      bool // acquired at least once by this process
	open      bool
	state     State
	positions map[ShardID]Position
	stored    map[string]bool // contract hashes known to be stored
}

// NewLane returns a lane that is not open yet.
func NewLane(s Stages, o LaneOptions) (*Lane, error) {
	if !o.Lane.Valid() {
		return nil, fmt.Errorf("make lane %q: a lane's name has lower-case letters, digits, '_', '-' and '.'", o.Lane)
	}
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Lane{
		stages: s, opt: o, log: log.With("lane", o.Lane),
		cut:    newCutter(s.Encoder, o.Parts),
		stored: map[string]bool{},
	}, nil
}

// Open acquires the lane and finishes the window that an earlier holder left pending.
func (l *Lane) Open(ctx context.Context) error {
	l.open, l.positions = false, map[ShardID]Position{}
	st, err := l.stages.Checkpoints.Acquire(ctx, l.opt.Lane, l.held)
	if err != nil {
		return fmt.Errorf("open lane %s: %w", l.opt.Lane, err)
	}
	l.state, l.held = st, true
	if st.Pending != nil {
		l.log.Info("recovering pending window", "window", st.Pending.Window.String(), "parts", len(st.Pending.Parts))
		if err := l.recover(ctx, st.Pending); err != nil {
			return fmt.Errorf("recover window %s: %w", st.Pending.Window, err)
		}
	}
	l.open = true
	return nil
}

// recover lands a pending window again, under the contract it was begun with and cut by the
// rows its manifest says: bytes may differ, rows may not.
func (l *Lane) recover(ctx context.Context, m *Manifest) error {
	if m.Stream != l.opt.Stream {
		return NeedPerson(fmt.Errorf("it is of stream %s, this lane reads %s", m.Stream, l.opt.Stream),
			"start with the stream that was read before, or hand the lane over first")
	}
	if m.Lake != l.opt.Lake {
		return otherWay(m, l.opt.Lake)
	}
	c, err := l.stages.Contracts.Contract(ctx, m.Contract)
	if err != nil {
		return err
	}
	var batches []Batch
	err = l.stages.Replayer.Replay(ctx, m.Ranges(), func(b Batch) error {
		batches = append(batches, b)
		return nil
	})
	if errors.Is(err, ErrTrimmed) && l.stages.Gaps != nil {
		// Nobody can land it any more: what of it is landed may still be published. Its gap is open
		// before the positions advance, so that at no time records are in neither.
		l.log.Error("the records of a pending window have aged out: its gap is open and reading goes on",
			"window", m.Window.String(), "cause", err)
		if err := l.stages.Gaps.Lose(ctx, l.state.Hold, m); err != nil {
			return fmt.Errorf("open its gaps: %w", err)
		}
		return l.finish(ctx, m, nil)
	}
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	parts, err := l.again(c, m, batches)
	if err != nil {
		return err
	}
	return l.finish(ctx, m, parts)
}

// Window makes one window of the batches and returns once it is committed. Records at or
// before a shard's committed position are skipped. It makes several windows where one
// manifest would be too large, or where records of a shard are missing between others; it
// returns those that were committed, and none if nothing was left to do.
func (l *Lane) Window(ctx context.Context, batches []Batch) ([]*Manifest, error) {
	if !l.open {
		return nil, fmt.Errorf("make window: lane %s is not open", l.opt.Lane)
	}
	ms, err := l.window(ctx, batches)
	if err != nil {
		l.open = false
		return ms, fmt.Errorf("lane %s: window %d: %w", l.opt.Lane, l.state.Next, err)
	}
	return ms, nil
}

func (l *Lane) window(ctx context.Context, batches []Batch) ([]*Manifest, error) {
	if i := secondPart(batches); i > 0 {
		return l.both(ctx, batches[:i], batches[i:])
	}
	batches, shards, err := l.ranges(ctx, batches)
	if err != nil || len(shards) == 0 {
		return nil, err
	}
	m := &Manifest{
		Format: FormatVersion, Layout: LayoutVersion,
		Window: WindowID{l.opt.Lane, l.state.Incarnation, l.state.Next},
		Stream: l.opt.Stream, Contract: l.opt.Contract.Hash(), Shards: shards, Lake: l.opt.Lake,
	}
	parts, err := l.encode(l.opt.Contract, m, batches)
	if errors.Is(err, errTooLarge) {
		return l.halves(ctx, batches)
	}
	if err != nil {
		return nil, err
	}
	if !l.stored[m.Contract] {
		if err := l.stages.Contracts.PutContract(ctx, l.opt.Contract); err != nil {
			return nil, err
		}
		l.stored[m.Contract] = true
	}
	if err := l.stages.Checkpoints.Begin(ctx, l.state.Hold, m); err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	if err := l.finish(ctx, m, parts); err != nil {
		return nil, err
	}
	return []*Manifest{m}, nil
}

// halves makes two windows, the first of the earlier half of the records.
func (l *Lane) halves(ctx context.Context, batches []Batch) ([]*Manifest, error) {
	first, second := split(batches)
	if len(second) == 0 {
		return nil, fmt.Errorf("split window of one record: %w", errTooLarge)
	}
	return l.both(ctx, first, second)
}

func (l *Lane) both(ctx context.Context, first, second []Batch) ([]*Manifest, error) {
	ms, err := l.window(ctx, first)
	if err != nil {
		return ms, err
	}
	more, err := l.window(ctx, second)
	return append(ms, more...), err
}

// secondPart returns the index of the first batch that misses records behind others of its shard:
// a range has no hole, so another window begins there. It is 0 if there is none.
func secondPart(batches []Batch) int {
	for i, b := range batches {
		if b.Missing != nil && slices.ContainsFunc(batches[:i], func(a Batch) bool { return a.Shard == b.Shard }) {
			return i
		}
	}
	return 0
}

// split cuts batches in the middle of their records. Any prefix of a list of batches keeps
// the order of each shard, so one batch at most is cut in two.
func split(batches []Batch) (first, second []Batch) {
	total := 0
	for _, b := range batches {
		total += len(b.Records)
	}
	half := total / 2
	for i, b := range batches {
		n := len(b.Records)
		if n < half {
			half -= n
			continue
		}
		head := Batch{Shard: b.Shard, Records: b.Records[:half], Missing: b.Missing}
		b.Records, b.Missing = b.Records[half:], nil
		if len(head.Records) == 0 {
			break
		}
		return append(slices.Clone(batches[:i]), head), append([]Batch{b}, batches[i+1:]...)
	}
	return batches, nil
}

// finish lands the parts of a window that is begun, and commits it.
func (l *Lane) finish(ctx context.Context, m *Manifest, parts []Part) error {
	if len(parts) > 0 {
		if err := l.stages.Sink.Land(ctx, parts); err != nil {
			return fmt.Errorf("land: %w", err)
		}
	}
	if err := l.stages.Checkpoints.Commit(ctx, l.state.Hold, m); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	for _, s := range m.Shards {
		l.positions[s.Shard] = s.Position()
	}
	l.state.Next, l.state.Pending = m.Window.N+1, nil
	c := m.Counts()
	l.log.Info("committed window", "window", m.Window.String(), "parts", len(m.Parts),
		"rows", c.Rows, "changes", c.Changes, "tombstones", c.Tombstones, "quarantined", c.Quarantined, "ignored", c.Ignored)
	return nil
}

// ranges drops what is committed already and says what the window takes of each shard.
func (l *Lane) ranges(ctx context.Context, in []Batch) ([]Batch, []ShardRange, error) {
	byShard := map[ShardID]*ShardRange{}
	gaps := 0
	var out []Batch
	for _, b := range in {
		r := byShard[b.Shard]
		at := Position{}
		if r != nil {
			at = Position{Seq: cmp.Or(r.Last, r.After), End: r.End}
		} else {
			p, err := l.position(ctx, b.Shard)
			if err != nil {
				return nil, nil, err
			}
			at = p
		}
		recs := b.Records
		for len(recs) > 0 && recs[0].Seq.Compare(at.Seq) <= 0 {
			if seq := recs[0].Seq; r != nil && seq.Compare(r.After) > 0 && !taken(out, b.Shard, seq) {
				return nil, nil, fmt.Errorf("shard %s: record %s comes after %s", b.Shard, seq, at.Seq)
			}
			recs = recs[1:]
		}
		if at.End {
			if len(recs) > 0 {
				return nil, nil, fmt.Errorf("shard %s: record %s follows its end", b.Shard, recs[0].Seq)
			}
			continue
		}
		if len(recs) < len(b.Records) {
			b.Missing = nil // it lies before records that are committed: somebody wrote it down, or read it
		}
		if len(recs) == 0 && !b.End && b.Missing == nil {
			continue
		}
		for i := 1; i < len(recs); i++ {
			if recs[i-1].Seq.Compare(recs[i].Seq) >= 0 {
				return nil, nil, fmt.Errorf("shard %s: record %s does not follow %s", b.Shard, recs[i].Seq, recs[i-1].Seq)
			}
		}
		if r == nil {
			r = &ShardRange{Range: Range{Shard: b.Shard}, After: at.Seq}
			byShard[b.Shard] = r
			if b.Missing != nil {
				r.Missing = b.Missing.Since(at)
				gaps++
			}
		}
		if len(recs) > 0 {
			r.First = cmp.Or(r.First, recs[0].Seq)
			r.Last = recs[len(recs)-1].Seq
			r.age(recs)
		}
		r.End = b.End
		b.Records = recs
		out = append(out, b)
	}
	if n := len(byShard) + gaps; n > MaxShardsPerWindow {
		return nil, nil, fmt.Errorf("%d shards and gaps in one window, at most %d fit", n, MaxShardsPerWindow)
	}
	shards := make([]ShardRange, 0, len(byShard))
	for _, id := range slices.Sorted(maps.Keys(byShard)) {
		shards = append(shards, *byShard[id])
	}
	return out, shards, nil
}

// age notes when the records were created.
func (s *ShardRange) age(recs []Record) {
	for _, rec := range recs {
		at := rec.Created.UTC()
		if s.Oldest.IsZero() || at.Before(s.Oldest) {
			s.Oldest = at
		}
		if at.After(s.Newest) {
			s.Newest = at
		}
	}
}

// taken reports whether one of the batches has the record: what comes again may be skipped, what
// comes late would be lost.
func taken(batches []Batch, shard ShardID, seq SequenceNumber) bool {
	return slices.ContainsFunc(batches, func(b Batch) bool {
		_, ok := slices.BinarySearchFunc(b.Records, seq, func(r Record, s SequenceNumber) int { return r.Seq.Compare(s) })
		return ok && b.Shard == shard
	})
}

func (l *Lane) position(ctx context.Context, s ShardID) (Position, error) {
	if p, ok := l.positions[s]; ok {
		return p, nil
	}
	p, err := l.stages.Checkpoints.Position(ctx, l.state.Hold, l.opt.Stream, s)
	if err != nil {
		return p, fmt.Errorf("position of shard %s: %w", s, err)
	}
	l.positions[s] = p
	return p, nil
}

// encode makes the parts of a new window, and fills in its manifest: counts, and where the
// rows were cut.
func (l *Lane) encode(c *schemas.Contract, m *Manifest, batches []Batch) ([]Part, error) {
	rows, err := l.stages.Decoder.Decode(c, batches)
	if err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	defer rows.Release()
	for i, s := range m.Shards {
		m.Shards[i].Counts = rows.Counts[s.Shard]
	}
	parts, err := l.cut.bySize(m, rows)
	if err != nil {
		return nil, err
	}
	b, err := m.Encode()
	if err != nil {
		return nil, err
	}
	if len(b) > MaxManifestBytes {
		return nil, fmt.Errorf("manifest of %d bytes: %w", len(b), errTooLarge)
	}
	return parts, nil
}

// again makes the parts of a window that is begun, as its manifest says. Where the rows do not
// agree with it a person is needed: landing others under the same window would lose or double some.
func (l *Lane) again(c *schemas.Contract, m *Manifest, batches []Batch) ([]Part, error) {
	rows, err := l.stages.Decoder.Decode(c, batches)
	if err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	defer rows.Release()
	for _, s := range m.Shards {
		if got := rows.Counts[s.Shard]; got != s.Counts {
			return nil, NeedPerson(fmt.Errorf("shard %s replayed as %+v, the manifest says %+v", s.Shard, got, s.Counts),
				"do not restart; report the window and the stream's records between its first and last number")
		}
	}
	return l.cut.byManifest(m, rows)
}

// errTooLarge means that a window must be split.
var errTooLarge = errors.New("the window's manifest is too large")
