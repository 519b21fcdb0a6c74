package testenv

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	awsfirehose "github.com/aws/aws-sdk-go-v2/service/firehose"
	firehosetypes "github.com/aws/aws-sdk-go-v2/service/firehose/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func number(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: fmt.Sprint(n)}
}

// thingsTable has the keys pk and sk (S) and a stream of new images.
func thingsTable() *dynamodb.CreateTableInput {
	return &dynamodb.CreateTableInput{
		TableName:   aws.String("things"),
		BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{
			{AttributeName: aws.String("pk"), AttributeType: types.ScalarAttributeTypeS},
			{AttributeName: aws.String("sk"), AttributeType: types.ScalarAttributeTypeS},
		},
		KeySchema: []types.KeySchemaElement{
			{AttributeName: aws.String("pk"), KeyType: types.KeyTypeHash},
			{AttributeName: aws.String("sk"), KeyType: types.KeyTypeRange},
		},
		StreamSpecification: &types.StreamSpecification{StreamEnabled: aws.Bool(true), StreamViewType: types.StreamViewTypeNewImage},
	}
}

// durable is an Env on disk, which can be opened again, and its clients.
type durable struct {
	*Env
	clock   *ManualClock
	db      *dynamodb.Client
	streams *dynamodbstreams.Client
	hose    *awsfirehose.Client
	objects *s3.Client
}

func openDurable(t *testing.T, change ...func(*Options)) *durable {
	t.Helper()
	clock := NewManualClock(testTime)
	opt := Options{Dir: t.TempDir(), Clock: clock, Seed: 3, ShardLife: -1, Durable: true, CacheBytes: 4 << 20}
	for _, f := range change {
		f(&opt)
	}
	return durableOf(openFor(t, opt), clock)
}

func durableOf(env *Env, clock *ManualClock) *durable {
	cfg := env.AWSConfig()
	cfg.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
	return &durable{env, clock, dynamodb.NewFromConfig(cfg), dynamodbstreams.NewFromConfig(cfg), awsfirehose.NewFromConfig(cfg), s3Client(cfg)}
}

func (d *durable) again(t *testing.T) *durable {
	t.Helper()
	return durableOf(reopen(t, d.Env), d.clock)
}

func (d *durable) put(t *testing.T, pk, sk string, more map[string]types.AttributeValue) error {
	t.Helper()
	it := map[string]types.AttributeValue{"pk": text(pk), "sk": text(sk)}
	for name, v := range more {
		it[name] = v
	}
	_, err := d.db.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: aws.String("things"), Item: it})
	return err
}

func (d *durable) mustPut(t *testing.T, pk, sk string, more map[string]types.AttributeValue) {
	t.Helper()
	if err := d.put(t, pk, sk, more); err != nil {
		t.Fatal(err)
	}
}

func (d *durable) create(t *testing.T) {
	t.Helper()
	in := thingsTable()
	in.AttributeDefinitions = append(in.AttributeDefinitions, types.AttributeDefinition{AttributeName: aws.String("site"), AttributeType: types.ScalarAttributeTypeS})
	in.GlobalSecondaryIndexes = []types.GlobalSecondaryIndex{{IndexName: aws.String("by_site"),
		KeySchema:  []types.KeySchemaElement{{AttributeName: aws.String("site"), KeyType: types.KeyTypeHash}},
		Projection: &types.Projection{ProjectionType: types.ProjectionTypeInclude, NonKeyAttributes: []string{"expires_at"}}}}
	if _, err := d.db.CreateTable(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	_, err := d.db.UpdateTimeToLive(t.Context(), &dynamodb.UpdateTimeToLiveInput{TableName: aws.String("things"),
		TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: aws.String("expires_at"), Enabled: aws.Bool(true)}})
	if err != nil {
		t.Fatal(err)
	}
}

