package columnar

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
	"telemetrylake/schemas"
)

// A Decoder turns change records into rows. It implements pipeline.Decoder.
type Decoder struct{ mem memory.Allocator }

var _ pipeline.Decoder = (*Decoder)(nil)

// NewDecoder makes a Decoder whose rows lie in mem.
func NewDecoder(mem memory.Allocator) *Decoder { return &Decoder{mem} }

// Decode makes the rows of a window. It is pure: it knows no clock and no other records,
// and batching changes nothing. A record that does not fit its contract is a row of the
// quarantine table. An error means that a record cannot be placed at all, or that the
// contract cannot be served; then the window must not go on.
func (d *Decoder) Decode(c *schemas.Contract, batches []pipeline.Batch) (*pipeline.Rows, error) {
	records := 0
	for _, b := range batches {
		records += len(b.Records)
	}
	w := &window{
		mem:        d.mem,
		contract:   c,
		hash:       c.Hash(),
		layout:     c.LakeTable(schemas.Readings).Layout,
		records:    records,
		tables:     map[schemas.Role]*tableRows{},
		partitions: map[int64]string{},
		matches:    map[string]match{},
		reasons:    map[string]int{},
	}
	defer w.release()
	counts := map[pipeline.ShardID]pipeline.Counts{}
	for _, b := range batches {
		n := counts[b.Shard]
		for i := range b.Records {
			if err := w.add(&b.Records[i], &n); err != nil {
				r := &b.Records[i]
				return nil, fmt.Errorf("decode record %s of shard %s of table %s: %w", r.Seq, r.Shard, c.Table, err)
			}
		}
		counts[b.Shard] = n
	}
	groups, err := w.groups()
	if err != nil {
		return nil, fmt.Errorf("decode records of table %s: %w", c.Table, err)
	}
	return &pipeline.Rows{Groups: groups, Counts: counts, Reasons: w.reasons}, nil
}

// A window gathers the rows of one call of Decode.
type window struct {
	mem      memory.Allocator
	contract *schemas.Contract
	hash     string
	layout   schemas.Layout // bounds of event times
	records  int
	tables   map[schemas.Role]*tableRows
	reasons  map[string]int // quarantined records

	partitions map[int64]string // by the start of the hour, in which no partition of any layout ends
	matches    map[string]match // by partition key, which recurs; sort keys do not
	src        source
}

func (w *window) release() {
	for _, t := range w.tables {
		t.builder.Release()
	}
}

func (w *window) table(r schemas.Role) (*tableRows, error) {
	if t, ok := w.tables[r]; ok {
		return t, nil
	}
	t, err := newTableRows(w.mem, w.contract, r)
	if err != nil {
		return nil, err
	}
	if r == schemas.Readings {
		t.builder.Reserve(w.records)
		t.rows = make([]row, 0, w.records)
	}
	w.tables[r] = t
	return t, nil
}

// add decides what becomes of a record.
func (w *window) add(r *pipeline.Record, n *pipeline.Counts) error {
	role, count := schemas.Readings, &n.Rows
	switch r.Op {
	case types.OperationTypeInsert:
	case types.OperationTypeModify:
		if w.contract.Mode == schemas.Versions {
			break
		}
		switch w.contract.OnModify {
		case schemas.ModifyRow:
		case schemas.ModifyChanges, "":
			role, count = schemas.Changes, &n.Changes
		case schemas.ModifyReject:
			n.Ignored++
			return nil
		default:
			return fmt.Errorf("contract %s: on_modify %q is unknown", w.contract.Name, w.contract.OnModify)
		}
	case types.OperationTypeRemove:
		if r.Expired && w.contract.OnExpire != schemas.ExpireTombstones {
			return nil
		}
		if !r.Expired && w.contract.OnRemove == schemas.RemoveReject {
			n.Ignored++
			return nil
		}
		role, count = schemas.Tombstones, &n.Tombstones
	default:
		return fmt.Errorf("operation %q is unknown: upgrade streamer", r.Op)
	}
	if r.New == nil && role != schemas.Tombstones {
		return fmt.Errorf("%s without a new image: the stream's view type must be NEW_IMAGE or NEW_AND_OLD_IMAGES", r.Op)
	}
	w.src.set(w, r)
	misfit, err := w.append(role)
	if err != nil {
		return err
	}
	if misfit == nil {
		*count++
		return nil
	}
	n.Quarantined++
	w.reasons[misfit.reason]++
	w.src.refusal = misfit
	misfit, err = w.append(schemas.Quarantine)
	if err == nil && misfit != nil {
		err = fmt.Errorf("quarantine it: %s", misfit.reason) // the detail repeats values, and errors are logged
	}
	return err
}

