package checkpoint

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
)

// Acquire implements pipeline.Checkpoints. A token is never used twice, not even by the same
// process: a request of its own that is still on its way must find another.
func (s *Store) Acquire(ctx context.Context, lane pipeline.LaneID, again bool) (pipeline.State, error) {
	t := taking{condition: "attribute_not_exists(pk) OR fmt <= :fmt"}
	if again {
		t.condition = "fmt <= :fmt AND holder = :me"
	}
	return s.acquire(ctx, lane, t)
}

// A taking says when a lane may be taken, and whether it is held under a lease.
type taking struct {
	condition string
	values    map[string]types.AttributeValue
	lease     bool
}

func (s *Store) acquire(ctx context.Context, lane pipeline.LaneID, t taking) (pipeline.State, error) {
	var st pipeline.State
	holder, err := s.holder()
	if err != nil {
		return st, fmt.Errorf("acquire lane %s: %w", lane, err)
	}
	inc, err := s.random()
	if err != nil {
		return st, fmt.Errorf("acquire lane %s: %w", lane, err)
	}
	k := laneKey(lane)
	set := "SET #t = if_not_exists(#t, :zero) + :one, holder = :me, inc = if_not_exists(inc, :inc)," +
		" #n = if_not_exists(#n, :one), watermark = if_not_exists(watermark, :zero), fmt = if_not_exists(fmt, :fmt)"
	names := map[string]string{"#t": "token", "#n": "next"}
	values := map[string]types.AttributeValue{
		":zero": num(0), ":one": num(1), ":inc": str(inc), ":me": str(holder), ":fmt": num(pipeline.FormatVersion),
	}
	maps.Copy(values, t.values)
	if t.lease {
		set += ", lease = if_not_exists(lease, :zero) + :one"
	}
	if s.host != "" {
		set += ", #h = :host"
		names["#h"], values[":host"] = "host", str(s.host)
	}
	out, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: k.av(),
		UpdateExpression: &set, ConditionExpression: &t.condition,
		ExpressionAttributeNames: names, ExpressionAttributeValues: values,
		ReturnValues:                        types.ReturnValueAllNew,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	var it laneItem
	if refused := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &refused) {
		if err := decode(k, refused.Item, &it); err != nil { // of a newer format, or gone
			return st, err
		}
		return st, fmt.Errorf("lane %s: %w (its token is %d)", lane, pipeline.ErrFenced, it.Token)
	}
	if err != nil {
		return st, fmt.Errorf("acquire lane %s: %w", lane, err)
	}
	if err := decode(k, out.Attributes, &it); err != nil {
		return st, err
	}
	st = pipeline.State{Hold: pipeline.Hold{Lane: lane, Incarnation: it.Incarnation, Token: it.Token}, Next: it.Next}
	if err := it.mayBegin(lane); err != nil && !it.mayFinish() {
		return st, err
	}
	if it.Pending != 0 {
		w := pipeline.WindowID{Lane: lane, Incarnation: it.Incarnation, N: it.Pending}
		_, m, err := s.window(ctx, w)
		if err != nil {
			return st, err
		}
		if m == nil {
			// Whoever acquired the lane since may have finished and folded the window.
			var now laneItem
			if ok, err := s.get(ctx, k, &now); err != nil {
				return st, err
			} else if ok && now.Token != it.Token {
				return st, fmt.Errorf("lane %s: %w (its token is %d, ours %d)", lane, pipeline.ErrFenced, now.Token, it.Token)
			}
			return st, pipeline.NeedPerson(fmt.Errorf("window %s is pending and its item is missing", w),
				"restore the checkpoint table")
		}
		st.Pending = m
	}
	return st, nil
}

// holder names this process, the same for as long as it lives.
func (s *Store) holder() (string, error) {
	s.nameOnce.Do(func() { s.name, s.nameErr = s.random() })
	return s.name, s.nameErr
}

func (s *Store) random() (string, error) {
	b := make([]byte, 8)
	if _, err := io.ReadFull(s.rand, b); err != nil {
		return "", err
	}
	return hex.EncodeToString(b), nil
}

