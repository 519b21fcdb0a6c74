package testenv

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// streamSettings is a delivery stream as it was created.
type streamSettings struct {
	name       string
	arn        string
	created    time.Time
	kind       string          // of the source, as the API names it
	source     json.RawMessage // what DescribeDeliveryStream says of it; nil for direct put
	encryption map[string]any
	given      map[string]json.RawMessage // the S3 destination, with the defaults filled in
	destinationSettings
}

// destinationSettings is what delivery itself needs of the destination.
type destinationSettings struct {
	bucket     string
	prefix     string
	extension  string
	size       int // bytes
	interval   time.Duration
	transforms string // the setting that keeps us from delivering; empty: none
}

// s3Destination holds the fields of the two S3 destination configurations that
// are checked. The others are only reported.
type s3Destination struct {
	RoleARN                           string
	BucketARN                         string
	Prefix                            string
	ErrorOutputPrefix                 string
	FileExtension                     string
	CustomTimeZone                    string
	CompressionFormat                 string
	S3BackupMode                      string
	BufferingHints                    struct{ SizeInMBs, IntervalInSeconds *int }
	DynamicPartitioningConfiguration  struct{ Enabled bool }
	DataFormatConversionConfiguration *struct{ Enabled *bool }
	ProcessingConfiguration           struct {
		Enabled    *bool
		Processors []struct{ Type string }
	}
}

var (
	streamName    = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)
	bucketARN     = regexp.MustCompile(`^arn:[a-z-]+:s3:::(.+)$`)
	fileExtension = regexp.MustCompile(`^(\.[0-9a-z!\-_.*'()]+)?$`)
)

type createIn map[string]json.RawMessage

type createOut struct{ DeliveryStreamARN string }

func (f *firehose) create(in createIn) (createOut, error) {
	var name, kind string
	_ = json.Unmarshal(in["DeliveryStreamName"], &name) // what is no string fails the checks below
	_ = json.Unmarshal(in["DeliveryStreamType"], &kind)
	if !streamName.MatchString(name) {
		return createOut{}, violated("deliveryStreamName", "satisfy regular expression pattern: [a-zA-Z0-9_.-]+ and have length between 1 and 64")
	}
	kind = cmp.Or(kind, directPut)
	source, err := sourceOf(kind, in["KinesisStreamSourceConfiguration"], f.clock.Now())
	if err != nil {
		return createOut{}, err
	}
	var given map[string]json.RawMessage
	destinations := 0
	for field, value := range in {
		if !strings.HasSuffix(field, "DestinationConfiguration") || string(value) == "null" {
			continue
		}
		destinations++
		if field != "ExtendedS3DestinationConfiguration" && field != "S3DestinationConfiguration" {
			return createOut{}, invalidArgument("The embedded Firehose delivers to S3 only: %s is not implemented.", field)
		}
		if err := json.Unmarshal(value, &given); err != nil {
			return createOut{}, &firehoseError{"SerializationException", err.Error()}
		}
	}
	if destinations != 1 {
		return createOut{}, invalidArgument("Exactly one destination configuration is supported for a Firehose")
	}
	dest, err := f.readDestination(given)
	if err != nil {
		return createOut{}, err
	}
	ds := &deliveryStream{streamSettings: streamSettings{
		name:                name,
		arn:                 fmt.Sprintf("arn:aws:firehose:%s:%s:deliverystream/%s", f.region, f.account, name),
		created:             f.clock.Now(),
		kind:                kind,
		source:              source,
		encryption:          encryptionOf(in["DeliveryStreamEncryptionConfigurationInput"]),
		given:               given,
		destinationSettings: dest,
	}}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.streams[name] != nil {
		return createOut{}, &firehoseError{"ResourceInUseException", fmt.Sprintf("Firehose %s under accountId %s already exists", name, f.account)}
	}
	if err := f.register(ds); err != nil {
		return createOut{}, err
	}
	f.streams[name] = ds
	return createOut{ds.arn}, nil
}

// The types of delivery streams.
const (
	directPut   = "DirectPut"
	fromKinesis = "KinesisStreamAsSource"
)

// sourceOf returns how the source of a delivery stream is described.
func sourceOf(kind string, given json.RawMessage, now time.Time) (json.RawMessage, error) {
	switch kind {
	case directPut:
		return nil, nil
	case fromKinesis:
	default:
		return nil, invalidArgument("The embedded Firehose has delivery streams of type DirectPut and KinesisStreamAsSource only, not %s.", kind)
	}
	var source map[string]any
	if err := json.Unmarshal(given, &source); err != nil || source["KinesisStreamARN"] == nil || source["RoleARN"] == nil {
		return nil, invalidArgument("KinesisSourceStreamConfig must name a KinesisStreamARN and a RoleARN for the KinesisStreamAsSource delivery stream type.")
	}
	source["DeliveryStartTimestamp"] = float64(now.UnixMilli()) / 1000
	return json.Marshal(map[string]any{"KinesisStreamSourceDescription": source})
}

