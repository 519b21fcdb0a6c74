package hot

import (
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/schemas"
)

// eventTimeForm is how we write event times as text: UTC, always three digits of a second, so
// that the texts of a sort key are in order of time.
const eventTimeForm = "2006-01-02T15:04:05.000Z"

// monthForm is how schemas.CaptureMonth spells a month.
const monthForm = "2006-01"

// What a sensor reading fills beside the event time: a capture and two columns.
const (
	deviceCapture = "device_id"
	celsiusName   = "celsius"
	humidityName  = "humidity"
)

// Readings makes items of sensor readings as a contract describes them.
type Readings struct {
	c         *schemas.Contract
	eventTime schemas.Column
	celsius   string // attribute
	humidity  string // attribute
	retention int64  // seconds
}

// NewReadings checks that readings fit the contract: keys made of device_id, event_time and
// yyyy-mm, and number columns celsius and humidity.
func NewReadings(c *schemas.Contract) (*Readings, error) {
	r := &Readings{c: c, retention: int64(c.Retention / time.Second)}
	for _, key := range []schemas.Key{c.Keys.Partition, c.Keys.Sort} {
		for _, capture := range key.Pattern.Captures() {
			switch capture {
			case deviceCapture, schemas.CaptureEventTime, schemas.CaptureMonth:
			default:
				if !key.Pattern.Optional(capture) {
					return nil, fmt.Errorf("contract %s: key %s needs {%s}, which a sensor reading does not have", c.Name, key.Attribute, capture)
				}
			}
		}
	}
	var ok bool
	if r.eventTime, ok = c.Column(c.EventTime); !ok {
		return nil, fmt.Errorf("contract %s has no column %s for the event time", c.Name, c.EventTime)
	}
	for name, attribute := range map[string]*string{celsiusName: &r.celsius, humidityName: &r.humidity} {
		col, ok := c.Column(name)
		if !ok || col.Attribute == "" || strings.Contains(col.Attribute, ".") || !col.Type.Numeric() {
			return nil, fmt.Errorf("contract %s has no number column %s of a top-level attribute, which sensor readings need", c.Name, name)
		}
		*attribute = col.Attribute
	}
	return r, nil
}

// Item is the reading as an item. Numbers are the reading's text; the item expires after the
// contract's retention, counted from when the reading was taken.
func (r *Readings) Item(in Reading) (Item, error) {
	item := make(Item, 6)
	taken := in.TakenAt.UTC().Format(eventTimeForm)
	for _, key := range []schemas.Key{r.c.Keys.Partition, r.c.Keys.Sort} {
		if key.Attribute == "" {
			continue
		}
		if key.Pattern.IsZero() {
			return nil, fmt.Errorf("make item of reading %s %s: key %s has no pattern", in.DeviceID, taken, key.Attribute)
		}
		values := make(map[string]string, 2)
		for _, capture := range key.Pattern.Captures() {
			switch capture {
			case deviceCapture:
				values[capture] = in.DeviceID
			case schemas.CaptureEventTime:
				values[capture] = taken
			case schemas.CaptureMonth:
				values[capture] = in.TakenAt.UTC().Format(monthForm)
			}
		}
		s, err := key.Pattern.Format(values)
		if err != nil {
			return nil, fmt.Errorf("make item of reading %s %s: %w", in.DeviceID, taken, err)
		}
		item[key.Attribute] = text(s)
	}
	if a := r.eventTime.Attribute; a != "" {
		item[a] = encodeTime(in.TakenAt, r.eventTime.Encoding)
	}
	item[r.celsius] = &types.AttributeValueMemberN{Value: in.Celsius}
	item[r.humidity] = &types.AttributeValueMemberN{Value: in.Humidity}
	if r.c.TTL != "" {
		item[r.c.TTL] = number(in.TakenAt.Unix() + r.retention)
	}
	return item, nil
}

func encodeTime(t time.Time, e schemas.Encoding) types.AttributeValue {
	switch e {
	case schemas.EpochSecond:
		return number(t.Unix())
	case schemas.EpochMilli:
		return number(t.UnixMilli())
	}
	return text(t.UTC().Format(eventTimeForm))
}
