package testenv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	dynamodbtypes "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	streamstypes "github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"
	awsfirehose "github.com/aws/aws-sdk-go-v2/service/firehose"
	"github.com/aws/aws-sdk-go-v2/service/firehose/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// TestMain lets the test binary be the server process that the kill test kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv("TESTENV_SERVE"); dir != "" {
		if err := serveFolder(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// serveFolder serves a durable Env and prints its address.
func serveFolder(dir string) error {
	env, err := Open(Options{Dir: dir, Durable: true, CacheBytes: 8 << 20})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://%s\n", l.Addr())
	go env.Run(context.Background())
	return env.Serve(context.Background(), l)
}

// TestAllOfThisHoldsOnDisk runs the package's tests again, on durable Envs: all but those of
// S3, which is the same files either way, and those that open durable ones themselves.
func TestAllOfThisHoldsOnDisk(t *testing.T) {
	if onDisk {
		return // this is that run
	}
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.skip=^Test(AllOfThisHoldsOnDisk|Killed|S3|Durable|Full|Tables|WriteWaits|ObjectDelivered|Stores?[A-Z])")
	again.Env = append(os.Environ(), "TESTENV_ON_DISK=1")
	if out, err := again.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// server is a child process and the clients that reach it.
type server struct {
	cmd      *exec.Cmd
	db       *dynamodb.Client
	streams  *dynamodbstreams.Client
	firehose *awsfirehose.Client
	s3       *s3.Client
}

func startServer(t *testing.T, dir string) *server {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "TESTENV_SERVE="+dir)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the server did not start: %v, %v\n%s", err, cmd.Wait(), stderr.String())
	}
	env, err := Open(Options{Dir: t.TempDir()}) // for the credentials only
	if err != nil {
		t.Fatal(err)
	}
	cfg := env.AWSConfig()
	cfg.HTTPClient = nil
	cfg.BaseEndpoint = aws.String(strings.TrimSpace(line))
	cfg.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
	return &server{cmd: cmd, db: dynamodb.NewFromConfig(cfg), streams: dynamodbstreams.NewFromConfig(cfg), firehose: awsfirehose.NewFromConfig(cfg), s3: s3Client(cfg)}
}

func (s *server) kill(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.cmd.Wait() // an error: it was killed
}

// journal is what clients know of what a server acknowledged.
type journal struct {
	mu       sync.Mutex
	puts     map[string]bool // acknowledged keys
	payloads map[string]bool // sent; true: acknowledged
	adds     int             // acknowledged increments of the counter
	tried    int
	records  map[string][]string // per shard: sequence number and key, as read
	position map[string]string   // per shard: the last sequence number read
}

func TestKilledServerKeepsAllItAcknowledged(t *testing.T) {
	dir := t.TempDir()
	j := &journal{puts: map[string]bool{}, payloads: map[string]bool{}, records: map[string][]string{}, position: map[string]string{}}
	random := rand.New(rand.NewPCG(4, 5))
	for round := range 5 {
		s := startServer(t, dir)
		if round == 0 {
			s.setUp(t)
			if _, err := Open(Options{Dir: dir, Durable: true}); err == nil || !strings.Contains(err.Error(), dir) {
				t.Errorf("a second process has the folder open, got %v", err)
			}
		}
		j.load(t, s, 60+random.IntN(400))
	}
	env := openFor(t, Options{Dir: dir, Durable: true})
	j.check(t, env)
}

func (s *server) setUp(t *testing.T) {
	t.Helper()
	_, err := s.db.CreateTable(t.Context(), thingsTable())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.s3.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(testBucket)}); err != nil {
		t.Fatal(err)
	}
	mustCreateStream(t, s.firehose, withHints(1, 1))
}

