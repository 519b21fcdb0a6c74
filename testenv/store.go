package testenv

import (
	"sync"

	"github.com/tidwall/btree"
)

// store keeps encoded bytes under ordered keys. It is all the database needs from
// storage, so that a store on disk can take the place of the one in memory. Keys and
// values are never changed once they are in a store: readers may keep them.
type store interface {
	// get returns the value under key, nil when there is none.
	get(key string) (value []byte, err error)
	// scan visits the keys k with from <= k < to in ascending order, or in descending
	// order when reverse is set, until visit returns false. It sees one state of the
	// store; visit must not call the store.
	scan(from, to string, reverse bool, visit func(key string, value []byte) bool) error
	// apply does all writes in their order, or none: readers see the state before or after
	// them. When it returns nil they outlive the process, if the store is one that does.
	apply(writes []write) error
	// close releases the store; nothing may be called after it.
	close() error
}

// write sets one key, or deletes it when value is nil. With to it deletes all keys k with
// key <= k < to.
type write struct {
	key   string
	value []byte
	to    string
}

// deleteAll deletes every key that starts with prefix.
func deleteAll(prefix string) write { return write{key: prefix, to: after(prefix)} }

// Keys start with one byte that says what they hold.
const (
	spaceItem   = 'i' // table id, item key -> item
	spaceIndex  = 'g' // table id, index number, index key, item key -> projected item
	spaceExpiry = 't' // table id, expiry, item key -> nothing
	spaceRecord = 'r' // stream id, shard number, sequence number -> stream record

	spaceTable       = 'T' // table id -> storedTable
	spaceCount       = 'n' // table id -> items and bytes; of a durable Env
	spaceStream      = 'S' // stream id -> storedStream
	spaceShard       = 'h' // stream id, shard number -> storedShard
	spaceToken       = 'k' // client request token -> expiry, hash of the transaction
	spaceTokenExpiry = 'x' // expiry, client request token -> nothing
	spaceDelivery    = 'd' // delivery stream id -> storedDelivery
	spaceDelivered   = 'q' // delivery stream id -> FirehoseStats
	spaceBuffer      = 'b' // delivery stream id, buffer number -> storedBuffer
	spacePayload     = 'p' // delivery stream id, buffer number, place -> payload
	spaceEnv         = 'e' // -> storedEnv
)

type memoryStore struct {
	mu   sync.RWMutex
	tree *btree.BTreeG[write] // of keys and values
}

func newMemoryStore() *memoryStore {
	less := func(a, b write) bool { return a.key < b.key }
	return &memoryStore{tree: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
}

func (m *memoryStore) get(key string) ([]byte, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e, _ := m.tree.Get(write{key: key})
	return e.value, nil
}

func (m *memoryStore) scan(from, to string, reverse bool, visit func(string, []byte) bool) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if reverse {
		m.tree.Descend(write{key: to}, func(e write) bool {
			if e.key == to {
				return true
			}
			return e.key >= from && visit(e.key, e.value)
		})
		return nil
	}
	m.tree.Ascend(write{key: from}, func(e write) bool {
		return e.key < to && visit(e.key, e.value)
	})
	return nil
}

func (m *memoryStore) close() error { return nil }

func (m *memoryStore) apply(writes []write) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range writes {
		switch {
		case w.to != "":
			m.deleteRange(w.key, w.to)
		case w.value == nil:
			m.tree.Delete(w)
		default:
			m.tree.Set(w)
		}
	}
	return nil
}

func (m *memoryStore) deleteRange(from, to string) {
	var keys []write
	m.tree.Ascend(write{key: from}, func(e write) bool {
		if e.key >= to {
			return false
		}
		keys = append(keys, write{key: e.key})
		return true
	})
	for _, k := range keys {
		m.tree.Delete(k)
	}
}
