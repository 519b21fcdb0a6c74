package main

import (
	"strings"
	"syscall"
	"testing"
)

func TestSignalsEndProcessesAndTheNextGoOn(t *testing.T) {
	t.Parallel()
	file := roomClimate(t, 4000)
	l := newLaptop(t)
	load := l.start("load", "-", "--format", "room-climate", "-o", "json")
	feed := newFeeder(load.stdin, file.lines)
	run := l.startRun()
	fraction := func(n int) int { return n * file.readings() / 8 }
	moves := func(rows int) {
		t.Helper()
		before := l.next()
		feed.upTo(rows)
		until(t, "the run moves rows", func() bool {
			run.running()
			return l.next() > before
		})
	}

	for i, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		moves(fraction(2*i + 1))
		feed.upTo(fraction(2*i + 2)) // for the run to have some in hand
		run.signal(s)
		run.exits(exitOK)
		var totals runTotals
		if run.document(&totals); totals.Windows == 0 || totals.Drained || run.stderr.String() != "" {
			t.Errorf("the run that got %v says %+v, %s", s, totals, run.stderr)
		}
		if st := l.status(); st.Lane.PendingWindow != 0 {
			t.Errorf("the run that got %v left window %d pending", s, st.Lane.PendingWindow)
		}
		run = l.startRun()
	}

	moves(fraction(5))
	load.signal(syscall.SIGTERM)
	load.exits(exitFailed) // the file is not in the table
	var loaded loadReport
	if load.document(&loaded); loaded.Complete || loaded.Written == 0 || loaded.Written > fraction(5) {
		t.Errorf("the load that got SIGTERM says %+v", loaded)
	}
	if text := load.stderr.String(); !strings.HasPrefix(text, "streamer: load standard input: interrupted") || !strings.Contains(text, "the same command goes on") || strings.Count(text, "\n") != 1 {
		t.Errorf("the load that got SIGTERM says %q", text)
	}
	written := loaded.Written

	l.local.signal(syscall.SIGTERM)
	l.local.exits(exitOK)
	if text := l.local.stderr.String(); text != "" {
		t.Errorf("local that got SIGTERM says %q", text)
	}
	l.startLocal()
	again := l.start("load", file.name, "--format", "room-climate", "-o", "json")
	again.exits(exitOK)
	if again.document(&loaded); loaded.Present != written || loaded.Written != file.readings()-written {
		t.Errorf("the load after %d rows says %+v", written, loaded)
	}
	run.signal(syscall.SIGTERM)
	run.exits(exitOK)
	if text := run.stderr.String(); strings.Contains(text, "streamer:") {
		t.Errorf("the run that lost its AWS for a while ends with %q", text)
	}
	l.drain()
	l.local.signal(syscall.SIGINT)
	l.local.exits(exitOK)
	checkReadings(t, l.dir, file)
}
