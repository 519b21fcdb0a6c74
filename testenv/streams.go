package testenv

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

const (
	streamRetention = 24 * time.Hour
	trimInterval    = time.Minute // of the clock, between two looks at the oldest records
)

// stream is one DynamoDB stream: a table that disables and enables its stream gets a
// new one, and the old one stays readable for 24 h. All fields that change are guarded by
// database.commit.
type stream struct {
	db         *database
	table      *table
	id         uint32
	arn, label string
	view       string
	created    time.Time
	disabled   time.Time // zero while enabled
	sequence   uint64    // the last number drawn
	shards     []*shard  // as created; a shard's number is its place and never changes
	live       []*shard  // those that are open
	looked     time.Time // when the oldest records were last looked at
}

// shard holds the records of the partition keys whose hash is in lo to hi, both inclusive.
type shard struct {
	number     uint32
	id, parent string
	lo, hi     uint64
	created    time.Time
	listed     time.Time // not in a listing before
	closed     time.Time // zero while open
	start, end uint64    // its sequence numbers; end is 0 while open
	trimmed    uint64    // the last number that was trimmed, 0: none
	gone       bool      // no longer listed
}

// openStream gives the table a new stream; the caller holds commit.
func (db *database) openStream(t *table, view string, now time.Time) {
	s := &stream{db: db, table: t, view: view, created: now, looked: now}
	at := now.UTC()
	for {
		s.label = at.Format("2006-01-02T15:04:05.000")
		s.arn = t.arn + "/stream/" + s.label
		if db.streams[s.arn] == nil {
			break
		}
		at = at.Add(time.Millisecond)
	}
	db.mu.Lock()
	db.nextID++
	s.id = db.nextID
	db.mu.Unlock()
	n := uint64(db.opt.StreamShards)
	for i := range n {
		lo, hi := segment(int(i), int(n))
		s.open("", lo, hi, now)
	}
	t.stream, t.latest = s, s
	db.streams[s.arn] = s
	db.order = append(db.order, s)
}

// dropStream forgets a stream, nil for none, that could not be stored; the caller holds
// commit.
func (db *database) dropStream(s *stream) {
	if s == nil {
		return
	}
	delete(db.streams, s.arn)
	db.order = slices.DeleteFunc(db.order, func(o *stream) bool { return o == s })
}

// open adds a shard.
func (s *stream) open(parent string, lo, hi uint64, now time.Time) {
	h := &shard{
		number:  uint32(len(s.shards)),
		id:      fmt.Sprintf("shardId-%020d-%s", now.UnixMilli(), s.db.ids.hex(8)),
		parent:  parent,
		lo:      lo,
		hi:      hi,
		created: now,
		start:   s.draw(),
	}
	if parent != "" {
		h.listed = now.Add(choose(&s.db.choosing, s.db.opt.Streams.ChildDelay))
	}
	s.shards, s.live = append(s.shards, h), append(s.live, h)
}

// close ends a shard; its last number is no record's.
func (s *stream) close(h *shard, now time.Time) {
	h.closed, h.end = now, s.draw()
	s.live = slices.DeleteFunc(s.live, func(o *shard) bool { return o == h })
}

// draw returns the next sequence number. Numbers rise and are not consecutive, as the
// service's are not.
func (s *stream) draw() uint64 {
	s.sequence += 1 + mix(s.db.opt.Seed^s.sequence)%8
	return s.sequence
}

// disable closes every shard for good.
func (s *stream) disable(now time.Time) {
	s.disabled = now
	for _, h := range slices.Clone(s.live) {
		s.close(h, now)
	}
}

// split closes a shard and opens two children that share its hashes.
func (s *stream) split(h *shard, now time.Time) error {
	if h.lo == h.hi {
		return fmt.Errorf("split shard %s: it holds one key and cannot be split", h.id)
	}
	s.close(h, now)
	mid := h.lo + (h.hi-h.lo)/2
	s.open(h.id, h.lo, mid, now)
	s.open(h.id, mid+1, h.hi, now)
	return nil
}

// tick rotates the shards that are old, trims and forgets what is past retention.
func (db *database) tick(now time.Time) {
	db.commit.RLock()
	due := now.Sub(db.forgot) >= trimInterval || slices.ContainsFunc(db.order, func(s *stream) bool { return s.due(now) })
	db.commit.RUnlock()
	if !due {
		return
	}
	db.commit.Lock()
	defer db.commit.Unlock()
	db.order = slices.DeleteFunc(db.order, func(s *stream) bool {
		if !s.due(now) {
			return false // another request was faster
		}
		retention := db.opt.StreamRetention
		old := retention > 0 && !s.disabled.IsZero() && now.Sub(s.disabled) > retention
		if old && db.store.apply(s.deletion()) == nil {
			delete(db.streams, s.arn)
			return true
		}
		undo := s.keep()
		if err := s.age(now); err != nil {
			undo() // everything stays until the next look
		}
		s.looked = now
		return false
	})
	if now.Sub(db.forgot) >= trimInterval {
		db.forgot = now
		_ = db.forgetTokens(now) // what stays is expired all the same, and looked for again
	}
}

