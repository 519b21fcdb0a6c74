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

// GiveUpAfter is how long after its last landing a window may be given up: Firehose may hold data
// for 24 hours when it cannot deliver (its documentation, "Data delivery failure handling").
const GiveUpAfter = 25 * time.Hour

// ErrTooEarly means that parts of a window may still be on their way.
var ErrTooEarly = errors.New("parts of the window may still be on their way")

// Void gives up a part that has no claim: no copy of it is ever published. It returns what the
// ledger holds now.
func (s *Store) Void(ctx context.Context, p pipeline.PartID) (pipeline.Claim, error) {
	held, err := s.Claim(ctx, []pipeline.Claim{{Part: p, Void: true}})
	if err != nil {
		return pipeline.Claim{}, fmt.Errorf("void: %w", err)
	}
	return held[0], nil
}

// GiveUp gives up the parts of a committed window that no copy has claimed, and returns how many.
// Not earlier than GiveUpAfter its last landing, or it fails with ErrTooEarly. Before anything is
// void, the window's gaps are open. A part that is claimed and not published is left to seal, as is
// a window whose parts are all claimed; a window that is sealed already is no error.
func (s *Store) GiveUp(ctx context.Context, w pipeline.WindowID) (int, error) {
	n, err := s.giveUp(ctx, w)
	if err != nil {
		return n, fmt.Errorf("give up window %s: %w", w, err)
	}
	return n, nil
}

func (s *Store) giveUp(ctx context.Context, w pipeline.WindowID) (int, error) {
	it, m, err := s.givable(ctx, w)
	if err != nil || m == nil {
		return 0, err
	}
	unclaimed, err := s.unclaimed(ctx, m)
	if err != nil || len(unclaimed) == 0 {
		return 0, err
	}
	if err := s.loseCommitted(ctx, m); err != nil {
		return 0, err
	}
	return s.voidParts(ctx, it, unclaimed)
}

// unclaimed are the parts that the ledger has no word on.
func (s *Store) unclaimed(ctx context.Context, m *pipeline.Manifest) ([]pipeline.PartID, error) {
	there := map[string]bool{}
	for item, err := range s.query(ctx, partsKey(m.Window), "part#") {
		if err != nil {
			return nil, err
		}
		there[keyOf(item).sk] = true
	}
	var ids []pipeline.PartID
	for i := range m.Parts {
		id := pipeline.PartID{Window: m.Window, Index: i}
		if !there[partKey(id).sk] {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// loseCommitted opens the gaps of a committed window, as Lose does those of a pending one.
func (s *Store) loseCommitted(ctx context.Context, m *pipeline.Manifest) error {
	tx := []types.TransactWriteItem{s.windowLost(m.Window, string(pipeline.WindowCommitted))}
	now := s.serverNow()
	for _, r := range m.Shards {
		if r.First != "" {
			tx = append(tx, s.opening(windowGap(m, r, now)))
		}
	}
	reasons, err := s.transact(ctx, tx)
	if err != nil {
		return fmt.Errorf("open its gaps: %w", err)
	}
	switch {
	case reasons == nil:
		return nil
	case failed(reasons[0]):
		return pipeline.ErrWindowClosed // sealed meanwhile
	}
	return pipeline.NeedPerson(errors.New("its gaps are closed, or being repaired, while parts of it are missing"),
		"look at them with streamer gaps list, and repair them again once the window is given up")
}

// voidParts gives parts up, unless one is claimed or the window landed again meanwhile.
func (s *Store) voidParts(ctx context.Context, it windowItem, ids []pipeline.PartID) (int, error) {
	n := 0
	for chunk := range slices.Chunk(ids, maxClaimsAtOnce) {
		for len(chunk) > 0 {
			tx := []types.TransactWriteItem{s.stillLanded(chunk[0].Window, it.LandedAt)}
			for _, id := range chunk {
				item, err := encode(partKey(id), partItem{Void: true})
				if err != nil {
					return n, err
				}
				tx = append(tx, types.TransactWriteItem{Put: &types.Put{
					TableName: &s.table, Item: item, ConditionExpression: aws.String("attribute_not_exists(pk)"),
				}})
			}
			reasons, err := s.transact(ctx, tx)
			switch {
			case err != nil:
				return n, err
			case reasons == nil:
				n += len(chunk)
				chunk = nil
				continue
			case failed(reasons[0]):
				return n, fmt.Errorf("%w: it was landed again, or sealed, just now", ErrTooEarly)
			}
			var rest []pipeline.PartID
			for i, id := range chunk {
				if !failed(reasons[i+1]) {
					rest = append(rest, id)
				}
			}
			chunk = rest
		}
	}
	return n, nil
}

// Landed notes that a committed window was landed again: what is on its way may be for another day.
// Call it after the landing. It fails with pipeline.ErrWindowClosed when the window is sealed.
func (s *Store) Landed(ctx context.Context, w pipeline.WindowID) error {
	err := s.markLanded(ctx, w, true)
	if refused := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &refused) {
		return fmt.Errorf("note the landing of window %s: %w", w, pipeline.ErrWindowClosed)
	}
	return err
}

// markLanded notes a landing of now: one more, or the first that was written down.
func (s *Store) markLanded(ctx context.Context, w pipeline.WindowID, again bool) error {
	in := &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: windowKey(w).av(), UpdateExpression: aws.String("SET landed_at = if_not_exists(landed_at, :now)"),
		ConditionExpression:      aws.String("#s = :committed"),
		ExpressionAttributeNames: map[string]string{"#s": "state"},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":committed": str(string(pipeline.WindowCommitted)), ":now": str(stamp(s.serverNow())),
		},
	}
	if again {
		in.UpdateExpression = aws.String("SET landed_at = :now, landings = if_not_exists(landings, :zero) + :one")
		in.ExpressionAttributeValues[":zero"], in.ExpressionAttributeValues[":one"] = num(0), num(1)
	}
	_, err := s.client.UpdateItem(ctx, in)
	if err != nil {
		return fmt.Errorf("note the landing of window %s: %w", w, err)
	}
	return nil
}

// Unsealed lists the windows of a lane of which some part is not known to be in the lake, by
// incarnation and number.
func (s *Store) Unsealed(ctx context.Context, lane pipeline.LaneID) ([]WindowStatus, error) {
	st, err := s.Lane(ctx, lane)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(st.Windows, func(w WindowStatus) bool { return !w.open() }), nil
}
