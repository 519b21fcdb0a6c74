package stream

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
)

// failures spaces the attempts at something that fails for a while.
type failures struct {
	n     int
	until time.Time
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

// passes reports whether a call may succeed later without anybody's help: throttling, the
// service's own faults, and a connection that failed or hung. What the caller cancelled
// does not.
func passes(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() != nil {
		return false
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	if _, ok := errors.AsType[ratelimit.QuotaExceededError](err); ok {
		return true // the SDK's budget of retries is used up, after failures that may pass
	}
	return retry.IsErrorRetryables(retry.DefaultRetryables).IsErrorRetryable(err) == aws.TrueTernary
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
