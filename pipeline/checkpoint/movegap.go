package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
)

// ErrGapMoved means that a gap is not, or no longer, as a step begins from.
var ErrGapMoved = errors.New("the gap is in another state")

// MoveGap takes a gap from one state to the next: open → repairing → closed, or back to open when
// a repair is broken off. Whoever repairs a gap names itself in Repair, with a name that no other
// repair has, before it takes it: of two that take it at once one has it. A gap is closed with
// evidence: what was found, and where. Repair of a window's gap begins only when every part of the
// window is published or void, because what is repaired earlier could be published twice. It fails
// with ErrGapMoved unless the gap is as it was read: an open one grows, one that is repaired
// belongs to its repair. A step that has succeeded succeeds again.
func (s *Store) MoveGap(ctx context.Context, g pipeline.Gap, to pipeline.GapState, evidence string) error {
	if err := s.moveGap(ctx, g, to, evidence); err != nil {
		return fmt.Errorf("move gap %s from %s to %s: %w", g.ID, g.State, to, err)
	}
	return nil
}

func (s *Store) moveGap(ctx context.Context, g pipeline.Gap, to pipeline.GapState, evidence string) error {
	was, after := newGapItem(g), newGapItem(g)
	after.State = string(to)
	if evidence != "" {
		after.Evidence = evidence
	}
	switch step := [2]pipeline.GapState{g.State, to}; step {
	case [2]pipeline.GapState{pipeline.GapOpen, pipeline.GapRepairing}:
		if g.Repair == "" {
			return errors.New("the repair has no name")
		}
		if err := s.repairable(ctx, g.Window); err != nil {
			return err
		}
		was.Repair = ""
	case [2]pipeline.GapState{pipeline.GapRepairing, pipeline.GapOpen}:
		after.Repair = ""
	case [2]pipeline.GapState{pipeline.GapRepairing, pipeline.GapClosed}, [2]pipeline.GapState{pipeline.GapOpen, pipeline.GapClosed}:
		if evidence == "" {
			return errors.New("a gap is closed with evidence")
		}
	default:
		return errors.New("there is no such step")
	}
	k := gapKey(g.Stream, g.ID)
	in := stepOf(was, after)
	in.TableName, in.Key = &s.table, k.av()
	_, err := s.client.UpdateItem(ctx, in)
	var refused *types.ConditionalCheckFailedException
	if !errors.As(err, &refused) {
		return err
	}
	if refused.Item == nil {
		return errors.New("there is no such gap")
	}
	var it gapItem
	if err := decode(k, refused.Item, &it); err != nil {
		return err
	}
	if it.State == after.State && it.Repair == after.Repair && it.Evidence == after.Evidence {
		return nil // ours, its answer was lost
	}
	return fmt.Errorf("%w: it is %s, from %s to %s", ErrGapMoved, it.State, it.From, it.To)
}

// repairable says why the gap of a window cannot be repaired yet; nil if it can.
func (s *Store) repairable(ctx context.Context, w *pipeline.WindowID) error {
	if w == nil {
		return nil
	}
	state, _, err := s.Window(ctx, *w)
	if err != nil {
		return err
	}
	if state == pipeline.WindowPending || state == pipeline.WindowCommitted {
		return fmt.Errorf("window %s is %s: it is repaired once every part of it is published or given up", w, state)
	}
	return nil
}

// stepOf writes what a step changes, on condition that nothing that a step relies on is another.
func stepOf(was, after gapItem) *dynamodb.UpdateItemInput {
	in := &dynamodb.UpdateItemInput{
		ExpressionAttributeNames:            map[string]string{"#state": "state"},
		ExpressionAttributeValues:           map[string]types.AttributeValue{":state": str(after.State), ":fmt": num(pipeline.FormatVersion)},
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
	in.ConditionExpression = aws.String("fmt <= :fmt" + asRead(map[string]string{
		"state": was.State, "evidence": was.Evidence, "repair": was.Repair, "cause": was.Cause,
		"from": was.From, "to": was.To, "first": was.First, "last": was.Last, "before": was.Before,
	}, in.ExpressionAttributeNames, in.ExpressionAttributeValues))
	update := "SET #state = :state"
	for name, v := range map[string]string{"evidence": after.Evidence, "repair": after.Repair} {
		if v != "" {
			update += ", #" + name + " = :" + name
			in.ExpressionAttributeValues[":"+name] = str(v)
		}
	}
	if after.Repair == "" {
		update += " REMOVE #repair"
	}
	in.UpdateExpression = &update
	return in
}

// asRead is the end of a condition: that attributes are as they were read, "" for those that were
// not there. It adds their names and values.
func asRead(was, names map[string]string, values map[string]types.AttributeValue) string {
	var b strings.Builder
	for name, v := range was {
		names["#"+name] = name
		if v == "" {
			b.WriteString(" AND attribute_not_exists(#" + name + ")")
			continue
		}
		b.WriteString(" AND #" + name + " = :is_" + name)
		values[":is_"+name] = str(v)
	}
	return b.String()
}

// SettleGaps closes the gaps of records that were given up by what should have delivered them, and
// were read after all: a lane leaves nothing out between two positions that it does not write down.
// What was gone when the shard was met it does not write down: a gap of such records stays. Of a
// shard without an item nothing is known, and its gaps stay as they are; so Forget keeps the item
// for as long as it has one that is not closed. It returns how many it closed.
func (s *Store) SettleGaps(ctx context.Context, stream string) (int, error) {
	closed, _, err := s.settle(ctx, stream, "gap#")
	if err != nil {
		return closed, fmt.Errorf("settle gaps: %w", err)
	}
	return closed, nil
}

// settle is SettleGaps of the gaps whose sort keys have the prefix, and says how many it left.
func (s *Store) settle(ctx context.Context, stream, prefix string) (closed, left int, err error) {
	for item, err := range s.query(ctx, sideKey(stream).pk, prefix) {
		if err != nil {
			return closed, left, err
		}
		k := keyOf(item)
		var it gapItem
		if err := decode(k, item, &it); err != nil {
			return closed, left, err
		}
		g := it.gap(k)
		if g.Cause != pipeline.GapDiscarded || g.State == pipeline.GapClosed {
			continue
		}
		left++
		if g.State != pipeline.GapOpen {
			continue // whoever repairs it says how it ends
		}
		var sh shardItem
		ok, err := s.get(ctx, shardKey(g.Stream, g.Shard), &sh)
		if err != nil {
			return closed, left, err
		}
		if !ok || !sh.End && g.Last.Compare(pipeline.SequenceNumber(sh.Seq)) > 0 {
			continue
		}
		if met := unstamp(sh.MetAt); g.After == "" && !met.IsZero() && g.From.Before(met.Add(-pipeline.StreamRetention)) {
			continue // its first records had aged out when the stream was met
		}
		err = s.MoveGap(ctx, g, pipeline.GapClosed, fmt.Sprintf("read after all: the shard is committed up to %s (end %v)", sh.Seq, sh.End))
		if errors.Is(err, ErrGapMoved) {
			continue
		}
		if err != nil {
			return closed, left, err
		}
		closed, left = closed+1, left-1
	}
	return closed, left, nil
}
