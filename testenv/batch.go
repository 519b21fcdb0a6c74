package testenv

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"time"
)

func (c *call) batchWriteItem() ([]byte, error) {
	tables := c.req.get("RequestItems")
	var all []*mutation
	seen := make(map[string]bool)
	for i := range tables.kids {
		for j := range tables.kids[i].kids {
			m, err := c.db.batchWrite(tables.kids[i].name, &tables.kids[i].kids[j])
			if err != nil {
				return nil, err
			}
			if seen[m.key] {
				return nil, invalid("Provided list of item keys contains duplicates")
			}
			seen[m.key] = true
			all = append(all, m)
		}
	}
	if len(all) == 0 || len(all) > 25 {
		return nil, invalid("1 validation error detected: Value at 'requestItems' failed to satisfy constraint: 1 to 25 requests")
	}
	throttled := c.db.throttled(len(all))
	if len(throttled) == len(all) {
		return nil, errThroughput
	}
	used := make(units)
	for i, m := range all {
		if throttled[i] {
			continue
		}
		if err := c.apply(m); err != nil {
			return nil, err
		}
		used[m.table] += writeUnits(m.before, m.after)
	}
	var o jsonObject
	o.raw("UnprocessedItems", unwritten(tables, throttled))
	used.add(c, &o)
	return o.done(), nil
}

// batchWrite reads one PutRequest or DeleteRequest.
func (db *database) batchWrite(table string, req *node) (*mutation, error) {
	kind, member, body := mutatePut, "Item", req.get("PutRequest")
	if body.absent() {
		kind, member, body = mutateDelete, "Key", req.get("DeleteRequest")
	}
	if body.kind != '{' || len(req.kids) != 1 {
		return nil, invalid("Supplied AttributeValue has more than one datatypes set, must contain exactly one of PutRequest and DeleteRequest")
	}
	return db.mutation(kind, &node{kind: '{', kids: []node{{kind: '"', name: "TableName", text: table}, *body.get(member)}})
}

// units are the capacity units consumed of each table.
type units map[*table]float64

func (u units) add(c *call, o *jsonObject) {
	switch c.req.str("ReturnConsumedCapacity") {
	case "TOTAL", "INDEXES":
	default:
		return
	}
	var tables []*table
	for t := range u {
		tables = append(tables, t)
	}
	sortTables(tables)
	var list [][]byte
	for _, t := range tables {
		list = append(list, capacity(t, u[t]))
	}
	o.raw("ConsumedCapacity", appendArray(nil, list))
}

const maxBatch = 16 << 20 // bytes a BatchGetItem returns

func (c *call) batchGetItem() ([]byte, error) {
	tables := c.req.get("RequestItems")
	var responses, unprocessed jsonObject
	used := make(units)
	total, size, refused := 0, 0, 0
	for i := range tables.kids {
		req := &tables.kids[i]
		name := req.name
		if err := refuseLegacy(req); err != nil {
			return nil, err
		}
		t, err := c.db.table(name)
		if err != nil {
			return nil, err
		}
		var items [][]byte
		var left []item
		seen := make(map[string]bool)
		keys := req.get("Keys").kids
		if total += len(keys); total > 100 || len(keys) == 0 {
			return nil, invalid("Too many items requested for the BatchGetItem call, or none: 1 to 100 are allowed")
		}
		for j := range keys {
			g, err := c.db.get(t, req, &keys[j])
			if err != nil {
				return nil, err
			}
			if seen[g.key] {
				return nil, invalid("Provided list of item keys contains duplicates")
			}
			seen[g.key] = true
			stored, err := c.db.store.get(g.key)
			if err != nil {
				return nil, err
			}
			throttled := choose(&c.db.choosing, c.db.opt.DynamoDB.Unprocessed)
			if throttled {
				refused++
			}
			if n := storedSize(stored); throttled || size+n > maxBatch {
				it, err := decodeItem(&keys[j])
				if err != nil {
					return nil, err
				}
				left = append(left, it)
				continue
			}
			size += storedSize(stored)
			used[t] += readUnits(storedSize(stored), req.flag("ConsistentRead"))
			if stored == nil {
				continue
			}
			text, err := g.text(stored)
			if err != nil {
				return nil, err
			}
			items = append(items, text)
		}
		responses.raw(name, appendArray(nil, items))
		if len(left) > 0 {
			unprocessed.raw(name, unread(req, left))
		}
	}
	if total == 0 {
		return nil, invalid("1 validation error detected: Value at 'requestItems' must not be empty")
	}
	if refused == total {
		return nil, errThroughput
	}
	var o jsonObject
	o.raw("Responses", responses.done())
	o.raw("UnprocessedKeys", unprocessed.done())
	used.add(c, &o)
	return o.done(), nil
}

