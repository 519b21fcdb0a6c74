package pipeline_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
)

// compare holds the lake and the ledger of gaps against the truth.
func (w *world) compare(t *testing.T) error {
	got, errs := w.lake(t)
	gaps, err := checkpoint.New(w.client, "checkpoint", checkpoint.Options{}).Gaps(t.Context(), w.table.StreamARN)
	if err != nil {
		return err
	}
	j := &judgement{w: w, gaps: gaps, held: make([]int, len(gaps))}
	for _, r := range w.book.records {
		there := got[r.outcome] > 0
		switch {
		case r.outcome == expiredRecord:
			continue // no row, and nobody counts those that a filter may take out
		case w.tooOld(r) && !there: // or the service trimmed it late
			w.happened("records older than the first discovery", 1)
		case r.outcome == ignoredRecord:
			continue // no row; the windows count it
		case there:
			got[r.outcome]--
			j.found(r)
		default:
			j.missing(r)
		}
	}
	for outcome, n := range got {
		if n > 0 {
			w.happened("doubled", n)
			errs = append(errs, fmt.Errorf("doubled: %d too many of %s", n, outcome))
		}
	}
	w.counted(j)
	w.ordered(j)
	errs = append(errs, j.errs...)
	w.happened("rows", len(w.book.records)-j.excused)
	w.happened("records in gaps", j.excused)
	for i, g := range gaps {
		w.happened("gaps: "+string(g.Cause)+", "+string(g.State), 1)
		if j.held[i] == 0 {
			w.happened("gaps without records", 1)
		}
	}
	for key, n := range w.puts {
		if n > 1 {
			errs = append(errs, fmt.Errorf("object %s was written %d times", key, n))
		}
	}
	return errors.Join(errs...)
}

// counted holds the ranges and the counts of all windows against the truth: each record is in one
// window or, as j says, in a gap, and the window counts what it is.
func (w *world) counted(j *judgement) {
	byShard := map[pipeline.ShardID][]*witnessed{}
	for _, r := range w.book.records {
		byShard[r.shard] = append(byShard[r.shard], r)
	}
	times := map[*witnessed]int{}
	for id, m := range w.windows {
		for _, s := range m.Shards {
			var want, got pipeline.Counts
			either := 0
			for _, r := range byShard[s.Shard] {
				if s.First == "" || r.seq.Compare(s.First) < 0 || r.seq.Compare(s.Last) > 0 {
					continue
				}
				times[r]++
				kind, _, _ := strings.Cut(r.outcome, " ")
				switch kind {
				case "readings":
					want.Rows++
				case "changes":
					want.Changes++
				case "tombstones":
					want.Tombstones++
				case "quarantine":
					want.Quarantined++
				case ignoredRecord:
					want.Ignored++
				case "either":
					either++
				}
			}
			got = s.Counts
			more := got.Rows - want.Rows
			want.Rows, want.Quarantined = want.Rows+more, want.Quarantined+either-more
			if got != want || more < 0 || more > either {
				w.happened("unaccounted", 1)
				j.errs = append(j.errs, fmt.Errorf("unaccounted: window %s counts %+v of shard %s, the stream had %+v and %d that may be either", id, got, s.Shard, want, either))
			}
		}
	}
	for _, r := range w.book.records {
		switch n := times[r]; {
		case n > 1:
			j.fail("doubled", r, "%d windows have it", n)
		case n == 0 && r.outcome != expiredRecord && !w.tooOld(r) && j.lost(r) == nil:
			j.fail("lost", r, "no window has it, and no gap")
		}
	}
}

// ordered checks that no record of a shard was in a window before the last of its parent was.
func (w *world) ordered(j *judgement) {
	last := map[pipeline.ShardID]int{}
	for i, m := range w.begun {
		for _, s := range m.Shards {
			last[s.Shard] = i
		}
	}
	for i, m := range w.begun {
		for _, s := range m.Shards {
			parent := w.book.shards[s.Shard]
			if parent == nil || s.First == "" {
				continue
			}
			if at, ok := last[parent.parent]; ok && at >= i {
				w.happened("unaccounted", 1)
				j.errs = append(j.errs, fmt.Errorf("order: window %s has records of shard %s, window %s later those of its parent %s", m.Window, s.Shard, w.begun[at].Window, parent.parent))
			}
		}
	}
}

