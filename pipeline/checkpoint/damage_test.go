package checkpoint

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/pipelinetest"
)

// A damaged item stops what reads it, with the item's name: nothing is concluded from what is left.
func TestADamagedItemNeedsAPersonAndIsNamed(t *testing.T) {
	type seen struct {
		s   *Store
		seq *pipelinetest.Sequence
		w   *pipeline.Manifest // committed, part 0 claimed
		gap pipeline.Gap
	}
	lane := func(seen) key { return laneKey(pipelinetest.Lane) }
	shard := func(seen) key { return shardKey(arn, pipelinetest.Shard) }
	win := func(x seen) key { return windowKey(x.w.Window) }
	part := func(x seen) key { return partKey(pipeline.PartID{Window: x.w.Window}) }
	gap := func(x seen) key { return gapKey(arn, x.gap.ID) }
	side := func(seen) key { return sideKey(arn) }
	acquire := func(x seen) error { _, err := x.s.Acquire(t.Context(), pipelinetest.Lane, false); return err }
	status := func(x seen) error { _, err := x.s.Lane(t.Context(), pipelinetest.Lane); return err }
	position := func(x seen) error {
		_, err := x.s.Position(t.Context(), x.seq.Hold, arn, pipelinetest.Shard)
		return err
	}
	fold := func(x seen) error { return x.s.Fold(t.Context(), pipelinetest.Lane) }
	gaps := func(x seen) error { _, err := x.s.Gaps(t.Context(), arn); return err }
	for name, c := range map[string]struct {
		key       func(seen) key
		attribute string
		value     types.AttributeValue // nil: it is missing
		do        func(seen) error
	}{
		"a lane without incarnation":    {lane, "inc", nil, status},
		"a lane without next window":    {lane, "next", nil, fold},
		"a lane without token":          {lane, "token", nil, status},
		"a lane whose token is text":    {lane, "token", str("seven"), fold},
		"a lane before its watermark":   {lane, "watermark", num(99), status},
		"a lane with another pending":   {lane, "pending", num(77), acquire},
		"a lane that gave up nonsense":  {lane, "void", str("9-3"), fold},
		"a shard without owner":         {shard, "lane", nil, position},
		"a shard with a wild position":  {shard, "seq", str("12x"), position},
		"a shard whose end is text":     {shard, "end", str("yes"), position},
		"a shard with a wild time":      {shard, "tip_at", str("noon"), position},
		"a window without state":        {win, "state", nil, fold},
		"a window of no known state":    {win, "state", str("half"), status},
		"a window without manifest":     {win, "manifest", nil, status},
		"a window with a cut manifest":  {win, "manifest", str(`{"format":1,"window":`), fold},
		"a window with another's":       {win, "manifest", str(`{"format":1,"layout":1,"window":{"lane":"run-readings","inc":"x","n":1}}`), status},
		"a window with a wild time":     {win, "landed_at", num(5), status},
		"a part without copy":           {part, "key", nil, fold},
		"a part whose offset is text":   {part, "offset", str("0"), fold},
		"a part whose round is below 0": {part, "round", num(-1), fold},
		"a side that is none":           {side, "side", str("sideways"), func(x seen) error { _, _, err := x.s.StreamSide(t.Context(), arn); return err }},
		"a gap of no known state":       {gap, "state", str("wide"), gaps},
		"a gap without shard":           {gap, "shard", nil, gaps},
		"a gap with a wild time":        {gap, "from", str("noon"), gaps},
		"a gap of no window":            {gap, "window", str("a window"), gaps},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, s := newTable(t)
			x := seen{s: s, seq: pipelinetest.Begun(t, memory(s))}
			x.w = x.seq.Window(t, 2)
			_, err := s.Claim(t.Context(), []pipeline.Claim{pipelinetest.ClaimOf(x.w, 0, "a")})
			works(t, "claim", err)
			x.gap, _, err = s.OpenGap(t.Context(), pipeline.Gap{Stream: arn, Shard: pipelinetest.Shard, First: "800", Last: "900", Missing: pipeline.Missing{Cause: pipeline.GapDiscarded, From: today}})
			works(t, "gap", err)
			works(t, "whole", c.do(x))
			k := c.key(x)
			set(t, s, k, c.attribute, c.value)
			err = c.do(x)
			pipelinetest.NeedsPerson(t, "damaged", err)
			if err != nil && !strings.Contains(err.Error(), k.pk) {
				t.Errorf("%v does not name %s", err, k)
			}
		})
	}
}

// kinds are the stored items by the beginning of their sort key.
var kinds = map[string]func() any{
	"contract": func() any { return &contractItem{} }, "side": func() any { return &streamItem{} }, "shard": func() any { return &shardItem{} },
	"lane": func() any { return &laneItem{} }, "incarnation": func() any { return &incarnationItem{} }, "window": func() any { return &windowItem{} },
	"part": func() any { return &partItem{} }, "gap": func() any { return &gapItem{} },
}

