package testenv

import (
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
)

// maxPage is how much a Query or Scan reads for one page, in bytes of item size, before
// the filter.
const maxPage = 1 << 20

// reading is a Query or a Scan.
type reading struct {
	table      *table
	index      *index // nil: the table itself
	from, to   string // from <= key < to
	reverse    bool
	limit      int // items read; 0: no limit but the page's
	filter     *expression
	binding    *binding
	projection projection
	count      bool // Select COUNT
}

func (c *call) query() ([]byte, error) {
	r, key, err := c.reading(labelKey)
	if err != nil {
		return nil, err
	}
	if key == nil {
		return nil, invalid("Either the KeyConditions or KeyConditionExpression parameter must be specified in the request.")
	}
	keys, prefix := r.keys()
	partition, low, high, err := keyRange(keys, key, r.binding)
	if err != nil {
		return nil, err
	}
	prefix = appendPartition(prefix, partition)
	r.from, r.to = string(prefix)+low, after(string(prefix))
	if high != "" {
		r.to = string(prefix) + high
	}
	r.reverse = c.req.get("ScanIndexForward").kind == 'f'
	if start := c.req.get("ExclusiveStartKey"); !start.absent() {
		at, p, err := r.start(start)
		if err != nil {
			return nil, err
		}
		if !p.equal(partition) {
			return nil, invalid("The provided starting key is outside query boundaries based on provided conditions")
		}
		r.resume(at)
	}
	return c.read(r)
}

func (c *call) scan() ([]byte, error) {
	r, _, err := c.reading("")
	if err != nil {
		return nil, err
	}
	number, ok1 := c.req.integer("Segment")
	total, ok2 := c.req.integer("TotalSegments")
	if ok1 != ok2 || ok2 && (total < 1 || total > 1000000 || number < 0 || number >= total) {
		return nil, invalid("Segment must be at least 0 and less than TotalSegments, which must be 1 to 1000000")
	}
	if !ok2 {
		number, total = 0, 1
	}
	_, prefix := r.keys()
	lo, hi := segment(number, total)
	r.from = string(binary.BigEndian.AppendUint64(slices.Clone(prefix), lo))
	r.to = after(string(binary.BigEndian.AppendUint64(slices.Clone(prefix), hi)))
	if hi == 1<<64-1 {
		r.to = after(string(prefix))
	}
	if start := c.req.get("ExclusiveStartKey"); !start.absent() {
		at, _, err := r.start(start)
		if err != nil {
			return nil, err
		}
		if at < r.from || at >= r.to {
			return nil, invalid("The provided starting key is invalid: it is outside the segment")
		}
		r.resume(at)
	}
	return c.read(r)
}

// reading reads what Query and Scan have in common. The key condition is nil without one.
func (c *call) reading(keyLabel string) (r *reading, key *expression, err error) {
	req, x := &c.req, &c.db.expressions
	if err := refuseLegacy(req); err != nil {
		return nil, nil, err
	}
	r = &reading{}
	if r.table, err = c.db.table(req.str("TableName")); err != nil {
		return nil, nil, err
	}
	if name := req.str("IndexName"); name != "" {
		i := slices.IndexFunc(r.table.indexes, func(x *index) bool { return x.name == name })
		if i < 0 {
			return nil, nil, invalid("The table does not have the specified index: " + name)
		}
		r.index = r.table.indexes[i]
		if req.flag("ConsistentRead") {
			return nil, nil, invalid("Consistent reads are not supported on global secondary indexes")
		}
	}
	if keyLabel != "" {
		if key, err = x.compile(keyLabel, req.get(keyLabel)); err != nil {
			return nil, nil, err
		}
	}
	if r.filter, err = x.compile(labelFilter, req.get("FilterExpression")); err != nil {
		return nil, nil, err
	}
	p, err := x.compile(labelProjection, req.get("ProjectionExpression"))
	if err != nil {
		return nil, nil, err
	}
	if r.binding, err = bind(req, key, r.filter, p); err != nil {
		return nil, nil, err
	}
	r.projection = r.binding.projection(p)
	if n := req.get("Limit"); !n.absent() {
		if r.limit, err = strconv.Atoi(n.text); err != nil || r.limit < 1 {
			return nil, nil, invalid("1 validation error detected: Value '" + n.text + "' at 'limit' failed to satisfy constraint: Member must have value greater than or equal to 1")
		}
	}
	switch s := req.str("Select"); s {
	case "", "ALL_ATTRIBUTES", "ALL_PROJECTED_ATTRIBUTES", "SPECIFIC_ATTRIBUTES":
		if s == "ALL_ATTRIBUTES" && r.index != nil && r.index.project != "ALL" {
			return nil, nil, invalid("Select type ALL_ATTRIBUTES is not supported for global secondary index " + r.index.name + " because its projection type is not ALL")
		}
	case "COUNT":
		r.count = true
	default:
		return nil, nil, invalid("Select has an unknown value: " + s)
	}
	return r, key, nil
}

// keys returns the key schema that is read and the prefix of its keys in the store.
func (r *reading) keys() (*keySchema, []byte) {
	if r.index != nil {
		return &r.index.keys, r.index.prefix()
	}
	return &r.table.keys, spaceKey(spaceItem, r.table.id)
}

// start reads an ExclusiveStartKey and returns its key in the store and its partition key.
func (r *reading) start(n *node) (key string, partition value, err error) {
	it, err := decodeItem(n)
	if err != nil {
		return "", value{}, err
	}
	p, s, err := r.table.keys.exact(r.table.keys.project(it))
	if err != nil {
		return "", value{}, invalid("The provided starting key is invalid: The provided key element does not match the schema")
	}
	key, _ = r.table.itemKey(p, s)
	if r.index == nil {
		if len(it) != len(r.table.keys.project(it)) {
			return "", value{}, invalid("The provided starting key is invalid")
		}
		return key, p, nil
	}
	if key = r.index.entryKey(it, key); key == "" {
		return "", value{}, invalid("The provided starting key is invalid")
	}
	p, _ = it.get(r.index.keys.partition)
	return key, p, nil
}