// state is all that a client can see of the table and its streams, as text.
func (d *durable) state(t *testing.T) string {
	t.Helper()
	var all []any
	table, err := d.db.DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: aws.String("things")})
	all = append(all, table.Table, err)
	ttl, err := d.db.DescribeTimeToLive(t.Context(), &dynamodb.DescribeTimeToLiveInput{TableName: aws.String("things")})
	all = append(all, ttl.TimeToLiveDescription, err)
	items, err := d.db.Scan(t.Context(), &dynamodb.ScanInput{TableName: aws.String("things")})
	all = append(all, items.Items, err)
	entries, err := d.db.Scan(t.Context(), &dynamodb.ScanInput{TableName: aws.String("things"), IndexName: aws.String("by_site")})
	all = append(all, entries.Items, err)
	streams, err := d.streams.ListStreams(t.Context(), &dynamodbstreams.ListStreamsInput{})
	all = append(all, streams.Streams, err)
	for _, s := range streams.Streams {
		description, err := d.streams.DescribeStream(t.Context(), &dynamodbstreams.DescribeStreamInput{StreamArn: s.StreamArn})
		all = append(all, description.StreamDescription, err)
	}
	j := &journal{records: map[string][]string{}, position: map[string]string{}}
	err = j.readOnce(t.Context(), d.streams)
	all = append(all, j.records, err)
	text, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDurableEnvGoesOnWhereItStopped(t *testing.T) {
	d := openDurable(t)
	d.create(t)
	soon := map[string]types.AttributeValue{"expires_at": number(testTime.Unix() + 60), "site": text("north")}
	for i := range 20 {
		d.mustPut(t, fmt.Sprint("device", i%5), fmt.Sprint(i), soon)
	}
	if err := d.Reshard("things"); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		d.mustPut(t, fmt.Sprint("device", i%5), fmt.Sprint("later", i), map[string]types.AttributeValue{"site": text("south")})
	}
	// A second stream; the first one stays readable.
	for _, enable := range []bool{false, true} {
		spec := &types.StreamSpecification{StreamEnabled: &enable}
		if enable {
			spec.StreamViewType = types.StreamViewTypeNewAndOldImages
		}
		if _, err := d.db.UpdateTable(t.Context(), &dynamodb.UpdateTableInput{TableName: aws.String("things"), StreamSpecification: spec}); err != nil {
			t.Fatal(err)
		}
	}
	d.mustPut(t, "device1", "last", soon)

	before := d.state(t)
	d = d.again(t)
	if after := d.state(t); after != before {
		t.Fatalf("before:\n%s\nafter:\n%s", before, after)
	}
	d.clock.Advance(2 * time.Minute)
	if n := d.SweepTTL(); n != 21 {
		t.Errorf("%d of 21 items expired after a restart", n)
	}
	before = d.state(t)
	if after := d.again(t).state(t); after != before {
		t.Fatalf("after the sweep, before:\n%s\nafter:\n%s", before, after)
	}
}

func TestIteratorsAndTokensHoldAcrossARestart(t *testing.T) {
	d := openDurable(t, func(o *Options) { o.StreamShards = 1 })
	d.create(t)
	d.mustPut(t, "a", "1", nil)
	list, err := d.streams.ListStreams(t.Context(), &dynamodbstreams.ListStreamsInput{})
	if err != nil {
		t.Fatal(err)
	}
	description, err := d.streams.DescribeStream(t.Context(), &dynamodbstreams.DescribeStreamInput{StreamArn: list.Streams[0].StreamArn})
	if err != nil {
		t.Fatal(err)
	}
	latest, err := d.streams.GetShardIterator(t.Context(), &dynamodbstreams.GetShardIteratorInput{StreamArn: list.Streams[0].StreamArn,
		ShardId: description.StreamDescription.Shards[0].ShardId, ShardIteratorType: "LATEST"})
	if err != nil {
		t.Fatal(err)
	}
	transaction := &dynamodb.TransactWriteItemsInput{ClientRequestToken: aws.String("once"), TransactItems: []types.TransactWriteItem{{Update: &types.Update{
		TableName: aws.String("things"), Key: map[string]types.AttributeValue{"pk": text("a"), "sk": text("2")},
		UpdateExpression: aws.String("ADD n :one"), ExpressionAttributeValues: map[string]types.AttributeValue{":one": number(1)}}}}}
	if _, err := d.db.TransactWriteItems(t.Context(), transaction); err != nil {
		t.Fatal(err)
	}
	d = d.again(t)
	if _, err := d.db.TransactWriteItems(t.Context(), transaction); err != nil {
		t.Fatal(err)
	}
	page, err := d.streams.GetRecords(t.Context(), &dynamodbstreams.GetRecordsInput{ShardIterator: latest.ShardIterator})
	if err != nil || len(page.Records) != 1 {
		t.Errorf("behind the iterator are %v, %v: want the one record of the transaction", page, err)
	}
	// Ten minutes later the token is free, and nothing of it is left.
	d.clock.Advance(tokenLife + time.Minute)
	d.Tick()
	for _, space := range []byte{spaceToken, spaceTokenExpiry} {
		left, err := readSpace(d.store, string(space))
		if err != nil || len(left) != 0 {
			t.Errorf("the store still holds %q (%v)", left, err)
		}
	}
}

