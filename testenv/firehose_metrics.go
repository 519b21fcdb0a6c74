package testenv

import "time"

// FirehoseStats counts what a delivery stream has done since it was created.
// Copies of FirehoseBehaviour count in Bytes, Pending and Lost, not in Records.
type FirehoseStats struct {
	Records int // accepted
	Bytes   int // delivered to S3
	Objects int // delivered to S3
	Pending int // records that wait for delivery
	Lost    int // records given up because S3 failed for 24 hours
}

// FirehoseStats returns the counters of every delivery stream by its name.
func (e *Env) FirehoseStats() map[string]FirehoseStats { return e.firehose.statistics() }

func (f *firehose) statistics() map[string]FirehoseStats {
	f.mu.Lock()
	defer f.mu.Unlock()
	stats := make(map[string]FirehoseStats, len(f.streams))
	for name, ds := range f.streams {
		st := ds.stats
		st.Pending = len(ds.later)
		for _, b := range ds.closed {
			st.Pending += len(b.records)
		}
		if ds.open != nil {
			st.Pending += len(ds.open.records)
		}
		stats[name] = st
	}
	return stats
}

// puts is what a delivery stream counts beside its FirehoseStats.
type puts struct {
	attempts, done int // PUTs to S3, and those that were answered well
	records        int // delivered, copies too
	throttled      int // records
	bytes          int // accepted
	single, batch  calls
}

// calls are accepted requests of one operation.
type calls struct{ requests, records, bytes int }

func (c *calls) add(records, bytes int) {
	c.requests++
	c.records += records
	c.bytes += bytes
}

// FirehoseMetrics returns what CloudWatch shows of a delivery stream in AWS/Firehose, by the
// metrics' names: sums since the Env was opened where CloudWatch has sums over periods, and
// the present value of the others. DeliveryToS3.DataFreshness is the age in seconds of the
// oldest record that is not delivered: it climbs while S3 is down, and where it reaches 86,400
// data is lost, for which there is no metric of its own: IncomingRecords then stays above
// DeliveryToS3.Records. DeliveryToS3.Success is the share (0 to 1) of PUTs that succeeded and
// is missing before the first. Latencies and what processing counts are not there. Nil: no such
// stream.
//
// Source: "Monitoring Amazon Data Firehose Using CloudWatch Metrics".
func (e *Env) FirehoseMetrics(stream string) map[string]float64 {
	f := e.firehose
	f.mu.Lock()
	defer f.mu.Unlock()
	ds := f.streams[stream]
	if ds == nil {
		return nil
	}
	q := FirehoseQuota(f.region)
	m := map[string]float64{
		"IncomingBytes":              float64(ds.puts.bytes),
		"IncomingRecords":            float64(ds.puts.single.records + ds.puts.batch.records),
		"IncomingPutRequests":        float64(ds.puts.single.requests + ds.puts.batch.requests),
		"ThrottledRecords":           float64(ds.puts.throttled),
		"PutRecord.Bytes":            float64(ds.puts.single.bytes),
		"PutRecord.Requests":         float64(ds.puts.single.requests),
		"PutRecordBatch.Bytes":       float64(ds.puts.batch.bytes),
		"PutRecordBatch.Records":     float64(ds.puts.batch.records),
		"PutRecordBatch.Requests":    float64(ds.puts.batch.requests),
		"BytesPerSecondLimit":        float64(q.Bytes),
		"RecordsPerSecondLimit":      float64(q.Records),
		"PutRequestsPerSecondLimit":  float64(q.Requests),
		"DeliveryToS3.Bytes":         float64(ds.stats.Bytes),
		"DeliveryToS3.ObjectCount":   float64(ds.stats.Objects),
		"DeliveryToS3.Records":       float64(ds.puts.records),
		"DeliveryToS3.DataFreshness": ds.freshness(f.clock.Now()).Seconds(),
	}
	if ds.puts.attempts > 0 {
		m["DeliveryToS3.Success"] = float64(ds.puts.done) / float64(ds.puts.attempts)
	}
	return m
}

// freshness is the age of the oldest record that is not delivered, 0 for none.
func (ds *deliveryStream) freshness(now time.Time) (age time.Duration) {
	for _, b := range ds.closed {
		if !b.delivered {
			age = max(age, now.Sub(b.oldest))
		}
	}
	if ds.open != nil {
		age = max(age, now.Sub(ds.open.oldest))
	}
	return age
}
