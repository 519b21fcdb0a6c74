package testenv

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

func TestS3VerifiesChunkedBodies(t *testing.T) {
	env, c := s3Env(t)
	for _, tt := range []struct {
		name, body string
		decoded    string
		status     int
	}{
		{"good", "5;chunk-signature=0\r\nhello\r\n6\r\n world\r\n0\r\nx-amz-checksum-crc32:DUoRhQ==\r\n\r\n", "11", 200},
		{"wrong checksum", "b\r\nhello world\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n", "11", 400},
		{"no trailer", "b\r\nhello world\r\n0\r\n\r\n", "11", 400},
		{"cut in a chunk", "b\r\nhello wo", "11", 400},
		{"cut before the last chunk", "b\r\nhello world\r\n", "11", 400},
		{"wrong length", "b\r\nhello world\r\n0\r\nx-amz-checksum-crc32:DUoRhQ==\r\n\r\n", "12", 400},
		{"no chunk", "hello world", "11", 400},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/"+testBucket+"/k", strings.NewReader(tt.body))
		r.Header.Set("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
		r.Header.Set("Content-Encoding", "aws-chunked")
		r.Header.Set("x-amz-decoded-content-length", tt.decoded)
		r.Header.Set("x-amz-trailer", "x-amz-checksum-crc32")
		w := httptest.NewRecorder()
		env.ServeHTTP(w, r)
		if w.Code != tt.status {
			t.Errorf("%s: status %d: %s", tt.name, w.Code, w.Body)
		}
	}
	if got := s3Get(t, c, "k"); got != "hello world" {
		t.Errorf("the object holds %q", got)
	}
	head, err := c.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: aws.String(testBucket), Key: aws.String("k")})
	if err != nil || head.ContentEncoding != nil {
		t.Errorf("the transfer's encoding became the object's: %v, %v", aws.ToString(head.ContentEncoding), err)
	}
}

func TestS3VerifiesEveryChecksumItAccepts(t *testing.T) {
	_, c := s3Env(t)
	for _, algo := range []types.ChecksumAlgorithm{types.ChecksumAlgorithmCrc32, types.ChecksumAlgorithmCrc32c,
		types.ChecksumAlgorithmCrc64nvme, types.ChecksumAlgorithmSha1, types.ChecksumAlgorithmSha256} {
		_, err := c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String(testBucket), Key: aws.String("k"),
			Body: strings.NewReader("123456789"), ChecksumAlgorithm: algo})
		if err != nil {
			t.Errorf("%s: %v", algo, err)
		}
	}
	_, err := c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String(testBucket), Key: aws.String("k"),
		Body: strings.NewReader("123456789"), ChecksumCRC64NVME: aws.String("rosUhgp5mIE=")})
	wantAPIError(t, err, "BadDigest", 400)
}
