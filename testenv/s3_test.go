package testenv

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

var testTime = time.Date(2026, 11, 30, 12, 34, 56, 789e6, time.UTC)

const testBucket = "lake-test"

// onDisk makes every test open a durable Env: TestAllOfThisHoldsOnDisk sets it.
var onDisk = os.Getenv("TESTENV_ON_DISK") != ""

// openFor opens an Env and closes it when the test is over.
func openFor(t testing.TB, opt Options) *Env {
	t.Helper()
	opt.Durable = opt.Durable || onDisk
	env, err := Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	return env
}

// reopen closes an Env and opens another one on its folder.
func reopen(t testing.TB, env *Env) *Env {
	t.Helper()
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	return openFor(t, env.opt)
}

// s3Client is a client with the checksums that the SDK's own configuration chain
// turns on.
func s3Client(cfg aws.Config, options ...func(*s3.Options)) *s3.Client {
	cfg.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenSupported
	cfg.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenSupported
	return s3.NewFromConfig(cfg, options...)
}

// s3Env is an Env with one bucket, and a client in process.
func s3Env(t *testing.T) (*Env, *s3.Client) {
	t.Helper()
	env := openFor(t, Options{Dir: t.TempDir(), Clock: NewManualClock(testTime)})
	client := s3Client(env.AWSConfig())
	if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(testBucket)}); err != nil {
		t.Fatal(err)
	}
	return env, client
}

func s3Put(t *testing.T, c *s3.Client, key, body string) string {
	t.Helper()
	out, err := c.PutObject(t.Context(), &s3.PutObjectInput{
		Bucket: aws.String(testBucket), Key: &key, Body: strings.NewReader(body),
	})
	if err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
	return *out.ETag
}

func s3Get(t *testing.T, c *s3.Client, key string) string {
	t.Helper()
	out, err := c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String(testBucket), Key: &key})
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	body, err := io.ReadAll(out.Body)
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	return string(body)
}

// wantAPIError checks an error's code and HTTP status.
func wantAPIError(t *testing.T, err error, code string, status int) {
	t.Helper()
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok || api.ErrorCode() != code {
		t.Fatalf("error %v, want code %s", err, code)
	}
	if resp, ok := errors.AsType[*awshttp.ResponseError](err); ok && resp.HTTPStatusCode() != status {
		t.Fatalf("%s with status %d, want %d", code, resp.HTTPStatusCode(), status)
	}
}

