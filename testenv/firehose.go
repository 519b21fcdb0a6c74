package testenv

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// firehose is the embedded Amazon Data Firehose: direct put to S3.
//
//	what it does                                            source
//	record data at most 1,024,000 bytes, may be empty       API model, shape Data (min 0, max 1024000)
//	1 to 500 records and 4 MiB a call, raw bytes            API model, PutRecordBatchRequestEntryList; Quota page
//	                                                        ("4 MiB per call, whichever is smaller")
//	partial failure: 200, FailedPutCount, entries in order  PutRecordBatch's documentation
//	records joined without a delimiter                      "Understand data delivery": "By default, Firehose
//	                                                        concatenates data without any delimiters"
//	SizeInMBs 1..128, default 5; IntervalInSeconds 0..900,  API model, BufferingHints; the first met delivers
//	default 300; set both or neither
//	<prefix><stream>-<version>-<time>-<uuid><extension>,    "Amazon S3 object names"; FileExtension of the API model
//	UTC, by the arrival of the object's oldest record
//	yyyy/MM/dd/HH/ after a prefix without !{timestamp:..}   "Custom prefixes for Amazon S3 objects"
//	!{timestamp:..}, !{firehose:random-string} in prefixes  same page
//	S3 failing: kept and tried again, lost after 24 hours   "Data delivery failure handling"
//	delivery at least once (FirehoseBehaviour.Copies)       "Understand data delivery", duplication
//
// What it does not do: compression, format conversion, processors (Lambda,
// delimiters, de-aggregation), dynamic partitioning, source backup, time zones
// other than UTC, destinations other than S3, sources other than direct put,
// throttling. A stream may be created with such settings of its S3 destination
// and DescribeDeliveryStream reports them as given, so that a client's checks can
// be tested; a put to it fails and says which setting is in the way.
//
// A buffer that one of its conditions closes is delivered by the next tick, in
// the order of closing. There is no goroutine and no timer.
type firehose struct {
	clock   Clock
	store   *s3Server
	kv      store // of a durable Env, else nil
	ids     *ids
	b       FirehoseBehaviour
	region  string
	account string

	// due is the earliest time, in nanoseconds since 1970, at which tick has
	// anything to do. It lets every request of every service tick at no cost.
	due atomic.Int64

	mu      sync.Mutex
	streams map[string]*deliveryStream
	nextID  uint32 // last id of a durable delivery stream
}

// FirehoseBehaviour is what Firehose is free to do and a test wants to choose. Each
// function is called with the service's lock held: it must not call the Env.
type FirehoseBehaviour struct {
	// Close is asked after each record, with the records and bytes of the open
	// buffer; true closes it. The buffering hints hold as well. Nil: hints only.
	Close func(records, bytes int) bool
	// Copies says how often an accepted record is delivered beyond the first
	// time; nil: never. Every second copy goes to a later object than its record,
	// the others follow it in the same one.
	Copies func() int
	// Fail says whether an entry of a PutRecordBatch fails with
	// ServiceUnavailableException and is not stored; nil: none does.
	Fail func() bool
	// Deliver is asked before an object is written to S3; with an error the buffer
	// is kept and tried again at the next tick. Nil: nothing is in the way.
	Deliver func(bucket, key string) error
}

// FirehoseStats counts what a delivery stream has done since it was created.
// Copies of FirehoseBehaviour count in Bytes, Pending and Lost, not in Records.
type FirehoseStats struct {
	Records int // accepted
	Bytes   int // delivered to S3
	Objects int // delivered to S3
	Pending int // records that wait for delivery
	Lost    int // records given up because S3 failed for 24 hours
}

const (
	maxFirehoseRecord  = 1_024_000 // bytes before base64
	maxFirehoseRecords = 500
	maxFirehoseCall    = 4 << 20 // raw bytes of all records
	firehoseRetention  = 24 * time.Hour
	never              = math.MaxInt64
)