func TestSequenceNumbersRiseAlsoWhenAllRecordsAreTrimmed(t *testing.T) {
	d := openDurable(t, func(o *Options) { o.StreamShards = 1 })
	d.create(t)
	for i := range 50 {
		d.mustPut(t, "a", fmt.Sprint(i), nil)
	}
	last := d.Env.db.order[0].sequence
	d.clock.Advance(streamRetention + 2*time.Minute)
	d.Tick()
	d = d.again(t)
	if left, err := readSpace(d.store, string(spaceRecord)); err != nil || len(left) != 0 {
		t.Errorf("%d records are left, %v", len(left), err)
	}
	if got := d.Env.db.order[0].sequence; got != last {
		t.Errorf("numbers go on behind %d, the last one was %d", got, last)
	}
}

func TestIdsDifferAfterARestart(t *testing.T) {
	d := openDurable(t)
	seen := map[string]bool{}
	for range 4 {
		id := d.ids.uuid()
		if seen[id] {
			t.Errorf("%s was handed out twice", id)
		}
		seen[id] = true
		d = d.again(t)
	}
}

func TestDeletedTableIsGoneAfterARestart(t *testing.T) {
	d := openDurable(t)
	d.create(t)
	d.mustPut(t, "a", "1", map[string]types.AttributeValue{"site": text("x"), "expires_at": number(1)})
	if _, err := d.db.DeleteTable(t.Context(), &dynamodb.DeleteTableInput{TableName: aws.String("things")}); err != nil {
		t.Fatal(err)
	}
	d = d.again(t)
	for _, space := range []byte{spaceTable, spaceItem, spaceIndex, spaceExpiry, spaceCount} {
		if left, err := readSpace(d.store, string(space)); err != nil || len(left) != 0 {
			t.Errorf("space %c holds %q, %v", space, left, err)
		}
	}
	// Its stream is readable for a day, and then gone too.
	list, err := d.streams.ListStreams(t.Context(), &dynamodbstreams.ListStreamsInput{TableName: aws.String("things")})
	if err != nil || len(list.Streams) != 1 {
		t.Fatalf("streams: %v, %v", list, err)
	}
	d.create(t)
	d.clock.Advance(streamRetention + 2*time.Minute)
	d.Tick()
	d = d.again(t)
	list, err = d.streams.ListStreams(t.Context(), &dynamodbstreams.ListStreamsInput{TableName: aws.String("things")})
	if err != nil || len(list.Streams) != 1 {
		t.Errorf("streams a day later: %v, %v", list, err)
	}
}

func TestExpiriesCutOffWhileRebuiltAreDoneByTheNextSweep(t *testing.T) {
	d := openDurable(t)
	d.create(t)
	for i := range 600 {
		d.mustPut(t, "a", fmt.Sprint(i), map[string]types.AttributeValue{"expires_at": number(testTime.Unix() - 60)})
	}
	// As a process leaves it that dies after it has noted what it begins.
	table := d.Env.db.tables["things"]
	table.rebuilding = true
	if err := d.Env.db.save(table, nil, deleteAll(string(spaceKey(spaceExpiry, table.id)))); err != nil {
		t.Fatal(err)
	}
	d = d.again(t)
	if n := d.SweepTTL(); n != 600 {
		t.Errorf("%d of 600 items expired", n)
	}
	if d.Env.db.tables["things"].rebuilding {
		t.Error("the rebuilding is not noted as done")
	}
}

