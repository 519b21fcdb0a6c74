package hot

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// A device is one simulated device. Its random numbers are its own, so the readings of one
// device do not depend on how many others there are.
type device struct {
	rand     *rand.Rand
	id, site string
	sku      string
	model    string
	firmware string
	tags     []string
	lat, lon int64 // millionths of a degree
	located  bool
	battery  int64 // hundredths of a percent
	drain    int64 // hundredths of a percent, each reading
	charging bool
	booted   time.Time
}

// inStorage is how many devices there are for each that belongs to no site.
const inStorage = 11

var models = []struct{ model, sku string }{
	{"tracker-2", "TRK-2-EU"}, {"env-mini", "ENV-M-01"}, {"engine-hours", "ENG-H-03"},
}

func newDevice(o FleetOptions, i int) *device {
	r := rand.New(rand.NewPCG(o.Seed, uint64(i)+1))
	m := models[i%len(models)]
	d := &device{
		rand: r, id: fmt.Sprintf("dev-%05d", i+1), model: m.model, sku: m.sku,
		firmware: fmt.Sprintf("%d.%d.%d", 2+r.IntN(2), r.IntN(10), r.IntN(20)),
		battery:  6000 + r.Int64N(4001), drain: 3 + r.Int64N(20),
		booted: o.Start.Add(-time.Duration(r.Int64N(int64(90 * 24 * time.Hour)))),
	}
	if i%inStorage != inStorage-1 {
		site := i % o.Sites
		d.site = fmt.Sprintf("site-%02d", site+1)
		d.located = r.IntN(5) > 0
		d.lat = 47_000_000 + int64(site)*350_000 + r.Int64N(8_000)
		d.lon = 8_200_000 + int64(site)*410_000 + r.Int64N(8_000)
	}
	if r.IntN(3) == 0 {
		d.tags = []string{"rental", "winter-" + fmt.Sprint(r.IntN(3))}
	}
	return d
}

// reading takes a reading. Optional attributes are missing now and then, as they are in life.
func (d *device) reading(taken time.Time) Event {
	d.wear()
	r := d.rand
	item := Item{
		deviceAttribute: text(d.id),
		eventAttribute:  text(taken.Format(eventTimeForm)),
		"sku":           text(d.sku),
		"model":         text(d.model),
		"charging":      &types.AttributeValueMemberBOOL{Value: d.charging},
	}
	if up := taken.Sub(d.booted); up >= 0 {
		item["uptime_s"] = number(int64(up / time.Second))
	}
	e := Event{Device: d.id, Site: d.site, Taken: taken, Item: item, battery: -1}
	if d.site != "" {
		item["job_site_id"] = text(d.site)
	}
	if r.IntN(50) > 0 {
		item["firmware"] = text(d.firmware)
	}
	if r.IntN(33) > 0 {
		e.battery = d.battery
		item["battery_pct"] = fixed(d.battery, 2)
	}
	if r.IntN(20) > 0 {
		item["signal"] = object(Item{
			"rssi_dbm": number(-50 - r.Int64N(70)),
			"snr_db":   fixed(r.Int64N(3000)-500, 2),
			"network":  text([]string{"lte-m", "nb-iot", "lora"}[r.IntN(3)]),
		})
	}
	if d.located {
		item["location"] = object(Item{
			"lat":        fixed(d.lat+r.Int64N(200), 6),
			"lon":        fixed(d.lon+r.Int64N(200), 6),
			"accuracy_m": fixed(150+r.Int64N(2500), 2),
		})
	}
	if r.IntN(25) > 0 {
		item["payload"] = d.payload()
	}
	if d.tags != nil {
		item["tags"] = &types.AttributeValueMemberSS{Value: d.tags}
	}
	return e
}

// wear lets time pass for the battery: it runs down, and is charged when it is low.
func (d *device) wear() {
	if d.charging {
		d.battery = min(d.battery+400, 10000)
		d.charging = d.battery < 10000
		return
	}
	d.battery = max(d.battery-d.drain, 0)
	d.charging = d.battery < 1500
}

func (d *device) payload() types.AttributeValue {
	r := d.rand
	values := Item{"temperature_c": fixed(r.Int64N(45_000)-10_000, 3)}
	switch d.model {
	case "env-mini":
		values["humidity_pct"] = fixed(20_000+r.Int64N(70_000), 3)
		values["pressure_hpa"] = fixed(95_000+r.Int64N(8_000), 2)
	case "engine-hours":
		values["engine_h"] = fixed(r.Int64N(9_000_000), 3)
		values["vibration_g"] = fixed(r.Int64N(4_000_000), 6)
	}
	return object(values)
}

// overwritten is the reading written again within two hours: recalibrated, and with another
// battery value, so that an average that counted it would show.
func (d *device) overwritten(e Event) Event {
	o := e
	o.Kind, o.At = KindOverwrite, e.At.Add(span(d.rand, time.Minute, 2*time.Hour))
	o.Item = maps.Clone(e.Item)
	o.Item["firmware"] = text(d.firmware + "-recalibrated")
	if o.battery >= 0 {
		o.battery = (o.battery + 5000) % 10000
		o.Item["battery_pct"] = fixed(o.battery, 2)
	}
	return o
}

func object(values Item) types.AttributeValue { return &types.AttributeValueMemberM{Value: values} }

// fixed is n / 10^scale as a number.
func fixed(n int64, scale int) types.AttributeValue {
	sign := ""
	if n < 0 {
		sign, n = "-", -n
	}
	unit := int64(1)
	for range scale {
		unit *= 10
	}
	return &types.AttributeValueMemberN{Value: fmt.Sprintf("%s%d.%0*d", sign, n/unit, scale, n%unit)}
}
