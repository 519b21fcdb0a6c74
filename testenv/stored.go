package testenv

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// What the store holds beside items and records: the tables, streams and shards, as JSON.
// The Env keeps them in memory too and reads them when it opens; whatever changes one
// writes it here first, or takes the change back.

type storedTable struct {
	Name, UUID, ARN string
	Created         time.Time
	Attributes      []storedAttribute
	Keys            storedKeys
	Indexes         []storedIndex `json:",omitempty"`
	TTL             string        `json:",omitempty"` // the attribute, "" when disabled
	Rebuilding      bool          `json:",omitempty"` // the expiries are not all there
	Billing         string
	Throughput      [2]int
	Protected       bool
	Stream          uint32 `json:",omitempty"` // id of the enabled stream
	Latest          uint32 `json:",omitempty"`
	LatestLabel     string `json:",omitempty"` // which outlives the stream
	LatestARN       string `json:",omitempty"`
}

type storedAttribute struct{ Name, Kind string }

type storedKeys struct {
	Partition     string
	PartitionKind string
	Sort          string `json:",omitempty"`
	SortKind      string `json:",omitempty"`
}

type storedIndex struct {
	Name    string
	Number  byte
	Keys    storedKeys
	Project string
	Include []string `json:",omitempty"`
}

type storedStream struct {
	Table     uint32
	TableName string // of a table that may be gone
	Keys      storedKeys
	ARN       string
	Label     string
	View      string
	Created   time.Time
	Disabled  time.Time
	Sequence  uint64 // at least the last number of a shard's start or end
}

type storedShard struct {
	ID, Parent string
	Lo, Hi     uint64
	Created    time.Time
	Closed     time.Time
	Start, End uint64
	Trimmed    uint64
}

// storedEnv is what all of the Env has in common.
type storedEnv struct {
	Region, Account string
	Opened          uint64 // how often; ids of each time come from a seed of its own
}

// readEnv reads what is stored of the Env, and counts this opening.
func readEnv(s store, opt Options) (storedEnv, error) {
	var e storedEnv
	v, err := s.get(string(spaceEnv))
	if err != nil {
		return e, err
	}
	if v == nil {
		e = storedEnv{Region: opt.Region, Account: opt.Account}
	} else if err := json.Unmarshal(v, &e); err != nil {
		return e, fmt.Errorf("read what %s holds: %w", opt.Dir, err)
	}
	if e.Region != opt.Region || e.Account != opt.Account {
		return e, fmt.Errorf("%s is account %s in %s, not account %s in %s: set those, or use another folder",
			opt.Dir, e.Account, e.Region, opt.Account, opt.Region)
	}
	e.Opened++
	return e, putJSON(s, string(spaceEnv), &e)
}

func putJSON(s store, key string, v any) error {
	w, err := jsonWrite(key, v)
	if err != nil {
		return err
	}
	return s.apply([]write{w})
}

func jsonWrite(key string, v any) (write, error) {
	text, err := json.Marshal(v)
	return write{key: key, value: text}, err
}

func (s *keySchema) stored() storedKeys {
	k := storedKeys{Partition: s.partition, PartitionKind: s.partitionKind.String(), Sort: s.sort}
	if s.sort != "" {
		k.SortKind = s.sortKind.String()
	}
	return k
}

func (k storedKeys) schema() keySchema {
	return keySchema{partition: k.Partition, partitionKind: kindOf(k.PartitionKind), sort: k.Sort, sortKind: kindOf(k.SortKind)}
}

// write stores the table as it is; the caller holds commit.
func (t *table) write() (write, error) {
	st := storedTable{Name: t.name, UUID: t.uuid, ARN: t.arn, Created: t.created, Keys: t.keys.stored(), Rebuilding: t.rebuilding,
		Billing: t.billing, Throughput: t.throughput, Protected: t.protected}
	for _, a := range t.attributes {
		st.Attributes = append(st.Attributes, storedAttribute{a.name, a.kind.String()})
	}
	for _, x := range t.indexes {
		st.Indexes = append(st.Indexes, storedIndex{x.name, x.number, x.keys.stored(), x.project, x.include})
	}
	if attr := t.ttl.Load(); attr != nil {
		st.TTL = *attr
	}
	if t.stream != nil {
		st.Stream = t.stream.id
	}
	if t.latest != nil {
		st.Latest, st.LatestLabel, st.LatestARN = t.latest.id, t.latest.label, t.latest.arn
	}
	return jsonWrite(string(spaceKey(spaceTable, t.id)), st)
}

