package lake

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/firehose"
	"github.com/aws/aws-sdk-go-v2/service/firehose/types"

	"telemetrylake/pipeline"
)

// Limits of PutRecordBatch, from the API model of 2015-08-04 and the quota page. Whether its
// 4 MiB count before or after base64 is not documented; 3 MiB raw hold either way.
const (
	MaxRecordBytes  = 1000 << 10
	maxBatchRecords = 500
	maxBatchBytes   = 3 << 20
)

// busyTold is the wait from which throttling is worth a word: a few retries are normal, and
// AWS raises the limit of a Direct PUT stream that is throttled.
const busyTold = 5 * time.Second

// A Firehose lands each part as one record of a delivery stream, which joins records without
// a delimiter into staging objects. A part over the record limit goes straight into staging:
// seal does not care who put it there.
type Firehose struct {
	client  *firehose.Client
	stream  string
	staging *Bucket
	log     *slog.Logger

	// Lake is what neither parts nor errors may be delivered into; nil: not looked at.
	Lake *Bucket
	// OnPut is told of each request that sends parts; nil: nobody is.
	OnPut func(Put)

	waiting  backlog
	interval time.Duration // as Check found it
}

var _ pipeline.Sink = (*Firehose)(nil)

// NewFirehose returns a sink on the named delivery stream. staging is where it delivers to; a
// nil log is none.
func NewFirehose(client *firehose.Client, stream string, staging *Bucket, log *slog.Logger) *Firehose {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Firehose{client: client, stream: stream, staging: staging, log: log, waiting: backlog{limit: maxWaiting}}
}

// Check refuses a delivery stream whose settings would damage parts, and says what to change. A
// stand-in for AWS that does not report its settings is tried out: two parts that probe makes
// must arrive in staging as they were put.
func (f *Firehose) Check(ctx context.Context, probe Probe) error {
	out, err := f.client.DescribeDeliveryStream(ctx, &firehose.DescribeDeliveryStreamInput{DeliveryStreamName: &f.stream})
	if err != nil {
		return fmt.Errorf("describe delivery stream %s: %w", f.stream, err)
	}
	d := out.DeliveryStreamDescription
	refuse := f.refuse
	if d.DeliveryStreamStatus != types.DeliveryStreamStatusActive {
		return refuse(fmt.Sprintf("is %s", d.DeliveryStreamStatus), "wait until it is ACTIVE, then start again")
	}
	if d.DeliveryStreamType != types.DeliveryStreamTypeDirectPut {
		return refuse(fmt.Sprintf("is of type %s", d.DeliveryStreamType), "use one whose source is Direct PUT")
	}
	if len(d.Destinations) != 1 || d.Destinations[0].ExtendedS3DestinationDescription == nil {
		return refuse("does not deliver to S3", "use one with an extended S3 destination")
	}
	s := d.Destinations[0].ExtendedS3DestinationDescription
	switch {
	case s.CompressionFormat != "" && s.CompressionFormat != types.CompressionFormatUncompressed:
		return refuse(fmt.Sprintf("compresses (%s)", s.CompressionFormat), "set CompressionFormat to UNCOMPRESSED: parts are compressed inside")
	case s.DataFormatConversionConfiguration != nil && aws.ToBool(s.DataFormatConversionConfiguration.Enabled):
		return refuse("converts formats", "disable DataFormatConversionConfiguration: parts are Parquet already")
	case s.ProcessingConfiguration != nil && aws.ToBool(s.ProcessingConfiguration.Enabled):
		return refuse("has processors", "disable ProcessingConfiguration: a delimiter or a Lambda would damage parts")
	case s.DynamicPartitioningConfiguration != nil && aws.ToBool(s.DynamicPartitioningConfiguration.Enabled):
		return refuse("partitions dynamically", "use one created without dynamic partitioning: seal partitions by event time")
	}
	bucket := bucketOf(aws.ToString(s.BucketARN))
	if prefix := aws.ToString(s.Prefix); bucket != f.staging.bucket || !strings.HasPrefix(prefix, f.staging.prefix) {
		return refuse(fmt.Sprintf("delivers to s3://%s/%s, staging is %s", bucket, prefix, f.staging), "make the two the same, or nothing is ever sealed")
	}
	if err := f.checkPlaces(bucket, s); err != nil {
		return err
	}
	if err := f.checkReadable(ctx, s); err != nil {
		return err
	}
	if s.BufferingHints != nil {
		f.interval = time.Duration(aws.ToInt32(s.BufferingHints.IntervalInSeconds)) * time.Second
	}
	if f.ownEndpoint() && !reports(s) {
		return f.try(ctx, probe, f.interval)
	}
	return nil
}

