// Package checkpoint keeps lanes, windows, claims and contracts in one DynamoDB table. Its
// one rule: every step is a conditional write that succeeds again when it has succeeded
// before, and says what is stored when it cannot.
package checkpoint

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
	"telemetrylake/schemas"
)

// A Side says who reads a stream: streamer run with one lane, or Lambda with a lane a shard.
type Side string

// Sides of a stream.
const (
	Run    Side = "run"
	Lambda Side = "lambda"
)

// Options of a Store. The zero value of a field means its default.
type Options struct {
	Now  func() time.Time // default time.Now; only told to people, never compared
	Rand io.Reader        // incarnations; default crypto/rand
}

// A Store is the checkpoint table. It implements pipeline.Checkpoints, Contracts and Ledger
// and is safe for concurrent use.
type Store struct {
	client *dynamodb.Client
	table  string
	now    func() time.Time
	rand   io.Reader

	nameOnce sync.Once
	name     string
	nameErr  error
}

var (
	_ pipeline.Checkpoints = (*Store)(nil)
	_ pipeline.Contracts   = (*Store)(nil)
	_ pipeline.Ledger      = (*Store)(nil)
)

// New returns the store in the named table.
func New(client *dynamodb.Client, table string, o Options) *Store {
	s := &Store{client: client, table: table, now: o.Now, rand: o.Rand}
	if s.now == nil {
		s.now = time.Now
	}
	if s.rand == nil {
		s.rand = rand.Reader
	}
	return s
}

// Create makes the table, if there is none.
func (s *Store) Create(ctx context.Context) error {
	// Most roles may look at the table and not make it.
	_, err := s.client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &s.table})
	if missing := (*types.ResourceNotFoundException)(nil); errors.As(err, &missing) {
		err = s.create(ctx)
	}
	if err != nil {
		return fmt.Errorf("create checkpoint table %s: %w", s.table, err)
	}
	w := dynamodb.NewTableExistsWaiter(s.client)
	if err := w.Wait(ctx, &dynamodb.DescribeTableInput{TableName: &s.table}, 5*time.Minute); err != nil {
		return fmt.Errorf("wait for checkpoint table %s: %w", s.table, err)
	}
	return nil
}

func (s *Store) create(ctx context.Context) error {
	_, err := s.client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName:   &s.table,
		BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{
			{AttributeName: aws.String("pk"), AttributeType: types.ScalarAttributeTypeS},
			{AttributeName: aws.String("sk"), AttributeType: types.ScalarAttributeTypeS},
		},
		KeySchema: []types.KeySchemaElement{
			{AttributeName: aws.String("pk"), KeyType: types.KeyTypeHash},
			{AttributeName: aws.String("sk"), KeyType: types.KeyTypeRange},
		},
	})
	if made := (*types.ResourceInUseException)(nil); errors.As(err, &made) {
		return nil // another process was faster
	}
	return err
}

// PutContract implements pipeline.Contracts.
func (s *Store) PutContract(ctx context.Context, c *schemas.Contract) error {
	k := contractKey(c.Hash())
	item, err := encode(k, contractItem{Text: string(c.Text())})
	if err != nil {
		return err
	}
	_, err = s.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName: &s.table, Item: item, ConditionExpression: aws.String("attribute_not_exists(pk)"),
	})
	// The key is the text's hash: what is there holds the same text, perhaps in a newer format.
	if exists := (*types.ConditionalCheckFailedException)(nil); err != nil && !errors.As(err, &exists) {
		return fmt.Errorf("store contract %s: %w", c.Hash(), err)
	}
	return nil
}

// Contract implements pipeline.Contracts.
func (s *Store) Contract(ctx context.Context, hash string) (*schemas.Contract, error) {
	var it contractItem
	ok, err := s.get(ctx, contractKey(hash), &it)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, pipeline.NeedPerson(fmt.Errorf("contract %s is not in table %s", hash, s.table),
			"restore the checkpoint table, or run the release that began the window")
	}
	c, err := schemas.Parse("contract "+hash, []byte(it.Text))
	if err != nil {
		return nil, fmt.Errorf("stored %w", err)
	}
	return c, nil
}