// load writes and reads from several goroutines until so many puts were acknowledged, and
// kills the server while they go on.
func (j *journal) load(t *testing.T, s *server, puts int) {
	t.Helper()
	var group sync.WaitGroup
	var acknowledged atomic.Int64
	enough := make(chan struct{})
	var once sync.Once
	progress := func() {
		if acknowledged.Add(1) >= int64(puts) {
			once.Do(func() { close(enough) })
		}
	}
	gone := func(err error) { // any error ends a worker: the server was killed, or should not have failed
		select {
		case <-enough:
		default:
			t.Errorf("before the kill: %v", err)
			once.Do(func() { close(enough) })
		}
	}
	for w := range 3 {
		group.Go(func() { j.put(t.Context(), s, w, progress, gone) })
	}
	group.Go(func() { j.deliver(t.Context(), s, gone) })
	group.Go(func() { j.count(t.Context(), s, gone) })
	group.Go(func() { j.read(t.Context(), s, gone) })
	<-enough
	s.kill(t)
	group.Wait()
}

// put goes on with the first key of its own that is not acknowledged.
func (j *journal) put(ctx context.Context, s *server, w int, progress func(), gone func(error)) {
	for i := 0; ; i++ {
		sk := fmt.Sprintf("%06d", i)
		key := fmt.Sprintf("w%d/%s", w, sk)
		j.mu.Lock()
		done := j.puts[key]
		j.mu.Unlock()
		if done {
			continue
		}
		_, err := s.db.PutItem(ctx, &dynamodb.PutItemInput{TableName: aws.String("things"), ConditionExpression: aws.String("attribute_not_exists(pk)"),
			Item: map[string]dynamodbtypes.AttributeValue{"pk": text(fmt.Sprintf("w%d", w)), "sk": text(sk), "value": text(strings.Repeat(sk, 20))}})
		var exists *dynamodbtypes.ConditionalCheckFailedException
		if err != nil && !errors.As(err, &exists) { // which says that the put before the kill was applied
			gone(err)
			return
		}
		j.mu.Lock()
		j.puts[key] = true
		j.mu.Unlock()
		progress()
	}
}

func (j *journal) deliver(ctx context.Context, s *server, gone func(error)) {
	for i := 0; ; i++ {
		payload := fmt.Sprintf("<%06d>", i)
		j.mu.Lock()
		_, sent := j.payloads[payload]
		if !sent {
			j.payloads[payload] = false
		}
		j.mu.Unlock()
		if sent { // one try for each: what was not acknowledged may be there or not
			continue
		}
		_, err := s.firehose.PutRecordBatch(ctx, &awsfirehose.PutRecordBatchInput{DeliveryStreamName: aws.String(testStream),
			Records: []types.Record{{Data: []byte(payload)}, {Data: []byte(strings.Repeat(".", 40_000))}}})
		if err != nil {
			gone(err)
			return
		}
		j.mu.Lock()
		j.payloads[payload] = true
		j.mu.Unlock()
	}
}

func (j *journal) count(ctx context.Context, s *server, gone func(error)) {
	for {
		j.tried++
		_, err := s.db.UpdateItem(ctx, &dynamodb.UpdateItemInput{TableName: aws.String("things"),
			Key:              map[string]dynamodbtypes.AttributeValue{"pk": text("counter"), "sk": text("0")},
			UpdateExpression: aws.String("ADD n :one"), ExpressionAttributeValues: map[string]dynamodbtypes.AttributeValue{":one": &dynamodbtypes.AttributeValueMemberN{Value: "1"}}})
		if err != nil {
			gone(err)
			return
		}
		j.adds++
	}
}

// read goes on behind the last record it has seen of each shard.
func (j *journal) read(ctx context.Context, s *server, gone func(error)) {
	for {
		if err := j.readOnce(ctx, s.streams); err != nil {
			gone(err)
			return
		}
	}
}

