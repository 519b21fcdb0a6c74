package testenv

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// listKeys pages through a listing; common prefixes stand among the keys with a
// star behind them.
func listKeys(t *testing.T, c *s3.Client, in *s3.ListObjectsV2Input) []string {
	t.Helper()
	in.Bucket = aws.String(testBucket)
	var keys []string
	for pages := s3.NewListObjectsV2Paginator(c, in); pages.HasMorePages(); {
		page, err := pages.NextPage(t.Context())
		if err != nil {
			t.Fatalf("list %+v: %v", in, err)
		}
		var names []string
		for _, o := range page.Contents {
			names = append(names, *o.Key)
		}
		for _, p := range page.CommonPrefixes {
			names = append(names, *p.Prefix+"*")
		}
		if int(*page.KeyCount) != len(names) || in.MaxKeys != nil && len(names) > int(*in.MaxKeys) {
			t.Fatalf("a page of %d names says %d", len(names), *page.KeyCount)
		}
		slices.SortFunc(names, func(a, b string) int { return strings.Compare(strings.TrimSuffix(a, "*"), strings.TrimSuffix(b, "*")) })
		keys = append(keys, names...)
	}
	return keys
}

// modelList is ListObjectsV2 by its definition.
func modelList(all []string, prefix, delimiter, after string) []string {
	var out []string
	for _, key := range slices.Sorted(slices.Values(all)) {
		if !strings.HasPrefix(key, prefix) || key <= after {
			continue
		}
		if i := strings.Index(key[len(prefix):], delimiter); delimiter != "" && i >= 0 {
			key = key[:len(prefix)+i+len(delimiter)] + "*"
			if slices.Contains(out, key) {
				continue
			}
		}
		out = append(out, key)
	}
	return out
}

func TestS3ListsInByteOrderInPagesOfAnySize(t *testing.T) {
	_, c := s3Env(t)
	all := []string{"a", "a-b", "a/b", "a/b/c", "a/b-", "a/c/d/e", "a0", "b/", "b//x", "dt=1/x", "dt=1/y", "dt=10/x", "dt=2/x",
		"z%z", "é", "ß/a", "日本/語", strings.Repeat("m", 205) + "/q", strings.Repeat("m", 199) + "z", strings.Repeat("m", 230)}
	for _, key := range all {
		s3Put(t, c, key, key)
	}
	prefixes := []string{"", "a", "a/", "a/b", "b/", "b//", "dt=1", "dt=1/", "none", "m", strings.Repeat("m", 201), "a/c/d/e"}
	for _, prefix := range prefixes {
		for _, delimiter := range []string{"", "/", "b"} {
			for _, after := range []string{"", "a", "a/b", "a/zzz", "dt=1/x", "zzz"} {
				want := modelList(all, prefix, delimiter, after)
				for _, size := range []int32{1, 2, 3, 1000} {
					in := &s3.ListObjectsV2Input{Prefix: &prefix, MaxKeys: &size}
					if delimiter != "" {
						in.Delimiter = &delimiter
					}
					if after != "" {
						in.StartAfter = &after
					}
					if got := listKeys(t, c, in); !slices.Equal(got, want) {
						t.Fatalf("prefix %q delimiter %q after %q pages of %d:\n got %q\nwant %q", prefix, delimiter, after, size, got, want)
					}
				}
			}
		}
	}
	encoded, err := c.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: aws.String(testBucket), Prefix: aws.String("z%"), EncodingType: types.EncodingTypeUrl})
	if err != nil || len(encoded.Contents) != 1 || *encoded.Contents[0].Key != "z%25z" {
		t.Errorf("URL encoding: %+v, %v", encoded, err)
	}
	none, err := c.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: aws.String(testBucket), MaxKeys: aws.Int32(0)})
	if err != nil || *none.KeyCount != 0 || *none.IsTruncated {
		t.Errorf("no keys asked for: %+v, %v", none, err)
	}
	_, err = c.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: aws.String(testBucket), ContinuationToken: aws.String("!")})
	wantAPIError(t, err, "InvalidArgument", 400)
}

