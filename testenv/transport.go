package testenv

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
)

// Endpoint is the base endpoint of AWSConfig. It is never resolved or dialled.
const Endpoint = "http://aws.internal"

// Transport returns a round tripper that calls the Env's handler in the caller's
// goroutine: no socket, no goroutine, nothing that blocks on anything but the Env's
// own short locks. It therefore works inside a testing/synctest bubble.
func (e *Env) Transport() http.RoundTripper { return transport{e} }

// AWSConfig returns a configuration with which unchanged SDK clients talk to the Env in
// process: static test credentials, the Env's region, Transport and Endpoint.
func (e *Env) AWSConfig() aws.Config {
	return aws.Config{
		Region:       e.opt.Region,
		Credentials:  credentials.NewStaticCredentialsProvider("test", "test", ""),
		HTTPClient:   transport{e},
		BaseEndpoint: aws.String(Endpoint),
	}
}

type transport struct{ handler http.Handler }

// Do makes the transport an aws.HTTPClient: the SDK follows no redirects and keeps no
// cookies, so it has no need of an http.Client.
func (t transport) Do(req *http.Request) (*http.Response, error) { return t.RoundTrip(req) }

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close()
	}
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	in := *req
	if in.Body == nil {
		in.Body = http.NoBody
	}
	if in.Host == "" {
		in.Host = in.URL.Host
	}
	in.RequestURI = in.URL.RequestURI()
	in.RemoteAddr = "in-process"
	w := &responseWriter{header: make(http.Header, 8)}
	if err := t.serve(w, &in); err != nil {
		return nil, err
	}
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	length := int64(w.body.Len())
	if req.Method == http.MethodHead {
		length = -1
		if n, ok := contentLength(w.sent); ok {
			length = n
		}
		w.body.Reset()
	}
	return &http.Response{
		Status:        strconv.Itoa(w.status) + " " + http.StatusText(w.status),
		StatusCode:    w.status,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        w.sent,
		Body:          io.NopCloser(&w.body),
		ContentLength: length,
		Request:       req,
	}, nil
}

// errBroken is a connection that ended without an answer.
var errBroken = fmt.Errorf("read answer: %w", io.ErrUnexpectedEOF)

// serve calls the handler. One that breaks off, as net/http lets it, has no answer.
func (t transport) serve(w http.ResponseWriter, r *http.Request) (err error) {
	defer func() {
		if v := recover(); v == http.ErrAbortHandler {
			err = errBroken
		} else if v != nil {
			panic(v)
		}
	}()
	t.handler.ServeHTTP(w, r)
	return nil
}

// responseWriter keeps a response in memory.
type responseWriter struct {
	header, sent http.Header // sent is what header was when the status was written
	status       int
	body         bytes.Buffer
}

func (w *responseWriter) Header() http.Header { return w.header }

func (w *responseWriter) WriteHeader(status int) {
	if w.status != 0 || status < 200 {
		return
	}
	w.status = status
	w.sent = w.header.Clone()
}

func (w *responseWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return w.body.Write(p)
}

func contentLength(h http.Header) (int64, bool) {
	n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64)
	return n, err == nil && n >= 0
}
