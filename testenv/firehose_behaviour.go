package testenv

import (
	"math/rand/v2"
	"time"
)

// FirehoseBehaviour is what Firehose is free to do and a test wants to choose. The zero value
// is a service that is always in time, joins what comes in the order of its coming, and
// delivers it once. Each function is called with the service's lock held: it must not call
// the Env.
type FirehoseBehaviour struct {
	// Close is asked after each record, with the records and bytes of the open
	// buffer; true closes it. The buffering hints hold as well. Nil: hints only.
	Close func(records, bytes int) bool
	// Hints is asked for each new buffer, with the size in bytes and the interval that were
	// hinted, what it goes by: the service "might choose to use different values". Nil: the
	// hints.
	Hints func(size int, interval time.Duration) (int, time.Duration)
	// Group is asked for each buffer that closes, with the number of its records, and says
	// for each to which object of several it belongs, as a number of any value. Nil: one
	// object has all.
	Group func(records int) []int
	// Order changes the order of the n records of an object; math/rand/v2's Shuffle is one
	// such function. No order within an object is promised. Nil: as they came.
	Order func(n int, swap func(i, j int))
	// Copies says how often an accepted record is delivered beyond the first
	// time; nil: never. Every second copy goes to a later object than its record,
	// the others follow it in the same one.
	Copies func() int
	// Repeat is asked after an object was written; true: the service takes the write for
	// failed and writes the same bytes again under another name. Nil: never.
	Repeat func() bool
	// Hold says how long a closed buffer waits before its first delivery is tried. The
	// service holds data for up to 24 hours; more is for what must not happen and yet be
	// survived. FlushFirehose does not wait. Nil: not at all.
	Hold func() time.Duration
	// Throttle says whether a whole call of PutRecord or PutRecordBatch fails with
	// ServiceUnavailableException, which is how this service throttles; nil: none does.
	Throttle func() bool
	// Quota holds each delivery stream to the quota of its region for direct put (requests,
	// records and bytes a second): FirehoseQuota says which. A call over the rate of requests
	// fails, an entry over the others; bursts are those of one second. The service raises
	// the quota by itself while it throttles; this one does not.
	Quota bool
	// Fail says whether an entry of a PutRecordBatch fails with
	// ServiceUnavailableException and is not stored; nil: none does.
	Fail func() bool
	// Doubt says whether an entry of a PutRecordBatch that is stored is answered with
	// InternalFailure: "If there is an internal server error or a timeout, the write might
	// have completed". Nil: none is.
	Doubt func() bool
	// Deliver is asked before an object is written to S3; with an error the buffer
	// is kept and tried again at the next tick. Nil: nothing is in the way.
	Deliver func(bucket, key string) error
	// Creating is how long a new delivery stream is in the state CREATING, in which it takes
	// no records.
	Creating time.Duration
}

// SeededFirehose returns a behaviour in which a seed decides: how the records are grouped, in
// any order, into objects of one to all that came within the hints or more; one record in eight
// comes twice, one object in sixteen again under another name, one in sixteen up to 20 hours
// late; one call in sixteen is throttled, one entry in sixteen fails, one in 32 is stored and
// said to have failed. S3 is never in the way.
func SeededFirehose(seed uint64) FirehoseBehaviour {
	rng := rand.New(rand.NewPCG(seed, 0xf13e))
	closing, groups := rng.Float64()/4, 1+rng.IntN(4)
	oneIn := func(n int) func() bool { return func() bool { return rng.IntN(n) == 0 } }
	return FirehoseBehaviour{
		Close: func(int, int) bool { return rng.Float64() < closing },
		Hints: func(size int, interval time.Duration) (int, time.Duration) {
			return size/2 + rng.IntN(size+1), interval/2 + time.Duration(rng.Int64N(int64(interval)+1))
		},
		Group: func(records int) []int {
			object := make([]int, records)
			for i := range object {
				object[i] = rng.IntN(groups)
			}
			return object
		},
		Order: rng.Shuffle,
		Copies: func() int {
			if rng.IntN(8) == 0 {
				return 1
			}
			return 0
		},
		Repeat: oneIn(16),
		Hold: func() time.Duration {
			if rng.IntN(16) == 0 {
				return time.Duration(rng.Int64N(int64(20 * time.Hour)))
			}
			return 0
		},
		Throttle: oneIn(16),
		Fail:     oneIn(16),
		Doubt:    oneIn(32),
	}
}
