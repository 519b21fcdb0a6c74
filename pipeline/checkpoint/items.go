package checkpoint

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
)

// The stored items. Each begins with its key and the version of its format; the attribute
// names here are for ever. Times are RFC 3339, whole seconds, by the server's clock.

// contractItem: pk "contract#<hash>", sk "contract".
type contractItem struct {
	Text string `dynamodbav:"text"`
}

// streamItem: pk "stream#<ARN>", sk "side". Shards are created only under a check of the side.
type streamItem struct {
	Side string `dynamodbav:"side"` // run or lambda
}

func (it streamItem) check() error {
	if !Side(it.Side).valid() && Side(it.Side) != Rebuilding {
		return fmt.Errorf("its side is %q", it.Side)
	}
	return nil
}

// shardItem: pk "stream#<ARN>", sk "shard#<shard>".
type shardItem struct {
	Lane      string `dynamodbav:"lane"`                  // owner
	Seq       string `dynamodbav:"seq,omitempty"`         // last committed number
	End       bool   `dynamodbav:"end,omitempty"`         // committed to the shard's end
	Parent    string `dynamodbav:"parent,omitempty"`      // as listed when the shard was first seen
	Created   string `dynamodbav:"created,omitempty"`     // creation time of the last committed record
	TipAt     string `dynamodbav:"tip_at,omitempty"`      // when it was last read to its tip
	StartMark string `dynamodbav:"start_mark,omitempty"`  // reading began at LATEST, at this time
	MetAt     string `dynamodbav:"met_at,omitempty"`      // when it was first listed
	AwayAt    string `dynamodbav:"away_at,omitempty"`     // it came while nobody read, which was since then
	Orphan    bool   `dynamodbav:"orphan,omitempty"`      // its parent came and went in that time
	Unlisted  string `dynamodbav:"unlisted_at,omitempty"` // since when no complete listing names it; it is finished
}

func (it shardItem) check() error {
	if !pipeline.LaneID(it.Lane).Valid() {
		return fmt.Errorf("its lane is %q", it.Lane)
	}
	if strings.Trim(it.Seq, "0123456789") != "" {
		return fmt.Errorf("its position %q is no number", it.Seq)
	}
	return checkTimes(it.Created, it.TipAt, it.StartMark, it.MetAt, it.AwayAt, it.Unlisted)
}

func (it shardItem) position() pipeline.Position {
	return pipeline.Position{
		Seq: pipeline.SequenceNumber(it.Seq), End: it.End,
		Created: unstamp(it.Created), TipAt: unstamp(it.TipAt), StartAt: unstamp(it.StartMark), MetAt: unstamp(it.MetAt),
		Parent: pipeline.ShardID(it.Parent), AwayAt: unstamp(it.AwayAt), Orphan: it.Orphan,
	}
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
	Lease       int64  `dynamodbav:"lease,omitempty"`   // watched for change by a standby, never compared with a clock; none: nobody holds it
	Host        string `dynamodbav:"host,omitempty"`    // where the holder runs, for people
	Moved       string `dynamodbav:"moved,omitempty"`   // the side its shards are moved to: no window may be begun
	Stream      string `dynamodbav:"arn,omitempty"`     // ARN of the stream that its last committed window is of
	Void        string `dynamodbav:"void,omitempty"`    // windows up to the watermark that were given up: 3,7-9
}

func (it laneItem) check() error {
	switch {
	case it.Incarnation == "":
		return errors.New("it has no incarnation")
	case it.Token < 1 || it.Next < 1 || it.Watermark < 0 || it.Watermark >= it.Next:
		return fmt.Errorf("its token is %d, its next window %d, its watermark %d", it.Token, it.Next, it.Watermark)
	case it.Pending != 0 && it.Pending != it.Next:
		return fmt.Errorf("its pending window is %d and its next %d", it.Pending, it.Next)
	}
	_, err := parseNumbers(it.Void)
	return err
}

// incarnationItem: pk "lane#<id>", sk "incarnation#<incarnation>". What is left of an earlier life
// of the lane: its numbers mean nothing in a later one.
type incarnationItem struct {
	Watermark int64  `dynamodbav:"watermark"` // every window up to it is folded, unless it has an item
	Void      string `dynamodbav:"void,omitempty"`
	// Windows up to the watermark of which nothing is known: the item was made from what was found
	// in the lake and in staging.
	Unknown string `dynamodbav:"unknown,omitempty"`
}

// maxUnknownRuns keeps an item within the 400 KB that the service allows.
const maxUnknownRuns = 8000

