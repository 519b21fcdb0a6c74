package observe

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A sampler makes, at each scrape, the metrics that are states rather than counts.
type sampler struct{ o *Observer }

// sampled are the metrics that a sampler makes: all gauges.
func (s *sampler) sampled() []Metric {
	var out []Metric
	for _, m := range Metrics(s.o.o.Reasons) {
		if m.Kind == Gauge {
			out = append(out, m)
		}
	}
	return out
}

// Describe implements prometheus.Collector.
func (s *sampler) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range s.sampled() {
		ch <- m.desc()
	}
}

func (m Metric) desc() *prometheus.Desc {
	return prometheus.NewDesc(m.Name, m.Help, m.labelNames(), nil)
}

// Collect implements prometheus.Collector.
func (s *sampler) Collect(ch chan<- prometheus.Metric) {
	values := s.values()
	for _, m := range s.sampled() {
		if len(m.Labels) == 0 {
			ch <- prometheus.MustNewConstMetric(m.desc(), prometheus.GaugeValue, values[m.Name][""])
			continue
		}
		for _, l := range m.Labels[0].Values {
			ch <- prometheus.MustNewConstMetric(m.desc(), prometheus.GaugeValue, values[m.Name][l], l)
		}
	}
}

// values are the samples by metric and by the value of its label, "" if it has none.
func (s *sampler) values() map[string]map[string]float64 {
	ready, integrity := s.o.Ready(), s.o.Integrity()
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	now := s.o.o.Now()
	one := func(v float64) map[string]float64 { return map[string]float64{"": v} }
	kept := map[string]float64{"waiting": float64(s.o.sealing.last.Waiting)}
	for why, n := range s.o.sealing.last.Kept {
		kept[why] = float64(n)
	}
	progress := map[string]float64{}
	for step, at := range s.o.moved {
		progress[string(step)] = seconds(at)
	}
	return map[string]map[string]float64{
		"streamer_stream_shards":                       floats(ready.Shards),
		"streamer_stuck_shards":                        one(float64(len(s.o.stuck()))),
		"streamer_firehose_waiting_bytes":              one(float64(s.o.delivery.waiting)),
		"streamer_firehose_quota_use_ratio":            s.o.delivery.use(now),
		"streamer_uncommitted_age_seconds":             one(s.o.uncommitted(now).Seconds()),
		"streamer_staging_kept_parts":                  kept,
		"streamer_unsealed_windows":                    one(float64(integrity.Unsealed.Windows)),
		"streamer_unsealed_age_seconds":                one(integrity.Unsealed.OldestAgeSeconds),
		"streamer_gaps":                                floats(integrity.Gaps),
		"streamer_lane_halted":                         one(truth(integrity.Halted != "")),
		"streamer_state_read_timestamp_seconds":        one(seconds(integrity.AsOf)),
		"streamer_committed_through_timestamp_seconds": one(seconds(integrity.CommittedThrough)),
		"streamer_lag_seconds":                         one(age(integrity.CommittedThrough, now)),
		"streamer_complete_through_timestamp_seconds":  one(seconds(integrity.CompleteThrough)),
		"streamer_freshness_seconds":                   one(age(integrity.CompleteThrough, now)),
		"streamer_last_progress_timestamp_seconds":     progress,
		"streamer_ready":                               one(truth(ready.Ready)),
		"streamer_integrity_ok":                        one(truth(integrity.OK)),
	}
}

func floats(n map[string]int) map[string]float64 {
	out := make(map[string]float64, len(n))
	for k, v := range n {
		out[k] = float64(v)
	}
	return out
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// seconds is t since 1970; 0 if t is unknown.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}

// age is the time since t. Of an unknown one nothing may be hoped.
func age(t, now time.Time) float64 {
	if t.IsZero() {
		return math.Inf(1)
	}
	return max(0, now.Sub(t).Seconds())
}
