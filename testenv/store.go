package testenv

import (
	"sync"

	"github.com/tidwall/btree"
)

// store keeps encoded bytes under ordered keys. It is all the database needs from
// storage, so that a store on disk can take the place of the one in memory. Keys and
// values are never changed once they are in a store: readers may keep them.
type store interface {
	// get returns the value under key.
	get(key string) (value []byte, ok bool)
	// scan visits the keys k with from <= k < to in ascending order, or in descending
	// order when reverse is set, until visit returns false. It sees one state of the
	// store; visit must not call the store.
	scan(from, to string, reverse bool, visit func(key string, value []byte) bool)
	// apply does all writes or none: readers see the state before or after them.
	apply(writes []write) error
}

// write sets one key, or deletes it when value is nil.
type write struct {
	key   string
	value []byte
}

// Keys start with one byte that says what they hold.
const (
	spaceItem   = 'i' // table id, item key -> item
	spaceIndex  = 'g' // table id, index number, index key, item key -> projected item
	spaceExpiry = 't' // table id, expiry, item key -> nothing
	spaceRecord = 'r' // stream id, shard number, sequence number -> stream record
)

type memoryStore struct {
	mu   sync.RWMutex
	tree *btree.BTreeG[write]
}

func newMemoryStore() *memoryStore {
	less := func(a, b write) bool { return a.key < b.key }
	return &memoryStore{tree: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
}

func (m *memoryStore) get(key string) ([]byte, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e, ok := m.tree.Get(write{key: key})
	return e.value, ok
}

func (m *memoryStore) scan(from, to string, reverse bool, visit func(string, []byte) bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if reverse {
		m.tree.Descend(write{key: to}, func(e write) bool {
			if e.key == to {
				return true
			}
			return e.key >= from && visit(e.key, e.value)
		})
		return
	}
	m.tree.Ascend(write{key: from}, func(e write) bool {
		return e.key < to && visit(e.key, e.value)
	})
}

func (m *memoryStore) apply(writes []write) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range writes {
		if w.value == nil {
			m.tree.Delete(w)
		} else {
			m.tree.Set(w)
		}
	}
	return nil
}