// mayBegin says why no window may be begun in the lane, whoever holds it; nil if one may.
func (it laneItem) mayBegin(lane pipeline.LaneID) error {
	switch {
	case it.Halted != "":
		return halted(lane, it.Halted)
	case it.Moved == rebuilding:
		return pipeline.NeedPerson(fmt.Errorf("lane %s is being rebuilt", lane), "let that end, or start it again: streamer lanes rebuild")
	case it.Moved != "":
		return pipeline.NeedPerson(fmt.Errorf("the shards of lane %s were handed over to %s", lane, it.Moved),
			"leave the stream to it, or take it back: streamer lanes handover --to "+string(Side(it.Moved).other()))
	}
	return nil
}

// mayFinish says that the lane has a window that may be committed though none may be begun: its
// shards are to be handed over, which waits for that.
func (it laneItem) mayFinish() bool {
	return it.Pending != 0 && it.Halted == "" && Side(it.Moved).valid()
}

func halted(lane pipeline.LaneID, why string) error {
	return pipeline.NeedPerson(fmt.Errorf("lane %s is halted: %s", lane, why),
		"find out what wrote the other rows, then remove the attribute halted from the lane's item")
}

// laneStep changes the lane's item for its window n, if h still holds the lane. The expressions
// may use #n for the number of the next window, :n, and the values.
func (s *Store) laneStep(h pipeline.Hold, n int64, update, condition string, values map[string]types.AttributeValue) types.TransactWriteItem {
	all := map[string]types.AttributeValue{":token": num(h.Token), ":inc": str(h.Incarnation), ":n": num(n)}
	maps.Copy(all, values)
	return types.TransactWriteItem{Update: &types.Update{
		TableName: &s.table, Key: laneKey(h.Lane).av(),
		UpdateExpression:                    &update,
		ConditionExpression:                 aws.String("#t = :token AND inc = :inc AND " + condition),
		ExpressionAttributeNames:            map[string]string{"#t": "token", "#n": "next"},
		ExpressionAttributeValues:           all,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}}
}

// laneCheck is the condition of laneStep without a change.
func (s *Store) laneCheck(h pipeline.Hold, n int64, condition string) types.TransactWriteItem {
	return types.TransactWriteItem{ConditionCheck: &types.ConditionCheck{
		TableName: &s.table, Key: laneKey(h.Lane).av(),
		ConditionExpression:                 aws.String("#t = :token AND inc = :inc AND " + condition),
		ExpressionAttributeNames:            map[string]string{"#t": "token"},
		ExpressionAttributeValues:           map[string]types.AttributeValue{":token": num(h.Token), ":inc": str(h.Incarnation), ":n": num(n)},
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}}
}

// Begin implements pipeline.Checkpoints.
func (s *Store) Begin(ctx context.Context, h pipeline.Hold, m *pipeline.Manifest) error {
	text, err := m.Encode()
	if err != nil {
		return err
	}
	wk := windowKey(m.Window)
	window, err := encode(wk, windowItem{State: string(pipeline.WindowPending), Manifest: string(text)})
	if err != nil {
		return err
	}
	tx := []types.TransactWriteItem{
		s.laneStep(h, m.Window.N, "SET pending = :n", "#n = :n AND attribute_not_exists(pending) AND attribute_not_exists(halted) AND attribute_not_exists(moved)", nil),
		{Put: &types.Put{TableName: &s.table, Item: window, ConditionExpression: aws.String("attribute_not_exists(pk)")}},
	}
	for _, r := range m.Shards {
		check := &types.ConditionCheck{
			TableName: &s.table, Key: shardKey(m.Stream, r.Shard).av(),
			ConditionExpression:                 aws.String("lane = :lane AND attribute_not_exists(seq) AND attribute_not_exists(#end)"),
			ExpressionAttributeNames:            map[string]string{"#end": "end"},
			ExpressionAttributeValues:           map[string]types.AttributeValue{":lane": str(string(h.Lane))},
			ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
		}
		if r.After != "" {
			check.ConditionExpression = aws.String("lane = :lane AND seq = :after AND attribute_not_exists(#end)")
			check.ExpressionAttributeValues[":after"] = str(string(r.After))
		}
		tx = append(tx, types.TransactWriteItem{ConditionCheck: check})
	}
	gaps := newMissed(m)
	for {
		reasons, err := s.transact(ctx, append(tx[:len(tx):len(tx)], gaps.opened(s, m)...))
		if err != nil {
			return fmt.Errorf("begin window %s: %w", m.Window, err)
		}
		if reasons == nil {
			return nil
		}
		if slices.ContainsFunc(reasons[:len(tx)], failed) {
			return s.notBegun(ctx, h, m, reasons)
		}
		// All that is in the way are gaps behind the same position whose bounds are relied on.
		if moved, err := gaps.next(reasons[len(tx):]); err != nil || !moved {
			return fmt.Errorf("begin window %s: open its gaps: %w", m.Window, cmp.Or(err, errors.New("they were refused")))
		}
	}
}

