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
// their part items, and advances the watermark over windows that are sealed or void. Windows of
// the lane's earlier incarnations go the same way.
func (s *Store) Fold(ctx context.Context, lane pipeline.LaneID) error {
	_, err := s.FoldRest(ctx, lane)
	return err
}

// FoldRest is Fold, and returns the windows of which some part is still not known to be in the
// lake, as Unsealed does, with the one reading of them that both need. When it fails it returns
// those that it came to.
func (s *Store) FoldRest(ctx context.Context, lane pipeline.LaneID) ([]WindowStatus, error) {
	rest, err := s.fold(ctx, lane)
	if err != nil {
		return rest, fmt.Errorf("fold windows of lane %s: %w", lane, err)
	}
	return rest, nil
}

func (s *Store) fold(ctx context.Context, lane pipeline.LaneID) (rest []WindowStatus, err error) {
	var it laneItem
	ok, err := s.get(ctx, laneKey(lane), &it)
	if err != nil || !ok {
		return nil, err
	}
	lives := []*life{{key: laneKey(lane), inc: it.Incarnation, watermark: it.Watermark, void: it.Void, contiguous: true, current: true}}
	lives[0].through = it.Watermark
	for item, err := range s.query(ctx, laneKey(lane).pk, "window#") {
		if err != nil {
			return rest, err
		}
		k := keyOf(item)
		w, err := windowOf(lane, k.sk)
		if err != nil {
			return rest, damaged(k, err)
		}
		var win windowItem
		if err := decode(k, item, &win); err != nil {
			return rest, err
		}
		m, err := win.manifest(w)
		if err != nil {
			return rest, err
		}
		l, err := s.lifeOf(ctx, &lives, w)
		if err != nil {
			return rest, err
		}
		state, err := s.foldWindow(ctx, l, m, win)
		if err != nil {
			return rest, err
		}
		win.State = string(state)
		if left := win.status(m); left.open() {
			rest = append(rest, left)
		}
	}
	for _, l := range lives {
		if err := s.advanceWatermark(ctx, l); err != nil {
			return rest, err
		}
	}
	return rest, nil
}

// A life is one incarnation of a lane, while its windows are folded.
type life struct {
	key        key // of the item with the watermark
	inc        string
	watermark  int64
	void       string // as stored
	through    int64  // where the watermark may go
	contiguous bool   // nothing below through is missing
	current    bool
	below      []key // windows that go once the watermark covers them
	given      []int64
}

// lifeOf finds the incarnation of w among lives, and adds it if it is an earlier one. Those have a
// watermark that does not move: what is not below it has an item, or is not known.
func (s *Store) lifeOf(ctx context.Context, lives *[]*life, w pipeline.WindowID) (*life, error) {
	for _, l := range *lives {
		if l.inc == w.Incarnation {
			return l, nil
		}
	}
	l := &life{key: incarnationKey(w.Lane, w.Incarnation), inc: w.Incarnation}
	var it incarnationItem
	if _, err := s.get(ctx, l.key, &it); err != nil {
		return nil, err
	}
	l.watermark, l.through, l.void = it.Watermark, it.Watermark, it.Void
	*lives = append(*lives, l)
	return l, nil
}

// foldWindow seals a window that is done, notes whether its item may go, and returns the state that
// it is in.
func (s *Store) foldWindow(ctx context.Context, l *life, m *pipeline.Manifest, win windowItem) (pipeline.WindowState, error) {
	w, state, gaps := m.Window, pipeline.WindowState(win.State), win.Gaps
	var err error
	switch state {
	case pipeline.WindowCommitted:
		if state, gaps, err = s.seal(ctx, m); err != nil {
			return state, err
		}
	case pipeline.WindowSealed, pipeline.WindowVoid:
		// An earlier fold may have died between the state and the part items.
		if err := s.removeParts(ctx, w); err != nil {
			return state, err
		}
	}
	done := state == pipeline.WindowSealed || state == pipeline.WindowVoid
	if state == pipeline.WindowSealed && gaps {
		if err := s.closeWindowGaps(ctx, m); err != nil {
			return state, err
		}
	}
	switch {
	case done && w.N <= l.watermark:
		l.below = append(l.below, windowKey(w))
	case done && l.contiguous && w.N == l.through+1:
		l.through = w.N
		l.below = append(l.below, windowKey(w))
	default:
		l.contiguous = false
		return state, nil
	}
	if state == pipeline.WindowVoid {
		l.given = append(l.given, w.N)
	}
	return state, nil
}

