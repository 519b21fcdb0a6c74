//go:build integration

package main

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/firehose"
	fhtypes "github.com/aws/aws-sdk-go-v2/service/firehose/types"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/hot"
	"telemetrylake/pipeline/lake"
	"telemetrylake/schemas"
	"telemetrylake/testenv/containers"
)

// A hand writes items to the hot table of a bench.
type hand struct {
	*bench
	table    *string
	readings *hot.Readings
	keys     []string
}

func newHand(b *bench) *hand {
	b.t.Helper()
	c, err := schemas.Load("sensor_readings")
	if err != nil {
		b.t.Fatal(err)
	}
	h := &hand{bench: b, table: &c.Table, keys: []string{c.Keys.Partition.Attribute, c.Keys.Sort.Attribute}}
	if h.readings, err = hot.NewReadings(c); err != nil {
		b.t.Fatal(err)
	}
	return h
}

// item is the one item of a device, and its key.
func (h *hand) item(device, celsius string, expires time.Time) (item, key hot.Item) {
	h.t.Helper()
	item, err := h.readings.Item(hot.Reading{DeviceID: device, TakenAt: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Celsius: celsius, Humidity: "40.5"})
	if err != nil {
		h.t.Fatal(err)
	}
	item["expiresAt"] = &types.AttributeValueMemberN{Value: fmt.Sprint(expires.Unix())}
	key = hot.Item{}
	for _, k := range h.keys {
		key[k] = item[k]
	}
	return item, key
}

func (h *hand) put(device, celsius string, expires time.Time) (key hot.Item) {
	h.t.Helper()
	item, key := h.item(device, celsius, expires)
	if _, err := h.dynamodb.PutItem(h.t.Context(), &dynamodb.PutItemInput{TableName: h.table, Item: item}); err != nil {
		h.t.Fatal(err)
	}
	return key
}

// rows counts the lake's rows by device and the table's role, as "changes readings".
func (h *hand) rows() map[string]string {
	h.t.Helper()
	h.fetch()
	found := map[string][]string{}
	for _, role := range []schemas.Role{schemas.Changes, schemas.Quarantine, schemas.Readings, schemas.Tombstones} {
		table := loadTable(h.t, "sensor_readings", role)
		folder := filepath.Join(h.dir, "s3", lakeBucket, table.Name)
		if files, err := lakeFiles(folder); err != nil || len(files) == 0 {
			continue // a table without rows has no folder
		}
		for _, r := range readAlike(h.t, folder, table) {
			// What does not fit the contract has its keys only.
			column := "device_id"
			if role == schemas.Quarantine {
				column = "item_keys"
			}
			device := r.text(h.t, column)
			if _, after, ok := strings.Cut(device, "DEVICE#"); ok {
				device, _, _ = strings.Cut(after, "#")
			}
			found[device] = append(found[device], string(role))
		}
	}
	rows := map[string]string{}
	for device, roles := range found {
		rows[device] = strings.Join(roles, " ")
	}
	return rows
}

// What look-alikes put into a stream where AWS would put something else, and what becomes of it:
// the number of readings is right whatever they say, and what is not AWS's is in no reading.
func TestLookAlikesOwnRecords(t *testing.T) {
	t.Parallel()
	likeAWS := map[string]string{
		"repeated": "readings",                     // a put that changes nothing leaves no record
		"changed":  "changes readings",             // MODIFY
		"deleted":  "readings tombstones",          // a user's
		"added":    "readings",                     // by ADD in a transaction
		"expired":  "readings",                     // the removal by TTL is not the lake's
		"renewed":  "readings readings tombstones", // put, deleted, put again
	}
	differ := func(devices map[string]string) map[string]string {
		m := maps.Clone(likeAWS)
		maps.Copy(m, devices)
		return m
	}
	for _, tt := range []struct {
		kind    containers.Kind
		expires bool // expired items go
		want    map[string]string
	}{
		{containers.Embedded, true, likeAWS},
		{containers.MiniStack, true, likeAWS}, // it leaves no record of an expired item, which is the same to the lake
		// It has a transaction leave two INSERTs, the first with the keys alone, which fits no contract.
		{containers.Moto, false, differ(map[string]string{"repeated": "changes readings", "added": "quarantine readings"})},
	} {
		t.Run(string(tt.kind), func(t *testing.T) {
			t.Parallel()
			h := newHand(newBench(t, stand{landing: tt.kind}))
			later := time.Now().Add(24 * time.Hour)
			expired := h.put("expired", "20", time.Now())
			h.put("repeated", "20", later)
			h.put("repeated", "20", later)
			h.put("changed", "20", later)
			h.put("changed", "21", later)
			for _, device := range []string{"deleted", "renewed"} {
				key := h.put(device, "20", later)
				if _, err := h.dynamodb.DeleteItem(t.Context(), &dynamodb.DeleteItemInput{TableName: h.table, Key: key}); err != nil {
					t.Fatal(err)
				}
			}
			h.put("renewed", "20", later)
			h.addInTransaction("added", later)
			if tt.expires {
				until(t, "the expired item goes", func() bool {
					out, err := h.dynamodb.GetItem(t.Context(), &dynamodb.GetItemInput{TableName: h.table, Key: expired})
					if err != nil {
						t.Fatal(err)
					}
					return len(out.Item) == 0
				})
			}
			run := h.startRun("--until-drained")
			run.exits(exitOK)
			if got := h.rows(); !maps.Equal(got, tt.want) {
				t.Errorf("rows of the lake by device\n got %v\nwant %v", got, tt.want)
			}
		})
	}
}