func (it incarnationItem) check() error {
	if it.Watermark < 0 {
		return fmt.Errorf("its watermark is %d", it.Watermark)
	}
	_, err := parseNumbers(it.Unknown)
	if err == nil {
		_, err = parseNumbers(it.Void)
	}
	return err
}

// windowItem: pk "lane#<id>", sk "window#<incarnation>#<n, 20 digits>".
type windowItem struct {
	State    string `dynamodbav:"state"`
	Manifest string `dynamodbav:"manifest"` // JSON, pipeline.Manifest

	CommittedAt string `dynamodbav:"committed_at,omitempty"`
	LandedAt    string `dynamodbav:"landed_at,omitempty"` // when its parts were last landed, not earlier than that landing
	Landings    int    `dynamodbav:"landings,omitempty"`  // again, after its commit
	Gaps        bool   `dynamodbav:"gaps,omitempty"`      // gaps were opened of its records
}

func (it windowItem) check() error {
	switch pipeline.WindowState(it.State) {
	case pipeline.WindowPending, pipeline.WindowCommitted, pipeline.WindowSealed, pipeline.WindowVoid:
	default:
		return fmt.Errorf("its state is %q", it.State)
	}
	return checkTimes(it.CommittedAt, it.LandedAt)
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
	PublishedAt string `dynamodbav:"published_at,omitempty"`
}

func (p partItem) check() error {
	if !p.Void && (p.Key == "" || p.Name == "" || p.Offset < 0 || p.Round < 0) {
		return fmt.Errorf("it is not void and names no copy: key %q, offset %d, name %q, round %d", p.Key, p.Offset, p.Name, p.Round)
	}
	return nil
}

// gapItem: pk "stream#<ARN>", sk "gap#<shard>#<after>#<tail>". The tail counts gaps behind one
// position, or names the window that took the records: <incarnation>-<n>.
type gapItem struct {
	State    string `dynamodbav:"state"`
	Cause    string `dynamodbav:"cause"`
	Shard    string `dynamodbav:"shard"`
	Lane     string `dynamodbav:"lane,omitempty"`
	After    string `dynamodbav:"after,omitempty"`
	Before   string `dynamodbav:"before,omitempty"`
	First    string `dynamodbav:"first,omitempty"`
	Last     string `dynamodbav:"last,omitempty"`
	From     string `dynamodbav:"from,omitempty"`
	To       string `dynamodbav:"to,omitempty"`
	Window   string `dynamodbav:"window,omitempty"` // lane/incarnation/n
	Detected string `dynamodbav:"detected"`
	Evidence string `dynamodbav:"evidence,omitempty"`
	Repair   string `dynamodbav:"repair,omitempty"` // random name of the repair that has it, or closed it
}

func (it gapItem) check() error {
	switch pipeline.GapState(it.State) {
	case pipeline.GapOpen, pipeline.GapRepairing, pipeline.GapClosed:
	default:
		return fmt.Errorf("its state is %q", it.State)
	}
	if it.Shard == "" || it.Cause == "" {
		return fmt.Errorf("its shard is %q, its cause %q", it.Shard, it.Cause)
	}
	if it.Window != "" {
		if _, err := pipeline.ParseWindowID(it.Window); err != nil {
			return err
		}
	}
	return checkTimes(it.From, it.To, it.Detected)
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
func incarnationKey(l pipeline.LaneID, inc string) key {
	return key{"lane#" + string(l), "incarnation#" + inc}
}
func gapKey(stream, id string) key { return key{"stream#" + stream, "gap#" + id} }
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
		return damaged(k, err)
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
		return damaged(k, err)
	}
	if v, ok := v.(interface{ check() error }); ok {
		if err := v.check(); err != nil {
			return damaged(k, err)
		}
	}
	return nil
}

func damaged(k key, err error) error {
	return pipeline.NeedPerson(fmt.Errorf("item %s is damaged: %w", k, err),
		"restore the checkpoint table, or rebuild the lane's positions from the lake")
}

// stamp is how a time is stored; unstamp reads one that was checked, zero for "".
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func unstamp(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}

func checkTimes(times ...string) error {
	for _, s := range times {
		if _, err := time.Parse(time.RFC3339, s); s != "" && err != nil {
			return fmt.Errorf("%q is no time", s)
		}
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
	n, err := strconv.ParseInt(f[2], 10, 64)
	if err != nil || n < 1 {
		return w, fmt.Errorf("sort key %q names no window", sk)
	}
	w.N = n
	return w, nil
}