// buffer is what becomes one object.
type buffer struct {
	data    bytes.Buffer
	records int
	oldest  time.Time // arrival of its first record
	key     string    // chosen at the first attempt to deliver, kept for the next ones

	number    uint64 // among the stream's
	delivered bool   // and only not forgotten yet
}

type deliveryStream struct {
	streamSettings
	open   *buffer
	closed []*buffer
	later  [][]byte // copies that go to a later object than their records
	copies int      // made so far; every second one is for later
	stats  FirehoseStats
	retry  time.Time // no delivery before, after the disk was full

	nextBuffer uint64
	durable    bool
	id         uint32  // of a durable one
	writes     []write // what is to be stored, of a durable one
}

// newFirehose returns a Firehose that keeps its streams in kv, nil for memory.
func newFirehose(opt Options, store *s3Server, kv store, ids *ids) *firehose {
	f := &firehose{
		clock: opt.Clock, store: store, kv: kv, ids: ids, b: opt.Firehose, region: opt.Region, account: opt.Account,
		streams: map[string]*deliveryStream{},
	}
	f.due.Store(never)
	return f
}

// FlushFirehose delivers everything that waits, whatever the buffering hints say.
// What S3 refuses keeps waiting.
func (e *Env) FlushFirehose() { e.firehose.flush() }

// FirehoseStats returns the counters of every delivery stream by its name.
func (e *Env) FirehoseStats() map[string]FirehoseStats { return e.firehose.statistics() }

func (f *firehose) statistics() map[string]FirehoseStats {
	f.mu.Lock()
	defer f.mu.Unlock()
	stats := make(map[string]FirehoseStats, len(f.streams))
	for name, ds := range f.streams {
		st := ds.stats
		st.Pending = len(ds.later)
		for _, b := range ds.closed {
			st.Pending += b.records
		}
		if ds.open != nil {
			st.Pending += ds.open.records
		}
		stats[name] = st
	}
	return stats
}

// firehoseError is an error as the service reports it.
type firehoseError struct{ kind, message string }

func (e *firehoseError) Error() string { return e.kind + ": " + e.message }

func invalidArgument(format string, args ...any) error {
	return &firehoseError{"InvalidArgumentException", fmt.Sprintf(format, args...)}
}

func (f *firehose) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := f.ids.uuid()
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	w.Header().Set("x-amzn-RequestId", id)
	out, err := f.answer(r)
	status := http.StatusOK
	if err != nil {
		e, ok := errors.AsType[*firehoseError](err)
		status = http.StatusBadRequest
		if !ok {
			e, status = &firehoseError{"InternalFailure", err.Error()}, http.StatusInternalServerError
		}
		w.Header().Set("x-amzn-ErrorType", e.kind)
		out = map[string]string{"__type": e.kind, "message": e.message}
	}
	body, err := json.Marshal(out)
	if err != nil {
		status = http.StatusInternalServerError
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that went away is no fault of the service's
}

func (f *firehose) answer(r *http.Request) (any, error) {
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	switch operation {
	case "CreateDeliveryStream":
		return decodeFor(r, f.create)
	case "DescribeDeliveryStream":
		return decodeFor(r, f.describe)
	case "ListDeliveryStreams":
		return decodeFor(r, f.list)
	case "DeleteDeliveryStream":
		return decodeFor(r, f.delete)
	case "PutRecord":
		return decodeFor(r, f.putRecord)
	case "PutRecordBatch":
		return decodeFor(r, f.putRecordBatch)
	}
	return nil, &firehoseError{"UnknownOperationException", fmt.Sprintf("The embedded Firehose does not implement %q.", operation)}
}

// decodeFor decodes a request's body and gives it to an operation.
func decodeFor[In, Out any](r *http.Request, do func(In) (Out, error)) (any, error) {
	var in In
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, &firehoseError{"SerializationException", err.Error()}
	}
	return do(in)
}

type firehoseRecord struct{ Data []byte }

type putRecordIn struct {
	DeliveryStreamName string
	Record             *firehoseRecord
}

type putRecordOut struct {
	RecordId  string
	Encrypted bool
}

