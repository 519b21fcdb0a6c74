package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"
	"time"

	"telemetrylake/pipeline/hot"
	"telemetrylake/schemas"
)

// A feed is what the demo writes to a hot table.
type feed struct {
	name     string // for people
	contract *schemas.Contract
	start    time.Time // the first write; the virtual clock begins here
	total    int       // writes
	events   iter.Seq2[hot.Event, error]
}

// A fileFormat is a way to read readings from a file.
type fileFormat struct {
	contract string
	open     func(path string, c *schemas.Contract) (*feed, error)
}

var formats = map[string]fileFormat{"room-climate": {"sensor_readings", roomClimateFeed}}

func formatNames() string {
	var names []string
	for name := range formats {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// fleetStart is the first reading of the simulated fleet.
var fleetStart = time.Date(2026, 3, 2, 6, 0, 0, 0, time.UTC)

// Shares of the fleet's readings, exaggerated so that a small demo shows each.
const (
	lateShare       = 0.01
	outOfOrderShare = 0.02
	overwriteShare  = 0.005
	prolongShare    = 0.005
)

// fleet is the simulated fleet of the flags, and the contract of what it writes.
func (o demoOptions) fleet() (*hot.Fleet, *schemas.Contract, error) {
	c, err := schemas.Load("device_telemetry")
	if err != nil {
		return nil, nil, err
	}
	f, err := hot.NewFleet(c, hot.FleetOptions{
		Seed: o.seed, Devices: o.devices, Start: fleetStart, Duration: time.Duration(o.hours) * time.Hour,
		Late: lateShare, OutOfOrder: outOfOrderShare, Overwrite: overwriteShare, Prolong: prolongShare, Odd: true,
	})
	return f, c, err
}

func fleetFeed(o demoOptions) (*feed, error) {
	fleet, c, err := o.fleet()
	if err != nil {
		return nil, err
	}
	f := &feed{name: fmt.Sprintf("a simulated fleet of %s over %s", counted(o.devices, "device"), counted(o.hours, "hour")), contract: c}
	for e := range fleet.Events() {
		if f.total == 0 {
			f.start = e.At
		}
		f.total++
	}
	f.events = func(yield func(hot.Event, error) bool) {
		for e := range fleet.Events() {
			if !yield(e, nil) {
				return
			}
		}
	}
	return f, nil
}

// readingsFeed checks a whole file before anything is made of it, so that a malformed line
// leaves nothing half done.
func readingsFeed(path, name string) (*feed, error) {
	f, ok := formats[name]
	if !ok {
		return nil, usagef("unknown format %q of %s; write --format with one of %s", name, path, formatNames())
	}
	c, err := schemas.Load(f.contract)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, usagef("open readings: %w", err)
	case !info.Mode().IsRegular():
		return nil, usagef("open readings: %s is not a regular file, and it is read twice; write the readings into a file", path)
	}
	return f.open(path, c)
}

func roomClimateFeed(path string, c *schemas.Contract) (*feed, error) {
	items, err := hot.NewReadings(c)
	if err != nil {
		return nil, err
	}
	f := &feed{name: path, contract: c}
	var bad []error
	var last hot.Reading // the latest
	for reading, err := range climate(path) {
		if err != nil {
			bad = append(bad, err)
			continue
		}
		if _, err := items.Item(reading); err != nil {
			bad = append(bad, &hot.LineError{File: path, Line: reading.Line, Err: err})
			continue
		}
		if f.total == 0 {
			f.start = reading.TakenAt
		}
		if reading.TakenAt.After(last.TakenAt) {
			last = reading
		}
		f.total++
	}
	switch span := last.TakenAt.Sub(f.start); {
	case len(bad) == 0 && span > maxSpan:
		return nil, usagef("%s:%d: the reading was taken %s after the first, more than the demo lives through; nothing was written",
			path, last.Line, counted(int(span/(24*time.Hour)), "day"))
	case len(bad) == 1:
		return nil, usagef("%w; nothing was written", bad[0])
	case len(bad) > 1:
		return nil, usagef("%w (and %s); nothing was written", bad[0], counted(len(bad)-1, "more line"))
	case f.total == 0:
		return nil, usagef("%s holds no readings", path)
	}
	f.events = func(yield func(hot.Event, error) bool) {
		// A reading cannot arrive before it is taken, nor before the one in the line above.
		arrival := f.start
		for reading, err := range climate(path) {
			if err != nil {
				yield(hot.Event{}, fmt.Errorf("the file was changed while it was read: %w", err))
				return
			}
			item, err := items.Item(reading)
			if err != nil {
				yield(hot.Event{}, err)
				return
			}
			if reading.TakenAt.After(arrival) {
				arrival = reading.TakenAt
			}
			e := hot.Event{
				At: arrival, Kind: hot.KindReading, Device: reading.DeviceID, Taken: reading.TakenAt, Item: item,
				Expires: reading.TakenAt.Add(c.Retention),
			}
			if !yield(e, nil) {
				return
			}
		}
	}
	return f, nil
}

// climate yields the readings of a file in its order, with errors for lines between them. It
// ends after an error that nothing can be read behind.
func climate(path string) iter.Seq2[hot.Reading, error] {
	return func(yield func(hot.Reading, error) bool) {
		r, err := hot.OpenRoomClimate(path)
		if err != nil {
			yield(hot.Reading{}, err)
			return
		}
		// Nothing was written to it.
		defer func() { _ = r.Close() }()
		for {
			reading, err := r.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			line, isLine := errors.AsType[*hot.LineError](err)
			if !yield(reading, err) || err != nil && (!isLine || line.Fatal) {
				return
			}
		}
	}
}

// check refuses what cannot be simulated or printed.
func (o demoOptions) check(changed func(string) bool) error {
	switch {
	case o.readings == "" && o.format != "":
		return usagef("--format %s without --readings; add --readings FILE", o.format)
	case o.readings != "" && o.format == "":
		return usagef("--readings %s without --format; add --format with one of %s", o.readings, formatNames())
	case o.devices < 1 || o.devices > maxDevices:
		return usagef("--devices %d is not within 1 and %d", o.devices, maxDevices)
	case o.hours < 1 || o.hours > maxHours:
		return usagef("--hours %d is not within 1 and %d", o.hours, maxHours)
	case o.devices*o.hours > maxDeviceHours:
		return usagef("--devices %d over --hours %d are more than %d device hours; ask for less", o.devices, o.hours, maxDeviceHours)
	}
	for _, name := range []string{"devices", "hours"} {
		if o.readings != "" && changed(name) {
			return usagef("--%s is for the simulated fleet; leave it out with --readings", name)
		}
	}
	return nil
}

// What the fleet may be told to be. All hot rows lie in memory, about 1 KB each, and a device
// sends 12 an hour.
const (
	maxDevices     = 10_000
	maxHours       = 24 * 366
	maxDeviceHours = 250_000
)

// maxSpan is the longest time that a file may cover: the clock passes through all of it, shard
// by shard, so that a mistyped year would take days.
const maxSpan = 10 * 366 * 24 * time.Hour

// open makes the feed that the flags name.
func (o demoOptions) open() (*feed, error) {
	if o.readings != "" {
		return readingsFeed(o.readings, cmp.Or(o.format, "room-climate"))
	}
	return fleetFeed(o)
}
