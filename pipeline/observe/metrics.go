package observe

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// A Kind is the type of a metric.
type Kind string

// Kinds of metrics.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// A Metric describes one metric: what alert rules, dashboards and the documentation are made of.
type Metric struct {
	Name   string
	Kind   Kind
	Unit   string // base unit: seconds, bytes, or what is counted
	Help   string
	Labels []Label
}

// A Label of a metric has one of a few values.
type Label struct {
	Name   string
	Values []string // nil: an AWS service or operation that this program calls
}

// otherReason counts records quarantined for a reason that is not on the list.
const otherReason = "other"

// Outcomes of records and of parts, and the other bounded sets of label values.
var (
	outcomes     = []string{"row", "change", "tombstone", "quarantined", "ignored", "ttl"}
	partOutcomes = []string{"published", "duplicate", "void"}
	keptReasons  = []string{"newer", "foreign", "unknown", "mismatch", "waiting"}
	gapStates    = []string{"open", "repairing", "closed"}
	shardStates  = []string{"waiting", "reading", "tip", "closing", "drained", "finished"}
	stageNames   = []string{"read", "decode", "acquire", "begin", "land", "commit", "seal"}
	callOutcomes = []string{"ok", "throttled", "refused", "failed"}
	stepNames    = []string{string(StepRead), string(StepCommit), string(StepSeal)}
)