// advanceWatermark moves the watermark over the windows that are done, notes which of them were
// given up, and only then removes their items: seal takes a missing window above it for one that
// was never begun.
func (s *Store) advanceWatermark(ctx context.Context, l *life) error {
	void, err := parseNumbers(l.void)
	if err != nil {
		return damaged(l.key, err)
	}
	for _, n := range l.given {
		if !void.has(n) {
			void = void.add(n)
		}
	}
	if l.through > l.watermark || void.String() != l.void {
		in := &dynamodb.UpdateItemInput{
			TableName: &s.table, Key: l.key.av(),
			UpdateExpression:          aws.String("SET watermark = :to"),
			ExpressionAttributeValues: map[string]types.AttributeValue{":to": num(l.through), ":at": num(l.watermark)},
		}
		// Monotonic, whoever folds at the same time.
		condition := "watermark = :at"
		if l.current {
			condition += " AND inc = :inc"
			in.ExpressionAttributeValues[":inc"] = str(l.inc)
		}
		if void.String() != l.void {
			in.ExpressionAttributeNames = map[string]string{"#v": "void"}
			in.UpdateExpression = aws.String("SET watermark = :to, #v = :void")
			in.ExpressionAttributeValues[":void"] = str(void.String())
			if l.void == "" {
				condition += " AND attribute_not_exists(#v)"
			} else {
				condition += " AND #v = :was"
				in.ExpressionAttributeValues[":was"] = str(l.void)
			}
		}
		in.ConditionExpression = &condition
		_, err := s.client.UpdateItem(ctx, in)
		if passed := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &passed) {
			return nil // another fold was faster, or the lane was rebuilt: the next fold looks again
		}
		if err != nil {
			return err
		}
	}
	return s.remove(ctx, l.below)
}

// seal sets a committed window to sealed, or to void if some part was given up, once every part is
// published or void. From then on it refuses claims, so its part items may go. It says whether the
// window has gaps: what was read of it before may be older than they are.
func (s *Store) seal(ctx context.Context, m *pipeline.Manifest) (state pipeline.WindowState, gaps bool, err error) {
	w, done := m.Window, 0
	state = pipeline.WindowSealed
	for item, err := range s.query(ctx, partsKey(w), "part#") {
		if err != nil {
			return "", false, err
		}
		var p partItem
		if err := decode(keyOf(item), item, &p); err != nil {
			return "", false, err
		}
		if p.Void || p.PublishedAt != "" {
			done++
		}
		if p.Void {
			state = pipeline.WindowVoid
		}
	}
	if done < len(m.Parts) {
		return pipeline.WindowCommitted, false, nil
	}
	out, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: windowKey(w).av(),
		UpdateExpression:         aws.String("SET #s = :sealed"),
		ConditionExpression:      aws.String("#s = :committed"),
		ExpressionAttributeNames: map[string]string{"#s": "state"},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":sealed": str(string(state)), ":committed": str(string(pipeline.WindowCommitted)),
		},
		ReturnValues: types.ReturnValueAllNew,
	})
	if elsewhere := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &elsewhere) {
		return pipeline.WindowCommitted, false, nil // another fold is at it; the next one sees the outcome
	}
	if err != nil {
		return "", false, err
	}
	var sealed windowItem
	if err := decode(windowKey(w), out.Attributes, &sealed); err != nil {
		return "", false, err
	}
	return state, sealed.Gaps, s.removeParts(ctx, w)
}

// closeWindowGaps closes the gaps of a window of which every part was published after all: it had
// been landed before its records aged out.
func (s *Store) closeWindowGaps(ctx context.Context, m *pipeline.Manifest) error {
	for _, r := range m.Shards {
		if r.First == "" {
			continue
		}
		k := gapKey(m.Stream, gapID(r.Shard, r.After, windowTail(m.Window)))
		var it gapItem
		ok, err := s.get(ctx, k, &it)
		if err != nil {
			return err
		}
		if !ok || it.State != string(pipeline.GapOpen) {
			continue
		}
		err = s.MoveGap(ctx, it.gap(k), pipeline.GapClosed, "every part of the window was published")
		if err != nil && !errors.Is(err, ErrGapMoved) {
			return err
		}
	}
	return nil
}

func (s *Store) removeParts(ctx context.Context, w pipeline.WindowID) error {
	var keys []key
	for item, err := range s.query(ctx, partsKey(w), "part#") {
		if err != nil {
			return err
		}
		keys = append(keys, keyOf(item))
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
