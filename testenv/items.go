package testenv

import (
	"slices"
	"strconv"
)

// The forms of a request this stand-in does not know; the service calls them legacy.
var legacy = []string{"Expected", "AttributeUpdates", "ConditionalOperator", "QueryFilter", "ScanFilter", "KeyConditions", "AttributesToGet"}

func refuseLegacy(req *node) error {
	for i := range req.kids {
		if name := req.kids[i].name; slices.Contains(legacy, name) && !req.kids[i].absent() {
			return invalid("the legacy parameter " + name + " is not supported by this stand-in: use expressions")
		}
	}
	return nil
}

// mutation is a Put, Update, Delete or ConditionCheck, ready to run once its item is
// locked.
type mutation struct {
	change
	kind      mutationKind
	put       item // of a put
	keyItem   item // of an update
	condition *expression
	updates   *expression
	binding   *binding
	touched   []path // what an update has set or removed
	onFailure string // ReturnValuesOnConditionCheckFailure
}

type mutationKind string

const (
	mutatePut    mutationKind = "Put"
	mutateUpdate mutationKind = "Update"
	mutateDelete mutationKind = "Delete"
	mutateCheck  mutationKind = "ConditionCheck"
)

// mutation reads the parameters that single requests and transactions have in common.
func (db *database) mutation(kind mutationKind, req *node) (*mutation, error) {
	if err := refuseLegacy(req); err != nil {
		return nil, err
	}
	t, err := db.table(req.str("TableName"))
	if err != nil {
		return nil, err
	}
	m := &mutation{kind: kind, change: change{table: t}, onFailure: req.str("ReturnValuesOnConditionCheckFailure")}
	if m.condition, err = db.expressions.compile(labelCondition, req.get("ConditionExpression")); err != nil {
		return nil, err
	}
	if kind == mutateUpdate {
		if m.updates, err = db.expressions.compile(labelUpdate, req.get("UpdateExpression")); err != nil {
			return nil, err
		}
	}
	if kind == mutateCheck && m.condition == nil {
		return nil, invalid("The expression can not be empty;")
	}
	if m.binding, err = bind(req, m.condition, m.updates); err != nil {
		return nil, err
	}
	if kind == mutatePut {
		if m.put, err = decodeItem(req.get("Item")); err != nil {
			return nil, err
		}
		m.key, m.hash, err = t.check(m.put)
		return m, err
	}
	if m.keyItem, m.key, m.hash, err = t.locate(req.get("Key")); err != nil {
		return nil, err
	}
	if m.updates != nil {
		for _, a := range m.updates.actions {
			if name := m.binding.name(a.path[0]); t.keys.has(name) {
				return nil, invalid("One or more parameter values were invalid: Cannot update attribute " + name + ". This attribute is part of the key")
			}
		}
	}
	return m, nil
}

// locate reads a request's Key.
func (t *table) locate(n *node) (keyItem item, key string, hash uint64, err error) {
	if keyItem, err = decodeItem(n); err != nil {
		return nil, "", 0, err
	}
	p, s, err := t.keys.exact(keyItem)
	if err != nil {
		return nil, "", 0, err
	}
	key, hash = t.itemKey(p, s)
	return keyItem, key, hash, nil
}

// run reads the old item, checks the condition and works out the new item. The item's
// stripe is held. Nothing is written.
func (m *mutation) run(db *database) error {
	var err error
	if m.before, err = db.store.get(m.key); err != nil {
		return err
	}
	if m.condition != nil || m.kind == mutateUpdate {
		old, err := m.old()
		if err != nil {
			return err
		}
		ok, err := m.binding.matches(m.condition, old)
		if err != nil {
			return err
		}
		if !ok {
			return m.conditionFailed()
		}
	}
	switch m.kind {
	case mutatePut:
		m.newItem = m.put
		m.after = encodeStored(m.put)
	case mutateUpdate:
		return m.update()
	case mutateCheck:
		m.after = m.before
		m.newItem = m.oldItem
	}
	return nil
}

func (m *mutation) update() error {
	base := m.oldItem
	if m.before == nil {
		base = m.keyItem
	}
	it, touched, err := m.binding.update(m.updates, base)
	if err != nil {
		return err
	}
	m.newItem, m.touched = it, touched
	if _, _, err := m.table.check(it); err != nil {
		return err
	}
	m.after = encodeStored(it)
	return nil
}

func (m *mutation) conditionFailed() error {
	e := &apiError{status: 400, code: "ConditionalCheckFailedException", message: "The conditional request failed"}
	if m.onFailure == "ALL_OLD" && m.before != nil {
		_, text := openStored(m.before)
		e.member, e.raw = "Item", text
	}
	return e
}