func (s *stream) due(now time.Time) bool {
	return now.Sub(s.looked) >= trimInterval
}

// age does to the stream what is due at now, and stores it.
func (s *stream) age(now time.Time) error {
	shards, sequence := len(s.shards), s.sequence
	s.rotate(now)
	var writes []write
	var err error
	if retention := s.db.opt.StreamRetention; retention > 0 {
		writes, err = s.trim(now.Add(-retention))
	}
	if err != nil || len(writes) == 0 && len(s.shards) == shards && s.sequence == sequence {
		return err
	}
	return s.db.save(nil, s, writes...)
}

// deletion deletes all that the store holds of the stream.
func (s *stream) deletion() []write {
	return []write{
		{key: string(spaceKey(spaceStream, s.id))},
		deleteAll(string(spaceKey(spaceShard, s.id))),
		deleteAll(string(spaceKey(spaceRecord, s.id))),
	}
}

// rotate closes shards at the end of their life and opens one child for each.
func (s *stream) rotate(now time.Time) {
	if s.db.opt.ShardLife < 0 || !s.disabled.IsZero() {
		return
	}
	for _, h := range slices.Clone(s.live) {
		if now.Sub(h.created) >= s.life(h) {
			s.close(h, now)
			s.open(h.id, h.lo, h.hi, now)
		}
	}
}

// life spreads the shards' ends over a quarter of their life, as they are in the field.
func (s *stream) life(h *shard) time.Duration {
	life := s.db.opt.ShardLife
	return life - time.Duration(mix(s.db.opt.Seed^uint64(h.number))%1024)*(life/4096)
}

// trim returns what removes the records made before cutoff, and drops the shards that ended
// before it from the listing.
func (s *stream) trim(cutoff time.Time) ([]write, error) {
	var ws []write
	for _, h := range s.shards {
		if h.gone {
			continue
		}
		last, err := s.lastBefore(h, cutoff)
		if err != nil {
			return nil, err
		}
		if last > h.trimmed {
			ws = append(ws, write{key: s.recordKey(h, h.trimmed+1), to: s.recordKey(h, last+1)})
			h.trimmed = last
		}
		if !h.closed.IsZero() && h.closed.Before(cutoff) {
			h.gone = true
			ws = append(ws, write{key: s.shardKey(h)})
		}
	}
	return ws, nil
}

// lastBefore returns the number of the shard's last record made before cutoff, 0 when there
// is none. Records of a shard are in the order of their making, so a few looks do.
func (s *stream) lastBefore(h *shard, cutoff time.Time) (uint64, error) {
	// The first record at or after a number; young says that it stays.
	young := func(number uint64) (bool, error) {
		kept := true
		err := s.db.store.scan(s.recordKey(h, number), s.recordKey(h, math.MaxUint64), false, func(_ string, v []byte) bool {
			created, _, _ := openRecord(v)
			kept = !created.Before(cutoff)
			return false
		})
		return kept, err
	}
	lo, hi := h.trimmed+1, s.sequence+1
	if kept, err := young(lo); err != nil || kept {
		return 0, err
	}
	for lo+1 < hi { // the record at lo goes, the one at hi stays
		mid := lo + (hi-lo)/2
		kept, err := young(mid)
		if err != nil {
			return 0, err
		}
		if kept {
			hi = mid
		} else {
			lo = mid
		}
	}
	return s.lastRecord(h, s.recordKey(h, hi))
}

// lastRecord returns the number of the shard's last record before a key, 0 for none.
func (s *stream) lastRecord(h *shard, to string) (last uint64, err error) {
	err = s.db.store.scan(s.recordKey(h, 0), to, true, func(key string, _ []byte) bool {
		last = sequenceOf(key)
		return false
	})
	return last, err
}

// recordKey returns the key of a record in the store.
func (s *stream) recordKey(h *shard, sequence uint64) string {
	b := spaceKey(spaceRecord, s.id)
	b = binary.BigEndian.AppendUint32(b, h.number)
	return string(binary.BigEndian.AppendUint64(b, sequence))
}

func sequenceOf(key string) uint64 { return binary.BigEndian.Uint64([]byte(key[len(key)-8:])) }

