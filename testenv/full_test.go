package testenv

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
)

// fullDisk is a disk under the store that can be full. While the reserve is given up its
// bytes are there for the log, unless somebody has taken them.
type fullDisk struct {
	full, taken, noTables atomic.Bool
	refused               atomic.Int64 // writes of the log
}

func (f *fullDisk) options(o *Options) {
	o.fault = func(op, path string) error {
		none := fmt.Errorf("%s %s: %w", op, path, syscall.ENOSPC)
		switch {
		case isTable(path):
			if f.full.Load() || f.noTables.Load() {
				return none
			}
		case !f.full.Load():
		case strings.HasSuffix(path, "db-reserve"):
			return none
		default:
			_, err := os.Stat(o.Dir + "/db-reserve")
			if err == nil || f.taken.Load() {
				f.refused.Add(1)
				return none
			}
		}
		return nil
	}
}

// soon waits for what happens without a request, or for the next look at the disk.
func soon(t *testing.T, what string, done func() bool) {
	t.Helper()
	for range 2000 {
		if done() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("%s did not happen", what)
}

// wantFull says that a request was refused for a full disk in a way the SDK tries again.
func wantFull(t *testing.T, what string, err error) {
	t.Helper()
	e, ok := errors.AsType[smithy.APIError](err)
	if !ok || !strings.HasPrefix(e.ErrorCode(), "Internal") || !strings.Contains(err.Error(), "StatusCode: 500") || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("%s on a full disk: %v", what, err)
	}
}

func TestFullDiskRefusesWritesAndLosesNone(t *testing.T) {
	var disk fullDisk
	d := openDurable(t, disk.options)
	d.create(t)
	d.bucketAndStream(t)
	want := 0
	for range 20 {
		d.mustPut(t, "a", fmt.Sprint(want), nil)
		want++
	}
	disk.full.Store(true)
	d.mustPut(t, "a", fmt.Sprint(want), nil) // the write that finds the disk full ends on the reserve
	before := d.state(t)
	wantFull(t, "PutItem", d.put(t, "a", "refused", nil))
	wantFull(t, "PutRecord", d.send(t, "refused"))
	_, err := d.db.CreateTable(t.Context(), func() *dynamodb.CreateTableInput {
		in := thingsTable()
		in.TableName = aws.String("refused")
		return in
	}())
	wantFull(t, "CreateTable", err)
	_, err = d.db.UpdateTimeToLive(t.Context(), &dynamodb.UpdateTimeToLiveInput{TableName: aws.String("things"),
		TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: aws.String("expires_at"), Enabled: aws.Bool(false)}})
	wantFull(t, "UpdateTimeToLive", err)
	_, err = d.db.UpdateTable(t.Context(), &dynamodb.UpdateTableInput{TableName: aws.String("things"), DeletionProtectionEnabled: aws.Bool(true),
		StreamSpecification: &types.StreamSpecification{StreamEnabled: aws.Bool(false)}})
	wantFull(t, "UpdateTable", err)
	_, err = d.db.DeleteTable(t.Context(), &dynamodb.DeleteTableInput{TableName: aws.String("things")})
	wantFull(t, "DeleteTable", err)
	if err := d.Reshard("things"); !isFull(err) {
		t.Errorf("Reshard on a full disk: %v", err)
	}
	if after := d.state(t); after != before {
		t.Errorf("what was refused changed something; before:\n%s\nafter:\n%s", before, after)
	}

	disk.full.Store(false)
	soon(t, "going on with space again", func() bool { return d.put(t, "a", "after", nil) == nil })
	if err := d.send(t, "<after>"); err != nil {
		t.Error(err)
	}
	before = d.state(t)
	d = d.again(t)
	if after := d.state(t); after != before {
		t.Errorf("before the restart:\n%s\nafter it:\n%s", before, after)
	}
	if got := d.FirehoseStats()[testStream]; got.Records != 1 || got.Pending != 1 {
		t.Errorf("Firehose counts %+v, want the one record it acknowledged", got)
	}
}

