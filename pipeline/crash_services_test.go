package pipeline_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/smithy-go"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/pipelinetest"
	"telemetrylake/testenv"
)

// What the services do in a world: each has a mind of its own, which the seed made up.

func (w *world) firehose(seed uint64) testenv.FirehoseBehaviour {
	rng := lockedRand(seed, 2)
	closing, copies, failing := (0.1+0.5*rng.Float64())/3, 0.3*rng.Float64(), 0.1*rng.Float64()
	groups, shuffles := 1+rng.IntN(3), rng.IntN(2) == 0
	chance := func(what string, p float64) bool {
		if w.calm.Load() || rng.Float64() >= p {
			return false
		}
		w.happened(what, 1)
		return true
	}
	b := testenv.FirehoseBehaviour{
		Close: func(int, int) bool { return rng.Float64() < closing },
		Copies: func() int {
			if chance("records that Firehose repeated", copies) {
				return 1 + rng.IntN(2)
			}
			return 0
		},
		Fail:     func() bool { return chance("entries that Firehose refused", failing) },
		Doubt:    func() bool { return chance("entries that Firehose took and called failed", failing/4) },
		Throttle: func() bool { return chance("calls that Firehose throttled", failing/4) },
		Repeat:   func() bool { return chance("objects that Firehose repeated", copies/4) },
		Group: func(records int) []int {
			object := make([]int, records)
			for i := range object {
				object[i] = rng.IntN(groups)
			}
			return object
		},
		Hold: func() time.Duration {
			if !chance("objects that Firehose held back", w.plan.late) {
				return 0
			}
			if w.plan.later {
				return time.Duration(rng.Int64N(int64(60 * time.Hour)))
			}
			return time.Duration(rng.Int64N(int64(24 * time.Hour)))
		},
		Deliver: func(string, string) error {
			if w.down.Load() {
				w.happened("deliveries that S3 refused", 1)
				return errDown
			}
			return nil
		},
	}
	if shuffles {
		b.Order = rng.Shuffle
	}
	return b
}

var errDown = errors.New("S3 is down")

func (w *world) messy(seed uint64) testenv.StreamsBehaviour {
	if !w.plan.messy {
		return testenv.StreamsBehaviour{}
	}
	rng := lockedRand(seed, 3)
	return testenv.StreamsBehaviour{
		Page: func(limit int) int {
			if w.calm.Load() || rng.IntN(4) > 0 {
				return limit
			}
			if rng.IntN(2) == 0 {
				w.happened("empty pages before records", 1)
				return 0
			}
			return 1 + rng.IntN(limit)
		},
		ChildDelay: func() time.Duration {
			w.happened("children that were listed late", 1)
			return time.Duration(rng.Int64N(int64(30 * time.Second)))
		},
		Omit: func(string) bool {
			if w.calm.Load() || rng.IntN(8) > 0 {
				return false
			}
			w.happened("shards that a listing left out", 1)
			return true
		},
		Order: seed | 1,
	}
}

var refusals = map[string][]string{
	"dynamodb": {"ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded", "InternalServerError"},
	"streams":  {"LimitExceededException", "ThrottlingException", "InternalServerError"},
	"firehose": {"ServiceUnavailableException", "InternalFailure"},
	"s3":       {"SlowDown", "InternalError"},
}

func (w *world) throttled(seed uint64) func(testenv.Request) *testenv.Fault {
	if w.plan.throttle == 0 {
		return nil
	}
	rng := lockedRand(seed, 4)
	return func(r testenv.Request) *testenv.Fault {
		if w.calm.Load() || rng.Float64() >= w.plan.throttle {
			return nil
		}
		w.happened("requests that "+r.Service+" refused", 1)
		codes := refusals[r.Service]
		return &testenv.Fault{Code: codes[rng.IntN(len(codes))]}
	}
}

func (w *world) conflicts(seed uint64) testenv.DynamoDBBehaviour {
	rng := lockedRand(seed, 5)
	return testenv.DynamoDBBehaviour{
		Unprocessed: func() bool { return !w.calm.Load() && w.plan.throttle > 0 && rng.Float64() < 0.05 },
		Cancel: func() string {
			if w.calm.Load() || w.plan.throttle == 0 || rng.Float64() >= 0.01 {
				return ""
			}
			w.happened("transactions that were cancelled", 1)
			return []string{"TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"}[rng.IntN(3)]
		},
	}
}