// filesBelow lists the regular files below a folder, slash-separated.
func filesBelow(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		files = append(files, filepath.ToSlash(rel))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// s3Files lists all files that S3 has.
func s3Files(t *testing.T, e *Env) []string {
	t.Helper()
	return slices.DeleteFunc(filesBelow(t, e.opt.Dir), func(name string) bool { return strings.HasPrefix(name, "db") })
}

func TestS3ServesTheSDKInProcessAndOverHTTP(t *testing.T) {
	for name, connect := range map[string]func(*testing.T, *Env) *s3.Client{
		"in process, bucket in the host": func(t *testing.T, e *Env) *s3.Client { return s3Client(e.AWSConfig()) },
		"in process, bucket in the path": func(t *testing.T, e *Env) *s3.Client {
			return s3Client(e.AWSConfig(), func(o *s3.Options) { o.UsePathStyle = true })
		},
		"over HTTP": func(t *testing.T, e *Env) *s3.Client {
			server := httptest.NewServer(e)
			t.Cleanup(server.Close)
			cfg := e.AWSConfig()
			cfg.HTTPClient, cfg.BaseEndpoint = nil, &server.URL
			return s3Client(cfg)
		},
		"over TLS, where the client sends chunks with a trailing checksum": func(t *testing.T, e *Env) *s3.Client {
			server := httptest.NewTLSServer(e)
			t.Cleanup(server.Close)
			cfg := e.AWSConfig()
			cfg.HTTPClient, cfg.BaseEndpoint = server.Client(), &server.URL
			return s3Client(cfg)
		},
	} {
		t.Run(name, func(t *testing.T) {
			env := openFor(t, Options{Dir: t.TempDir(), Clock: NewManualClock(testTime), Sync: true})
			c := connect(t, env)
			bucket := aws.String(testBucket)
			if _, err := c.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: bucket}); err != nil {
				t.Fatal(err)
			}
			if _, err := c.HeadBucket(t.Context(), &s3.HeadBucketInput{Bucket: bucket}); err != nil {
				t.Fatal(err)
			}
			_, err := c.HeadBucket(t.Context(), &s3.HeadBucketInput{Bucket: aws.String("no-bucket")})
			wantAPIError(t, err, "NotFound", 404)
			buckets, err := c.ListBuckets(t.Context(), &s3.ListBucketsInput{})
			if err != nil || len(buckets.Buckets) != 1 || *buckets.Buckets[0].Name != testBucket {
				t.Fatalf("buckets: %+v, %v", buckets, err)
			}
			key := aws.String("dt=2026-11-30/part one+two.parquet")
			body := bytes.Repeat([]byte("0123456789abcdef"), 200_000) // large enough that the client waits for 100-continue
			put, err := c.PutObject(t.Context(), &s3.PutObjectInput{
				Bucket: bucket, Key: key, Body: bytes.NewReader(body), ContentType: aws.String("application/vnd.apache.parquet"),
				Metadata: map[string]string{"window": "7", "rows": "12"},
			})
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf(`"%x"`, md5.Sum(body)); *put.ETag != want {
				t.Errorf("ETag %s, want %s", *put.ETag, want)
			}
			get, err := c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: bucket, Key: key})
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(get.Body) // the SDK holds it against the CRC32
			if err != nil || !bytes.Equal(got, body) {
				t.Fatalf("read %d bytes, %v; want %d", len(got), err, len(body))
			}
			if get.ChecksumCRC32 == nil {
				t.Error("the checksum of the put is not answered")
			}
			head, err := c.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: bucket, Key: key})
			if err != nil {
				t.Fatal(err)
			}
			if *head.ContentLength != int64(len(body)) || *head.ContentType != "application/vnd.apache.parquet" ||
				head.Metadata["window"] != "7" || head.Metadata["rows"] != "12" || *head.ETag != *put.ETag ||
				!head.LastModified.Equal(testTime.Truncate(time.Second)) {
				t.Errorf("head: %+v", head)
			}
			plain, err := os.ReadFile(filepath.Join(env.opt.Dir, "s3", testBucket, "dt=2026-11-30", "part one+two.parquet"))
			if err != nil || !bytes.Equal(plain, body) {
				t.Errorf("the object is not a plain file of its key: %v", err)
			}
			unseekable := struct{ io.Reader }{bytes.NewReader(body)}
			if strings.Contains(name, "TLS") {
				_, err := c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: bucket, Key: aws.String("stream"), Body: unseekable, ContentLength: aws.Int64(int64(len(body)))})
				if err != nil {
					t.Errorf("put of a stream: %v", err)
				}
			}
			if _, err := c.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: bucket, Key: key}); err != nil {
				t.Fatal(err)
			}
			_, err = c.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: bucket, Key: key})
			wantAPIError(t, err, "NotFound", 404)
			_, err = c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: bucket, Key: key})
			if _, ok := errors.AsType[*types.NoSuchKey](err); !ok {
				t.Errorf("get of a deleted object: %v", err)
			}
		})
	}
}

func TestS3CreateOnlyLetsExactlyOneOfManyWin(t *testing.T) {
	env, c := s3Env(t)
	// Two servers on one folder, as of a process and its successor: this one
	// promise does not rest on the server's locks.
	opt := env.opt
	opt.Durable = false // of which there is one at a time
	other, err := Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	clients := []*s3.Client{c, s3Client(other.AWSConfig())}
	var won, refused atomic.Int32
	var winner atomic.Value
	var group sync.WaitGroup
	for i := range 100 {
		group.Go(func() {
			body := fmt.Sprintf("writer %d", i)
			_, err := clients[i%2].PutObject(context.Background(), &s3.PutObjectInput{
				Bucket: aws.String(testBucket), Key: aws.String("a/b/once"), Body: strings.NewReader(body), IfNoneMatch: aws.String("*"),
			})
			api, ok := errors.AsType[smithy.APIError](err)
			switch {
			case err == nil:
				won.Add(1)
				winner.Store(body)
			case ok && api.ErrorCode() == "PreconditionFailed":
				refused.Add(1)
			default:
				t.Errorf("unexpected: %v", err)
			}
		})
	}
	group.Wait()
	if won.Load() != 1 || refused.Load() != 99 {
		t.Fatalf("%d won and %d were refused", won.Load(), refused.Load())
	}
	if got := s3Get(t, c, "a/b/once"); got != winner.Load() {
		t.Errorf("the object holds %q, the winner wrote %q", got, winner.Load())
	}
	if left := filesBelow(t, filepath.Join(env.opt.Dir, "s3-meta", "tmp")); len(left) != 0 {
		t.Errorf("temporary files are left: %v", left)
	}
}

