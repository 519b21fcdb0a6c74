package columnar

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"
)

func TestItemsReadAsTheCommandLinePrintsThem(t *testing.T) {
	const text = `{"S":{"S":"a\"\\<&>é\n"},"b":{"B":"AAEC/w=="},"bs":{"BS":["AA==","AQ=="]},"deep":{"M":{"l":{"L":[{"N":"1"},{"L":[]},{"M":{}},{"NULL":true}]}}},` +
		`"empty":{"S":""},"n":{"N":"1556893286484340854"},"no":{"BOOL":false},"ns":{"NS":["-1","2","10","1E2"]},"null":{"NULL":true},"ss":{"SS":["a","b"]},"yes":{"BOOL":true},"ü":{"N":"0.10"}}`
	got, err := appendItemJSON(nil, parseItem(t, []byte(text)))
	if err != nil || string(got) != text {
		t.Errorf("got  %s (%v)\nwant %s", got, err, text)
	}
}

func TestSetsAreWrittenInOneOrder(t *testing.T) {
	a := item{"n": &types.AttributeValueMemberNS{Value: []string{"10", "9", "-1"}}, "s": &types.AttributeValueMemberSS{Value: []string{"b", "a"}}, "b": &types.AttributeValueMemberBS{Value: [][]byte{{2}, {1}}}}
	const want = `{"b":{"BS":["AQ==","Ag=="]},"n":{"NS":["-1","9","10"]},"s":{"SS":["a","b"]}}`
	got, err := appendItemJSON(nil, a)
	if err != nil || string(got) != want {
		t.Errorf("got %s (%v), want %s", got, err, want)
	}
	if n := a["n"].(*types.AttributeValueMemberNS).Value; n[0] != "10" {
		t.Errorf("the record's own set was sorted: %v", n)
	}
}

func TestUnknownValuesAreAnError(t *testing.T) {
	for _, v := range []types.AttributeValue{nil, &types.UnknownUnionMember{Tag: "X"}, &types.AttributeValueMemberL{Value: []types.AttributeValue{nil}}} {
		if got, err := appendItemJSON(nil, item{"a": M(item{"b": v})}); err == nil {
			t.Errorf("%#v is written as %s", v, got)
		}
	}
}
