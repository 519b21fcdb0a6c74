package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
)

// rebuilding marks a lane whose items are being written anew: no window may be begun in it.
const rebuilding = "rebuild"

// Rebuilding is the side of a stream whose positions are being written anew: nobody may take a
// shard of it, since one whose position is not written yet would be read from its beginning.
const Rebuilding Side = rebuilding

// A Rebuilt is a lane as it can be told from what is in the lake and in staging.
type Rebuilt struct {
	Lane   pipeline.LaneID
	Stream string // ARN
	Side   Side
	Shards []RebuiltShard
	Past   []PastLife
	// Gaps are records behind the shards' positions that were found nowhere.
	Gaps []pipeline.Gap
}

// A RebuiltShard is a shard's position, from the highest range that was found of it.
type RebuiltShard struct {
	ID, Parent pipeline.ShardID
	At         pipeline.Position
}

// A PastLife is what is known of an earlier incarnation. A window up to Watermark that is not among
// Windows is whole in the lake: what comes of it later is a duplicate. One above it that is not
// among them is unknown: what comes of it stays in staging. So the watermark must not pass a window
// of which a part may still come.
type PastLife struct {
	Incarnation string
	Watermark   int64
	Windows     []PastWindow
	// Void are windows of which nothing is in the lake and nothing will be: their records are read
	// again. Unknown are runs of numbers up to the watermark that left no trace, first and last:
	// what comes of them stays in staging.
	Void    []int64
	Unknown [][2]int64
}

// A PastWindow is a window that was committed and is not known to be whole in the lake, with its
// manifest as far as it can be told, and the lake objects of its parts that are there, by index.
type PastWindow struct {
	Manifest  *pipeline.Manifest
	Published map[int]string
	Lost      bool // some parts were found nowhere: the gaps of its records are opened
}

// Rebuild writes a lane anew: positions, what is left of earlier incarnations, and an incarnation
// of its own, whose windows begin at 1. Whoever holds the lane is fenced. It replaces positions
// that are stored; what the ledger has of windows it leaves. One that broke off is called again. It
// returns the new incarnation.
func (s *Store) Rebuild(ctx context.Context, r Rebuilt) (string, error) {
	incs, err := s.RebuildLanes(ctx, r)
	if err != nil {
		return "", err
	}
	return incs[0], nil
}

// RebuildLanes is Rebuild of all lanes of one stream, which are of one side: until the last of them
// is written no shard of the stream can be taken.
func (s *Store) RebuildLanes(ctx context.Context, rs ...Rebuilt) ([]string, error) {
	if len(rs) == 0 {
		return nil, errors.New("rebuild lanes: there are none")
	}
	for _, r := range rs {
		if !r.Lane.Valid() || !r.Side.valid() || r.Stream == "" || r.Stream != rs[0].Stream || r.Side != rs[0].Side {
			return nil, fmt.Errorf("rebuild lane %q of stream %q, read by %q, beside one of %q, read by %q", r.Lane, r.Stream, r.Side, rs[0].Stream, rs[0].Side)
		}
	}
	// All that can refuse is asked before anything is written.
	for _, r := range rs {
		if err := s.mayRebuild(ctx, r); err != nil {
			return nil, fmt.Errorf("rebuild lane %s: %w", r.Lane, err)
		}
	}
	was := make([]laneItem, len(rs))
	for i, r := range rs {
		var err error
		if was[i], err = s.close(ctx, r.Lane); err != nil {
			return nil, fmt.Errorf("rebuild lane %s: %w", r.Lane, err)
		}
	}
	if err := s.putSide(ctx, rs[0].Stream, Rebuilding); err != nil {
		return nil, err
	}
	incs := make([]string, len(rs))
	for i, r := range rs {
		var err error
		if incs[i], err = s.rebuild(ctx, r, was[i]); err != nil {
			return nil, fmt.Errorf("rebuild lane %s: %w", r.Lane, err)
		}
	}
	return incs, s.putSide(ctx, rs[0].Stream, rs[0].Side)
}

// mayRebuild says why a lane cannot be written so.
func (s *Store) mayRebuild(ctx context.Context, r Rebuilt) error {
	for _, p := range r.Past {
		if err := p.check(r.Lane); err != nil {
			return err
		}
	}
	for _, sh := range r.Shards {
		was, ok, err := s.Shard(ctx, r.Stream, sh.ID)
		if err != nil {
			return err
		}
		if ok && was.Lane != r.Lane {
			return foreignRebuilt(sh.ID)
		}
	}
	return nil
}

func (p PastLife) check(lane pipeline.LaneID) error {
	if p.Incarnation == "" {
		return errors.New("an earlier incarnation has no name")
	}
	for _, n := range p.Void {
		if n < 1 || n > p.Watermark {
			return fmt.Errorf("window %d of incarnation %s is given up above the watermark %d", n, p.Incarnation, p.Watermark)
		}
	}
	for _, w := range p.Windows {
		m := w.Manifest
		if m == nil || m.Window.Lane != lane || m.Window.Incarnation != p.Incarnation {
			return fmt.Errorf("a window of incarnation %s has another's manifest", p.Incarnation)
		}
		for i, name := range w.Published {
			if i < 0 || i >= len(m.Parts) || name == "" {
				return fmt.Errorf("window %s has no part %d in %q", m.Window, i, name)
			}
		}
	}
	return nil
}

