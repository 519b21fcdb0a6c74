package hot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go"

	"telemetrylake/schemas"
)

// CheckKeys fails if the table of the contract is not there or has other keys than the
// contract says.
func CheckKeys(ctx context.Context, client *dynamodb.Client, c *schemas.Contract) error {
	d, err := describe(ctx, client, c.Table)
	if err != nil {
		return err
	}
	want := keyText(keySchema(c.Keys.Partition.Attribute, c.Keys.Sort.Attribute))
	if have := keyText(d.KeySchema); want != have {
		return fmt.Errorf("the keys of table %s are %s, but contract %s says %s; name the contract of this table, or another table", c.Table, have, c.Name, want)
	}
	return nil
}

// A Load writes the items of a file to a hot table, many at a time. The items of one key are
// put in the order of the file, so the first of them is the one that stays. It can be run
// again from the start, whatever became of it: what is there already is told apart from what
// stands in the way.
type Load struct {
	w      *Writer
	in     *ItemReader
	o      LoadOptions
	mu     sync.Mutex // guards what follows
	counts LoadCounts
	err    error // what ended the reading before the end of the file
}

// LoadOptions of a Load.
type LoadOptions struct {
	Strict   bool // the first malformed line ends it
	Examples int  // refusals and malformed lines that the counts describe; 0: 10
}

// LoadCounts say how far a load is.
type LoadCounts struct {
	Written   int
	Present   int // the same item was there; when it expires does not make it another
	Refused   int // another item had the key
	Malformed int // lines

	// The first of each in the order of the file.
	RefusedLines   []RefusedLine
	MalformedLines []*LineError
}

// Rows are those of which it is known what became of them.
func (c LoadCounts) Rows() int { return c.Written + c.Present + c.Refused }

// A RefusedLine is a line whose item was not written because another item had the key.
type RefusedLine struct {
	Line int
	Key  string
}

// NewLoad returns a Load of what the reader gives.
func NewLoad(w *Writer, in *ItemReader, o LoadOptions) *Load {
	if o.Examples <= 0 {
		o.Examples = 10
	}
	return &Load{w: w, in: in, o: o}
}

// Counts says how far it is. It may be called at any time.
func (l *Load) Counts() LoadCounts {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.counts
	c.RefusedLines = slices.Clone(c.RefusedLines)
	c.MalformedLines = slices.Clone(c.MalformedLines)
	return c
}

// Health says whether its puts get anywhere. It may be called at any time.
func (l *Load) Health() Health { return l.w.Health() }

// A numbered is an item and its line.
type numbered struct {
	item Item
	line int
}

const (
	// queued is how many items wait for each put in flight.
	queued = 64
	// lastPuts is how long puts in flight may take to end after a load was stopped, so that
	// they are counted.
	lastPuts = 2 * time.Second
)

// Run loads. It returns nil if it came to the end of the file, though lines may have been
// malformed; a *LineError if it could not read on, or strictly would not, all lines before it
// being done; or else what stopped it.
func (l *Load) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	puts, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lastPuts, abort) })()

	queues := make([]chan numbered, l.w.o.Parallel)
	var workers sync.WaitGroup
	for i := range queues {
		queues[i] = make(chan numbered, queued)
		workers.Go(func() {
			for ctx.Err() == nil {
				select {
				case <-ctx.Done():
				case n, more := <-queues[i]:
					if !more {
						return
					}
					if err := l.put(puts, n); err != nil {
						stop(err)
					}
				}
			}
		})
	}
	// The reader may hang in a read, of a pipe for instance: nobody waits for it.
	go l.read(ctx, queues)
	workers.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// read gives each item to the worker of its key, until the file ends.
func (l *Load) read(ctx context.Context, queues []chan numbered) {
	defer func() {
		for _, q := range queues {
			close(q)
		}
	}()
	for ctx.Err() == nil {
		item, line, err := l.in.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			if l.malformed(err) {
				return
			}
			continue
		}
		select {
		case queues[l.w.hash(item)%uint64(len(queues))] <- numbered{item, line}:
		case <-ctx.Done():
		}
	}
}

// malformed counts a line that gives no item, and reports whether that is the end.
func (l *Load) malformed(err error) (end bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	le, ok := errors.AsType[*LineError](err)
	if !ok || le.Fatal {
		l.err = err
		return true
	}
	l.counts.Malformed += 1 + le.More
	l.counts.MalformedLines = firstOf(l.counts.MalformedLines, le, l.o.Examples, func(e *LineError) int { return e.Line })
	if l.o.Strict {
		l.err = err
	}
	return l.o.Strict
}

// firstOf adds an element to those with the lowest lines.
func firstOf[E any](list []E, e E, most int, line func(E) int) []E {
	at, _ := slices.BinarySearchFunc(list, line(e), func(x E, n int) int { return cmp.Compare(line(x), n) })
	list = slices.Insert(list, at, e)
	return list[:min(len(list), most)]
}

// put writes one item and counts what became of it.
func (l *Load) put(ctx context.Context, n numbered) error {
	other, unclear, err := l.w.tryPut(ctx, n.item)
	if api, ok := errors.AsType[smithy.APIError](err); ok && api.ErrorCode() == "ValidationException" {
		le := &LineError{File: l.in.name, Line: n.line, Err: fmt.Errorf("the table does not take the item: %s", api.ErrorMessage())}
		if l.malformed(le) {
			return le
		}
		return nil
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch c := &l.counts; {
	case other == nil, unclear && sameItem(other, n.item):
		c.Written++
	case sameItem(l.lasting(other), l.lasting(n.item)):
		c.Present++
	default:
		c.Refused++
		c.RefusedLines = firstOf(c.RefusedLines, RefusedLine{n.line, l.w.keyText(n.item)}, l.o.Examples, func(r RefusedLine) int { return r.Line })
	}
	return nil
}

// lasting is the item without its expiry, which is another in each load.
func (l *Load) lasting(item Item) Item {
	if _, ok := item[l.w.c.TTL]; !ok {
		return item
	}
	item = maps.Clone(item)
	delete(item, l.w.c.TTL)
	return item
}
