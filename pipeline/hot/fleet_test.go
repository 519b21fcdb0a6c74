package hot

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

func fleet(t *testing.T, o FleetOptions) *Fleet {
	t.Helper()
	o.Start = start
	f, err := NewFleet(contract(t, "device_telemetry"), o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

var lively = FleetOptions{Seed: 7, Duration: 12 * time.Hour, Interval: 10 * time.Minute, Late: 0.02, OutOfOrder: 0.05, Overwrite: 0.01, Prolong: 0.01, Odd: true}

func TestTheSameSeedIsTheSameFleet(t *testing.T) {
	f := fleet(t, lively)
	a, b := slices.Collect(f.Events()), slices.Collect(f.Events())
	if !reflect.DeepEqual(a, b) {
		t.Error("a second run gave other events")
	}
	if c := slices.Collect(fleet(t, lively).Events()); !reflect.DeepEqual(a, c) {
		t.Error("a second fleet of the seed gave other events")
	}
	other := lively
	other.Seed++
	if c := slices.Collect(fleet(t, other).Events()); reflect.DeepEqual(a, c) {
		t.Error("another seed gave the same events")
	}
}

func TestAFleetHasEveryKindInOrderOfArrival(t *testing.T) {
	f := fleet(t, lively)
	kinds := map[EventKind]int{}
	sites := map[string]bool{}
	lacking := map[string]int{}
	disorder, crossed := 0, 0
	lastTaken := map[string]time.Time{}
	var at time.Time
	for e := range f.Events() {
		if e.At.Before(at) || e.At.Before(e.Taken) && e.Kind != KindProlong {
			t.Fatalf("event of %v taken %v comes after %v", e.At, e.Taken, at)
		}
		at = e.At
		kinds[e.Kind]++
		sites[e.Site] = true
		if e.Kind != KindReading && e.Kind != KindLate {
			continue
		}
		for _, a := range []string{"battery_pct", "payload", "signal", "location", "firmware", "job_site_id", "tags"} {
			if e.Item[a] == nil {
				lacking[a]++
			}
		}
		if e.Taken.Before(lastTaken[e.Device]) {
			disorder++
		}
		lastTaken[e.Device] = e.Taken
		if e.At.Format(time.DateOnly) != e.Taken.Format(time.DateOnly) {
			crossed++
		}
	}
	// 24 devices, 72 readings each.
	if n := kinds[KindReading] + kinds[KindLate]; n != 24*72 {
		t.Errorf("%d readings", n)
	}
	for _, k := range []EventKind{KindLate, KindOverwrite, KindProlong} {
		if kinds[k] == 0 || kinds[k] > 24*72/20 {
			t.Errorf("%d events of kind %s", kinds[k], k)
		}
	}
	if kinds[KindEarly] != 1 || kinds[KindMalformed] != 1 {
		t.Errorf("kinds are %v", kinds)
	}
	if len(sites) != 5 || disorder == 0 || crossed == 0 {
		t.Errorf("sites %v, %d out of order, %d arrived on another day", slices.Sorted(maps.Keys(sites)), disorder, crossed)
	}
	if len(lacking) != 7 {
		t.Errorf("attributes that are missing now and then: %v", lacking)
	}
}

func TestBatteriesDischarge(t *testing.T) {
	falls, rises := 0, 0
	last := map[string]int64{}
	for e := range fleet(t, FleetOptions{Seed: 1, Duration: 4 * 24 * time.Hour, Interval: 10 * time.Minute}).Events() {
		if e.battery < 0 {
			continue
		}
		if e.battery > 10000 {
			t.Fatalf("battery at %d", e.battery)
		}
		if before, ok := last[e.Device]; ok && e.battery < before {
			falls++
		} else if ok && e.battery > before {
			rises++
		}
		last[e.Device] = e.battery
	}
	if falls < rises*5 || rises == 0 {
		t.Errorf("%d falls, %d rises", falls, rises)
	}
}

func TestTheTruthIsWhatTheTableWasTold(t *testing.T) {
	env := open(t)
	c := create(t, env, "device_telemetry")
	w := NewWriter(env.client, c, quick())
	f := fleet(t, lively)
	var applied, written int
	for e := range f.Events() {
		env.clock.Set(e.At)
		r, err := w.Apply(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		if r.Refused > 0 {
			t.Fatalf("%s of %s at %v was refused", e.Kind, e.Device, e.Taken)
		}
		applied++
		written += r.Written
		item := get(t, env, c, e.Item)
		if e.Kind != KindProlong && !sameItem(item, e.Item) {
			t.Fatalf("wrote %v, table has %v", e.Item, item)
		}
		if got := numberOf(t, item, c.TTL); got != number(e.Expires.Unix()).Value {
			t.Fatalf("%s expires at %s", e.Kind, got)
		}
	}
	truth := f.Truth()
	if n := truth.Readings + truth.Changes + truth.Quarantined; n != applied || written != applied {
		t.Errorf("truth has %d events, %d were applied, %d written", n, applied, written)
	}
	days, readings, charged := 0, 0, 0
	for _, n := range truth.DeviceDays {
		days += n
	}
	for _, s := range truth.Sites {
		readings += s.Readings
		charged += s.Charged
		if s.Battery <= 0 || s.Battery > int64(s.Charged)*10000 {
			t.Errorf("site truth is %+v", s)
		}
	}
	if days != truth.Readings || readings != truth.Readings || charged >= readings {
		t.Errorf("by day %d, by site %d (%d charged), in all %d", days, readings, charged, truth.Readings)
	}
	if n, err := w.Count(t.Context()); err != nil || n != truth.Readings+truth.Quarantined {
		t.Errorf("the table holds %d items, %v", n, err)
	}
	env.clock.Advance(60 * 24 * time.Hour)
	env.SweepTTL()
	if n, err := w.Count(t.Context()); err != nil || n != 0 {
		t.Errorf("after their time %d items are left, %v", n, err)
	}
}

func TestOddEventsFitNoPartitionOrNoType(t *testing.T) {
	c := contract(t, "device_telemetry")
	for e := range fleet(t, lively).Events() {
		switch e.Kind {
		case KindEarly:
			if !e.Taken.Before(c.Layout.FirstPartition) {
				t.Errorf("early reading of %v", e.Taken)
			}
		case KindMalformed:
			if _, ok := e.Item["battery_pct"].(*types.AttributeValueMemberS); !ok {
				t.Errorf("malformed item has battery %v", e.Item["battery_pct"])
			}
		case KindOverwrite:
			if _, ok := e.Item["battery_pct"].(*types.AttributeValueMemberS); ok {
				t.Error("a malformed item was overwritten")
			}
		}
	}
}

func TestEveryAttributeOfTheFleetIsInTheContract(t *testing.T) {
	c := contract(t, "device_telemetry")
	known := map[string]bool{c.TTL: true}
	for _, name := range c.Keys.Attributes() {
		known[name] = true
	}
	for _, col := range c.Columns {
		known[col.Attribute] = true
	}
	var walk func(prefix string, item Item)
	walk = func(prefix string, item Item) {
		for name, v := range item {
			path := prefix + name
			if m, ok := v.(*types.AttributeValueMemberM); ok && !known[path] {
				walk(path+".", m.Value)
			} else if !known[path] {
				t.Fatalf("the contract has no column for %s", path)
			}
		}
	}
	for e := range fleet(t, lively).Events() {
		walk("", e.Item)
	}
}

func TestNewFleetRefusesWhatItCannotSimulate(t *testing.T) {
	if _, err := NewFleet(contract(t, "sensor_readings"), FleetOptions{Start: start}); err == nil || !strings.Contains(err.Error(), "sensor_readings") {
		t.Errorf("another contract: %v", err)
	}
	for name, o := range map[string]FleetOptions{"no start": {}, "share": {Start: start, Late: 1.5}} {
		if _, err := NewFleet(contract(t, "device_telemetry"), o); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}
