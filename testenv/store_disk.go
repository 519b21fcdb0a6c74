package testenv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// storeFormat is the version of what a durable Env keeps in its folder. A change that an
// older program would misread raises it.
const storeFormat = 1

// diskStore is the store of a durable Env: a log-structured tree in the folder db.
//
// A write is in the operating system's hands before apply returns and before any reader
// sees it, so neither what was acknowledged nor what was read can go with the process.
// The tree's own unsynced commits would not do: they leave the last writes in a buffer of
// this process. So every commit asks for a sync, and guardedFS makes the log's syncs free
// unless Options.Sync asks for them.
type diskStore struct {
	dir  string
	db   *pebble.DB
	fs   *guardedFS
	lock *pebble.Lock

	// mu keeps readers away while a write is visible and not yet in the log.
	mu     sync.RWMutex
	closed bool

	broken atomic.Pointer[error] // set once nothing can be written any more
	failed chan struct{}         // closed when broken is set
}

// diskOptions is what a diskStore needs of Options.
type diskOptions struct {
	sync  bool
	cache int64 // bytes, of the block cache; the tables in memory take at most as much again
	fault func(op, path string) error
}

// reserveBytes is what a store sets aside on its disk, so that a write it has begun can
// end when the disk is full. It holds the largest request with all it makes of it.
const reserveBytes = 32 << 20

// openDiskStore opens or creates the store in dir/db. A second process, or a second Env of
// this one, is refused, and so is a folder in a newer format.
func openDiskStore(dir string, opt diskOptions) (*diskStore, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "db")
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, err
	}
	s := &diskStore{dir: dir, failed: make(chan struct{})}
	s.fs = newGuardedFS(vfs.Default, path, opt)
	if s.lock, err = pebble.LockDirectory(path, s.fs); err != nil {
		return nil, fmt.Errorf("lock %s, which another process or Env has open: stop it, or use another folder: %w", dir, err)
	}
	if err := s.open(path, opt); err != nil {
		return nil, errors.Join(err, s.lock.Close())
	}
	return s, nil
}

func (s *diskStore) open(path string, opt diskOptions) error {
	if err := checkStoreFormat(s.dir); err != nil {
		return err
	}
	memory := uint64(min(max(opt.cache/4, 1<<20), 64<<20))
	s.fs.background = 2 * memory
	options := &pebble.Options{
		FS:                          s.fs,
		Lock:                        s.lock,
		Logger:                      storeLogger{s},
		CacheSize:                   opt.cache,
		MemTableSize:                memory,
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       4,
		MaxOpenFiles:                500,
		BytesPerSync:                1 << 20,
		FormatMajorVersion:          pebble.FormatTableFormatV6,
		EventListener: &pebble.EventListener{
			BackgroundError: func(error) {}, // tried again; a full disk is guardedFS's business
			DiskSlow:        func(pebble.DiskSlowInfo) {},
			DataCorruption: func(info pebble.DataCorruptionInfo) {
				s.fail(fmt.Errorf("the store in %s is damaged (%s): put back a copy, or start in another folder", s.dir, info.Path))
			},
		},
	}
	for i := range options.Levels {
		// Most writes ask for a key that is not there.
		options.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	db, err := s.openTree(path, options)
	if err != nil {
		return fmt.Errorf("open the store in %s: %w", s.dir, err)
	}
	s.db = db
	s.fs.opened()
	return nil
}

// openTree turns the way in which the tree gives up into an error.
func (s *diskStore) openTree(path string, options *pebble.Options) (db *pebble.DB, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	return pebble.Open(path, options)
}

// checkStoreFormat reads the version of the folder's format, and writes it into a new one.
func checkStoreFormat(dir string) error {
	path := filepath.Join(dir, "db-format")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return writeWhole(path, strconv.Itoa(storeFormat)+"\n")
	}
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	switch {
	case err != nil || n < 1:
		return fmt.Errorf("read %s: %q is not a format version: put back a copy, or start in another folder", path, text)
	case n > storeFormat:
		return fmt.Errorf("%s was written by a newer version (format %d, this one reads up to %d): use that version, or another folder", dir, n, storeFormat)
	}
	return nil
}