func TestS3WriteConditions(t *testing.T) {
	_, c := s3Env(t)
	bucket, key := aws.String(testBucket), aws.String("k")
	put := func(in s3.PutObjectInput) error {
		in.Bucket, in.Key = bucket, key
		if in.Body == nil {
			in.Body = strings.NewReader("new")
		}
		_, err := c.PutObject(t.Context(), &in)
		return err
	}
	wantAPIError(t, put(s3.PutObjectInput{IfMatch: aws.String(`"x"`)}), "NoSuchKey", 404)
	etag := s3Put(t, c, "k", "old")
	wantAPIError(t, put(s3.PutObjectInput{IfNoneMatch: aws.String("*")}), "PreconditionFailed", 412)
	wantAPIError(t, put(s3.PutObjectInput{IfMatch: aws.String(`"x"`)}), "PreconditionFailed", 412)
	if got := s3Get(t, c, "k"); got != "old" {
		t.Fatalf("a refused put left %q", got)
	}
	if err := put(s3.PutObjectInput{IfMatch: &etag}); err != nil {
		t.Fatal(err)
	}
	_, err := c.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: bucket, Key: key, IfMatch: &etag})
	wantAPIError(t, err, "PreconditionFailed", 412)
	if _, err := c.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: bucket, Key: aws.String("none"), IfMatch: &etag}); err != nil {
		t.Errorf("conditional delete of a missing object: %v", err)
	}
	sum := md5.Sum([]byte("other"))
	wantAPIError(t, put(s3.PutObjectInput{ContentMD5: aws.String(base64.StdEncoding.EncodeToString(sum[:]))}), "BadDigest", 400)
	wantAPIError(t, put(s3.PutObjectInput{Metadata: map[string]string{"big": strings.Repeat("x", 2048)}}), "MetadataTooLarge", 400)
	if got := s3Get(t, c, "k"); got != "new" {
		t.Errorf("the object holds %q", got)
	}
	_, err = c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String("no-bucket"), Key: key, Body: strings.NewReader("")})
	wantAPIError(t, err, "NoSuchBucket", 404)
}

func TestS3ReadsRangesAndHonoursReadConditions(t *testing.T) {
	_, c := s3Env(t)
	etag := s3Put(t, c, "k", "0123456789")
	for _, tt := range []struct{ ask, body, answered string }{
		{"bytes=0-3", "0123", "bytes 0-3/10"},
		{"bytes=7-", "789", "bytes 7-9/10"},
		{"bytes=-4", "6789", "bytes 6-9/10"},
		{"bytes=-40", "0123456789", "bytes 0-9/10"},
		{"bytes=8-100", "89", "bytes 8-9/10"},
		{"bytes=5-2", "0123456789", ""},
		{"lines=1-2", "0123456789", ""},
		{"bytes=0-1,4-5", "0123456789", ""},
	} {
		out, err := c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String(testBucket), Key: aws.String("k"), Range: &tt.ask})
		if err != nil {
			t.Fatalf("%s: %v", tt.ask, err)
		}
		body, err := io.ReadAll(out.Body)
		if err != nil || string(body) != tt.body || aws.ToString(out.ContentRange) != tt.answered {
			t.Errorf("%s: %q, range %q, %v", tt.ask, body, aws.ToString(out.ContentRange), err)
		}
	}
	_, err := c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String(testBucket), Key: aws.String("k"), Range: aws.String("bytes=10-")})
	wantAPIError(t, err, "InvalidRange", 416)
	_, err = c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String(testBucket), Key: aws.String("k"), IfMatch: aws.String(`"x"`)})
	wantAPIError(t, err, "PreconditionFailed", 412)
	_, err = c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String(testBucket), Key: aws.String("k"), IfNoneMatch: &etag})
	wantAPIError(t, err, "NotModified", 304)
	if _, err = c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String(testBucket), Key: aws.String("k"), IfMatch: &etag}); err != nil {
		t.Error(err)
	}
}

func TestS3ReadSeesTheOldOrTheNewObject(t *testing.T) {
	_, c := s3Env(t)
	bucket := aws.String(testBucket)
	write := func(n int) error {
		_, err := c.PutObject(context.Background(), &s3.PutObjectInput{Bucket: bucket, Key: aws.String("k"),
			Body: bytes.NewReader(bytes.Repeat([]byte{byte('a' + n%26)}, 1000+n)), Metadata: map[string]string{"n": fmt.Sprint(n)}})
		return err
	}
	if err := write(0); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		for n := range 200 {
			if err := write(n); err != nil {
				t.Error(err)
			}
		}
	})
	for range 4 {
		group.Go(func() {
			for range 200 {
				out, err := c.GetObject(context.Background(), &s3.GetObjectInput{Bucket: bucket, Key: aws.String("k")})
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(out.Body)
				n := len(body) - 1000
				if err != nil || n < 0 || out.Metadata["n"] != fmt.Sprint(n) || *out.ETag != fmt.Sprintf(`"%x"`, md5.Sum(body)) ||
					!bytes.Equal(body, bytes.Repeat(body[:1], len(body))) {
					t.Errorf("a mixed read: %d bytes, metadata %v, %v", len(body), out.Metadata, err)
				}
			}
		})
	}
	group.Wait()
}

