package observe_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/observe"
	"telemetrylake/schemas"
)

var start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// A clock stands still until a test moves it.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

func (c *clock) pass(d time.Duration) { c.now = c.now.Add(d) }

func watched(o observe.Options) (*observe.Observer, *clock) {
	c := &clock{start}
	o.Now = c.Now
	o.Reasons = someReasons
	return observe.New(o), c
}

func get(t *testing.T, o *observe.Observer, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	o.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w
}

var errBroken = errors.New("broken")

// stages are a pipeline's that do as they are told.
type stages struct {
	rows  *pipeline.Rows
	state pipeline.State
	err   error
}

func (s *stages) Decode(*schemas.Contract, []pipeline.Batch) (*pipeline.Rows, error) {
	return s.rows, s.err
}
func (s *stages) Land(context.Context, []pipeline.Part) error { return s.err }
func (s *stages) Acquire(context.Context, pipeline.LaneID, bool) (pipeline.State, error) {
	return s.state, s.err
}
func (s *stages) Begin(context.Context, pipeline.Hold, *pipeline.Manifest) error  { return s.err }
func (s *stages) Commit(context.Context, pipeline.Hold, *pipeline.Manifest) error { return s.err }
func (s *stages) Position(context.Context, pipeline.Hold, string, pipeline.ShardID) (pipeline.Position, error) {
	return pipeline.Position{Seq: "7"}, s.err
}

func manifest(n int64, shards ...pipeline.ShardRange) *pipeline.Manifest {
	return &pipeline.Manifest{Window: pipeline.WindowID{Lane: "run-x", Incarnation: "i", N: n}, Shards: shards}
}

func took(shard pipeline.ShardID, last pipeline.SequenceNumber, c pipeline.Counts) pipeline.ShardRange {
	return pipeline.ShardRange{Range: pipeline.Range{Shard: shard, First: "1", Last: last}, Counts: c}
}

func batch(shard pipeline.ShardID, seqs ...pipeline.SequenceNumber) pipeline.Batch {
	b := pipeline.Batch{Shard: shard, Bytes: 100 * len(seqs)}
	for _, s := range seqs {
		b.Records = append(b.Records, pipeline.Record{Shard: shard, Seq: s})
	}
	return b
}

// window runs a window through the decorated stages.
func window(t *testing.T, o *observe.Observer, s *stages, m *pipeline.Manifest, batches ...pipeline.Batch) error {
	t.Helper()
	if _, err := o.Decoder(s).Decode(nil, batches); err != nil {
		return err
	}
	cp := o.Checkpoints(s)
	if err := cp.Begin(t.Context(), pipeline.Hold{}, m); err != nil {
		return err
	}
	if err := o.Sink(s).Land(t.Context(), []pipeline.Part{{Body: make([]byte, 40)}, {Body: make([]byte, 2)}}); err != nil {
		return err
	}
	return cp.Commit(t.Context(), pipeline.Hold{}, m)
}

func TestWhatBecameOfRecordsIsCountedWhenTheirWindowIsCommitted(t *testing.T) {
	o, clock := watched(observe.Options{})
	counts := pipeline.Counts{Rows: 3, Changes: 1, Quarantined: 4, Ignored: 2}
	s := &stages{rows: &pipeline.Rows{
		Counts:  map[pipeline.ShardID]pipeline.Counts{"s": counts},
		Reasons: map[string]int{"type": 2, "a reason of a newer version": 2},
	}}
	b := batch("s", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11") // one more than there are counts: removed by TTL
	add := o.Emit(func(pipeline.Batch) error { clock.pass(30 * time.Second); return nil })
	if err := add(b); err != nil {
		t.Fatal(err)
	}
	check(t, o, map[string]string{
		"streamer_stream_records_total": "11", "streamer_stream_bytes_total": "1100", "streamer_uncommitted_age_seconds": "30",
		"streamer_windows_total": "0", `streamer_records_total{outcome="row"}`: "0",
		`streamer_last_progress_timestamp_seconds{step="commit"}`: "0",
	})
	if err := window(t, o, s, manifest(1, took("s", "11", counts)), b); err != nil {
		t.Fatal(err)
	}
	check(t, o, map[string]string{
		"streamer_windows_total": "1", "streamer_landed_parts_total": "2", "streamer_landed_bytes_total": "42",
		`streamer_records_total{outcome="row"}`: "3", `streamer_records_total{outcome="change"}`: "1",
		`streamer_records_total{outcome="tombstone"}`: "0", `streamer_records_total{outcome="quarantined"}`: "4",
		`streamer_records_total{outcome="ignored"}`: "2", `streamer_records_total{outcome="ttl"}`: "1",
		`streamer_quarantined_records_total{reason="type"}`: "2", `streamer_quarantined_records_total{reason="range"}`: "0",
		`streamer_quarantined_records_total{reason="other"}`: "2", "streamer_uncommitted_age_seconds": "0",
		`streamer_last_progress_timestamp_seconds{step="commit"}`: "1.79604003e+09",
	})
}

func TestACommitWhoseAnswerWasLostIsCountedOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		next int64
		want string
	}{"it happened": {2, "1"}, "it did not": {1, "0"}} {
		t.Run(name, func(t *testing.T) {
			o, _ := watched(observe.Options{})
			s := &stages{rows: &pipeline.Rows{}}
			m := manifest(1, took("s", "1", pipeline.Counts{Rows: 1}))
			if _, err := o.Decoder(s).Decode(nil, nil); err != nil {
				t.Fatal(err)
			}
			s.err = errBroken
			cp := o.Checkpoints(s)
			if err := cp.Commit(t.Context(), pipeline.Hold{}, m); !errors.Is(err, errBroken) {
				t.Fatalf("the commit's failure is %v", err)
			}
			s.err = nil
			s.state = pipeline.State{Hold: pipeline.Hold{Lane: "run-x", Incarnation: "i"}, Next: tt.next}
			for range 2 {
				if st, err := cp.Acquire(t.Context(), "run-x", true); err != nil || st != s.state {
					t.Fatalf("acquired %v, %v", st, err)
				}
			}
			check(t, o, map[string]string{"streamer_windows_total": tt.want, `streamer_records_total{outcome="row"}`: tt.want, `streamer_stage_failures_total{stage="commit"}`: "1"})
		})
	}
}