// Metrics describes every metric of an Observer whose records are quarantined for those reasons.
func Metrics(reasons []string) []Metric {
	reasons = slices.Clone(reasons)
	if !slices.Contains(reasons, otherReason) {
		reasons = append(reasons, otherReason)
	}
	return []Metric{
		{"streamer_stream_records_total", Counter, "records", "Records read from the stream. After a restart those that were not committed are read again.", nil},
		{"streamer_stream_bytes_total", Counter, "bytes", "Bytes of the records read from the stream, as the stream counts them.", nil},
		{"streamer_stream_pages_total", Counter, "pages", "Pages read from the stream, with the empty ones.", nil},
		{"streamer_stream_empty_pages_total", Counter, "pages", "Pages read from the stream that had no record.", nil},
		{"streamer_stream_shards", Gauge, "shards", "Shards of the stream by how far they are read.", []Label{{"state", shardStates}}},
		{"streamer_stuck_shards", Gauge, "shards", "Shards that could not be read for longer than the bound of readiness.", nil},
		{"streamer_aws_calls_total", Counter, "calls", "Requests sent to AWS, each attempt of a call counted, by how they were answered. Most are billed.", []Label{{"service", nil}, {"operation", nil}, {"outcome", callOutcomes}}},
		{"streamer_aws_retries_total", Counter, "calls", "Requests sent to AWS again because an earlier attempt of the same call failed.", []Label{{"service", nil}, {"operation", nil}}},

		{"streamer_windows_total", Counter, "windows", "Windows committed.", nil},
		{"streamer_records_total", Counter, "records", "Records of committed windows by what became of them; ttl are removals by time to live, which leave the lake as it is.", []Label{{"outcome", outcomes}}},
		{"streamer_quarantined_records_total", Counter, "records", "Records of committed windows that do not fit their contract, by reason.", []Label{{"reason", reasons}}},
		{"streamer_landed_parts_total", Counter, "parts", "Parts landed; one landed again after a failure counts again.", nil},
		{"streamer_landed_bytes_total", Counter, "bytes", "Bytes of the parts landed.", nil},
		{"streamer_land_duration_seconds", Histogram, "seconds", "How long it took to land the parts of one window, failures included.", nil},
		{"streamer_firehose_requests_total", Counter, "requests", "Requests that sent parts to the delivery stream.", nil},
		{"streamer_firehose_records_total", Counter, "records", "Records in them, one of each part; those sent again count again.", nil},
		{"streamer_firehose_bytes_total", Counter, "bytes", "Bytes in them.", nil},
		{"streamer_firehose_refused_records_total", Counter, "records", "Records of them that the delivery stream throttled or failed; they were sent again.", nil},
		{"streamer_firehose_waiting_bytes", Gauge, "bytes", "Bytes of the parts that are being landed and not yet accepted.", nil},
		{"streamer_firehose_quota_use_ratio", Gauge, "", "Highest share of what the delivery stream takes in a second, by the region's quota, that one second of the last minute used.", []Label{{"quota", quotaNames}}},
		{"streamer_stage_failures_total", Counter, "failures", "Failures of a stage after its own retries.", []Label{{"stage", stageNames}}},
		{"streamer_restarts_total", Counter, "restarts", "How often the lane started again from its checkpoint after a failure.", nil},
		{"streamer_uncommitted_age_seconds", Gauge, "seconds", "How long records that were read have waited for their window's commit; 0 if none waits.", nil},

		{"streamer_sweeps_total", Counter, "sweeps", "Sweeps of staging, those that failed included.", nil},
		{"streamer_sweep_duration_seconds", Histogram, "seconds", "How long a sweep of staging took.", nil},
		{"streamer_staging_objects_read_total", Counter, "objects", "Staging objects read by sweeps; one that stays is read again by the next.", nil},
		{"streamer_staging_objects_removed_total", Counter, "objects", "Staging objects removed because all of their parts are in the lake, or void.", nil},
		{"streamer_staging_kept_parts", Gauge, "parts", "Parts that the last sweep left in staging, by reason.", []Label{{"reason", keptReasons}}},
		{"streamer_sealed_parts_total", Counter, "parts", "Parts of staging objects by what sealing did with them.", []Label{{"outcome", partOutcomes}}},
		{"streamer_lake_objects_total", Counter, "objects", "Lake objects made.", nil},
		{"streamer_lake_rows_total", Counter, "rows", "Rows in the lake objects made.", nil},
		{"streamer_damaged_total", Counter, "pieces", "Pieces of staging objects that are no Parquet file and were put aside.", nil},

		{"streamer_windows_landed_again_total", Counter, "windows", "Windows landed again because parts of them did not come into the lake in time.", nil},
		{"streamer_given_up_parts_total", Counter, "parts", "Parts given up a day after they were landed last; their gaps are open.", nil},

		{"streamer_unsealed_windows", Gauge, "windows", "Windows begun or committed of which some part is not known to be in the lake.", nil},
		{"streamer_unsealed_age_seconds", Gauge, "seconds", "How long the oldest of them has been landed; 0 if there is none.", nil},
		{"streamer_gaps", Gauge, "gaps", "Entries of the gap ledger by state: records that aged out before they were read or landed.", []Label{{"state", gapStates}}},
		{"streamer_lane_halted", Gauge, "", "1 if the lane may begin no window until a person has looked.", nil},
		{"streamer_state_read_timestamp_seconds", Gauge, "seconds", "When the stored state, from which the metrics of this group are made, was last read; 0 if it never was.", nil},
		{"streamer_committed_through_timestamp_seconds", Gauge, "seconds", "Every stream record created before this time is committed; 0 if unknown.", nil},
		{"streamer_lag_seconds", Gauge, "seconds", "Time since the moment before which every stream record is committed; infinite if unknown.", nil},
		{"streamer_complete_through_timestamp_seconds", Gauge, "seconds", "Every stream record created before this time is sealed; 0 if unknown.", nil},
		{"streamer_freshness_seconds", Gauge, "seconds", "Time since the moment before which every stream record is sealed; infinite if unknown.", nil},

		{"streamer_last_progress_timestamp_seconds", Gauge, "seconds", "When the pipeline last moved on: read, committed, or swept staging; 0 if it never did.", []Label{{"step", stepNames}}},
		{"streamer_ready", Gauge, "", "1 if the pipeline moves, or nothing is to be moved, as /readyz says.", nil},
		{"streamer_integrity_ok", Gauge, "", "1 if nothing is missing, late or not understood, as /integrity says.", nil},
	}
}

