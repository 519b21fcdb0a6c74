package testenv

import "time"

// A Quota is what one delivery stream takes by direct put in a second.
type Quota struct{ Requests, Records, Bytes int }

// FirehoseQuota returns the service's quota for direct put in a region. Source: "Amazon Data
// Firehose Quota".
func FirehoseQuota(region string) Quota {
	switch region {
	case "us-east-1", "us-west-2", "eu-west-1":
		return Quota{2000, 500_000, 5 << 20}
	}
	return Quota{1000, 100_000, 1 << 20}
}

// meter holds a delivery stream to a quota: each of the three refills within a second, of
// which the service does not say more.
type meter struct {
	at                       time.Time // of the last refill; zero: never used
	requests, records, bytes float64   // left
}

func (m *meter) refill(q Quota, now time.Time) {
	share := 1.0
	if !m.at.IsZero() {
		share = max(0, now.Sub(m.at).Seconds())
	}
	m.at = now
	m.requests = min(float64(q.Requests), m.requests+share*float64(q.Requests))
	m.records = min(float64(q.Records), m.records+share*float64(q.Records))
	m.bytes = min(float64(q.Bytes), m.bytes+share*float64(q.Bytes))
}

var errSlowDown = &firehoseError{"ServiceUnavailableException", "Slow down."}

// admit refuses a call of n records that is throttled as a whole.
func (f *firehose) admit(ds *deliveryStream, n int) error {
	refused := f.b.Throttle != nil && f.b.Throttle()
	if f.b.Quota {
		ds.meter.refill(FirehoseQuota(f.region), f.clock.Now())
		if ds.meter.requests < 1 {
			refused = true
		} else {
			ds.meter.requests--
		}
	}
	if refused {
		ds.puts.throttled += n
		return errSlowDown
	}
	return nil
}

// admitRecord says whether there is quota left for a record of an admitted call.
func (f *firehose) admitRecord(ds *deliveryStream, size int) bool {
	if f.b.Quota {
		if ds.meter.records < 1 || ds.meter.bytes < float64(size) {
			ds.puts.throttled++
			return false
		}
		ds.meter.records--
		ds.meter.bytes -= float64(size)
	}
	return true
}
