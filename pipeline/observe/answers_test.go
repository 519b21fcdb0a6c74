package observe_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/observe"
)

func TestNotReadyWhileNothingMovesAlthoughThereIsWork(t *testing.T) {
	reading := observe.Round{Pages: 1, Shards: []observe.Shard{{ID: "s1", State: "tip"}, {ID: "s2", State: "reading"}}}
	failing := observe.Round{Pages: 1, Failed: errBroken, Shards: []observe.Shard{{ID: "s1", State: "tip"}, {ID: "s2", State: "reading", Failed: errBroken}}}
	nothing := func(pipeline.Batch) error { return nil }
	// each pipeline moves for 20 minutes, a minute at a time, but for what minute says.
	tests := []struct {
		name    string
		options observe.Options
		minute  func(*testing.T, *observe.Observer)
		want    string // in the one reason; "" if it is ready
	}{
		{"all moves", observe.Options{}, func(_ *testing.T, o *observe.Observer) { o.Round(reading); o.Swept(observe.Sweep{}, nil) }, ""},
		{"nothing to read", observe.Options{}, func(_ *testing.T, o *observe.Observer) {
			o.Round(observe.Round{Shards: []observe.Shard{{ID: "s1", State: "finished"}}})
			o.Swept(observe.Sweep{}, nil)
		}, ""},
		{"no round ends", observe.Options{}, func(_ *testing.T, o *observe.Observer) { o.Swept(observe.Sweep{}, nil) }, "nothing was read from the stream for 20m0s"},
		{"every call fails", observe.Options{}, func(_ *testing.T, o *observe.Observer) {
			o.Round(observe.Round{Failed: errBroken})
			o.Swept(observe.Sweep{}, nil)
		}, "nothing was read from the stream for 20m0s: broken"},
		{"one shard fails and others go on", observe.Options{}, func(_ *testing.T, o *observe.Observer) { o.Round(failing); o.Swept(observe.Sweep{}, nil) },
			"1 of 2 shards could not be read for longer than 5m0s; first s2, for 20m0s: broken"},
		{"sweeps fail", observe.Options{}, func(_ *testing.T, o *observe.Observer) { o.Round(reading); o.Swept(observe.Sweep{}, errBroken) },
			"staging was not swept with success for 20m0s"},
		{"sweeps are as rare as they may be", observe.Options{SealEvery: time.Hour}, func(_ *testing.T, o *observe.Observer) { o.Round(reading) }, ""},
		{"records wait for their window", observe.Options{}, func(t *testing.T, o *observe.Observer) {
			o.Round(reading)
			o.Swept(observe.Sweep{}, nil)
			if err := o.Emit(nothing)(batch("s2", "1")); err != nil {
				t.Fatal(err)
			}
		}, "records of 1 shards were read and are not committed for 20m0s"},
		{"windows are as long as they may be", observe.Options{WindowAge: time.Hour}, func(t *testing.T, o *observe.Observer) {
			o.Round(reading)
			o.Swept(observe.Sweep{}, nil)
			if err := o.Emit(nothing)(batch("s2", "1")); err != nil {
				t.Fatal(err)
			}
		}, ""},
		{"a standby", observe.Options{}, func(_ *testing.T, o *observe.Observer) { o.Become(observe.Standby, "held by another") }, ""},
		{"it never starts", observe.Options{}, func(_ *testing.T, o *observe.Observer) { o.Become(observe.Starting, "") }, "starting"},
		{"it stops", observe.Options{}, func(_ *testing.T, o *observe.Observer) { o.Become(observe.Stopping, "") }, "stopping"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o, clock := watched(tt.options)
			o.Become(observe.Active, "")
			o.Round(reading)
			for range 20 {
				tt.minute(t, o)
				clock.pass(time.Minute)
			}
			r := o.Ready()
			status, ready := http.StatusOK, "1"
			if tt.want != "" {
				status, ready = http.StatusServiceUnavailable, "0"
			}
			if r.Ready != (tt.want == "") || tt.want != "" && !strings.Contains(strings.Join(r.Reasons, "|"), tt.want) {
				t.Errorf("ready %v, because %q; want %q", r.Ready, r.Reasons, tt.want)
			}
			if got := get(t, o, "/readyz"); got.Code != status {
				t.Errorf("/readyz answers %d, want %d", got.Code, status)
			}
			check(t, o, map[string]string{"streamer_ready": ready})
			if got := get(t, o, "/healthz"); got.Code != http.StatusOK || got.Body.String() != "ok\n" {
				t.Errorf("/healthz answers %d %q", got.Code, got.Body)
			}
		})
	}
}

