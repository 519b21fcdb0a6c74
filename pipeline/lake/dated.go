package lake

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
)

// A Dated is an object with the time at which it was created, by S3's clock, in whole seconds.
type Dated struct {
	pipeline.Object
	At time.Time
}

// Dated is List with the times.
func (b *Bucket) Dated(ctx context.Context) iter.Seq2[Dated, error] { return b.below(ctx, "") }

// below yields the objects whose keys begin with a prefix, in order.
func (b *Bucket) below(ctx context.Context, prefix string) iter.Seq2[Dated, error] {
	return func(yield func(Dated, error) bool) {
		pages := s3.NewListObjectsV2Paginator(b.client, &s3.ListObjectsV2Input{Bucket: &b.bucket, Prefix: aws.String(b.prefix + prefix)})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				yield(Dated{}, fmt.Errorf("list %s%s: %w", b, prefix, err))
				return
			}
			for _, o := range page.Contents {
				d := Dated{pipeline.Object{
					Key: strings.TrimPrefix(aws.ToString(o.Key), b.prefix), ETag: unquote(o.ETag), Size: aws.ToInt64(o.Size),
				}, aws.ToTime(o.LastModified)}
				if !yield(d, nil) {
					return
				}
			}
		}
	}
}