// writeWhole writes a file that is there with all its text or not at all.
func writeWhole(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

var errStoreClosed = errors.New("the store is closed")

// usable says why the store cannot be used. The caller holds mu.
func (s *diskStore) usable() error {
	if e := s.broken.Load(); e != nil {
		return *e
	}
	if s.closed {
		return errStoreClosed
	}
	return nil
}

// fail makes every later use of the store an error.
func (s *diskStore) fail(err error) {
	if s.broken.CompareAndSwap(nil, &err) {
		close(s.failed)
	}
}

func (s *diskStore) get(key string) ([]byte, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	v, closer, err := s.db.Get([]byte(key))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the store in %s: %w", s.dir, err)
	}
	defer closer.Close()
	return append(make([]byte, 0, len(v)), v...), nil
}

func (s *diskStore) scan(from, to string, reverse bool, visit func(string, []byte) bool) (err error) {
	if from >= to {
		return nil
	}
	it, err := s.iterator(from, to)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := it.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("read the store in %s: %w", s.dir, cerr)
		}
	}()
	start, next := it.First, it.Next
	if reverse {
		start, next = it.Last, it.Prev
	}
	for ok := start(); ok; ok = next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("read the store in %s: %w", s.dir, err)
		}
		if !visit(string(it.Key()), append(make([]byte, 0, len(v)), v...)) {
			break
		}
	}
	return nil
}

// iterator returns one state of the store, which writes after it do not change.
func (s *diskStore) iterator(from, to string) (*pebble.Iterator, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	bounds := &pebble.IterOptions{UpperBound: []byte(to)}
	if from != "" {
		bounds.LowerBound = []byte(from)
	}
	it, err := s.db.NewIter(bounds)
	if err != nil {
		return nil, fmt.Errorf("read the store in %s: %w", s.dir, err)
	}
	return it, nil
}

func (s *diskStore) apply(writes []write) (err error) {
	if len(writes) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	if err := s.fs.admit(); err != nil {
		return err
	}
	defer func() {
		// The logger's Fatalf: the tree does not survive it, the process does.
		if r := recover(); r != nil {
			s.fail(fmt.Errorf("write the store in %s: %v: start again, nothing acknowledged is lost", s.dir, r))
			err = *s.broken.Load()
		}
	}()
	b := s.db.NewBatch()
	for _, w := range writes {
		switch {
		case w.to != "":
			err = b.DeleteRange([]byte(w.key), []byte(w.to), nil)
		case w.value == nil:
			err = b.Delete([]byte(w.key), nil)
		default:
			err = b.Set([]byte(w.key), w.value, nil)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("write the store in %s: %w", s.dir, err), b.Close())
		}
	}
	if err := b.Commit(pebble.Sync); err != nil {
		return errors.Join(fmt.Errorf("write the store in %s: %w", s.dir, err), b.Close())
	}
	return b.Close()
}

// close waits for what is running. A store that is broken is left as it is, and the folder
// locked as long as the process lives, for the tree may still be writing tables: opening it in
// the next process is the recovery.
func (s *diskStore) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.fs.closing()
	if s.broken.Load() != nil {
		return s.lock.Close()
	}
	return errors.Join(s.db.Close(), s.lock.Close())
}

// storeLogger hears the tree give up. Fatalf must not return, and exiting is not a
// package's to decide.
type storeLogger struct{ s *diskStore }

func (l storeLogger) Infof(string, ...any)  {}
func (l storeLogger) Errorf(string, ...any) {}
func (l storeLogger) Fatalf(format string, args ...any) {
	err := fmt.Errorf("the store in %s: "+format+": start again, nothing acknowledged is lost", append([]any{l.s.dir}, args...)...)
	l.s.fail(err)
	panic(err)
}