func (f *firehose) putRecord(in putRecordIn) (putRecordOut, error) {
	if in.Record == nil {
		return putRecordOut{}, violated("record", "not be null")
	}
	if len(in.Record.Data) > maxFirehoseRecord {
		return putRecordOut{}, violated("record.data", "have length less than or equal to %d", maxFirehoseRecord)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	ds, err := f.writable(in.DeliveryStreamName)
	if err != nil {
		return putRecordOut{}, err
	}
	undo := ds.keep()
	f.accept(ds, in.Record.Data)
	if err := f.commit(ds); err != nil {
		undo()
		f.schedule()
		return putRecordOut{}, err
	}
	return putRecordOut{RecordId: f.ids.hex(64)}, nil
}

type putRecordBatchIn struct {
	DeliveryStreamName string
	Records            []firehoseRecord
}

type putRecordBatchOut struct {
	FailedPutCount   int
	Encrypted        bool
	RequestResponses []putEntry
}

type putEntry struct {
	RecordId     string `json:",omitempty"`
	ErrorCode    string `json:",omitempty"`
	ErrorMessage string `json:",omitempty"`
}

func (f *firehose) putRecordBatch(in putRecordBatchIn) (putRecordBatchOut, error) {
	var out putRecordBatchOut
	if len(in.Records) < 1 {
		return out, violated("records", "have length greater than or equal to 1")
	}
	if len(in.Records) > maxFirehoseRecords {
		return out, violated("records", "have length less than or equal to %d", maxFirehoseRecords)
	}
	total := 0
	for i, r := range in.Records {
		if len(r.Data) > maxFirehoseRecord {
			return out, violated(fmt.Sprintf("records.%d.member.data", i+1), "have length less than or equal to %d", maxFirehoseRecord)
		}
		total += len(r.Data)
	}
	if total > maxFirehoseCall {
		return out, invalidArgument("Records size exceeds 4 MB limit")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	ds, err := f.writable(in.DeliveryStreamName)
	if err != nil {
		return out, err
	}
	undo := ds.keep()
	for _, r := range in.Records {
		if f.b.Fail != nil && f.b.Fail() {
			out.FailedPutCount++
			out.RequestResponses = append(out.RequestResponses, putEntry{
				ErrorCode: "ServiceUnavailableException", ErrorMessage: "Slow down."})
			continue
		}
		f.accept(ds, r.Data)
		out.RequestResponses = append(out.RequestResponses, putEntry{RecordId: f.ids.hex(64)})
	}
	if err := f.commit(ds); err != nil {
		undo()
		f.schedule()
		return out, err
	}
	return out, nil
}

// violated is how the service words a constraint of its model. It checks those
// before anything else and reports them under a name the model does not list.
func violated(at, must string, args ...any) error {
	return &firehoseError{"ValidationException",
		fmt.Sprintf("1 validation error detected: Value at '%s' failed to satisfy constraint: Member must %s", at, fmt.Sprintf(must, args...))}
}

// writable finds a stream and refuses one that would have to transform its data.
func (f *firehose) writable(name string) (*deliveryStream, error) {
	ds, err := f.find(name)
	if err != nil {
		return nil, err
	}
	if ds.transforms != "" {
		return nil, invalidArgument("The embedded Firehose only joins and delivers records; delivery stream %s has %s. Turn it off to put records here.", name, ds.transforms)
	}
	return ds, nil
}

// accept takes one record into the stream's buffers.
func (f *firehose) accept(ds *deliveryStream, data []byte) {
	now := f.clock.Now()
	ds.stats.Records++
	f.append(ds, data, now)
	if f.b.Copies != nil {
		for range f.b.Copies() {
			if ds.copies++; ds.copies%2 == 0 {
				ds.later = append(ds.later, data)
			} else if ds.open != nil {
				f.append(ds, data, now)
			} else { // the record closed its buffer
				last := ds.closed[len(ds.closed)-1]
				ds.add(last, data)
			}
		}
	}
	f.schedule()
}

func (f *firehose) append(ds *deliveryStream, data []byte, now time.Time) {
	if ds.open == nil {
		ds.openLater(now)
	}
	b := ds.open
	ds.add(b, data)
	if b.data.Len() >= ds.size || f.b.Close != nil && f.b.Close(b.records, b.data.Len()) {
		ds.close()
	}
}

// openLater opens a buffer with the copies that waited for a later object.
func (ds *deliveryStream) openLater(now time.Time) {
	ds.open = &buffer{oldest: now, number: ds.nextBuffer}
	ds.nextBuffer++
	ds.note(ds.open, false)
	for _, copied := range ds.later {
		ds.add(ds.open, copied)
	}
	ds.later = nil
}

func (ds *deliveryStream) close() {
	ds.note(ds.open, true)
	ds.closed = append(ds.closed, ds.open)
	ds.open = nil
}

// schedule sets due from what is buffered. The caller holds mu.
func (f *firehose) schedule() {
	due := int64(never)
	for _, ds := range f.streams {
		if len(ds.closed) > 0 || len(ds.later) > 0 && ds.open == nil {
			due = math.MinInt64
			break
		}
		if ds.open != nil {
			due = min(due, ds.open.oldest.Add(ds.interval).UnixNano())
		}
	}
	f.due.Store(due)
}

// inOrder visits the streams by name: a map's order would reach the ids drawn.
func (f *firehose) inOrder() []*deliveryStream {
	all := make([]*deliveryStream, 0, len(f.streams))
	for _, name := range slices.Sorted(maps.Keys(f.streams)) {
		all = append(all, f.streams[name])
	}
	return all
}

// tick delivers every buffer that is due at the clock's time.
func (f *firehose) tick() {
	now := f.clock.Now()
	if now.UnixNano() < f.due.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, ds := range f.inOrder() {
		if ds.open != nil && !now.Before(ds.open.oldest.Add(ds.interval)) {
			ds.close()
		}
		f.deliver(ds, now)
		if ds.open == nil && len(ds.later) > 0 {
			ds.openLater(now) // no record came to open the later object
		}
	}
	f.schedule()
}

func (f *firehose) flush() {
	now := f.clock.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, ds := range f.inOrder() {
		if ds.open != nil {
			ds.close()
		}
		if len(ds.later) > 0 {
			ds.openLater(now)
			ds.close()
		}
		ds.retry = time.Time{}
		f.deliver(ds, now)
	}
	f.schedule()
}

// deliver writes a stream's closed buffers to S3 and keeps those that S3 refuses.
func (f *firehose) deliver(ds *deliveryStream, now time.Time) {
	if now.Before(ds.retry) {
		return
	}
	var kept []*buffer
	for _, b := range ds.closed {
		err := f.deliverOne(ds, b)
		switch {
		case err == nil:
			continue
		case !b.delivered && now.Sub(b.oldest) >= firehoseRetention:
			lost := ds.stats.Lost
			ds.stats.Lost += b.records
			if f.forget(ds, b) == nil {
				continue
			}
			ds.stats.Lost = lost
		case isFull(err):
			// Writing megabytes in vain at every request helps nobody.
			ds.retry = now.Add(deliveryPause)
		}
		kept = append(kept, b)
	}
	ds.closed = kept
}

// deliveryPause is between two attempts to deliver to a full disk.
const deliveryPause = time.Second

func (f *firehose) deliverOne(ds *deliveryStream, b *buffer) error {
	if b.key == "" {
		b.key = ds.objectKey(b.oldest, f.ids)
		before := len(ds.writes)
		ds.note(b, true)
		if err := f.commit(ds); err != nil {
			b.key, ds.writes = "", ds.writes[:before]
			return err
		}
	}
	if !b.delivered {
		if f.b.Deliver != nil {
			if err := f.b.Deliver(ds.bucket, b.key); err != nil {
				return err
			}
		}
		if b.data.Len() > 0 { // records without data make no object
			if err := f.store.putBytes(ds.bucket, b.key, b.data.Bytes()); err != nil {
				return err
			}
		}
		ds.delivered(b)
	}
	return f.forget(ds, b)
}