func beingRebuilt(stream string) error {
	return pipeline.NeedPerson(fmt.Errorf("the positions of stream %s are being written anew", stream),
		"let that end, or start it again: streamer lanes rebuild --apply")
}

func foreignRebuilt(id pipeline.ShardID) error {
	return pipeline.NeedPerson(fmt.Errorf("shard %s belongs to another lane", id), "hand the stream over to this lane first")
}

func (s *Store) putSide(ctx context.Context, stream string, side Side) error {
	item, err := encode(sideKey(stream), streamItem{Side: string(side)})
	if err != nil {
		return err
	}
	if _, err := s.client.PutItem(ctx, &dynamodb.PutItemInput{TableName: &s.table, Item: item}); err != nil {
		return fmt.Errorf("write the side of stream %s: %w", stream, err)
	}
	return nil
}

func (s *Store) rebuild(ctx context.Context, r Rebuilt, was laneItem) (string, error) {
	past := map[string]PastLife{}
	for _, p := range r.Past {
		past[p.Incarnation] = p
	}
	if was.Incarnation != "" {
		p := past[was.Incarnation]
		p.Incarnation, p.Watermark = was.Incarnation, max(p.Watermark, was.Watermark)
		past[was.Incarnation] = p
	}
	for _, inc := range slices.Sorted(maps.Keys(past)) {
		if err := s.writePast(ctx, r.Lane, past[inc], was); err != nil {
			return "", err
		}
	}
	// The gaps are open before a position lies behind them.
	for _, g := range r.Gaps {
		if err := s.writeGap(ctx, r, g); err != nil {
			return "", err
		}
	}
	for _, sh := range r.Shards {
		if err := s.writeShard(ctx, r, sh); err != nil {
			return "", err
		}
	}
	return s.reborn(ctx, r, was)
}

// writeGap opens a gap of records that were found nowhere. One that is there stays as it is.
func (s *Store) writeGap(ctx context.Context, r Rebuilt, g pipeline.Gap) error {
	if g.First == "" || g.Shard == "" {
		return fmt.Errorf("a gap of shard %q begins at %q", g.Shard, g.First)
	}
	g.Stream, g.Lane, g.State, g.Detected = cmp.Or(g.Stream, r.Stream), r.Lane, pipeline.GapOpen, s.serverNow()
	g.ID = gapID(g.Shard, g.After, rebuilding+"-"+string(g.First))
	item, err := encode(gapKey(g.Stream, g.ID), newGapItem(g))
	if err != nil {
		return err
	}
	_, err = s.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName: &s.table, Item: item, ConditionExpression: aws.String("attribute_not_exists(pk)"),
	})
	if kept := (*types.ConditionalCheckFailedException)(nil); err != nil && !errors.As(err, &kept) {
		return fmt.Errorf("write gap %s: %w", g.ID, err)
	}
	return nil
}

// close fences the lane, so that nothing is begun while its items are written, and returns what it
// was; the zero item if there was none.
func (s *Store) close(ctx context.Context, lane pipeline.LaneID) (laneItem, error) {
	var it laneItem
	ok, err := s.get(ctx, laneKey(lane), &it)
	if err != nil || !ok {
		return it, err
	}
	if it.Pending != 0 {
		return it, pipeline.NeedPerson(fmt.Errorf("window %d is pending: its records are not lost, and a rebuilt lane would read them again", it.Pending),
			"start the lane so that it commits the window; if it cannot, restore the checkpoint table")
	}
	_, err = s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: laneKey(lane).av(),
		UpdateExpression:         aws.String("SET moved = :rebuild, #t = #t + :one, holder = :rebuild REMOVE lease"),
		ConditionExpression:      aws.String("fmt <= :fmt AND inc = :inc AND attribute_not_exists(pending)"),
		ExpressionAttributeNames: map[string]string{"#t": "token"},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":rebuild": str(rebuilding), ":one": num(1), ":inc": str(it.Incarnation), ":fmt": num(pipeline.FormatVersion),
		},
	})
	if changed := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &changed) {
		return it, pipeline.NeedPerson(errors.New("the lane is in use"),
			"stop the process that holds it, and start again: streamer lanes rebuild")
	}
	return it, err
}