// appendCounts appends the tables' statistics as they are after the changes.
func appendCounts(writes []write, changes []*change) []write {
	type total struct {
		table        *table
		items, bytes int64
	}
	totals := make([]total, 0, 1)
	for _, c := range changes {
		i := slices.IndexFunc(totals, func(t total) bool { return t.table == c.table })
		if i < 0 {
			i = len(totals)
			totals = append(totals, total{c.table, c.table.items, c.table.bytes})
		}
		items, bytes := c.difference()
		totals[i].items += items
		totals[i].bytes += bytes
	}
	for _, t := range totals {
		b := binary.BigEndian.AppendUint64(make([]byte, 0, 16), uint64(t.items))
		writes = append(writes, write{key: string(spaceKey(spaceCount, t.table.id)), value: binary.BigEndian.AppendUint64(b, uint64(t.bytes))})
	}
	return writes
}

// writes stores the stream and its shards as they are; the caller holds commit.
func (s *stream) writes() ([]write, error) {
	w, err := jsonWrite(string(spaceKey(spaceStream, s.id)), storedStream{Table: s.table.id, TableName: s.table.name, Keys: s.table.keys.stored(),
		ARN: s.arn, Label: s.label, View: s.view, Created: s.created, Disabled: s.disabled, Sequence: s.sequence})
	ws := []write{w}
	for _, h := range s.shards {
		if err != nil {
			return nil, err
		}
		if h.gone {
			continue
		}
		w, err = jsonWrite(s.shardKey(h), storedShard{h.id, h.parent, h.lo, h.hi, h.created, h.closed, h.start, h.end, h.trimmed})
		ws = append(ws, w)
	}
	return ws, err
}

func (s *stream) shardKey(h *shard) string {
	return string(binary.BigEndian.AppendUint32(spaceKey(spaceShard, s.id), h.number))
}

// keep returns what takes back every change of the stream made after it.
func (s *stream) keep() (undo func()) {
	was := *s
	shards := make([]shard, len(s.shards))
	for i, h := range s.shards {
		shards[i] = *h
	}
	live := slices.Clone(s.live)
	return func() {
		*s = was
		s.live = live
		for i, h := range s.shards {
			*h = shards[i]
		}
	}
}

// save stores a table, nil for none, and a stream, nil for none, with further writes; the
// caller holds commit and takes its changes back when that fails.
func (db *database) save(t *table, s *stream, further ...write) error {
	ws := further
	if t != nil {
		w, err := t.write()
		if err != nil {
			return err
		}
		ws = append(ws, w)
	}
	if s != nil {
		w, err := s.writes()
		if err != nil {
			return err
		}
		ws = append(ws, w...)
	}
	return db.store.apply(ws)
}

// idWrites store the last id that a table or stream has.
func (db *database) idWrites() []write {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return []write{{key: string(spaceEnv) + "table", value: binary.BigEndian.AppendUint32(nil, db.nextID)}}
}

