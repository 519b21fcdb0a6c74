package checkpoint

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
)

// gapID names the gap behind a position of a shard: the tail counts those that follow one that is
// being repaired or closed, or names the window that took the records.
func gapID(shard pipeline.ShardID, after pipeline.SequenceNumber, tail string) string {
	return fmt.Sprintf("%s#%s#%s", shard, after, tail)
}

// discardedTail keeps what was given up from what aged out behind the same position: each has
// bounds of its own.
func discardedTail(n int) string { return fmt.Sprintf("discarded-%d", n) }

func windowTail(w pipeline.WindowID) string { return fmt.Sprintf("%s-%d", w.Incarnation, w.N) }

// windowGap is the gap of the records that w took of a shard.
func windowGap(m *pipeline.Manifest, r pipeline.ShardRange, detected time.Time) pipeline.Gap {
	w := m.Window
	return pipeline.Gap{
		Missing: pipeline.Missing{Cause: pipeline.GapWindow, From: r.Oldest, To: r.Newest},
		ID:      gapID(r.Shard, r.After, windowTail(w)), Stream: m.Stream, Shard: r.Shard, Lane: w.Lane,
		After: r.After, First: r.First, Last: r.Last, Window: &w, State: pipeline.GapOpen, Detected: detected,
	}
}

func newGapItem(g pipeline.Gap) gapItem {
	it := gapItem{
		State: string(g.State), Cause: string(g.Cause), Shard: string(g.Shard), Lane: string(g.Lane),
		After: string(g.After), Before: string(g.Before), First: string(g.First), Last: string(g.Last),
		Detected: stamp(g.Detected), Evidence: g.Evidence, Repair: g.Repair,
	}
	if g.Window != nil {
		it.Window = g.Window.String()
	}
	if !g.From.IsZero() {
		it.From = stamp(g.From)
	}
	if !g.To.IsZero() {
		it.To = stamp(g.To.Add(time.Second - 1)) // up, so that nothing missing lies outside
	}
	return it
}

func (it gapItem) gap(k key) pipeline.Gap {
	g := pipeline.Gap{
		Missing: pipeline.Missing{Cause: pipeline.GapCause(it.Cause), From: unstamp(it.From), To: unstamp(it.To)},
		ID:      strings.TrimPrefix(k.sk, "gap#"), Stream: strings.TrimPrefix(k.pk, "stream#"),
		Shard: pipeline.ShardID(it.Shard), Lane: pipeline.LaneID(it.Lane),
		After: pipeline.SequenceNumber(it.After), Before: pipeline.SequenceNumber(it.Before),
		First: pipeline.SequenceNumber(it.First), Last: pipeline.SequenceNumber(it.Last),
		State: pipeline.GapState(it.State), Detected: unstamp(it.Detected), Evidence: it.Evidence, Repair: it.Repair,
	}
	if w, err := pipeline.ParseWindowID(it.Window); err == nil {
		g.Window = &w
	}
	return g
}

// opening writes g into the ledger, open. An open gap at its key grows to hold both; one that is
// being repaired, is closed, or ends before g begins refuses, because its bounds were relied on.
func (s *Store) opening(g pipeline.Gap) types.TransactWriteItem {
	it := newGapItem(g)
	names := map[string]string{"#s": "state"}
	values := map[string]types.AttributeValue{":open": str(string(pipeline.GapOpen)), ":fmt": num(pipeline.FormatVersion)}
	set := []string{"#s = :open", "fmt = if_not_exists(fmt, :fmt)"}
	put := func(name, v string, keep bool) {
		if v == "" {
			return
		}
		names["#"+name], values[":"+name] = name, str(v)
		if keep {
			set = append(set, fmt.Sprintf("#%s = if_not_exists(#%s, :%s)", name, name, name))
		} else {
			set = append(set, fmt.Sprintf("#%s = :%s", name, name))
		}
	}
	put("cause", it.Cause, false)
	put("shard", it.Shard, false)
	put("lane", it.Lane, false)
	put("after", it.After, false)
	put("before", it.Before, false)
	put("first", it.First, true)
	put("last", it.Last, true)
	put("from", it.From, true)
	put("to", it.To, false)
	put("window", it.Window, false)
	put("detected", it.Detected, false) // when it grew last: all that it holds was a day old by then
	grows := "#s = :open AND fmt <= :fmt"
	if it.From != "" && g.Window == nil {
		names["#to"] = "to"
		grows += " AND (attribute_not_exists(#to) OR #to >= :from)"
	}
	return types.TransactWriteItem{Update: &types.Update{
		TableName: &s.table, Key: gapKey(g.Stream, g.ID).av(),
		UpdateExpression:         aws.String("SET " + strings.Join(set, ", ")),
		ConditionExpression:      aws.String("attribute_not_exists(pk) OR (" + grows + ")"),
		ExpressionAttributeNames: names, ExpressionAttributeValues: values,
	}}
}

