package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	if !ok {
		return pipeline.WindowUnknown, nil, nil
	}
	mark, void, unknown := lane.Watermark, lane.Void, ""
	if lane.Incarnation != w.Incarnation {
		var past incarnationItem
		if ok, err := s.get(ctx, incarnationKey(w.Lane, w.Incarnation), &past); err != nil || !ok {
			return pipeline.WindowUnknown, nil, err
		}
		mark, void, unknown = past.Watermark, past.Void, past.Unknown
	}
	given, err := parseNumbers(void)
	traceless, errUnknown := parseNumbers(unknown)
	switch {
	case err != nil, errUnknown != nil:
		return "", nil, damaged(laneKey(w.Lane), errors.Join(err, errUnknown))
	case given.has(w.N):
		return pipeline.WindowVoid, nil, nil
	case traceless.has(w.N):
		return pipeline.WindowUnknown, nil, nil
	case w.N <= mark:
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
	switch {
	case errors.Is(err, pipeline.ErrNewerFormat):
		return nil, pipeline.NeedPerson(fmt.Errorf("window %s: %w", w, err), "upgrade this binary to the version that runs elsewhere")
	case err != nil:
		return nil, damaged(windowKey(w), err)
	case m.Window != w:
		return nil, damaged(windowKey(w), fmt.Errorf("its manifest is of window %s", m.Window))
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
			":n": str(c.Name), ":now": str(stamp(s.serverNow())),
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
	if state != pipeline.WindowSealed && state != pipeline.WindowFolded && state != pipeline.WindowVoid {
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
