package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	streamtypes "github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"
	"github.com/parquet-go/parquet-go"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/columnar"
	"telemetrylake/pipeline/pipelinetest"
	"telemetrylake/schemas"
	"telemetrylake/testenv"
)

// A track is a lane on a real checkpoint table whose sink is a shelf and whose stream is a tape.
type track struct {
	t        testing.TB
	db       *dynamodb.Client
	store    *checkpoint.Store
	contract *schemas.Contract
	stages   pipeline.Stages
	shelf    *shelf
	tape     tape
	size     pipeline.PartSize
	name     pipeline.LaneID
	*pipeline.Lane
}

const tableStream = "arn:aws:dynamodb:us-east-1:000000000000:table/sensor_readings/stream/1"

func newTrack(t testing.TB, size pipeline.PartSize, shards ...pipeline.ShardID) *track {
	t.Helper()
	env, err := testenv.Open(testenv.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	db := dynamodb.NewFromConfig(env.AWSConfig())
	k := &track{t: t, db: db, store: checkpoint.New(db, "checkpoint", checkpoint.Options{}), shelf: &shelf{}, tape: tape{}, size: size, name: "run-a"}
	if err := k.store.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	if k.contract, err = schemas.Load("sensor_readings"); err != nil {
		t.Fatal(err)
	}
	for _, s := range shards {
		if _, err := k.store.Shards(tableStream, k.name, checkpoint.Run).Own(t.Context(), pipeline.Shard{ID: s}); err != nil {
			t.Fatal(err)
		}
	}
	mem := memory.DefaultAllocator
	k.stages = pipeline.Stages{
		Decoder: columnar.NewDecoder(mem), Encoder: columnar.NewEncoder(mem), Sink: k.shelf,
		Checkpoints: k.store, Contracts: k.store, Replayer: k.tape, Gaps: k.store,
	}
	k.restart()
	return k
}

// restart is another process of the same lane, with the track's stages and contract of now.
func (k *track) restart() {
	k.t.Helper()
	if err := k.tryRestart(tableStream); err != nil {
		k.t.Fatal(err)
	}
}

func (k *track) tryRestart(stream string) error {
	l, err := pipeline.NewLane(k.stages, pipeline.LaneOptions{Lane: k.name, Stream: stream, Contract: k.contract, Parts: k.size})
	if err != nil {
		return err
	}
	k.Lane = l
	return l.Open(k.t.Context())
}

func (k *track) window(bs ...pipeline.Batch) []*pipeline.Manifest {
	k.t.Helper()
	ms, err := k.Window(k.t.Context(), bs)
	if err != nil {
		k.t.Fatal(err)
	}
	return ms
}

// position is a shard's, without its times.
func (k *track) position(s pipeline.ShardID) pipeline.Position {
	k.t.Helper()
	p := k.timedPosition(s)
	return pipeline.Position{Seq: p.Seq, End: p.End}
}

func (k *track) timedPosition(s pipeline.ShardID) pipeline.Position {
	k.t.Helper()
	p, ok, err := k.store.Shards(tableStream, k.name, checkpoint.Run).Position(k.t.Context(), s)
	if err != nil || !ok {
		k.t.Fatalf("position of %s: %v, %v", s, ok, err)
	}
	return p
}

func (k *track) gaps(want int) []pipeline.Gap {
	k.t.Helper()
	gs, err := k.store.Gaps(k.t.Context(), tableStream)
	if err != nil || len(gs) != want {
		k.t.Fatalf("%d gaps, %v, want %d: %+v", len(gs), err, want, gs)
	}
	return gs
}

// landed is how often each sequence number is a row on the shelf: devices are named by it.
func (k *track) landed() map[string]int {
	k.t.Helper()
	got := map[string]int{}
	for _, p := range k.shelf.parts {
		f, err := parquet.OpenFile(bytes.NewReader(p.Body), int64(len(p.Body)))
		if err != nil {
			k.t.Fatal(err)
		}
		if int64(p.Rows) != f.NumRows() {
			k.t.Errorf("part %s says it has %d rows and has %d", p.ID, p.Rows, f.NumRows())
		}
		rows := f.RowGroups()[0].Rows()
		buf := make([]parquet.Row, 16)
		for {
			n, err := rows.ReadRows(buf)
			for _, r := range buf[:n] {
				got[string(r[0].ByteArray())]++
			}
			if err != nil || n == 0 {
				break
			}
		}
		rows.Close()
	}
	return got
}

func (k *track) wantLanded(seqs ...int) {
	k.t.Helper()
	got := k.landed()
	if len(got) != len(seqs) {
		k.t.Errorf("landed %v, want each of %v once", got, seqs)
	}
	for _, s := range seqs {
		if got[strconv.Itoa(s)] != 1 {
			k.t.Errorf("record %d landed %d times", s, got[strconv.Itoa(s)])
		}
	}
}

// A shelf keeps parts. It fails the next landing after so many parts of it are kept.
type shelf struct {
	parts  []pipeline.Part
	failAt int // parts to keep before the next failure; -1 and 0 never
}

var errShelf = errors.New("the shelf broke")

func (s *shelf) Land(_ context.Context, ps []pipeline.Part) error {
	if s.failAt > 0 {
		s.parts = append(s.parts, ps[:min(s.failAt, len(ps))]...)
		s.failAt = 0
		return errShelf
	}
	s.parts = append(s.parts, ps...)
	return nil
}

// A tape replays what it has been given, by shard.
type tape map[pipeline.ShardID][]pipeline.Record

func (p tape) Replay(_ context.Context, ranges []pipeline.Range, emit func(pipeline.Batch) error) error {
	for _, r := range ranges {
		b := pipeline.Batch{Shard: r.Shard, End: r.End}
		for _, rec := range p[r.Shard] {
			if r.First != "" && rec.Seq.Compare(r.First) >= 0 && rec.Seq.Compare(r.Last) <= 0 {
				b.Records = append(b.Records, rec)
			}
		}
		if err := emit(b); err != nil {
			return err
		}
	}
	return nil
}

// createdAt is when record says it was created.
func createdAt(seq int) time.Time { return record("", seq).Created }

// record is a reading whose device is named by its sequence number.
func record(shard pipeline.ShardID, seq int) pipeline.Record {
	at := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC).Add(time.Duration(seq) * time.Second)
	keys := map[string]streamtypes.AttributeValue{
		"pk": &streamtypes.AttributeValueMemberS{Value: "DEVICE#" + strconv.Itoa(seq)},
		"sk": &streamtypes.AttributeValueMemberS{Value: "TS#" + at.Format("2006-01-02T15:04:05.000Z")},
	}
	image := map[string]streamtypes.AttributeValue{
		"pk": keys["pk"], "sk": keys["sk"],
		"takenAt":  &streamtypes.AttributeValueMemberN{Value: strconv.FormatInt(at.UnixMilli(), 10)},
		"celsius":  &streamtypes.AttributeValueMemberN{Value: "21.25"},
		"humidity": &streamtypes.AttributeValueMemberN{Value: "40.5"},
	}
	return pipeline.Record{
		Shard: shard, Seq: pipeline.SequenceNumber(strconv.Itoa(seq)), Op: streamtypes.OperationTypeInsert,
		Created: at.Add(time.Minute).Truncate(time.Second), Keys: keys, New: image,
	}
}

