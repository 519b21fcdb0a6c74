package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/hot"
	"telemetrylake/testenv"
)

// What the demo creates in its AWS.
const (
	stagingBucket   = "telemetry-staging"
	lakeBucket      = "telemetry-lake"
	checkpointTable = "streamer_checkpoint"
	deliveryStream  = "telemetry-parts"
	partsPrefix     = "parts/"
	damagedPrefix   = "damaged/"
)

// The pace of the virtual clock.
const (
	// stepWidth is how much is written before the stream is read. It is also how long a window
	// gathers: about five windows meet in one staging object.
	stepWidth = 3 * time.Minute
	stepRows  = 10_000
	// deliveryInterval is the longest that Firehose can be told to wait.
	deliveryInterval = 15 * time.Minute
	deliverySizeMB   = 64
	// stride is the longest leap. It is shorter than a shard's life, so that no shard begins
	// and ends within one, and much shorter than the stream's retention.
	stride = 2 * time.Hour
)

// A show is one run of the demo.
type show struct {
	feed     *feed
	dir      string
	env      *testenv.Env
	clock    *testenv.ManualClock
	clients  clients
	places   places
	line     *line
	writer   *hot.Writer
	progress *progress

	swept     time.Time // when TTL last removed items
	expires   time.Time // when the last item expires
	delivered int       // staging objects that sealing has looked for
	joined    []int     // parts of each staging object
	result    result
	tables    []tableCount
	before    []tableCount // of the lake, before the hot rows expired
	answers   []answer
}

// newShow creates everything that the readings pass through.
func newShow(ctx context.Context, f *feed, dir string, seed uint64) (*show, error) {
	clock := testenv.NewManualClock(f.start)
	env, err := testenv.Open(testenv.Options{Dir: dir, Clock: clock, Seed: seed})
	if err != nil {
		return nil, err
	}
	s := &show{feed: f, dir: dir, env: env, clock: clock, clients: newClients(env.AWSConfig()), swept: f.start}
	table, err := hot.Create(ctx, s.clients.dynamodb, f.contract)
	if err != nil {
		return nil, err
	}
	for _, b := range []string{stagingBucket, lakeBucket} {
		if _, err := s.clients.s3.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &b}); err != nil {
			return nil, fmt.Errorf("create bucket %s: %w", b, err)
		}
	}
	if err := createDelivery(ctx, s.clients.firehose, deliveryStream, partsPrefix, deliveryInterval); err != nil {
		return nil, err
	}
	s.places = places{
		Contract: f.contract, StreamARN: table.StreamARN, Checkpoint: checkpointTable, Delivery: deliveryStream,
		Staging: location{stagingBucket, partsPrefix}, Damaged: location{stagingBucket, damagedPrefix}, Lake: location{lakeBucket, ""},
	}
	s.line, err = wire(s.clients, s.places, wireOptions{Limits: pipeline.Limits{Age: stepWidth}, Now: clock.Now})
	if err != nil {
		return nil, err
	}
	s.line.onBatch = s.seen
	s.line.gatherer.OnWindow = s.committed
	s.writer = hot.NewWriter(s.clients.dynamodb, f.contract, hot.WriterOptions{})
	return s, s.line.open(ctx)
}

// seen counts what the stream gave.
func (s *show) seen(b pipeline.Batch) {
	s.result.StreamRecords += len(b.Records)
	for _, r := range b.Records {
		if r.Expired {
			s.result.TTLRemovals++
		}
	}
}

func (s *show) committed(m *pipeline.Manifest) {
	s.result.Windows++
	s.result.Parts += len(m.Parts)
	s.result.Ignored += m.Counts().Ignored
}

// run is the whole way.
func (s *show) run(ctx context.Context) error {
	if err := s.writeAll(ctx); err != nil {
		return err
	}
	s.progress.say(fmt.Sprintf("%s written, sealing", counted(s.progress.done, "row")))
	if err := s.drain(ctx); err != nil {
		return err
	}
	var err error
	if s.result.HotRowsBeforeTTL, err = s.writer.Count(ctx); err != nil {
		return err
	}
	if s.before, err = s.countLake(ctx); err != nil {
		return err
	}
	s.progress.say("letting the hot rows expire")
	if err := s.expire(ctx); err != nil {
		return err
	}
	s.progress.say("counting what is in the lake")
	return s.sumUp(ctx)
}

// writeAll writes the feed, step by step, each step being read before the next is written.
func (s *show) writeAll(ctx context.Context) error {
	var step []hot.Event
	flush := func() error {
		if len(step) == 0 {
			return nil
		}
		defer func() { step = step[:0] }()
		if err := s.advance(ctx, step[len(step)-1].At); err != nil {
			return err
		}
		if err := s.write(ctx, step); err != nil {
			return err
		}
		s.progress.add(len(step))
		return s.line.catchUp(ctx)
	}
	for e, err := range s.feed.events {
		if err != nil {
			return err
		}
		if len(step) == stepRows || len(step) > 0 && e.At.Sub(step[0].At) >= stepWidth {
			if err := flush(); err != nil {
				return err
			}
		}
		step = append(step, e)
		if e.Expires.After(s.expires) {
			s.expires = e.Expires
		}
	}
	return flush()
}