// missed are the gaps that a window found, by the index of their shard in the manifest, each with
// the first tail that nobody was seen to have.
type missed map[int]int

func newMissed(m *pipeline.Manifest) missed {
	tails := missed{}
	for i, r := range m.Shards {
		if r.Missing != nil {
			tails[i] = 1
		}
	}
	return tails
}

// maxGapsBehind bounds how many gaps one position can have behind it: a shard that is read to its
// tip, is left for a day and so on, without a record in between.
const maxGapsBehind = 1000

// opened are the writes that open the gaps, in the order of indexes.
func (t missed) opened(s *Store, m *pipeline.Manifest) []types.TransactWriteItem {
	var tx []types.TransactWriteItem
	now := s.serverNow()
	for _, i := range t.indexes() {
		r := m.Shards[i]
		tx = append(tx, s.opening(pipeline.Gap{
			Missing: *r.Missing, ID: gapID(r.Shard, r.After, strconv.Itoa(t[i])), Stream: m.Stream, Shard: r.Shard, Lane: m.Window.Lane,
			After: r.After, Before: r.First, State: pipeline.GapOpen, Detected: now,
		}))
	}
	return tx
}

func (t missed) indexes() []int { return slices.Sorted(maps.Keys(t)) }

// next moves those on that were refused, and reports whether there was one.
func (t missed) next(reasons []types.CancellationReason) (bool, error) {
	moved := false
	for j, i := range t.indexes() {
		if failed(reasons[j]) {
			t[i]++
			moved = true
			if t[i] > maxGapsBehind {
				return false, fmt.Errorf("more than %d gaps behind one position", maxGapsBehind)
			}
		}
	}
	return moved, nil
}

// Lose implements pipeline.Gaps.
func (s *Store) Lose(ctx context.Context, h pipeline.Hold, m *pipeline.Manifest) error {
	tx := []types.TransactWriteItem{
		s.laneCheck(h, m.Window.N, "pending = :n"),
		s.windowLost(m.Window, string(pipeline.WindowPending)),
	}
	now := s.serverNow()
	for _, r := range m.Shards {
		if r.First != "" {
			tx = append(tx, s.opening(windowGap(m, r, now)))
		}
	}
	reasons, err := s.transact(ctx, tx)
	if err != nil {
		return fmt.Errorf("open gaps of window %s: %w", m.Window, err)
	}
	if reasons == nil {
		return nil
	}
	if done, err := s.committed(h, m, reasons[0]); done || err != nil {
		return err
	}
	return pipeline.NeedPerson(fmt.Errorf("window %s cannot be given to the gap ledger: it is not the pending window of its lane, or its gaps are closed", m.Window),
		"two processes write the lane's items without its token; stop both and report it")
}

// windowLost marks a window in the given state as one that has gaps.
func (s *Store) windowLost(w pipeline.WindowID, state string) types.TransactWriteItem {
	return types.TransactWriteItem{Update: &types.Update{
		TableName: &s.table, Key: windowKey(w).av(),
		UpdateExpression:         aws.String("SET gaps = :true"),
		ConditionExpression:      aws.String("#s = :state"),
		ExpressionAttributeNames: map[string]string{"#s": "state"},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":true": &types.AttributeValueMemberBOOL{Value: true}, ":state": str(state),
		},
	}}
}

// OpenGap writes down that the records First to Last of a shard were given up by what should have
// delivered them. Only what lies after the shard's committed position is a gap, whoever owns the
// shard: it returns false if nothing does. A message that comes again finds its gap.
func (s *Store) OpenGap(ctx context.Context, g pipeline.Gap) (pipeline.Gap, bool, error) {
	if g.First == "" || g.Last.Compare(g.First) < 0 {
		return g, false, fmt.Errorf("open gap of shard %s: its records are %q to %q", g.Shard, g.First, g.Last)
	}
	for {
		done, open, err := s.openGap(ctx, &g)
		if err != nil {
			return g, false, fmt.Errorf("open gap of shard %s, records %s to %s: %w", g.Shard, g.First, g.Last, err)
		}
		if done {
			return g, open, nil
		}
	}
}

