package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/spf13/cobra"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/stream"
)

func newLanesRebuild() *cobra.Command {
	s := newSettings()
	var apply, gone bool
	var side, output string
	c := &cobra.Command{
		Use:   "rebuild --contract NAME",
		Short: "Take the positions of a table's stream from its lake, after the checkpoint was lost",
		Long: `Read what every object of the table's lake, and what is in staging, says of the
records in it, and write the positions of the stream's shards from that. Stop the
processes that read the stream first. Without --apply nothing is written.

What has a part in the lake, or is whole in staging, has been read. What is not
whole, and has nothing in the lake, is read again while the stream still holds it;
its parts are dropped. What else is missing becomes a gap, and its parts are
published should they still come.

Of each shard the windows that were found are compared with the stream, from the
first one whose first record the stream still holds to the last: records between
them that make rows and are in none become a gap. What lies before, or between the
last and a later position that the checkpoint still has, is not looked at.

With --apply, a lane that a process holds is refused: stop that process. One that was
killed, or whose checkpoint was restored, still counts as its holder; if you know that
it is gone add --holder-is-gone. If this is interrupted, call it again: until it has
ended nobody can read the stream.`,
		Example: `  streamer lanes rebuild --contract device_telemetry
  streamer lanes rebuild --contract device_telemetry --apply`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.load(c); err != nil {
				return err
			}
			b, err := openRebuild(c.Context(), s, c.ErrOrStderr())
			if err != nil {
				return explain(err)
			}
			b.gone = gone
			if apply { // it is asked again before anything is written: the lake may take long to read
				if err := b.refuseHeld(c.Context(), laneOf(b.contract)); err != nil {
					return explain(err)
				}
			}
			if err := b.plan(c.Context(), checkpoint.Side(side)); err != nil {
				return explain(err)
			}
			if apply {
				if err := b.apply(c.Context()); err != nil {
					return explain(err)
				}
			}
			return b.print(c.OutOrStdout(), output)
		},
	}
	s.use(c, "contract", "table", "stream", "checkpoint-table", "land", "staging", "damaged", "lake")
	s.makesTable("with --apply made if there is none")
	outputFlag(c.Flags(), &output, "table", "json")
	choiceFlag(c.Flags(), &side, "side", "as-before", string(checkpoint.Run), string(checkpoint.Lambda))
	c.Flags().BoolVar(&apply, "apply", false, "write what was found; without it, only show it")
	c.Flags().BoolVar(&gone, "holder-is-gone", false, "write also lanes that are held: only if their holder is known to be gone, it is ended otherwise")
	return c
}

// A rebuild takes a stream's positions from what its windows left.
type rebuild struct {
	footprints
	clients
	places   places
	store    *checkpoint.Store
	made     bool // the checkpoint table exists
	gone     bool // whoever holds a lane is known to be gone
	reader   *stream.Reader
	progress io.Writer

	shown rebuildShown
	lanes []checkpoint.Rebuilt
}

// rebuildShown is what a rebuild found, and did.
type rebuildShown struct {
	Stream  string                `json:"stream"`
	Side    string                `json:"side"`
	Lake    int                   `json:"lake_objects"`
	Staging int                   `json:"staging_objects"`
	Windows map[pipeline.Fate]int `json:"windows"`
	Shards  []rebuiltShard        `json:"shards"`
	Gaps    []gapShown            `json:"gaps"`
	Compare int                   `json:"records_compared"`
	Applied bool                  `json:"applied"`
}

type rebuiltShard struct {
	Shard pipeline.ShardID        `json:"shard"`
	Seq   pipeline.SequenceNumber `json:"position,omitempty"`
	End   bool                    `json:"end"`
	Was   string                  `json:"was,omitempty"` // position in the checkpoint
	Note  string                  `json:"note,omitempty"`
}

func openRebuild(ctx context.Context, s *settings, progress io.Writer) (*rebuild, error) {
	p, err := s.places()
	if err != nil {
		return nil, err
	}
	c, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.findStream(ctx, c); err != nil {
		return nil, err
	}
	return newRebuild(c, p, progress), nil
}

func newRebuild(c clients, p places, progress io.Writer) *rebuild {
	at := openBuckets(c, p)
	return &rebuild{
		footprints: footprints{contract: p.Contract, lake: at.lake, staging: at.staging},
		clients:    c, places: p, progress: progress,
		store:  checkpoint.New(c.dynamodb, p.Checkpoint, checkpoint.Options{Host: hostText()}),
		reader: stream.New(c.streams, stream.Options{StreamARN: p.StreamARN}), // it only replays
	}
}