// resume continues behind the key at.
func (r *reading) resume(at string) {
	if r.reverse {
		r.to = min(r.to, at)
	} else {
		r.from = max(r.from, at+"\x00")
	}
}

// read returns one page.
func (c *call) read(r *reading) ([]byte, error) {
	var page [][]byte
	size, more := 0, false
	err := c.db.store.scan(r.from, r.to, r.reverse, func(_ string, stored []byte) bool {
		// The page ends behind the item that reaches a limit, whether or not another
		// follows: a reader learns that from an empty next page.
		page = append(page, stored)
		n, _ := openStored(stored)
		size += n
		more = size >= maxPage || len(page) == r.limit
		return !more
	})
	if err != nil {
		return nil, err
	}
	var items [][]byte
	count := 0
	for _, stored := range page {
		if r.filter != nil {
			it, err := decodeStored(stored)
			if err != nil {
				return nil, err
			}
			ok, err := r.binding.matches(r.filter, it)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue
			}
		}
		count++
		if r.count {
			continue
		}
		text, err := r.projection.text(stored)
		if err != nil {
			return nil, err
		}
		items = append(items, text)
	}
	o := jsonObject{b: make([]byte, 0, 128)}
	o.integer("Count", int64(count))
	o.integer("ScannedCount", int64(len(page)))
	if !r.count {
		n := 2
		for _, t := range items {
			n += len(t) + 1
		}
		o.b = slices.Grow(o.b, n+64)
		o.name("Items")
		o.b = appendArray(o.b, items)
	}
	if more {
		last, err := decodeStored(page[len(page)-1])
		if err != nil {
			return nil, err
		}
		o.raw("LastEvaluatedKey", appendItem(nil, r.lastKey(last)))
	}
	c.consumed(&o, r.table, readUnits(size, c.req.flag("ConsistentRead")))
	return o.done(), nil
}

func (r *reading) lastKey(it item) item {
	key := r.table.keys.project(it)
	if r.index != nil {
		for _, a := range r.index.keys.project(it) {
			key = key.with(a.name, a.value)
		}
	}
	return key
}

// keyRange turns a key condition into the partition key and the sort keys low <= k < high
// in store form; high is "" for no upper bound.
func keyRange(s *keySchema, e *expression, b *binding) (partition value, low, high string, err error) {
	terms := []*condition{e.cond}
	if e.cond.op == "AND" {
		terms = e.cond.kids
	}
	found, sorted := false, false
	for _, t := range terms {
		var name string
		if len(t.operands) > 0 && t.operands[0].op == opPath && len(t.operands[0].path) == 1 {
			name = b.name(t.operands[0].path[0])
		}
		var vs []value
		for _, o := range t.operands[min(1, len(t.operands)):] {
			v, ok := b.values.get(o.value)
			if !ok {
				return value{}, "", "", invalid("Invalid KeyConditionExpression: Invalid operator used in KeyConditionExpression")
			}
			vs = append(vs, v)
		}
		switch {
		case name == s.partition && t.op == "=" && !found:
			partition, found = vs[0], true
			if partition.kind != s.partitionKind {
				return value{}, "", "", invalid("One or more parameter values were invalid: Condition parameter type does not match schema type")
			}
			if err := checkKey(name, partition, maxPartitionKey); err != nil {
				return value{}, "", "", err
			}
		case name == s.sort && name != "" && !sorted:
			sorted = true
			if low, high, err = sortRange(s, t.op, vs); err != nil {
				return value{}, "", "", err
			}
		default:
			return value{}, "", "", invalid("Query key condition not supported")
		}
	}
	if !found {
		return value{}, "", "", invalid("Query condition missed key schema element: " + s.partition)
	}
	return partition, low, high, nil
}

func sortRange(s *keySchema, op string, vs []value) (low, high string, err error) {
	keys := make([]string, len(vs))
	for i, v := range vs {
		if v.kind != s.sortKind {
			return "", "", invalid("One or more parameter values were invalid: Condition parameter type does not match schema type")
		}
		if err := checkKey(s.sort, v, maxSortKey); err != nil {
			return "", "", err
		}
		keys[i] = string(appendSort(nil, v))
	}
	// An index follows its sort key with the item's key, so an inclusive bound is
	// everything that starts with the sort key.
	switch op {
	case "=":
		return keys[0], after(keys[0]), nil
	case "<":
		return "", keys[0], nil
	case "<=":
		return "", after(keys[0]), nil
	case ">":
		return after(keys[0]), "", nil
	case ">=":
		return keys[0], "", nil
	case "BETWEEN":
		if keys[0] > keys[1] {
			return "", "", invalid("Invalid KeyConditionExpression: The BETWEEN operator requires upper bound to be greater than or equal to lower bound")
		}
		return keys[0], after(keys[1]), nil
	case "begins_with":
		if s.sortKind == kindNumber {
			return "", "", invalid("Invalid KeyConditionExpression: Incorrect operand type for operator or function; operator or function: begins_with, operand type: N")
		}
		p := string(appendEscaped(nil, vs[0].text))
		if strings.Count(p, "\xff") == len(p) {
			return p, "", nil // nothing sorts above what starts so
		}
		return p, after(p), nil
	}
	return "", "", invalid("Query key condition not supported")
}