// write puts runs of new readings, and what changes a reading between them.
func (s *show) write(ctx context.Context, events []hot.Event) error {
	var items []hot.Item
	put := func() error {
		r, err := s.writer.Put(ctx, items)
		s.result.Written += r.Written
		s.result.Refused += r.Refused
		items = items[:0]
		return err
	}
	for _, e := range events {
		if e.Kind != hot.KindOverwrite && e.Kind != hot.KindProlong {
			items = append(items, e.Item)
			continue
		}
		// It must follow the reading it changes.
		if err := put(); err != nil {
			return err
		}
		r, err := s.writer.Apply(ctx, e)
		if err != nil {
			return err
		}
		s.result.Modified += r.Written
	}
	return put()
}

// advance moves the clock, lets happen what is due on the way, and seals what was delivered.
func (s *show) advance(ctx context.Context, to time.Time) error {
	for {
		now := s.clock.Now()
		next := now.Add(stride)
		if next.After(to) {
			next = to
		}
		s.clock.Set(next)
		if next.Sub(s.swept) >= time.Hour {
			s.env.SweepTTL()
			s.swept = next
		}
		if err := s.line.gatherer.FlushDue(ctx); err != nil {
			return err
		}
		s.env.Tick()
		if err := s.sealDelivered(ctx); err != nil {
			return err
		}
		if !next.Before(to) {
			return nil
		}
		if err := s.line.catchUp(ctx); err != nil {
			return err
		}
	}
}

// sealDelivered seals what Firehose has delivered since.
func (s *show) sealDelivered(ctx context.Context) error {
	if n := s.env.FirehoseStats()[deliveryStream].Objects; n != s.delivered {
		s.delivered = n
		_, err := s.seal(ctx)
		return err
	}
	return nil
}

// seal seals each object that is in staging now, and returns how many stay there.
func (s *show) seal(ctx context.Context) (left int, err error) {
	for o, err := range s.line.staging.List(ctx) {
		if err != nil {
			return left, err
		}
		r, err := s.line.sealer.Object(ctx, o)
		if err != nil {
			return left, err
		}
		if r.Removed == 0 {
			left++
			continue
		}
		s.joined = append(s.joined, r.Parts)
	}
	return left, nil
}

// drain brings everything that was written into the lake.
func (s *show) drain(ctx context.Context) error {
	if err := s.line.catchUp(ctx); err != nil {
		return err
	}
	if err := s.line.gatherer.Flush(ctx); err != nil {
		return err
	}
	if err := s.advance(ctx, s.clock.Now().Add(deliveryInterval)); err != nil {
		return err
	}
	if p := s.env.FirehoseStats()[deliveryStream].Pending; p > 0 {
		return fmt.Errorf("drain: Firehose still holds %d parts", p)
	}
	left, err := s.seal(ctx)
	if err == nil && left > 0 {
		err = fmt.Errorf("drain: %d objects stay in staging %s", left, s.line.staging)
	}
	return err
}

// expire lets the time to live of every item pass.
func (s *show) expire(ctx context.Context) error {
	// TTL counts whole seconds, and what expires at a second is past after it.
	if err := s.advance(ctx, s.expires.Truncate(time.Second).Add(2*time.Second)); err != nil {
		return err
	}
	for s.env.SweepTTL() > 0 {
	}
	return s.drain(ctx)
}

// sumUp counts what is there in the end.
func (s *show) sumUp(ctx context.Context) error {
	var err error
	r := &s.result
	if r.HotRowsAfterTTL, err = s.writer.Count(ctx); err != nil {
		return err
	}
	if _, r.Gaps, err = s.line.store.StreamStatus(ctx, s.places.StreamARN); err != nil {
		return err
	}
	if s.tables, err = s.countLake(ctx); err != nil {
		return err
	}
	r.take(s.tables)
	stats := s.env.FirehoseStats()[deliveryStream]
	r.FirehoseRecords, r.StagingObjects = stats.Records, len(s.joined)
	slices.Sort(s.joined)
	if n := len(s.joined); n > 0 {
		r.PartsPerObject = spread{s.joined[0], s.joined[n/2], s.joined[n-1]}
	}
	if s.answers, err = s.ask(ctx); err != nil {
		return err
	}
	return s.reconcile()
}

// reconcile compares the counts that must agree. The demo claims that nothing is lost, so it
// does not leave that to the reader.
func (s *show) reconcile() error {
	r := s.result
	if sum := r.LakeRows + r.Changes + r.Tombstones + r.Quarantined + r.Ignored + r.TTLRemovals; sum != r.StreamRecords {
		return fmt.Errorf("reconcile: the stream gave %d records, %d are accounted for", r.StreamRecords, sum)
	}
	if r.LakeRows != r.LakeDistinctKeys {
		return fmt.Errorf("reconcile: %d rows in the lake have %d keys", r.LakeRows, r.LakeDistinctKeys)
	}
	if !slices.Equal(s.before, s.tables) {
		return errors.New("reconcile: the lake changed while the hot rows expired")
	}
	return nil
}

// lakeFolder is the folder of all lake tables, tableFolder that of one.
func (s *show) lakeFolder() string { return filepath.Join(s.dir, "s3", lakeBucket) }

func (s *show) tableFolder(table string) string { return filepath.Join(s.lakeFolder(), table) }