// plan finds out what there is, and what is to be written. It writes nothing.
func (b *rebuild) plan(ctx context.Context, side checkpoint.Side) error {
	stored, err := b.stored(ctx)
	if err != nil {
		return err
	}
	remains, err := b.find(ctx)
	if err != nil {
		return err
	}
	marks, err := b.ask(ctx, remains)
	if err != nil {
		return err
	}
	past, err := remains.Judge(
		func(s pipeline.StreamShard, seq pipeline.SequenceNumber) (bool, error) {
			if was, ok := stored[s.Shard]; ok && was.At.Seq.Compare(seq) >= 0 {
				return false, nil // the checkpoint has read it
			}
			_, ok, err := b.record(ctx, s, seq)
			return ok, err
		},
		func(lane pipeline.LaneID, inc string) int64 { return marks[laneLife{lane, inc}] })
	if err != nil {
		return err
	}
	listed, err := listShards(ctx, b.streams, b.places.StreamARN)
	if err != nil {
		return err
	}
	at := &positions{stream: b.places.StreamARN, past: past, stored: stored, listed: listed}
	shards := at.all()
	for i := range shards {
		rec, ok, err := b.record(ctx, pipeline.StreamShard{Stream: at.stream, Shard: shards[i].ID}, shards[i].At.Seq)
		if err != nil {
			return err
		}
		if ok && shards[i].At.Created.IsZero() {
			shards[i].At.Created = rec.Created
		}
	}
	gaps := past.Gaps
	for _, id := range slices.Sorted(maps.Keys(listed)) {
		missing, err := b.compare(ctx, past, id)
		if err != nil {
			return err
		}
		gaps = append(gaps, missing...)
	}
	if b.shown.Side, err = b.side(ctx, side, past); err != nil {
		return err
	}
	if len(remains.IDs()) == 0 && len(shards) == 0 && checkpoint.Side(b.shown.Side) == "" {
		return pipeline.NeedPerson(fmt.Errorf("neither the lake %s nor staging has a row of a stream of table %s", b.lake, b.places.Table),
			"check --land, --lake and --staging; if they are right there is nothing to rebuild, and streamer run begins")
	}
	b.shown.Side = cmp.Or(b.shown.Side, string(checkpoint.Run))
	b.shown.Stream, b.shown.Windows = b.places.StreamARN, past.Fates
	b.arrange(past, shards, gaps)
	b.show(at, shards, gaps)
	return nil
}

// stored are the shards' items, of a table that may not exist.
func (b *rebuild) stored(ctx context.Context) (map[pipeline.ShardID]checkpoint.ShardStatus, error) {
	shards, _, err := b.store.StreamStatus(ctx, b.places.StreamARN)
	if missing := (*types.ResourceNotFoundException)(nil); errors.As(err, &missing) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b.made = true
	all := map[pipeline.ShardID]checkpoint.ShardStatus{}
	for _, sh := range shards {
		all[sh.ID] = sh
	}
	return all, nil
}

// find reads staging, then the lake: what seal moves meanwhile is seen twice, not never.
func (b *rebuild) find(ctx context.Context) (*pipeline.Remains, error) {
	r := pipeline.NewRemains()
	var err error
	if b.shown.Staging, err = b.eachPart(ctx, allObjects, r.Part); err != nil {
		return nil, err
	}
	read := 0
	b.shown.Lake, err = b.eachObject(ctx, b.tables(), allObjects, func(name string, m *pipeline.ObjectMeta) error {
		if read++; read%1000 == 0 {
			fmt.Fprintf(b.progress, "read the footers of %s lake objects\n", count(read))
		}
		return r.Object(name, m)
	})
	return r, err
}