func TestFailuresOfStagesAreCountedAndPassedOn(t *testing.T) {
	o, _ := watched(observe.Options{})
	s := &stages{err: errBroken}
	cp := o.Checkpoints(s)
	_, decode := o.Decoder(s).Decode(nil, nil)
	_, acquire := cp.Acquire(t.Context(), "run-x", false)
	for stage, err := range map[string]error{
		"decode": decode, "acquire": acquire, "land": o.Sink(s).Land(t.Context(), nil),
		"begin": cp.Begin(t.Context(), pipeline.Hold{}, manifest(1)), "commit": cp.Commit(t.Context(), pipeline.Hold{}, manifest(1)),
	} {
		if !errors.Is(err, errBroken) {
			t.Errorf("%s: %v", stage, err)
		}
		check(t, o, map[string]string{`streamer_stage_failures_total{stage="` + stage + `"}`: "1"})
	}
	add := o.Emit(func(pipeline.Batch) error { return errBroken })
	if err := add(batch("s", "1")); !errors.Is(err, errBroken) {
		t.Errorf("emit: %v", err)
	}
	s.err = nil
	if p, err := cp.Position(t.Context(), pipeline.Hold{}, "arn", "s"); err != nil || p.Seq != "7" {
		t.Errorf("position %v, %v", p, err)
	}
}

func TestASweepIsCountedWhetherItEndsWellOrNot(t *testing.T) {
	o, clock := watched(observe.Options{})
	clock.pass(time.Second)
	o.Swept(observe.Sweep{Took: 2 * time.Second, Objects: 3, Removed: 1, Published: 5, Duplicates: 2, Void: 1, Created: 2, Rows: 70, Damaged: 1,
		Waiting: 4, Kept: map[string]int{"mismatch": 6}}, errBroken)
	check(t, o, map[string]string{
		"streamer_sweeps_total": "1", "streamer_staging_objects_read_total": "3", "streamer_staging_objects_removed_total": "1",
		`streamer_sealed_parts_total{outcome="published"}`: "5", `streamer_sealed_parts_total{outcome="duplicate"}`: "2",
		`streamer_sealed_parts_total{outcome="void"}`: "1", "streamer_lake_objects_total": "2", "streamer_lake_rows_total": "70",
		"streamer_damaged_total": "1", `streamer_staging_kept_parts{reason="waiting"}`: "4", `streamer_staging_kept_parts{reason="mismatch"}`: "6",
		`streamer_stage_failures_total{stage="seal"}`: "1", `streamer_last_progress_timestamp_seconds{step="seal"}`: "0",
		"streamer_sweep_duration_seconds_sum": "2",
	})
	o.Swept(observe.Sweep{}, nil)
	check(t, o, map[string]string{
		"streamer_sweeps_total": "2", `streamer_staging_kept_parts{reason="mismatch"}`: "0", `streamer_staging_kept_parts{reason="waiting"}`: "0",
		`streamer_last_progress_timestamp_seconds{step="seal"}`: "1.796040001e+09",
	})
}

func TestCallsAreCountedByAnswerAndRetriesApart(t *testing.T) {
	o, _ := watched(observe.Options{})
	o.Call("Firehose", "PutRecordBatch", observe.CallThrottled, false)
	o.Call("Firehose", "PutRecordBatch", observe.CallFailed, true)
	o.Call("Firehose", "PutRecordBatch", observe.CallOK, true)
	check(t, o, map[string]string{
		`streamer_aws_calls_total{operation="PutRecordBatch",outcome="ok",service="Firehose"}`:        "1",
		`streamer_aws_calls_total{operation="PutRecordBatch",outcome="throttled",service="Firehose"}`: "1",
		`streamer_aws_calls_total{operation="PutRecordBatch",outcome="failed",service="Firehose"}`:    "1",
		`streamer_aws_retries_total{operation="PutRecordBatch",service="Firehose"}`:                   "2",
	})
}
