package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
)

// maxClaimsAtOnce leaves room for the window's check in a transaction of 100 items.
const maxClaimsAtOnce = 99

// Window implements pipeline.Ledger.
func (s *Store) Window(ctx context.Context, w pipeline.WindowID) (pipeline.WindowState, *pipeline.Manifest, error) {
	state, m, err := s.window(ctx, w)
	if err != nil || m != nil {
		return state, m, err
	}
	// The window's item is removed after the watermark has passed it: no item, then the lane.
	var lane laneItem
	ok, err := s.get(ctx, laneKey(w.Lane), &lane)
	if err != nil {
		return "", nil, err
	}
	if ok && lane.Incarnation == w.Incarnation && w.N <= lane.Watermark {
		return pipeline.WindowFolded, nil, nil
	}
	return pipeline.WindowUnknown, nil, nil
}

// window reads a window's item; the manifest is nil if there is none.
func (s *Store) window(ctx context.Context, w pipeline.WindowID) (pipeline.WindowState, *pipeline.Manifest, error) {
	var it windowItem
	ok, err := s.get(ctx, windowKey(w), &it)
	if err != nil || !ok {
		return "", nil, err
	}
	m, err := it.manifest(w)
	if err != nil {
		return "", nil, err
	}
	return pipeline.WindowState(it.State), m, nil
}

// manifest reads the window's manifest. One of a newer format needs a person.
func (it windowItem) manifest(w pipeline.WindowID) (*pipeline.Manifest, error) {
	m, err := pipeline.DecodeManifest([]byte(it.Manifest))
	if errors.Is(err, pipeline.ErrNewerFormat) {
		return nil, pipeline.NeedPerson(fmt.Errorf("window %s: %w", w, err), "upgrade this binary to the version that runs elsewhere")
	}
	if err != nil {
		return nil, fmt.Errorf("read window %s: %w", w, err)
	}
	return m, nil
}

// takesClaims is the condition on a window's item under which its parts can be claimed or voided.
const takesClaims = "#s IN (:pending, :committed)"

func (s *Store) openWindow(w pipeline.WindowID) types.TransactWriteItem {
	return types.TransactWriteItem{ConditionCheck: &types.ConditionCheck{
		TableName: &s.table, Key: windowKey(w).av(),
		ConditionExpression:      aws.String(takesClaims),
		ExpressionAttributeNames: map[string]string{"#s": "state"},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":pending": str(string(pipeline.WindowPending)), ":committed": str(string(pipeline.WindowCommitted)),
		},
	}}
}

// Claim implements pipeline.Ledger.
func (s *Store) Claim(ctx context.Context, claims []pipeline.Claim) ([]pipeline.Claim, error) {
	held := slices.Clone(claims)
	byWindow := map[pipeline.WindowID][]int{}
	var order []pipeline.WindowID
	first := map[pipeline.PartID]int{}
	for i, c := range claims {
		// A transaction touches an item once: of several copies of a part the first is claimed.
		if _, again := first[c.Part]; again {
			continue
		}
		first[c.Part] = i
		w := c.Part.Window
		if byWindow[w] == nil {
			order = append(order, w)
		}
		byWindow[w] = append(byWindow[w], i)
	}
	for _, w := range order {
		for idx := range slices.Chunk(byWindow[w], maxClaimsAtOnce) {
			if err := s.claim(ctx, w, idx, held); err != nil {
				return nil, fmt.Errorf("claim %d parts of window %s: %w", len(idx), w, err)
			}
		}
	}
	for i, c := range claims {
		held[i] = held[first[c.Part]]
	}
	return held, nil
}

// claim puts held[i] for each i of idx, or replaces it by what is stored.
func (s *Store) claim(ctx context.Context, w pipeline.WindowID, idx []int, held []pipeline.Claim) error {
	for len(idx) > 0 {
		tx := []types.TransactWriteItem{s.openWindow(w)}
		for _, i := range idx {
			item, err := encode(partKey(held[i].Part), newPartItem(held[i]))
			if err != nil {
				return err
			}
			tx = append(tx, types.TransactWriteItem{Put: &types.Put{
				TableName: &s.table, Item: item, ConditionExpression: aws.String("attribute_not_exists(pk)"),
				ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
			}})
		}
		reasons, err := s.transact(ctx, tx)
		if err != nil || reasons == nil {
			return err
		}
		if failed(reasons[0]) {
			return pipeline.ErrWindowClosed
		}
		var rest []int
		for j, i := range idx {
			if !failed(reasons[j+1]) {
				rest = append(rest, i)
				continue
			}
			k := partKey(held[i].Part)
			var it partItem
			if err := decode(k, reasons[j+1].Item, &it); err != nil {
				return err
			}
			held[i] = it.claim(held[i].Part)
		}
		idx = rest
	}
	return nil
}

