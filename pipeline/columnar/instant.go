package columnar

import (
	"time"

	"github.com/apache/arrow-go/v18/arrow"
)

// Bounds of a timestamp: the years 1 to 9999, which every engine can show.
var (
	firstInstant = arrow.Timestamp(time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli())
	lastInstant  = arrow.Timestamp(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli() - 1)
)

func checkInstant(t arrow.Timestamp, text string) (arrow.Timestamp, *misfit) {
	if t < firstInstant || t > lastInstant {
		return 0, misfitf(ReasonRange, "%s is not within the years 1 and 9999", clip(text))
	}
	return t, nil
}

// parseISO8601 reads 2026-11-30T16:12:02.123Z: date, T or a space, time of day with
// seconds, any fraction after a point or comma, and Z or an offset, +01:00, +0100 or +01.
// Without an offset the text names no instant. A fraction finer than a millisecond is
// refused unless it is zeros.
func parseISO8601(s string) (arrow.Timestamp, *misfit) {
	t, reason := iso8601(s)
	switch reason {
	case ReasonFormat:
		return 0, misfitf(ReasonFormat, "%q is not a time such as 2026-11-30T16:12:02.123Z", clip(s))
	case ReasonScale:
		return 0, misfitf(ReasonScale, "%s is finer than a millisecond", clip(s))
	}
	return checkInstant(t, s)
}

func iso8601(s string) (t arrow.Timestamp, reason string) {
	p := scanner{rest: s}
	year, month, day := p.date()
	p.oneOf("Tt ")
	hour := p.digits(2)
	p.oneOf(":")
	minute := p.digits(2)
	p.oneOf(":")
	second := p.digits(2)
	milli, finer := 0, false
	if p.peek('.') || p.peek(',') {
		p.oneOf(".,")
		milli, finer = p.fraction()
	}
	offset := p.offset()
	if p.bad || p.rest != "" || !validDate(year, month, day) || hour > 23 || minute > 59 || second > 59 {
		return 0, ReasonFormat
	}
	if finer {
		return 0, ReasonScale
	}
	seconds := time.Date(year, time.Month(month), day, hour, minute, second, 0, time.UTC).Unix() - int64(offset)
	return arrow.Timestamp(seconds*1000 + int64(milli)), ""
}

// parseDate reads 2026-11-30.
func parseDate(s string) (arrow.Date32, *misfit) {
	p := scanner{rest: s}
	year, month, day := p.date()
	if p.bad || p.rest != "" || !validDate(year, month, day) {
		return 0, misfitf(ReasonFormat, "%q is not a date such as 2026-11-30", clip(s))
	}
	if year == 0 {
		return 0, misfitf(ReasonRange, "%s is not within the years 1 and 9999", s)
	}
	const secondsPerDay = 24 * 60 * 60
	return arrow.Date32(time.Date(year, time.Month(month), day, 0, 0, 0, 0, time.UTC).Unix() / secondsPerDay), nil
}

// parseEpoch reads an N attribute that counts units of 10^-places seconds since 1970.
func parseEpoch(s string, places int) (arrow.Timestamp, *misfit) {
	const millis = 3
	x, m := parseNumber(s)
	if m != nil {
		return 0, m
	}
	v, m := x.scaled(maxDigits, millis-places)
	switch {
	case m != nil && m.reason == ReasonScale:
		return 0, misfitf(ReasonScale, "%s is finer than a millisecond", clip(s))
	case m != nil || v.HighBits() != int64(v.LowBits())>>63:
		return 0, misfitf(ReasonRange, "%s is not within the years 1 and 9999", clip(s))
	}
	return checkInstant(arrow.Timestamp(v.LowBits()), s)
}

func validDate(year, month, day int) bool {
	if month < 1 || month > 12 || day < 1 {
		return false
	}
	// The day before the first of the next month is the month's last.
	return day <= time.Date(year, time.Month(month)+1, 0, 0, 0, 0, 0, time.UTC).Day()
}

// A scanner reads a text from its start; bad says that it has met something else than
// what was asked for.
type scanner struct {
	rest string
	bad  bool
}

func (p *scanner) peek(c byte) bool { return p.rest != "" && p.rest[0] == c }

func (p *scanner) oneOf(chars string) byte {
	if p.rest != "" {
		for _, c := range []byte(chars) {
			if p.rest[0] == c {
				p.rest = p.rest[1:]
				return c
			}
		}
	}
	p.bad = true
	return 0
}

// digits reads exactly n digits.
func (p *scanner) digits(n int) int {
	if len(p.rest) < n {
		p.bad = true
		return 0
	}
	v := 0
	for _, c := range []byte(p.rest[:n]) {
		if c < '0' || c > '9' {
			p.bad = true
			return 0
		}
		v = v*10 + int(c-'0')
	}
	p.rest = p.rest[n:]
	return v
}

func (p *scanner) date() (year, month, day int) {
	year = p.digits(4)
	p.oneOf("-")
	month = p.digits(2)
	p.oneOf("-")
	return year, month, p.digits(2)
}

// fraction reads one digit or more; finer says that there is something below a
// millisecond.
func (p *scanner) fraction() (milli int, finer bool) {
	n := 0
	for ; n < len(p.rest) && p.rest[n] >= '0' && p.rest[n] <= '9'; n++ {
		d := int(p.rest[n] - '0')
		switch {
		case n < 3:
			milli = milli*10 + d
		case d != 0:
			finer = true
		}
	}
	if n == 0 {
		p.bad = true
	}
	for i := n; i < 3; i++ {
		milli *= 10
	}
	p.rest = p.rest[n:]
	return milli, finer
}

// offset reads Z or an offset from UTC, in seconds.
func (p *scanner) offset() int {
	sign := 1
	switch p.oneOf("Zz+-") {
	case '-':
		sign = -1
	case '+':
	default:
		return 0
	}
	hours, minutes := p.digits(2), 0
	if p.peek(':') {
		p.oneOf(":")
		minutes = p.digits(2)
	} else if p.rest != "" {
		minutes = p.digits(2)
	}
	if hours > 23 || minutes > 59 {
		p.bad = true
	}
	return sign * (hours*60 + minutes) * 60
}
