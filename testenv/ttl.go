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
	switch {
	case enable && old != nil:
		return invalid("TimeToLive is already enabled")
	case !enable && old == nil:
		return invalid("TimeToLive is already disabled")
	case enable:
		t.ttl.Store(&attr)
	case *old != attr:
		return invalid("TimeToLive is active on a different AttributeName: current AttributeName is " + *old)
	default:
		t.ttl.Store(nil)
	}
	return nil
}

// rebuildExpiries brings the expiries of the items that are there in line with the
// table's TTL attribute.
func (db *database) rebuildExpiries(t *table) error {
	var ws []write
	from := string(spaceKey(spaceExpiry, t.id))
	db.store.scan(from, after(from), false, func(key string, _ []byte) bool {
		ws = append(ws, write{key, nil})
		return true
	})
	if err := db.store.apply(ws); err != nil {
		return err
	}
	var keys []string
	from = string(spaceKey(spaceItem, t.id))
	db.store.scan(from, after(from), false, func(key string, _ []byte) bool {
		keys = append(keys, key)
		return true
	})
	for _, key := range keys {
		if err := db.rebuildExpiry(t, key); err != nil {
			return err
		}
	}
	return nil
}

func (db *database) rebuildExpiry(t *table, key string) error {
	defer db.lock(key)()
	attr := t.ttl.Load()
	stored, ok := db.store.get(key)
	if !ok || attr == nil {
		return nil
	}
	it, err := decodeStored(stored)
	if err != nil {
		return err
	}
	if k := expiryKey(t.id, *attr, it, key); k != "" {
		return db.store.apply([]write{{k, []byte{}}})
	}
	return nil
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
		for _, key := range db.expired(t, now) {
			if db.expire(t, key, now) {
				n++
			}
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

// expired returns the keys of the items due at now, earliest expiry first.
func (db *database) expired(t *table, now time.Time) []string {
	lo, hi := expiryBounds(now)
	prefix := spaceKey(spaceExpiry, t.id)
	from := string(binary.BigEndian.AppendUint64(prefix[:5:5], lo))
	to := string(binary.BigEndian.AppendUint64(prefix[:5:5], hi))
	var keys []string
	db.store.scan(from, to, false, func(key string, _ []byte) bool {
		keys = append(keys, key[expiryPrefix:])
		return true
	})
	return keys
}

// expire deletes one item if it still is due.
func (db *database) expire(t *table, key string, now time.Time) bool {
	defer db.lock(key)()
	attr := t.ttl.Load()
	stored, ok := db.store.get(key)
	if !ok || attr == nil {
		return false
	}
	c := &change{table: t, key: key, hash: binary.BigEndian.Uint64([]byte(key[5:13])), before: stored, service: true}
	it, err := c.old()
	if err != nil {
		return false
	}
	k := expiryKey(t.id, *attr, it, key)
	if k == "" {
		return false
	}
	lo, hi := expiryBounds(now)
	if e := binary.BigEndian.Uint64([]byte(k[5:13])); e < lo || e >= hi {
		return false
	}
	return db.commitChanges(c) == nil
}
