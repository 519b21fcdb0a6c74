package testenv

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// guardedFS is the file system under a diskStore. It knows two things the tree does not.
//
// A full disk. The tree cannot take back a write to its log or manifest: an error there
// ends it, and the write may be visible already. So a file of reserveBytes stands beside
// it. When such a write finds no space, the file is given up, the write ends, and from
// then on admit refuses new ones until the file can be written again. Should another
// process eat the space in between, the write waits. Tables, which the tree writes in the
// background and tries again, fail; that too closes admit, before their backlog stalls the
// writers.
//
// What a sync of the log is worth. Without Options.Sync the log is synced when it is
// complete, so that the tree is whole after a power cut, but not after each write.
type guardedFS struct {
	vfs.FS
	dir        string // of the tree
	sync       bool
	background uint64 // bytes that must be free for the tree's background work
	fault      func(op, path string) error

	mu      sync.Mutex
	state   guardState
	full    bool
	tables  bool // a table found no space
	checked time.Time
}

type guardState int

const (
	guardOpening guardState = iota // errors go to the tree: Open reports them
	guardOpen
	guardClosing // nothing waits any more
)

const (
	fullWait  = 50 * time.Millisecond  // between two attempts of a write that must end
	fullProbe = 250 * time.Millisecond // between two looks whether there is space again
)

func newGuardedFS(under vfs.FS, dir string, opt diskOptions) *guardedFS {
	return &guardedFS{FS: under, dir: dir, sync: opt.sync, fault: opt.fault}
}

func (g *guardedFS) Unwrap() vfs.FS { return g.FS }

// errDiskFull is what a write meets while there is no space.
type errDiskFull struct{ dir string }

func (e errDiskFull) Error() string {
	return "no space left on the disk of " + e.dir + ": nothing acknowledged is lost; make room and it goes on by itself"
}

func (e errDiskFull) Unwrap() error { return syscall.ENOSPC }

func (g *guardedFS) reserve() string { return filepath.Join(filepath.Dir(g.dir), "db-reserve") }

// opened ends the opening: the reserve is there or admit makes it.
func (g *guardedFS) opened() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state = guardOpen
	_, err := os.Stat(g.reserve())
	g.full = err != nil
}

func (g *guardedFS) closing() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state = guardClosing
}

// admit refuses a write that could not end. It looks for space a few times a second.
func (g *guardedFS) admit() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.full {
		return nil
	}
	if now := time.Now(); now.Sub(g.checked) >= fullProbe {
		g.checked = now
		if err := g.restore(); err != nil && !isFull(err) {
			return fmt.Errorf("reserve space in %s: %w", filepath.Dir(g.dir), err)
		} else if err == nil {
			g.full, g.tables = false, false
			return nil
		}
	}
	return errDiskFull{filepath.Dir(g.dir)}
}

// restore writes the reserve again, and checks that there is room for the tables that
// wait. The caller holds mu.
func (g *guardedFS) restore() error {
	if err := g.ask("write", g.reserve()); err != nil {
		return err
	}
	if err := allocate(g.reserve(), reserveBytes); err != nil {
		return err
	}
	if !g.tables {
		return nil
	}
	usage, err := g.GetDiskUsage(g.dir)
	if err == nil && usage.AvailBytes < g.background {
		return syscall.ENOSPC
	}
	return err
}

// allocate makes a file that takes size bytes of the disk. It has its name once it does.
func allocate(path string, size int64) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	begun := path + "-begun"
	err := reserveFile(begun, size)
	if err == nil {
		err = os.Rename(begun, path)
	}
	if err != nil {
		os.Remove(begun)
	}
	return err
}

func reserveFile(path string, size int64) error {
	f, err := vfs.Default.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	// Only there it is more than a hint; some file systems there cannot do it.
	err = f.Preallocate(0, size)
	if runtime.GOOS != "linux" || err != nil && !isFull(err) {
		err = fill(f, size)
	}
	return errors.Join(err, f.Close())
}