// batch is records from..to of a shard, also put on the tape.
func (k *track) batch(shard pipeline.ShardID, from, to int) pipeline.Batch {
	b := pipeline.Batch{Shard: shard}
	for i := from; i <= to; i++ {
		b.Records = append(b.Records, record(shard, i))
	}
	k.tape[shard] = append(k.tape[shard], b.Records...)
	return b
}

func ended(b pipeline.Batch) pipeline.Batch { b.End = true; return b }

func TestLaneLandsEachRecordOnceAndAdvances(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{Rows: 3}, "s", "r")
	ms := k.window(k.batch("s", 1, 4), k.batch("r", 11, 12), k.batch("s", 5, 5))
	if len(ms) != 1 || ms[0].Window.N != 1 || len(ms[0].Parts) != 3 {
		t.Fatalf("windows %+v", ms)
	}
	m := ms[0]
	want := []pipeline.ShardRange{
		{Range: pipeline.Range{Shard: "r", First: "11", Last: "12"}, Counts: pipeline.Counts{Rows: 2}, Oldest: createdAt(11), Newest: createdAt(12)},
		{Range: pipeline.Range{Shard: "s", First: "1", Last: "5"}, Counts: pipeline.Counts{Rows: 5}, Oldest: createdAt(1), Newest: createdAt(5)},
	}
	if !slices.Equal(m.Shards, want) || m.Stream != tableStream || m.Contract != k.contract.Hash() {
		t.Errorf("manifest %+v", m)
	}
	for i, p := range k.shelf.parts {
		f, err := parquet.OpenFile(bytes.NewReader(p.Body), int64(len(p.Body)))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := f.Lookup(pipeline.PartMetaKey)
		meta, err := pipeline.DecodePartMeta(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := meta.Matches(m); err != nil || meta.ID() != p.ID || p.ID.Index != i || meta.Last != (i == 2) {
			t.Errorf("part %d is %s and says %s, last %v: %v", i, p.ID, meta.ID(), meta.Last, err)
		}
	}
	k.wantLanded(1, 2, 3, 4, 5, 11, 12)
	if ms := k.window(k.batch("s", 6, 6)); len(ms) != 1 || ms[0].Window.N != 2 || ms[0].Shards[0].After != "5" {
		t.Errorf("second window %+v", ms)
	}
	if p := k.position("s"); p != (pipeline.Position{Seq: "6"}) {
		t.Errorf("position %+v", p)
	}
}

