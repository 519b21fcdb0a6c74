package testenv

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
)

// A Request is what Options.Fault is told about a request.
type Request struct {
	// Service is dynamodb, streams, firehose or s3.
	Service string
	// Operation is as the API names it: PutItem, GetRecords, PutRecordBatch, ListObjectsV2.
	Operation string
	// Resource is the table, the stream's ARN, the delivery stream's name, or bucket/key;
	// empty where a request names none or many, as a transaction does.
	Resource string
}

// A Fault is how a request fails.
type Fault struct {
	// Code is the error's code, as the service's API names it. Empty: there is no answer,
	// the connection breaks.
	Code string
	// Status is the HTTP status; 0: 503 for SlowDown, 500 for what the services call their
	// own fault (InternalServerError, InternalFailure, InternalError,
	// ServiceUnavailableException), else 400.
	Status int
	// After carries the request out first: only its answer is lost.
	After bool
}

// faultStatus has the statuses that are not 400, from the API models of the services.
var faultStatus = map[string]int{
	"SlowDown":                    http.StatusServiceUnavailable,
	"ServiceUnavailable":          http.StatusServiceUnavailable,
	"InternalError":               http.StatusInternalServerError,
	"InternalServerError":         http.StatusInternalServerError,
	"InternalFailure":             http.StatusInternalServerError,
	"ServiceUnavailableException": http.StatusInternalServerError,
}

// usualFaults are what each service answers when it is asked too much, or fails itself.
var usualFaults = map[string][]string{
	"dynamodb": {"ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded", "InternalServerError"},
	"streams":  {"LimitExceededException", "ThrottlingException", "InternalServerError"},
	"firehose": {"ServiceUnavailableException", "InternalFailure"},
	"s3":       {"SlowDown", "InternalError"},
}

// SeededFaults returns a function for Options.Fault that lets a share of all requests (0 to 1)
// fail: half of those with an error the service itself would answer, before they do anything;
// the others without an answer, done or not. A request that is tried again has the same chance.
// The same seed and the same requests in the same order meet the same faults.
func SeededFaults(seed uint64, share float64) func(Request) *Fault {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 0xfa17))
	return func(r Request) *Fault {
		mu.Lock()
		defer mu.Unlock()
		if rng.Float64() >= share {
			return nil
		}
		codes := usualFaults[r.Service]
		code, kind := codes[rng.IntN(len(codes))], rng.IntN(4)
		if kind < 2 {
			return &Fault{Code: code}
		}
		return &Fault{After: kind == 3}
	}
}

// serviceNames are the services by the first part of X-Amz-Target.
var serviceNames = map[string]string{
	"DynamoDB_20120810":        "dynamodb",
	"DynamoDBStreams_20120810": "streams",
	"Firehose_20150804":        "firehose",
}

// serveFaulty answers a request as Options.Fault wants it answered, by serve where nothing is
// in the way.
func (e *Env) serveFaulty(w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
	req, err := describeRequest(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f := e.opt.Fault(req)
	if f == nil {
		serve(w, r)
		return
	}
	if f.After {
		serve(&responseWriter{header: make(http.Header)}, r)
	}
	if f.Code == "" {
		panic(http.ErrAbortHandler) // the way to break off an answer
	}
	status := cmp.Or(f.Status, faultStatus[f.Code], http.StatusBadRequest)
	message := "This failure was asked for by Options.Fault."
	if req.Service == "s3" {
		w.Header().Set("x-amz-request-id", e.ids.requestID())
		writeS3Error(w, r, &s3Error{status, f.Code, message})
		return
	}
	body, _ := json.Marshal(map[string]string{"__type": f.Code, "message": message}) // always has a JSON form
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.Header().Set("X-Amzn-Errortype", f.Code)
	w.Header().Set("X-Amzn-Requestid", e.ids.requestID())
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that went away is no fault of ours
}

// describeRequest says what a request is, and leaves it as it was.
func describeRequest(r *http.Request) (Request, error) {
	target, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	service, ok := serviceNames[target]
	if !ok {
		r = pathStyle(r)
		return Request{"s3", s3Operation(r), strings.TrimPrefix(r.URL.Path, "/")}, nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRequest+1))
	if err != nil {
		return Request{}, fmt.Errorf("read request: %w", err)
	}
	rest := r.Body
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), rest), rest}
	var names struct{ TableName, StreamArn, ShardIterator, DeliveryStreamName string }
	_ = json.Unmarshal(body, &names) // what is no JSON names nothing, and the service says so
	arn, _, _ := strings.Cut(names.ShardIterator, iteratorSeparate)
	return Request{service, operation, cmp.Or(names.StreamArn, arn, names.TableName, names.DeliveryStreamName)}, nil
}

// s3Operation names the operation of a path-style S3 request.
func s3Operation(r *http.Request) string {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	q := r.URL.Query()
	switch {
	case bucket == "":
		return "ListBuckets"
	case key == "" && q.Has("delete"):
		return "DeleteObjects"
	case key == "":
		return map[string]string{"PUT": "CreateBucket", "HEAD": "HeadBucket", "DELETE": "DeleteBucket", "GET": "ListObjectsV2"}[r.Method]
	case q.Has("uploads"):
		return "CreateMultipartUpload"
	case q.Has("uploadId"):
		return map[string]string{"PUT": "UploadPart", "POST": "CompleteMultipartUpload", "DELETE": "AbortMultipartUpload", "GET": "ListParts"}[r.Method]
	case r.Method == http.MethodPut && r.Header.Get("X-Amz-Copy-Source") != "":
		return "CopyObject"
	}
	return map[string]string{"PUT": "PutObject", "GET": "GetObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}[r.Method]
}
