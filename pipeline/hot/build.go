package hot

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/schemas"
)

// An itemBuilder makes one item.
type itemBuilder struct {
	m        *Mapper
	item     Item
	captures map[string]string
	event    time.Time // zero: none yet
}

func newItemBuilder(m *Mapper) *itemBuilder {
	return &itemBuilder{m: m, item: make(Item, 8), captures: make(map[string]string, 2)}
}

// add takes a value of the file. asText tells that the file knows nothing but text.
func (b *itemBuilder) add(t target, v types.AttributeValue, asText bool) error {
	_, null := v.(*types.AttributeValueMemberNULL)
	switch {
	case null && (t.event || t.capture != "" || b.m.isKey(t.name)):
		return nil
	case t.event:
		return b.setEvent(v)
	case t.capture != "":
		if _, twice := b.captures[t.capture]; twice {
			return fmt.Errorf("a second value for %s", t.name)
		}
		s, ok := plainText(v)
		if !ok {
			return fmt.Errorf("%s cannot be part of a key", kindOf(v))
		}
		b.captures[t.capture] = s
		return nil
	}
	v, err := b.value(t, v, asText)
	if err != nil {
		return err
	}
	if !t.known {
		// A dot in a name that the contract does not know is just a dot.
		return setPath(b.item, []string{t.name}, v)
	}
	return setPath(b.item, strings.Split(t.name, "."), v)
}

func (m *Mapper) isKey(attribute string) bool {
	return attribute == m.c.Keys.Partition.Attribute || attribute == m.c.Keys.Sort.Attribute
}

// setPath puts a value into an item, through maps that it makes.
func setPath(item Item, path []string, v types.AttributeValue) error {
	have, taken := item[path[0]]
	if len(path) == 1 {
		if taken {
			return fmt.Errorf("a second value for %s", path[0])
		}
		item[path[0]] = v
		return nil
	}
	if !taken {
		have = object(Item{})
		item[path[0]] = have
	}
	inside, ok := have.(*types.AttributeValueMemberM)
	if !ok {
		return fmt.Errorf("%s has a value already, so nothing can be in it", path[0])
	}
	return setPath(inside.Value, path[1:], v)
}

// value gives a value the type that the contract says, and what is inside a map too.
func (b *itemBuilder) value(t target, v types.AttributeValue, asText bool) (types.AttributeValue, error) {
	if t.event {
		if err := b.setEvent(v); err != nil {
			return nil, err
		}
		return encodeInstant(b.event, b.m.event.Encoding), nil
	}
	if t.typ != nil {
		return typed(*t.typ, t.encoding, v, asText)
	}
	if asText && t.branch {
		var err error
		if v, err = parseNested(v); err != nil {
			return nil, err
		}
	}
	inside, ok := v.(*types.AttributeValueMemberM)
	if !ok || !t.branch {
		return v, nil
	}
	out := make(Item, len(inside.Value))
	for name, v := range inside.Value {
		w, err := b.value(b.m.target(t.name+"."+name), v, false)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out[name] = w
	}
	return object(out), nil
}

// parseNested reads a field of CSV that holds JSON.
func parseNested(v types.AttributeValue) (types.AttributeValue, error) {
	s, _ := plainText(v)
	wrapped, err := parseObject([]byte(`{"v":` + s + `}`))
	if err != nil || len(wrapped) != 1 {
		return nil, fmt.Errorf("%q is not JSON", clip(s))
	}
	return wrapped["v"], nil
}

// plainText is the text of a text or a number.
func plainText(v types.AttributeValue) (string, bool) {
	switch v := v.(type) {
	case *types.AttributeValueMemberS:
		return v.Value, true
	case *types.AttributeValueMemberN:
		return v.Value, true
	}
	return "", false
}

// typed gives a value a type if nothing of it is lost by that: a number in quotes is a
// number, a number in a text column is its text.
func typed(t schemas.Type, e schemas.Encoding, v types.AttributeValue, asText bool) (types.AttributeValue, error) {
	if _, null := v.(*types.AttributeValueMemberNULL); null {
		return v, nil
	}
	s, scalar := plainText(v)
	_, isNumber := v.(*types.AttributeValueMemberN)
	wrong := func(want string) error { return fmt.Errorf("%s is not %s", kindOf(v), want) }
	switch t.Kind {
	case schemas.Timestamp:
		switch {
		case !scalar || e == schemas.ISO8601 && isNumber:
			return nil, wrong("a time")
		case e == schemas.ISO8601:
			_, err := parseInstant(s, "")
			return text(s), err
		}
		at, err := parseInstant(s, e)
		if _, plain := parseDecimal(s); plain == nil {
			return &types.AttributeValueMemberN{Value: s}, err
		}
		return encodeInstant(at, e), err
	case schemas.Int, schemas.BigInt, schemas.Double, schemas.Decimal:
		if !scalar {
			return nil, wrong("a number")
		}
		_, err := parseDecimal(s)
		return &types.AttributeValueMemberN{Value: s}, err
	case schemas.Boolean:
		if b, ok := v.(*types.AttributeValueMemberBOOL); ok {
			return b, nil
		}
		b, err := strconv.ParseBool(s)
		if err != nil || isNumber {
			return nil, wrong("true or false")
		}
		return &types.AttributeValueMemberBOOL{Value: b}, nil
	case schemas.Binary:
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil || !scalar || isNumber {
			return nil, wrong("base64")
		}
		return &types.AttributeValueMemberB{Value: b}, nil
	case schemas.Array, schemas.Map, schemas.Struct:
		if asText {
			var err error
			if v, err = parseNested(v); err != nil {
				return nil, err
			}
		}
		return typedNested(t, v)
	}
	if !scalar {
		return nil, wrong("a text")
	}
	return text(s), nil
}