// notBegun tells why the lane, the window or a shard refused a begin; nil if the window is begun
// already.
func (s *Store) notBegun(ctx context.Context, h pipeline.Hold, m *pipeline.Manifest, reasons []types.CancellationReason) error {
	if failed(reasons[0]) {
		lane, err := s.laneAfterRefusal(h, reasons[0].Item)
		if err != nil {
			return err
		}
		if lane.Pending == m.Window.N {
			_, stored, err := s.window(ctx, m.Window)
			if err != nil {
				return err
			}
			if stored != nil && sameManifest(stored, m) {
				return nil
			}
		}
		if err := lane.mayBegin(h.Lane); err != nil {
			return err
		}
		return pipeline.NeedPerson(fmt.Errorf("lane %s expects window %d and has %d pending, not this window %d", h.Lane, lane.Next, lane.Pending, m.Window.N),
			"two processes write the lane's items without its token; stop both and report it")
	}
	for i, r := range m.Shards {
		if failed(reasons[i+2]) {
			var it shardItem
			if err := decode(shardKey(m.Stream, r.Shard), reasons[i+2].Item, &it); err != nil {
				return err
			}
			if it.Lane != string(h.Lane) {
				return foreignShard(r.Shard, it.Lane, h.Lane)
			}
			return pipeline.NeedPerson(fmt.Errorf("shard %s is committed up to %q (end %v), window %s continues from %q", r.Shard, it.Seq, it.End, m.Window, r.After),
				"the checkpoint table was changed by hand or restored; rebuild the lane's positions from the lake")
		}
	}
	return pipeline.NeedPerson(fmt.Errorf("window %s exists already", m.Window),
		"the checkpoint table was changed by hand or restored; rebuild the lane's positions from the lake")
}

func foreignShard(shard pipeline.ShardID, owner string, lane pipeline.LaneID) error {
	return pipeline.NeedPerson(fmt.Errorf("shard %s belongs to lane %s, not to %s", shard, owner, lane),
		"stop this process, or hand the stream over to its lane")
}

// Commit implements pipeline.Checkpoints.
func (s *Store) Commit(ctx context.Context, h pipeline.Hold, m *pipeline.Manifest) error {
	tx := []types.TransactWriteItem{
		s.laneStep(h, m.Window.N, "SET #n = :next, arn = :arn REMOVE pending", "pending = :n",
			map[string]types.AttributeValue{":next": num(m.Window.N + 1), ":arn": str(m.Stream)}),
		{Update: &types.Update{
			TableName: &s.table, Key: windowKey(m.Window).av(),
			UpdateExpression:         aws.String("SET #s = :committed, committed_at = :now, landed_at = :now"),
			ConditionExpression:      aws.String("#s = :pending"),
			ExpressionAttributeNames: map[string]string{"#s": "state"},
			ExpressionAttributeValues: map[string]types.AttributeValue{
				":pending": str(string(pipeline.WindowPending)), ":committed": str(string(pipeline.WindowCommitted)),
				":now": str(stamp(s.serverNow())),
			},
		}},
	}
	for _, r := range m.Shards {
		if up := s.advance(h, m.Stream, r); up != nil {
			tx = append(tx, types.TransactWriteItem{Update: up})
		}
	}
	reasons, err := s.transact(ctx, tx)
	if err != nil {
		return fmt.Errorf("commit window %s: %w", m.Window, err)
	}
	if reasons == nil {
		return nil
	}
	if done, err := s.committed(h, m, reasons[0]); done || err != nil {
		return err
	}
	return pipeline.NeedPerson(fmt.Errorf("window %s cannot be committed: it is not the pending window of its lane", m.Window),
		"two processes write the lane's items without its token; stop both and report it")
}