func (d *durable) send(t *testing.T, payload string) error {
	t.Helper()
	_, err := d.hose.PutRecord(t.Context(), &awsfirehose.PutRecordInput{DeliveryStreamName: aws.String(testStream), Record: &firehosetypes.Record{Data: []byte(payload)}})
	return err
}

func (d *durable) bucketAndStream(t *testing.T) {
	t.Helper()
	if _, err := d.objects.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(testBucket)}); err != nil {
		t.Fatal(err)
	}
	mustCreateStream(t, d.hose, withHints(1, 60))
}

func TestFirehoseKeepsItsBuffersAcrossRestarts(t *testing.T) {
	refuse := atomic.Bool{}
	refuse.Store(true)
	d := openDurable(t, func(o *Options) {
		o.Firehose.Deliver = func(string, string) error {
			if refuse.Load() {
				return errors.New("not now")
			}
			return nil
		}
	})
	d.bucketAndStream(t)
	describe := func() string {
		out, err := d.hose.DescribeDeliveryStream(t.Context(), &awsfirehose.DescribeDeliveryStreamInput{DeliveryStreamName: aws.String(testStream)})
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(out.DeliveryStreamDescription)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	before := describe()
	full := strings.Repeat("x", 600_000)
	for _, payload := range []string{full, full, "", "<1>", "<2>"} { // two fill a buffer, which S3 refuses
		if err := d.send(t, payload); err != nil {
			t.Fatal(err)
		}
	}
	d.Tick()
	want := d.FirehoseStats()[testStream]
	name := d.firehose.streams[testStream].closed[0].key
	d = d.again(t)
	if after := describe(); after != before {
		t.Errorf("before %s\nafter  %s", before, after)
	}
	if got := d.FirehoseStats()[testStream]; got != want || got.Pending != 5 || got.Records != 5 {
		t.Errorf("before the restart %+v, after it %+v", want, got)
	}
	refuse.Store(false)
	d.Tick()
	if got := listKeys(t, d.objects, &s3.ListObjectsV2Input{}); len(got) != 1 || got[0] != name {
		t.Errorf("delivered as %q, the name was %q", got, name)
	}
	if err := d.send(t, "<3>"); err != nil {
		t.Fatal(err)
	}
	d = d.again(t)
	d.clock.Advance(time.Minute)
	d.Tick()
	got := bodies(t, d.objects) // of the same second: in any order
	slices.Sort(got)
	if !slices.Equal(got, []string{"<1><2><3>", full + full}) {
		t.Errorf("delivered %d objects of %d bytes", len(got), len(strings.Join(got, "")))
	}
	want = FirehoseStats{Records: 6, Bytes: 1_200_009, Objects: 2}
	if got := d.again(t).FirehoseStats()[testStream]; got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}

func TestNewerAndForeignFoldersAreRefused(t *testing.T) {
	d := openDurable(t)
	opt := d.opt
	if _, err := Open(opt); err == nil || !strings.Contains(err.Error(), opt.Dir) || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second Env on the folder: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Options)
		format string
		want   string
	}{
		"newer format":    {nil, "2\n", "newer version"},
		"damaged format":  {nil, "x", "not a format version"},
		"another account": {func(o *Options) { o.Account = "111111111111" }, "1\n", "account 000000000000 in us-east-1"},
		"another region":  {func(o *Options) { o.Region = "eu-west-1" }, "1\n", "account 000000000000 in us-east-1"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(opt.Dir, "db-format"), []byte(c.format), 0o644); err != nil {
				t.Fatal(err)
			}
			opt := opt
			if c.change != nil {
				c.change(&opt)
			}
			if _, err := Open(opt); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), opt.Dir) {
				t.Errorf("got %v", err)
			}
		})
	}
	if err := os.WriteFile(filepath.Join(opt.Dir, "db-format"), []byte("1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	openFor(t, opt)
}