// A judgement says of each record whether it may be where it is.
type judgement struct {
	w       *world
	gaps    []pipeline.Gap
	held    []int // records that lie in each gap and nowhere else
	excused int
	errs    []error
}

func (j *judgement) fail(kind string, r *witnessed, format string, args ...any) {
	j.w.happened(kind, 1)
	j.errs = append(j.errs, fmt.Errorf("%s: record %s of %s, created %s (%s): %s", kind, r.seq, r.shard,
		r.created.UTC().Format(time.DateTime), r.outcome, fmt.Sprintf(format, args...)))
}

// missing excuses a record that is nowhere, if a gap says so.
func (j *judgement) missing(r *witnessed) {
	g := j.lost(r)
	if g == nil {
		var near []string
		for _, g := range j.gaps {
			near = append(near, describe(g))
		}
		j.fail("lost", r, "in no table and in no gap of %s", strings.Join(near, "; "))
		return
	}
	j.excused++
	switch {
	case g.State == pipeline.GapClosed:
		j.fail("lost", r, "its gap is closed: %s (%s)", describe(*g), g.Evidence)
	case !g.From.IsZero() && r.created.Before(g.From.Truncate(time.Second)) && !j.w.vague(*g), !g.To.IsZero() && r.created.After(g.To):
		j.fail("unaccounted", r, "outside of the times of its gap %s", describe(*g))
	case g.Window != nil && g.Detected.Add(time.Second).Sub(g.From) < 24*time.Hour:
		j.fail("lost", r, "its window was given up while it could be on its way: %s", describe(*g))
	case g.Window == nil && g.Detected.Add(time.Second).Sub(r.created) < 24*time.Hour:
		j.fail("lost", r, "the stream still held it when its gap was found: %s", describe(*g))
	}
}

// tooOld reports whether a record had aged out when the stream was met for the first time.
func (w *world) tooOld(r *witnessed) bool {
	return w.met.IsZero() || w.met.Sub(r.created) > 24*time.Hour
}

// vague reports whether a gap need not know when it begins: of a shard that was met only after its
// first records were gone, where listings left it out before, or functions read other shards only.
func (w *world) vague(g pipeline.Gap) bool { return g.After == "" && (w.plan.messy || w.plan.lambda) }