// metrics are those that are counted as things happen. The others are made by a sampler.
type metrics struct {
	records, bytes, pages, emptyPages prometheus.Counter
	calls, retries                    *prometheus.CounterVec

	windows                prometheus.Counter
	outcome, quarantined   *prometheus.CounterVec
	parts, partBytes       prometheus.Counter
	landed                 prometheus.Observer
	puts, putRecords       prometheus.Counter
	putBytes, putRefused   prometheus.Counter
	failures               *prometheus.CounterVec
	restarts               prometheus.Counter
	sweeps                 prometheus.Counter
	swept                  prometheus.Observer
	stagingRead, stagingRm prometheus.Counter
	sealed                 *prometheus.CounterVec
	lakeObjects, lakeRows  prometheus.Counter
	damaged                prometheus.Counter
	again, givenUp         prometheus.Counter
}

// buckets of durations: from a call within one process to a staging of hours.
var buckets = []float64{0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900}

// newMetrics registers the counters and histograms. Each series is there from the start, so that
// its first increase is seen as one.
func newMetrics(reg *prometheus.Registry, reasons []string) *metrics {
	known := map[string]Metric{}
	for _, d := range Metrics(reasons) {
		known[d.Name] = d
	}
	vec := func(name string) *prometheus.CounterVec {
		d := known[name]
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: d.Help}, d.labelNames())
		reg.MustRegister(v)
		if len(d.Labels) == 1 {
			for _, value := range d.Labels[0].Values {
				v.WithLabelValues(value)
			}
		}
		return v
	}
	counter := func(name string) prometheus.Counter { return vec(name).WithLabelValues() }
	histogram := func(name string) prometheus.Observer {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: known[name].Help, Buckets: buckets})
		reg.MustRegister(h)
		return h
	}
	return &metrics{
		records:     counter("streamer_stream_records_total"),
		bytes:       counter("streamer_stream_bytes_total"),
		pages:       counter("streamer_stream_pages_total"),
		emptyPages:  counter("streamer_stream_empty_pages_total"),
		calls:       vec("streamer_aws_calls_total"),
		retries:     vec("streamer_aws_retries_total"),
		windows:     counter("streamer_windows_total"),
		outcome:     vec("streamer_records_total"),
		quarantined: vec("streamer_quarantined_records_total"),
		parts:       counter("streamer_landed_parts_total"),
		partBytes:   counter("streamer_landed_bytes_total"),
		landed:      histogram("streamer_land_duration_seconds"),
		puts:        counter("streamer_firehose_requests_total"),
		putRecords:  counter("streamer_firehose_records_total"),
		putBytes:    counter("streamer_firehose_bytes_total"),
		putRefused:  counter("streamer_firehose_refused_records_total"),
		failures:    vec("streamer_stage_failures_total"),
		restarts:    counter("streamer_restarts_total"),
		sweeps:      counter("streamer_sweeps_total"),
		swept:       histogram("streamer_sweep_duration_seconds"),
		stagingRead: counter("streamer_staging_objects_read_total"),
		stagingRm:   counter("streamer_staging_objects_removed_total"),
		sealed:      vec("streamer_sealed_parts_total"),
		lakeObjects: counter("streamer_lake_objects_total"),
		lakeRows:    counter("streamer_lake_rows_total"),
		damaged:     counter("streamer_damaged_total"),
		again:       counter("streamer_windows_landed_again_total"),
		givenUp:     counter("streamer_given_up_parts_total"),
	}
}

func (d Metric) labelNames() []string {
	var names []string
	for _, l := range d.Labels {
		names = append(names, l.Name)
	}
	return names
}

// An Outcome says how AWS answered a request.
type Outcome string

// Outcomes of requests.
const (
	CallOK        Outcome = "ok"
	CallThrottled Outcome = "throttled"
	CallRefused   Outcome = "refused" // an answer of AWS that sending it again does not change
	CallFailed    Outcome = "failed"  // the service's fault, or no answer
)

// Call counts a request to AWS. again says that it is not the first attempt of its call.
func (o *Observer) Call(service, operation string, out Outcome, again bool) {
	o.m.calls.WithLabelValues(service, operation, string(out)).Inc()
	if again {
		o.m.retries.WithLabelValues(service, operation).Inc()
	}
}
