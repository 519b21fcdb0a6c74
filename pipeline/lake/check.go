package lake

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/firehose/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
)

// checkPlaces refuses what Firehose would put where readers of tables look, or where parts lie.
func (f *Firehose) checkPlaces(bucket string, s *types.ExtendedS3DestinationDescription) error {
	for _, at := range []struct{ bucket, what, setting, prefix string }{
		{bucket, "delivers", "Prefix", aws.ToString(s.Prefix)},
		{bucket, "puts what it cannot deliver", "ErrorOutputPrefix", aws.ToString(s.ErrorOutputPrefix)},
		{backupBucket(s), "keeps copies of records", "S3BackupDescription.Prefix", backupPrefix(s)},
	} {
		if at.setting != "Prefix" && at.prefix != "" && at.bucket == f.staging.bucket && strings.HasPrefix(at.prefix, f.staging.prefix) {
			return f.refuse(fmt.Sprintf("%s under %s, in staging %s", at.what, at.prefix, f.staging), "move its "+at.setting+" elsewhere: what lies there is no part")
		}
		if f.Lake != nil && at.prefix != "" && at.bucket == f.Lake.bucket && strings.HasPrefix(at.prefix, f.Lake.prefix) {
			return f.refuse(fmt.Sprintf("%s under %s, in the lake %s", at.what, at.prefix, f.Lake),
				"move its "+at.setting+" out of the lake, or the lake elsewhere (--lake): Athena reads every file below a table")
		}
	}
	return nil
}

func backupBucket(s *types.ExtendedS3DestinationDescription) string {
	if s.S3BackupMode != types.S3BackupModeEnabled || s.S3BackupDescription == nil {
		return ""
	}
	return bucketOf(aws.ToString(s.S3BackupDescription.BucketARN))
}

func backupPrefix(s *types.ExtendedS3DestinationDescription) string {
	if s.S3BackupDescription == nil {
		return ""
	}
	return aws.ToString(s.S3BackupDescription.Prefix)
}

// bucketOf is the name in a bucket's ARN, of whatever partition of AWS.
func bucketOf(arn string) string { return arn[strings.LastIndex(arn, ":")+1:] }

// checkReadable refuses a stream whose objects cannot be read here. Whether a key lets us read is
// known only by reading: an object that is there already is tried. Of an empty staging nothing can be
// said at the start; seal meets the refusal then, and says the same.
func (f *Firehose) checkReadable(ctx context.Context, s *types.ExtendedS3DestinationDescription) error {
	err := f.staging.CheckRead(ctx)
	person, unreadable := errors.AsType[*pipeline.PersonError](err)
	if e := s.EncryptionConfiguration; unreadable && e != nil && e.KMSEncryptionConfig != nil {
		return f.refuse(fmt.Sprintf("encrypts with %s: %v", aws.ToString(e.KMSEncryptionConfig.AWSKMSKeyARN), person.Err), person.Do)
	}
	return err
}

// CheckRead fails with a PersonError if there are objects and the first cannot be read: the role
// may not, or it is encrypted with a key that is not ours.
func (b *Bucket) CheckRead(ctx context.Context) error {
	page, err := b.client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &b.bucket, Prefix: &b.prefix, MaxKeys: aws.Int32(1)})
	if err != nil {
		return fmt.Errorf("list %s: %w", b, err)
	}
	if len(page.Contents) == 0 {
		return nil
	}
	o := page.Contents[0]
	in := &s3.GetObjectInput{Bucket: &b.bucket, Key: o.Key}
	if aws.ToInt64(o.Size) > 0 {
		in.Range = aws.String("bytes=0-0")
	}
	out, err := b.client.GetObject(ctx, in)
	switch {
	case err == nil:
		return out.Body.Close()
	case missing(err): // sealed meanwhile
		return nil
	}
	err = fmt.Errorf("read s3://%s/%s: %w", b.bucket, aws.ToString(o.Key), err)
	switch status(err) {
	case http.StatusForbidden:
		return pipeline.NeedPerson(err, "allow this role s3:GetObject there and, if its objects are encrypted with a key of KMS, kms:Decrypt with that key")
	case http.StatusBadRequest: // what S3 answers where a customer's key must come with the request
		return pipeline.NeedPerson(err, "have objects encrypted by S3 or KMS: those with a customer-provided key (SSE-C) cannot be read without it")
	}
	return err
}