// writePast keeps what later copies of an earlier incarnation's parts are judged by.
func (s *Store) writePast(ctx context.Context, lane pipeline.LaneID, p PastLife, was laneItem) error {
	for _, w := range p.Windows {
		if err := s.writePastWindow(ctx, w); err != nil {
			return err
		}
	}
	k := incarnationKey(lane, p.Incarnation)
	var void numbers
	if p.Incarnation == was.Incarnation {
		var err error
		if void, err = parseNumbers(was.Void); err != nil {
			return damaged(laneKey(lane), err)
		}
	}
	for _, n := range p.Void {
		if !void.has(n) {
			void = void.add(n)
		}
	}
	it := incarnationItem{Watermark: p.Watermark, Void: void.String(), Unknown: numbers(p.Unknown).atMost(maxUnknownRuns).String()}
	item, err := encode(k, it)
	if err != nil {
		return err
	}
	_, err = s.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName: &s.table, Item: item, ConditionExpression: aws.String("attribute_not_exists(pk) OR watermark < :to"),
		ExpressionAttributeValues: map[string]types.AttributeValue{":to": num(p.Watermark)},
	})
	if kept := (*types.ConditionalCheckFailedException)(nil); err != nil && !errors.As(err, &kept) {
		return fmt.Errorf("write incarnation %s: %w", p.Incarnation, err)
	}
	return nil
}

func (s *Store) writePastWindow(ctx context.Context, w PastWindow) error {
	m := w.Manifest
	text, err := m.Encode()
	if err != nil {
		return err
	}
	now := stamp(s.serverNow())
	items := map[key]any{windowKey(m.Window): windowItem{
		State: string(pipeline.WindowCommitted), Manifest: string(text), CommittedAt: now, LandedAt: now,
	}}
	for i, name := range w.Published {
		// The copy it came from is gone: the lake object stands for it.
		items[partKey(pipeline.PartID{Window: m.Window, Index: i})] = partItem{Key: name, ETag: rebuilding, Name: name, PublishedAt: now}
	}
	for k, v := range items {
		item, err := encode(k, v)
		if err != nil {
			return err
		}
		_, err = s.client.PutItem(ctx, &dynamodb.PutItemInput{
			TableName: &s.table, Item: item, ConditionExpression: aws.String("attribute_not_exists(pk)"),
		})
		if kept := (*types.ConditionalCheckFailedException)(nil); err != nil && !errors.As(err, &kept) {
			return fmt.Errorf("write item %s: %w", k, err)
		}
	}
	if !w.Lost {
		return nil
	}
	// One that is sealed by now has all its parts.
	if err := s.loseCommitted(ctx, m); err != nil && !errors.Is(err, pipeline.ErrWindowClosed) {
		return fmt.Errorf("window %s: %w", m.Window, err)
	}
	return nil
}

// writeShard gives a shard to the lane at a position.
func (s *Store) writeShard(ctx context.Context, r Rebuilt, sh RebuiltShard) error {
	it := shardItem{Lane: string(r.Lane), Parent: string(sh.Parent), Seq: string(sh.At.Seq), End: sh.At.End, Orphan: sh.At.Orphan}
	for to, at := range map[*string]time.Time{&it.Created: sh.At.Created, &it.TipAt: sh.At.TipAt, &it.StartMark: sh.At.StartAt, &it.MetAt: sh.At.MetAt, &it.AwayAt: sh.At.AwayAt} {
		if !at.IsZero() {
			*to = stamp(at)
		}
	}
	item, err := encode(shardKey(r.Stream, sh.ID), it)
	if err != nil {
		return err
	}
	_, err = s.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName: &s.table, Item: item, ConditionExpression: aws.String("attribute_not_exists(pk) OR (lane = :lane AND fmt <= :fmt)"),
		ExpressionAttributeValues: map[string]types.AttributeValue{":lane": str(string(r.Lane)), ":fmt": num(pipeline.FormatVersion)},
	})
	if foreign := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &foreign) {
		return foreignRebuilt(sh.ID)
	}
	if err != nil {
		return fmt.Errorf("write shard %s: %w", sh.ID, err)
	}
	return nil
}

// reborn opens the lane with a new incarnation.
func (s *Store) reborn(ctx context.Context, r Rebuilt, was laneItem) (string, error) {
	inc, err := s.random()
	if err != nil {
		return "", err
	}
	// Above any token that a process of the old incarnation has: its requests are refused for both.
	it := laneItem{Incarnation: inc, Token: was.Token + 2, Holder: rebuilding, Next: 1, Stream: r.Stream}
	item, err := encode(laneKey(r.Lane), it)
	if err != nil {
		return "", err
	}
	put := &dynamodb.PutItemInput{TableName: &s.table, Item: item, ConditionExpression: aws.String("attribute_not_exists(pk)")}
	if was.Incarnation != "" {
		put.ConditionExpression = aws.String("inc = :inc AND moved = :rebuild")
		put.ExpressionAttributeValues = map[string]types.AttributeValue{":inc": str(was.Incarnation), ":rebuild": str(rebuilding)}
	}
	_, err = s.client.PutItem(ctx, put)
	if changed := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &changed) {
		return "", pipeline.NeedPerson(errors.New("another process changed the lane meanwhile"),
			"stop all others, and start again: streamer lanes rebuild")
	}
	return inc, err
}
