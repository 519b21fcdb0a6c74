package pipeline_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	streamtypes "github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
	"telemetrylake/schemas"
)

// A book is the truth: what devices wrote, in which records of the stream that is, and what
// has to become of each.
type book struct {
	w        *world
	start    time.Time
	readings []*reading
	taken    map[string]bool     // keys
	writes   map[string][]string // by key: the outcome of each write, in order
	seen     map[string]int      // how many of them the witness has seen as records
	records  []*witnessed
	shards   map[pipeline.ShardID]*witnessedShard
	either   map[string]bool // keys whose row may be a reading or quarantined, once
	versions int
}

// Outcomes: the table a row is in and the row itself, or one of these.
const (
	expiredRecord = "expired" // no row: the service removed the item
	ignoredRecord = "ignored" // no row, and counted: the contract refuses it
)

// A witnessed record was read from the stream by somebody who never fails.
type witnessed struct {
	shard   pipeline.ShardID
	seq     pipeline.SequenceNumber
	created time.Time
	outcome string
}

type witnessedShard struct {
	id, parent pipeline.ShardID
	last       string
	done       bool
}

type reading struct {
	device, tie string
	at          time.Time
	celsius     string
	expires     time.Time
	gone        bool
}

func (r *reading) key() string { return "DEVICE#" + r.device + "|" + r.sk() }

func (r *reading) sk() string {
	s := "TS#" + r.at.UTC().Format("2006-01-02T15:04:05.000Z")
	if r.tie != "" {
		s += "#" + r.tie
	}
	return s
}

func (r *reading) row() string {
	return fmt.Sprintf("%s|%d|%s|%s", r.device, r.at.UnixMilli(), r.tie, r.celsius)
}

func newBook(w *world) *book {
	return &book{
		w: w, start: time.Now().UTC().Truncate(24 * time.Hour), taken: map[string]bool{}, writes: map[string][]string{},
		seen: map[string]int{}, shards: map[pipeline.ShardID]*witnessedShard{}, either: map[string]bool{},
	}
}

// device does one write to the hot table and notes the truth.
func (b *book) device(t *testing.T) {
	b.w.beCalm(func() { b.write(t) })
}

func (b *book) write(t *testing.T) {
	rng := b.w.rng
	x := rng.Float64()
	var alive []*reading
	for _, r := range b.readings {
		if !r.gone {
			alive = append(alive, r)
		}
	}
	switch {
	case x < 0.08 && len(alive) > 0: // a reading is overwritten
		r := alive[rng.IntN(len(alive))]
		b.versions++
		r.celsius = fmt.Sprintf("%d.%d", 30+b.versions/9, 1+b.versions%9)
		outcome := "changes " + r.row()
		if b.w.old.OnModify == schemas.ModifyReject {
			outcome = ignoredRecord
		}
		b.put(t, r, outcome)
	case x < 0.11 && len(alive) > 0: // a person deletes one
		r := alive[rng.IntN(len(alive))]
		r.gone = true
		_, err := b.w.client.DeleteItem(t.Context(), &dynamodb.DeleteItemInput{TableName: &b.w.table.Name, Key: map[string]types.AttributeValue{
			"pk": &types.AttributeValueMemberS{Value: "DEVICE#" + r.device}, "sk": &types.AttributeValueMemberS{Value: r.sk()},
		}})
		must(t, err)
		b.expect(r, "tombstones "+r.key())
	case x < 0.15: // garbage
		r := b.fresh()
		r.celsius = "1.234"
		b.put(t, r, "quarantine "+r.key())
	case x < 0.22: // fits the old contract only
		r := b.fresh()
		r.celsius = "21.25"
		b.either[r.key()] = true
		b.put(t, r, "either "+r.key())
	default:
		r := b.fresh()
		if b.w.plan.expire && rng.IntN(3) == 0 {
			r.expires = time.Now().Add(time.Duration(rng.IntN(3600)) * time.Second)
		}
		b.put(t, r, "readings "+r.row())
		b.readings = append(b.readings, r)
	}
}

// sweep removes expired readings, as the service does in its own time.
func (b *book) sweep(t *testing.T) {
	n, now := 0, time.Now().Unix()
	for _, r := range b.readings {
		if !r.gone && r.expires.Unix() < now {
			r.gone = true
			b.expect(r, expiredRecord)
			n++
		}
	}
	got := 0
	b.w.beCalm(func() { got = b.w.env.SweepTTL() })
	if got != n {
		t.Fatalf("the service removed %d items, %d have expired", got, n)
	}
	b.w.happened("items that expired", n)
}

// fresh is a reading that was never written: few devices and instants, so that many share them.
func (b *book) fresh() *reading {
	rng := b.w.rng
	for n := 0; ; n++ {
		r := &reading{
			device:  strconv.Itoa(1 + rng.IntN(4)),
			at:      b.start.Add(time.Duration(rng.IntN(3)-1) * 24 * time.Hour).Add(time.Duration(rng.IntN(4)) * time.Second),
			expires: b.start.Add(90 * 24 * time.Hour),
		}
		if n > 0 || rng.IntN(2) == 0 {
			r.tie = strconv.Itoa(rng.IntN(1000))
		}
		r.celsius = fmt.Sprintf("%d.%d", rng.IntN(30), 1+rng.IntN(9))
		if !b.taken[r.key()] {
			return r
		}
	}
}