// Move implements pipeline.Ledger.
func (s *Store) Move(ctx context.Context, from, to pipeline.Claim) (pipeline.Claim, error) {
	k := partKey(from.Part)
	_, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: k.av(),
		UpdateExpression: aws.String("SET #k = :k2, etag = :e2, #o = :o2, #n = :n2, round = :r2"),
		ConditionExpression: aws.String("#k = :k AND etag = :e AND #o = :o AND #n = :n AND round = :r" +
			" AND attribute_not_exists(published_at) AND attribute_not_exists(#v)"),
		ExpressionAttributeNames: map[string]string{"#k": "key", "#o": "offset", "#n": "name", "#v": "void"},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":k": str(from.Copy.Key), ":e": str(from.Copy.ETag), ":o": num(from.Copy.Offset), ":n": str(from.Name), ":r": num(from.Round),
			":k2": str(to.Copy.Key), ":e2": str(to.Copy.ETag), ":o2": num(to.Copy.Offset), ":n2": str(to.Name), ":r2": num(to.Round),
		},
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	if err == nil {
		return to, nil
	}
	it, err := s.refusedPart(k, err)
	if err != nil {
		return pipeline.Claim{}, fmt.Errorf("move claim on part %s: %w", from.Part, err)
	}
	if it == nil {
		return pipeline.Claim{}, fmt.Errorf("move claim on part %s: %w", from.Part, pipeline.ErrWindowClosed)
	}
	return it.claim(from.Part), nil
}

// Publish implements pipeline.Ledger.
func (s *Store) Publish(ctx context.Context, claims []pipeline.Claim) error {
	for _, c := range claims {
		if err := s.publish(ctx, c); err != nil {
			return fmt.Errorf("publish part %s: %w", c.Part, err)
		}
	}
	return nil
}

func (s *Store) publish(ctx context.Context, c pipeline.Claim) error {
	k := partKey(c.Part)
	_, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: k.av(),
		UpdateExpression:         aws.String("SET published_at = if_not_exists(published_at, :now)"),
		ConditionExpression:      aws.String("#n = :n AND attribute_not_exists(#v)"),
		ExpressionAttributeNames: map[string]string{"#n": "name", "#v": "void"},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":n": str(c.Name), ":now": str(s.now().UTC().Format(time.RFC3339)),
		},
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	if err == nil {
		return nil
	}
	it, err := s.refusedPart(k, err)
	if err != nil {
		return err
	}
	if it != nil {
		return fmt.Errorf("the ledger holds it under %s (void %v), not under %s", it.Name, it.Void, c.Name)
	}
	// No item: the window was sealed meanwhile, which needs every part published.
	state, _, err := s.Window(ctx, c.Part.Window)
	if err != nil {
		return err
	}
	if state != pipeline.WindowSealed && state != pipeline.WindowFolded {
		return fmt.Errorf("it has no claim and its window is %s", state)
	}
	return nil
}

// refusedPart returns the stored part that a failed condition came back with, nil if there is
// none, or err if it was another failure.
func (s *Store) refusedPart(k key, err error) (*partItem, error) {
	var refused *types.ConditionalCheckFailedException
	if !errors.As(err, &refused) {
		return nil, err
	}
	if refused.Item == nil {
		return nil, nil
	}
	var it partItem
	if err := decode(k, refused.Item, &it); err != nil {
		return nil, err
	}
	return &it, nil
}

// Void gives up a part that has no claim: no copy of it is ever published. It returns what the
// ledger holds now.
func (s *Store) Void(ctx context.Context, p pipeline.PartID) (pipeline.Claim, error) {
	held, err := s.Claim(ctx, []pipeline.Claim{{Part: p, Void: true}})
	if err != nil {
		return pipeline.Claim{}, fmt.Errorf("void: %w", err)
	}
	return held[0], nil
}

// Halt stops a lane from beginning windows until a person has removed the mark.
func (s *Store) Halt(ctx context.Context, lane pipeline.LaneID, why string) error {
	_, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: laneKey(lane).av(),
		UpdateExpression:          aws.String("SET halted = if_not_exists(halted, :why)"),
		ConditionExpression:       aws.String("attribute_exists(pk)"),
		ExpressionAttributeValues: map[string]types.AttributeValue{":why": str(why)},
	})
	if err != nil {
		return fmt.Errorf("halt lane %s: %w", lane, err)
	}
	return nil
}

// Fold seals the lane's committed windows whose parts are all published or void, removes
// their part items, and advances the watermark over windows that are sealed or void.
func (s *Store) Fold(ctx context.Context, lane pipeline.LaneID) error {
	if err := s.fold(ctx, lane); err != nil {
		return fmt.Errorf("fold windows of lane %s: %w", lane, err)
	}
	return nil
}