// Interval is how long the delivery stream gathers at most before it delivers, as the last Check
// found it; 0 if it does not say.
func (f *Firehose) Interval() time.Duration { return f.interval }

// Land implements pipeline.Sink.
func (f *Firehose) Land(ctx context.Context, parts []pipeline.Part) error {
	waiting := 0
	for _, p := range parts {
		waiting += len(p.Body)
	}
	if err := f.waiting.enter(ctx, waiting); err != nil {
		return fmt.Errorf("wait for parts that were to be landed before: %w", err)
	}
	defer func() { f.waiting.leave(waiting) }()
	var batch []pipeline.Part
	size := 0
	flush := func() error {
		defer func() { batch, size = nil, 0 }()
		if len(batch) == 0 {
			return nil
		}
		err := f.put(ctx, batch)
		if err == nil {
			f.waiting.leave(size)
			waiting -= size
		}
		return err
	}
	for _, p := range parts {
		if len(p.Body) > MaxRecordBytes {
			if err := f.stage(ctx, p); err != nil {
				return err
			}
			f.waiting.leave(len(p.Body))
			waiting -= len(p.Body)
			continue
		}
		if len(batch) == maxBatchRecords || size+len(p.Body) > maxBatchBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		batch = append(batch, p)
		size += len(p.Body)
	}
	return flush()
}

// put sends one batch, and the failed entries again until none is left or ctx is done. An
// answer that was lost may mean a second copy of each part: seal tells them apart.
func (f *Firehose) put(ctx context.Context, parts []pipeline.Part) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		in := &firehose.PutRecordBatchInput{DeliveryStreamName: &f.stream}
		sent := Put{Records: len(parts)}
		for _, p := range parts {
			in.Records = append(in.Records, types.Record{Data: p.Body})
			sent.Bytes += len(p.Body)
		}
		out, err := f.client.PutRecordBatch(ctx, in)
		var busy *types.ServiceUnavailableException
		switch {
		case errors.As(err, &busy): // how Firehose says that it throttles
			sent.Refused = len(parts)
			f.told(sent)
		case err != nil:
			return fmt.Errorf("put %d parts from %s on delivery stream %s: %w", len(parts), parts[0].ID, f.stream, err)
		case len(out.RequestResponses) != len(parts):
			return fmt.Errorf("put %d parts from %s on delivery stream %s: %d responses", len(parts), parts[0].ID, f.stream, len(out.RequestResponses))
		default:
			var failed []pipeline.Part
			for i, r := range out.RequestResponses {
				if aws.ToString(r.ErrorCode) != "" {
					failed = append(failed, parts[i])
				}
			}
			sent.Refused = len(failed)
			f.told(sent)
			if len(failed) == 0 {
				return nil
			}
			parts = failed
		}
		if wait >= busyTold {
			f.log.WarnContext(ctx, "delivery stream is busy, trying again", "stream", f.stream, "parts", len(parts), "in", wait)
		}
		if err := pipeline.Wait(ctx, pipeline.Jitter(wait)); err != nil {
			return fmt.Errorf("put %d parts from %s on delivery stream %s: %w", len(parts), parts[0].ID, f.stream, err)
		}
	}
}

// stage puts a part that is too large for a record straight into staging.
func (f *Firehose) stage(ctx context.Context, p pipeline.Part) error {
	w := p.ID.Window
	key := fmt.Sprintf("direct/%s-%s-%d-%d-%x.parquet", w.Lane, w.Incarnation, w.N, p.ID.Index, sha256.Sum256(p.Body))
	// The name holds the content: what exists under it is this part.
	if err := f.staging.Create(ctx, key, p.Body); err != nil && !errors.Is(err, pipeline.ErrExists) {
		return fmt.Errorf("stage part %s of %d bytes: %w", p.ID, len(p.Body), err)
	}
	return nil
}
