package columnar

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
	"telemetrylake/schemas"
)

// A source is the record that rows are made of, with what its cells have in common.
type source struct {
	record    *pipeline.Record
	item      map[string]types.AttributeValue // the new image, or the keys of a removal
	hash      string
	partition match
	sort      match
	refusal   *misfit // why the record is in quarantine
	err       error   // the record cannot be written down at all
	text      []byte  // scratch
}

// A match is what a key attribute says by its pattern.
type match struct {
	captures map[string]string
	misfit   *misfit
}

func (s *source) set(w *window, r *pipeline.Record) {
	s.record, s.item, s.hash, s.refusal, s.err = r, r.New, w.hash, nil, nil
	if r.Op == types.OperationTypeRemove {
		s.item = r.Keys
	}
	s.partition = matchKey(w.contract.Keys.Partition, r.Keys, w.matches)
	s.sort = matchKey(w.contract.Keys.Sort, r.Keys, nil)
}

// keyMisfit says whether the record's key is one the contract knows.
func (s *source) keyMisfit() *misfit {
	if s.partition.misfit != nil {
		return s.partition.misfit
	}
	return s.sort.misfit
}

func matchKey(k schemas.Key, keys map[string]types.AttributeValue, known map[string]match) match {
	if k.Attribute == "" || k.Pattern.IsZero() {
		return match{}
	}
	v, ok := keys[k.Attribute].(*types.AttributeValueMemberS)
	if !ok {
		return match{misfit: misfitf(ReasonKey, "key attribute %s is not a text", k.Attribute)}
	}
	if m, ok := known[v.Value]; ok {
		return m
	}
	captures, ok := k.Pattern.Match(v.Value)
	m := match{captures: captures}
	if !ok {
		m = match{misfit: misfitf(ReasonKey, "key attribute %s, %q, is not of the form %s", k.Attribute, clip(v.Value), k.Pattern)}
	}
	if known != nil {
		known[v.Value] = m
	}
	return m
}

// A cell appends one column's value of a record, exactly one, also when it does not fit.
type cell func(*source) *misfit

func newTableRows(mem memory.Allocator, c *schemas.Contract, role schemas.Role) (*tableRows, error) {
	table := c.LakeTable(role)
	schema, err := ArrowSchema(table)
	if err != nil {
		return nil, err
	}
	t := &tableRows{
		table:   table,
		order:   Order(c, table),
		builder: array.NewRecordBuilder(mem, schema),
		cells:   make([]cell, len(table.Columns)),
	}
	for i, col := range table.Columns {
		if t.cells[i], err = t.newCell(c, col, t.builder.Field(i)); err != nil {
			t.builder.Release()
			return nil, fmt.Errorf("read column %s of table %s: %w", col.Name, table.Name, err)
		}
	}
	return t, nil
}

func (t *tableRows) newCell(c *schemas.Contract, col schemas.Column, b array.Builder) (cell, error) {
	if col.System != "" {
		return t.systemCell(c, col, b)
	}
	appendValue, err := t.appendFunc(col, b)
	if err != nil {
		return nil, err
	}
	value, err := valueOf(c, col)
	if err != nil {
		return nil, err
	}
	tombstone := t.table.Role == schemas.Tombstones
	return func(s *source) *misfit {
		v, m := value(s)
		switch {
		case m != nil:
			appendValue(nil)
		case isNull(v):
			appendValue(nil)
			if !col.Nullable {
				m = misfitf(ReasonMissing, "no value, and the column is not nullable")
			}
		default:
			m = appendValue(v)
		}
		if tombstone {
			// A deletion counts whatever its key looks like; item_keys has the whole of it.
			return nil
		}
		return m
	}, nil
}

// appendFunc is newAppendFunc, except that the column that places a row is remembered.
func (t *tableRows) appendFunc(col schemas.Column, b array.Builder) (appendFunc, error) {
	if col.Name != t.table.TimeColumn {
		return newAppendFunc(col, b)
	}
	read, err := readTimestamp(col.Encoding)
	if err != nil {
		return nil, err
	}
	return scalar(b.(*array.TimestampBuilder), func(v types.AttributeValue) (arrow.Timestamp, *misfit) {
		at, m := read(v)
		t.time = at
		return at, m
	}), nil
}

// valueOf finds a column's value in a record; nil if there is none.
func valueOf(c *schemas.Contract, col schemas.Column) (func(*source) (types.AttributeValue, *misfit), error) {
	if col.Key != "" {
		return captureOf(c, col)
	}
	path := strings.Split(col.Attribute, ".")
	return func(s *source) (types.AttributeValue, *misfit) {
		item := s.item
		for i, name := range path[:len(path)-1] {
			v := item[name]
			if isNull(v) {
				return nil, nil
			}
			m, ok := v.(*types.AttributeValueMemberM)
			if !ok {
				return nil, wrongType(v, "M").in("attribute " + strings.Join(path[:i+1], "."))
			}
			item = m.Value
		}
		return item[path[len(path)-1]], nil
	}, nil
}