func TestLaneSkipsWhatIsCommitted(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{}, "s")
	first := k.batch("s", 1, 4)
	k.window(first)
	for range 2 {
		if ms := k.window(first, pipeline.Batch{Shard: "s"}); len(ms) != 0 {
			t.Errorf("windows %+v of what is committed", ms)
		}
		k.restart()
	}
	ms := k.window(first, k.batch("s", 3, 6)) // overlaps the position
	if len(ms) != 1 || ms[0].Window.N != 2 || ms[0].Shards[0].First != "5" || ms[0].Shards[0].After != "4" {
		t.Errorf("windows %+v", ms)
	}
	more := k.batch("s", 7, 9)
	k.window(more, more) // twice in one window
	k.wantLanded(1, 2, 3, 4, 5, 6, 7, 8, 9)
	if ms := k.window(); len(ms) != 0 {
		t.Errorf("windows %+v of nothing", ms)
	}
}

func TestLaneRefusesWhatComesOutOfOrder(t *testing.T) {
	for name, make := range map[string]func(k *track) []pipeline.Batch{
		"within a batch": func(k *track) []pipeline.Batch {
			b := k.batch("s", 1, 4)
			b.Records[1], b.Records[2] = b.Records[2], b.Records[1]
			return []pipeline.Batch{b}
		},
		"twice in a batch": func(k *track) []pipeline.Batch {
			b := k.batch("s", 1, 2)
			b.Records = append(b.Records, b.Records[1])
			return []pipeline.Batch{b}
		},
		"an earlier batch later": func(k *track) []pipeline.Batch { return []pipeline.Batch{k.batch("s", 4, 6), k.batch("s", 2, 3)} },
		"between the batches of two": func(k *track) []pipeline.Batch {
			return []pipeline.Batch{k.batch("s", 1, 2), k.batch("s", 5, 6), k.batch("s", 4, 4)}
		},
		"a record after the end": func(k *track) []pipeline.Batch {
			return []pipeline.Batch{ended(k.batch("s", 1, 2)), k.batch("s", 3, 3)}
		},
		"a shard that is nobody's": func(k *track) []pipeline.Batch { return []pipeline.Batch{k.batch("x", 1, 2)} },
		"more shards than one can hold": func(k *track) []pipeline.Batch {
			var bs []pipeline.Batch
			for i := range pipeline.MaxShardsPerWindow + 1 {
				id := pipeline.ShardID(fmt.Sprintf("n-%d", i))
				if _, err := k.store.Shards(tableStream, k.name, checkpoint.Run).Own(k.t.Context(), pipeline.Shard{ID: id}); err != nil {
					k.t.Fatal(err)
				}
				bs = append(bs, k.batch(id, 1, 1))
			}
			return bs
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newTrack(t, pipeline.PartSize{}, "s")
			if ms, err := k.Window(t.Context(), make(k)); err == nil || len(ms) != 0 {
				t.Errorf("windows %v, %v", ms, err)
			}
			if _, err := k.Window(t.Context(), []pipeline.Batch{k.batch("s", 1, 9)}); err == nil {
				t.Error("a lane that failed makes windows without being opened")
			}
			if len(k.shelf.parts) != 0 || k.position("s") != (pipeline.Position{}) {
				t.Errorf("%d parts landed, position %+v", len(k.shelf.parts), k.position("s"))
			}
			if err := k.Open(t.Context()); err != nil {
				t.Fatal(err)
			}
			k.window(k.batch("s", 1, 2))
			k.wantLanded(1, 2)
		})
	}
}