// creating says whether a stream is in the state CREATING.
func (f *firehose) creating(ds *deliveryStream) bool {
	return f.clock.Now().Before(ds.created.Add(f.b.Creating))
}

func encryptionOf(input json.RawMessage) map[string]any {
	encryption := map[string]any{"Status": "DISABLED"}
	var given map[string]any
	if json.Unmarshal(input, &given) == nil && given != nil {
		maps.Copy(encryption, given)
		encryption["Status"] = "ENABLED"
	}
	return encryption
}

// readDestination checks a destination and writes the service's defaults into
// what will be reported of it.
func (f *firehose) readDestination(given map[string]json.RawMessage) (destinationSettings, error) {
	var out destinationSettings
	text, err := json.Marshal(given)
	if err != nil {
		return out, err
	}
	var d s3Destination
	if err := json.Unmarshal(text, &d); err != nil {
		return out, &firehoseError{"SerializationException", err.Error()}
	}
	if d.RoleARN == "" || d.BucketARN == "" {
		return out, violated("s3DestinationConfiguration", "name a roleARN and a bucketARN")
	}
	arn := bucketARN.FindStringSubmatch(d.BucketARN)
	if arn == nil || !validBucket(arn[1]) {
		return out, violated("bucketARN", "satisfy regular expression pattern: arn:.*:s3:::[\\w\\.\\-]{1,255}")
	}
	out.bucket, out.prefix, out.extension = arn[1], d.Prefix, d.FileExtension
	if len(d.FileExtension) > 128 || !fileExtension.MatchString(d.FileExtension) {
		return out, violated("fileExtension", "satisfy regular expression pattern: ^$|\\.[0-9a-z!\\-_.*'()]+ and have length at most 128")
	}
	if err := f.checkPrefixes(d); err != nil {
		return out, err
	}
	size, interval, err := hints(d)
	if err != nil {
		return out, err
	}
	out.size, out.interval = size<<20, time.Duration(interval)*time.Second
	out.transforms = transformOf(d)

	given["BufferingHints"] = json.RawMessage(fmt.Sprintf(`{"SizeInMBs":%d,"IntervalInSeconds":%d}`, size, interval))
	for field, value := range map[string]string{
		"CompressionFormat":        `"UNCOMPRESSED"`,
		"EncryptionConfiguration":  `{"NoEncryptionConfig":"NoEncryption"}`,
		"CloudWatchLoggingOptions": `{"Enabled":false}`,
		"S3BackupMode":             `"Disabled"`,
	} {
		if _, ok := given[field]; !ok {
			given[field] = json.RawMessage(value)
		}
	}
	if backup, ok := given["S3BackupConfiguration"]; ok {
		given["S3BackupDescription"] = backup
		delete(given, "S3BackupConfiguration")
	}
	return out, nil
}

func (d *s3Destination) converts() bool {
	c := d.DataFormatConversionConfiguration
	return c != nil && (c.Enabled == nil || *c.Enabled) // enabled unless switched off
}

// hints returns the buffering hints in MiB and seconds.
func hints(d s3Destination) (size, interval int, err error) {
	size, interval = 5, 300
	if d.converts() {
		size = 128
	}
	given := d.BufferingHints
	if (given.SizeInMBs == nil) != (given.IntervalInSeconds == nil) {
		return 0, 0, invalidArgument("BufferingHints must have both SizeInMBs and IntervalInSeconds, or neither")
	}
	if given.SizeInMBs != nil {
		size, interval = *given.SizeInMBs, *given.IntervalInSeconds
	}
	switch {
	case size < 1 || size > 128:
		return 0, 0, violated("bufferingHints.sizeInMBs", "have value between 1 and 128")
	case interval < 0 || interval > 900:
		return 0, 0, violated("bufferingHints.intervalInSeconds", "have value between 0 and 900")
	case d.converts() && size < 64:
		return 0, 0, invalidArgument("BufferingHints.SizeInMBs must be at least 64 when data format conversion is enabled")
	case d.DynamicPartitioningConfiguration.Enabled && size < 64:
		return 0, 0, invalidArgument("BufferingHints.SizeInMBs must be at least 64 when Dynamic Partitioning is enabled")
	case d.DynamicPartitioningConfiguration.Enabled && interval < 60:
		return 0, 0, invalidArgument("BufferingHints.IntervalInSeconds must be at least 60 seconds when Dynamic Partitioning is enabled")
	}
	return size, interval, nil
}

