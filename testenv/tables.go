package testenv

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// table is one table. Fields without a remark do not change after creation.
type table struct {
	name, uuid, arn string
	id              uint32
	created         time.Time
	attributes      []attributeDefinition
	keys            keySchema
	indexes         []*index
	ttl             atomic.Pointer[string] // name of the TTL attribute, nil when disabled; set under commit

	// Guarded by database.commit.
	billing      string
	throughput   [2]int  // read and write units, zero when on demand
	protected    bool    // from deletion
	stream       *stream // nil when disabled
	latest       *stream // the last stream, enabled or not
	items, bytes int64
	deleted      bool
	rebuilding   bool // the expiries are not all there

	streamID, latestID uint32 // while the table is loaded
}

type attributeDefinition struct {
	name string
	kind kind
}

// index is a global secondary index. Its entries hold the projected items and are
// written with the item, so reading it is as consistent as reading the table.
type index struct {
	table   *table
	name    string
	number  byte
	keys    keySchema
	project string   // ALL, KEYS_ONLY or INCLUDE
	include []string // with INCLUDE
}

// itemKey returns the key of an item in the store and the hash of its partition key.
func (t *table) itemKey(partition, sort value) (key string, hash uint64) {
	b := make([]byte, 0, 32+len(partition.text)+len(sort.text))
	b = append(b, spaceKey(spaceItem, t.id)...)
	b = appendPartition(b, partition)
	if t.keys.sort != "" {
		b = appendSort(b, sort)
	}
	return string(b), hashKey(partition)
}

const maxItem = 400 << 10 // bytes

// check validates an item that is to be stored and returns its key and hash.
func (t *table) check(it item) (key string, hash uint64, err error) {
	p, s, err := t.keys.values(it)
	if err != nil {
		return "", 0, err
	}
	for _, x := range t.indexes {
		for _, a := range []attributeDefinition{{x.keys.partition, x.keys.partitionKind}, {x.keys.sort, x.keys.sortKind}} {
			v, ok := it.get(a.name)
			if !ok || a.name == "" {
				continue
			}
			if v.kind != a.kind {
				return "", 0, invalid("One or more parameter values were invalid: Type mismatch for Index Key " + a.name +
					" Expected: " + a.kind.String() + " Actual: " + v.kind.String() + " IndexName: " + x.name)
			}
			if err := checkKey(a.name, v, maxPartitionKey); err != nil {
				return "", 0, err
			}
		}
	}
	if it.size() > maxItem {
		return "", 0, invalid("Item size has exceeded the maximum allowed size")
	}
	key, hash = t.itemKey(p, s)
	return key, hash, nil
}

// prefix returns the start of all entries of the index.
func (x *index) prefix() []byte {
	return append(spaceKey(spaceIndex, x.table.id), x.number)
}

// entryKey returns the key of an item's entry, "" for an item that is not in the index.
func (x *index) entryKey(it item, itemKey string) string {
	p, ok := it.get(x.keys.partition)
	if !ok || p.kind != x.keys.partitionKind {
		return ""
	}
	b := appendPartition(x.prefix(), p)
	if x.keys.sort != "" {
		s, ok := it.get(x.keys.sort)
		if !ok || s.kind != x.keys.sortKind {
			return ""
		}
		b = appendSort(b, s)
	}
	return string(append(b, itemKey[5:]...))
}

// entry returns what the index holds of an item whose stored form is given.
func (x *index) entry(it item, stored []byte) []byte {
	if x.project == "ALL" {
		return stored
	}
	out := make(item, 0, 8)
	for _, a := range it {
		if x.keys.has(a.name) || x.table.keys.has(a.name) || slices.Contains(x.include, a.name) {
			out = append(out, a)
		}
	}
	return encodeStored(out)
}