// ask has the ledger say what it still knows of the lanes' windows. It returns up to where all is in
// the lake by its word.
func (b *rebuild) ask(ctx context.Context, r *pipeline.Remains) (map[laneLife]int64, error) {
	marks := map[laneLife]int64{}
	if !b.made {
		return marks, nil
	}
	ids := r.IDs()
	lanes := []pipeline.LaneID{laneOf(b.contract)}
	for _, id := range ids {
		lanes = append(lanes, id.Lane)
	}
	slices.Sort(lanes)
	for _, lane := range slices.Compact(lanes) {
		st, err := b.store.Lane(ctx, lane)
		if err != nil {
			return nil, err
		}
		if !st.Exists {
			continue
		}
		if st.Pending != 0 {
			return nil, pipeline.NeedPerson(fmt.Errorf("window %d of lane %s is begun and not committed: its records are not lost, and a rebuilt lane would read them again", st.Pending, lane),
				"start the lane so that it commits the window; if it cannot, restore the checkpoint table")
		}
		marks[laneLife{lane, st.Hold.Incarnation}] = st.Watermark
		for _, w := range st.Windows {
			ids = append(ids, w.ID)
		}
	}
	asked := map[pipeline.WindowID]bool{}
	for _, id := range ids {
		if asked[id] || r.Settled(id) {
			continue
		}
		asked[id] = true
		state, m, err := b.store.Window(ctx, id)
		if err != nil {
			return nil, err
		}
		if err := r.Stored(id, state, m); err != nil {
			return nil, err
		}
	}
	return marks, nil
}

// record reads one record, and reports whether the stream still holds it.
func (b *rebuild) record(ctx context.Context, s pipeline.StreamShard, seq pipeline.SequenceNumber) (pipeline.Record, bool, error) {
	var rec pipeline.Record
	if seq == "" || s.Stream != b.places.StreamARN {
		return rec, false, nil
	}
	err := b.reader.Replay(ctx, []pipeline.Range{{Shard: s.Shard, First: seq, Last: seq}}, func(batch pipeline.Batch) error {
		for _, r := range batch.Records {
			rec = r
		}
		return nil
	})
	if errors.Is(err, pipeline.ErrTrimmed) {
		return rec, false, nil
	}
	return rec, err == nil, err
}

// side is who reads the stream from now on: as asked, as stored, or as the windows found last say;
// "" if nothing says.
func (b *rebuild) side(ctx context.Context, asked checkpoint.Side, past *pipeline.Past) (string, error) {
	if asked == checkpoint.Run || asked == checkpoint.Lambda {
		return string(asked), nil
	}
	if b.made {
		side, ok, err := b.store.StreamSide(ctx, b.places.StreamARN)
		if err != nil || ok && side != checkpoint.Rebuilding {
			return string(side), err
		}
	}
	lambda, run := false, false
	for _, l := range past.Lives {
		run = run || l.Lane == laneOf(b.contract)
		lambda = lambda || l.Lane != laneOf(b.contract)
	}
	switch {
	case run && lambda:
		return "", usagef("the stream was read by run and by lambda; say with --side who reads it from now on")
	case lambda:
		return string(checkpoint.Lambda), nil
	case run:
		return string(checkpoint.Run), nil
	}
	return "", nil
}

// arrange says what is written of each lane.
func (b *rebuild) arrange(past *pipeline.Past, shards []checkpoint.RebuiltShard, gaps []pipeline.Gap) {
	side := checkpoint.Side(b.shown.Side)
	owner := func(id pipeline.ShardID) pipeline.LaneID {
		if side == checkpoint.Lambda {
			return laneOfShard(b.contract, id)
		}
		return laneOf(b.contract)
	}
	lanes := map[pipeline.LaneID]*checkpoint.Rebuilt{}
	of := func(lane pipeline.LaneID) *checkpoint.Rebuilt {
		if lanes[lane] == nil {
			lanes[lane] = &checkpoint.Rebuilt{Lane: lane, Stream: b.places.StreamARN, Side: side}
		}
		return lanes[lane]
	}
	if side == checkpoint.Run {
		of(laneOf(b.contract))
	}
	for _, l := range past.Lives {
		life := checkpoint.PastLife{Incarnation: l.Incarnation, Watermark: l.Through, Void: l.Void, Unknown: l.Unknown}
		for _, w := range l.Windows {
			life.Windows = append(life.Windows, checkpoint.PastWindow{Manifest: w.Manifest, Published: w.Published, Lost: w.Lost})
		}
		of(l.Lane).Past = append(of(l.Lane).Past, life)
	}
	for _, sh := range shards {
		of(owner(sh.ID)).Shards = append(of(owner(sh.ID)).Shards, sh)
	}
	for _, g := range gaps {
		of(owner(g.Shard)).Gaps = append(of(owner(g.Shard)).Gaps, g)
	}
	for _, lane := range slices.Sorted(maps.Keys(lanes)) {
		b.lanes = append(b.lanes, *lanes[lane])
	}
}

