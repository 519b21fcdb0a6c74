package testenv

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsfirehose "github.com/aws/aws-sdk-go-v2/service/firehose"
	"github.com/aws/aws-sdk-go-v2/service/firehose/types"
)

func TestFirehoseDescribesEverySettingAndRefusesToTransform(t *testing.T) {
	for name, change := range map[string]func(*types.ExtendedS3DestinationConfiguration){
		"CompressionFormat": func(d *types.ExtendedS3DestinationConfiguration) { d.CompressionFormat = types.CompressionFormatGzip },
		"DataFormatConversion": func(d *types.ExtendedS3DestinationConfiguration) {
			d.DataFormatConversionConfiguration = &types.DataFormatConversionConfiguration{Enabled: aws.Bool(true)}
		},
		"AppendDelimiterToRecord": func(d *types.ExtendedS3DestinationConfiguration) {
			d.ProcessingConfiguration = &types.ProcessingConfiguration{Enabled: aws.Bool(true),
				Processors: []types.Processor{{Type: types.ProcessorTypeAppendDelimiterToRecord}}}
		},
		"DynamicPartitioning": func(d *types.ExtendedS3DestinationConfiguration) {
			withHints(64, 60)(d)
			d.DynamicPartitioningConfiguration = &types.DynamicPartitioningConfiguration{Enabled: aws.Bool(true)}
			d.Prefix = aws.String("dt=!{partitionKeyFromLambda:dt}/")
			d.ErrorOutputPrefix = aws.String("failed/!{firehose:error-output-type}/")
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, c, _ := firehoseEnv(t, FirehoseBehaviour{})
			mustCreateStream(t, c, change)
			out, err := c.DescribeDeliveryStream(t.Context(), &awsfirehose.DescribeDeliveryStreamInput{DeliveryStreamName: aws.String(testStream)})
			if err != nil {
				t.Fatal(err)
			}
			got, want := out.DeliveryStreamDescription.Destinations[0].ExtendedS3DestinationDescription, destination(change)
			if want.CompressionFormat == "" {
				want.CompressionFormat = types.CompressionFormatUncompressed
			}
			for field, pair := range map[string][2]any{
				"CompressionFormat": {got.CompressionFormat, want.CompressionFormat},
				"Prefix":            {aws.ToString(got.Prefix), aws.ToString(want.Prefix)},
				"ErrorOutputPrefix": {aws.ToString(got.ErrorOutputPrefix), aws.ToString(want.ErrorOutputPrefix)},
				"conversion":        {got.DataFormatConversionConfiguration != nil, want.DataFormatConversionConfiguration != nil},
				"processing":        {got.ProcessingConfiguration != nil, want.ProcessingConfiguration != nil},
				"partitioning":      {got.DynamicPartitioningConfiguration != nil, want.DynamicPartitioningConfiguration != nil},
			} {
				if pair[0] != pair[1] {
					t.Errorf("%s is described as %v, given as %v", field, pair[0], pair[1])
				}
			}
			_, err = putBatch(t, c, "x")
			e, ok := errors.AsType[*types.InvalidArgumentException](err)
			if !ok || !strings.Contains(e.ErrorMessage(), name) {
				t.Errorf("a put was answered with %v", err)
			}
		})
	}
}

func TestFirehoseRefusesSettingsTheServiceRefuses(t *testing.T) {
	_, _, c, _ := firehoseEnv(t, FirehoseBehaviour{})
	for name, change := range map[string]func(*types.ExtendedS3DestinationConfiguration){
		"size too large":    withHints(129, 60),
		"interval too long": withHints(1, 901),
		"one hint only": func(d *types.ExtendedS3DestinationConfiguration) {
			d.BufferingHints = &types.BufferingHints{SizeInMBs: aws.Int32(1)}
		},
		"no bucket":                 func(d *types.ExtendedS3DestinationConfiguration) { d.BucketARN = aws.String("lake-test") },
		"expression without errors": func(d *types.ExtendedS3DestinationConfiguration) { d.Prefix = aws.String("!{timestamp:yyyy}/") },
		"error prefix without its type": func(d *types.ExtendedS3DestinationConfiguration) {
			d.ErrorOutputPrefix = aws.String("failed/!{timestamp:yyyy}/")
		},
		"error type in the prefix": func(d *types.ExtendedS3DestinationConfiguration) {
			d.Prefix, d.ErrorOutputPrefix = aws.String("!{firehose:error-output-type}/"), aws.String("!{firehose:error-output-type}/")
		},
		"more than 512 characters": func(d *types.ExtendedS3DestinationConfiguration) {
			d.Prefix = aws.String(strings.Repeat("x", 513))
		},
		"expression not closed": func(d *types.ExtendedS3DestinationConfiguration) { d.Prefix = aws.String("!{timestamp:yyyy/") },
		"week year": func(d *types.ExtendedS3DestinationConfiguration) {
			d.Prefix, d.ErrorOutputPrefix = aws.String("!{timestamp:YYYY}/"), aws.String("!{firehose:error-output-type}/")
		},
		"extension": func(d *types.ExtendedS3DestinationConfiguration) { d.FileExtension = aws.String("parquet") },
		"hints under partitioning": func(d *types.ExtendedS3DestinationConfiguration) {
			withHints(1, 60)(d)
			d.DynamicPartitioningConfiguration = &types.DynamicPartitioningConfiguration{Enabled: aws.Bool(true)}
		},
	} {
		if err := createStream(t, c, change); err == nil {
			t.Fatalf("%s: accepted", name)
		}
	}
	mustCreateStream(t, c, nil)
	err := createStream(t, c, nil)
	if _, ok := errors.AsType[*types.ResourceInUseException](err); !ok {
		t.Errorf("the same name twice: %v", err)
	}
}

func TestFirehoseListsAndDeletesStreams(t *testing.T) {
	_, _, c, _ := firehoseEnv(t, FirehoseBehaviour{})
	for i := range 12 {
		_, err := c.CreateDeliveryStream(t.Context(), &awsfirehose.CreateDeliveryStreamInput{
			DeliveryStreamName: aws.String(fmt.Sprintf("s%02d", i)),
			//lint:ignore SA1019 older templates still send it, and it is served
			S3DestinationConfiguration: &types.S3DestinationConfiguration{
				BucketARN: aws.String("arn:aws:s3:::" + testBucket), RoleARN: aws.String("arn:aws:iam::000000000000:role/delivery")},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	first, err := c.ListDeliveryStreams(t.Context(), &awsfirehose.ListDeliveryStreamsInput{})
	if err != nil || len(first.DeliveryStreamNames) != 10 || !*first.HasMoreDeliveryStreams {
		t.Fatalf("first page: %+v, %v", first, err)
	}
	if _, err := c.DeleteDeliveryStream(t.Context(), &awsfirehose.DeleteDeliveryStreamInput{DeliveryStreamName: aws.String("s11")}); err != nil {
		t.Fatal(err)
	}
	rest, err := c.ListDeliveryStreams(t.Context(), &awsfirehose.ListDeliveryStreamsInput{ExclusiveStartDeliveryStreamName: aws.String("s09")})
	if err != nil || !slices.Equal(rest.DeliveryStreamNames, []string{"s10"}) || *rest.HasMoreDeliveryStreams {
		t.Errorf("second page: %+v, %v", rest, err)
	}
}