func TestWriteWaitsWhenTheReserveIsTakenToo(t *testing.T) {
	var disk fullDisk
	d := openDurable(t, disk.options)
	d.create(t)
	disk.taken.Store(true)
	disk.full.Store(true)
	done := make(chan error)
	go func() { done <- d.put(t, "a", "1", nil) }()
	soon(t, "the log's write meeting the full disk a few times", func() bool { return disk.refused.Load() > 3 })
	select {
	case err := <-done:
		t.Fatalf("the write ended without space: %v", err)
	default:
	}
	disk.full.Store(false)
	if err := <-done; err != nil {
		t.Errorf("the write that had to wait: %v", err)
	}
	soon(t, "going on with space again", func() bool { return d.put(t, "a", "2", nil) == nil })
	if got := d.again(t).Env.db.tables["things"].items; got != 2 {
		t.Errorf("%d of 2 items are there after a restart", got)
	}
}

func TestTablesThatFindNoSpaceCloseTheStoreBeforeItStalls(t *testing.T) {
	var disk fullDisk
	d := openDurable(t, disk.options, func(o *Options) { o.CacheBytes = 1 })
	d.create(t)
	disk.noTables.Store(true)
	large := map[string]types.AttributeValue{"value": text(strings.Repeat("v", 100_000))}
	accepted := 0
	soon(t, "a refusal", func() bool {
		err := d.put(t, "a", fmt.Sprint(accepted), large)
		if err == nil {
			accepted++
			return false
		}
		wantFull(t, "PutItem", err)
		return true
	})
	disk.noTables.Store(false)
	soon(t, "going on with space again", func() bool { return d.put(t, "a", "after", nil) == nil })
	d = d.again(t)
	if got := d.Env.db.tables["things"].items; got != int64(accepted)+1 {
		t.Errorf("%d items are there, %d were accepted", got, accepted+1)
	}
	for i := range accepted {
		out, err := d.db.GetItem(t.Context(), &dynamodb.GetItemInput{TableName: aws.String("things"), Key: map[string]types.AttributeValue{"pk": text("a"), "sk": text(fmt.Sprint(i))}})
		if err != nil || out.Item == nil {
			t.Errorf("the accepted item %d: %v, %v", i, out, err)
		}
	}
}

func TestObjectDeliveredBeforeTheKillIsNotDeliveredAgain(t *testing.T) {
	var disk fullDisk
	d := openDurable(t, disk.options)
	d.bucketAndStream(t)
	if err := d.send(t, "<1>"); err != nil {
		t.Fatal(err)
	}
	// The reserve serves to store the object's name; that it was delivered is not stored.
	disk.full.Store(true)
	d.FlushFirehose()
	if got := strings.Join(bodies(t, d.objects), "|"); got != "<1>" {
		t.Fatalf("delivered %q", got)
	}
	if left, err := readSpace(d.store, string(spacePayload)); err != nil || len(left) != 1 {
		t.Fatalf("the store holds %q, %v: want the buffer that could not be forgotten", left, err)
	}
	disk.full.Store(false)
	d = d.again(t)
	head := func() *s3.HeadObjectOutput {
		out, err := d.objects.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: aws.String(testBucket), Key: aws.String(listKeys(t, d.objects, &s3.ListObjectsV2Input{})[0])})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	d.clock.Advance(time.Minute)
	d.FlushFirehose()
	if got := strings.Join(bodies(t, d.objects), "|"); got != "<1>" || !head().LastModified.Before(testTime.Add(time.Minute)) {
		t.Errorf("after a restart %q is there, of %v", got, head().LastModified)
	}
	if got := d.FirehoseStats()[testStream]; got != (FirehoseStats{Records: 1, Bytes: 3, Objects: 1}) {
		t.Errorf("counted %+v", got)
	}
}
