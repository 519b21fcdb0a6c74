package testenv

import (
	"slices"
	"strings"
	"time"
)

const (
	iteratorLife     = 15 * time.Minute
	maxShardsPage    = 100
	maxStreamsPage   = 100
	maxRecordsPage   = 1000
	maxRecordsBytes  = 1 << 20
	iteratorSeparate = "|1|" // between an iterator's stream and the rest, as the service writes it
)

func (c *call) listStreams() ([]byte, error) {
	limit, err := c.pageLimit(maxStreamsPage)
	if err != nil {
		return nil, err
	}
	name, start := c.req.str("TableName"), c.req.str("ExclusiveStartStreamArn")
	c.db.commit.RLock()
	defer c.db.commit.RUnlock()
	var list [][]byte
	var o jsonObject
	skip := start != ""
	last := ""
	for _, s := range c.db.order {
		if skip {
			skip = s.arn != start
			continue
		}
		if name != "" && s.table.name != name {
			continue
		}
		if len(list) == limit {
			o.str("LastEvaluatedStreamArn", last)
			break
		}
		var e jsonObject
		e.str("StreamArn", s.arn)
		e.str("StreamLabel", s.label)
		e.str("TableName", s.table.name)
		list = append(list, e.done())
		last = s.arn
	}
	o.raw("Streams", appendArray(nil, list))
	return o.done(), nil
}

func (c *call) pageLimit(most int) (int, error) {
	n, ok := c.req.integer("Limit")
	if !ok {
		return most, nil
	}
	if n < 1 {
		return 0, invalid("Limit must be at least 1")
	}
	return min(n, most), nil
}

// stream returns the stream a request names; the caller holds commit.
func (c *call) stream(arn string) (*stream, error) {
	if s := c.db.streams[arn]; s != nil {
		return s, nil
	}
	return nil, notFound("Requested resource not found: Stream: " + arn + " not found")
}

func (c *call) describeStream() ([]byte, error) {
	limit, err := c.pageLimit(maxShardsPage)
	if err != nil {
		return nil, err
	}
	c.db.commit.RLock()
	defer c.db.commit.RUnlock()
	s, err := c.stream(c.req.str("StreamArn"))
	if err != nil {
		return nil, err
	}
	parent := ""
	if f := c.req.get("ShardFilter"); !f.absent() {
		if parent = f.str("ShardId"); f.str("Type") != "CHILD_SHARDS" || parent == "" {
			return nil, invalid("ShardFilter needs Type CHILD_SHARDS and a ShardId")
		}
	}
	var d jsonObject
	var list [][]byte
	start := c.req.str("ExclusiveStartShardId")
	skip, last := start != "", ""
	for _, h := range s.listing() {
		if skip {
			skip = h.id != start
			continue
		}
		if h.gone || parent != "" && h.parent != parent || s.hides(h, c.now) {
			continue
		}
		if len(list) == limit {
			d.str("LastEvaluatedShardId", last)
			break
		}
		list = append(list, h.json())
		last = h.id
	}
	if skip {
		return nil, notFound("Requested resource not found: Shard: " + start + " in Stream: " + s.arn + " not found")
	}
	d.raw("CreationRequestDateTime", appendTime(nil, s.created))
	d.raw("KeySchema", s.table.keys.json())
	d.raw("Shards", appendArray(nil, list))
	d.str("StreamArn", s.arn)
	d.str("StreamLabel", s.label)
	if s.disabled.IsZero() {
		d.str("StreamStatus", "ENABLED")
	} else {
		d.str("StreamStatus", "DISABLED")
	}
	d.str("StreamViewType", s.view)
	d.str("TableName", s.table.name)
	var o jsonObject
	o.raw("StreamDescription", d.done())
	return o.done(), nil
}

func (h *shard) json() []byte {
	var o, r jsonObject
	if !h.closed.IsZero() {
		r.str("EndingSequenceNumber", string(appendSequence(nil, h.end)))
	}
	r.str("StartingSequenceNumber", string(appendSequence(nil, h.start)))
	if h.parent != "" {
		o.str("ParentShardId", h.parent)
	}
	o.raw("SequenceNumberRange", r.done())
	o.str("ShardId", h.id)
	return o.done()
}

