// Package checkpoint keeps lanes, windows, claims and contracts in one DynamoDB table. Its
// one rule: every step is a conditional write that succeeds again when it has succeeded
// before, and says what is stored when it cannot.
package checkpoint

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
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

func (s Side) valid() bool { return s == Run || s == Lambda }

func (s Side) other() Side {
	if s == Run {
		return Lambda
	}
	return Run
}

// Options of a Store. The zero value of a field means its default.
type Options struct {
	Now  func() time.Time // default time.Now; only told to people, or used where the server tells no time
	Rand io.Reader        // incarnations; default crypto/rand
	Host string           // where this process runs, for people: host and process id; default none
}

// A Store is the checkpoint table. It implements pipeline.Checkpoints, Gaps, Contracts and Ledger
// and is safe for concurrent use.
type Store struct {
	client *dynamodb.Client
	table  string
	now    func() time.Time
	rand   io.Reader
	host   string
	clock  serverClock

	nameOnce sync.Once
	name     string
	nameErr  error
}

var (
	_ pipeline.Checkpoints = (*Store)(nil)
	_ pipeline.Contracts   = (*Store)(nil)
	_ pipeline.Ledger      = (*Store)(nil)
	_ pipeline.Gaps        = (*Store)(nil)
)

// New returns the store in the named table.
func New(client *dynamodb.Client, table string, o Options) *Store {
	s := &Store{table: table, now: o.Now, rand: o.Rand, host: o.Host}
	s.client = dynamodb.New(client.Options(), func(o *dynamodb.Options) { o.APIOptions = append(o.APIOptions, s.clock.watch) })
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

// scan reads the items of the whole table that a condition on :x holds for.
func (s *Store) scan(ctx context.Context, condition, x string) func(yield func(map[string]types.AttributeValue, error) bool) {
	return func(yield func(map[string]types.AttributeValue, error) bool) {
		pages := dynamodb.NewScanPaginator(s.client, &dynamodb.ScanInput{
			TableName: &s.table, ConsistentRead: aws.Bool(true),
			FilterExpression: &condition, ExpressionAttributeValues: map[string]types.AttributeValue{":x": str(x)},
		})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				yield(nil, fmt.Errorf("scan table %s: %w", s.table, err))
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

// keyOf reads the key of a stored item: both attributes are the table's own, and strings.
func keyOf(item map[string]types.AttributeValue) key {
	pk, _ := item["pk"].(*types.AttributeValueMemberS)
	sk, _ := item["sk"].(*types.AttributeValueMemberS)
	if pk == nil || sk == nil {
		return key{}
	}
	return key{pk.Value, sk.Value}
}
