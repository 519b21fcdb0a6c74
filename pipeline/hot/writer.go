package hot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/schemas"
)

// WriterOptions of a Writer; the zero value is good.
type WriterOptions struct {
	Parallel  int           // puts in flight; 0: 8
	Examples  int           // refusals that a Result describes; 0: 5
	RetryBase time.Duration // first wait after throttling; 0: 50 ms
	RetryCap  time.Duration // longest wait; 0: 10 s
	GiveUp    time.Duration // after so long without a success a call fails; 0: never
}

// A Writer writes items to one hot table. It may be used by several goroutines.
type Writer struct {
	client *dynamodb.Client
	c      *schemas.Contract
	keys   []string
	o      WriterOptions
	seed   maphash.Seed

	mu      sync.Mutex // guards what follows
	health  Health
	waiting int // calls under way
}

// NewWriter returns a Writer for the contract's table.
func NewWriter(client *dynamodb.Client, c *schemas.Contract, o WriterOptions) *Writer {
	if o.Parallel <= 0 {
		o.Parallel = 8
	}
	if o.Examples <= 0 {
		o.Examples = 5
	}
	if o.RetryBase <= 0 {
		o.RetryBase = 50 * time.Millisecond
	}
	if o.RetryCap <= 0 {
		o.RetryCap = 10 * time.Second
	}
	// The writer retries itself: only so does it know that a refusal may be the echo of its
	// own put, whose answer was lost.
	client = dynamodb.New(client.Options(), func(co *dynamodb.Options) { co.Retryer = aws.NopRetryer{} })
	return &Writer{client: client, c: c, keys: c.Keys.Attributes(), o: o, seed: maphash.MakeSeed()}
}

// A Refusal is an item that was not written because its key was taken.
type Refusal struct {
	Index int    // in the items given to Put
	Key   string // the key attributes' values, as text
}

// A Result counts what became of items.
type Result struct {
	Written  int
	Refused  int
	Examples []Refusal // the first refusals
}