// Acquire implements pipeline.Checkpoints. A token is never used twice, not even by the same
// process: a request of its own that is still on its way must find another.
func (s *Store) Acquire(ctx context.Context, lane pipeline.LaneID, again bool) (pipeline.State, error) {
	var st pipeline.State
	holder, err := s.holder()
	if err != nil {
		return st, fmt.Errorf("acquire lane %s: %w", lane, err)
	}
	inc, err := s.random()
	if err != nil {
		return st, fmt.Errorf("acquire lane %s: %w", lane, err)
	}
	condition := "attribute_not_exists(pk) OR fmt <= :fmt"
	if again {
		condition = "fmt <= :fmt AND holder = :me"
	}
	k := laneKey(lane)
	out, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: k.av(),
		UpdateExpression: aws.String("SET #t = if_not_exists(#t, :zero) + :one, holder = :me, inc = if_not_exists(inc, :inc)," +
			" #n = if_not_exists(#n, :one), watermark = if_not_exists(watermark, :zero), fmt = if_not_exists(fmt, :fmt)"),
		ConditionExpression:      &condition,
		ExpressionAttributeNames: map[string]string{"#t": "token", "#n": "next"},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":zero": num(0), ":one": num(1), ":inc": str(inc), ":me": str(holder), ":fmt": num(pipeline.FormatVersion),
		},
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
	if it.Halted != "" {
		return st, halted(lane, it.Halted)
	}
	st = pipeline.State{Hold: pipeline.Hold{Lane: lane, Incarnation: it.Incarnation, Token: it.Token}, Next: it.Next}
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
		s.laneStep(h, m.Window.N, "SET pending = :n", "#n = :n AND attribute_not_exists(pending) AND attribute_not_exists(halted)", nil),
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
	reasons, err := s.transact(ctx, tx)
	if err != nil {
		return fmt.Errorf("begin window %s: %w", m.Window, err)
	}
	if reasons == nil {
		return nil
	}
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
			if stored != nil && sameManifest(stored, text) {
				return nil
			}
		}
		if lane.Halted != "" {
			return halted(h.Lane, lane.Halted)
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
		s.laneStep(h, m.Window.N, "SET #n = :next REMOVE pending", "pending = :n",
			map[string]types.AttributeValue{":next": num(m.Window.N + 1)}),
		{Update: &types.Update{
			TableName: &s.table, Key: windowKey(m.Window).av(),
			UpdateExpression:         aws.String("SET #s = :committed"),
			ConditionExpression:      aws.String("#s = :pending"),
			ExpressionAttributeNames: map[string]string{"#s": "state"},
			ExpressionAttributeValues: map[string]types.AttributeValue{
				":pending": str(string(pipeline.WindowPending)), ":committed": str(string(pipeline.WindowCommitted)),
			},
		}},
	}
	for _, r := range m.Shards {
		if r.Last == "" && !r.End {
			continue
		}
		up := &types.Update{
			TableName: &s.table, Key: shardKey(m.Stream, r.Shard).av(),
			ConditionExpression:       aws.String("lane = :lane"),
			ExpressionAttributeValues: map[string]types.AttributeValue{":lane": str(string(h.Lane))},
		}
		set := ""
		if r.Last != "" {
			set = "SET seq = :last"
			up.ExpressionAttributeValues[":last"] = str(string(r.Last))
		}
		if r.End {
			if set == "" {
				set = "SET #end = :true"
			} else {
				set += ", #end = :true"
			}
			up.ExpressionAttributeNames = map[string]string{"#end": "end"}
			up.ExpressionAttributeValues[":true"] = &types.AttributeValueMemberBOOL{Value: true}
		}
		up.UpdateExpression = &set
		tx = append(tx, types.TransactWriteItem{Update: up})
	}
	reasons, err := s.transact(ctx, tx)
	if err != nil {
		return fmt.Errorf("commit window %s: %w", m.Window, err)
	}
	if reasons == nil {
		return nil
	}
	if failed(reasons[0]) {
		lane, err := s.laneAfterRefusal(h, reasons[0].Item)
		if err != nil {
			return err
		}
		if lane.Next == m.Window.N+1 {
			return nil // ours, its answer was lost
		}
	}
	return pipeline.NeedPerson(fmt.Errorf("window %s cannot be committed: it is not the pending window of its lane", m.Window),
		"two processes write the lane's items without its token; stop both and report it")
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

func (it shardItem) position() pipeline.Position {
	return pipeline.Position{Seq: pipeline.SequenceNumber(it.Seq), End: it.End}
}

func sameManifest(m *pipeline.Manifest, text []byte) bool {
	b, err := m.Encode()
	return err == nil && string(b) == string(text)
}

// get reads one item, consistently.
func (s *Store) get(ctx context.Context, k key, v any) (bool, error) {
	out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{TableName: &s.table, Key: k.av(), ConsistentRead: aws.Bool(true)})
	if err != nil {
		return false, fmt.Errorf("read item %s: %w", k, err)
	}
	if out.Item == nil {
		return false, nil
	}
	return true, decode(k, out.Item, v)
}

// transact writes all or nothing. It returns the reasons if a condition refused it, and waits
// out conflicts and throttling until ctx is done.
func (s *Store) transact(ctx context.Context, tx []types.TransactWriteItem) ([]types.CancellationReason, error) {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		_, err := s.client.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: tx})
		var cancelled *types.TransactionCanceledException
		if !errors.As(err, &cancelled) {
			return nil, err
		}
		// A condition beside a conflict may have failed for the effect of our own earlier try,
		// which only the item in conflict could tell: the reasons are whole without conflicts.
		refused, busy := false, false
		for _, r := range cancelled.CancellationReasons {
			switch code := aws.ToString(r.Code); code {
			case "None", "":
			case "ConditionalCheckFailed":
				refused = true
			case "TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded":
				busy = true
			default:
				return nil, err
			}
		}
		if refused && !busy {
			return cancelled.CancellationReasons, nil
		}
		if err := pipeline.Wait(ctx, pipeline.Jitter(wait)); err != nil {
			return nil, err
		}
	}
}

func failed(r types.CancellationReason) bool { return aws.ToString(r.Code) == "ConditionalCheckFailed" }