// unread repeats a table's request for the keys that are left.
func unread(req *node, keys []item) []byte {
	var list [][]byte
	for _, k := range keys {
		list = append(list, appendItem(nil, k))
	}
	var o jsonObject
	o.raw("Keys", appendArray(nil, list))
	if req.flag("ConsistentRead") {
		o.flag("ConsistentRead", true)
	}
	if p := req.str("ProjectionExpression"); p != "" {
		o.str("ProjectionExpression", p)
	}
	if names := req.get("ExpressionAttributeNames"); len(names.kids) > 0 {
		var n jsonObject
		for i := range names.kids {
			n.str(names.kids[i].name, names.kids[i].text)
		}
		o.raw("ExpressionAttributeNames", n.done())
	}
	return o.done()
}

const (
	maxTransaction      = 100
	maxTransactionBytes = 4 << 20
	tokenLife           = 10 * time.Minute
)

// Client request tokens of transactions that succeeded stay in the store for ten minutes.
// They are written with the transaction: one that is known by its token was applied.

func requestTokenKey(id string) string { return string(spaceToken) + id }

// tokenSeen says whether a transaction with this token succeeded; an error says that it was
// another one.
func (db *database) tokenSeen(id string, hash [sha256.Size]byte, now time.Time) (bool, error) {
	if id == "" {
		return false, nil
	}
	v, err := db.store.get(requestTokenKey(id))
	if err != nil || v == nil || now.UnixMilli() >= int64(binary.BigEndian.Uint64(v)) {
		return false, err
	}
	if [sha256.Size]byte(v[8:]) != hash {
		return false, failure("IdempotentParameterMismatchException", "Idempotent parameters mismatch for client request token "+id)
	}
	return true, nil
}

// tokenWrites are what remembers a token; hash is of the request's canonical form.
func tokenWrites(id string, hash [sha256.Size]byte, now time.Time) []write {
	if id == "" {
		return nil
	}
	expires := binary.BigEndian.AppendUint64(nil, uint64(now.Add(tokenLife).UnixMilli()))
	return []write{
		{key: requestTokenKey(id), value: append(slices.Clone(expires), hash[:]...)},
		{key: string(spaceTokenExpiry) + string(expires) + id, value: []byte{}},
	}
}

// forgetTokens deletes the tokens that expired before now.
func (db *database) forgetTokens(now time.Time) error {
	from := string(spaceTokenExpiry)
	to := from + string(binary.BigEndian.AppendUint64(nil, uint64(now.UnixMilli())))
	return db.pages(from, to, func(keys []string) error {
		writes := make([]write, 0, 2*len(keys))
		for _, key := range keys {
			writes = append(writes, write{key: key})
			id := requestTokenKey(key[1+8:])
			v, err := db.store.get(id)
			if err != nil {
				return err
			}
			// A token that was used again has another expiry, and waits for that.
			if v != nil && string(v[:8]) == key[1:1+8] {
				writes = append(writes, write{key: id})
			}
		}
		return db.store.apply(writes)
	})
}

func (c *call) transactWriteItems() ([]byte, error) {
	list := c.req.get("TransactItems").kids
	if len(list) == 0 || len(list) > maxTransaction {
		return nil, invalid("1 validation error detected: Value at 'transactItems' failed to satisfy constraint: Member must have length less than or equal to 100 and at least 1")
	}
	ms := make([]*mutation, len(list))
	keys := make([]string, len(list))
	for i := range list {
		if len(list[i].kids) != 1 {
			return nil, invalid("TransactItems can only contain one of Check, Put, Update or Delete")
		}
		kind := mutationKind(list[i].kids[0].name)
		switch kind {
		case mutatePut, mutateUpdate, mutateDelete, mutateCheck:
		default:
			return nil, invalid("TransactItems can only contain one of Check, Put, Update or Delete")
		}
		m, err := c.db.mutation(kind, &list[i].kids[0])
		if err != nil {
			return nil, err
		}
		ms[i], keys[i] = m, m.key
	}
	if sorted := slices.Sorted(slices.Values(keys)); len(slices.Compact(sorted)) != len(keys) {
		return nil, invalid("Transaction request cannot include multiple operations on one item")
	}
	id := c.req.str("ClientRequestToken")
	if len(id) > 36 {
		return nil, invalid("1 validation error detected: Value at 'clientRequestToken' failed to satisfy constraint: Member must have length less than or equal to 36")
	}
	hash := sha256.Sum256(c.req.appendCanonical(nil))
	// Requests that share a token name the same items or are a mismatch, so the second
	// waits here for the first.
	defer c.db.lock(keys...)()
	done, err := c.db.tokenSeen(id, hash, c.now)
	if err != nil {
		return nil, err
	}
	if !done {
		if err := c.transact(ms, tokenWrites(id, hash, c.now)); err != nil {
			return nil, err
		}
	}
	used := make(units)
	for _, m := range ms {
		if done {
			used[m.table] += 2 * readUnits(storedSize(m.before), true)
		} else {
			used[m.table] += 2 * writeUnits(m.before, m.after)
		}
	}
	var o jsonObject
	used.add(c, &o)
	return o.done(), nil
}