func (b *book) expect(r *reading, outcome string) {
	b.writes[r.key()] = append(b.writes[r.key()], outcome)
}

func (b *book) put(t *testing.T, r *reading, outcome string) {
	b.taken[r.key()] = true
	_, err := b.w.client.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: &b.w.table.Name, Item: map[string]types.AttributeValue{
		"pk": &types.AttributeValueMemberS{Value: "DEVICE#" + r.device}, "sk": &types.AttributeValueMemberS{Value: r.sk()},
		"takenAt":   &types.AttributeValueMemberN{Value: strconv.FormatInt(r.at.UnixMilli(), 10)},
		"expiresAt": &types.AttributeValueMemberN{Value: strconv.FormatInt(r.expires.Unix(), 10)},
		"celsius":   &types.AttributeValueMemberN{Value: r.celsius},
		"humidity":  &types.AttributeValueMemberN{Value: "40.5"},
	}})
	must(t, err)
	b.expect(r, outcome)
}

// witness reads what the stream has that it has not read yet. It must come before anything can
// age out, and not within the half minute in which new shards may be in no listing.
func (b *book) witness(ctx context.Context) (err error) {
	b.w.beCalm(func() { err = b.look(ctx) })
	if err != nil {
		return fmt.Errorf("witness: %w", err)
	}
	for key, outcomes := range b.writes {
		if b.seen[key] != len(outcomes) {
			return fmt.Errorf("witness: of %d writes to %s the stream has %d", len(outcomes), key, b.seen[key])
		}
	}
	return nil
}

func (b *book) look(ctx context.Context) error {
	var order []*witnessedShard
	in := &dynamodbstreams.DescribeStreamInput{StreamArn: &b.w.table.StreamARN}
	for {
		out, err := b.w.streams.DescribeStream(ctx, in)
		if err != nil {
			return err
		}
		for _, s := range out.StreamDescription.Shards {
			id := pipeline.ShardID(aws.ToString(s.ShardId))
			if b.shards[id] == nil {
				b.shards[id] = &witnessedShard{id: id, parent: pipeline.ShardID(aws.ToString(s.ParentShardId))}
			}
			order = append(order, b.shards[id])
		}
		if in.ExclusiveStartShardId = out.StreamDescription.LastEvaluatedShardId; in.ExclusiveStartShardId == nil {
			break
		}
	}
	type found struct {
		*witnessed
		key string
	}
	var all []found
	for _, s := range order {
		if s.done {
			continue
		}
		recs, err := b.read(ctx, s)
		if err != nil {
			return err
		}
		for _, r := range recs {
			pk, sk := r.Dynamodb.Keys["pk"].(*streamtypes.AttributeValueMemberS).Value, r.Dynamodb.Keys["sk"].(*streamtypes.AttributeValueMemberS).Value
			all = append(all, found{&witnessed{
				shard: s.id, seq: pipeline.SequenceNumber(*r.Dynamodb.SequenceNumber), created: *r.Dynamodb.ApproximateCreationDateTime,
			}, pk + "|" + sk})
		}
	}
	slices.SortFunc(all, func(a, b found) int { return cmp.Or(a.seq.Compare(b.seq), cmp.Compare(a.key, b.key)) })
	for _, f := range all {
		n := b.seen[f.key]
		if n >= len(b.writes[f.key]) {
			return fmt.Errorf("record %s of %s is of no write", f.seq, f.key)
		}
		f.outcome = b.writes[f.key][n]
		b.seen[f.key]++
		b.records = append(b.records, f.witnessed)
	}
	return nil
}

func (b *book) read(ctx context.Context, s *witnessedShard) ([]streamtypes.Record, error) {
	in := &dynamodbstreams.GetShardIteratorInput{
		StreamArn: &b.w.table.StreamARN, ShardId: aws.String(string(s.id)), ShardIteratorType: streamtypes.ShardIteratorTypeTrimHorizon,
	}
	if s.last != "" {
		in.ShardIteratorType, in.SequenceNumber = streamtypes.ShardIteratorTypeAfterSequenceNumber, &s.last
	}
	it, err := b.w.streams.GetShardIterator(ctx, in)
	if old := (*streamtypes.TrimmedDataAccessException)(nil); errors.As(err, &old) { // it has seen all that is gone
		in.ShardIteratorType, in.SequenceNumber = streamtypes.ShardIteratorTypeTrimHorizon, nil
		it, err = b.w.streams.GetShardIterator(ctx, in)
	}
	if err != nil {
		return nil, err
	}
	var all []streamtypes.Record
	for next := it.ShardIterator; ; {
		out, err := b.w.streams.GetRecords(ctx, &dynamodbstreams.GetRecordsInput{ShardIterator: next})
		if err != nil {
			return nil, err
		}
		for _, r := range out.Records {
			if pipeline.SequenceNumber(*r.Dynamodb.SequenceNumber).Compare(pipeline.SequenceNumber(s.last)) > 0 {
				all = append(all, r)
			}
		}
		if n := len(out.Records); n > 0 {
			s.last = *out.Records[n-1].Dynamodb.SequenceNumber
		}
		if next = out.NextShardIterator; next == nil {
			s.done = true
			return all, nil
		}
		if len(out.Records) == 0 {
			return all, nil
		}
	}
}