// addInTransaction makes an item by an update with ADD.
func (h *hand) addInTransaction(device string, expires time.Time) {
	h.t.Helper()
	item, key := h.item(device, "20", expires)
	values := map[string]types.AttributeValue{":one": &types.AttributeValueMemberN{Value: "1"}}
	var sets []string
	for _, name := range slices.Sorted(maps.Keys(item)) {
		if !slices.Contains(h.keys, name) && name != "humidity" {
			values[":"+name] = item[name]
			sets = append(sets, name+" = :"+name)
		}
	}
	_, err := h.dynamodb.TransactWriteItems(h.t.Context(), &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{{Update: &types.Update{
		TableName: h.table, Key: key, ExpressionAttributeValues: values,
		UpdateExpression: aws.String("SET " + strings.Join(sets, ", ") + " ADD humidity :one"),
	}}}})
	if err != nil {
		h.t.Fatal(err)
	}
}

// landers are those that have a Firehose and an S3 of their own.
var landers = []containers.Kind{containers.Embedded, containers.LocalStack, containers.MiniStack, containers.Moto}

// Nothing in the lake is ever replaced, which only the server can see to.
func TestLookAlikesCreateAnObjectOnce(t *testing.T) {
	t.Parallel()
	for _, kind := range landers {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, stand{landing: kind, source: containers.Embedded})
			bucket := lake.NewBucket(b.s3, lakeBucket, "races/")
			for round := range 20 {
				key := fmt.Sprintf("%d.parquet", round)
				var created atomic.Int64
				var wg sync.WaitGroup
				for i := range 8 {
					wg.Go(func() {
						switch err := bucket.Create(t.Context(), key, []byte{byte(i)}); {
						case err == nil:
							created.Add(1)
						case !errors.Is(err, pipeline.ErrExists):
							t.Errorf("create %s: %v", key, err)
						}
					})
				}
				wg.Wait()
				if n := created.Load(); n != 1 {
					t.Fatalf("%d of 8 created %s", n, key)
				}
			}
		})
	}
}

// None of them applies such settings, so nothing would be damaged here; what they describe is
// refused as AWS's is.
func TestLookAlikesDeliveryStreamThatCompressesIsRefused(t *testing.T) {
	t.Parallel()
	for _, kind := range landers {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, stand{landing: kind, source: containers.Embedded})
			name := "compressing"
			_, err := b.firehose.CreateDeliveryStream(t.Context(), &firehose.CreateDeliveryStreamInput{
				DeliveryStreamName: &name, DeliveryStreamType: fhtypes.DeliveryStreamTypeDirectPut,
				ExtendedS3DestinationConfiguration: &fhtypes.ExtendedS3DestinationConfiguration{
					BucketARN: aws.String("arn:aws:s3:::" + stagingBucket), RoleARN: aws.String("arn:aws:iam::000000000000:role/delivery"),
					Prefix: aws.String(partsPrefix), CompressionFormat: fhtypes.CompressionFormatGzip,
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			run := b.startRun("--delivery-stream", name)
			run.exits(exitPerson)
			if got := run.stderr.String(); !strings.Contains(got, "compresses (GZIP)") || !strings.Contains(got, "UNCOMPRESSED") {
				t.Errorf("the run says %q", got)
			}
		})
	}
}
