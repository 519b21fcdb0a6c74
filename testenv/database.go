package testenv

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// database is DynamoDB with its streams.
//
// Locks, in the order in which they are taken:
//
//   - stripes: each item belongs to one of 1,024 mutexes. A write holds those of its
//     items from reading the old items to the commit, so conditions are evaluated on what
//     is overwritten. A transaction holds all its items' stripes, taken in ascending
//     order, and nothing else waits. Where the service would cancel one of two
//     transactions that meet (TransactionConflict), here the later waits for the earlier.
//   - commit: held while sequence numbers are drawn and everything a write changes (items,
//     indexes, expiries, stream records) is applied to the store, so a reader of a stream
//     never sees a later record before an earlier one. Guards tables' and streams' fields
//     that change.
//   - mu: the map of tables.
type database struct {
	opt         Options
	ids         *ids
	store       store
	expressions expressions
	stripes     [1024]sync.Mutex
	choosing    sync.Mutex // held while a function of a behaviour runs, after all others

	mu     sync.RWMutex
	tables map[string]*table
	nextID uint32 // of tables and streams

	commit  sync.RWMutex
	streams map[string]*stream // by ARN
	order   []*stream          // as created

	rebuild sync.Mutex // held while the expiries of a table are rebuilt, before all others
	forgot  time.Time  // when expired tokens were last looked for
}

func newDatabase(opt Options, ids *ids, store store) *database {
	return &database{
		opt:     opt,
		ids:     ids,
		store:   store,
		tables:  make(map[string]*table),
		streams: make(map[string]*stream),
	}
}

// call is one request.
type call struct {
	db  *database
	req node
	now time.Time
}

type operation func(*call) ([]byte, error)

var operations = map[string]operation{
	"BatchGetItem":       (*call).batchGetItem,
	"BatchWriteItem":     (*call).batchWriteItem,
	"CreateTable":        (*call).createTable,
	"DeleteItem":         (*call).deleteItem,
	"DeleteTable":        (*call).deleteTable,
	"DescribeTable":      (*call).describeTable,
	"DescribeTimeToLive": (*call).describeTimeToLive,
	"GetItem":            (*call).getItem,
	"ListTables":         (*call).listTables,
	"PutItem":            (*call).putItem,
	"Query":              (*call).query,
	"Scan":               (*call).scan,
	"TransactGetItems":   (*call).transactGetItems,
	"TransactWriteItems": (*call).transactWriteItems,
	"UpdateItem":         (*call).updateItem,
	"UpdateTable":        (*call).updateTable,
	"UpdateTimeToLive":   (*call).updateTimeToLive,
}

var streamOperations = map[string]operation{
	"DescribeStream":   (*call).describeStream,
	"GetRecords":       (*call).getRecords,
	"GetShardIterator": (*call).getShardIterator,
	"ListStreams":      (*call).listStreams,
}

func (db *database) serve(w http.ResponseWriter, r *http.Request, name string) {
	db.answer(w, r, operations[name])
}

func (db *database) serveStreams(w http.ResponseWriter, r *http.Request, name string) {
	db.answer(w, r, streamOperations[name])
}

const maxRequest = 16 << 20 // bytes, the service's limit of a request

func (db *database) answer(w http.ResponseWriter, r *http.Request, run operation) {
	out, err := db.run(r, run)
	status := http.StatusOK
	h := w.Header()
	if err != nil {
		var e *apiError
		if !errors.As(err, &e) {
			e = &apiError{status: http.StatusInternalServerError, code: "InternalServerError", message: err.Error()}
		}
		status = e.status
		h.Set("X-Amzn-Errortype", e.code)
		out = e.body()
	}
	h.Set("Content-Type", "application/x-amz-json-1.0")
	h.Set("Content-Length", strconv.Itoa(len(out)))
	h.Set("X-Amz-Crc32", strconv.FormatUint(uint64(crc32.ChecksumIEEE(out)), 10))
	h.Set("X-Amzn-Requestid", db.ids.requestID())
	w.WriteHeader(status)
	// A client that went away has no use for the error.
	_, _ = w.Write(out)
}