func (s *Store) fold(ctx context.Context, lane pipeline.LaneID) error {
	var it laneItem
	ok, err := s.get(ctx, laneKey(lane), &it)
	if err != nil || !ok {
		return err
	}
	prefix := windowPrefix(it.Incarnation)
	through, contiguous := it.Watermark, true
	var below []key
	for item, err := range s.query(ctx, laneKey(lane).pk, prefix) {
		if err != nil {
			return err
		}
		k := key{laneKey(lane).pk, item["sk"].(*types.AttributeValueMemberS).Value}
		w, err := windowOf(lane, k.sk)
		if err != nil {
			return err
		}
		var win windowItem
		if err := decode(k, item, &win); err != nil {
			return err
		}
		state := pipeline.WindowState(win.State)
		if state == pipeline.WindowCommitted {
			if state, err = s.seal(ctx, w, win); err != nil {
				return err
			}
		} else if state == pipeline.WindowSealed {
			// An earlier fold may have died between the state and the part items.
			if err := s.removeParts(ctx, w); err != nil {
				return err
			}
		}
		switch {
		case w.N <= it.Watermark:
			below = append(below, k)
		case contiguous && w.N == through+1 && (state == pipeline.WindowSealed || state == pipeline.WindowVoid):
			through = w.N
			below = append(below, k)
		default:
			contiguous = false
		}
	}
	if through > it.Watermark {
		// Monotonic, whoever folds at the same time.
		_, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
			TableName: &s.table, Key: laneKey(lane).av(),
			UpdateExpression:    aws.String("SET watermark = :to"),
			ConditionExpression: aws.String("inc = :inc AND watermark < :to"),
			ExpressionAttributeValues: map[string]types.AttributeValue{
				":to": num(through), ":inc": str(it.Incarnation),
			},
		})
		if passed := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &passed) {
			return nil // another fold was faster, or the lane was reset: the next fold looks again
		}
		if err != nil {
			return err
		}
	}
	// Only items that the watermark covers by now are removed: seal takes a missing window
	// above it for one that was never begun.
	return s.remove(ctx, below)
}

// seal sets a committed window to sealed, if every part is published or void. From then on it
// refuses claims, so its part items may go.
func (s *Store) seal(ctx context.Context, w pipeline.WindowID, win windowItem) (pipeline.WindowState, error) {
	m, err := win.manifest(w)
	if err != nil {
		return "", err
	}
	done := 0
	for item, err := range s.query(ctx, partsKey(w), "part#") {
		if err != nil {
			return "", err
		}
		var p partItem
		if err := decode(key{partsKey(w), "part#"}, item, &p); err != nil {
			return "", err
		}
		if p.Void || p.PublishedAt != "" {
			done++
		}
	}
	if done < len(m.Parts) {
		return pipeline.WindowCommitted, nil
	}
	_, err = s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: windowKey(w).av(),
		UpdateExpression:         aws.String("SET #s = :sealed"),
		ConditionExpression:      aws.String("#s = :committed"),
		ExpressionAttributeNames: map[string]string{"#s": "state"},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":sealed": str(string(pipeline.WindowSealed)), ":committed": str(string(pipeline.WindowCommitted)),
		},
	})
	if elsewhere := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &elsewhere) {
		return pipeline.WindowCommitted, nil // another fold is at it; the next one sees the outcome
	}
	if err != nil {
		return "", err
	}
	return pipeline.WindowSealed, s.removeParts(ctx, w)
}

func (s *Store) removeParts(ctx context.Context, w pipeline.WindowID) error {
	var keys []key
	for item, err := range s.query(ctx, partsKey(w), "part#") {
		if err != nil {
			return err
		}
		keys = append(keys, key{partsKey(w), item["sk"].(*types.AttributeValueMemberS).Value})
	}
	return s.remove(ctx, keys)
}

// remove deletes items, 25 a call.
func (s *Store) remove(ctx context.Context, keys []key) error {
	for chunk := range slices.Chunk(keys, 25) {
		var reqs []types.WriteRequest
		for _, k := range chunk {
			reqs = append(reqs, types.WriteRequest{DeleteRequest: &types.DeleteRequest{Key: k.av()}})
		}
		for wait := 10 * time.Millisecond; len(reqs) > 0; wait = min(2*wait, 5*time.Second) {
			out, err := s.client.BatchWriteItem(ctx, &dynamodb.BatchWriteItemInput{
				RequestItems: map[string][]types.WriteRequest{s.table: reqs},
			})
			if err != nil {
				return fmt.Errorf("remove %d items: %w", len(reqs), err)
			}
			if reqs = out.UnprocessedItems[s.table]; len(reqs) > 0 {
				if err := pipeline.Wait(ctx, pipeline.Jitter(wait)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// query reads the items of one partition key whose sort key has the prefix, in order.
func (s *Store) query(ctx context.Context, pk, prefix string) func(yield func(map[string]types.AttributeValue, error) bool) {
	return func(yield func(map[string]types.AttributeValue, error) bool) {
		in := &dynamodb.QueryInput{
			TableName: &s.table, ConsistentRead: aws.Bool(true),
			KeyConditionExpression:    aws.String("pk = :pk"),
			ExpressionAttributeValues: map[string]types.AttributeValue{":pk": str(pk)},
		}
		if prefix != "" { // the service refuses an empty one
			in.KeyConditionExpression = aws.String("pk = :pk AND begins_with(sk, :prefix)")
			in.ExpressionAttributeValues[":prefix"] = str(prefix)
		}
		pages := dynamodb.NewQueryPaginator(s.client, in)
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				yield(nil, fmt.Errorf("query items %s %s…: %w", pk, prefix, err))
				return
			}
			for _, item := range page.Items {
				if !yield(item, nil) {
					return
				}
			}
		}
	}
}