// transformOf names the setting, if there is one, under which the service would
// do more to the data than join it.
func transformOf(d s3Destination) string {
	switch {
	case d.CompressionFormat != "" && d.CompressionFormat != "UNCOMPRESSED":
		return "CompressionFormat " + d.CompressionFormat
	case d.converts():
		return "DataFormatConversionConfiguration enabled"
	case d.DynamicPartitioningConfiguration.Enabled:
		return "DynamicPartitioningConfiguration enabled"
	case len(d.ProcessingConfiguration.Processors) > 0 && (d.ProcessingConfiguration.Enabled == nil || *d.ProcessingConfiguration.Enabled):
		return "the processor " + d.ProcessingConfiguration.Processors[0].Type
	case d.S3BackupMode == "Enabled":
		return "S3BackupMode Enabled"
	case d.CustomTimeZone != "" && d.CustomTimeZone != "UTC":
		return "CustomTimeZone " + d.CustomTimeZone
	}
	return ""
}

// find returns a stream by name. The caller holds mu.
func (f *firehose) find(name string) (*deliveryStream, error) {
	if ds := f.streams[name]; ds != nil {
		return ds, nil
	}
	return nil, notFoundStream(f, name)
}

func notFoundStream(f *firehose, name string) error {
	return &firehoseError{"ResourceNotFoundException", fmt.Sprintf("Firehose %s under account %s not found.", name, f.account)}
}

type streamIn struct{ DeliveryStreamName string }

func (f *firehose) describe(in streamIn) (any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ds, err := f.find(in.DeliveryStreamName)
	if err != nil {
		return nil, err
	}
	plain := maps.Clone(ds.given)
	maps.DeleteFunc(plain, func(field string, _ json.RawMessage) bool {
		return !slices.Contains(plainS3Fields, field)
	})
	status := "ACTIVE"
	if f.creating(ds) {
		status = "CREATING"
	}
	description := map[string]any{
		"DeliveryStreamName":                    ds.name,
		"DeliveryStreamARN":                     ds.arn,
		"DeliveryStreamStatus":                  status,
		"DeliveryStreamType":                    ds.kind,
		"VersionId":                             "1",
		"CreateTimestamp":                       float64(ds.created.UnixMilli()) / 1000,
		"DeliveryStreamEncryptionConfiguration": ds.encryption,
		"HasMoreDestinations":                   false,
		"Destinations": []any{map[string]any{
			"DestinationId":                    "destinationId-000000000001",
			"ExtendedS3DestinationDescription": ds.given,
			"S3DestinationDescription":         plain,
		}},
	}
	if ds.source != nil {
		description["Source"] = ds.source
	}
	return map[string]any{"DeliveryStreamDescription": description}, nil
}

// plainS3Fields are the fields of an S3DestinationDescription; the service
// reports an extended destination in both shapes.
var plainS3Fields = []string{"RoleARN", "BucketARN", "Prefix", "ErrorOutputPrefix", "BufferingHints",
	"CompressionFormat", "EncryptionConfiguration", "CloudWatchLoggingOptions"}

type listStreamsIn struct {
	DeliveryStreamType               string
	ExclusiveStartDeliveryStreamName string
	Limit                            *int
}

type listStreamsOut struct {
	DeliveryStreamNames    []string
	HasMoreDeliveryStreams bool
}

func (f *firehose) list(in listStreamsIn) (listStreamsOut, error) {
	limit := 10
	if in.Limit != nil {
		limit = *in.Limit
	}
	if limit < 1 || limit > 10000 {
		return listStreamsOut{}, violated("limit", "have value between 1 and 10000")
	}
	out := listStreamsOut{DeliveryStreamNames: []string{}}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, ds := range f.inOrder() {
		if ds.name <= in.ExclusiveStartDeliveryStreamName || in.DeliveryStreamType != "" && in.DeliveryStreamType != ds.kind {
			continue
		}
		if len(out.DeliveryStreamNames) == limit {
			out.HasMoreDeliveryStreams = true
			break
		}
		out.DeliveryStreamNames = append(out.DeliveryStreamNames, ds.name)
	}
	return out, nil
}

// delete drops a stream and what it has not delivered, of which the service too
// promises nothing.
func (f *firehose) delete(in streamIn) (struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ds, err := f.find(in.DeliveryStreamName)
	if err != nil {
		return struct{}{}, err
	}
	if err := f.unregister(ds); err != nil {
		return struct{}{}, err
	}
	delete(f.streams, in.DeliveryStreamName)
	f.schedule()
	return struct{}{}, nil
}