// table returns the table a request names, by name or ARN.
func (db *database) table(name string) (*table, error) {
	if i := strings.LastIndex(name, ":table/"); i >= 0 {
		name = name[i+len(":table/"):]
	}
	if err := checkTableName(name); err != nil {
		return nil, err
	}
	db.mu.RLock()
	defer db.mu.RUnlock()
	if t := db.tables[name]; t != nil {
		return t, nil
	}
	return nil, notFound("Requested resource not found: Table: " + name + " not found")
}

func checkTableName(name string) error {
	if len(name) < 3 || len(name) > 255 {
		return invalid("TableName must be at least 3 characters long and at most 255 characters long")
	}
	for _, c := range name {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.') {
			return invalid("1 validation error detected: Value '" + name + "' at 'tableName' failed to satisfy constraint: Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+")
		}
	}
	return nil
}

func (c *call) createTable() ([]byte, error) {
	name := c.req.str("TableName")
	if err := checkTableName(name); err != nil {
		return nil, err
	}
	db := c.db
	t := &table{name: name, uuid: db.ids.uuid(), created: c.now,
		arn: "arn:aws:dynamodb:" + db.opt.Region + ":" + db.opt.Account + ":table/" + name}
	if !c.req.get("LocalSecondaryIndexes").absent() {
		return nil, invalid("local secondary indexes are not supported by this stand-in")
	}
	if err := t.describe(&c.req); err != nil {
		return nil, err
	}
	spec := c.req.get("StreamSpecification")
	view, err := viewType(spec)
	if err != nil {
		return nil, err
	}
	// Under commit a table is never seen without its stream.
	db.commit.Lock()
	defer db.commit.Unlock()
	db.mu.Lock()
	taken := db.tables[name] != nil
	if !taken {
		db.nextID++
		t.id = db.nextID
		db.tables[name] = t
	}
	db.mu.Unlock()
	if taken {
		return nil, failure("ResourceInUseException", "Table already exists: "+name)
	}
	t.protected = c.req.flag("DeletionProtectionEnabled")
	if spec.flag("StreamEnabled") {
		db.openStream(t, view, c.now)
	}
	if err := db.save(t, t.stream, db.idWrites()...); err != nil {
		db.dropStream(t.stream)
		db.mu.Lock()
		delete(db.tables, name)
		db.mu.Unlock()
		t.deleted = true // for a request that has found it meanwhile
		return nil, err
	}
	return tableAnswer("TableDescription", t, "ACTIVE"), nil
}

// describe reads the parts of a CreateTable request that make up the schema.
func (t *table) describe(req *node) error {
	for i := range req.get("AttributeDefinitions").kids {
		d := &req.get("AttributeDefinitions").kids[i]
		k := kindOf(d.str("AttributeType"))
		if !ordered(k) || d.str("AttributeName") == "" {
			return invalid("One or more parameter values were invalid: AttributeType must be S, N or B")
		}
		t.attributes = append(t.attributes, attributeDefinition{d.str("AttributeName"), k})
	}
	used := make(map[string]bool)
	var err error
	if t.keys, err = t.readKeys(req.get("KeySchema"), used); err != nil {
		return err
	}
	for i := range req.get("GlobalSecondaryIndexes").kids {
		g := &req.get("GlobalSecondaryIndexes").kids[i]
		x := &index{table: t, name: g.str("IndexName"), number: byte(i), project: g.get("Projection").str("ProjectionType")}
		if err := checkTableName(x.name); err != nil || i >= 20 {
			return invalid("One or more parameter values were invalid: bad or too many GlobalSecondaryIndexes")
		}
		if slices.ContainsFunc(t.indexes, func(o *index) bool { return o.name == x.name }) {
			return invalid("One or more parameter values were invalid: Duplicate index name: " + x.name)
		}
		if x.keys, err = t.readKeys(g.get("KeySchema"), used); err != nil {
			return err
		}
		for _, n := range g.get("Projection").get("NonKeyAttributes").kids {
			x.include = append(x.include, n.text)
		}
		if !slices.Contains([]string{"ALL", "KEYS_ONLY", "INCLUDE"}, x.project) || (x.project == "INCLUDE") != (len(x.include) > 0) {
			return invalid("One or more parameter values were invalid: Unknown ProjectionType or NonKeyAttributes that do not match it")
		}
		t.indexes = append(t.indexes, x)
	}
	for _, a := range t.attributes {
		if !used[a.name] {
			return invalid("One or more parameter values were invalid: Some AttributeDefinitions are not used: " + a.name)
		}
	}
	return t.setBilling(cmp.Or(req.str("BillingMode"), "PROVISIONED"), req)
}