func TestNotReadyBeforeTheFirstRound(t *testing.T) {
	o, _ := watched(observe.Options{})
	if r := o.Ready(); r.Ready || r.Role != observe.Starting {
		t.Errorf("at the start: %+v", r)
	}
	o.Become(observe.Active, "")
	if r := o.Ready(); r.Ready {
		t.Errorf("before the first round: %+v", r)
	}
	o.Round(observe.Round{Pages: 1})
	if r := o.Ready(); !r.Ready {
		t.Errorf("after the first round: %v", r.Reasons)
	}
}

func TestALongWindowIsProgressForAsLongAsWindowsAreCommitted(t *testing.T) {
	o, clock := watched(observe.Options{})
	o.Become(observe.Active, "")
	o.Round(observe.Round{Pages: 1, Shards: []observe.Shard{{ID: "s1", State: "reading"}}})
	s := &stages{rows: &pipeline.Rows{}}
	emit := o.Emit(func(pipeline.Batch) error {
		for n := range int64(10) {
			clock.pass(time.Minute)
			o.Swept(observe.Sweep{}, nil)
			if err := window(t, o, s, manifest(n+1, took("s1", "1", pipeline.Counts{}))); err != nil {
				return err
			}
		}
		if r := o.Ready(); !r.Ready {
			t.Errorf("not ready, because %q", r.Reasons)
		}
		for range 6 {
			clock.pass(time.Minute)
			o.Swept(observe.Sweep{}, nil)
		}
		r := o.Ready()
		if r.Ready || !strings.Contains(r.Reasons[0], "records of shard s1 wait for their window since 16m0s") {
			t.Errorf("ready %v, because %q", r.Ready, r.Reasons)
		}
		if len(r.Waits) != 1 || r.Waits[0].For != "its window to be landed, since 16m0s" {
			t.Errorf("waits %+v", r.Waits)
		}
		return nil
	})
	if err := emit(batch("s1", "1", "2")); err != nil {
		t.Fatal(err)
	}
}

func TestWaitsSayWhatEachShardWaitsFor(t *testing.T) {
	o, clock := watched(observe.Options{})
	if err := o.Emit(func(pipeline.Batch) error { return nil })(batch("gathered", "5")); err != nil {
		t.Fatal(err)
	}
	clock.pass(10 * time.Second)
	o.Round(observe.Round{Pages: 1, Shards: []observe.Shard{
		{ID: "child", Parent: "parent", State: "waiting"},
		{ID: "parent", State: "drained"},
		{ID: "new", State: "waiting"},
		{ID: "idle", State: "tip"},
		{ID: "gathered", State: "reading"},
		{ID: "foreign", State: "waiting", Why: "lane lambda-1 to hand it over"},
		{ID: "done", State: "finished"},
		{ID: "throttled", State: "reading", Failed: errBroken, Until: start.Add(time.Minute)},
	}})
	r := o.Ready()
	got := map[pipeline.ShardID]string{}
	for _, w := range r.Waits {
		got[w.Shard] = w.For
	}
	want := map[pipeline.ShardID]string{
		"child": "its parent parent to be committed to its end", "parent": "its end to be committed", "new": "its first round",
		"gathered": "its records to be committed, for at most 10s", "foreign": "lane lambda-1 to hand it over",
		"throttled": "another attempt at 2026-11-30T12:01:00Z, after failures for 0s: broken",
	}
	for id, text := range want {
		if got[id] != text {
			t.Errorf("shard %s waits for %q, want %q", id, got[id], text)
		}
	}
	if len(got) != len(want) || r.Waits[0].Shard != "throttled" {
		t.Errorf("waits are %+v", r.Waits)
	}
	check(t, o, map[string]string{
		`streamer_stream_shards{state="waiting"}`: "3", `streamer_stream_shards{state="reading"}`: "2", `streamer_stream_shards{state="finished"}`: "1",
	})
}

