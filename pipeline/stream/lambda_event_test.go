package stream

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
)

// sent reads an event as AWS sends it.
func sent(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "lambda", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestAnEventKeepsEveryTypeExactly(t *testing.T) {
	ev, err := ParseEvent(sent(t, "types.json"))
	if err != nil {
		t.Fatal(err)
	}
	key := &types.AttributeValueMemberB{Value: []byte{0, 1, 42, 65}}
	want := []pipeline.Record{{
		Seq: "4421584500000000017450439091", Op: types.OperationTypeModify, Created: time.Date(2026, 11, 3, 8, 0, 0, 0, time.UTC),
		Keys: map[string]types.AttributeValue{"pk": key},
		New: map[string]types.AttributeValue{
			"pk": key, "s": &types.AttributeValueMemberS{}, "n": &types.AttributeValueMemberN{Value: strings.Repeat("9", 38)},
			"small": &types.AttributeValueMemberN{Value: "1E-130"}, "yes": &types.AttributeValueMemberBOOL{Value: true},
			"null": &types.AttributeValueMemberNULL{Value: true}, "ss": &types.AttributeValueMemberSS{Value: []string{"a", "b"}},
			"ns": &types.AttributeValueMemberNS{Value: []string{"1556893286484340854", "9007199254740993"}},
			"bs": &types.AttributeValueMemberBS{Value: [][]byte{{0, 1, 42, 65}, {}}},
			"l": &types.AttributeValueMemberL{Value: []types.AttributeValue{
				&types.AttributeValueMemberN{Value: "1"}, &types.AttributeValueMemberS{Value: "a"},
				&types.AttributeValueMemberM{Value: map[string]types.AttributeValue{"b": &types.AttributeValueMemberN{Value: "2"}}},
				&types.AttributeValueMemberNULL{Value: true}, &types.AttributeValueMemberBOOL{}, &types.AttributeValueMemberL{Value: []types.AttributeValue{}},
			}},
			"m": &types.AttributeValueMemberM{Value: map[string]types.AttributeValue{}},
		},
	}}
	if !reflect.DeepEqual(ev.Records, want) {
		t.Errorf("records %+v\nwant %+v", ev.Records, want)
	}
	if ev.Stream != "arn:aws:dynamodb:us-east-1:000000000000:table/t/stream/2026-11-03T07:00:00.000" || ev.Bytes != 300 {
		t.Errorf("stream %s, %d bytes", ev.Stream, ev.Bytes)
	}
}

func TestAnEventTellsRemovalsByTTLFromOthers(t *testing.T) {
	ev, err := ParseEvent(sent(t, "removals.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(ev.Records) != 2 || !ev.Records[0].Expired || ev.Records[1].Expired || ev.Records[1].New != nil {
		t.Errorf("records %+v", ev.Records)
	}
	for pos, want := range map[pipeline.SequenceNumber]pipeline.SequenceNumber{"": "111", "110": "111", "111": "222", "99": "111", "222": "", "1000": ""} {
		if got := ev.Next(pipeline.Position{Seq: pos}); got != want {
			t.Errorf("behind %q comes %q, want %q", pos, got, want)
		}
	}
	mark := pipeline.Position{StartAt: ev.Records[1].Created}
	if got := ev.Next(mark); got != "222" {
		t.Errorf("behind the start mark comes %q, want 222", got)
	}
}

func TestAnEventThatIsNoneIsRefused(t *testing.T) {
	good := string(sent(t, "removals.json"))
	for name, c := range map[string]struct{ old, new, want string }{
		"no JSON":        {"{", "", "read event"},
		"out of order":   {`"SequenceNumber": "222"`, `"SequenceNumber": "33"`, "ParallelizationFactor"},
		"twice the same": {`"SequenceNumber": "222"`, `"SequenceNumber": "111"`, "ParallelizationFactor"},
		"another stream": {"\"222\", \"SizeBytes\": 26, \"StreamViewType\": \"NEW_IMAGE\"\n      },\n      \"eventSourceARN\": \"arn:aws",
			"\"222\", \"SizeBytes\": 26, \"StreamViewType\": \"NEW_IMAGE\"\n      },\n      \"eventSourceARN\": \"arn:other", "its records are of"},
		"no id":          {`"eventID": "2"`, `"eventID": ""`, "no eventID"},
		"no number":      {`"SequenceNumber": "222"`, `"SequenceNumber": ""`, "no sequence number"},
		"no keys":        {`"Keys": {"pk": {"S": "b"}, "sk": {"N": "2"}}`, `"Keys": {}`, "no keys"},
		"two types":      {`{"S": "b"}`, `{"S": "b", "N": "1"}`, "one type"},
		"no type":        {`{"S": "b"}`, `{}`, "one type"},
		"no time":        {`"ApproximateCreationDateTime": 1793692801, `, ``, "no creation time"},
		"no such time":   {`1793692801`, `"soon"`, "no number of seconds"},
		"no such number": {`"SequenceNumber": "222"`, `"SequenceNumber": "2x2"`, "2x2"},
		"an unknown event": {`"REMOVE", "eventVersion": "1.1", "eventSource": "aws:dynamodb", "awsRegion": "us-east-1",
      "dynamodb"`, `"TRUNCATE", "dynamodb"`, "unknown event name"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(good, c.old, c.new, 1)
			if text == good {
				t.Fatalf("%q is not in the event", c.old)
			}
			if _, err := ParseEvent([]byte(text)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one that says %q", err, c.want)
			}
		})
	}
}

func TestAnOnFailureMessageNamesWhatWasGivenUp(t *testing.T) {
	d, err := ParseDiscarded(sent(t, "discarded.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := &Discarded{
		Stream: "arn:aws:dynamodb:us-east-1:000000000000:table/t/stream/2026-11-03T07:00:00.000", Shard: "shardId-00000001793692800184-864758bb",
		First: "800000000003126276362", Last: "800000000003126276399", Records: 12, Condition: "RetryAttemptsExhausted",
		From: time.Date(2026, 11, 3, 8, 0, 4, 0, time.UTC), To: time.Date(2026, 11, 3, 8, 0, 9, 0, time.UTC),
	}
	if !reflect.DeepEqual(d, want) {
		t.Errorf("%+v, want %+v", d, want)
	}
	for _, text := range []string{`{`, `{}`, `{"DDBStreamBatchInfo":{"shardId":"s"}}`,
		strings.Replace(string(sent(t, "discarded.json")), "800000000003126276399", "8", 1)} {
		if _, err := ParseDiscarded([]byte(text)); err == nil {
			t.Errorf("%s is taken for a message", text)
		}
	}
}

// FuzzEvent: whatever comes is an event in order, or an error.
func FuzzEvent(f *testing.F) {
	for _, name := range []string{"insert.json", "removals.json", "types.json", "discarded.json"} {
		f.Add(sent(f, name))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if d, err := ParseDiscarded(text); err == nil && (d.Shard == "" || d.Last.Compare(d.First) < 0) {
			t.Errorf("message %+v", d)
		}
		ev, err := ParseEvent(text)
		if err != nil {
			return
		}
		for i, r := range ev.Records {
			if r.Seq == "" || len(r.Keys) == 0 || r.Created.IsZero() || i > 0 && r.Seq.Compare(ev.Records[i-1].Seq) <= 0 {
				t.Errorf("record %+v", r)
			}
		}
	})
}
