package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
)

// Renew says that the holder of a lane is alive. It fails with pipeline.ErrFenced when another
// process has taken the lane.
func (s *Store) Renew(ctx context.Context, h pipeline.Hold) error {
	return s.setLease(ctx, h, "SET lease = if_not_exists(lease, :zero) + :one", map[string]types.AttributeValue{":zero": num(0), ":one": num(1)}, "renew lease of")
}

// Release says that the holder of a lane has ended: a standby need not wait. It fails with
// pipeline.ErrFenced when another process has taken the lane.
func (s *Store) Release(ctx context.Context, h pipeline.Hold) error {
	return s.setLease(ctx, h, "REMOVE lease", nil, "release")
}

func (s *Store) setLease(ctx context.Context, h pipeline.Hold, update string, values map[string]types.AttributeValue, what string) error {
	all := map[string]types.AttributeValue{":token": num(h.Token), ":inc": str(h.Incarnation)}
	for k, v := range values {
		all[k] = v
	}
	_, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: laneKey(h.Lane).av(), UpdateExpression: &update,
		ConditionExpression:                 aws.String("#t = :token AND inc = :inc"),
		ExpressionAttributeNames:            map[string]string{"#t": "token"},
		ExpressionAttributeValues:           all,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	var refused *types.ConditionalCheckFailedException
	if errors.As(err, &refused) {
		_, err := s.laneAfterRefusal(h, refused.Item)
		return err
	}
	if err != nil {
		return fmt.Errorf("%s lane %s: %w", what, h.Lane, err)
	}
	return nil
}

// A Holder is who holds a lane, as a standby sees it.
type Holder struct {
	Host  string // host and process id, "" if it did not say
	Token int64
	Lease int64 // rises while the holder lives; 0 if nobody holds the lane under a lease
}

// Holder reads who holds a lane; false if nobody ever did.
func (s *Store) Holder(ctx context.Context, lane pipeline.LaneID) (Holder, bool, error) {
	var it laneItem
	ok, err := s.get(ctx, laneKey(lane), &it)
	if err != nil || !ok {
		return Holder{}, false, err
	}
	return Holder{Host: it.Host, Token: it.Token, Lease: it.Lease}, true, nil
}

// Leased is a Store whose lanes are held under a lease. A process that wants a lane which another
// holds is a standby: it watches the lease for change, and takes the lane when it was released, or
// has not changed for For by this process's own monotonic clock. No two clocks are compared. A
// lease decides who tries; it is the token that decides who can begin.
type Leased struct {
	*Store
	For time.Duration // a holder renews its lease three times in it
	// TakeOver takes a lane without waiting the first time: for somebody who knows that its holder
	// is gone.
	TakeOver bool
	// Standby waits again, as at the start, when another process has taken the lane, instead of
	// failing with pipeline.ErrFenced.
	Standby bool
	// Waits is called when this process becomes a standby, and when it no longer is; nil: not told.
	Waits func(lane pipeline.LaneID, h Holder, waiting bool)
	// Failed is called when the lease could not be renewed and is tried again; nil: not told.
	Failed func(error)

	mu   sync.Mutex
	hold pipeline.Hold // as last acquired; zero before
}

// Hold returns what was last acquired; false if nothing was.
func (l *Leased) Hold() (pipeline.Hold, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hold, l.hold.Token != 0
}

func (l *Leased) setHold(h pipeline.Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold = h
}

// Acquire implements pipeline.Checkpoints. It waits until the lane may be taken.
func (l *Leased) Acquire(ctx context.Context, lane pipeline.LaneID, again bool) (pipeline.State, error) {
	if again || l.TakeOver {
		t := taking{condition: "attribute_not_exists(pk) OR fmt <= :fmt", lease: true}
		if again {
			t.condition = "fmt <= :fmt AND holder = :me"
		}
		// Keep must not take the token that this raises for another process's.
		l.setHold(pipeline.Hold{})
		st, err := l.acquire(ctx, lane, t)
		l.setHold(st.Hold) // what was taken is released at the end, also if it cannot be used
		if err == nil {
			l.TakeOver = false
			return st, nil
		}
		if !again || !l.Standby || !errors.Is(err, pipeline.ErrFenced) {
			return st, err
		}
	}
	for {
		seen, err := l.await(ctx, lane)
		if err != nil {
			return pipeline.State{}, err
		}
		st, err := l.acquire(ctx, lane, seen.unchanged())
		if errors.Is(err, pipeline.ErrFenced) {
			continue // another standby was faster, or the holder woke up
		}
		l.setHold(st.Hold)
		return st, err
	}
}

// A sighting is what a standby saw of a lane.
type sighting struct {
	Holder
	there bool
}

// unchanged takes the lane if it is still as it was seen: of two standbys one wins.
func (s sighting) unchanged() taking {
	if !s.there {
		return taking{condition: "attribute_not_exists(pk)", lease: true}
	}
	t := taking{
		condition: "fmt <= :fmt AND #t = :seen AND attribute_not_exists(lease)", lease: true,
		values: map[string]types.AttributeValue{":seen": num(s.Token)},
	}
	if s.Lease != 0 {
		t.condition = "fmt <= :fmt AND #t = :seen AND lease = :lease"
		t.values[":lease"] = num(s.Lease)
	}
	return t
}

// await watches a lane until it may be taken, and returns what it saw last.
func (l *Leased) await(ctx context.Context, lane pipeline.LaneID) (sighting, error) {
	var first sighting
	var since time.Time // when first had been seen
	every := max(l.For/10, 10*time.Millisecond)
	waiting := false
	defer func() {
		if waiting && l.Waits != nil {
			l.Waits(lane, first.Holder, false)
		}
	}()
	for {
		asked := time.Now()
		h, there, err := l.Holder(ctx, lane)
		if err != nil {
			return first, fmt.Errorf("watch lane %s: %w", lane, err)
		}
		now := sighting{h, there}
		switch {
		case !there || h.Lease == 0:
			return now, nil
		case since.IsZero() || now != first:
			since = time.Now() // after the answer: it was so then at the latest
		case asked.Sub(since) >= l.For:
			return now, nil
		}
		first = now
		if !waiting && l.Waits != nil {
			l.Waits(lane, h, true)
		}
		waiting = true
		if err := pipeline.Wait(ctx, every); err != nil {
			return first, err
		}
	}
}

// Keep renews the lease of the lane that is held, three times in its time, until ctx is done. It
// returns pipeline.ErrFenced as soon as another process has the lane. Failures that may pass are
// tried again: at worst a standby takes over.
func (l *Leased) Keep(ctx context.Context) error {
	for wait := l.For / 3; pipeline.Wait(ctx, wait) == nil; {
		wait = l.For / 3
		h, ok := l.Hold()
		if !ok {
			continue
		}
		err := l.Renew(ctx, h)
		if errors.Is(err, pipeline.ErrFenced) {
			if now, _ := l.Hold(); now != h {
				continue // this process acquired it again meanwhile
			}
			return err
		}
		if person := (*pipeline.PersonError)(nil); errors.As(err, &person) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			wait = l.For / 10
			if l.Failed != nil {
				l.Failed(err)
			}
		}
	}
	return nil
}

// End releases the lane that is held, so that a standby takes it at once.
func (l *Leased) End(ctx context.Context) error {
	h, ok := l.Hold()
	if !ok {
		return nil
	}
	l.setHold(pipeline.Hold{})
	if err := l.Release(ctx, h); err != nil && !errors.Is(err, pipeline.ErrFenced) {
		return err
	}
	return nil
}