func (db *database) run(r *http.Request, run operation) ([]byte, error) {
	if run == nil {
		return nil, &apiError{status: http.StatusBadRequest, code: "UnknownOperationException",
			message: "unknown operation " + r.Header.Get("X-Amz-Target")}
	}
	if r.Method != http.MethodPost {
		return nil, &apiError{status: http.StatusMethodNotAllowed, code: "UnknownOperationException", message: "use POST"}
	}
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	c := &call{db: db, now: db.opt.Clock.Now()}
	if c.req, err = parseJSON(body); err != nil || c.req.kind != '{' {
		return nil, serialization("the request is not a JSON object")
	}
	return run(c)
}

func readBody(r *http.Request) (string, error) {
	if n := r.ContentLength; n >= 0 && n <= maxRequest {
		b := make([]byte, n)
		if _, err := io.ReadFull(r.Body, b); err != nil {
			return "", serialization("cannot read the request: " + err.Error())
		}
		return string(b), nil
	}
	b, err := io.ReadAll(io.LimitReader(r.Body, maxRequest+1))
	if err != nil {
		return "", serialization("cannot read the request: " + err.Error())
	}
	if len(b) > maxRequest {
		return "", &apiError{status: http.StatusRequestEntityTooLarge, code: "RequestEntityTooLargeException", message: "the request is larger than 16 MB"}
	}
	return string(b), nil
}

// apiError is an error as the service reports it.
type apiError struct {
	status  int
	code    string // as the SDK knows it
	message string
	member  string // name of a further member of the body, "" for none
	raw     []byte // its JSON
}

func (e *apiError) Error() string { return e.code + ": " + e.message }

// namespaces precede the code in __type; the SDK drops them.
var namespaces = map[string]string{
	"ValidationException":       "com.amazon.coral.validate#",
	"SerializationException":    "com.amazon.coral.service#",
	"UnknownOperationException": "com.amazon.coral.service#",
}

func (e *apiError) body() []byte {
	ns, ok := namespaces[e.code]
	if !ok {
		ns = "com.amazonaws.dynamodb.v20120810#"
	}
	var o jsonObject
	o.str("__type", ns+e.code)
	o.str("message", e.message)
	if e.code == "TransactionCanceledException" {
		o.str("Message", e.message)
	}
	if e.member != "" {
		o.raw(e.member, e.raw)
	}
	return o.done()
}

func failure(code, message string) error {
	return &apiError{status: http.StatusBadRequest, code: code, message: message}
}

func invalid(message string) error { return failure("ValidationException", message) }

func serialization(message string) error { return failure("SerializationException", message) }

func notFound(message string) error { return failure("ResourceNotFoundException", message) }

// lock takes the stripes of the item keys and returns what releases them.
func (db *database) lock(keys ...string) (unlock func()) {
	if len(keys) == 1 {
		m := &db.stripes[stripe(keys[0])]
		m.Lock()
		return m.Unlock
	}
	list := make([]int, 0, len(keys))
	for _, k := range keys {
		list = append(list, stripe(k))
	}
	slices.Sort(list)
	list = slices.Compact(list)
	for _, i := range list {
		db.stripes[i].Lock()
	}
	return func() {
		for _, i := range list {
			db.stripes[i].Unlock()
		}
	}
}

func stripe(key string) int {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	return int(mix(h) % 1024)
}

// spaceKey returns the prefix of a table's or a stream's keys in one space.
func spaceKey(space byte, id uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{space}, id)
}

// change is one item before and after a write, both stored forms; nil: no item. Items
// are decoded when something needs them.
type change struct {
	table            *table
	key              string // in spaceItem
	hash             uint64 // of the partition key
	before, after    []byte
	oldItem, newItem item
	service          bool // made by the service (TTL), not by a user
}

// old returns the item before the change, decoded.
func (c *change) old() (item, error) {
	if c.oldItem == nil && c.before != nil {
		var err error
		if c.oldItem, err = decodeStored(c.before); err != nil {
			return nil, err
		}
	}
	return c.oldItem, nil
}