func TestAnAnswerNamesFewShardsOfMany(t *testing.T) {
	o, _ := watched(observe.Options{})
	var r observe.Round
	for range 5000 {
		r.Shards = append(r.Shards, observe.Shard{ID: "s", State: "drained"})
	}
	o.Round(r)
	if n := len(o.Ready().Waits); n != 20 {
		t.Errorf("%d shards are named", n)
	}
	o.Become(observe.Active, "")
	o.Restarting(errors.New(strings.Repeat("long ", 1000)))
	if n := get(t, o, "/readyz").Body.Len(); n > 4096 {
		t.Errorf("the answer has %d bytes", n)
	}
}

func TestTheWatchdogTellsAgainAfterEachBoundAndWhenItMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		o := observe.New(observe.Options{Within: 5 * time.Minute, Log: slog.New(slog.NewTextHandler(&out, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); o.Watch(ctx) }()
		o.Become(observe.Active, "")
		stuck := observe.Round{Failed: errBroken, Shards: []observe.Shard{{ID: "s1", State: "reading", Failed: errBroken}, {ID: "s2", Parent: "s1", State: "waiting"}}}
		fine := observe.Round{Pages: 1, Shards: []observe.Shard{{ID: "s1", State: "tip"}}}
		pass := func(minutes int, r observe.Round) {
			for range minutes {
				o.Round(r)
				o.Swept(observe.Sweep{}, nil)
				time.Sleep(time.Minute)
			}
		}
		pass(10, fine)
		if out.Len() > 0 {
			t.Errorf("while all moves it says %s", &out)
		}
		pass(13, stuck)
		pass(10, fine)
		o.Become(observe.Stopping, "")
		time.Sleep(time.Hour)
		cancel()
		<-done
		text := out.String()
		for _, want := range []struct {
			text string
			n    int
		}{
			{`msg="no progress"`, 2}, {`msg="shard waits" shard=s1`, 2}, {`for="its parent s1 to be committed to its end"`, 2},
			{"could not be read for longer than 5m0s", 2}, {`msg="there is progress again"`, 1},
		} {
			if got := strings.Count(text, want.text); got != want.n {
				t.Errorf("%q is in the log %d times, want %d\n%s", want.text, got, want.n, text)
			}
		}
	})
}

func TestIntegrityIsNeverGreenWhileSomethingIsMissingOrLate(t *testing.T) {
	point := []observe.Point{{ID: "a", TipAt: start}}
	tests := []struct {
		name  string
		book  observe.Book
		sweep observe.Sweep
		want  string
	}{
		{"all is well", observe.Book{Shards: point}, observe.Sweep{Waiting: 1}, ""},
		{"a window on its way", observe.Book{Shards: point, Windows: []observe.Window{{Oldest: start, Since: start.Add(-29 * time.Minute)}}}, observe.Sweep{}, ""},
		{"a window past its bound", observe.Book{Shards: point, Windows: []observe.Window{{Oldest: start, Since: start.Add(-31 * time.Minute)}}}, observe.Sweep{}, "1 window is not in the lake 30m0s after landing; the oldest has waited for 31m0s"},
		{"an open gap", observe.Book{Shards: point, Gaps: []pipeline.Gap{{State: pipeline.GapOpen}, {State: pipeline.GapClosed}}}, observe.Sweep{}, "1 gap is open: records aged out before they were landed"},
		{"a gap in repair", observe.Book{Shards: point, Gaps: []pipeline.Gap{{State: pipeline.GapRepairing}, {State: pipeline.GapRepairing}}}, observe.Sweep{}, "2 gaps are being repaired"},
		{"a gap of a newer version", observe.Book{Shards: point, Gaps: []pipeline.Gap{{State: "half"}}}, observe.Sweep{}, "1 gap is open: records aged out before they were landed"},
		{"a halted lane", observe.Book{Shards: point, Halted: "part 1 differs"}, observe.Sweep{}, "the lane is halted: part 1 differs"},
		{"parts that are not understood", observe.Book{Shards: point}, observe.Sweep{Kept: map[string]int{"mismatch": 2, "newer": 0}}, "2 parts stay in staging: mismatch"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o, _ := watched(observe.Options{})
			if err := o.Refresh(t.Context(), func(context.Context) (observe.Book, error) { return tt.book, nil }); err != nil {
				t.Fatal(err)
			}
			o.Swept(tt.sweep, nil)
			checkIntegrity(t, o, tt.want)
		})
	}
}

