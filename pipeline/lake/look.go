package lake

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
)

// Newest returns the objects below some prefixes that were created last, newest first, at most that
// many. All are listed: S3 sorts by key.
func (b *Bucket) Newest(ctx context.Context, prefixes []string, most int) ([]pipeline.Object, error) {
	const room = 1000 // so that not each one has all of them sorted
	var found []Dated
	for _, prefix := range prefixes {
		for o, err := range b.below(ctx, prefix) {
			if err != nil {
				return nil, err
			}
			if found = append(found, o); len(found) >= most+room {
				found = sortNewest(found, most)
			}
		}
	}
	return newest(found, most), nil
}

func newest(found []Dated, most int) []pipeline.Object {
	found = sortNewest(found, most)
	objects := make([]pipeline.Object, len(found))
	for i, d := range found {
		objects[i] = d.Object
	}
	return objects
}

// sortNewest leaves those that were created last, newest first, at most that many.
func sortNewest(found []Dated, most int) []Dated {
	slices.SortStableFunc(found, func(x, y Dated) int { return y.At.Compare(x.At) })
	return found[:min(most, len(found))]
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
