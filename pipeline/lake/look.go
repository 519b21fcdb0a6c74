package lake

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
)

// Newest returns the objects below some prefixes that were created last, newest first, at most that
// many. All are listed: S3 sorts by key.
func (b *Bucket) Newest(ctx context.Context, prefixes []string, most int) ([]pipeline.Object, error) {
	var found []dated
	for _, prefix := range prefixes {
		pages := s3.NewListObjectsV2Paginator(b.client, &s3.ListObjectsV2Input{Bucket: &b.bucket, Prefix: aws.String(b.prefix + prefix)})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				return nil, fmt.Errorf("list %s%s: %w", b, prefix, err)
			}
			for _, o := range page.Contents {
				found = append(found, dated{
					pipeline.Object{Key: strings.TrimPrefix(aws.ToString(o.Key), b.prefix), ETag: unquote(o.ETag), Size: aws.ToInt64(o.Size)},
					aws.ToTime(o.LastModified),
				})
			}
			if len(found) > most {
				slices.SortStableFunc(found, func(x, y dated) int { return y.at.Compare(x.at) })
				found = found[:most]
			}
		}
	}
	return newest(found, most), nil
}

// dated is an object with the time it was created.
type dated struct {
	pipeline.Object
	at time.Time
}

func newest(found []dated, most int) []pipeline.Object {
	slices.SortStableFunc(found, func(x, y dated) int { return y.at.Compare(x.at) })
	found = found[:min(most, len(found))]
	objects := make([]pipeline.Object, len(found))
	for i, d := range found {
		objects[i] = d.Object
	}
	return objects
}

// Folders returns the names that follow a prefix up to their first slash, in order: the partitions
// of a table. It costs a request for each thousand of them, however many objects they hold.
func (b *Bucket) Folders(ctx context.Context, prefix string) ([]string, error) {
	var names []string
	pages := s3.NewListObjectsV2Paginator(b.client, &s3.ListObjectsV2Input{
		Bucket: &b.bucket, Prefix: aws.String(b.prefix + prefix), Delimiter: aws.String("/"),
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("list folders of %s%s: %w", b, prefix, err)
		}
		for _, p := range page.CommonPrefixes {
			names = append(names, strings.TrimPrefix(aws.ToString(p.Prefix), b.prefix+prefix))
		}
	}
	return names, nil
}

// Tail returns the last n bytes of an object, or all of one that is shorter. It fails with
// pipeline.ErrNotFound if it is gone.
func (b *Bucket) Tail(ctx context.Context, o pipeline.Object, n int64) ([]byte, error) {
	n = cmp.Or(min(n, o.Size), n)
	out, err := b.client.GetObject(ctx, &s3.GetObjectInput{
		Bucket: &b.bucket, Key: aws.String(b.prefix + o.Key), Range: aws.String(fmt.Sprintf("bytes=-%d", n)),
	})
	if missing(err) {
		return nil, fmt.Errorf("read the end of %s%s: %w", b, o.Key, pipeline.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read the end of %s%s: %w", b, o.Key, err)
	}
	defer out.Body.Close()
	body, err := io.ReadAll(out.Body)
	if err != nil {
		return nil, fmt.Errorf("read the end of %s%s: %w", b, o.Key, err)
	}
	return body, nil
}