// captureOf gives a capture the type that its column reads: a key's text has no other.
func captureOf(c *schemas.Contract, col schemas.Column) (func(*source) (types.AttributeValue, *misfit), error) {
	key, ok := c.Keys.Key(col.Key)
	if !ok {
		return nil, fmt.Errorf("no key pattern has a capture {%s}", col.Key)
	}
	// Read before the next record is: one value serves all.
	text, num := new(types.AttributeValueMemberS), new(types.AttributeValueMemberN)
	typed := func(s string) types.AttributeValue { text.Value = s; return text }
	switch col.ItemType() {
	case "S":
	case "N":
		typed = func(s string) types.AttributeValue { num.Value = s; return num }
	default:
		return nil, fmt.Errorf("capture {%s} is a text and cannot be %s", col.Key, col.Type)
	}
	inPartition := key.Attribute == c.Keys.Partition.Attribute
	return func(s *source) (types.AttributeValue, *misfit) {
		m := s.sort
		if inPartition {
			m = s.partition
		}
		if m.misfit != nil {
			return nil, m.misfit
		}
		if captured, ok := m.captures[col.Key]; ok {
			return typed(captured), nil
		}
		return nil, nil
	}, nil
}

func (t *tableRows) systemCell(c *schemas.Contract, col schemas.Column, b array.Builder) (cell, error) {
	if col.System == schemas.StreamCreatedAt {
		return t.createdCell(col, b.(*array.TimestampBuilder)), nil
	}
	var text func(s *source) (string, error)
	switch col.System {
	case schemas.StreamShard:
		text = func(s *source) (string, error) { return string(s.record.Shard), nil }
	case schemas.StreamSeq:
		text = func(s *source) (string, error) { return string(s.record.Seq), nil }
	case schemas.DeleteCause:
		text = func(s *source) (string, error) { return deleteCause(c, s.record), nil }
	case schemas.ItemKeys:
		text = func(s *source) (string, error) { return s.itemJSON(s.record.Keys) }
	case schemas.ItemJSON:
		text = func(s *source) (string, error) {
			if s.record.New == nil {
				return "", nil
			}
			return s.itemJSON(s.record.New)
		}
	case schemas.EventName:
		text = func(s *source) (string, error) { return string(s.record.Op), nil }
	case schemas.Reason:
		text = func(s *source) (string, error) { return s.refusal.reason, nil }
	case schemas.Detail:
		text = func(s *source) (string, error) { return s.refusal.detail, nil }
	case schemas.ContractHash:
		text = func(s *source) (string, error) { return s.hash, nil }
	default:
		return nil, fmt.Errorf("system column %q is unknown", col.System)
	}
	builder := b.(*array.StringBuilder)
	return func(s *source) *misfit {
		v, err := text(s)
		switch {
		case err != nil:
			s.err = err
			builder.AppendNull()
		case v == "" && col.Nullable:
			builder.AppendNull()
		default:
			builder.Append(v)
		}
		return nil
	}, nil
}

// deleteCause tells who removed an item. Only the stream says so, by the identity on its record,
// and a removal without one is a user's. Two things cast doubt on that: an identity which is not
// that of TTL, and an item that had expired, where the record shows it. Some stand-ins for DynamoDB
// remove such items without saying who did.
func deleteCause(c *schemas.Contract, r *pipeline.Record) string {
	switch {
	case r.Expired:
		return schemas.CauseTTL
	case r.Shard == "" || r.Foreign || hadExpired(r, c.TTL):
		return schemas.CauseUnknown
	}
	return schemas.CauseUser
}

// hadExpired tells whether the item that r removed was past its time to live. Without an old
// image nobody knows, and without TTL none ever is.
func hadExpired(r *pipeline.Record, ttl string) bool {
	v, ok := r.Old[ttl].(*types.AttributeValueMemberN)
	if !ok {
		return false
	}
	at, err := strconv.ParseFloat(v.Value, 64) // of seconds: exact for any that TTL heeds
	return err == nil && at <= float64(r.Created.Unix())
}

// createdCell writes the record's creation, which nobody knows of a row that was read from
// the table itself.
func (t *tableRows) createdCell(col schemas.Column, b *array.TimestampBuilder) cell {
	places := col.Name == t.table.TimeColumn
	return func(s *source) *misfit {
		if s.record.Created.IsZero() {
			b.AppendNull()
			if !col.Nullable {
				s.err = fmt.Errorf("it has no creation time, which table %s needs", t.table.Name)
			}
			return nil
		}
		at := arrow.Timestamp(s.record.Created.UnixMilli())
		b.Append(at)
		if places {
			t.time = at
		}
		return nil
	}
}

func (s *source) itemJSON(item map[string]types.AttributeValue) (string, error) {
	var err error
	s.text, err = appendItemJSON(s.text[:0], item)
	return string(s.text), err
}