func (c *call) putItem() ([]byte, error)    { return c.mutate(mutatePut) }
func (c *call) updateItem() ([]byte, error) { return c.mutate(mutateUpdate) }
func (c *call) deleteItem() ([]byte, error) { return c.mutate(mutateDelete) }

func (c *call) mutate(kind mutationKind) ([]byte, error) {
	m, err := c.db.mutation(kind, &c.req)
	if err != nil {
		return nil, err
	}
	want := c.req.str("ReturnValues")
	switch want {
	case "", "NONE", "ALL_OLD":
	case "UPDATED_OLD", "ALL_NEW", "UPDATED_NEW":
		if kind == mutateUpdate {
			break
		}
		fallthrough
	default:
		return nil, invalid("Return values set to invalid value: " + want)
	}
	if err := c.apply(m); err != nil {
		return nil, err
	}
	var o jsonObject
	m.returnValues(&o, want)
	c.consumed(&o, m.table, writeUnits(m.before, m.after))
	return o.done(), nil
}

func (c *call) apply(m *mutation) error {
	defer c.db.lock(m.key)()
	if err := m.run(c.db); err != nil {
		return err
	}
	return c.db.commitChanges(nil, &m.change)
}

func (m *mutation) returnValues(o *jsonObject, want string) {
	switch want {
	case "ALL_OLD":
		if m.before != nil {
			_, text := openStored(m.before)
			o.raw("Attributes", text)
		}
	case "ALL_NEW":
		_, text := openStored(m.after)
		o.raw("Attributes", text)
	case "UPDATED_OLD", "UPDATED_NEW":
		it := m.newItem
		if want == "UPDATED_OLD" {
			it = m.oldItem
		}
		if part := project(it, m.touched); len(part) > 0 {
			o.raw("Attributes", appendItem(nil, part))
		}
	}
}

func (c *call) getItem() ([]byte, error) {
	if err := refuseLegacy(&c.req); err != nil {
		return nil, err
	}
	t, err := c.db.table(c.req.str("TableName"))
	if err != nil {
		return nil, err
	}
	g, err := c.db.get(t, &c.req, c.req.get("Key"))
	if err != nil {
		return nil, err
	}
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
	c.consumed(&o, t, readUnits(storedSize(stored), c.req.flag("ConsistentRead")))
	return o.done(), nil
}

// getter is the reading of one item.
type getter struct {
	key string
	projection
}

// projection is what a read returns of each item; the zero projection is everything.
type projection struct{ paths []path }

// get reads the parameters of reading one item.
func (db *database) get(t *table, req, key *node) (getter, error) {
	e, err := db.expressions.compile(labelProjection, req.get("ProjectionExpression"))
	if err != nil {
		return getter{}, err
	}
	b, err := bind(req, e)
	if err != nil {
		return getter{}, err
	}
	_, k, _, err := t.locate(key)
	return getter{key: k, projection: b.projection(e)}, err
}

func (b *binding) projection(e *expression) projection {
	var p projection
	if e != nil {
		for _, x := range e.paths {
			p.paths = append(p.paths, b.resolve(x))
		}
	}
	return p
}

// text returns the projected item of a stored one in DynamoDB JSON.
func (p projection) text(stored []byte) ([]byte, error) {
	if p.paths == nil {
		_, text := openStored(stored)
		return text, nil
	}
	it, err := decodeStored(stored)
	if err != nil {
		return nil, err
	}
	return appendItem(nil, project(it, p.paths)), nil
}

func storedSize(stored []byte) int {
	if stored == nil {
		return 0
	}
	n, _ := openStored(stored)
	return n
}

// Capacity as the service charges it: a write unit for each started KiB, a read unit for
// each 4 KiB, half of it for a read that need not be consistent.

func writeUnits(before, after []byte) float64 {
	n := max(storedSize(before), storedSize(after), 1)
	return float64((n + 1023) / 1024)
}

func readUnits(size int, consistent bool) float64 {
	n := float64((max(size, 1) + 4095) / 4096)
	if consistent {
		return n
	}
	return n / 2
}

// consumed adds the ConsumedCapacity a request asked for.
func (c *call) consumed(o *jsonObject, t *table, units float64) {
	switch c.req.str("ReturnConsumedCapacity") {
	case "TOTAL", "INDEXES":
		o.raw("ConsumedCapacity", capacity(t, units))
	}
}

func capacity(t *table, units float64) []byte {
	var o jsonObject
	o.str("TableName", t.name)
	o.name("CapacityUnits")
	o.b = strconv.AppendFloat(o.b, units, 'f', -1, 64)
	return o.done()
}