// FuzzStoredItem decodes any item as each kind: it is read, or it is for a person, who is told which
// item it is; what is read and written again reads the same.
func FuzzStoredItem(f *testing.F) {
	_, s := newTable(f)
	for _, it := range filled(f, s) {
		b, err := json.Marshal(it)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, seed := range []string{
		`{}`, `{"fmt":{"N":"1"}}`, `{"fmt":{"N":"2"},"pk":{"S":"lane#a"},"sk":{"S":"lane"}}`, `{"fmt":{"S":"1"}}`, `{"fmt":{"N":"1e400"}}`,
		`{"fmt":{"N":"1"},"sk":{"S":"window#x#-1"},"state":{"S":"pending"},"manifest":{"S":"{\"format\":1,\"shards\":[{}]}"}}`,
		`{"fmt":{"N":"1"},"sk":{"S":"lane"},"inc":{"S":"i"},"token":{"N":"1"},"next":{"N":"1"},"void":{"S":"1-9223372036854775807"}}`,
		`{"fmt":{"N":"1"},"sk":{"S":"gap##"},"state":{"S":"open"},"shard":{"S":"s"},"cause":{"S":"c"},"window":{"S":"a/b/0"}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var raw memItem
		if json.Unmarshal(b, &raw) != nil {
			return
		}
		item := map[string]types.AttributeValue{}
		for name, v := range raw {
			switch v.kind {
			case "S":
				item[name] = str(v.text)
			case "N":
				item[name] = &types.AttributeValueMemberN{Value: v.text}
			case "BOOL":
				item[name] = &types.AttributeValueMemberBOOL{Value: v.text == "true"}
			}
		}
		k := key{raw["pk"].text, raw["sk"].text}
		for _, make := range kinds {
			v := make()
			if err := decode(k, item, v); err != nil {
				var person *pipeline.PersonError
				if !errors.As(err, &person) || !strings.Contains(err.Error(), k.String()) {
					t.Fatalf("%v is not for a person, or does not name %s", err, k)
				}
				continue
			}
			again, err := encode(k, v)
			if err != nil {
				t.Fatal(err)
			}
			back := make()
			if err := decode(k, again, back); err != nil {
				t.Fatalf("%+v comes back as %v", v, err)
			}
			if a, b := asJSON(t, v), asJSON(t, back); a != b {
				t.Fatalf("%s comes back as %s", a, b)
			}
			if w, ok := v.(*windowItem); ok {
				readWindow(t, k, w)
			}
			if g, ok := v.(*gapItem); ok {
				if got := newGapItem(g.gap(k)); got.Window != "" && got.Window != g.Window {
					t.Fatalf("window %s comes back as %s", g.Window, got.Window)
				}
			}
		}
	})
}

func readWindow(t *testing.T, k key, w *windowItem) {
	t.Helper()
	id, err := windowOf("lane", k.sk)
	if err != nil {
		return
	}
	m, err := w.manifest(id)
	var person *pipeline.PersonError
	if err != nil && !errors.As(err, &person) {
		t.Fatalf("%v is not for a person", err)
	}
	if err == nil && m.Window != id {
		t.Fatalf("manifest of %s for %s", m.Window, id)
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// filled is the table's items after a bit of everything.
func filled(t testing.TB, s *Store) map[string]memItem {
	t.Helper()
	seq := pipelinetest.Begun(t, memory(s))
	w := seq.Window(t, 2)
	if _, err := s.Claim(t.Context(), []pipeline.Claim{pipelinetest.ClaimOf(w, 0, "a")}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Void(t.Context(), pipeline.PartID{Window: w.Window, Index: 1}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.OpenGap(t.Context(), pipeline.Gap{Stream: arn, Shard: "s", First: "8", Last: "9", Missing: pipeline.Missing{Cause: pipeline.GapDiscarded}}); err != nil {
		t.Fatal(err)
	}
	lost := seq.Begin(t, 1)
	if err := s.Lose(t.Context(), seq.Hold, lost); err != nil {
		t.Fatal(err)
	}
	out := map[string]memItem{}
	for k, it := range items(t, s) {
		out[k] = memItem{}
		for name, v := range it {
			switch v := v.(type) {
			case *types.AttributeValueMemberS:
				out[k][name] = memValue{"S", v.Value}
			case *types.AttributeValueMemberN:
				out[k][name] = memValue{"N", v.Value}
			case *types.AttributeValueMemberBOOL:
				out[k][name] = memValue{"BOOL", "true"}
			}
		}
	}
	return out
}
