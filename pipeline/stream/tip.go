package stream

import "time"

// When empty pages mean that a shard has nothing more to show. The service promises no number:
// "it might take multiple calls to get to the portion of the shard with records" (GetRecords).
// So they must be many and take a while. A new iterator may stand hours behind the tip, with
// a desert to cross; from the tip on, each page covers only the time since the one before.
const (
	walkPages = 30 // with an iterator that was asked for and has not shown the tip yet
	tipPages  = 5  // afterwards
	tipTime   = 10 * time.Second
)

// A tip tells, from empty pages in a row and the server's clock, up to when a shard has shown
// all: everything created before the first of enough empty pages has been read, since the later
// ones would have shown it. That leaves 10 s for what becomes visible late.
type tip struct {
	run    []emptyPages // in a row, by second
	walked bool         // this iterator has shown the tip before
}

type emptyPages struct {
	at time.Time
	n  int
}

// empty notes an empty page, and returns the time before which all has been read; false if that
// cannot be told yet.
func (t *tip) empty(at time.Time) (time.Time, bool) {
	if n := len(t.run); n > 0 && !at.After(t.run[n-1].at) {
		t.run[n-1].n++
	} else {
		t.run = append(t.run, emptyPages{at, 1})
	}
	pages := walkPages
	if t.walked {
		pages = tipPages
	}
	if !enough(t.run, pages) {
		return time.Time{}, false
	}
	t.walked = true
	for enough(t.run[1:], tipPages) {
		t.run = t.run[1:]
	}
	return t.run[0].at, true
}

func enough(run []emptyPages, pages int) bool {
	if len(run) == 0 || run[len(run)-1].at.Sub(run[0].at) < tipTime {
		return false
	}
	total := 0
	for _, e := range run {
		total += e.n
	}
	return total >= pages
}

// records notes a page with records: the run is over.
func (t *tip) records() { t.run = t.run[:0] }

// moved notes that the iterator is a new one.
func (t *tip) moved() { t.run, t.walked = t.run[:0], false }
