package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/spf13/cobra"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/columnar"
	"telemetrylake/pipeline/lake"
	"telemetrylake/pipeline/stream"
	"telemetrylake/schemas"
)

// runtimeAPI is the variable by which Lambda tells a process where to ask for invocations.
const runtimeAPI = "AWS_LAMBDA_RUNTIME_API"

// arguments are the command line. A process that Lambda starts as a custom runtime (bootstrap of
// provided.al2023) is given none: it is the function.
func arguments(argv []string) []string {
	if len(argv) == 1 && (filepath.Base(argv[0]) == "bootstrap" || os.Getenv(runtimeAPI) != "") {
		return []string{"lambda"}
	}
	return argv[1:]
}

func newLambda() *cobra.Command {
	s := newSettings()
	var level string
	c := &cobra.Command{
		Use:   "lambda",
		Short: "Be a Lambda function that a table's stream, or staging, invokes",
		Long: `Handle the events of a DynamoDB event source mapping: land their records through
Firehose, each shard in a lane of its own. The same program as bootstrap of a
provided.al2023 function needs no command; settings come from STREAMER_ variables.

The mapping must have ParallelizationFactor 1, no bisecting, MaximumRecordAge and
MaximumRetryAttempts -1, and ReportBatchItemFailures; its filter may drop removals by
TTL, unless the contract makes rows of them. The function also takes what the mapping
sends to its on-failure queue, and a schedule's event, at which it looks at the shards
that are at rest: every hour or so. To read a shard to its tip takes ten seconds, some
dozens of shards at a time, so give the function a minute or more; what it does not
come to is in its report, and it begins there the next time. A stream is handed over
with: streamer lanes handover. One that was enabled anew is read only when named.

It also seals: at an event that says that an object was created in staging, from S3,
EventBridge, or a queue of either with ReportBatchItemFailures, the object; at the
event {"seal":true} all of staging. Events can be lost, and a part can wait for
another copy of it: a schedule must send that one, every 15 minutes or so. Without
--contract the function does nothing else, and takes any schedule's event for it.`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if os.Getenv(runtimeAPI) == "" {
				return usagef("%s is not set: Lambda starts this command; on a machine of your own use streamer run", runtimeAPI)
			}
			log, err := newLog(c.ErrOrStderr(), strings.ToLower(level))
			if err != nil {
				return err
			}
			if err := s.load(c); err != nil {
				return err
			}
			f, err := openFunction(c.Context(), s, log)
			if err != nil {
				return explain(err)
			}
			lambda.StartWithOptions(f.invoke, lambda.WithContext(c.Context()))
			return nil
		},
	}
	s.use(c, "contract", "table", "checkpoint-table", "stream", "delivery-stream", "staging", "damaged", "lake",
		"window-records", "window-bytes", "unsealed-within")
	s.makesTable(madeIfNone)
	// Lambda's own setting for a function's logs.
	standard := os.Getenv("AWS_LAMBDA_LOG_LEVEL")
	if standard == "" {
		standard = "info"
	}
	c.Flags().StringVar(&level, "log-level", standard, "debug, info, warn or error")
	return c
}

// A function is what Lambda invokes, for as long as an environment lives.
type function struct {
	functionLine // without a stream, if the function is only to seal
	log          *slog.Logger
	mapping      *mappingCheck
	sealing      *stagingSealer
}

// openFunction checks what the function needs before its first invocation.
func openFunction(ctx context.Context, s *settings, log *slog.Logger) (*function, error) {
	if s.Contract == "" {
		return openSealing(ctx, s, log)
	}
	p, err := s.staged("streamer lambda")
	if err != nil {
		return nil, err
	}
	fitMemory(s.WindowBytes)
	c, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.findStream(ctx, c); err != nil {
		return nil, err
	}
	f := wireFunction(c, p, wireOptions{Limits: pipeline.Limits{Records: s.WindowRecords, Bytes: s.WindowBytes}, Log: log})
	if err := f.store.Create(ctx); err != nil {
		return nil, err
	}
	if err := checkFunctionStart(f.store, c, p, wireOptions{Log: log}).run(ctx); err != nil {
		return nil, err
	}
	if err := f.sink.Check(ctx, func() ([]byte, error) { return newProbe(p.Contract) }); err != nil {
		return nil, err
	}
	mappings, err := connectLambda(ctx)
	if err != nil {
		return nil, err
	}
	return &function{functionLine: f, log: log, mapping: &mappingCheck{client: mappings, log: log, expired: p.Contract.OnExpire == schemas.ExpireTombstones}, sealing: newStagingSealer(c, p, s.unsealedWithin(f.sink.Interval()), log)}, nil
}

