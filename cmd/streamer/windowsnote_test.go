package main

import (
	"fmt"
	"strings"
	"testing"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/lake"
)

// note writes as one of two processes do.
func (l *lateLine) note(processes ...*noter) {
	l.t.Helper()
	for _, n := range processes {
		if err := n.note(l.t.Context()); err != nil {
			l.t.Fatal(err)
		}
	}
}

func (l *lateLine) ownObjects() (keys []string) {
	l.t.Helper()
	for o, err := range l.runner.lake.List(l.t.Context()) {
		if err != nil {
			l.t.Fatal(err)
		}
		if strings.HasPrefix(o.Key, "windows/") || strings.HasPrefix(o.Key, "gaps/") {
			keys = append(keys, o.Key)
		}
	}
	return keys
}

func TestFoldedWindowsAreToldInRuns(t *testing.T) {
	tests := []struct {
		life pipeline.LaneLife
		held []int64
		want string
	}{
		{pipeline.LaneLife{}, nil, "[]"},
		{pipeline.LaneLife{}, []int64{1, 2}, "[]"},
		{pipeline.LaneLife{Watermark: 5}, nil, "[{1 5 folded}]"},
		{pipeline.LaneLife{Watermark: 5}, []int64{3, 6}, "[{1 2 folded} {4 5 folded}]"},
		{pipeline.LaneLife{Watermark: 9, Void: pipeline.Runs{{2, 2}, {4, 5}}, Unknown: pipeline.Runs{{6, 7}}}, []int64{9}, "[{1 1 folded} {2 2 void} {3 3 folded} {4 5 void} {6 7 unknown} {8 8 folded}]"},
		{pipeline.LaneLife{Watermark: 2, Void: pipeline.Runs{{1, 2}}}, nil, "[{1 2 void}]"},
	}
	for _, tt := range tests {
		held := map[int64]bool{}
		for _, n := range tt.held {
			held[n] = true
		}
		if got := fmt.Sprint(passed(tt.life, held)); got != tt.want {
			t.Errorf("of %+v without %v: %s, want %s", tt.life, tt.held, got, tt.want)
		}
	}
}

func TestALakeInAFolderIsWrittenAndVerifiedToo(t *testing.T) {
	l := newLateLine(t)
	folder := lake.NewFolder(t.TempDir())
	for range 2 { // by a process that knows of nothing, each time
		l.note(newNoter(l.store, folder, checkpointTable))
	}
	n := 0
	for _, err := range folder.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 2 {
		t.Errorf("%d objects, want one of each table", n)
	}
	if r, err := (verifier{store: l.store, lake: folder}).verify(t.Context()); err != nil || r.err() != nil || r.Objects != 0 {
		t.Errorf("verified %+v, %v", r, err)
	}
}
