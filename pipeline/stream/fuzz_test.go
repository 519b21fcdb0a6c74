package stream

import (
	"errors"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
)

// FuzzRecord reads a page whose records are any text, as the service's answer. Whatever it is, it
// is refused in one error, or gives records that keep every promise the rest relies on.
func FuzzRecord(f *testing.F) {
	for _, seed := range []string{
		`{"eventName":"INSERT","dynamodb":{"ApproximateCreationDateTime":1772438400,"Keys":{"id":{"S":"k"}},"NewImage":{"v":{"N":"1"}},"SequenceNumber":"100000000000000000001","SizeBytes":26}}`,
		`{"eventName":"MODIFY","dynamodb":{"ApproximateCreationDateTime":1.772438400123E9,"Keys":{"id":{"B":"AA=="}},"NewImage":{"v":{"L":[{"NULL":true},{"M":{"a":{"NS":["1","2"]}}}]}},"SequenceNumber":"49645426545634832904236178484873862519466943187021414402"}}`,
		`{"eventName":"REMOVE","userIdentity":{"Type":"Service","PrincipalId":"dynamodb.amazonaws.com"},"dynamodb":{"ApproximateCreationDateTime":0,"Keys":{"id":{"S":"k"}},"OldImage":{},"SequenceNumber":"1"}}`,
		`{"eventName":"REMOVE","dynamodb":{"ApproximateCreationDateTime":-1,"Keys":{"id":{"S":"k"}},"NewImage":{"v":{"N":"1"}},"SequenceNumber":"000"}}`,
		`{"eventName":"INSERT","dynamodb":{"ApproximateCreationDateTime":1,"Keys":{"id":{}},"NewImage":{"id":null},"SequenceNumber":"2"}},{"eventName":"INSERT","dynamodb":{"ApproximateCreationDateTime":1,"Keys":{"id":{"S":""}},"NewImage":{},"SequenceNumber":"10"}}`,
		`{"eventName":"INSERT","dynamodb":{"ApproximateCreationDateTime":1,"Keys":{"id":{"S":"k"}},"NewImage":{},"SequenceNumber":"٣"}}`,
		`{"eventName":"INSERT","dynamodb":null}`, `null`, `{}`, ``, `[]`, `{"dynamodb":{"SequenceNumber":"-5"}}`, `{"eventName":"INSERT","dynamodb":{"Keys":[]}}`,
	} {
		f.Add(seed)
	}
	s := &stub{shards: []*stubShard{{id: "a", pages: [][]int{{1}}, open: true}}}
	r := s.reader(newCheckpoint(), Options{})
	it := "a|0"
	f.Fuzz(func(t *testing.T, text string) {
		s.page = &text
		p := r.getRecords(t.Context(), "a", it, "")
		if p.err != nil {
			if person, ok := errors.AsType[*pipeline.PersonError](p.err); ok && person.Do == "" {
				t.Errorf("%v says nothing to do", p.err)
			}
			return
		}
		if len(p.batch.Records) != p.count {
			t.Fatalf("%d records of %d", len(p.batch.Records), p.count)
		}
		last := pipeline.SequenceNumber("")
		for _, rec := range p.batch.Records {
			switch {
			case rec.Shard != "a", len(rec.Keys) == 0, rec.Seq == "", strings.Trim(string(rec.Seq), "0123456789") != "", rec.Seq.Compare(last) <= 0:
				t.Fatalf("record %+v after %q", rec, last)
			case rec.Created.Nanosecond() != 0 || rec.Created.Location().String() != "UTC":
				t.Fatalf("created %v", rec.Created)
			case (rec.Op == types.OperationTypeRemove) != (rec.New == nil), rec.Expired && rec.Op != types.OperationTypeRemove:
				t.Fatalf("record %+v", rec)
			}
			last = rec.Seq
		}
	})
}
