package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
)

// Claims returns what the ledger holds of a window's parts, in their order: claims that are
// published or not, and parts that are void. A part that has no claim is not among them, and none is
// of a window that is sealed or void.
func (s *Store) Claims(ctx context.Context, w pipeline.WindowID) ([]pipeline.Claim, error) {
	var claims []pipeline.Claim
	for item, err := range s.query(ctx, partsKey(w), "part#") {
		if err != nil {
			return nil, fmt.Errorf("list claims of window %s: %w", w, err)
		}
		k := keyOf(item)
		var it partItem
		if err := decode(k, item, &it); err != nil {
			return nil, err
		}
		i, err := strconv.Atoi(strings.TrimPrefix(k.sk, "part#"))
		if err != nil {
			return nil, damaged(k, err)
		}
		claims = append(claims, it.claim(pipeline.PartID{Window: w, Index: i}))
	}
	return claims, nil
}

// GiveUpLost gives up the parts of a committed window whose claims seal found lost: their copies are
// gone, and their names are taken by objects that do not list them. It is GiveUp for these, with its
// bound on time and its gaps. A claim that is another by now is left as it is.
func (s *Store) GiveUpLost(ctx context.Context, w pipeline.WindowID, lost []pipeline.Claim) (int, error) {
	n, err := s.giveUpLost(ctx, w, lost)
	if err != nil {
		return n, fmt.Errorf("give up lost claims of window %s: %w", w, err)
	}
	return n, nil
}

func (s *Store) giveUpLost(ctx context.Context, w pipeline.WindowID, lost []pipeline.Claim) (int, error) {
	it, m, err := s.givable(ctx, w)
	if err != nil || m == nil || len(lost) == 0 {
		return 0, err
	}
	if err := s.loseCommitted(ctx, m); err != nil {
		return 0, err
	}
	n := 0
	for _, c := range lost {
		if c.Part.Window != w {
			return n, fmt.Errorf("claim on part %s is of another window", c.Part)
		}
		reasons, err := s.transact(ctx, []types.TransactWriteItem{s.stillLanded(w, it.LandedAt), {Update: &types.Update{
			TableName: &s.table, Key: partKey(c.Part).av(),
			UpdateExpression: aws.String("SET #v = :true, #o = :zero, round = :zero REMOVE #k, etag, #n"),
			ConditionExpression: aws.String("#k = :k AND etag = :e AND #o = :o AND #n = :n AND round = :r" +
				" AND attribute_not_exists(published_at) AND attribute_not_exists(#v)"),
			ExpressionAttributeNames: map[string]string{"#k": "key", "#o": "offset", "#n": "name", "#v": "void"},
			ExpressionAttributeValues: map[string]types.AttributeValue{
				":k": str(c.Copy.Key), ":e": str(c.Copy.ETag), ":o": num(c.Copy.Offset), ":n": str(c.Name), ":r": num(c.Round),
				":zero": num(0), ":true": &types.AttributeValueMemberBOOL{Value: true},
			},
		}}})
		switch {
		case err != nil:
			return n, err
		case reasons == nil:
			n++
		case failed(reasons[0]):
			return n, fmt.Errorf("%w: it was landed again, or sealed, just now", ErrTooEarly)
		}
	}
	return n, nil
}

// givable returns a committed window that may be given up by now; the manifest is nil if nothing of
// it is left to give up.
func (s *Store) givable(ctx context.Context, w pipeline.WindowID) (windowItem, *pipeline.Manifest, error) {
	var it windowItem
	ok, err := s.get(ctx, windowKey(w), &it)
	if err != nil {
		return it, nil, err
	}
	if !ok {
		state, _, err := s.Window(ctx, w)
		if err == nil && state == pipeline.WindowUnknown {
			err = errors.New("it was never begun")
		}
		return it, nil, err
	}
	switch pipeline.WindowState(it.State) {
	case pipeline.WindowSealed, pipeline.WindowVoid:
		return it, nil, nil
	case pipeline.WindowPending:
		return it, nil, errors.New("it is pending: the next start of its lane commits it first")
	}
	if it.LandedAt == "" { // by a binary that did not write it down
		if err := s.markLanded(ctx, w, false); err != nil {
			return it, nil, err
		}
		return it, nil, fmt.Errorf("%w: it is counted from now", ErrTooEarly)
	}
	if at := unstamp(it.LandedAt).Add(GiveUpAfter); s.serverNow().Before(at) {
		return it, nil, fmt.Errorf("%w: until %s", ErrTooEarly, stamp(at))
	}
	m, err := it.manifest(w)
	return it, m, err
}

// stillLanded checks that a window is committed and was not landed again.
func (s *Store) stillLanded(w pipeline.WindowID, landedAt string) types.TransactWriteItem {
	return types.TransactWriteItem{ConditionCheck: &types.ConditionCheck{
		TableName: &s.table, Key: windowKey(w).av(),
		ConditionExpression:      aws.String("#s = :committed AND landed_at = :landed"),
		ExpressionAttributeNames: map[string]string{"#s": "state"},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":committed": str(string(pipeline.WindowCommitted)), ":landed": str(landedAt),
		},
	}}
}