// openGap is one try, that is not done if the shard or the gap changed meanwhile.
func (s *Store) openGap(ctx context.Context, g *pipeline.Gap) (done, open bool, err error) {
	sk := shardKey(g.Stream, g.Shard)
	var sh shardItem
	there, err := s.get(ctx, sk, &sh)
	if err != nil {
		return false, false, err
	}
	if sh.End || g.Last.Compare(pipeline.SequenceNumber(sh.Seq)) <= 0 {
		return true, false, nil
	}
	g.After, g.Lane, g.State, g.Detected = pipeline.SequenceNumber(sh.Seq), pipeline.LaneID(sh.Lane), pipeline.GapOpen, s.serverNow()
	check := &types.ConditionCheck{TableName: &s.table, Key: sk.av(), ConditionExpression: aws.String("attribute_not_exists(pk)")}
	switch {
	case sh.Seq != "":
		check.ConditionExpression = aws.String("seq = :seq AND attribute_not_exists(#end)")
		check.ExpressionAttributeValues = map[string]types.AttributeValue{":seq": str(sh.Seq)}
		check.ExpressionAttributeNames = map[string]string{"#end": "end"}
	case there:
		check.ConditionExpression = aws.String("attribute_exists(pk) AND attribute_not_exists(seq) AND attribute_not_exists(#end)")
		check.ExpressionAttributeNames = map[string]string{"#end": "end"}
	}
	for tail := 1; tail <= maxGapsBehind; tail++ {
		k := gapKey(g.Stream, gapID(g.Shard, g.After, discardedTail(tail)))
		var old gapItem
		exists, err := s.get(ctx, k, &old)
		if err != nil {
			return false, false, err
		}
		next, covered := *g, false
		if exists {
			was := old.gap(k)
			covered = was.First != "" && was.First.Compare(g.First) <= 0 && was.Last.Compare(g.Last) >= 0
			if covered {
				*g = was
				return true, was.State != pipeline.GapClosed, nil
			}
			if was.State != pipeline.GapOpen {
				continue
			}
			next = union(was, *g)
		}
		next.ID = gapID(g.Shard, g.After, discardedTail(tail))
		item, err := encode(k, newGapItem(next))
		if err != nil {
			return false, false, err
		}
		put := &types.Put{TableName: &s.table, Item: item, ConditionExpression: aws.String("attribute_not_exists(pk)")}
		if exists {
			// It grew from what was read, and from nothing else: neither bound of another's is lost.
			put.ExpressionAttributeNames = map[string]string{"#s": "state"}
			put.ExpressionAttributeValues = map[string]types.AttributeValue{":open": str(string(pipeline.GapOpen))}
			put.ConditionExpression = aws.String("#s = :open" + asRead(map[string]string{
				"first": old.First, "last": old.Last, "from": old.From, "to": old.To,
			}, put.ExpressionAttributeNames, put.ExpressionAttributeValues))
		}
		reasons, err := s.transact(ctx, []types.TransactWriteItem{{ConditionCheck: check}, {Put: put}})
		if err != nil {
			return false, false, err
		}
		*g = next
		return reasons == nil, true, nil
	}
	return false, false, fmt.Errorf("more than %d gaps behind position %q", maxGapsBehind, g.After)
}

// union is an open gap that holds was and more, which lie behind the same position.
func union(was, more pipeline.Gap) pipeline.Gap {
	if was.First == "" || more.First.Compare(was.First) < 0 {
		was.First = more.First
	}
	if more.Last.Compare(was.Last) > 0 {
		was.Last = more.Last
	}
	if was.From.IsZero() || !more.From.IsZero() && more.From.Before(was.From) {
		was.From = more.From
	}
	if more.To.After(was.To) {
		was.To = more.To
	}
	return was
}

// Gaps lists the gaps of a stream, or of all streams for "", by stream, shard and position. All
// streams cost a scan of the table.
func (s *Store) Gaps(ctx context.Context, stream string) ([]pipeline.Gap, error) {
	items := s.query(ctx, sideKey(stream).pk, "gap#")
	if stream == "" {
		items = s.scan(ctx, "begins_with(sk, :x)", "gap#")
	}
	var gaps []pipeline.Gap
	for item, err := range items {
		if err != nil {
			return nil, fmt.Errorf("list gaps: %w", err)
		}
		var it gapItem
		k := keyOf(item)
		if err := decode(k, item, &it); err != nil {
			return nil, err
		}
		gaps = append(gaps, it.gap(k))
	}
	slices.SortFunc(gaps, func(a, b pipeline.Gap) int {
		if c := strings.Compare(a.Stream+"\x00"+string(a.Shard), b.Stream+"\x00"+string(b.Shard)); c != 0 {
			return c
		}
		if c := a.After.Compare(b.After); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return gaps, nil
}