func (j *journal) readOnce(ctx context.Context, c *dynamodbstreams.Client) error {
	list, err := c.ListStreams(ctx, &dynamodbstreams.ListStreamsInput{TableName: aws.String("things")})
	if err != nil {
		return err
	}
	arn := list.Streams[0].StreamArn
	d, err := c.DescribeStream(ctx, &dynamodbstreams.DescribeStreamInput{StreamArn: arn})
	if err != nil {
		return err
	}
	for _, h := range d.StreamDescription.Shards {
		in := &dynamodbstreams.GetShardIteratorInput{StreamArn: arn, ShardId: h.ShardId, ShardIteratorType: streamstypes.ShardIteratorTypeTrimHorizon}
		if at := j.position[*h.ShardId]; at != "" {
			in.ShardIteratorType, in.SequenceNumber = streamstypes.ShardIteratorTypeAfterSequenceNumber, &at
		}
		it, err := c.GetShardIterator(ctx, in)
		if err != nil {
			return err
		}
		page, err := c.GetRecords(ctx, &dynamodbstreams.GetRecordsInput{ShardIterator: it.ShardIterator})
		if err != nil {
			return err
		}
		for _, r := range page.Records {
			j.position[*h.ShardId] = *r.Dynamodb.SequenceNumber
			pk := r.Dynamodb.Keys["pk"].(*streamstypes.AttributeValueMemberS).Value
			sk := r.Dynamodb.Keys["sk"].(*streamstypes.AttributeValueMemberS).Value
			j.records[*h.ShardId] = append(j.records[*h.ShardId], *r.Dynamodb.SequenceNumber+" "+*r.EventID+" "+pk+"/"+sk)
		}
	}
	return nil
}

// check compares what is there after all kills with what was acknowledged and read.
func (j *journal) check(t *testing.T, env *Env) {
	t.Helper()
	db, streams := dynamodb.NewFromConfig(env.AWSConfig()), dynamodbstreams.NewFromConfig(env.AWSConfig())
	there := map[string]bool{}
	total := 0
	for page := dynamodb.NewScanPaginator(db, &dynamodb.ScanInput{TableName: aws.String("things")}); page.HasMorePages(); {
		out, err := page.NextPage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range out.Items {
			total++
			pk, sk := it["pk"].(*dynamodbtypes.AttributeValueMemberS).Value, it["sk"].(*dynamodbtypes.AttributeValueMemberS).Value
			there[pk+"/"+sk] = true
			if pk != "counter" {
				continue
			}
			var n int
			if _, err := fmt.Sscan(it["n"].(*dynamodbtypes.AttributeValueMemberN).Value, &n); err != nil || n < j.adds || n > j.tried {
				t.Errorf("the counter is %d (%v) after %d acknowledged of %d increments", n, err, j.adds, j.tried)
			}
		}
	}
	if total != len(there) {
		t.Errorf("%d items with %d keys", total, len(there))
	}
	for key := range j.puts {
		if !there[key] {
			t.Errorf("the acknowledged item %s is gone", key)
		}
	}
	if d, err := db.DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: aws.String("things")}); err != nil || *d.Table.ItemCount != int64(total) {
		t.Errorf("the table counts %v items and has %d (%v)", d, total, err)
	}

	// Records that were read before a kill are the ones that are there after it.
	whole := &journal{records: map[string][]string{}, position: map[string]string{}}
	for range 20 { // pages
		if err := whole.readOnce(t.Context(), streams); err != nil {
			t.Fatal(err)
		}
		if err := j.readOnce(t.Context(), streams); err != nil {
			t.Fatal(err)
		}
	}
	inserted, ids := map[string]int{}, map[string]bool{}
	for shard, records := range whole.records {
		if !slices.Equal(records, j.records[shard]) {
			t.Errorf("shard %s was read as other %d records than the %d it has", shard, len(j.records[shard]), len(records))
		}
		if !slices.IsSorted(records) { // sequence numbers have the same number of digits
			t.Errorf("shard %s is not in the order of sequence numbers", shard)
		}
		for _, r := range records {
			f := strings.Fields(r)
			inserted[f[2]]++
			if ids[f[0]] || ids[f[1]] {
				t.Errorf("the sequence number or event id of %s appeared before", r)
			}
			ids[f[0]], ids[f[1]] = true, true
		}
	}
	for key := range there {
		if n := inserted[key]; n != 1 && !strings.HasPrefix(key, "counter") {
			t.Errorf("item %s has %d stream records", key, n)
		}
	}

	env.FlushFirehose()
	all := strings.Join(bodies(t, s3Client(env.AWSConfig())), "")
	for payload, acknowledged := range j.payloads {
		if n := strings.Count(all, payload); n > 1 || acknowledged && n == 0 {
			t.Errorf("the payload %s, acknowledged %v, was delivered %d times", payload, acknowledged, n)
		}
	}
}