func TestLaneCommitsTheEndOfShards(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{}, "parent", "child", "empty")
	first := k.batch("parent", 1, 3)
	k.window(first)
	ms := k.window(pipeline.Batch{Shard: "parent", End: true}, k.batch("child", 4, 5), pipeline.Batch{Shard: "empty", End: true})
	if len(ms) != 1 || len(ms[0].Shards) != 3 {
		t.Fatalf("windows %+v", ms)
	}
	for s, want := range map[pipeline.ShardID]pipeline.Position{
		"parent": {Seq: "3", End: true}, "child": {Seq: "5"}, "empty": {End: true},
	} {
		if got := k.position(s); got != want {
			t.Errorf("position of %s is %+v, want %+v", s, got, want)
		}
	}
	// What comes again of an ended shard is skipped, by the same process and by the next.
	for range 2 {
		if ms := k.window(ended(first), pipeline.Batch{Shard: "empty", End: true}); len(ms) != 0 {
			t.Errorf("windows %+v", ms)
		}
		k.restart()
	}
	k.window(ended(k.batch("child", 6, 7)))
	if got := k.position("child"); got != (pipeline.Position{Seq: "7", End: true}) {
		t.Errorf("position %+v", got)
	}
	if _, err := k.Window(t.Context(), []pipeline.Batch{k.batch("child", 8, 8)}); err == nil {
		t.Error("a record follows the end")
	}
	k.wantLanded(1, 2, 3, 4, 5, 6, 7)
}

// A window of removals by TTL lands nothing, and what it read is not read again.
func TestLaneAdvancesOverRecordsWithoutRows(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{}, "s")
	b := k.batch("s", 1, 2)
	for i := range b.Records {
		b.Records[i].Op, b.Records[i].New, b.Records[i].Expired = streamtypes.OperationTypeRemove, nil, true
	}
	ms := k.window(b)
	if len(ms) != 1 || len(ms[0].Parts) != 0 || ms[0].Counts() != (pipeline.Counts{}) || len(k.shelf.parts) != 0 {
		t.Errorf("windows %+v", ms)
	}
	if p := k.position("s"); p.Seq != "2" {
		t.Errorf("position %+v", p)
	}
}

func TestLaneSplitsAWindowWhoseManifestIsTooLarge(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{Rows: 1}, "s", "r")
	k.stages.Encoder = columnar.NewEncoder(memory.DefaultAllocator, columnar.Uncompressed())
	k.restart()
	const n = 2500 // one part a record: about 63 bytes each
	ms := k.window(k.batch("s", 1, n), ended(k.batch("r", n+1, 2*n)), ended(k.batch("s", 2*n+1, 2*n+10)))
	if len(ms) < 2 {
		t.Fatalf("%d windows", len(ms))
	}
	var rows int
	for i, m := range ms {
		b, err := m.Encode()
		if err != nil || len(b) > pipeline.MaxManifestBytes || m.Window.N != int64(i+1) {
			t.Errorf("window %d has a manifest of %d bytes, %v", m.Window.N, len(b), err)
		}
		rows += m.Counts().Rows
	}
	if want := 2*n + 10; rows != want || len(k.shelf.parts) != want {
		t.Errorf("%d rows in %d parts, want %d", rows, len(k.shelf.parts), want)
	}
	seen := map[pipeline.PartID]bool{}
	for _, p := range k.shelf.parts {
		if seen[p.ID] {
			t.Errorf("part %s landed twice", p.ID)
		}
		seen[p.ID] = true
	}
	for s, want := range map[pipeline.ShardID]pipeline.Position{"s": {Seq: "5010", End: true}, "r": {Seq: "5000", End: true}} {
		if got := k.position(s); got != want {
			t.Errorf("position of %s is %+v, want %+v", s, got, want)
		}
	}
}

