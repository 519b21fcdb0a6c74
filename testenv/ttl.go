package testenv

import (
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"time"
)

// expiryHorizon is how far in the past an expiry may lie: the service leaves older ones
// alone, so that a wrong unit does not delete a table.
const expiryHorizon = 5 * 365 * 24 * time.Hour

// expiryKey returns the key under which the item waits for its expiry, "" when it has none.
func expiryKey(table uint32, attr string, it item, itemKey string) string {
	v, ok := it.get(attr)
	if !ok || v.kind != kindNumber {
		return ""
	}
	whole, _, _ := strings.Cut(v.text, ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n < 0 {
		return ""
	}
	b := binary.BigEndian.AppendUint64(spaceKey(spaceExpiry, table), uint64(n))
	return string(append(b, itemKey...))
}

const expiryPrefix = 5 + 8 // bytes before the item's key

func (c *call) updateTimeToLive() ([]byte, error) {
	db := c.db
	t, err := db.table(c.req.str("TableName"))
	if err != nil {
		return nil, err
	}
	spec := c.req.get("TimeToLiveSpecification")
	attr := strings.Clone(spec.str("AttributeName"))
	if attr == "" {
		return nil, invalid("TimeToLiveSpecification.AttributeName must not be empty")
	}
	if err := db.setTTL(t, attr, spec.flag("Enabled")); err != nil {
		return nil, err
	}
	if err := db.rebuildExpiries(t); err != nil {
		return nil, err
	}
	var s, o jsonObject
	s.flag("Enabled", spec.flag("Enabled"))
	s.str("AttributeName", attr)
	o.raw("TimeToLiveSpecification", s.done())
	return o.done(), nil
}

// setTTL changes the attribute under commit: every write is either there when the expiries
// are rebuilt, or sees the new attribute.
func (db *database) setTTL(t *table, attr string, enable bool) error {
	db.commit.Lock()
	defer db.commit.Unlock()
	old := t.ttl.Load()
	set := &attr
	switch {
	case t.deleted:
		return notFound("Requested resource not found: Table: " + t.name + " not found")
	case enable && old != nil:
		return invalid("TimeToLive is already enabled")
	case !enable && old == nil:
		return invalid("TimeToLive is already disabled")
	case !enable && *old != attr:
		return invalid("TimeToLive is active on a different AttributeName: current AttributeName is " + *old)
	case !enable:
		set = nil
	}
	rebuilding := t.rebuilding
	t.ttl.Store(set)
	t.rebuilding = true
	w, err := t.write()
	if err == nil {
		err = db.store.apply([]write{w})
	}
	if err != nil {
		t.ttl.Store(old)
		t.rebuilding = rebuilding
	}
	return err
}

// rebuildExpiries brings the expiries of the items that are there in line with the
// table's TTL attribute. One that was cut off is done again by the next sweep.
func (db *database) rebuildExpiries(t *table) error {
	db.rebuild.Lock()
	defer db.rebuild.Unlock()
	db.commit.Lock()
	err := db.store.apply([]write{deleteAll(string(spaceKey(spaceExpiry, t.id)))})
	db.commit.Unlock()
	if err != nil {
		return err
	}
	from := string(spaceKey(spaceItem, t.id))
	err = db.pages(from, after(from), func(keys []string) error { return db.rebuildSome(t, keys) })
	if err != nil {
		return err
	}
	db.commit.Lock()
	defer db.commit.Unlock()
	if t.deleted {
		return nil
	}
	t.rebuilding = false
	w, err := t.write()
	if err != nil {
		return err
	}
	return db.store.apply([]write{w})
}

// rebuildSome writes the expiries of some items.
func (db *database) rebuildSome(t *table, keys []string) error {
	defer db.lock(keys...)()
	db.commit.RLock()
	defer db.commit.RUnlock()
	attr := t.ttl.Load()
	if attr == nil || t.deleted {
		return nil
	}
	var writes []write
	for _, key := range keys {
		stored, err := db.store.get(key)
		if err != nil {
			return err
		}
		if stored == nil {
			continue
		}
		it, err := decodeStored(stored)
		if err != nil {
			return err
		}
		if k := expiryKey(t.id, *attr, it, key); k != "" {
			writes = append(writes, write{key: k, value: []byte{}})
		}
	}
	return db.store.apply(writes)
}

// pages calls do with the keys from <= k < to, some at a time, until it fails. Keys that
// come or go meanwhile may be missed.
func (db *database) pages(from, to string, do func(keys []string) error) error {
	const most = 256
	for {
		keys := make([]string, 0, most)
		err := db.store.scan(from, to, false, func(key string, _ []byte) bool {
			keys = append(keys, key)
			return len(keys) < most
		})
		if err != nil || len(keys) == 0 {
			return err
		}
		if err := do(keys); err != nil {
			return err
		}
		if len(keys) < most {
			return nil
		}
		from = keys[len(keys)-1] + "\x00"
	}
}

func (c *call) describeTimeToLive() ([]byte, error) {
	t, err := c.db.table(c.req.str("TableName"))
	if err != nil {
		return nil, err
	}
	var d, o jsonObject
	if attr := t.ttl.Load(); attr != nil {
		d.str("TimeToLiveStatus", "ENABLED")
		d.str("AttributeName", *attr)
	} else {
		d.str("TimeToLiveStatus", "DISABLED")
	}
	o.raw("TimeToLiveDescription", d.done())
	return o.done(), nil
}

// sweepTTL deletes what has expired at now and returns how many items it deleted.
func (db *database) sweepTTL(now time.Time) int {
	db.mu.RLock()
	var tables []*table
	for _, t := range db.tables {
		if t.ttl.Load() != nil {
			tables = append(tables, t)
		}
	}
	db.mu.RUnlock()
	sortTables(tables)
	n := 0
	for _, t := range tables {
		db.commit.RLock()
		rebuilding := t.rebuilding
		db.commit.RUnlock()
		if rebuilding && db.rebuildExpiries(t) != nil {
			continue // the next sweep tries again
		}
		lo, hi := expiryBounds(now)
		prefix := spaceKey(spaceExpiry, t.id)
		from := string(binary.BigEndian.AppendUint64(prefix[:5:5], lo))
		to := string(binary.BigEndian.AppendUint64(prefix[:5:5], hi))
		err := db.pages(from, to, func(keys []string) error {
			for _, key := range keys {
				deleted, err := db.expire(t, key[expiryPrefix:], now)
				if err != nil {
					return err
				}
				if deleted {
					n++
				}
			}
			return nil
		})
		if err != nil {
			break // what is left is due at the next sweep
		}
	}
	return n
}

// bounds returns the expiries lo <= e < hi that are due at now.
func expiryBounds(now time.Time) (lo, hi uint64) {
	lo = uint64(max(now.Add(-expiryHorizon).Unix(), 0))
	hi = uint64(min(max(now.Unix(), 0), math.MaxInt64))
	return lo, hi
}

// expire deletes one item if it still is due.
func (db *database) expire(t *table, key string, now time.Time) (bool, error) {
	defer db.lock(key)()
	attr := t.ttl.Load()
	stored, err := db.store.get(key)
	if err != nil || stored == nil || attr == nil {
		return false, err
	}
	c := &change{table: t, key: key, hash: binary.BigEndian.Uint64([]byte(key[5:13])), before: stored, service: true}
	it, err := c.old()
	if err != nil {
		return false, err
	}
	k := expiryKey(t.id, *attr, it, key)
	if k == "" {
		return false, nil
	}
	lo, hi := expiryBounds(now)
	if e := binary.BigEndian.Uint64([]byte(k[5:13])); e < lo || e >= hi {
		return false, nil
	}
	if err := db.commitChanges(nil, c); err != nil {
		return false, err
	}
	return true, nil
}