// fill writes what no file system can store in less.
func fill(w io.Writer, size int64) error {
	block := make([]byte, 1<<20)
	x := uint64(1)
	for i := range block {
		x = mix(x)
		block[i] = byte(x)
	}
	for size > 0 {
		n, err := w.Write(block[:min(size, int64(len(block)))])
		if err != nil {
			return err
		}
		size -= int64(n)
	}
	return nil
}

// release gives the reserve up and says whether an operation that found no space is to be
// tried again.
func (g *guardedFS) release() (again bool) {
	g.mu.Lock()
	state := g.state
	g.full = true
	g.checked = time.Now()
	err := os.Remove(g.reserve())
	g.mu.Unlock()
	switch {
	case err == nil:
		return true
	case state == guardOpen:
		time.Sleep(fullWait)
		return true
	}
	return false
}

// tableFull notes that background work found no space, and slows its next attempt, which
// comes at once.
func (g *guardedFS) tableFull() {
	g.mu.Lock()
	g.full, g.tables = true, true
	g.checked = time.Now()
	wait := g.state == guardOpen
	g.mu.Unlock()
	if wait {
		time.Sleep(fullWait)
	}
}

func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

func (g *guardedFS) ask(op, path string) error {
	if g.fault == nil {
		return nil
	}
	return g.fault(op, path)
}

func isTable(name string) bool {
	return strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob")
}

// insist runs an operation until it succeeds or fails for another reason than a full disk.
func (g *guardedFS) insist(op, name string, run func() error) error {
	for {
		err := g.ask(op, name)
		if err == nil {
			err = run()
		}
		switch {
		case err == nil || !isFull(err):
			return err
		case isTable(name):
			g.tableFull()
			return err
		case !g.release():
			return err
		}
	}
}

func (g *guardedFS) file(op, name string, open func() (vfs.File, error)) (vfs.File, error) {
	var f vfs.File
	err := g.insist(op, name, func() (err error) {
		f, err = open()
		return err
	})
	if err != nil {
		return nil, err
	}
	return &guardedFile{File: f, g: g, name: name}, nil
}

func (g *guardedFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return g.file("create", name, func() (vfs.File, error) { return g.FS.Create(name, c) })
}

func (g *guardedFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return g.file("create", name, func() (vfs.File, error) { return g.FS.OpenReadWrite(name, c, opts...) })
}

func (g *guardedFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return g.file("create", newname, func() (vfs.File, error) { return g.FS.ReuseForWrite(oldname, newname, c) })
}

func (g *guardedFS) Rename(oldname, newname string) error {
	return g.insist("rename", newname, func() error { return g.FS.Rename(oldname, newname) })
}

func (g *guardedFS) Link(oldname, newname string) error {
	return g.insist("link", newname, func() error { return g.FS.Link(oldname, newname) })
}

type guardedFile struct {
	vfs.File
	g    *guardedFS
	name string
}

func (f *guardedFile) isLog() bool { return strings.HasSuffix(f.name, ".log") }

// Write writes all of p: what a full disk cut off is continued, not repeated.
func (f *guardedFile) Write(p []byte) (n int, err error) {
	err = f.g.insist("write", f.name, func() error {
		m, err := f.File.Write(p[n:])
		n += m
		return err
	})
	return n, err
}

// Preallocate is a favour: a file that grows as it is written is as good.
func (f *guardedFile) Preallocate(offset, length int64) error {
	if err := f.File.Preallocate(offset, length); err != nil && !isFull(err) {
		return err
	}
	return nil
}

func (f *guardedFile) Sync() error {
	if f.isLog() && !f.g.sync {
		return nil
	}
	return f.File.Sync()
}

func (f *guardedFile) SyncData() error {
	if f.isLog() && !f.g.sync {
		return nil
	}
	return f.File.SyncData()
}

// Close syncs a log that had no syncs.
func (f *guardedFile) Close() error {
	if f.isLog() && !f.g.sync {
		return errors.Join(f.File.Sync(), f.File.Close())
	}
	return f.File.Close()
}