// setBilling reads the billing of a CreateTable or UpdateTable request.
func (t *table) setBilling(mode string, req *node) error {
	var units [2]int
	p := req.get("ProvisionedThroughput")
	units[0], _ = p.integer("ReadCapacityUnits")
	units[1], _ = p.integer("WriteCapacityUnits")
	switch mode {
	case "PROVISIONED":
		if units[0] < 1 || units[1] < 1 {
			return invalid("One or more parameter values were invalid: ReadCapacityUnits and WriteCapacityUnits must both be specified when BillingMode is PROVISIONED")
		}
	case "PAY_PER_REQUEST":
		if units != [2]int{} {
			return invalid("One or more parameter values were invalid: Neither ReadCapacityUnits nor WriteCapacityUnits can be specified when BillingMode is PAY_PER_REQUEST")
		}
	default:
		return invalid("BillingMode has an unknown value: " + mode)
	}
	t.billing, t.throughput = mode, units
	return nil
}

func (t *table) readKeys(n *node, used map[string]bool) (s keySchema, err error) {
	if len(n.kids) == 0 || len(n.kids) > 2 {
		return s, invalid("1 validation error detected: KeySchema must have 1 or 2 elements")
	}
	for i := range n.kids {
		name := n.kids[i].str("AttributeName")
		d := slices.IndexFunc(t.attributes, func(a attributeDefinition) bool { return a.name == name })
		if d < 0 {
			return s, invalid("One or more parameter values were invalid: Some index key attributes are not defined in AttributeDefinitions. Keys: [" + name + "]")
		}
		used[name] = true
		switch want := []string{"HASH", "RANGE"}[i]; {
		case n.kids[i].str("KeyType") != want:
			return s, invalid("Invalid KeySchema: element " + strconv.Itoa(i+1) + " is not a " + want + " key type")
		case i == 0:
			s.partition, s.partitionKind = name, t.attributes[d].kind
		case name == s.partition:
			return s, invalid("Both the Hash Key and the Range Key element in the KeySchema have the same name")
		default:
			s.sort, s.sortKind = name, t.attributes[d].kind
		}
	}
	return s, nil
}

func viewType(spec *node) (string, error) {
	view := spec.str("StreamViewType")
	switch {
	case !spec.flag("StreamEnabled") && view == "":
	case spec.flag("StreamEnabled") && slices.Contains([]string{"KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES"}, view):
	default:
		return "", invalid("One or more parameter values were invalid: StreamViewType does not match StreamEnabled: " + view)
	}
	return view, nil
}

func (c *call) describeTable() ([]byte, error) {
	t, err := c.db.table(c.req.str("TableName"))
	if err != nil {
		return nil, err
	}
	c.db.commit.RLock()
	defer c.db.commit.RUnlock()
	return tableAnswer("Table", t, "ACTIVE"), nil
}

func (c *call) listTables() ([]byte, error) {
	limit, ok := c.req.integer("Limit")
	if !ok {
		limit = 100
	}
	if limit < 1 || limit > 100 {
		return nil, invalid("Limit must be between 1 and 100")
	}
	start := c.req.str("ExclusiveStartTableName")
	c.db.mu.RLock()
	names := slices.Sorted(maps.Keys(c.db.tables))
	c.db.mu.RUnlock()
	var list [][]byte
	var o jsonObject
	for _, name := range names {
		if name <= start {
			continue
		}
		if len(list) == limit {
			o.raw("LastEvaluatedTableName", list[limit-1])
			break
		}
		list = append(list, appendString(nil, name))
	}
	o.raw("TableNames", appendArray(nil, list))
	return o.done(), nil
}

