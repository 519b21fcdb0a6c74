package schemas

import (
	"fmt"
	"time"
)

// Names of the partition columns. They stand in the path only, as text.
const (
	DayColumn  = "dt"
	HourColumn = "hour"
)

const (
	dayFormat = "2006-01-02"
	dayPath   = DayColumn + "=" + dayFormat
	hourPath  = dayPath + "/" + HourColumn + "=15"
	oneDay    = 24 * time.Hour
)

// Reasons that Outside gives.
const (
	BeforeFirstPartition = "before_first_partition"
	AfterLastPartition   = "after_last_partition"
)

// Columns are the partition columns, outermost first.
func (l Layout) Columns() []string {
	if l.Unit == Hour {
		return []string{DayColumn, HourColumn}
	}
	return []string{DayColumn}
}

func (l Layout) pathFormat() (format string, width time.Duration) {
	if l.Unit == Hour {
		return hourPath, time.Hour
	}
	return dayPath, oneDay
}

// Path is the partition of an instant, in UTC: dt=2026-11-30 or dt=2026-11-30/hour=07.
func (l Layout) Path(t time.Time) string {
	format, _ := l.pathFormat()
	return t.UTC().Format(format)
}

// Bounds are the first instant of a partition and the first instant after it. It refuses
// a path that Path does not make.
func (l Layout) Bounds(path string) (from, to time.Time, err error) {
	format, width := l.pathFormat()
	from, err = time.Parse(format, path)
	if err != nil || from.Format(format) != path {
		return time.Time{}, time.Time{}, fmt.Errorf("read partition %q: not of the form %s", path, format)
	}
	return from, from.Add(width), nil
}

// Outside reports whether a row of an event time would lie outside the partitions that
// Athena looks at, and why: BeforeFirstPartition or AfterLastPartition. Without a last
// partition that is the day after the record's creation; if that is unknown (zero), there
// is no upper bound.
func (l Layout) Outside(event, created time.Time) (reason string, outside bool) {
	if event.Before(l.FirstPartition) {
		return BeforeFirstPartition, true
	}
	last := l.LastPartition
	if last.IsZero() {
		if created.IsZero() {
			return "", false
		}
		last = created.UTC().Truncate(oneDay).Add(oneDay)
	}
	if !event.Before(last.Add(oneDay)) {
		return AfterLastPartition, true
	}
	return "", false
}
