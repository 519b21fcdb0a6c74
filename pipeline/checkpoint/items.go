package checkpoint

import (
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
)

// The stored items. Each begins with its key and the version of its format; the attribute
// names here are for ever. A gap's item, pk "stream#<ARN>" sk "gap#<shard>#<first missing>",
// has this form too; what opens and closes gaps is not here.

// contractItem: pk "contract#<hash>", sk "contract".
type contractItem struct {
	Text string `dynamodbav:"text"`
}

// streamItem: pk "stream#<ARN>", sk "side". Shards are created only under a check of the side.
type streamItem struct {
	Side string `dynamodbav:"side"` // run or lambda
}

// shardItem: pk "stream#<ARN>", sk "shard#<shard>".
type shardItem struct {
	Lane      string `dynamodbav:"lane"`                 // owner
	Seq       string `dynamodbav:"seq,omitempty"`        // last committed number
	End       bool   `dynamodbav:"end,omitempty"`        // committed to the shard's end
	Parent    string `dynamodbav:"parent,omitempty"`     // as listed when the shard was first seen
	TipAt     string `dynamodbav:"tip_at,omitempty"`     // RFC 3339: when it was last read to its tip
	StartMark string `dynamodbav:"start_mark,omitempty"` // RFC 3339: reading began at LATEST, at this time
}

// laneItem: pk "lane#<id>", sk "lane".
type laneItem struct {
	Incarnation string `dynamodbav:"inc"`
	Token       int64  `dynamodbav:"token"`
	Holder      string `dynamodbav:"holder"`            // random name of the process that has the token
	Next        int64  `dynamodbav:"next"`              // number of the next window
	Pending     int64  `dynamodbav:"pending,omitempty"` // number of the pending window
	Watermark   int64  `dynamodbav:"watermark"`         // every window up to it is folded
	Halted      string `dynamodbav:"halted,omitempty"`  // why no window may be begun until a person has looked
	Lease       string `dynamodbav:"lease,omitempty"`   // watched for change by a standby, never compared with a clock
}

// windowItem: pk "lane#<id>", sk "window#<incarnation>#<n, 20 digits>".
type windowItem struct {
	State    string `dynamodbav:"state"`
	Manifest string `dynamodbav:"manifest"` // JSON, pipeline.Manifest
}

// partItem: pk "window#<lane>#<incarnation>#<n>", sk "part#<i, 6 digits>". Either void, or the
// copy that the part is, or will be, in the lake with.
type partItem struct {
	Void        bool   `dynamodbav:"void,omitempty"`
	Key         string `dynamodbav:"key,omitempty"`
	ETag        string `dynamodbav:"etag,omitempty"`
	Offset      int64  `dynamodbav:"offset"`
	Name        string `dynamodbav:"name,omitempty"` // lake object
	Round       int    `dynamodbav:"round"`
	PublishedAt string `dynamodbav:"published_at,omitempty"` // RFC 3339
}

type key struct{ pk, sk string }

func contractKey(hash string) key { return key{"contract#" + hash, "contract"} }
func sideKey(stream string) key   { return key{"stream#" + stream, "side"} }
func shardKey(stream string, s pipeline.ShardID) key {
	return key{"stream#" + stream, "shard#" + string(s)}
}
func laneKey(l pipeline.LaneID) key { return key{"lane#" + string(l), "lane"} }
func windowKey(w pipeline.WindowID) key {
	return key{"lane#" + string(w.Lane), windowPrefix(w.Incarnation) + fmt.Sprintf("%020d", w.N)}
}
func windowPrefix(inc string) string { return "window#" + inc + "#" }
func partsKey(w pipeline.WindowID) string {
	return fmt.Sprintf("window#%s#%s#%d", w.Lane, w.Incarnation, w.N)
}
func partKey(p pipeline.PartID) key {
	return key{partsKey(p.Window), fmt.Sprintf("part#%06d", p.Index)}
}

func (k key) String() string { return k.pk + " " + k.sk }

func (k key) av() map[string]types.AttributeValue {
	return map[string]types.AttributeValue{"pk": str(k.pk), "sk": str(k.sk)}
}

func str(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func num[N int | int64](n N) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: fmt.Sprint(n)}
}

// encode returns v as an item under k.
func encode(k key, v any) (map[string]types.AttributeValue, error) {
	item, err := attributevalue.MarshalMap(v)
	if err != nil {
		return nil, fmt.Errorf("encode item %s: %w", k, err)
	}
	item["pk"], item["sk"], item["fmt"] = str(k.pk), str(k.sk), num(pipeline.FormatVersion)
	return item, nil
}

// decode reads an item into v. One of a newer format needs a person.
func decode(k key, item map[string]types.AttributeValue, v any) error {
	var f struct {
		Fmt int `dynamodbav:"fmt"`
	}
	if err := attributevalue.UnmarshalMap(item, &f); err != nil {
		return fmt.Errorf("decode item %s: %w", k, err)
	}
	switch {
	case f.Fmt > pipeline.FormatVersion:
		return pipeline.NeedPerson(fmt.Errorf("item %s has format %d, this binary knows %d", k, f.Fmt, pipeline.FormatVersion),
			"upgrade this binary to the version that runs elsewhere")
	case f.Fmt < 1:
		return pipeline.NeedPerson(fmt.Errorf("item %s has no format version", k),
			"it was not written by streamer; check that the checkpoint table is the right one")
	}
	if err := attributevalue.UnmarshalMap(item, v); err != nil {
		return fmt.Errorf("decode item %s: %w", k, err)
	}
	return nil
}

// claim returns the stored part as a claim.
func (p partItem) claim(id pipeline.PartID) pipeline.Claim {
	return pipeline.Claim{
		Part: id, Void: p.Void,
		Copy: pipeline.Copy{Key: p.Key, ETag: p.ETag, Offset: p.Offset},
		Name: p.Name, Round: p.Round, Published: p.PublishedAt != "",
	}
}

func newPartItem(c pipeline.Claim) partItem {
	return partItem{Void: c.Void, Key: c.Copy.Key, ETag: c.Copy.ETag, Offset: c.Copy.Offset, Name: c.Name, Round: c.Round}
}

// windowOf reads a window's id from its sort key.
func windowOf(lane pipeline.LaneID, sk string) (pipeline.WindowID, error) {
	f := strings.Split(sk, "#")
	w := pipeline.WindowID{Lane: lane}
	if len(f) != 3 {
		return w, fmt.Errorf("sort key %q names no window", sk)
	}
	w.Incarnation = f[1]
	if _, err := fmt.Sscanf(f[2], "%d", &w.N); err != nil {
		return w, fmt.Errorf("sort key %q names no window: %w", sk, err)
	}
	return w, nil
}