func TestLaneReopensAfterALandingThatFailed(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{Rows: 2}, "s")
	k.window(k.batch("s", 1, 2))
	b := k.batch("s", 3, 8)
	k.shelf.failAt = 1
	if _, err := k.Window(t.Context(), []pipeline.Batch{b}); !errors.Is(err, errShelf) {
		t.Fatalf("window: %v", err)
	}
	if p := k.position("s"); p.Seq != "2" {
		t.Errorf("position %+v before commit", p)
	}
	if _, err := k.Window(t.Context(), []pipeline.Batch{b}); err == nil {
		t.Error("a lane that failed makes windows without being opened")
	}
	before := len(k.shelf.parts)
	if err := k.Open(t.Context()); err != nil { // lands the window again and commits it
		t.Fatal(err)
	}
	if p := k.position("s"); p.Seq != "8" || len(k.shelf.parts) != before+3 {
		t.Errorf("position %+v, %d parts landed again", p, len(k.shelf.parts)-before)
	}
	if ms := k.window(b, k.batch("s", 9, 9)); len(ms) != 1 || ms[0].Window.N != 3 || ms[0].Shards[0].First != "9" {
		t.Errorf("windows %+v", ms)
	}
}

func TestLaneThatWasOvertakenStops(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{}, "s")
	old := k.Lane
	k.restart()
	if _, err := old.Window(t.Context(), []pipeline.Batch{k.batch("s", 1, 2)}); !errors.Is(err, pipeline.ErrFenced) {
		t.Errorf("window of the old process: %v", err)
	}
	if len(k.shelf.parts) != 0 {
		t.Error("it landed parts of a window that it could not begin")
	}
}

// A successor cuts a pending window by the manifest's rows, whatever it would cut itself, and
// under the contract of then.
func TestRecoveryCutsByTheManifest(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{Rows: 2}, "s")
	k.shelf.failAt = 1
	if _, err := k.Window(t.Context(), []pipeline.Batch{k.batch("s", 1, 7)}); !errors.Is(err, errShelf) {
		t.Fatal(err)
	}
	k.shelf.parts = nil
	k.size = pipeline.PartSize{Rows: 5}
	text := bytes.Replace(k.contract.Text(), []byte("decimal(5,2)"), []byte("decimal(5,1)"), 1) // 21.25 does not fit it
	later, err := schemas.Parse("later", text)
	if err != nil {
		t.Fatal(err)
	}
	then := k.contract
	k.contract = later
	k.restart()
	var rows []int
	for _, p := range k.shelf.parts {
		rows = append(rows, p.Rows)
	}
	if !slices.Equal(rows, []int{2, 2, 2, 1}) {
		t.Errorf("parts of %v rows, want 2, 2, 2, 1", rows)
	}
	k.wantLanded(1, 2, 3, 4, 5, 6, 7)
	if text, _ := parquetMeta(t, k.shelf.parts[0].Body); text.Contract != then.Hash() {
		t.Errorf("part is of contract %s", text.Contract)
	}
	ms := k.window(k.batch("s", 8, 13))
	if len(ms) != 1 || ms[0].Contract != later.Hash() || ms[0].Counts().Quarantined != 6 {
		t.Errorf("the next window, under the contract of now: %+v", ms)
	}
}

func parquetMeta(t *testing.T, body []byte) (*pipeline.PartMeta, error) {
	t.Helper()
	f, err := parquet.OpenFile(bytes.NewReader(body), int64(len(body)))
	if err != nil {
		t.Fatal(err)
	}
	text, _ := f.Lookup(pipeline.PartMetaKey)
	return pipeline.DecodePartMeta(text)
}