// commitChanges applies the changes and writes their stream records and what else is to be
// written with them, all at once. The caller holds the stripes of the items.
func (db *database) commitChanges(further []write, changes ...*change) error {
	effective := make([]*change, 0, len(changes))
	for _, c := range changes {
		if !c.same() {
			effective = append(effective, c)
		}
	}
	if len(effective) == 0 {
		return db.store.apply(further)
	}
	db.commit.Lock()
	defer db.commit.Unlock()
	// Read under the lock, so that the records of a shard never go back in time.
	now := db.opt.Clock.Now()
	writes := append(make([]write, 0, 4*len(effective)+len(further)), further...)
	undo := keepSequences(effective)
	writes, err := db.appendChanges(writes, effective, now)
	if err == nil {
		err = db.store.apply(writes)
	}
	if err != nil {
		undo()
		return err
	}
	for _, c := range effective {
		c.count()
	}
	return nil
}

// keepSequences returns what gives the streams the sequence numbers back that were drawn
// for nothing. A number that no restart knows of must not be in anybody's hands, and a
// LATEST iterator carries the last one.
func keepSequences(changes []*change) (undo func()) {
	type last struct {
		stream   *stream
		sequence uint64
	}
	kept := make([]last, 0, 1)
	for _, c := range changes {
		s := c.table.stream
		if s != nil && !slices.ContainsFunc(kept, func(l last) bool { return l.stream == s }) {
			kept = append(kept, last{s, s.sequence})
		}
	}
	return func() {
		for _, l := range kept {
			l.stream.sequence = l.sequence
		}
	}
}

// appendChanges appends all that changes write; the caller holds commit.
func (db *database) appendChanges(writes []write, effective []*change, now time.Time) ([]write, error) {
	var err error
	for _, c := range effective {
		if c.table.deleted {
			return nil, notFound("Requested resource not found: Table: " + c.table.name + " not found")
		}
		if writes, err = c.appendWrites(writes); err != nil {
			return nil, err
		}
		if s := c.table.stream; s != nil {
			w, err := s.record(c, now)
			if err != nil {
				return nil, err
			}
			writes = append(writes, w)
		}
	}
	if db.opt.Durable {
		writes = appendCounts(writes, effective)
	}
	return writes, nil
}

// same says whether the change changes nothing: then nothing is written and the stream
// gets no record.
func (c *change) same() bool {
	if c.before == nil || c.after == nil {
		return c.before == nil && c.after == nil
	}
	return string(c.before) == string(c.after)
}

// count keeps the table's statistics; the caller holds commit.
func (c *change) count() {
	items, bytes := c.difference()
	c.table.items += items
	c.table.bytes += bytes
}

// difference returns what the change adds to the table's items and bytes.
func (c *change) difference() (items, bytes int64) {
	if c.before != nil {
		size, _ := openStored(c.before)
		items, bytes = items-1, bytes-int64(size)
	}
	if c.after != nil {
		size, _ := openStored(c.after)
		items, bytes = items+1, bytes+int64(size)
	}
	return items, bytes
}

// appendWrites appends what the change does to the table, its indexes and its expiries;
// the caller holds commit.
func (c *change) appendWrites(ws []write) ([]write, error) {
	ws = append(ws, write{key: c.key, value: c.after})
	ttl := c.table.ttl.Load()
	if len(c.table.indexes) == 0 && ttl == nil {
		return ws, nil
	}
	old, err := c.old()
	if err != nil {
		return nil, err
	}
	for _, x := range c.table.indexes {
		was, is := x.entryKey(old, c.key), x.entryKey(c.newItem, c.key)
		if was != "" && was != is {
			ws = append(ws, write{key: was})
		}
		if is != "" {
			ws = append(ws, write{key: is, value: x.entry(c.newItem, c.after)})
		}
	}
	if ttl != nil {
		was, is := expiryKey(c.table.id, *ttl, old, c.key), expiryKey(c.table.id, *ttl, c.newItem, c.key)
		if was != "" && was != is {
			ws = append(ws, write{key: was})
		}
		if is != "" && was != is {
			ws = append(ws, write{key: is, value: []byte{}})
		}
	}
	return ws, nil
}