// record makes the stream record of a change and draws its sequence number; the caller
// holds commit.
func (s *stream) record(c *change, now time.Time) (write, error) {
	i := slices.IndexFunc(s.live, func(h *shard) bool { return h.lo <= c.hash && c.hash <= h.hi })
	if i < 0 {
		return write{}, fmt.Errorf("write record of %s: no open shard", s.arn)
	}
	h := s.live[i]
	it := c.newItem
	if it == nil {
		var err error
		if it, err = c.old(); err != nil {
			return write{}, err
		}
	}
	name := "MODIFY"
	switch {
	case c.before == nil:
		name = "INSERT"
	case c.after == nil:
		name = "REMOVE"
	}
	keys := s.table.keys.project(it)
	size := keys.size()
	sequence := s.draw()

	b := make([]byte, 0, 512+len(c.after))
	b = binary.AppendVarint(b, now.UnixMilli())
	sizeAt := len(b)
	b = append(b, 0, 0, 0, 0)
	b = append(b, `{"awsRegion":"`...)
	b = append(b, s.db.opt.Region...)
	b = append(b, `","dynamodb":{"ApproximateCreationDateTime":`...)
	b = strconv.AppendInt(b, now.Unix(), 10)
	b = append(b, `,"Keys":`...)
	b = appendItem(b, keys)
	if c.after != nil && (s.view == "NEW_IMAGE" || s.view == "NEW_AND_OLD_IMAGES") {
		n, text := openStored(c.after)
		size += n
		b = append(b, `,"NewImage":`...)
		b = append(b, text...)
	}
	if c.before != nil && (s.view == "OLD_IMAGE" || s.view == "NEW_AND_OLD_IMAGES") {
		n, text := openStored(c.before)
		size += n
		b = append(b, `,"OldImage":`...)
		b = append(b, text...)
	}
	b = append(b, `,"SequenceNumber":"`...)
	b = appendSequence(b, sequence)
	b = append(b, `","SizeBytes":`...)
	b = strconv.AppendInt(b, int64(size), 10)
	b = append(b, `,"StreamViewType":"`...)
	b = append(b, s.view...)
	b = append(b, `"},"eventID":"`...)
	b = appendEventID(b, s.db.opt.Seed^uint64(s.id)<<32, sequence)
	b = append(b, `","eventName":"`...)
	b = append(b, name...)
	b = append(b, `","eventSource":"aws:dynamodb","eventVersion":"1.1"`...)
	if c.service {
		b = append(b, `,"userIdentity":{"PrincipalId":"dynamodb.amazonaws.com","Type":"Service"}`...)
	}
	b = append(b, '}')
	binary.BigEndian.PutUint32(b[sizeAt:], uint32(size))
	return write{key: s.recordKey(h, sequence), value: b}, nil
}

// openRecord splits a stored record into when it was made, its size and its JSON.
func openRecord(b []byte) (created time.Time, size int, text []byte) {
	ms, n := binary.Varint(b)
	return time.UnixMilli(ms), int(binary.BigEndian.Uint32(b[n:])), b[n+4:]
}

// appendSequence appends a sequence number as the service writes it: 21 digits.
func appendSequence(b []byte, n uint64) []byte {
	return fmt.Appendf(b, "1%020d", n)
}

// parseSequence reads a sequence number of any length that appendSequence could have
// written.
func parseSequence(s string) (uint64, bool) {
	if len(s) != 21 || s[0] != '1' || !allDigits(s) {
		return 0, false
	}
	n, err := strconv.ParseUint(s[1:], 10, 64)
	return n, err == nil
}

func appendEventID(b []byte, seed, sequence uint64) []byte {
	var id [16]byte
	binary.BigEndian.PutUint64(id[:8], mix(seed^sequence))
	binary.BigEndian.PutUint64(id[8:], mix(seed+sequence+1))
	return hex.AppendEncode(b, id[:])
}

// iterator is the content of a shard iterator. It names a position and nothing else, so
// any of them can be used again.
type iterator struct {
	stream, shard uint32
	after         uint64 // the last number already read
	horizon       bool   // from the oldest record there is, wherever that is when it is used
	issued        int64  // epoch milliseconds
}

func (i iterator) String() string {
	b := binary.BigEndian.AppendUint32(nil, i.stream)
	b = binary.BigEndian.AppendUint32(b, i.shard)
	b = binary.BigEndian.AppendUint64(b, i.after)
	b = binary.BigEndian.AppendUint64(b, uint64(i.issued))
	if i.horizon {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	return base64.StdEncoding.EncodeToString(b)
}

func parseIterator(s string) (i iterator, ok bool) {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil || len(b) != 25 {
		return i, false
	}
	return iterator{
		stream:  binary.BigEndian.Uint32(b),
		shard:   binary.BigEndian.Uint32(b[4:]),
		after:   binary.BigEndian.Uint64(b[8:]),
		issued:  int64(binary.BigEndian.Uint64(b[16:])),
		horizon: b[24] == 1,
	}, true
}