// committed reports whether the lane refused a step of m because m is committed already: by us,
// and the answer was lost. It fails if somebody else holds the lane.
func (s *Store) committed(h pipeline.Hold, m *pipeline.Manifest, reason types.CancellationReason) (bool, error) {
	if !failed(reason) {
		return false, nil
	}
	lane, err := s.laneAfterRefusal(h, reason.Item)
	return err == nil && lane.Next == m.Window.N+1, err
}

// advance moves a shard to where a window ends, nil if it does not move it.
func (s *Store) advance(h pipeline.Hold, stream string, r pipeline.ShardRange) *types.Update {
	var set []string
	values := map[string]types.AttributeValue{":lane": str(string(h.Lane))}
	var names map[string]string
	if r.Last != "" {
		set = append(set, "seq = :last")
		values[":last"] = str(string(r.Last))
	}
	if !r.Newest.IsZero() {
		set = append(set, "created = :created")
		values[":created"] = str(stamp(r.Newest))
	}
	if r.End {
		set = append(set, "#end = :true")
		names = map[string]string{"#end": "end"}
		values[":true"] = &types.AttributeValueMemberBOOL{Value: true}
	}
	if r.Missing != nil && r.Last == "" && !r.End && !r.Missing.To.IsZero() {
		// The position stays where it was, behind what aged out. That it was looked for keeps it from
		// being found again. Of a shard that ended it would say that its children hold nothing older.
		set = append(set, "tip_at = :tip")
		values[":tip"] = str(stamp(r.Missing.To))
	}
	if len(set) == 0 {
		return nil
	}
	return &types.Update{
		TableName: &s.table, Key: shardKey(stream, r.Shard).av(), ConditionExpression: aws.String("lane = :lane"),
		UpdateExpression: aws.String("SET " + strings.Join(set, ", ")), ExpressionAttributeNames: names, ExpressionAttributeValues: values,
	}
}

// laneAfterRefusal reads the lane that refused a begin or commit, and says why if it is that
// somebody else holds it.
func (s *Store) laneAfterRefusal(h pipeline.Hold, item map[string]types.AttributeValue) (laneItem, error) {
	var it laneItem
	if item == nil {
		return it, pipeline.NeedPerson(fmt.Errorf("lane %s is gone from table %s", h.Lane, s.table),
			"restore the checkpoint table, or rebuild the lane's positions from the lake")
	}
	if err := decode(laneKey(h.Lane), item, &it); err != nil {
		return it, err
	}
	switch {
	case it.Incarnation != h.Incarnation || it.Token > h.Token:
		return it, fmt.Errorf("lane %s: %w (its token is %d, ours %d)", h.Lane, pipeline.ErrFenced, it.Token, h.Token)
	case it.Token < h.Token:
		return it, pipeline.NeedPerson(fmt.Errorf("lane %s has token %d, lower than ours %d", h.Lane, it.Token, h.Token),
			"the checkpoint table was restored; rebuild the lane's positions from the lake")
	}
	return it, nil
}

// Position implements pipeline.Checkpoints.
func (s *Store) Position(ctx context.Context, h pipeline.Hold, stream string, shard pipeline.ShardID) (pipeline.Position, error) {
	var it shardItem
	ok, err := s.get(ctx, shardKey(stream, shard), &it)
	if err != nil {
		return pipeline.Position{}, err
	}
	if !ok {
		return pipeline.Position{}, fmt.Errorf("shard %s of stream %s is not in table %s", shard, stream, s.table)
	}
	if it.Lane != string(h.Lane) {
		return pipeline.Position{}, foreignShard(shard, it.Lane, h.Lane)
	}
	return it.position(), nil
}

func sameManifest(m, o *pipeline.Manifest) bool {
	a, errA := m.Encode()
	b, errB := o.Encode()
	return errA == nil && errB == nil && string(a) == string(b)
}