// load reads the tables and streams that the store holds.
func (db *database) load() error {
	v, err := db.store.get(string(spaceEnv) + "table")
	if err != nil {
		return err
	}
	if len(v) == 4 {
		db.nextID = binary.BigEndian.Uint32(v)
	}
	tables := map[uint32]*table{}
	err = db.readJSON(spaceTable, func(id uint32, text []byte) error {
		t, err := db.loadTable(id, text)
		tables[id] = t
		return err
	})
	if err != nil {
		return err
	}
	streams := map[uint32]*stream{}
	err = db.readJSON(spaceStream, func(id uint32, text []byte) error {
		s, err := db.loadStream(id, text, tables)
		if err == nil {
			streams[id] = s
			db.order = append(db.order, s)
			db.streams[s.arn] = s
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, t := range tables {
		// A stream that is gone is still its table's latest.
		if s := streams[t.latestID]; s != nil {
			t.latest = s
		}
		t.stream = streams[t.streamID]
		db.tables[t.name] = t
	}
	return nil
}

// readJSON visits one space, whose keys are ids, in the order of the ids.
func (db *database) readJSON(space byte, visit func(id uint32, text []byte) error) error {
	stored, err := readSpace(db.store, string(space))
	for _, w := range stored {
		if err == nil {
			err = visit(binary.BigEndian.Uint32([]byte(w.key[1:])), w.value)
		}
	}
	return err
}

func (db *database) loadTable(id uint32, text []byte) (*table, error) {
	var st storedTable
	if err := json.Unmarshal(text, &st); err != nil {
		return nil, fmt.Errorf("read table %d: %w", id, err)
	}
	t := &table{id: id, name: st.Name, uuid: st.UUID, arn: st.ARN, created: st.Created, keys: st.Keys.schema(), rebuilding: st.Rebuilding,
		billing: st.Billing, throughput: st.Throughput, protected: st.Protected}
	for _, a := range st.Attributes {
		t.attributes = append(t.attributes, attributeDefinition{a.Name, kindOf(a.Kind)})
	}
	for _, x := range st.Indexes {
		t.indexes = append(t.indexes, &index{table: t, name: x.Name, number: x.Number, keys: x.Keys.schema(), project: x.Project, include: x.Include})
	}
	if st.TTL != "" {
		t.ttl.Store(&st.TTL)
	}
	t.streamID, t.latestID = st.Stream, st.Latest
	if st.LatestARN != "" {
		t.latest = &stream{id: st.Latest, label: st.LatestLabel, arn: st.LatestARN}
	}
	v, err := db.store.get(string(spaceKey(spaceCount, id)))
	if len(v) == 16 {
		t.items, t.bytes = int64(binary.BigEndian.Uint64(v)), int64(binary.BigEndian.Uint64(v[8:]))
	}
	return t, err
}

func (db *database) loadStream(id uint32, text []byte, tables map[uint32]*table) (*stream, error) {
	var st storedStream
	if err := json.Unmarshal(text, &st); err != nil {
		return nil, fmt.Errorf("read stream %d: %w", id, err)
	}
	t := tables[st.Table]
	if t == nil { // deleted; its stream is readable for a day
		t = &table{id: st.Table, name: st.TableName, keys: st.Keys.schema(), deleted: true}
	}
	s := &stream{db: db, table: t, id: id, arn: st.ARN, label: st.Label, view: st.View, created: st.Created, disabled: st.Disabled, sequence: st.Sequence}
	from := string(spaceKey(spaceShard, id))
	var decodeErr error
	err := db.store.scan(from, after(from), false, func(key string, v []byte) bool {
		var h storedShard
		if decodeErr = json.Unmarshal(v, &h); decodeErr != nil {
			decodeErr = fmt.Errorf("read shard %s of %s: %w", strconv.Quote(key), st.ARN, decodeErr)
			return false
		}
		number := binary.BigEndian.Uint32([]byte(key[5:]))
		for uint32(len(s.shards)) < number { // those that are gone keep their places
			s.shards = append(s.shards, &shard{number: uint32(len(s.shards)), gone: true})
		}
		s.shards = append(s.shards, &shard{number: number, id: h.ID, parent: h.Parent, lo: h.Lo, hi: h.Hi, created: h.Created,
			closed: h.Closed, start: h.Start, end: h.End, trimmed: h.Trimmed})
		return true
	})
	if err != nil || decodeErr != nil {
		return nil, errors.Join(err, decodeErr)
	}
	for _, h := range s.shards {
		if h.closed.IsZero() && !h.gone {
			s.live = append(s.live, h)
		}
		// Numbers go on behind the last one that anybody saw.
		s.sequence = max(s.sequence, h.start, h.end, h.trimmed)
		last, err := s.lastRecord(h, s.recordKey(h, 1<<64-1))
		if err != nil {
			return nil, err
		}
		s.sequence = max(s.sequence, last)
	}
	return s, nil
}
