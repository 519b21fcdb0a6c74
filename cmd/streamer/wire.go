package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"log/slog"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/firehose"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/columnar"
	"telemetrylake/pipeline/lake"
	"telemetrylake/pipeline/observe"
	"telemetrylake/pipeline/seal"
	"telemetrylake/pipeline/stream"
	"telemetrylake/schemas"
)

// clients are the AWS services that a run talks to.
type clients struct {
	dynamodb *dynamodb.Client
	streams  *dynamodbstreams.Client
	firehose *firehose.Client
	s3       *s3.Client
}

func newClients(cfg aws.Config) clients {
	return clients{
		dynamodb: dynamodb.NewFromConfig(cfg),
		streams:  dynamodbstreams.NewFromConfig(cfg),
		firehose: firehose.NewFromConfig(cfg),
		s3: s3.NewFromConfig(cfg, func(o *s3.Options) {
			// An endpoint of one's own, whether for all services or for S3 alone, rarely has a name for
			// each bucket.
			o.UsePathStyle = o.BaseEndpoint != nil
		}),
	}
}

// places say where the records of one table come from and go to.
type places struct {
	Contract   *schemas.Contract
	Table      string // DynamoDB table, for a run that looks its stream up
	Chosen     string // stream that was named, for a run that looks its stream up
	StreamARN  string
	Checkpoint string // table
	Delivery   string // delivery stream
	Staging    location
	Damaged    location // outside of what Staging lists
	Lake       location
	Objects    bool   // each part is a lake object at once: there is no staging
	Folder     string // that holds the lake, absolute; "": Lake does
}

// A location is a prefix of a bucket.
type location struct{ Bucket, Prefix string }

// wireOptions are what a caller may want to choose.
type wireOptions struct {
	Limits pipeline.Limits
	Latest bool // a stream that was never read begins with what comes from now on
	Pages  int  // a second, of all shards; 0: the reader's default
	Now    func() time.Time
	Wait   func(context.Context, time.Duration) error // of a function, between pages; nil: on the machine's clock
	// PageLimit bounds the records of one page that a function reads; 0: what the service gives.
	PageLimit int
	Lease     *leaseOptions     // nil: the lane is taken at once, and held without one
	Log       *slog.Logger      // nil: none
	Watch     *observe.Observer // nil: nobody watches
}

// A line moves the records of one table into its lake: what reads, what makes windows, and
// what seals.
type line struct {
	store    *checkpoint.Store
	shards   *checkpoint.Shards
	leased   *checkpoint.Leased // nil: without a lease
	sink     landing
	staging  *lake.Bucket // nil: parts do not go through one
	lake     lakeStore
	reader   *stream.Reader
	lane     *pipeline.Lane
	gatherer *pipeline.Gatherer
	sealer   *seal.Sealer
	probe    lake.Probe
	onBatch  func(pipeline.Batch) // called before a batch is gathered; may be nil
}

// laneOf is the lane of a process that reads all shards of a table.
func laneOf(c *schemas.Contract) pipeline.LaneID { return pipeline.LaneID("run-" + c.Name) }