// peek returns the body of a request to DynamoDB, and leaves the request as it was.
func peek(r *http.Request) []byte {
	if r.Body == nil || !strings.HasPrefix(r.Header.Get("X-Amz-Target"), "DynamoDB_") {
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body
}

func isTransaction(r *http.Request) bool {
	return strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".TransactWriteItems")
}

// begunBy returns the manifest that a request begins, nil if it begins none.
func begunBy(r *http.Request, body []byte) *pipeline.Manifest {
	if !isTransaction(r) || !bytes.Contains(body, []byte(`"manifest":`)) {
		return nil
	}
	var tx struct {
		TransactItems []struct {
			Put struct {
				Item struct{ Manifest struct{ S string } }
			}
		}
	}
	if json.Unmarshal(body, &tx) != nil {
		return nil
	}
	for _, it := range tx.TransactItems {
		if text := it.Put.Item.Manifest.S; text != "" {
			m, err := pipeline.DecodeManifest([]byte(text))
			if err != nil {
				panic(err)
			}
			return m
		}
	}
	return nil
}

// A leaseStep is what a request does to the lease of the run lane.
type leaseStep int

const (
	noLease leaseStep = iota
	takesLease
	renewsLease
	freesLease
)

// leaseOf says what a request does to the lease.
func leaseOf(r *http.Request, body []byte) leaseStep {
	if !strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".UpdateItem") {
		return noLease
	}
	switch text := string(body); {
	case !strings.Contains(text, `"lane#`+laneName+`"`):
		return noLease
	case strings.Contains(text, "holder = :me"):
		return takesLease
	case strings.Contains(text, "REMOVE lease"):
		return freesLease
	case strings.Contains(text, "SET lease"):
		return renewsLease
	}
	return noLease
}

type patience struct{}

// patience marks the requests of a process that has to wait for the lease's time.
func (w *world) patience(ctx context.Context, p *process) context.Context {
	if _, held := p.leased.Hold(); held || !p.patient {
		return ctx
	}
	return context.WithValue(ctx, patience{}, true)
}

// lease notes what a request that succeeded did to the lease. A standby takes it only when it was
// free, or has not changed for its time.
func (w *world) lease(r *http.Request, step leaseStep) {
	switch step {
	case takesLease:
		if waits := r.Context().Value(patience{}) != nil; waits && !w.leased.IsZero() && time.Since(w.leased) < w.plan.lease {
			w.broken = append(w.broken, fmt.Errorf("lease: a standby took the lane %s after its lease had changed", time.Since(w.leased)))
		}
		w.leased = time.Now()
	case renewsLease:
		w.leased = time.Now()
	case freesLease:
		w.leased = time.Time{}
	}
}

// passing reports whether err is only what was done to a process, and another try may succeed.
func passing(err error) bool {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(j.Unwrap(), func(e error) bool { return !passing(e) })
	}
	if person := (*pipeline.PersonError)(nil); errors.As(err, &person) {
		return false
	}
	if api := smithy.APIError(nil); errors.As(err, &api) &&
		(strings.Contains(api.ErrorMessage(), "Options.Fault") || api.ErrorCode() == "ProvisionedThroughputExceededException") {
		return true
	}
	if u := errors.Unwrap(err); u != nil {
		return passing(u)
	}
	return errors.Is(err, pipelinetest.ErrInjected) || errors.Is(err, pipelinetest.ErrDied)
}

// moved reports whether err says that the stream is the other side's.
func moved(err error) bool {
	person := (*pipeline.PersonError)(nil)
	if !errors.As(err, &person) {
		return false
	}
	for _, text := range []string{"were handed over to", "is read by", "belongs to lane"} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

// lockedRand is for what several goroutines ask at once.
func lockedRand(seed, stream uint64) *rand.Rand {
	return rand.New(&lockedSource{src: rand.NewPCG(seed, stream)})
}

type lockedSource struct {
	mu  sync.Mutex
	src rand.Source
}

func (l *lockedSource) Uint64() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.src.Uint64()
}