// checkIntegrity asks in every way, and wants one reason; "" if all is well.
func checkIntegrity(t *testing.T, o *observe.Observer, want string) {
	t.Helper()
	status, gauge := http.StatusOK, "1"
	if want != "" {
		status, gauge = http.StatusServiceUnavailable, "0"
	}
	got := get(t, o, "/integrity")
	var doc struct {
		OK      bool           `json:"ok"`
		Reasons []string       `json:"reasons"`
		Gaps    map[string]int `json:"gaps"`
	}
	if err := json.Unmarshal(got.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	if got.Code != status || doc.OK != (want == "") || strings.Join(doc.Reasons, "|") != want || len(doc.Gaps) != 3 {
		t.Errorf("/integrity answers %d\n%s\nwant %d, %q", got.Code, got.Body, status, want)
	}
	text := get(t, o, "/integrity?format=text")
	if text.Code != status || !strings.HasPrefix(text.Header().Get("Content-Type"), "text/plain") || !strings.Contains(text.Body.String(), want) {
		t.Errorf("as text it answers %d, %s", text.Code, text.Body)
	}
	check(t, o, map[string]string{"streamer_integrity_ok": gauge})
}

func TestTheShareOfQuarantinedRecordsIsThatOfTheLastHour(t *testing.T) {
	o, clock := watched(observe.Options{QuarantineShare: 0.02})
	refresh := func() {
		t.Helper()
		if err := o.Refresh(t.Context(), func(context.Context) (observe.Book, error) { return observe.Book{}, nil }); err != nil {
			t.Fatal(err)
		}
	}
	refresh()
	commit := func(n int64, rows, quarantined int) {
		t.Helper()
		s := &stages{rows: &pipeline.Rows{}}
		if err := window(t, o, s, manifest(n, took("s", "1", pipeline.Counts{Rows: rows, Quarantined: quarantined}))); err != nil {
			t.Fatal(err)
		}
	}
	commit(1, 98, 2)
	checkIntegrity(t, o, "")
	clock.pass(30 * time.Minute)
	refresh()
	commit(2, 97, 3)
	checkIntegrity(t, o, "5 of the last hour's 200 records are quarantined, more than 2%")
	clock.pass(15 * time.Minute)
	refresh()
	commit(3, 300, 0)
	checkIntegrity(t, o, "")
	clock.pass(44 * time.Minute) // the first two windows are an hour old, the third is not
	refresh()
	commit(4, 0, 7)
	checkIntegrity(t, o, "10 of the last hour's 407 records are quarantined, more than 2%")
	clock.pass(time.Hour)
	refresh()
	checkIntegrity(t, o, "")
}

func TestTextIsForThoseWhoAskForIt(t *testing.T) {
	o, _ := watched(observe.Options{})
	o.Become(observe.Active, "")
	o.Round(observe.Round{Pages: 1, Shards: []observe.Shard{{ID: "s1", State: "reading"}, {ID: "s2", Parent: "s1", State: "waiting"}}})
	o.Restarting(errors.New("two\nlines"))
	got := get(t, o, "/readyz?format=text").Body.String()
	for _, want := range []string{"ready (active)\n", "last read: 2026-11-30T12:00:00Z\n", "last seal: never\n", "shards waiting: 1\n",
		"shard s2 (waiting) waits for its parent s1 to be committed to its end\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("the text has no %q:\n%s", want, got)
		}
	}
	if w := get(t, o, "/readyz"); w.Header().Get("Content-Type") != "application/json" || !json.Valid(w.Body.Bytes()) {
		t.Errorf("by default it answers %s", w.Body)
	}
	if w := get(t, o, "/elsewhere"); w.Code != http.StatusNotFound {
		t.Errorf("an unknown path answers %d", w.Code)
	}
	check(t, o, map[string]string{"streamer_restarts_total": "1", "streamer_lag_seconds": "+Inf", "streamer_complete_through_timestamp_seconds": "0"})
}