func (c *call) getShardIterator() ([]byte, error) {
	c.db.commit.RLock()
	defer c.db.commit.RUnlock()
	s, err := c.stream(c.req.str("StreamArn"))
	if err != nil {
		return nil, err
	}
	id := c.req.str("ShardId")
	i := slices.IndexFunc(s.shards, func(h *shard) bool { return h.id == id && !h.gone })
	if i < 0 {
		return nil, notFound("Requested resource not found: Shard: " + id + " in Stream: " + s.arn + " not found")
	}
	h := s.shards[i]
	it := iterator{stream: s.id, shard: h.number, issued: c.now.UnixMilli()}
	text := c.req.str("SequenceNumber")
	switch kind := c.req.str("ShardIteratorType"); kind {
	case "TRIM_HORIZON", "LATEST":
		if text != "" {
			return nil, invalid("SequenceNumber must not be given with the iterator type " + kind)
		}
		it.horizon = kind == "TRIM_HORIZON"
		if kind == "LATEST" {
			it.after = s.sequence
		}
	case "AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER":
		n, ok := parseSequence(text)
		if !ok || n < h.start || h.end != 0 && n > h.end {
			return nil, invalid("Invalid SequenceNumber: " + text + " is not in shard " + id)
		}
		if n <= h.trimmed {
			return nil, trimmed(text, id)
		}
		if it.after = n; kind == "AT_SEQUENCE_NUMBER" {
			it.after--
		}
	default:
		return nil, invalid("ShardIteratorType has an unknown value: " + kind)
	}
	var o jsonObject
	o.str("ShardIterator", s.arn+iteratorSeparate+it.String())
	return o.done(), nil
}

func trimmed(sequence, shard string) error {
	return failure("TrimmedDataAccessException", "The operation attempted to read past the oldest stream record in a shard: "+
		sequence+" of "+shard+" has been trimmed")
}

func (c *call) getRecords() ([]byte, error) {
	limit, err := c.pageLimit(maxRecordsPage)
	if err != nil {
		return nil, err
	}
	arn, text, _ := strings.Cut(c.req.str("ShardIterator"), iteratorSeparate)
	it, ok := parseIterator(text)
	if !ok {
		return nil, invalid("Invalid ShardIterator")
	}
	c.db.commit.RLock()
	defer c.db.commit.RUnlock()
	s, err := c.stream(arn)
	if err != nil {
		return nil, err
	}
	if s.id != it.stream || int(it.shard) >= len(s.shards) {
		return nil, invalid("Invalid ShardIterator")
	}
	if c.now.UnixMilli()-it.issued > iteratorLife.Milliseconds() {
		return nil, failure("ExpiredIteratorException", "Iterator expired. The iterator was created at time "+
			time.UnixMilli(it.issued).UTC().Format(time.RFC3339)+" while right now it is "+c.now.UTC().Format(time.RFC3339))
	}
	h := s.shards[it.shard]
	if h.gone {
		return nil, notFound("Requested resource not found: Shard: " + h.id + " in Stream: " + s.arn + " not found")
	}
	if it.horizon {
		it.after = h.trimmed
	} else if it.after < h.trimmed {
		return nil, trimmed(string(appendSequence(nil, it.after)), h.id)
	}
	var page [][]byte
	drained := false
	if limit = min(limit, s.pageSize(limit)); limit > 0 {
		page, drained, err = s.page(h, &it, limit)
	}
	if err != nil {
		return nil, err
	}
	var o jsonObject
	if !drained || h.closed.IsZero() {
		it.issued, it.horizon = c.now.UnixMilli(), it.horizon && len(page) == 0
		o.str("NextShardIterator", s.arn+iteratorSeparate+it.String())
	}
	n := 2
	for _, r := range page {
		n += len(r) + 1
	}
	o.b = slices.Grow(o.b, n+32)
	o.name("Records")
	o.b = appendArray(o.b, page)
	return o.done(), nil
}

// page reads records behind it and moves it; drained says that none is left.
func (s *stream) page(h *shard, it *iterator, limit int) (page [][]byte, drained bool, err error) {
	size := 0
	drained = true
	from, to := s.recordKey(h, it.after+1), s.recordKey(h, 1<<64-1)
	err = s.db.store.scan(from, to, false, func(key string, v []byte) bool {
		_, n, text := openRecord(v)
		if len(page) == limit || len(page) > 0 && size+n > maxRecordsBytes {
			drained = false
			return false
		}
		size += n
		it.after = sequenceOf(key)
		page = append(page, text)
		return true
	})
	return page, drained, err
}