// checkFunctionStart is checkStart of a function.
func checkFunctionStart(store *checkpoint.Store, c clients, p places, o wireOptions) *startCheck {
	check := checkStart(store, c, p)
	check.lane = ""
	check.finish = func(ctx context.Context, stream string) error {
		left := p
		left.StreamARN = stream
		f := wireFunction(c, left, o)
		return f.finishPending(ctx)
	}
	return check
}

// openSealing is openFunction of one that is only to seal, for whatever tables.
func openSealing(ctx context.Context, s *settings, log *slog.Logger) (*function, error) {
	p, err := s.buckets()
	if err != nil {
		return nil, err
	}
	fitMemory(s.WindowBytes)
	c, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	f := &function{log: log, sealing: newStagingSealer(c, p, s.unsealedWithin(0), log)}
	return f, errors.Join(f.sealing.buckets.staging.Check(ctx), f.sealing.buckets.lake.Check(ctx))
}

// fitMemory keeps the heap inside of what the function has. GOMEMLIMIT overrules it.
func fitMemory(windowBytes int) {
	boundMemory(windowBytes)
	if mb, err := strconv.ParseInt(os.Getenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE"), 10, 64); err == nil && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(mb << 20 / 10 * 8)
	}
}

// functionLine is what a function, or a sweep from the command line, moves records with.
type functionLine struct {
	store  *checkpoint.Store
	sink   *lake.Firehose
	stream *stream.Function
	shards *shardLanes
	lane   func(pipeline.ShardID) (*pipeline.Lane, error) // a new one, not open
}

// wireFunction puts the stages together as wire does, with a lane for each shard.
func wireFunction(c clients, p places, o wireOptions) functionLine {
	l := functionLine{store: checkpoint.New(c.dynamodb, p.Checkpoint, checkpoint.Options{Now: o.Now})}
	l.sink = newFirehose(c, p, openBuckets(c, p), o.Log)
	mem := memory.DefaultAllocator
	l.shards = &shardLanes{store: l.store, stream: p.StreamARN, contract: p.Contract}
	stages := pipeline.Stages{
		Decoder: columnar.NewDecoder(mem), Encoder: columnar.NewEncoder(mem), Sink: l.sink,
		Checkpoints: l.store, Contracts: &storedContracts{Contracts: l.store, stored: map[string]bool{}}, Gaps: l.store,
		// It only replays, which asks for no position.
		Replayer: stream.New(c.streams, stream.Options{StreamARN: p.StreamARN, Logger: o.Log, Now: o.Now}),
	}
	l.lane = func(id pipeline.ShardID) (*pipeline.Lane, error) {
		return pipeline.NewLane(stages, pipeline.LaneOptions{
			Lane: laneOfShard(p.Contract, id), Stream: p.StreamARN, Contract: p.Contract, Log: o.Log,
		})
	}
	l.stream = stream.NewFunction(c.streams, stream.FunctionOptions{
		StreamARN: p.StreamARN, Shards: l.shards, All: l.shards.all, Wait: o.Wait, Limits: o.Limits, Key: p.Contract.Keys.Partition.Attribute, Logger: o.Log, Now: o.Now, Lane: l.lane, PageLimit: o.PageLimit,
	})
	return l
}

// A sweepReport is what a sweep did.
type sweepReport struct {
	stream.Swept
	Settled int `json:"gaps_closed"` // of records that a mapping gave up and somebody read after all
}

// sweep looks at the shards that are at rest, closes the gaps of records that were read after all,
// and forgets finished shards that the stream no longer has.
func (l *functionLine) sweep(ctx context.Context) (sweepReport, error) {
	var r sweepReport
	var err, unsettled error
	r.Swept, err = l.stream.Sweep(ctx)
	if _, listed := l.stream.Listed(); listed.IsZero() {
		return r, err
	}
	// A shard that fails is no reason to leave this.
	r.Settled, unsettled = l.store.SettleGaps(ctx, l.shards.stream)
	return r, errors.Join(err, unsettled, l.shards.forget(ctx, l.stream))
}

// finishPending takes over the lanes that have a window which is begun and not committed: that
// finishes it.
func (l *functionLine) finishPending(ctx context.Context) error {
	all, err := l.shards.all(ctx)
	if err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		st, err := l.store.Lane(ctx, laneOfShard(l.shards.contract, id))
		if err != nil {
			return err
		}
		if st.Pending == 0 {
			continue
		}
		lane, err := l.lane(id)
		if err != nil {
			return err
		}
		if err := lane.Open(ctx); err != nil {
			return err
		}
	}
	return nil
}

// storedContracts spares the write of a contract that this process has stored already: each
// invocation has a lane of its own, which would store it again.
type storedContracts struct {
	pipeline.Contracts
	stored map[string]bool
}

func (s *storedContracts) PutContract(ctx context.Context, c *schemas.Contract) error {
	if s.stored[c.Hash()] {
		return nil
	}
	if err := s.Contracts.PutContract(ctx, c); err != nil {
		return err
	}
	s.stored[c.Hash()] = true
	return nil
}