func (c *call) deleteTable() ([]byte, error) {
	db := c.db
	t, err := db.table(c.req.str("TableName"))
	if err != nil {
		return nil, err
	}
	db.commit.Lock()
	defer db.commit.Unlock()
	if t.protected {
		return nil, invalid("Resource cannot be deleted as it is currently protected against deletion. Disable deletion protection first.")
	}
	if t.deleted {
		return nil, notFound("Requested resource not found: Table: " + t.name + " not found")
	}
	var ws []write
	for _, space := range []byte{spaceItem, spaceIndex, spaceExpiry} {
		ws = append(ws, deleteAll(string(spaceKey(space, t.id))))
	}
	for _, space := range []byte{spaceTable, spaceCount} {
		ws = append(ws, write{key: string(spaceKey(space, t.id))})
	}
	undo := func() {}
	s := t.stream
	if s != nil {
		undo = s.keep()
		s.disable(c.now)
	}
	if err := db.save(nil, s, ws...); err != nil {
		undo()
		return nil, err
	}
	t.deleted, t.stream = true, nil
	db.mu.Lock()
	delete(db.tables, t.name)
	db.mu.Unlock()
	return tableAnswer("TableDescription", t, "DELETING"), nil
}

// updateTable changes the stream, the billing and the deletion protection; indexes cannot
// be changed.
func (c *call) updateTable() ([]byte, error) {
	db := c.db
	t, err := db.table(c.req.str("TableName"))
	if err != nil {
		return nil, err
	}
	if len(c.req.get("GlobalSecondaryIndexUpdates").kids) > 0 {
		return nil, invalid("changing global secondary indexes is not supported by this stand-in")
	}
	spec := c.req.get("StreamSpecification")
	view, err := viewType(spec)
	if err != nil {
		return nil, err
	}
	db.commit.Lock()
	defer db.commit.Unlock()
	if t.deleted {
		return nil, notFound("Requested resource not found: Table: " + t.name + " not found")
	}
	// What is refused or cannot be stored leaves the table as it was.
	billing, throughput, protected, old, latest := t.billing, t.throughput, t.protected, t.stream, t.latest
	undo := func() {}
	if old != nil {
		undo = old.keep()
	}
	s, err := c.changeTable(t, spec, view)
	if err == nil {
		err = db.save(t, s, db.idWrites()...)
	}
	if err != nil {
		if s != old {
			db.dropStream(s)
		}
		undo()
		t.billing, t.throughput, t.protected, t.stream, t.latest = billing, throughput, protected, old, latest
		return nil, err
	}
	return tableAnswer("TableDescription", t, "ACTIVE"), nil
}

// changeTable does what an UpdateTable request says, in memory, and returns the stream
// that changed or is new, nil for none.
func (c *call) changeTable(t *table, spec *node, view string) (*stream, error) {
	if mode := c.req.str("BillingMode"); mode != "" || !c.req.get("ProvisionedThroughput").absent() {
		if err := t.setBilling(cmp.Or(mode, t.billing), &c.req); err != nil {
			return nil, err
		}
	}
	if p := c.req.get("DeletionProtectionEnabled"); !p.absent() {
		t.protected = p.kind == 't'
	}
	s := t.stream
	switch {
	case spec.absent():
		return nil, nil
	case spec.flag("StreamEnabled") && s != nil:
		return nil, failure("ResourceInUseException", "Table already has an enabled stream: TableName: "+t.name)
	case spec.flag("StreamEnabled"):
		c.db.openStream(t, view, c.now)
		return t.stream, nil
	case s == nil:
		return nil, invalid("Table is already disabled for streams: TableName: " + t.name)
	}
	s.disable(c.now)
	t.stream = nil
	return s, nil
}