// wire puts the stages of one table together. Nothing is called yet: open does.
func wire(c clients, p places, o wireOptions) (*line, error) {
	mem := memory.DefaultAllocator
	at := openBuckets(c, p)
	l := &line{
		store:   checkpoint.New(c.dynamodb, p.Checkpoint, checkpoint.Options{Now: o.Now, Host: hostText()}),
		staging: at.staging,
		lake:    at.lake,
	}
	var lane pipeline.LaneOptions
	l.sink, lane = newLanding(c, p, at, l.store, o.Log)
	l.probe = func() ([]byte, error) { return newProbe(p.Contract) }
	l.shards = l.store.Shards(p.StreamARN, laneOf(p.Contract), checkpoint.Run)
	begin := stream.Horizon
	if o.Latest {
		begin = stream.Latest
	}
	l.reader = stream.New(c.streams, stream.Options{
		StreamARN: p.StreamARN,
		Shards:    l.shards,
		Start:     begin,
		Budget:    float64(o.Pages),
		Logger:    o.Log,
		Now:       o.Now,
	})
	stages := pipeline.Stages{
		Decoder: columnar.NewDecoder(mem), Encoder: columnar.NewEncoder(mem), Sink: l.sink,
		Checkpoints: l.store, Contracts: l.store, Replayer: l.reader, Gaps: l.store,
	}
	if k := o.Lease; k != nil {
		l.leased = &checkpoint.Leased{Store: l.store, For: k.For, TakeOver: k.TakeOver, Standby: k.Standby}
		stages.Checkpoints = l.leased
		l.shards.HeldBy(l.leased.Hold)
	}
	if w := o.Watch; w != nil {
		watchDelivery(l.sink, w)
		stages.Decoder, stages.Sink, stages.Checkpoints = w.Decoder(stages.Decoder), w.Sink(stages.Sink), w.Checkpoints(stages.Checkpoints)
	}
	var err error
	lane.Lane, lane.Stream, lane.Contract, lane.Log = laneOf(p.Contract), p.StreamARN, p.Contract, o.Log
	l.lane, err = pipeline.NewLane(stages, lane)
	if err != nil {
		return nil, err
	}
	now := o.Now
	if now == nil {
		now = time.Now
	}
	l.gatherer = pipeline.NewGatherer(l.lane, o.Limits, now)
	l.sealer = newSealer(l.store, at, o.Log)
	return l, nil
}

// newProbe is a part that tries a delivery stream out: no rows, and a name of its own by which it
// is known again. Seal drops it.
func newProbe(c *schemas.Contract) ([]byte, error) {
	table := c.LakeTable(schemas.Readings)
	meta := pipeline.PartMeta{
		Format: pipeline.FormatVersion, Probe: true, Table: table.Name, Contract: c.Hash(),
		Window: pipeline.WindowID{Lane: "probe", Incarnation: rand.Text()},
	}
	text, err := meta.Encode()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = columnar.NewEncoder(memory.DefaultAllocator, columnar.Uncompressed()).Empty(&b, table, map[string]string{pipeline.PartMetaKey: text})
	return b.Bytes(), err
}

// buckets are where objects lie between Firehose and Athena.
type buckets struct {
	staging, damaged *lake.Bucket // nil: parts are lake objects at once
	lake             lakeStore
}

func openBuckets(c clients, p places) buckets {
	open := func(at location) *lake.Bucket { return lake.NewBucket(c.s3, at.Bucket, at.Prefix) }
	var at buckets
	if at.lake = lakeStore(open(p.Lake)); p.Folder != "" {
		at.lake = lake.NewFolder(p.Folder)
	}
	if !p.Objects {
		at.staging, at.damaged = open(p.Staging), open(p.Damaged)
	}
	return at
}

// newSealer puts together what seals. It needs no contract: parts say what they are.
func newSealer(store *checkpoint.Store, at buckets, log *slog.Logger) *seal.Sealer {
	var staging, damaged seal.Store = noStaging{}, noStaging{}
	if at.staging != nil {
		staging, damaged = at.staging, at.damaged
	}
	return seal.New(seal.Stages{
		Staging: staging, Lake: at.lake, LakeName: at.lake.String(), Damaged: damaged,
		Ledger: store, Folder: store, Claims: store, Merger: columnar.NewMerger(memory.DefaultAllocator), Log: log,
		Spool: func() (seal.Spool, error) { return lake.NewSpool(), nil },
	})
}

// open makes the checkpoint table if there is none, checks the delivery stream and takes the
// lane over.
func (l *line) open(ctx context.Context) error {
	if err := l.store.Create(ctx); err != nil {
		return err
	}
	if err := l.sink.Check(ctx, l.probe); err != nil {
		return err
	}
	return l.lane.Open(ctx)
}

// catchUp reads rounds until another would find nothing, and makes windows as they come due:
// the end of a shard must be committed before its children are read.
func (l *line) catchUp(ctx context.Context) error {
	add := func(b pipeline.Batch) error {
		if l.onBatch != nil {
			l.onBatch(b)
		}
		return l.gatherer.Add(ctx, b)
	}
	for {
		info, err := l.reader.Round(ctx, add)
		if err != nil {
			return err
		}
		if err := l.gatherer.FlushDue(ctx); err != nil {
			return err
		}
		if info.Failed != nil || info.CaughtUp() {
			return info.Failed
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}
