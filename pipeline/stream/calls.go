package stream

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// Requests counts what a Reader asked of the service, with the SDK's retries. GetRecords is billed;
// the others are free.
type Requests struct {
	DescribeStream   int64
	GetShardIterator int64
	GetRecords       int64
	Retries          int64 // of these; the SDK's, within one call
}

type calls struct{ describe, iterator, records, retries atomic.Int64 }

// Requests returns the counts since New.
func (r *Reader) Requests() Requests {
	c := &r.calls
	return Requests{c.describe.Load(), c.iterator.Load(), c.records.Load(), c.retries.Load()}
}

// counted counts a call by its attempts.
func (r *Reader) counted(n *atomic.Int64, m middleware.Metadata, err error) {
	attempts := 1
	if done, ok := retry.GetAttemptResults(m); ok {
		attempts = max(1, len(done.Results))
	}
	if e, ok := errors.AsType[*retry.MaxAttemptsError](err); ok {
		attempts = max(1, e.Attempt)
	}
	n.Add(int64(attempts))
	r.calls.retries.Add(int64(attempts - 1))
}

// call runs one operation within callTimeout. The SDK panics on some answers that are no JSON: they
// are answers that were not understood, as all others that are not.
func call[In, Out any](ctx context.Context, in *In, op func(context.Context, *In, ...func(*dynamodbstreams.Options)) (*Out, error)) (out *Out, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			out, err = nil, fmt.Errorf("read the service's answer: %v", p)
		}
	}()
	return op(ctx, in)
}

// serverTime is the service's clock as its answer gives it, in whole seconds rounded down. Times
// of records, tips and gaps are all of that clock, so that skew does not matter. An answer that
// does not say is a local server's, whose clock is ours.
func (r *Reader) serverTime(m middleware.Metadata, err error) time.Time {
	at, ok := awsmiddleware.GetServerTime(m)
	if e, is := errors.AsType[*smithyhttp.ResponseError](err); !ok && is && e.Response != nil {
		if t, err := smithyhttp.ParseTime(e.Response.Header.Get("Date")); err == nil {
			at, ok = t, true
		}
	}
	if !ok {
		return r.serverNow().Truncate(time.Second)
	}
	r.skew.Store(int64(at.Sub(r.o.Now())))
	return at.UTC()
}

// serverNow is the service's clock between answers.
func (r *Reader) serverNow() time.Time { return r.o.Now().Add(time.Duration(r.skew.Load())).UTC() }
