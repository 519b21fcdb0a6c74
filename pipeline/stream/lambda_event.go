package stream

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
)

// An Event is what an event source mapping hands to a function: records of one shard, in
// order. It does not say of which shard.
type Event struct {
	Stream  string            // ARN
	Records []pipeline.Record // their Shard is ""
	Bytes   int               // their size as the service counts it

	ids []string // eventID of each record
}

// eventJSON is an event as AWS sends it: Lambda's developer guide, "Using AWS Lambda with
// Amazon DynamoDB". Its records are those of the stream, but for lower-case names.
type eventJSON struct {
	Records []struct {
		EventID   string `json:"eventID"`
		EventName string `json:"eventName"`
		SourceARN string `json:"eventSourceARN"`
		Identity  *struct {
			Type        string `json:"type"`
			PrincipalID string `json:"principalId"`
		} `json:"userIdentity"`
		Change struct {
			Created  epochSeconds         `json:"ApproximateCreationDateTime"`
			Keys     map[string]valueJSON `json:"Keys"`
			NewImage map[string]valueJSON `json:"NewImage"`
			OldImage map[string]valueJSON `json:"OldImage"`
			Sequence string               `json:"SequenceNumber"`
			Size     int64                `json:"SizeBytes"`
		} `json:"dynamodb"`
	} `json:"Records"`
}

// ParseEvent reads an event of a DynamoDB event source mapping. It refuses one whose records
// are not of one stream or not in order.
func ParseEvent(text []byte) (*Event, error) {
	var in eventJSON
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, fmt.Errorf("read event: %w", err)
	}
	ev := &Event{}
	for i, r := range in.Records {
		if r.EventID == "" || r.SourceARN == "" {
			return nil, fmt.Errorf("read event: record %d has no eventID or no eventSourceARN", i)
		}
		if ev.Stream == "" {
			ev.Stream = r.SourceARN
		}
		if r.SourceARN != ev.Stream {
			return nil, fmt.Errorf("read event: its records are of %s and of %s", ev.Stream, r.SourceARN)
		}
		rec := types.Record{EventName: types.OperationType(r.EventName), Dynamodb: &types.StreamRecord{
			SequenceNumber: &r.Change.Sequence, SizeBytes: &r.Change.Size,
		}}
		if !r.Change.Created.IsZero() {
			rec.Dynamodb.ApproximateCreationDateTime = &r.Change.Created.Time
		}
		if r.Identity != nil {
			rec.UserIdentity = &types.Identity{Type: &r.Identity.Type, PrincipalId: &r.Identity.PrincipalID}
		}
		var err error
		if rec.Dynamodb.Keys, err = attributeValues(r.Change.Keys); err == nil {
			rec.Dynamodb.NewImage, err = attributeValues(r.Change.NewImage)
		}
		if err == nil {
			rec.Dynamodb.OldImage, err = attributeValues(r.Change.OldImage)
		}
		if err != nil {
			return nil, fmt.Errorf("read event: record %s: %w", r.Change.Sequence, err)
		}
		c, size, err := convertRecord("", &rec)
		if err != nil {
			return nil, fmt.Errorf("read event: %w", err)
		}
		if n := len(ev.Records); n > 0 && c.Seq.Compare(ev.Records[n-1].Seq) <= 0 {
			return nil, pipeline.NeedPerson(fmt.Errorf("read event: record %s comes after %s", c.Seq, ev.Records[n-1].Seq),
				"set the mapping's ParallelizationFactor to 1: only then its events keep the order of their shard")
		}
		ev.Records = append(ev.Records, c)
		ev.ids = append(ev.ids, r.EventID)
		ev.Bytes += size
	}
	return ev, nil
}

func (e *Event) first() pipeline.SequenceNumber { return e.Records[0].Seq }

func (e *Event) last() pipeline.SequenceNumber { return e.Records[len(e.Records)-1].Seq }

// Next returns the number of the event's first record that a position leaves to be taken; "" if
// none is. Records before a start mark are not wanted.
func (e *Event) Next(pos pipeline.Position) pipeline.SequenceNumber {
	if i := e.behind(pos); i < len(e.Records) {
		return e.Records[i].Seq
	}
	return ""
}

// behind counts the first records that a position covers.
func (e *Event) behind(pos pipeline.Position) int {
	i := 0
	for i < len(e.Records) && (e.Records[i].Seq.Compare(pos.Seq) <= 0 || pos.Seq == "" && e.Records[i].Created.Before(pos.StartAt)) {
		i++
	}
	return i
}

// epochSeconds is a creation time: a number of seconds, in some of AWS's examples in quotes or
// with a fraction. The stream's are whole seconds, rounded down.
type epochSeconds struct{ time.Time }