func TestS3JoinsMultipartUploads(t *testing.T) {
	_, c := s3Env(t)
	bucket, key := aws.String(testBucket), aws.String("up/load")
	created, err := c.CreateMultipartUpload(t.Context(), &s3.CreateMultipartUploadInput{Bucket: bucket, Key: key, Metadata: map[string]string{"m": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.NewChaCha8([32]byte{})
	var whole []byte
	var parts []types.CompletedPart
	for n := int32(1); n <= 3; n++ {
		body := make([]byte, minPart+int(n))
		if n == 3 {
			body = body[:10]
		}
		rng.Read(body)
		whole = append(whole, body...)
		out, err := c.UploadPart(t.Context(), &s3.UploadPartInput{Bucket: bucket, Key: key, UploadId: created.UploadId, PartNumber: &n, Body: bytes.NewReader(body)})
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, types.CompletedPart{PartNumber: aws.Int32(n), ETag: out.ETag, ChecksumCRC32: out.ChecksumCRC32})
	}
	listed, err := c.ListParts(t.Context(), &s3.ListPartsInput{Bucket: bucket, Key: key, UploadId: created.UploadId, MaxParts: aws.Int32(2)})
	if err != nil || len(listed.Parts) != 2 || !*listed.IsTruncated || *listed.Parts[1].Size != minPart+2 {
		t.Fatalf("parts: %+v, %v", listed, err)
	}
	complete := func(parts []types.CompletedPart, ifNone *string) (*s3.CompleteMultipartUploadOutput, error) {
		return c.CompleteMultipartUpload(t.Context(), &s3.CompleteMultipartUploadInput{Bucket: bucket, Key: key, UploadId: created.UploadId,
			IfNoneMatch: ifNone, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts}})
	}
	_, err = complete([]types.CompletedPart{parts[1], parts[0]}, nil)
	wantAPIError(t, err, "InvalidPartOrder", 400)
	_, err = complete([]types.CompletedPart{parts[2], {PartNumber: aws.Int32(4), ETag: aws.String("x")}}, nil)
	wantAPIError(t, err, "EntityTooSmall", 400)
	_, err = complete([]types.CompletedPart{{PartNumber: aws.Int32(1), ETag: parts[1].ETag}}, nil)
	wantAPIError(t, err, "InvalidPart", 400)
	s3Put(t, c, *key, "in the way")
	_, err = complete(parts, aws.String("*"))
	wantAPIError(t, err, "PreconditionFailed", 412)
	out, err := complete(parts, nil)
	if err != nil || !strings.HasSuffix(*out.ETag, `-3"`) {
		t.Fatalf("complete: %+v, %v", out, err)
	}
	if got := s3Get(t, c, *key); got != string(whole) {
		t.Errorf("the object has %d bytes, want %d", len(got), len(whole))
	}
	head, err := c.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: bucket, Key: key})
	if err != nil || head.Metadata["m"] != "1" || *head.ETag != *out.ETag {
		t.Errorf("head: %+v, %v", head, err)
	}
	_, err = c.ListParts(t.Context(), &s3.ListPartsInput{Bucket: bucket, Key: key, UploadId: created.UploadId})
	wantAPIError(t, err, "NoSuchUpload", 404)

	second, err := c.CreateMultipartUpload(t.Context(), &s3.CreateMultipartUploadInput{Bucket: bucket, Key: aws.String("never")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.AbortMultipartUpload(t.Context(), &s3.AbortMultipartUploadInput{Bucket: bucket, Key: aws.String("never"), UploadId: second.UploadId}); err != nil {
		t.Fatal(err)
	}
	_, err = c.UploadPart(t.Context(), &s3.UploadPartInput{Bucket: bucket, Key: aws.String("never"), UploadId: second.UploadId, PartNumber: aws.Int32(1), Body: strings.NewReader("x")})
	wantAPIError(t, err, "NoSuchUpload", 404)
	if got := listKeys(t, c, &s3.ListObjectsV2Input{}); len(got) != 1 {
		t.Errorf("listed %q", got)
	}
}

// FuzzS3KeyToPath checks that a path is safe and belongs to one key only.
func FuzzS3KeyToPath(f *testing.F) {
	for _, seed := range []string{"a", "a/b", "..", "a/../b", "//", "%e", "%2E", "\x00", `\`, strings.Repeat(".", 450), strings.Repeat("é", 250), strings.Repeat("%", 201)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if key == "" || !utf8.ValidString(key) {
			return
		}
		path := keyToPath(key)
		var back strings.Builder
		more := true // the next name begins no new segment
		for name := range strings.SplitSeq(path, "/") {
			if name == "" || name == "." || name == ".." || len(name) > maxSegment+len(continued) || strings.HasSuffix(name, besideFolder) {
				t.Fatalf("key %q: unsafe name %q in %q", key, name, path)
			}
			if !more {
				back.WriteByte('/')
			}
			name, more = strings.CutSuffix(name, continued)
			segment, ok := nameToSegment(name)
			if !ok {
				t.Fatalf("key %q: the name %q cannot be read back", key, name)
			}
			back.WriteString(segment)
		}
		if back.String() != key {
			t.Fatalf("key %q became %q and came back as %q", key, path, back.String())
		}
	})
}

func BenchmarkS3Put(b *testing.B) {
	benchmarkS3(b, 0, func(c *s3.Client, n int) error {
		_, err := c.PutObject(b.Context(), &s3.PutObjectInput{Bucket: aws.String(testBucket),
			Key: aws.String(fmt.Sprintf("dt=%03d/%06d", n%100, n)), Body: strings.NewReader("x")})
		return err
	})
}

func BenchmarkS3ListPageOf1000(b *testing.B) {
	benchmarkS3(b, 2000, func(c *s3.Client, n int) error {
		_, err := c.ListObjectsV2(b.Context(), &s3.ListObjectsV2Input{Bucket: aws.String(testBucket)})
		return err
	})
}

func benchmarkS3(b *testing.B, objects int, do func(c *s3.Client, n int) error) {
	env := openFor(b, Options{Dir: b.TempDir()})
	c := s3.NewFromConfig(env.AWSConfig())
	if _, err := c.CreateBucket(b.Context(), &s3.CreateBucketInput{Bucket: aws.String(testBucket)}); err != nil {
		b.Fatal(err)
	}
	for n := range objects {
		if err := env.s3.putBytes(testBucket, fmt.Sprintf("dt=%03d/%06d", n%100, n), []byte("x")); err != nil {
			b.Fatal(err)
		}
	}
	n := 0
	for b.Loop() {
		n++
		if err := do(c, n); err != nil {
			b.Fatal(err)
		}
	}
}
