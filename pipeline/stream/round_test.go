package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	dynamotypes "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
)

func TestEveryRecordOfEveryShardIsReadOnce(t *testing.T) {
	for _, parallel := range []int{0, 1, 3} {
		t.Run(fmt.Sprint(parallel), func(t *testing.T) {
			w := newWorld(t, 4)
			c, l := newCheckpoint(), log{}
			read := w.reader(c, Options{PageLimit: 7}).Round
			if parallel > 0 {
				read = w.poller(c, Options{PageLimit: 7, Parallel: parallel}).Poll
			}
			w.put(200)
			info := w.readOn(c, &l, read)
			w.wantAll(l)
			if len(info.Shards) != 4 || info.Count(Tip) != 4 || len(c.owned) != 4 {
				t.Errorf("shards %+v, %d owned", info.Shards, len(c.owned))
			}
			w.put(3)
			for range 3 {
				w.readOn(c, &l, read)
			}
			w.wantAll(l)
			for _, b := range l {
				if len(b.Records) == 0 || len(b.Records) > 7 || b.End || b.Bytes <= 0 {
					t.Fatalf("batch of %d records, %d bytes, end %t", len(b.Records), b.Bytes, b.End)
				}
			}
		})
	}
}

func TestARoundCountsWhatItSaw(t *testing.T) {
	w := newWorld(t, 1)
	c, l := newCheckpoint(), log{}
	r := w.reader(c, Options{PageLimit: 5})
	w.put(7)
	var got []string
	for range 3 {
		info, err := r.Round(t.Context(), l.emit)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%d records, %d/%d pages empty, listed %t, caught up %t, %s",
			info.Records, info.EmptyPages, info.Pages, info.Listed, info.CaughtUp(), info.Shards[0].State))
	}
	want := []string{
		"5 records, 0/1 pages empty, listed true, caught up false, reading",
		"2 records, 0/1 pages empty, listed false, caught up false, reading",
		"0 records, 1/1 pages empty, listed false, caught up true, tip",
	}
	if !slices.Equal(got, want) {
		t.Errorf("rounds:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestRecordsCarryWhatTheServiceSays(t *testing.T) {
	w := newWorld(t, 1)
	c, l := newCheckpoint(), log{}
	key := map[string]dynamotypes.AttributeValue{"id": &dynamotypes.AttributeValueMemberS{Value: "a"}}
	w.put(2, "a")
	if _, err := w.db.DeleteItem(t.Context(), &dynamodb.DeleteItemInput{TableName: aws.String(tableName), Key: key}); err != nil {
		t.Fatal(err)
	}
	_, err := w.db.UpdateTimeToLive(t.Context(), &dynamodb.UpdateTimeToLiveInput{TableName: aws.String(tableName),
		TimeToLiveSpecification: &dynamotypes.TimeToLiveSpecification{AttributeName: aws.String("ttl"), Enabled: aws.Bool(true)}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.db.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: aws.String(tableName), Item: map[string]dynamotypes.AttributeValue{
		"id": key["id"], "ttl": &dynamotypes.AttributeValueMemberN{Value: fmt.Sprint(start.Add(time.Minute).Unix())},
	}})
	if err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(time.Hour)
	w.env.SweepTTL()
	w.catchUp(w.reader(c, Options{}), c, &l)
	type seen struct {
		op      types.OperationType
		expired bool
		image   bool
		created time.Time
	}
	var got []seen
	for _, rec := range l.records() {
		got = append(got, seen{rec.Op, rec.Expired, rec.New != nil, rec.Created})
		if id, ok := rec.Keys["id"].(*types.AttributeValueMemberS); !ok || id.Value != "a" || rec.Shard != l[0].Shard || rec.Seq == "" {
			t.Errorf("record %+v", rec)
		}
	}
	want := []seen{
		{types.OperationTypeInsert, false, true, start}, {types.OperationTypeModify, false, true, start},
		{types.OperationTypeRemove, false, false, start}, {types.OperationTypeInsert, false, true, start},
		{types.OperationTypeRemove, true, false, start.Add(time.Hour)},
	}
	if !slices.Equal(got, want) {
		t.Errorf("records %+v, want %+v", got, want)
	}
}

func TestAChildIsReadOnlyWhenItsParentIsCommitted(t *testing.T) {
	w := newWorld(t, 1)
	c, l := newCheckpoint(), log{}
	r := w.reader(c, Options{})
	w.put(3, "a")
	if err := w.env.Reshard(tableName); err != nil {
		t.Fatal(err)
	}
	w.put(3, "a")
	for range 5 {
		info, err := r.Round(t.Context(), l.emit)
		if err != nil {
			t.Fatal(err)
		}
		if info.CaughtUp() {
			t.Fatal("caught up while children wait")
		}
	}
	if len(l) != 1 || !l[0].End || !slices.Equal(values(t, l.records()), []int{0, 1, 2}) {
		t.Fatalf("before the commit %+v was emitted", l)
	}
	c.commit(l...)
	info := w.catchUp(r, c, &l)
	if got := values(t, l.records()); !slices.Equal(got, []int{0, 1, 2, 3, 4, 5}) {
		t.Errorf("read %v", got)
	}
	if info.Count(Finished) != 1 || info.Count(Tip) != 2 {
		t.Errorf("shards %+v", info.Shards)
	}
}

func TestTheLastPageOfAClosedShardIsKept(t *testing.T) {
	w := newWorld(t, 1)
	c, l := newCheckpoint(), log{}
	w.put(5)
	if err := w.env.Reshard(tableName); err != nil {
		t.Fatal(err)
	}
	if _, err := w.reader(c, Options{}).Round(t.Context(), l.emit); err != nil {
		t.Fatal(err)
	}
	if len(l) != 1 || len(l[0].Records) != 5 || !l[0].End {
		t.Errorf("emitted %+v", l)
	}
}

func TestAReaderIsNotCaughtUpBeforeTheChildrenOfAnEndedShardAreRead(t *testing.T) {
	// The clock stands still, so no listing comes due: the shard's end must make one.
	w := newWorld(t, 2)
	c, l := newCheckpoint(), log{}
	r := w.reader(c, Options{})
	w.put(10)
	w.catchUp(r, c, &l)
	for range 3 {
		if err := w.env.Reshard(tableName); err != nil {
			t.Fatal(err)
		}
		w.put(10)
		w.catchUp(r, c, &l)
		w.wantAll(l)
	}
}

func TestAShardThatClosesWithoutRecordsStillEnds(t *testing.T) {
	w := newWorld(t, 2)
	c, l := newCheckpoint(), log{}
	if err := w.env.Reshard(tableName); err != nil {
		t.Fatal(err)
	}
	w.put(10)
	info := w.catchUp(w.reader(c, Options{}), c, &l)
	w.wantAll(l)
	if info.Count(Finished) != 2 {
		t.Errorf("shards %+v", info.Shards)
	}
}

func TestShardsThatSplitWhileTheyAreReadKeepTheOrderOfEachItem(t *testing.T) {
	w := newWorld(t, 3)
	c, l := newCheckpoint(), log{}
	r := w.reader(c, Options{PageLimit: 4})
	for i := range 6 {
		w.put(40, "a", "b", "c", "d", "e", "f", "g")
		if _, err := r.Round(t.Context(), l.emit); err != nil {
			t.Fatal(err)
		}
		c.commit(l...)
		if i%2 == 0 {
			if err := w.env.Reshard(tableName); err != nil {
				t.Fatal(err)
			}
		}
		w.clock.Advance(40 * time.Second)
	}
	w.catchUp(r, c, &l)
	w.wantAll(l)
	last := map[string]int{}
	for _, rec := range l.records() {
		id, v := rec.Keys["id"].(*types.AttributeValueMemberS).Value, values(t, []pipeline.Record{rec})[0]
		if before, ok := last[id]; ok && v < before {
			t.Fatalf("item %s: %d came after %d", id, v, before)
		}
		last[id] = v
	}
}

func TestANewReaderGoesOnFromWhatIsCommitted(t *testing.T) {
	w := newWorld(t, 2)
	c, l := newCheckpoint(), log{}
	w.put(30)
	w.catchUp(w.reader(c, Options{PageLimit: 4}), c, &l)
	if err := w.env.Reshard(tableName); err != nil {
		t.Fatal(err)
	}
	w.put(30)
	w.catchUp(w.reader(c, Options{PageLimit: 4}), c, &l)
	w.wantAll(l)
}

func TestResetReadsAgainWhatWasNotCommitted(t *testing.T) {
	w := newWorld(t, 2)
	c, l := newCheckpoint(), log{}
	r := w.reader(c, Options{PageLimit: 4})
	w.put(40)
	for range 3 {
		if _, err := r.Round(t.Context(), l.emit); err != nil {
			t.Fatal(err)
		}
	}
	c.commit(l[0])
	r.Reset()
	l = l[:1]
	w.catchUp(r, c, &l)
	w.wantAll(l)
}

func TestAPageIsEmittedAgainWhenEmitFailed(t *testing.T) {
	w := newWorld(t, 3)
	c, l := newCheckpoint(), log{}
	r := w.poller(c, Options{PageLimit: 4, Parallel: 3})
	w.put(40)
	broken, n := errors.New("broken"), 0
	for range 200 {
		info, err := r.Poll(t.Context(), func(b pipeline.Batch) error {
			if n++; n%2 == 0 {
				return broken
			}
			return l.emit(b)
		})
		if err != nil && !errors.Is(err, broken) {
			t.Fatal(err)
		}
		if err == nil && info.CaughtUp() {
			break
		}
	}
	w.wantAll(l)
}

func TestAnIteratorThatExpiredIsIssuedAgain(t *testing.T) {
	w := newWorld(t, 2)
	c, l := newCheckpoint(), log{}
	r := w.reader(c, Options{PageLimit: 4})
	w.put(40)
	for range 3 {
		if _, err := r.Round(t.Context(), l.emit); err != nil {
			t.Fatal(err)
		}
		w.clock.Advance(16 * time.Minute)
	}
	w.catchUp(r, c, &l)
	w.wantAll(l)
}

func TestAFirstReaderOfAnOldStreamBeginsWhereTheStreamDoes(t *testing.T) {
	w := newWorld(t, 2)
	c, l := newCheckpoint(), log{}
	w.put(20)
	w.clock.Advance(25 * time.Hour)
	first := w.next
	w.put(20)
	w.catchUp(w.reader(c, Options{}), c, &l)
	got := values(t, l.records())
	slices.Sort(got)
	if len(got) != 20 || got[0] != first {
		t.Errorf("read %v", got)
	}
}

func TestAnErrorOfTheCheckpointEndsTheRoundAndOwningGoesOn(t *testing.T) {
	w := newWorld(t, 4)
	c, l := newCheckpoint(), log{}
	r := w.reader(c, Options{})
	w.put(20)
	refused := errors.New("owned by another lane")
	n := 0
	c.fail = func(pipeline.ShardID) error {
		if n++; n == 3 {
			return refused
		}
		return nil
	}
	if _, err := r.Round(t.Context(), l.emit); !errors.Is(err, refused) {
		t.Fatalf("error %v", err)
	}
	w.catchUp(r, c, &l)
	w.wantAll(l)
	if len(c.owned) != 4 {
		t.Errorf("%d shards owned, each once", len(c.owned))
	}
}

func TestRunEndsWithADisabledStream(t *testing.T) {
	w := newWorld(t, 2)
	c, l := newCheckpoint(), log{}
	w.put(10)
	_, err := w.db.UpdateTable(t.Context(), &dynamodb.UpdateTableInput{TableName: aws.String(tableName),
		StreamSpecification: &dynamotypes.StreamSpecification{StreamEnabled: aws.Bool(false)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.reader(c, Options{Floor: time.Microsecond}).Run(t.Context(), l.emit); err != nil {
		t.Fatal(err)
	}
	w.wantAll(l)
	for id := range c.committed {
		if !slices.ContainsFunc(l, func(b pipeline.Batch) bool { return b.Shard == id && b.End }) {
			t.Errorf("shard %s did not end", id)
		}
	}
}

func TestRunReturnsTheErrorOfEmit(t *testing.T) {
	w := newWorld(t, 1)
	w.put(1)
	broken := errors.New("broken")
	err := w.reader(newCheckpoint(), Options{}).Run(t.Context(), func(pipeline.Batch) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}

func TestAStreamThatIsNotThereNeedsAPerson(t *testing.T) {
	w := newWorld(t, 1)
	w.arn += "9"
	_, err := w.reader(newCheckpoint(), Options{}).Round(t.Context(), func(pipeline.Batch) error { return nil })
	if _, ok := errors.AsType[*pipeline.PersonError](err); !ok || !strings.Contains(err.Error(), w.arn) {
		t.Errorf("error %v", err)
	}
}

func TestACancelledContextEndsARound(t *testing.T) {
	w := newWorld(t, 2)
	w.put(10)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := w.reader(newCheckpoint(), Options{}).Round(ctx, func(pipeline.Batch) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
