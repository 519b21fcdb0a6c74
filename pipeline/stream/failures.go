package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"
	"github.com/aws/smithy-go"

	"telemetrylake/pipeline"
)

// failures spaces the attempts at something that fails for a while.
type failures struct {
	n     int
	until time.Time
	err   error // the last
}

// again notes one more failure. The wait doubles up to limit and is drawn from its upper
// half, so that shards that failed together do not come back together.
func (f *failures) again(now time.Time, base, limit time.Duration) {
	f.until = now.Add(backoff(f.n, base, limit))
	f.n++
}

func (f *failures) waiting(now time.Time) bool { return f.n > 0 && now.Before(f.until) }

func backoff(n int, base, limit time.Duration) time.Duration {
	d := limit
	if n < 16 {
		d = min(limit, base<<n)
	}
	return pipeline.Jitter(d)
}

// troubles gathers what failed for a while, and names only some of it: with hundreds of shards
// one cause has hundreds of errors.
type troubles struct {
	errs []error
	n    int
}

const maxTroubles = 4

func (t *troubles) add(err error) {
	if err == nil {
		return
	}
	if t.n++; len(t.errs) < maxTroubles {
		t.errs = append(t.errs, err)
	}
}

func (t *troubles) join() error {
	if more := t.n - len(t.errs); more > 0 {
		return errors.Join(append(t.errs[:len(t.errs):len(t.errs)], fmt.Errorf("and %d more", more))...)
	}
	return errors.Join(t.errs...)
}

// passes reports whether a call may succeed later without anybody's help: throttling, the
// service's own faults, and a connection that failed or hung. What the caller cancelled
// does not.
func passes(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() != nil {
		return false
	}
	if _, person := errors.AsType[*pipeline.PersonError](err); person {
		return false
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errListing) || errors.Is(err, errUnnamed) {
		return true
	}
	if _, ok := errors.AsType[ratelimit.QuotaExceededError](err); ok {
		return true // the SDK's budget of retries is used up, after failures that may pass
	}
	return retry.IsErrorRetryables(retry.DefaultRetryables).IsErrorRetryable(err) == aws.TrueTernary
}

// throttled reports whether the service asked for fewer calls.
func throttled(err error) bool {
	e, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return false
	}
	_, ok = retry.DefaultThrottleErrorCodes[e.ErrorCode()]
	return ok
}

func expired(err error) bool {
	_, ok := errors.AsType[*types.ExpiredIteratorException](err)
	return ok
}

func trimmed(err error) bool {
	_, ok := errors.AsType[*types.TrimmedDataAccessException](err)
	return ok
}

func notFound(err error) bool {
	_, ok := errors.AsType[*types.ResourceNotFoundException](err)
	return ok
}

// invalid reports whether the service understood a number or an iterator to be none of the shard's.
func invalid(err error) bool {
	e, ok := errors.AsType[smithy.APIError](err)
	return ok && e.ErrorCode() == "ValidationException"
}