func (b *rebuild) apply(ctx context.Context) error {
	lanes := []pipeline.LaneID{laneOf(b.contract)} // which a stream that Lambda reads next leaves
	for _, r := range b.lanes {
		lanes = append(lanes, r.Lane)
	}
	if err := b.refuseHeld(ctx, lanes...); err != nil {
		return err
	}
	if err := b.store.Create(ctx); err != nil {
		return err
	}
	if err := b.store.PutContract(ctx, b.contract); err != nil {
		return err
	}
	if _, err := b.store.RebuildLanes(ctx, b.lanes...); err != nil {
		return err
	}
	b.shown.Applied = true
	return nil
}

func (b *rebuild) show(at *positions, shards []checkpoint.RebuiltShard, gaps []pipeline.Gap) {
	b.shown.Shards, b.shown.Gaps = []rebuiltShard{}, []gapShown{}
	for _, sh := range shards {
		v := rebuiltShard{Shard: sh.ID, Seq: sh.At.Seq, End: sh.At.End, Note: at.notes[sh.ID]}
		if was, ok := at.stored[sh.ID]; ok {
			v.Was = cmp.Or(string(was.At.Seq), "nothing yet")
		}
		b.shown.Shards = append(b.shown.Shards, v)
	}
	for _, r := range b.lanes {
		for _, life := range r.Past {
			for _, w := range life.Windows {
				if !w.Lost {
					continue
				}
				id := w.Manifest.Window
				for _, rg := range w.Manifest.Shards {
					if rg.First != "" {
						gaps = append(gaps, pipeline.Gap{Missing: pipeline.Missing{Cause: pipeline.GapWindow}, Stream: w.Manifest.Stream, Shard: rg.Shard, After: rg.After, First: rg.First, Last: rg.Last, Window: &id, State: pipeline.GapOpen})
					}
				}
			}
		}
	}
	for _, g := range gaps {
		g.State = pipeline.GapOpen
		b.shown.Gaps = append(b.shown.Gaps, showGap(g))
	}
}

// fateWords say what becomes of the windows that were found.
var fateWords = []struct {
	fate pipeline.Fate
	text string
}{
	{pipeline.FateWhole, "  whole in the lake"},
	{pipeline.FateStored, "  known to the checkpoint"},
	{pipeline.FateStaged, "  to be sealed from staging"},
	{pipeline.FateLost, "  with parts missing: a gap until they come"},
	{pipeline.FateAgain, "  dropped, to be read again"},
	{pipeline.FateDouble, "  dropped, read again before"},
	{pipeline.FateLeft, "  left in staging, with a gap"},
}

func (b *rebuild) print(w io.Writer, output string) error {
	v := b.shown
	if output == "json" {
		return writeDocument(w, v)
	}
	fmt.Fprintf(w, "Stream %s\nread by %s\n\n", v.Stream, v.Side)
	all := 0
	for _, n := range v.Windows {
		all += n
	}
	rows := [][]string{
		{"Lake objects read", count(v.Lake)}, {"Staging objects read", count(v.Staging)},
		{"Records compared with the stream", count(v.Compare)}, {"Windows found", count(all)},
	}
	for _, f := range fateWords {
		rows = append(rows, []string{f.text, count(v.Windows[f.fate])})
	}
	table(w, nil, append(rows, []string{"Gaps", count(len(v.Gaps))}))
	fmt.Fprintln(w)
	rows = nil
	for _, s := range v.Shards {
		at := cmp.Or(string(s.Seq), "nothing yet")
		if s.End {
			at = "the end"
		}
		rows = append(rows, []string{string(s.Shard), at, s.Was, s.Note})
	}
	table(w, []string{"shard", "position", "was", ""}, rows)
	for _, g := range v.Gaps {
		fmt.Fprintf(w, "gap: shard %s, records %s to %s (%s)\n", g.Shard, g.First, g.Last, g.Cause)
	}
	if v.Applied {
		fmt.Fprintln(w, "\nWritten. Start what reads the stream.")
		return nil
	}
	fmt.Fprintln(w, "\nNothing is written. Stop what reads the stream, and write this with --apply.")
	return nil
}