func typedNested(t schemas.Type, v types.AttributeValue) (types.AttributeValue, error) {
	switch v := v.(type) {
	case *types.AttributeValueMemberL:
		if t.Kind != schemas.Array {
			break
		}
		out := make([]types.AttributeValue, len(v.Value))
		for i, e := range v.Value {
			var err error
			if out[i], err = typed(*t.Elem, "", e, false); err != nil {
				return nil, fmt.Errorf("element %d: %w", i+1, err)
			}
		}
		return &types.AttributeValueMemberL{Value: out}, nil
	case *types.AttributeValueMemberM:
		if t.Kind == schemas.Array {
			break
		}
		out := make(Item, len(v.Value))
		for name, e := range v.Value {
			out[name] = e
			if elem := inner(t, name); elem != nil {
				var err error
				if out[name], err = typed(*elem, "", e, false); err != nil {
					return nil, fmt.Errorf("%s: %w", name, err)
				}
			}
		}
		return object(out), nil
	}
	return nil, fmt.Errorf("%s is not of type %s", kindOf(v), t)
}

func (b *itemBuilder) setEvent(v types.AttributeValue) error {
	if !b.event.IsZero() {
		return errors.New("a second value for the event time")
	}
	s, ok := plainText(v)
	if !ok {
		return fmt.Errorf("%s is not a time", kindOf(v))
	}
	unit := b.m.o.EpochUnit
	if unit == "" {
		unit = b.m.event.Encoding
	}
	var err error
	b.event, err = parseInstant(s, unit)
	return err
}

// magnitude is where a number of unknown unit turns from seconds to milliseconds.
var magnitude = big.NewRat(1e11, 1)

// parseInstant reads ISO 8601 or a number since 1970, seconds or milliseconds as the
// encoding says. Nothing may be finer than a millisecond.
func parseInstant(s string, e schemas.Encoding) (time.Time, error) {
	var t time.Time
	if _, err := parseDecimal(s); err == nil {
		ms, ok := new(big.Rat).SetString(s)
		if !ok {
			return t, fmt.Errorf("%q is not a time", clip(s))
		}
		if e == schemas.EpochSecond || e != schemas.EpochMilli && new(big.Rat).Abs(ms).Cmp(magnitude) < 0 {
			ms.Mul(ms, big.NewRat(1000, 1))
		}
		switch {
		case !ms.IsInt():
			return t, fmt.Errorf("%s is finer than a millisecond", clip(s))
		case !ms.Num().IsInt64() || ms.Num().Int64() < firstMilli || ms.Num().Int64() > lastMilli:
			return t, fmt.Errorf("%s is not a time within the years 1 and 9999", clip(s))
		}
		return time.UnixMilli(ms.Num().Int64()).UTC(), nil
	}
	for _, form := range []string{"2006-01-02T15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999Z07:00"} {
		parsed, err := time.Parse(form, s)
		if err != nil {
			continue
		}
		t = parsed.UTC()
		switch {
		case t.Nanosecond()%int(time.Millisecond) != 0:
			return t, fmt.Errorf("%s is finer than a millisecond", clip(s))
		case t.UnixMilli() < firstMilli || t.UnixMilli() > lastMilli:
			return t, fmt.Errorf("%s is not a time within the years 1 and 9999", clip(s))
		}
		return t, nil
	}
	return t, fmt.Errorf("%q is not a time; write 2026-11-30T16:12:02.123Z, or seconds or milliseconds since 1970", clip(s))
}

// firstMilli is the first millisecond of the year 1.
var firstMilli = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()

// encodeInstant writes a time of whole milliseconds; seconds get a fraction if they need one.
func encodeInstant(t time.Time, e schemas.Encoding) types.AttributeValue {
	if e == schemas.EpochSecond && t.UnixMilli()%1000 != 0 {
		return fixed(t.UnixMilli(), 3)
	}
	return encodeTime(t, e)
}

