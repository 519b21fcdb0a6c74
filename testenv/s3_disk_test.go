package testenv

import (
	"crypto/md5"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

func TestS3KeepsCollidingAndOddKeysApart(t *testing.T) {
	env, c := s3Env(t)
	keys := []string{
		"a", "a/b", "a/b/c", "a/", "a//", "a//b", "/", "/lead", "..", "../up", "x/../y", "x/./y", ".", "dir/..",
		"100%", "a%o", "%e", "a%2Fb", "%", "tab\there", `back\slash`, "ü/ñ/日本", "a b+c&d=e?f#g", "q%+",
		strings.Repeat("n", 300), strings.Repeat("n", 200) + "." + strings.Repeat("n", 200) + "..", strings.Repeat("é/", 100), strings.Repeat("%", 400),
		strings.Repeat("n", 200) + "/x", strings.Repeat("n", 200), strings.Repeat("n", 200) + ".",
	}
	// Every order of arrival must do: an object may come before or after the
	// folder of its name.
	for seed := range uint64(5) {
		order := rand.New(rand.NewPCG(seed, 1)).Perm(len(keys))
		for _, i := range order {
			s3Put(t, c, keys[i], fmt.Sprintf("%d %s", seed, keys[i]))
		}
		for _, key := range keys {
			if got, want := s3Get(t, c, key), fmt.Sprintf("%d %s", seed, key); got != want {
				t.Fatalf("key %q holds %q", key, got)
			}
		}
		if got := listKeys(t, c, &s3.ListObjectsV2Input{}); len(got) != len(keys) {
			t.Fatalf("listed %d of %d keys: %q", len(got), len(keys), got)
		}
		if n := len(filesBelow(t, filepath.Join(env.opt.Dir, "s3", testBucket))); n != len(keys) {
			t.Fatalf("%d files for %d objects", n, len(keys))
		}
		if files := s3Files(t, env); len(files) != 2*len(keys) {
			t.Fatalf("%d files for %d objects with metadata", len(files), len(keys))
		}
		for _, i := range order {
			if _, err := c.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: aws.String(testBucket), Key: &keys[i]}); err != nil {
				t.Fatalf("delete %q: %v", keys[i], err)
			}
		}
		entries, err := os.ReadDir(filepath.Join(env.opt.Dir, "s3", testBucket))
		if err != nil || len(entries) != 0 {
			t.Fatalf("an empty bucket's folder holds %v, %v", entries, err)
		}
		if files := s3Files(t, env); len(files) != 0 {
			t.Fatalf("files are left: %v", files)
		}
	}
}

func TestS3DoesNotShowWhatADeadWriterLeft(t *testing.T) {
	env, c := s3Env(t)
	etag := s3Put(t, c, "k", "whole")
	// A writer that dies has written part of a temporary file, or all of it and
	// the sidecar of a version that never got its name.
	st, err := env.s3.stage(func(w io.Writer) (received, error) {
		_, err := io.WriteString(w, "half")
		return received{}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(st.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := env.s3.writeSidecar(env.s3.sidecarPath(testBucket, "k", info), []byte(`{"key":"k","etag":"\"wrong\"","size":4}`)); err != nil {
		t.Fatal(err)
	}
	again := reopen(t, env)
	c = s3Client(again.AWSConfig())
	if got := listKeys(t, c, &s3.ListObjectsV2Input{}); len(got) != 1 {
		t.Errorf("listed %q", got)
	}
	out, err := c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String(testBucket), Key: aws.String("k")})
	if err != nil || *out.ETag != etag {
		t.Errorf("the object before: %v, %v", out, err)
	}
	if got := s3Get(t, c, "k"); got != "whole" {
		t.Errorf("the object holds %q", got)
	}
}

func TestS3KeepsMetadataAcrossRestartAndServesFilesPutIntoTheFolder(t *testing.T) {
	env, c := s3Env(t)
	if _, err := c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String(testBucket), Key: aws.String("kept"),
		Body: strings.NewReader("kept"), Metadata: map[string]string{"window": "3"}}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(env.opt.Dir, "s3", testBucket, "foreign"), []byte("foreign"), 0o666); err != nil {
		t.Fatal(err)
	}
	again := reopen(t, env)
	c = s3Client(again.AWSConfig())
	head, err := c.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: aws.String(testBucket), Key: aws.String("kept")})
	if err != nil || head.Metadata["window"] != "3" {
		t.Errorf("after a restart: %+v, %v", head, err)
	}
	head, err = c.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: aws.String(testBucket), Key: aws.String("foreign")})
	if want := fmt.Sprintf(`"%x"`, md5.Sum([]byte("foreign"))); err != nil || *head.ETag != want {
		t.Errorf("a file put into the folder: %+v, %v", head, err)
	}
}