// transact runs the mutations, whose items are locked, and applies all or none, together
// with further writes.
func (c *call) transact(ms []*mutation, further []write) error {
	if reasons := c.db.cancels(len(ms)); reasons != nil {
		return cancelled(reasons)
	}
	reasons := make([]*apiError, len(ms))
	changes := make([]*change, 0, len(ms))
	failed, size := false, 0
	for i, m := range ms {
		err := m.run(c.db)
		if err == nil {
			size += max(storedSize(m.before), storedSize(m.after))
			changes = append(changes, &m.change)
			continue
		}
		var e *apiError
		if !errors.As(err, &e) {
			return err
		}
		reasons[i], failed = e, true
	}
	if failed {
		return cancelled(reasons)
	}
	if size > maxTransactionBytes {
		return invalid("Collection size exceeded: the items of a transaction must not exceed 4 MB")
	}
	return c.db.commitChanges(further, changes...)
}

// cancelled reports why a transaction was not applied, one reason for each item.
func cancelled(reasons []*apiError) error {
	codes := make([]string, len(reasons))
	list := make([][]byte, len(reasons))
	for i, e := range reasons {
		var o jsonObject
		codes[i] = "None"
		if e != nil {
			// The reason's code is the error's, without its last word; what is wrong with an
			// item's content is a ValidationError.
			codes[i] = strings.TrimSuffix(strings.TrimSuffix(e.code, "Exception"), "Validation")
			codes[i] = cmp.Or(codes[i], "ValidationError")
			o.str("Message", e.message)
			if e.member == "Item" {
				o.raw("Item", e.raw)
			}
		}
		o.str("Code", codes[i])
		list[i] = o.done()
	}
	return &apiError{
		status:  400,
		code:    "TransactionCanceledException",
		message: "Transaction cancelled, please refer cancellation reasons for specific reasons [" + strings.Join(codes, ", ") + "]",
		member:  "CancellationReasons",
		raw:     appendArray(nil, list),
	}
}

func (c *call) transactGetItems() ([]byte, error) {
	list := c.req.get("TransactItems").kids
	if len(list) == 0 || len(list) > maxTransaction {
		return nil, invalid("1 validation error detected: Value at 'transactItems' failed to satisfy constraint: Member must have length less than or equal to 100 and at least 1")
	}
	getters := make([]getter, len(list))
	tables := make([]*table, len(list))
	keys := make([]string, len(list))
	for i := range list {
		req := list[i].get("Get")
		t, err := c.db.table(req.str("TableName"))
		if err != nil {
			return nil, err
		}
		g, err := c.db.get(t, req, req.get("Key"))
		if err != nil {
			return nil, err
		}
		getters[i], tables[i], keys[i] = g, t, g.key
	}
	used := make(units)
	answers := make([][]byte, len(list))
	defer c.db.lock(keys...)()
	size := 0
	for i, g := range getters {
		stored, err := c.db.store.get(g.key)
		if err != nil {
			return nil, err
		}
		var o jsonObject
		if stored != nil {
			text, err := g.text(stored)
			if err != nil {
				return nil, err
			}
			o.raw("Item", text)
		}
		size += storedSize(stored)
		used[tables[i]] += 2 * readUnits(storedSize(stored), true)
		answers[i] = o.done()
	}
	if size > maxTransactionBytes {
		return nil, invalid("Collection size exceeded: the items of a transaction must not exceed 4 MB")
	}
	var o jsonObject
	o.raw("Responses", appendArray(nil, answers))
	used.add(c, &o)
	return o.done(), nil
}