// finish completes the item: event time, keys, expiry.
func (b *itemBuilder) finish() (Item, error) {
	b.eventFromKey()
	if path := b.m.event.Attribute; path != "" && !b.event.IsZero() {
		// In a map that was taken as a whole it is there already.
		if lookUp(b.item, path) == nil {
			if err := setPath(b.item, strings.Split(path, "."), encodeInstant(b.event, b.m.event.Encoding)); err != nil {
				return nil, err
			}
		}
	}
	for _, key := range []schemas.Key{b.m.c.Keys.Partition, b.m.c.Keys.Sort} {
		if key.Attribute == "" {
			continue
		}
		if err := b.key(key); err != nil {
			return nil, err
		}
	}
	for _, col := range b.m.c.Columns {
		if col.Nullable || col.Attribute == "" || col.Attribute == b.m.c.TTL {
			continue
		}
		if v := lookUp(b.item, col.Attribute); v == nil {
			return nil, fmt.Errorf("no value for %s", col.Attribute)
		}
	}
	return b.item, b.m.expire(b.item, b.event)
}

// eventFromKey reads the event time out of a key that the file has as it is.
func (b *itemBuilder) eventFromKey() {
	if b.event.IsZero() {
		b.event = b.m.eventOf(b.item)
	}
}

// eventOf is the event time that an item tells; zero if it tells none.
func (m *Mapper) eventOf(item Item) time.Time {
	if m.event.Attribute != "" {
		if s, ok := plainText(lookUp(item, m.event.Attribute)); ok {
			t, err := parseInstant(s, m.event.Encoding)
			if err == nil {
				return t
			}
		}
	}
	for _, key := range []schemas.Key{m.c.Keys.Partition, m.c.Keys.Sort} {
		s, ok := item[key.Attribute].(*types.AttributeValueMemberS)
		if !ok {
			continue
		}
		values, _ := key.Pattern.Match(s.Value)
		for _, capture := range []string{schemas.CaptureEventTime, m.event.Key} {
			if t, err := parseInstant(values[capture], ""); err == nil {
				return t
			}
		}
	}
	return time.Time{}
}

// key composes a key attribute, or checks one that the file has as it is.
func (b *itemBuilder) key(key schemas.Key) error {
	if v, given := b.item[key.Attribute]; given {
		if err := checkKey(key, v); err != nil {
			return err
		}
		s, _ := plainText(v)
		if _, ok := key.Pattern.Match(s); !ok && !key.Pattern.IsZero() {
			return fmt.Errorf("key %s: %q is not of the form %s", key.Attribute, clip(s), key.Pattern)
		}
		return nil
	}
	if key.Pattern.IsZero() {
		return fmt.Errorf("no value for %s, a key", key.Attribute)
	}
	values := make(map[string]string, 2)
	for _, capture := range key.Pattern.Captures() {
		values[capture] = b.captures[capture]
		if values[capture] == "" && !b.event.IsZero() {
			switch {
			case b.m.isEvent(capture):
				values[capture] = b.event.Format(eventTimeForm)
			case capture == schemas.CaptureMonth:
				values[capture] = b.event.Format(monthForm)
			}
		}
		if values[capture] == "" && !key.Pattern.Optional(capture) {
			return fmt.Errorf("no value for %s, which the key %s is made of", capture, key.Attribute)
		}
	}
	s, err := key.Pattern.Format(values)
	if err != nil {
		return err
	}
	b.item[key.Attribute] = text(s)
	return nil
}

// checkKey refuses what DynamoDB would refuse as a key.
func checkKey(key schemas.Key, v types.AttributeValue) error {
	switch v := v.(type) {
	case nil:
		return fmt.Errorf("no value for %s, a key", key.Attribute)
	case *types.AttributeValueMemberS:
		if key.Type == "S" && v.Value != "" {
			return nil
		}
	case *types.AttributeValueMemberN:
		if key.Type == "N" {
			return nil
		}
	}
	return fmt.Errorf("key %s: %s is no key of type %s", key.Attribute, kindOf(v), key.Type)
}

// finishExported completes an item that was exported: it stays as it is but for its expiry.
func (m *Mapper) finishExported(item Item) (Item, error) {
	for _, key := range []schemas.Key{m.c.Keys.Partition, m.c.Keys.Sort} {
		if key.Attribute == "" {
			continue
		}
		if err := checkKey(key, item[key.Attribute]); err != nil {
			return nil, err
		}
	}
	return item, m.expire(item, m.eventOf(item))
}

// expire says when the item expires.
func (m *Mapper) expire(item Item, event time.Time) error {
	_, given := item[m.c.TTL]
	switch {
	case m.c.TTL == "":
	case m.ttl != nil:
		item[m.c.TTL] = m.ttl
	case given:
	case event.IsZero():
		return errors.New("no event time to count the retention from")
	default:
		item[m.c.TTL] = number(event.Add(m.c.Retention).Unix())
	}
	return nil
}