// Put writes each item whose key is free. Of two items with the same key the first in order
// is written and the other refused, however many puts are in flight. After an error the
// result counts what was done; to put the rest, put all again: what is there is refused.
func (w *Writer) Put(ctx context.Context, items []Item) (Result, error) {
	n := min(w.o.Parallel, len(items))
	if n <= 1 {
		return w.putSome(ctx, items, func(int) bool { return true })
	}
	// All items of a key go to one worker, which keeps their order.
	worker := make([]uint16, len(items))
	for i, item := range items {
		worker[i] = uint16(w.hash(item) % uint64(n))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	results := make([]Result, n)
	var wg sync.WaitGroup
	for k := range n {
		wg.Go(func() {
			var err error
			if results[k], err = w.putSome(ctx, items, func(i int) bool { return worker[i] == uint16(k) }); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return w.merge(results), context.Cause(ctx)
}

func (w *Writer) merge(results []Result) Result {
	var sum Result
	for _, r := range results {
		sum.Written += r.Written
		sum.Refused += r.Refused
		sum.Examples = append(sum.Examples, r.Examples...)
	}
	slices.SortFunc(sum.Examples, func(a, b Refusal) int { return cmp.Compare(a.Index, b.Index) })
	sum.Examples = sum.Examples[:min(len(sum.Examples), w.o.Examples)]
	return sum
}

func (w *Writer) putSome(ctx context.Context, items []Item, mine func(int) bool) (Result, error) {
	var r Result
	for i, item := range items {
		if !mine(i) {
			continue
		}
		written, err := w.putNew(ctx, item)
		switch {
		case err != nil:
			return r, err
		case written:
			r.Written++
		default:
			r.Refused++
			if len(r.Examples) < w.o.Examples {
				r.Examples = append(r.Examples, Refusal{Index: i, Key: w.keyText(item)})
			}
		}
	}
	return r, nil
}

// putNew writes the item unless its key is taken.
func (w *Writer) putNew(ctx context.Context, item Item) (written bool, err error) {
	other, unclear, err := w.tryPut(ctx, item)
	// After an attempt that may have been carried out, the item in the way can be this one.
	return err == nil && (other == nil || unclear && sameItem(other, item)), err
}

// tryPut writes the item unless its key is taken; then it returns the item in the way.
// unclear tells that an attempt before the last may have been carried out.
func (w *Writer) tryPut(ctx context.Context, item Item) (other Item, unclear bool, err error) {
	in := &dynamodb.PutItemInput{
		TableName:                           aws.String(w.c.Table),
		Item:                                item,
		ConditionExpression:                 aws.String("attribute_not_exists(#key)"),
		ExpressionAttributeNames:            map[string]string{"#key": w.keys[0]},
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
	unclear, err = w.retry(ctx, func(ctx context.Context) error {
		_, err := w.client.PutItem(ctx, in)
		return err
	})
	if refused, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok {
		if other = refused.Item; other == nil {
			other = Item{} // an endpoint that does not show it
		}
		return other, unclear, nil
	}
	if err != nil {
		return nil, unclear, fmt.Errorf("put item %s into %s: %w", w.keyText(item), w.c.Table, err)
	}
	return nil, unclear, nil
}

// Overwrite writes the item whether or not its key is taken.
func (w *Writer) Overwrite(ctx context.Context, item Item) error {
	in := &dynamodb.PutItemInput{TableName: aws.String(w.c.Table), Item: item}
	_, err := w.retry(ctx, func(ctx context.Context) error {
		_, err := w.client.PutItem(ctx, in)
		return err
	})
	if err != nil {
		return fmt.Errorf("overwrite item %s of %s: %w", w.keyText(item), w.c.Table, err)
	}
	return nil
}

// Prolong lets the item with that key expire at another time, in whole seconds. An item that
// is not there is an error, and is not made.
func (w *Writer) Prolong(ctx context.Context, key Item, expires time.Time) error {
	if w.c.TTL == "" {
		return fmt.Errorf("prolong item of %s: contract %s has no TTL", w.c.Table, w.c.Name)
	}
	in := &dynamodb.UpdateItemInput{
		TableName:                 aws.String(w.c.Table),
		Key:                       w.keyOf(key),
		UpdateExpression:          aws.String("SET #ttl = :ttl"),
		ConditionExpression:       aws.String("attribute_exists(#key)"),
		ExpressionAttributeNames:  map[string]string{"#ttl": w.c.TTL, "#key": w.keys[0]},
		ExpressionAttributeValues: Item{":ttl": number(expires.Unix())},
	}
	_, err := w.retry(ctx, func(ctx context.Context) error {
		_, err := w.client.UpdateItem(ctx, in)
		return err
	})
	if err != nil {
		return fmt.Errorf("prolong item %s of %s: %w", w.keyText(key), w.c.Table, err)
	}
	return nil
}

// Delete removes the item with that key, if it is there.
func (w *Writer) Delete(ctx context.Context, key Item) error {
	in := &dynamodb.DeleteItemInput{TableName: aws.String(w.c.Table), Key: w.keyOf(key)}
	_, err := w.retry(ctx, func(ctx context.Context) error {
		_, err := w.client.DeleteItem(ctx, in)
		return err
	})
	if err != nil {
		return fmt.Errorf("delete item %s of %s: %w", w.keyText(key), w.c.Table, err)
	}
	return nil
}

// Count reads through the whole table and returns how many items it holds, those included
// that are past their time and not yet removed.
func (w *Writer) Count(ctx context.Context) (int, error) {
	in := &dynamodb.ScanInput{TableName: aws.String(w.c.Table), Select: types.SelectCount, ConsistentRead: aws.Bool(true)}
	n := 0
	for {
		var out *dynamodb.ScanOutput
		_, err := w.retry(ctx, func(ctx context.Context) (err error) {
			out, err = w.client.Scan(ctx, in)
			return err
		})
		if err != nil {
			return n, fmt.Errorf("count items of %s: %w", w.c.Table, err)
		}
		n += int(out.Count)
		if len(out.LastEvaluatedKey) == 0 {
			return n, nil
		}
		in.ExclusiveStartKey = out.LastEvaluatedKey
	}
}

// callTimeout bounds one attempt, so that one hanging connection is not for ever.
const callTimeout = 30 * time.Second

var (
	mayPass   = retry.IsErrorRetryables(retry.DefaultRetryables)
	throttled = retry.RetryableErrorCode{Codes: retry.DefaultThrottleErrorCodes}
)

// retry repeats op until it succeeds, fails for good, or ctx is done. unclear tells that an
// attempt before the last failed without saying whether it was carried out.
func (w *Writer) retry(ctx context.Context, op func(context.Context) error) (unclear bool, err error) {
	w.enter()
	defer w.leave()
	for n := 0; ; n++ {
		err := attempt(ctx, op)
		if err == nil {
			w.answered()
			return unclear, nil
		}
		if cause := ctx.Err(); cause != nil {
			return unclear, fmt.Errorf("%w: %w", cause, err)
		}
		hung := errors.Is(err, context.DeadlineExceeded)
		if !hung && mayPass.IsErrorRetryable(err) != aws.TrueTernary {
			w.answered()
			return unclear, err
		}
		if failing := w.failed(err); w.o.GiveUp > 0 && failing >= w.o.GiveUp {
			return unclear, fmt.Errorf("give up after %s of nothing but failures: %w", failing.Round(time.Second), err)
		}
		unclear = unclear || hung || throttled.IsErrorRetryable(err) != aws.TrueTernary
		d := w.o.RetryCap
		if n < 16 {
			d = min(d, w.o.RetryBase<<n)
		}
		if serr := sleep(ctx, d/2+rand.N(d/2+1)); serr != nil {
			return unclear, fmt.Errorf("%w: %w", serr, err)
		}
	}
}

// Health says whether the calls of a Writer get anywhere. Those that wait to be repeated are
// under way too.
type Health struct {
	// Since is the last success, or if it is later, when a call began while none was under way.
	// It is zero while none is under way.
	Since    time.Time
	Answered int   // attempts that were not in vain
	Err      error // of the last attempt in vain since the last success; nil: none has ended
}

// Failing is for how long nothing has succeeded.
func (h Health) Failing(now time.Time) time.Duration {
	if h.Since.IsZero() {
		return 0
	}
	return now.Sub(h.Since)
}

// Health may be called at any time.
func (w *Writer) Health() Health {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.health
}

func (w *Writer) enter() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting++; w.waiting == 1 {
		w.health.Since, w.health.Err = time.Now(), nil
	}
}

func (w *Writer) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting--; w.waiting == 0 {
		w.health.Since = time.Time{}
	}
}

func (w *Writer) answered() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.health.Answered++
	w.health.Since, w.health.Err = time.Now(), nil
}

// failed returns for how long nothing has succeeded.
func (w *Writer) failed(err error) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.health.Err = err
	return w.health.Failing(time.Now())
}

func attempt(ctx context.Context, op func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return op(ctx)
}

// hash is equal for equal keys, also for numbers written differently.
func (w *Writer) hash(item Item) uint64 {
	var h maphash.Hash
	h.SetSeed(w.seed)
	for _, name := range w.keys {
		switch v := item[name].(type) {
		case *types.AttributeValueMemberS:
			h.WriteString(v.Value)
		case *types.AttributeValueMemberN:
			h.WriteString(canonical(v.Value))
		case *types.AttributeValueMemberB:
			h.Write(v.Value)
		}
		h.WriteByte(0)
	}
	return h.Sum64()
}

func (w *Writer) keyOf(item Item) Item {
	key := make(Item, len(w.keys))
	for _, name := range w.keys {
		key[name] = item[name]
	}
	return key
}

func (w *Writer) keyText(item Item) string {
	text := ""
	for i, name := range w.keys {
		if i > 0 {
			text += " "
		}
		switch v := item[name].(type) {
		case *types.AttributeValueMemberS:
			text += v.Value
		case *types.AttributeValueMemberN:
			text += v.Value
		case *types.AttributeValueMemberB:
			text += fmt.Sprintf("%x", v.Value)
		default:
			text += "(no " + name + ")"
		}
	}
	return text
}

func number[T ~int | ~int64](n T) *types.AttributeValueMemberN {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(int64(n), 10)}
}

func text(s string) *types.AttributeValueMemberS { return &types.AttributeValueMemberS{Value: s} }
