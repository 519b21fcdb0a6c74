package testenv_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	st "github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"
)

func (w *world) enableTTL(t testing.TB, table string, enabled bool) {
	t.Helper()
	_, err := w.db.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{TableName: &table,
		TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: aws.String("expires_at"), Enabled: &enabled}})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSweepDeletesWhatExpired(t *testing.T) {
	w := open(t, oneShard)
	w.create(t, "things", withIndex("by-site", types.ProjectionTypeAll))
	at := func(d time.Duration) types.AttributeValue { return N(fmt.Sprint(start.Add(d).Unix())) }
	put := func(name string, v types.AttributeValue) {
		it := key("a", name)
		it["site"], it["at"] = S("s"), N("1")
		if v != nil {
			it["expires_at"] = v
		}
		w.put(t, "things", it)
	}
	put("before TTL was enabled", at(-time.Hour))
	w.enableTTL(t, "things", true)
	put("an hour ago", at(-time.Hour))
	put("with a fraction", N(fmt.Sprint(start.Add(-time.Hour).Unix())+".5"))
	put("this second", at(0))
	put("in an hour", at(time.Hour))
	put("six years ago", at(-6*365*24*time.Hour))
	put("in milliseconds", N(fmt.Sprint(start.Add(-time.Hour).UnixMilli())))
	put("a string", S(fmt.Sprint(start.Add(-time.Hour).Unix())))
	put("negative", N("-5"))
	put("without", nil)
	put("prolonged", at(-time.Hour))
	put("prolonged", at(2*time.Hour))
	if n := w.env.SweepTTL(); n != 3 {
		t.Errorf("swept %d items", n)
	}
	left := func() []string {
		keys, _ := w.all(t, &dynamodb.QueryInput{TableName: aws.String("things"), IndexName: aws.String("by-site"),
			KeyConditionExpression: aws.String("site = :s"), ExpressionAttributeValues: attrs{":s": S("s")}})
		return keys
	}
	if got := left(); len(got) != 8 {
		t.Errorf("left %q", got)
	}
	w.clock.Advance(time.Hour + time.Second)
	if n := w.env.SweepTTL(); n != 2 {
		t.Errorf("an hour later swept %d items", n)
	}
	if n := w.env.SweepTTL(); n != 0 {
		t.Errorf("swept %d items twice", n)
	}
	if _, err := w.db.DeleteItem(ctx, &dynamodb.DeleteItemInput{TableName: aws.String("things"), Key: key("a", "without")}); err != nil {
		t.Fatal(err)
	}
	it, err := w.iterator(w.streamARN(t, "things"), *w.shards(t, "things")[0].ShardId, st.ShardIteratorTypeTrimHorizon, "")
	if err != nil {
		t.Fatal(err)
	}
	records, _ := w.read(t, it)
	service := 0
	for _, r := range records {
		switch {
		case r.EventName != st.OperationTypeRemove || id(r) == "a/without":
			if r.UserIdentity != nil {
				t.Errorf("%s of %s has the identity %+v", r.EventName, id(r), r.UserIdentity)
			}
		default:
			service++
			if r.UserIdentity == nil || *r.UserIdentity.Type != "Service" || *r.UserIdentity.PrincipalId != "dynamodb.amazonaws.com" || r.Dynamodb.NewImage != nil || r.Dynamodb.OldImage != nil {
				t.Errorf("expiry of %s has the identity %+v", id(r), r.UserIdentity)
			}
		}
	}
	if service != 5 {
		t.Errorf("%d expiries in the stream", service)
	}
	w.enableTTL(t, "things", false)
	put("expired but TTL is off", at(-time.Hour))
	if n := w.env.SweepTTL(); n != 0 {
		t.Errorf("swept %d items without TTL", n)
	}
	out, err := w.db.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: aws.String("things")})
	if err != nil || out.TimeToLiveDescription.TimeToLiveStatus != types.TimeToLiveStatusDisabled {
		t.Errorf("%v, %v", out, err)
	}
}
