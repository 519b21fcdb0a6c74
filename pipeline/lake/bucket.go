// Package lake knows where parts and sealed objects go: through Firehose into staging, and
// into buckets. Its one rule: nothing is replaced; what exists stays as it is.
package lake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"telemetrylake/pipeline"
)

// A Bucket is a prefix of an S3 bucket. Keys are relative to the prefix.
type Bucket struct {
	client *s3.Client
	bucket string
	prefix string // "" or ends in a slash
}

// NewBucket returns the objects of bucket under prefix.
func NewBucket(client *s3.Client, bucket, prefix string) *Bucket {
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	return &Bucket{client, bucket, prefix}
}

// String returns s3://bucket/prefix.
func (b *Bucket) String() string { return "s3://" + b.bucket + "/" + b.prefix }

// Check fails if the bucket cannot be looked into.
func (b *Bucket) Check(ctx context.Context) error {
	_, err := b.client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &b.bucket, Prefix: &b.prefix, MaxKeys: aws.Int32(1)})
	if err != nil {
		return fmt.Errorf("list %s: %w", b, err)
	}
	return nil
}

// List yields every object, in order of keys.
func (b *Bucket) List(ctx context.Context) iter.Seq2[pipeline.Object, error] {
	return func(yield func(pipeline.Object, error) bool) {
		for o, err := range b.Dated(ctx) {
			if !yield(o.Object, err) {
				return
			}
		}
	}
}

// unquote is an ETag without the quotes that HTTP puts around it: events of S3 leave them out,
// and whoever seals an object must name it as any other does.
func unquote(etag *string) string { return strings.Trim(aws.ToString(etag), `"`) }

// Read returns the object's bytes. It fails with pipeline.ErrNotFound if it is gone, or is not
// the one of o.ETag any more; an empty o.ETag takes any.
func (b *Bucket) Read(ctx context.Context, o pipeline.Object) (*bytes.Reader, error) {
	in := &s3.GetObjectInput{Bucket: &b.bucket, Key: aws.String(b.prefix + o.Key)}
	if o.ETag != "" {
		in.IfMatch = aws.String(`"` + o.ETag + `"`)
	}
	out, err := b.client.GetObject(ctx, in)
	if missing(err) || status(err) == http.StatusPreconditionFailed {
		return nil, fmt.Errorf("read %s%s: %w", b, o.Key, pipeline.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s%s: %w", b, o.Key, err)
	}
	defer out.Body.Close()
	buf := bytes.NewBuffer(make([]byte, 0, aws.ToInt64(out.ContentLength)+bytes.MinRead)) // ReadFrom grows below that
	if _, err := io.Copy(buf, out.Body); err != nil {
		return nil, fmt.Errorf("read %s%s: %w", b, o.Key, err)
	}
	if want := out.ContentLength; want != nil && int64(buf.Len()) != *want {
		return nil, fmt.Errorf("read %s%s: %d bytes of %d", b, o.Key, buf.Len(), *want)
	}
	return bytes.NewReader(buf.Bytes()), nil
}

// Create puts an object that does not exist yet. It fails with pipeline.ErrExists if it does;
// after a lost answer that may be our own.
func (b *Bucket) Create(ctx context.Context, key string, body []byte) error {
	return b.CreateFrom(ctx, key, io.NewSectionReader(bytes.NewReader(body), 0, int64(len(body))))
}

// CreateFrom is Create with a body that need not be in memory. It is one request, and so nothing
// is there before all of it is; S3 takes up to 5 GiB in one.
func (b *Bucket) CreateFrom(ctx context.Context, key string, body *io.SectionReader) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		_, err := b.client.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &b.bucket, Key: aws.String(b.prefix + key), Body: io.NewSectionReader(body, 0, body.Size()),
			IfNoneMatch: aws.String("*"), ContentType: aws.String("application/vnd.apache.parquet"),
		})
		switch status(err) {
		case http.StatusPreconditionFailed:
			return fmt.Errorf("create %s%s: %w", b, key, pipeline.ErrExists)
		case http.StatusConflict: // another create of the key is under way: who wins is not known yet
			if pipeline.Wait(ctx, pipeline.Jitter(wait)) == nil {
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("create %s%s: %w", b, key, err)
		}
		return nil
	}
}

// Remove deletes an object. One that is gone already is no error.
func (b *Bucket) Remove(ctx context.Context, o pipeline.Object) error {
	_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.bucket, Key: aws.String(b.prefix + o.Key)})
	if err != nil && !missing(err) {
		return fmt.Errorf("remove %s%s: %w", b, o.Key, err)
	}
	return nil
}

// missing reports whether err says that there is no such object. A bucket that is not there
// comes with the same HTTP status and is an error like any other.
func missing(err error) bool {
	var key *types.NoSuchKey
	return errors.As(err, &key)
}

// status is the HTTP status that err came with, 0 if none.
func status(err error) int {
	var re *awshttp.ResponseError
	if errors.As(err, &re) {
		return re.HTTPStatusCode()
	}
	return 0
}
