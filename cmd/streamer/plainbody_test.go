package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go/middleware"
)

// A hastyTransport does with a body what net/http does if an answer's headers come before it has seen
// the body's end: the SDK has closed it by then.
type hastyTransport struct {
	next  http.RoundTripper
	texts []string
	errs  []error // of copying what is left of a closed body
}

func (h *hastyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if err := r.Body.Close(); err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, r.Body)
	h.texts, h.errs = append(h.texts, fmt.Sprintf("%d %s", r.ContentLength, text)), append(h.errs, err)
	r.Body = io.NopCloser(bytes.NewReader(text))
	return h.next.RoundTrip(r)
}

func TestABodyThatTheSDKHasClosedIsNoFailedWrite(t *testing.T) {
	env := newMappedTable(t, 1, 1).env
	h := &hastyTransport{next: env.Transport()}
	cfg := env.AWSConfig()
	cfg.HTTPClient = &http.Client{Transport: h}
	for _, with := range []bool{false, true} {
		if with {
			cfg.APIOptions = append(cfg.APIOptions, plainBodies)
		}
		if _, err := dynamodb.NewFromConfig(cfg).ListTables(t.Context(), &dynamodb.ListTablesInput{Limit: aws.Int32(7)}); err != nil {
			t.Fatal(err)
		}
	}
	if !errors.Is(h.errs[0], io.EOF) {
		t.Errorf("without plainBodies: %v; if the SDK does that no more, nobody needs them", h.errs[0])
	}
	if h.errs[1] != nil || h.texts[1] != h.texts[0] || !strings.Contains(h.texts[1], `"Limit":7`) {
		t.Errorf("with plainBodies: %v, sent %q instead of %q", h.errs[1], h.texts[1], h.texts[0])
	}
}

// A heldConn returns from the write of a request's body only when the SDK has closed that body.
type heldConn struct {
	net.Conn
	closed chan struct{}
}

func (c heldConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if bytes.Contains(p, []byte(bodyMark)) {
		<-c.closed
	}
	return n, err
}

const bodyMark = "the-body"

// serveHeaders answers with headers as soon as it has read a request, and with a body when the other
// side has closed the connection, or does not for a while.
func serveHeaders(l net.Listener) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return err
	}
	const text = `{"TableNames":[]}`
	if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: %d\r\n\r\n", len(text)); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		return err
	}
	_, _ = c.Read(make([]byte, 1))
	_, _ = io.WriteString(c, text) // nobody may be there
	return nil
}

func TestAnAnswerThatComesBeforeTheBodysEndIsSeenIsRead(t *testing.T) {
	for _, with := range []bool{false, true} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- serveHeaders(l) }()
		closed := make(chan struct{})
		cfg := aws.Config{
			Region: "us-east-1", BaseEndpoint: aws.String("http://" + l.Addr().String()), RetryMaxAttempts: 1,
			HTTPClient: &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, network, addr)
				return heldConn{c, closed}, err
			}}},
			Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
			}),
			APIOptions: []func(*middleware.Stack) error{func(s *middleware.Stack) error {
				return s.Deserialize.Add(middleware.DeserializeMiddlewareFunc("Closed", func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
					out, meta, err := next.HandleDeserialize(ctx, in)
					close(closed) // the SDK's transport has returned
					return out, meta, err
				}), middleware.After)
			}},
		}
		if with {
			cfg.APIOptions = append(cfg.APIOptions, plainBodies)
		}
		_, err = dynamodb.NewFromConfig(cfg).ListTables(t.Context(), &dynamodb.ListTablesInput{ExclusiveStartTableName: aws.String(bodyMark)})
		if (err == nil) != with {
			t.Errorf("with plainBodies %t: %v", with, err)
		}
		if err := errors.Join(<-served, l.Close()); err != nil {
			t.Error(err)
		}
	}
}