// A window of two ended shards, one without records, is recovered like any other.
func TestRecoveryOfEnds(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{}, "s", "empty")
	k.shelf.failAt = 1
	if _, err := k.Window(t.Context(), []pipeline.Batch{ended(k.batch("s", 1, 2)), {Shard: "empty", End: true}}); !errors.Is(err, errShelf) {
		t.Fatal(err)
	}
	k.restart()
	for s, want := range map[pipeline.ShardID]pipeline.Position{"s": {Seq: "2", End: true}, "empty": {End: true}} {
		if got := k.position(s); got != want {
			t.Errorf("position of %s is %+v, want %+v", s, got, want)
		}
	}
}

func TestRecoveryNeedsAPersonWhenTheReplayDiffers(t *testing.T) {
	for name, change := range map[string]func(k *track){
		"a record is missing": func(k *track) { k.tape["s"] = slices.Delete(k.tape["s"], 1, 2) },
		"a record was added":  func(k *track) { k.tape["s"] = slices.Insert(k.tape["s"], 1, record("s", 1)) },
		"another outcome":     func(k *track) { k.tape["s"][2].Op = streamtypes.OperationTypeModify },
		"does not fit now":    func(k *track) { k.tape["s"][0].New["celsius"] = &streamtypes.AttributeValueMemberN{Value: "1.234567"} },
		// The counts are the same and the partitions are not.
		"another day": func(k *track) {
			k.tape["s"][0].New["takenAt"] = &streamtypes.AttributeValueMemberN{Value: "1700000000000"}
		},
		"no day less": func(k *track) {
			for i := range k.tape["s"] {
				k.tape["s"][i].New["takenAt"] = &streamtypes.AttributeValueMemberN{Value: "1700000000000"}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newTrack(t, pipeline.PartSize{Rows: 2}, "s")
			k.shelf.failAt = 1
			if _, err := k.Window(t.Context(), []pipeline.Batch{k.batch("s", 1, 5)}); !errors.Is(err, errShelf) {
				t.Fatal(err)
			}
			before := len(k.shelf.parts)
			change(k)
			err := k.tryRestart(tableStream)
			pipelinetest.NeedsPerson(t, "open", err)
			if len(k.shelf.parts) != before || k.position("s") != (pipeline.Position{}) {
				t.Error("it landed or committed what differs")
			}
			if _, err := k.Window(t.Context(), []pipeline.Batch{k.batch("s", 6, 6)}); err == nil {
				t.Error("it goes on after that")
			}
		})
	}
}

func TestRecoveryNeedsAPersonForAnotherStream(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{}, "s")
	k.shelf.failAt = 1
	if _, err := k.Window(t.Context(), []pipeline.Batch{k.batch("s", 1, 5)}); !errors.Is(err, errShelf) {
		t.Fatal(err)
	}
	err := k.tryRestart(strings.Replace(tableStream, "stream/1", "stream/2", 1))
	pipelinetest.NeedsPerson(t, "open", err)
	k.restart()
	k.window(k.batch("s", 6, 6))
}

// Without a gap ledger, records that the stream no longer holds stop the recovery; the window
// stays pending.
func TestRecoveryStopsWhenTheRecordsAreTrimmedAndNobodyWritesItDown(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{}, "s")
	k.shelf.failAt = 1
	if _, err := k.Window(t.Context(), []pipeline.Batch{k.batch("s", 1, 2)}); !errors.Is(err, errShelf) {
		t.Fatal(err)
	}
	k.stages.Replayer, k.stages.Gaps = trimmed{}, nil
	if err := k.tryRestart(tableStream); !errors.Is(err, pipeline.ErrTrimmed) {
		t.Errorf("open: %v", err)
	}
	k.stages.Replayer, k.stages.Gaps = k.tape, k.store
	k.restart()
	if p := k.position("s"); p.Seq != "2" {
		t.Errorf("position %+v", p)
	}
}

type trimmed struct{}

func (trimmed) Replay(context.Context, []pipeline.Range, func(pipeline.Batch) error) error {
	return pipeline.ErrTrimmed
}

func TestNewLaneRefusesANameThatFitsNoKey(t *testing.T) {
	if _, err := pipeline.NewLane(pipeline.Stages{}, pipeline.LaneOptions{Lane: "a#b"}); err == nil {
		t.Error("it is made")
	}
}
