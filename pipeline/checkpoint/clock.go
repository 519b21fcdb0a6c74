package checkpoint

import (
	"context"
	"sync"
	"time"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/smithy-go/middleware"
)

// A serverClock follows the service's clock by the dates of its answers. What is stored and later
// compared is by this one: the clocks of the machines that compare may differ by hours.
type serverClock struct {
	mu   sync.Mutex
	at   time.Time // the service's, in its latest answer
	seen time.Time // ours at that moment, for the time that passed since
}

// watch is an option of a client whose answers the clock follows.
func (c *serverClock) watch(stack *middleware.Stack) error {
	return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("ServerClock",
		func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
			out, metadata, err := next.HandleDeserialize(ctx, in)
			if at, ok := awsmiddleware.GetServerTime(metadata); ok {
				c.mu.Lock()
				c.at, c.seen = at, time.Now()
				c.mu.Unlock()
			}
			return out, metadata, err
		}), middleware.Before)
}

// serverNow is the service's time, at most a second and one answer's way behind; ours if it never
// told one.
func (s *Store) serverNow() time.Time {
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	if s.clock.at.IsZero() {
		return s.now()
	}
	return s.clock.at.Add(time.Since(s.clock.seen))
}