// append adds the current record to a table, unless it does not fit.
func (w *window) append(role schemas.Role) (*misfit, error) {
	t, err := w.table(role)
	if err != nil {
		return nil, err
	}
	byEvent := role == schemas.Readings || role == schemas.Changes
	if byEvent {
		if misfit := w.src.keyMisfit(); misfit != nil {
			return misfit, nil
		}
	}
	placed, misfit := t.append(&w.src)
	if err := w.src.err; err != nil {
		return nil, err
	}
	if misfit != nil {
		return misfit, nil
	}
	r := w.src.record
	if byEvent {
		if why, outside := w.layout.Outside(placed, r.Created); outside {
			return misfitf(ReasonOutsideProjection, "%s %s: %s", t.table.TimeColumn, placed.Format(time.RFC3339Nano), why), nil
		}
	}
	t.rows = append(t.rows, row{w.partition(t, placed), r.Shard, r.Seq, t.appended - 1})
	return nil, nil
}

func (w *window) partition(t *tableRows, at time.Time) string {
	hour := at.Truncate(time.Hour).Unix()
	p, ok := w.partitions[hour]
	if !ok {
		p = t.table.Layout.Path(at)
		w.partitions[hour] = p
	}
	return p
}

// groups sorts and cuts the rows.
func (w *window) groups() (groups []pipeline.Group, err error) {
	defer func() {
		if err != nil {
			for _, g := range groups {
				g.Rows.Release()
			}
			groups = nil
		}
	}()
	tables := slices.SortedFunc(maps.Values(w.tables), func(a, b *tableRows) int {
		return cmp.Compare(a.table.Name, b.table.Name)
	})
	for _, t := range tables {
		if groups, err = t.groups(w.mem, groups); err != nil {
			return groups, fmt.Errorf("sort rows of %s: %w", t.table.Name, err)
		}
	}
	return groups, nil
}

// A row is where a row's values are and what its place depends on beside them.
type row struct {
	partition string
	shard     pipeline.ShardID
	seq       pipeline.SequenceNumber
	at        int // in the builder
}

// tableRows are the rows of one lake table, in the order of their records.
type tableRows struct {
	table    schemas.Table
	order    []string
	builder  *array.RecordBuilder
	cells    []cell
	time     arrow.Timestamp // of the last row appended
	appended int             // rows in the builder, those that did not fit included
	rows     []row           // the rows that fit
}

// append appends one row to the builder and says when it belongs, or why it does not fit:
// the first reason in the order of the columns.
func (t *tableRows) append(s *source) (placed time.Time, first *misfit) {
	for i := range t.cells {
		if m := t.cells[i](s); m != nil && first == nil {
			first = m.in("column " + t.table.Columns[i].Name)
		}
	}
	t.appended++
	return time.UnixMilli(int64(t.time)).UTC(), first
}

// groups sorts the rows and copies them, one group for each partition.
func (t *tableRows) groups(mem memory.Allocator, groups []pipeline.Group) ([]pipeline.Group, error) {
	if len(t.rows) == 0 {
		return groups, nil
	}
	batch := t.builder.NewRecordBatch()
	defer batch.Release()
	keys, err := sortColumns(batch, t.order)
	if err != nil {
		return groups, err
	}
	slices.SortFunc(t.rows, func(a, b row) int {
		if c := strings.Compare(a.partition, b.partition); c != 0 {
			return c
		}
		if c := compareRows(keys, a.at, keys, b.at); c != 0 {
			return c
		}
		return cmp.Or(cmp.Compare(a.shard, b.shard), a.seq.Compare(b.seq), cmp.Compare(a.at, b.at))
	})
	sorted := array.NewRecordBuilder(mem, batch.Schema())
	defer sorted.Release()
	copies, err := copyFuncs(sorted)
	if err != nil {
		return groups, err
	}
	for rows := t.rows; len(rows) > 0; {
		n := slices.IndexFunc(rows, func(r row) bool { return r.partition != rows[0].partition })
		if n < 0 {
			n = len(rows)
		}
		sorted.Reserve(n)
		for c, copyTo := range copies {
			column := batch.Column(c)
			for _, r := range rows[:n] {
				copyTo(column, r.at, r.at+1)
			}
		}
		groups = append(groups, pipeline.Group{
			Table:     t.table.Name,
			Partition: rows[0].partition,
			Order:     slices.Clone(t.order),
			Rows:      sorted.NewRecordBatch(),
		})
		rows = rows[n:]
	}
	return groups, nil
}
