package observe_test

import (
	"testing"
	"time"

	"telemetrylake/pipeline/observe"
)

func TestTheUseOfADeliveryStreamsQuotaIsThatOfItsBusiestSecond(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	o := observe.New(observe.Options{Now: func() time.Time { return now }})
	want := func(series, value string) {
		t.Helper()
		if got := sample(t, o, series); got != value {
			t.Errorf("%s is %s, want %s", series, got, value)
		}
	}
	use := func(quota string) string { return `streamer_firehose_quota_use_ratio{quota="` + quota + `"}` }
	want(use("bytes"), "0")
	o.Delivered(observe.Delivery{Records: 1, Bytes: 50}) // of a quota that is not known
	want(use("bytes"), "0")
	now = now.Add(time.Second)
	o.Deliver(observe.Quota{Requests: 4, Records: 100, Bytes: 1000})
	o.Delivered(observe.Delivery{Records: 20, Bytes: 250, Refused: 5, Waiting: 700})
	o.Delivered(observe.Delivery{Records: 5, Bytes: 250, Waiting: 450})
	now = now.Add(time.Second)
	o.Delivered(observe.Delivery{Records: 50, Bytes: 100, Waiting: 350})
	want(use("requests"), "0.5")
	want(use("records"), "0.5")
	want(use("bytes"), "0.5")
	want("streamer_firehose_waiting_bytes", "350")
	want("streamer_firehose_requests_total", "4")
	want("streamer_firehose_records_total", "76")
	want("streamer_firehose_bytes_total", "650")
	want("streamer_firehose_refused_records_total", "5")
	now = now.Add(59 * time.Second) // the second before is no longer of the last minute
	want(use("bytes"), "0.1")
	now = now.Add(time.Second)
	want(use("records"), "0")
}
