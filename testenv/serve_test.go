package testenv

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	awsfirehose "github.com/aws/aws-sdk-go-v2/service/firehose"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestServeRefusesOtherAddressesThanLoopback(t *testing.T) {
	env := openFor(t, Options{Dir: t.TempDir()})
	l := listen(t, "0.0.0.0:0")
	if err := env.Serve(t.Context(), l); err == nil || !strings.Contains(err.Error(), "not a loopback address") {
		t.Errorf("got %v", err)
	}
	if _, err := l.Accept(); err == nil {
		t.Error("the listener is still open")
	}
}

func TestServedEnvAnswersThisMachineOnlyAndEndsWithItsContext(t *testing.T) {
	env := openFor(t, Options{Dir: t.TempDir()})
	l := listen(t, "127.0.0.1:0")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- env.Serve(ctx, l) }()
	url := "http://" + l.Addr().String()

	cfg := env.AWSConfig()
	cfg.HTTPClient, cfg.BaseEndpoint = nil, &url
	client := s3Client(cfg, func(o *s3.Options) { o.UsePathStyle = true })
	if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(testBucket)}); err != nil {
		t.Fatal(err)
	}
	body := bytes.Repeat([]byte("0123456789"), 500_000)
	if _, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String(testBucket), Key: aws.String("k"), Body: bytes.NewReader(body)}); err != nil {
		t.Fatal(err)
	}
	if got := s3Get(t, client, "k"); got != string(body) {
		t.Errorf("got %d bytes back", len(got))
	}

	for name, c := range map[string]struct {
		method, host string
		header       [2]string
		status       int
	}{
		"address":              {"GET", "", [2]string{}, 200},
		"localhost":            {"GET", "localhost:4566", [2]string{}, 200},
		"bucket before a name": {"GET", testBucket + ".localhost", [2]string{}, 200},
		"IPv6 loopback":        {"GET", "[::1]:4566", [2]string{}, 200},
		"Endpoint's name":      {"GET", "aws.internal", [2]string{}, 200},
		"rebound name":         {"GET", "evil.example:4566", [2]string{}, 403},
		"name that ends alike": {"GET", "notlocalhost", [2]string{}, 403},
		"other address":        {"GET", "10.0.0.1", [2]string{}, 403},
		"page of another site": {"POST", "", [2]string{"Sec-Fetch-Site", "cross-site"}, 403},
		"page of an origin":    {"POST", "", [2]string{"Origin", "https://evil.example"}, 403},
		"a large header":       {"GET", "", [2]string{"X-Large", strings.Repeat("x", 2*maxHeader)}, 431},
	} {
		t.Run(name, func(t *testing.T) {
			path := "/"
			if strings.HasPrefix(c.host, testBucket) {
				path = "/k"
			}
			req, err := http.NewRequest(c.method, url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = c.host
			if c.header[0] != "" {
				req.Header.Set(c.header[0], c.header[1])
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body)
			if resp.StatusCode != c.status {
				t.Errorf("got %s, want %d", resp.Status, c.status)
			}
		})
	}

	stop()
	if err := <-ended; err != nil {
		t.Errorf("Serve ended with %v", err)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("the port still answers")
	}
}

func TestRunMakesTimePass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := openFor(t, Options{Dir: t.TempDir()})
		cfg := env.AWSConfig()
		db, hose, objects := dynamodb.NewFromConfig(cfg), awsfirehose.NewFromConfig(cfg), s3Client(cfg)
		d := &durable{Env: env, db: db, hose: hose, objects: objects}
		d.create(t)
		d.bucketAndStream(t)
		d.mustPut(t, "a", "1", map[string]types.AttributeValue{"expires_at": number(time.Now().Unix() + 10)})
		if err := d.send(t, "<1>"); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- env.Run(ctx) }()
		time.Sleep(61 * time.Second) // the buffer's interval, and the next sweep
		synctest.Wait()
		if got := env.FirehoseStats()[testStream]; got.Objects != 1 {
			t.Errorf("Firehose has %+v", got)
		}
		if n := env.db.tables["things"].items; n != 0 {
			t.Errorf("%d items are left", n)
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run ended with %v", err)
		}
	})
}
