package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/firehose"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// Services may be at different endpoints: S3 and Firehose of one AWS, DynamoDB of another.
func TestEachServiceIsAskedAtItsOwnEndpoint(t *testing.T) {
	ctx := t.Context()
	asked := func(c clients) {
		// Nothing sensible is answered; what counts is who was asked.
		_, _ = c.dynamodb.ListTables(ctx, &dynamodb.ListTablesInput{})
		_, _ = c.streams.ListStreams(ctx, &dynamodbstreams.ListStreamsInput{})
		_, _ = c.firehose.ListDeliveryStreams(ctx, &firehose.ListDeliveryStreamsInput{})
		_, _ = c.s3.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: aws.String("bucket")})
	}
	var mu sync.Mutex
	var got []string
	server := func(name string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, name+" "+r.URL.Path+r.Header.Get("X-Amz-Target"))
			w.WriteHeader(http.StatusTeapot)
		}))
		t.Cleanup(s.Close)
		// By name: for an address the SDK asks by path anyway.
		return strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
	}
	for _, v := range []string{"AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"} {
		t.Setenv(v, "")
	}
	t.Setenv("AWS_REGION", "eu-west-1")
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	for _, service := range []string{"DYNAMODB", "DYNAMODB_STREAMS", "FIREHOSE", "S3"} {
		t.Setenv("AWS_ENDPOINT_URL_"+service, server(service))
	}
	for _, common := range []string{"", server("common")} { // the service's own endpoint is the stronger one
		if common != "" {
			t.Setenv("AWS_ENDPOINT_URL", common)
		}
		c, err := connect(ctx)
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		asked(c)
		want := []string{
			"DYNAMODB /DynamoDB_20120810.ListTables",
			"DYNAMODB_STREAMS /DynamoDBStreams_20120810.ListStreams",
			"FIREHOSE /Firehose_20150804.ListDeliveryStreams",
			"S3 /bucket", // by path: bucket.localhost may be nobody
		}
		if !slices.Equal(got, want) {
			t.Errorf("with AWS_ENDPOINT_URL %q\nasked %q\n want %q", common, got, want)
		}
	}
}