// lost returns the gap that a record lies in; nil if it lies in none. Those of the stream come
// before those of windows, which may hold what is in the lake.
func (j *judgement) lost(r *witnessed) *pipeline.Gap {
	best := -1
	rank := func(g pipeline.Gap) int {
		switch {
		case g.State == pipeline.GapClosed:
			return 0
		case g.Window != nil:
			return 1
		}
		return 2
	}
	for i, g := range j.gaps {
		if (inside(g, r) || j.w.book.orphaned(g, r)) && (best < 0 || rank(g) > rank(j.gaps[best])) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	j.held[best]++
	return &j.gaps[best]
}

// inside reports whether a gap's bounds hold a record.
func inside(g pipeline.Gap, r *witnessed) bool {
	switch {
	case g.Shard != r.shard:
		return false
	case g.First != "":
		return g.First.Compare(r.seq) <= 0 && r.seq.Compare(g.Last) <= 0
	case g.Before != "":
		return g.After.Compare(r.seq) < 0 && r.seq.Compare(g.Before) < 0
	}
	return g.After.Compare(r.seq) < 0 && (g.To.IsZero() || !r.created.After(g.To))
}

// orphaned reports whether a record was in a shard that came and went unseen, which its
// descendant's gap says.
func (b *book) orphaned(g pipeline.Gap, r *witnessed) bool {
	if g.Cause != pipeline.GapVanished || r.created.Before(g.From.Truncate(time.Second)) || r.created.After(g.To) {
		return false
	}
	for s := b.shards[g.Shard]; s != nil; s = b.shards[s.parent] {
		if s.id == r.shard {
			return g.Shard != r.shard
		}
	}
	return false
}

// found checks that no gap claims a record that is in the lake. A window's gap may: of a window
// that was given up, what arrived in time is in the lake.
func (j *judgement) found(r *witnessed) {
	for _, g := range j.gaps {
		if g.State == pipeline.GapClosed || g.First != "" || !inside(g, r) {
			continue
		}
		if g.Before == "" && !r.created.Add(2*time.Second).Before(g.To) {
			continue // creation times are whole seconds
		}
		j.fail("unaccounted", r, "it is in the lake and inside of the gap %s", describe(g))
	}
}

func describe(g pipeline.Gap) string {
	stamp := func(at time.Time) string {
		if at.IsZero() {
			return "?"
		}
		return at.UTC().Format(time.DateTime)
	}
	return fmt.Sprintf("%s %s %s after %q before %q (%q to %q) from %s to %s, found %s, by %s", g.State, g.Cause, g.Shard, g.After, g.Before, g.First, g.Last,
		stamp(g.From), stamp(g.To), stamp(g.Detected), g.Lane)
}

// lake reads every row of the lake, as outcomes.
func (w *world) lake(t *testing.T) (map[string]int, []error) {
	got := map[string]int{}
	var errs []error
	root := filepath.Join(w.dir, "s3", lakeBucket)
	seen := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rows, meta, err := readLake(t.Context(), body)
		if err != nil {
			return fmt.Errorf("%s: %w", rel, err)
		}
		for _, id := range meta.PartIDs() {
			if other := seen[id.String()]; other != "" {
				errs = append(errs, fmt.Errorf("part %s is in %s and in %s", id, other, rel))
			}
			seen[id.String()] = rel
		}
		for _, r := range rows {
			table := strings.TrimPrefix(strings.TrimPrefix(meta.Table, w.old.Name), "_")
			outcome := ""
			switch table {
			case "":
				outcome = "readings " + sensor(r).row()
				if k := sensor(r).key(); w.book.either[k] {
					outcome = "either " + k
				}
			case "changes":
				outcome = "changes " + sensor(r).row()
			case "tombstones":
				outcome = "tombstones " + itemKey(r)
			case "quarantine":
				outcome = "quarantine " + itemKey(r)
				if k := itemKey(r); w.book.either[k] {
					outcome = "either " + k
				}
			default:
				return fmt.Errorf("%s: table %s", rel, meta.Table)
			}
			got[outcome]++
		}
		return nil
	})
	if err != nil {
		errs = append(errs, err)
	}
	return got, errs
}

type row map[string]string

func readLake(ctx context.Context, body []byte) ([]row, *pipeline.ObjectMeta, error) {
	pf, err := file.NewParquetReader(bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	defer pf.Close()
	text := pf.MetaData().KeyValueMetadata().FindValue(pipeline.ObjectMetaKey)
	if text == nil {
		return nil, nil, errors.New("no object metadata")
	}
	meta, err := pipeline.DecodeObjectMeta(*text)
	if err != nil {
		return nil, nil, err
	}
	rd, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		return nil, nil, err
	}
	tbl, err := rd.ReadTable(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer tbl.Release()
	rows := make([]row, tbl.NumRows())
	for i := range rows {
		rows[i] = row{}
	}
	for c := range int(tbl.NumCols()) {
		i := 0
		for _, chunk := range tbl.Column(c).Data().Chunks() {
			for j := range chunk.Len() {
				if !chunk.IsNull(j) {
					rows[i][tbl.Schema().Field(c).Name] = chunk.ValueStr(j)
				}
				i++
			}
		}
	}
	return rows, meta, nil
}

func sensor(r row) *reading {
	layouts := []string{time.RFC3339Nano, "2006-01-02 15:04:05.999Z0700", "2006-01-02 15:04:05.999Z"}
	i := slices.IndexFunc(layouts, func(l string) bool { _, err := time.Parse(l, r["taken_at"]); return err == nil })
	if i < 0 {
		panic("taken_at is " + r["taken_at"])
	}
	at, _ := time.Parse(layouts[i], r["taken_at"])
	return &reading{device: r["device_id"], at: at, tie: r["tie"], celsius: strings.TrimSuffix(r["celsius"], "0")}
}

// itemKey reads pk and sk from the DynamoDB JSON of an item's keys.
func itemKey(r row) string {
	var k struct{ PK, SK struct{ S string } }
	if err := json.Unmarshal([]byte(r["item_keys"]), &k); err != nil {
		panic(err)
	}
	return k.PK.S + "|" + k.SK.S
}
