package observe

import "time"

// A Delivery is one request that sent parts to a delivery stream.
type Delivery struct {
	Records int
	Bytes   int
	Refused int // records that were throttled or failed; they are sent again
	Waiting int // bytes of parts that are being landed
}

// A Quota is what a delivery stream takes in a second, by the service's documentation.
type Quota struct{ Requests, Records, Bytes float64 }

// quotaNames are the values of the label quota.
var quotaNames = []string{"requests", "records", "bytes"}

// quotaSeconds is how long the use of one second is looked back at: a scrape a minute sees each.
const quotaSeconds = 60

// delivering is what is known of a delivery stream's use. The quota is by the second, so that a mean
// over minutes would hide what is throttled.
type delivering struct {
	quota   Quota
	waiting int
	used    [quotaSeconds]used
}

type used struct {
	at    int64 // seconds since 1970
	quota Quota
}

// Deliver notes how much a delivery stream takes in a second.
func (o *Observer) Deliver(q Quota) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.delivery.quota = q
}

// Delivered notes a request to a delivery stream.
func (o *Observer) Delivered(d Delivery) {
	o.m.puts.Inc()
	o.m.putRecords.Add(float64(d.Records))
	o.m.putBytes.Add(float64(d.Bytes))
	o.m.putRefused.Add(float64(d.Refused))
	o.mu.Lock()
	defer o.mu.Unlock()
	o.delivery.waiting = d.Waiting
	now := o.o.Now().Unix()
	u := &o.delivery.used[now%quotaSeconds]
	if u.at != now {
		*u = used{at: now}
	}
	u.quota.Requests++
	u.quota.Records += float64(d.Records)
	u.quota.Bytes += float64(d.Bytes)
}

// landedAll notes that no part waits any more.
func (o *Observer) landedAll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.delivery.waiting = 0
}

// use is the highest use of the quota within one second of the last minute, as a share of it by its
// name; 0 where the quota is not known.
func (d *delivering) use(now time.Time) map[string]float64 {
	share := map[string]float64{}
	for _, u := range d.used {
		if now.Unix()-u.at >= quotaSeconds {
			continue
		}
		for name, of := range map[string][2]float64{
			"requests": {u.quota.Requests, d.quota.Requests}, "records": {u.quota.Records, d.quota.Records}, "bytes": {u.quota.Bytes, d.quota.Bytes},
		} {
			if of[1] > 0 {
				share[name] = max(share[name], of[0]/of[1])
			}
		}
	}
	return share
}