// An invocation is as much of an event as tells what kind it is.
type invocation struct {
	Records []struct {
		Source    string `json:"eventSource"`
		MessageID string `json:"messageId"`
		Body      string `json:"body"`
	} `json:"Records"`
	Source string `json:"source"` // of EventBridge: aws.events, aws.scheduler
	Sweep  bool   `json:"sweep"`  // what a schedule of one's own can send
	Seal   bool   `json:"seal"`   // the same, for staging
}

// A batchResponse tells a mapping what to deliver again: for a stream everything from the one
// item on, for a queue the items.
type batchResponse struct {
	Failures []itemFailure `json:"batchItemFailures"`
}

type itemFailure struct {
	Item string `json:"itemIdentifier"`
}

// answerWithin is kept of an invocation's time for its answer.
const answerWithin = 500 * time.Millisecond

// invoke handles one event. What it returns is encoded as JSON.
func (f *function) invoke(ctx context.Context, text json.RawMessage) (any, error) {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end.Add(-min(answerWithin, time.Until(end)/10)))
		defer cancel()
	}
	var in invocation
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, fmt.Errorf("read event: %w", err)
	}
	if objects, created, err := createdObjects(text); err != nil {
		return nil, f.failed("read event", err)
	} else if created {
		return f.created(ctx, objects)
	}
	scheduled := in.Source == "aws.events" || in.Source == "aws.scheduler"
	switch {
	case len(in.Records) > 0 && in.Records[0].Source == "aws:sqs":
		return f.queued(ctx, in)
	case in.Seal, scheduled && f.stream == nil:
		return f.sweepStaging(ctx)
	case f.stream == nil:
		return nil, f.failed("read event", errNoStream)
	case len(in.Records) > 0 && in.Records[0].Source == "aws:dynamodb":
		return f.deliver(ctx, text)
	case in.Sweep, scheduled:
		s, err := f.sweep(ctx)
		f.log.Info("swept", "shards", s.Shards, "tips", s.Tips, "finished", s.Finished, "busy", s.Busy, "waiting", s.Waiting, "unreached", s.Unreached, "records", s.Records, "gaps_closed", s.Settled)
		return s, f.failed("sweep", err)
	}
	return nil, errors.New("read event: it is no event of a DynamoDB stream, of created objects, of a queue or of a schedule")
}

// deliver answers with where to go on if part of the event is committed, and fails if nothing
// is: both have the mapping deliver again, and a failure is seen by whoever watches the function.
func (f *function) deliver(ctx context.Context, text []byte) (any, error) {
	partly, err := f.mapping.check(ctx, f.shards.stream)
	if err != nil {
		return nil, f.failed("check mapping", err)
	}
	ev, err := stream.ParseEvent(text)
	if err != nil {
		return nil, f.failed("read event", err)
	}
	before := f.stream.Calls()
	d, err := f.stream.Deliver(ctx, ev)
	calls := f.stream.Calls()
	f.log.Info("delivered", "shard", d.Shard, "event", len(ev.Records), "taken", d.Records, "fetched", d.Fetched, "next", d.Next,
		"get_records", calls.GetRecords-before.GetRecords, "iterators", calls.Iterators-before.Iterators, "describes", calls.Describes-before.Describes)
	switch some := d.Next != ev.Next(pipeline.Position{}); {
	case err == nil && d.Next == "":
		return batchResponse{Failures: []itemFailure{}}, nil
	case some && partly && d.Next != "":
		_ = f.failed("deliver", err)
		return batchResponse{Failures: []itemFailure{{string(d.Next)}}}, nil
	case err == nil:
		err = fmt.Errorf("shard %s: the invocation's time ended before record %s", d.Shard, d.Next)
	}
	return nil, f.failed("deliver", err)
}

// discarded handles what a mapping gave up and told its on-failure queue.
func (f *function) discarded(ctx context.Context, message string) error {
	if f.stream == nil {
		return errNoStream
	}
	d, err := stream.ParseDiscarded([]byte(message))
	if err != nil {
		return err
	}
	opened, err := f.stream.Discard(ctx, d)
	if err != nil {
		return err
	}
	f.log.Warn("the mapping gave records up", "shard", d.Shard, "first", d.First, "last", d.Last,
		"records", d.Records, "condition", d.Condition, "gap", opened)
	return nil
}

// failed logs an error in one line. It returns it in our words.
func (f *function) failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, pipeline.ErrFenced) {
		err = fmt.Errorf("another invocation took the shard: %w", err)
	} else {
		err = explain(err)
	}
	f.log.Error("failed", "doing", doing, "error", err, "person", needsPerson(err))
	return err
}

// laneOfShard is the lane of one shard in Lambda.
func laneOfShard(c *schemas.Contract, id pipeline.ShardID) pipeline.LaneID {
	return checkpoint.LambdaLane(c.Name, id)
}
