package testenv

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
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
//	                                                        ("4 MiB per call, whichever is smaller"), which does not
//	                                                        say whether before or after base64
//	partial failure: 200, FailedPutCount, entries in order, PutRecordBatch's documentation
//	ServiceUnavailableException or InternalFailure, which
//	may have been stored all the same (Fail, Doubt)
//	throttling: ServiceUnavailableException, status 500, of API model (no ThrottlingException; a fault of the
//	a call (Throttle, Quota) or an entry (Fail, Quota)      server); PutRecordBatch's documentation
//	quota of requests, records and bytes a second by region Quota page; how bursts count is not said: here the
//	                                                        quota of one second
//	records joined without a delimiter                      "Understand data delivery": "By default, Firehose
//	                                                        concatenates data without any delimiters"
//	SizeInMBs 1..128, default 5; IntervalInSeconds 0..900,  API model, BufferingHints; the first met delivers
//	default 300; set both or neither
//	hints are hints: any grouping (Close, Hints, Group)     same: "Firehose might choose to use different values";
//	                                                        "raises the buffer size dynamically" when it lags
//	any order within an object (Order)                      no order is documented
//	delivery at least once (Copies, Repeat)                 "Understand data delivery", duplication
//	up to 24 hours late (Hold)                              "The maximum data storage time ... is 24 hours"
//	S3 failing: kept and tried again, lost after 24 hours   "Data delivery failure handling"; the metrics that show
//	(Deliver), seen in FirehoseMetrics                      it: "Monitoring ... Using CloudWatch Metrics"
//	<prefix><stream>-<version>-<time>-<uuid><extension>,    "Amazon S3 object names"; FileExtension of the API model
//	UTC, by the arrival of the object's oldest record
//	yyyy/MM/dd/HH/ after a prefix without !{timestamp:..}   "Custom prefixes for Amazon S3 objects"
//	!{timestamp:..}, !{firehose:random-string} in prefixes, same page
//	at most 512 characters evaluated; an error prefix that
//	has expressions, or stands beside a prefix that has,
//	names !{firehose:error-output-type}, which no other may
//	CREATING at first (Creating), when puts fail            CreateDeliveryStream's documentation, which does not
//	                                                        name the error: here ResourceNotFoundException
//
//	what it does not                                        what it does instead
//	CompressionFormat, DataFormatConversion-, Processing-,  takes them at creation (hints and prefixes are checked),
//	DynamicPartitioningConfiguration, S3BackupMode,         reports them as given in DescribeDeliveryStream, so that
//	CustomTimeZone other than UTC                           a client's checks can be tested, and refuses each put with
//	                                                        InvalidArgumentException that names the setting
//	KinesisStreamAsSource                                   reports it; puts fail with InvalidArgumentException
//	anything under ErrorOutputPrefix                        nothing: with S3 as destination only the settings above
//	                                                        send anything there ("Custom prefixes", the values of
//	                                                        error-output-type)
//	EncryptionConfiguration, DeliveryStreamEncryption-      reports them; objects are plain
//	ConfigurationInput, CloudWatchLoggingOptions
//	UpdateDestination (so versions are always 1), tags,     UnknownOperationException
//	encryption started later
//	other destinations and sources                          refuses to create them
//	a quota that the service raises by itself while it      the quota stays (Quota page: "automatically")
//	throttles; at most five control-plane calls a second    there is no limit (Quota page)
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

type deliveryStream struct {
	streamSettings
	open   *buffer
	closed []*buffer
	later  [][]byte // copies that go to a later object than their records
	copies int      // made so far; every second one is for later
	stats  FirehoseStats
	puts   puts
	meter  meter
	retry  time.Time // no delivery before, after the disk was full

	nextBuffer uint64
	durable    bool
	id         uint32  // of a durable one
	writes     []write // what is to be stored, of a durable one
}

const (
	maxFirehoseRecord  = 1_024_000 // bytes before base64
	maxFirehoseRecords = 500
	maxFirehoseCall    = 4 << 20 // raw bytes of all records
	firehoseRetention  = 24 * time.Hour
	never              = math.MaxInt64
)

// newFirehose returns a Firehose that keeps its streams in kv, nil for memory.
func newFirehose(opt Options, store *s3Server, kv store, ids *ids) *firehose {
	f := &firehose{
		clock: opt.Clock, store: store, kv: kv, ids: ids, b: opt.Firehose, region: opt.Region, account: opt.Account,
		streams: map[string]*deliveryStream{},
	}
	f.due.Store(never)
	return f
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
		if !ok {
			e = &firehoseError{"InternalFailure", err.Error()}
		}
		status = cmp.Or(faultStatus[e.kind], http.StatusBadRequest)
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
	size := len(in.Record.Data)
	if err := f.admit(ds, 1); err != nil {
		return putRecordOut{}, err
	}
	if !f.admitRecord(ds, size) {
		return putRecordOut{}, errSlowDown
	}
	undo := ds.keep()
	f.accept(ds, in.Record.Data)
	if err := f.commit(ds); err != nil {
		undo()
		f.schedule()
		return putRecordOut{}, err
	}
	ds.puts.bytes += size
	ds.puts.single.add(1, size)
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
	if err := f.admit(ds, len(in.Records)); err != nil {
		return out, err
	}
	undo := ds.keep()
	stored := 0
	for _, r := range in.Records {
		entry, ok := f.putEntry(ds, r.Data)
		if ok {
			stored += len(r.Data)
		}
		if entry.ErrorCode != "" {
			out.FailedPutCount++
		}
		out.RequestResponses = append(out.RequestResponses, entry)
	}
	if err := f.commit(ds); err != nil {
		undo()
		f.schedule()
		return out, err
	}
	ds.puts.bytes += stored
	ds.puts.batch.add(len(in.Records), total)
	return out, nil
}

// putEntry takes one record of a batch, or not; ok says that it is stored.
func (f *firehose) putEntry(ds *deliveryStream, data []byte) (entry putEntry, ok bool) {
	if f.b.Fail != nil && f.b.Fail() {
		ds.puts.throttled++
	} else if f.admitRecord(ds, len(data)) {
		f.accept(ds, data)
		if f.b.Doubt != nil && f.b.Doubt() {
			return putEntry{ErrorCode: "InternalFailure", ErrorMessage: "Internal Service Failure"}, true
		}
		return putEntry{RecordId: f.ids.hex(64)}, true
	}
	return putEntry{ErrorCode: errSlowDown.kind, ErrorMessage: errSlowDown.message}, false
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
	if f.creating(ds) {
		return nil, notFoundStream(f, name)
	}
	if ds.kind != directPut {
		return nil, invalidArgument("This operation is not permitted on %s delivery stream type.", ds.kind)
	}
	if ds.transforms != "" {
		return nil, invalidArgument("The embedded Firehose only joins and delivers records; delivery stream %s has %s. Turn it off to put records here.", name, ds.transforms)
	}
	return ds, nil
}