func (e *epochSeconds) UnmarshalJSON(b []byte) error {
	text := strings.Trim(string(b), `"`)
	if text == "null" || text == "" {
		return nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.Abs(f) > 1<<40 {
		return fmt.Errorf("creation time %s is no number of seconds", b)
	}
	e.Time = time.Unix(int64(math.Floor(f)), 0).UTC()
	return nil
}

// valueJSON is an attribute value in DynamoDB's JSON. Numbers stay text.
type valueJSON struct {
	S    *string               `json:"S"`
	N    *string               `json:"N"`
	B    *[]byte               `json:"B"`
	BOOL *bool                 `json:"BOOL"`
	NULL *bool                 `json:"NULL"`
	M    *map[string]valueJSON `json:"M"`
	L    *[]valueJSON          `json:"L"`
	SS   *[]string             `json:"SS"`
	NS   *[]string             `json:"NS"`
	BS   *[][]byte             `json:"BS"`
}

func attributeValues(in map[string]valueJSON) (map[string]types.AttributeValue, error) {
	if in == nil {
		return nil, nil
	}
	out := make(map[string]types.AttributeValue, len(in))
	for name, v := range in {
		a, err := v.attributeValue()
		if err != nil {
			return nil, fmt.Errorf("attribute %q: %w", name, err)
		}
		out[name] = a
	}
	return out, nil
}

func (v valueJSON) attributeValue() (types.AttributeValue, error) {
	var all []types.AttributeValue
	if v.S != nil {
		all = append(all, &types.AttributeValueMemberS{Value: *v.S})
	}
	if v.N != nil {
		all = append(all, &types.AttributeValueMemberN{Value: *v.N})
	}
	if v.B != nil {
		all = append(all, &types.AttributeValueMemberB{Value: *v.B})
	}
	if v.BOOL != nil {
		all = append(all, &types.AttributeValueMemberBOOL{Value: *v.BOOL})
	}
	if v.NULL != nil {
		all = append(all, &types.AttributeValueMemberNULL{Value: *v.NULL})
	}
	if v.SS != nil {
		all = append(all, &types.AttributeValueMemberSS{Value: *v.SS})
	}
	if v.NS != nil {
		all = append(all, &types.AttributeValueMemberNS{Value: *v.NS})
	}
	if v.BS != nil {
		all = append(all, &types.AttributeValueMemberBS{Value: *v.BS})
	}
	if v.M != nil {
		m, err := attributeValues(*v.M)
		if err != nil {
			return nil, err
		}
		all = append(all, &types.AttributeValueMemberM{Value: m})
	}
	if v.L != nil {
		l := make([]types.AttributeValue, len(*v.L))
		for i, e := range *v.L {
			a, err := e.attributeValue()
			if err != nil {
				return nil, fmt.Errorf("[%d]: %w", i, err)
			}
			l[i] = a
		}
		all = append(all, &types.AttributeValueMemberL{Value: l})
	}
	if len(all) != 1 {
		return nil, errors.New("it is not a value of one type")
	}
	return all[0], nil
}

// A Discarded is what a mapping tells its on-failure destination: records that it gave up.
// It names them and does not hold them.
type Discarded struct {
	Stream      string // ARN
	Shard       pipeline.ShardID
	First, Last pipeline.SequenceNumber
	From, To    time.Time // approximate arrival of the first and of the last; zero if unknown
	Records     int
	Condition   string // why, for instance RetryAttemptsExhausted or RecordAgeExceeded
}

// ParseDiscarded reads the message, as it is in the body of an SQS message.
func ParseDiscarded(text []byte) (*Discarded, error) {
	var in struct {
		Request struct {
			Condition string `json:"condition"`
		} `json:"requestContext"`
		Batch *struct {
			Shard  string    `json:"shardId"`
			First  string    `json:"startSequenceNumber"`
			Last   string    `json:"endSequenceNumber"`
			From   time.Time `json:"approximateArrivalOfFirstRecord"`
			To     time.Time `json:"approximateArrivalOfLastRecord"`
			Size   int       `json:"batchSize"`
			Stream string    `json:"streamArn"`
		} `json:"DDBStreamBatchInfo"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, fmt.Errorf("read on-failure message: %w", err)
	}
	b := in.Batch
	if b == nil || b.Shard == "" || b.First == "" || b.Last == "" || b.Stream == "" {
		return nil, errors.New("read on-failure message: it names no records of a DynamoDB stream")
	}
	d := &Discarded{
		Stream: b.Stream, Shard: pipeline.ShardID(b.Shard), First: pipeline.SequenceNumber(b.First), Last: pipeline.SequenceNumber(b.Last),
		From: b.From.UTC(), To: b.To.UTC(), Records: b.Size, Condition: in.Request.Condition,
	}
	if d.Last.Compare(d.First) < 0 {
		return nil, fmt.Errorf("read on-failure message: its last record %s comes before its first %s", d.Last, d.First)
	}
	return d, nil
}