func TestS3CopiesObjects(t *testing.T) {
	_, c := s3Env(t)
	bucket := aws.String(testBucket)
	if _, err := c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: bucket, Key: aws.String("from é+"),
		Body: strings.NewReader("body"), Metadata: map[string]string{"m": "1"}}); err != nil {
		t.Fatal(err)
	}
	copyTo := func(in s3.CopyObjectInput) error {
		in.Bucket, in.CopySource = bucket, aws.String(testBucket+"/from%20%C3%A9%2B")
		_, err := c.CopyObject(t.Context(), &in)
		return err
	}
	if err := copyTo(s3.CopyObjectInput{Key: aws.String("to")}); err != nil {
		t.Fatal(err)
	}
	head, err := c.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: bucket, Key: aws.String("to")})
	if err != nil || head.Metadata["m"] != "1" || s3Get(t, c, "to") != "body" {
		t.Errorf("copy: %+v, %v", head, err)
	}
	wantAPIError(t, copyTo(s3.CopyObjectInput{Key: aws.String("to"), IfNoneMatch: aws.String("*")}), "PreconditionFailed", 412)
	wantAPIError(t, copyTo(s3.CopyObjectInput{Key: aws.String("to2"), CopySourceIfMatch: aws.String(`"x"`)}), "PreconditionFailed", 412)
	if err := copyTo(s3.CopyObjectInput{Key: aws.String("to3"), MetadataDirective: types.MetadataDirectiveReplace, Metadata: map[string]string{"m": "2"}}); err != nil {
		t.Fatal(err)
	}
	head, err = c.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: bucket, Key: aws.String("to3")})
	if err != nil || head.Metadata["m"] != "2" {
		t.Errorf("copy with new metadata: %+v, %v", head, err)
	}
}

func TestS3DeletesManyObjects(t *testing.T) {
	_, c := s3Env(t)
	s3Put(t, c, "a", "1")
	s3Put(t, c, "b/c", "2")
	out, err := c.DeleteObjects(t.Context(), &s3.DeleteObjectsInput{Bucket: aws.String(testBucket), Delete: &types.Delete{Objects: []types.ObjectIdentifier{
		{Key: aws.String("a"), ETag: aws.String(`"x"`)}, {Key: aws.String("b/c")}, {Key: aws.String("none")},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Deleted) != 2 || len(out.Errors) != 1 || *out.Errors[0].Key != "a" || *out.Errors[0].Code != "PreconditionFailed" {
		t.Errorf("deleted %v, errors %v", out.Deleted, out.Errors)
	}
	if got := listKeys(t, c, &s3.ListObjectsV2Input{}); len(got) != 1 || got[0] != "a" {
		t.Errorf("left: %q", got)
	}
}

func TestS3RefusesWhatItDoesNotImplement(t *testing.T) {
	_, c := s3Env(t)
	s3Put(t, c, "k", "body")
	_, err := c.PutObjectTagging(t.Context(), &s3.PutObjectTaggingInput{Bucket: aws.String(testBucket), Key: aws.String("k"),
		Tagging: &types.Tagging{TagSet: []types.Tag{{Key: aws.String("a"), Value: aws.String("b")}}}})
	wantAPIError(t, err, "NotImplemented", 501)
	_, err = c.GetBucketAcl(t.Context(), &s3.GetBucketAclInput{Bucket: aws.String(testBucket)})
	wantAPIError(t, err, "NotImplemented", 501)
	if got := s3Get(t, c, "k"); got != "body" {
		t.Errorf("the object now holds %q", got)
	}
	_, err = c.DeleteBucket(t.Context(), &s3.DeleteBucketInput{Bucket: aws.String(testBucket)})
	wantAPIError(t, err, "BucketNotEmpty", 409)
	_, err = c.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(testBucket)})
	wantAPIError(t, err, "BucketAlreadyOwnedByYou", 409)
}

func TestS3WorksInASynctestBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := openFor(t, Options{Dir: t.TempDir()})
		c := s3Client(env.AWSConfig())
		if _, err := c.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(testBucket)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		s3Put(t, c, "k", "body")
		head, err := c.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: aws.String(testBucket), Key: aws.String("k")})
		if err != nil || !head.LastModified.Equal(time.Now()) {
			t.Errorf("modified %v at %v: %v", head.LastModified, time.Now(), err)
		}
	})
}
