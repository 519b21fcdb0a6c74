package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress shows on a terminal how far the writing is. On anything else it shows nothing.
type progress struct {
	out         io.Writer // nil: not a terminal
	total, done int
	begun, last time.Time
}

const progressEvery = 200 * time.Millisecond

// clearLine goes to the beginning of a terminal's line and clears it.
const clearLine = "\r\x1b[K"

func newProgress(out io.Writer, total int) *progress {
	p := &progress{total: total, begun: time.Now()}
	if isTerminal(out) {
		p.out = out
	}
	return p
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	// The null device is a character device too.
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && f.Name() != os.DevNull
}

// add says that n more rows are written and read.
func (p *progress) add(n int) {
	p.done += n
	now := time.Now()
	if p.out == nil || now.Sub(p.last) < progressEvery {
		return
	}
	p.last = now
	rate := float64(p.done) / now.Sub(p.begun).Seconds()
	left := time.Duration(float64(p.total-p.done) / rate * float64(time.Second))
	fmt.Fprintf(p.out, clearLine+"%s of %s (%d%%), %s a second, %s left",
		count(p.done), counted(p.total, "row"), 100*p.done/max(p.total, 1), count(int(rate)), left.Round(time.Second))
}

// say shows what is done now instead.
func (p *progress) say(text string) {
	if p != nil && p.out != nil {
		fmt.Fprint(p.out, clearLine+text)
	}
}

func (p *progress) clear() {
	if p != nil && p.out != nil {
		fmt.Fprint(p.out, clearLine)
	}
}

// A statusLine shows on a terminal what a run has done so far.
type statusLine struct {
	out         io.Writer // nil: not a terminal
	begun, last time.Time
}

func newStatusLine(w io.Writer) *statusLine {
	s := &statusLine{begun: time.Now()}
	if isTerminal(w) {
		s.out = w
	}
	return s
}

func (s *statusLine) show(t runTotals) {
	if s == nil || s.out == nil || time.Since(s.last) < progressEvery {
		return
	}
	s.last = time.Now()
	rate := float64(t.Records) / time.Since(s.begun).Seconds()
	fmt.Fprintf(s.out, clearLine+"%s read, %s a second; %s in %s; %s sealed",
		count(t.Records), count(int(rate)), counted(t.Rows, "row"), counted(t.Windows, "window"), count(t.SealedRows))
}

func (s *statusLine) clear() {
	if s != nil && s.out != nil {
		fmt.Fprint(s.out, clearLine)
	}
}
