package pipeline_test

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"telemetrylake/pipeline"
)

var update = flag.Bool("update", false, "write the golden files")

func sampleManifest() *pipeline.Manifest {
	return &pipeline.Manifest{
		Format: 1, Layout: 1,
		Window:   pipeline.WindowID{Lane: "run-sensors", Incarnation: "0123456789abcdef", N: 42},
		Stream:   "arn:aws:dynamodb:eu-central-1:123456789012:table/sensor_readings/stream/2026-11-30T00:00:00.000",
		Contract: "5f0c",
		Shards: []pipeline.ShardRange{
			{
				Range:  pipeline.Range{Shard: "shardId-1", First: "100000000000000000001", Last: "100000000000000000009", End: true},
				Counts: pipeline.Counts{Rows: 5, Changes: 1, Tombstones: 1, Quarantined: 1, Ignored: 1},
			},
			{Range: pipeline.Range{Shard: "shardId-2", First: "7", Last: "7"}, Counts: pipeline.Counts{Rows: 1}, After: "6",
				Missing: &pipeline.Missing{Cause: pipeline.GapTrimmed, From: time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC), To: time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)},
				Oldest:  time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC), Newest: time.Date(2026, 11, 30, 9, 0, 1, 0, time.UTC)},
			{Range: pipeline.Range{Shard: "shardId-3", End: true}, After: "12"},
		},
		Parts: []pipeline.PartSpec{
			{Table: "sensor_readings", Partition: "dt=2026-11-29", Rows: 4},
			{Table: "sensor_readings", Partition: "dt=2026-11-30", Rows: 2},
		},
	}
}

func samplePart() *pipeline.PartMeta {
	m := sampleManifest()
	return &pipeline.PartMeta{
		Format: 1, Window: m.Window, Part: 1, Stream: m.Stream, Contract: m.Contract, Table: "sensor_readings", Partition: "dt=2026-11-30",
		Rows: 2, Order: []string{"device_id", "taken_at"}, Ranges: m.Ranges(), Last: true,
	}
}

func sampleObject() *pipeline.ObjectMeta {
	m := sampleManifest()
	next := m.Window
	next.N++
	return &pipeline.ObjectMeta{
		Format: 1, Table: "sensor_readings", Partition: "dt=2026-11-30", Rows: 9, Staging: "2026/11/30/12/parts-1", ETag: "00ff", Round: 1,
		Windows: []pipeline.ObjectWindow{
			{Window: m.Window, Stream: m.Stream, Contract: m.Contract, Ranges: m.Ranges(), PartsTotal: 4, Parts: []pipeline.ObjectPart{{Part: 1, Rows: 2}, {Part: 3, Rows: 4}}},
			{Window: next, Stream: m.Stream, Contract: m.Contract, Ranges: m.Ranges()[:1], Parts: []pipeline.ObjectPart{{Part: 0, Rows: 3}}},
		},
	}
}

// A stored form: how it is written and read.
type storedForm struct {
	encode func() (string, error)
	decode func(string) (any, error)
	value  any
}

func storedForms() map[string]storedForm {
	m, p, o := sampleManifest(), samplePart(), sampleObject()
	return map[string]storedForm{
		"manifest": {
			func() (string, error) { b, err := m.Encode(); return string(b), err },
			func(s string) (any, error) { return pipeline.DecodeManifest([]byte(s)) }, m,
		},
		"part":   {p.Encode, func(s string) (any, error) { return pipeline.DecodePartMeta(s) }, p},
		"object": {o.Encode, func(s string) (any, error) { return pipeline.DecodeObjectMeta(s) }, o},
	}
}

// What is stored is for ever: a change of a golden file needs a new format version and a way to
// read the old one.
func TestStoredFormsStayAsTheyAre(t *testing.T) {
	for name, f := range storedForms() {
		got, err := f.encode()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", name+".golden.json")
		if *update {
			if err := os.MkdirAll("testdata", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(got+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got+"\n" != string(want) {
			t.Errorf("%s is stored as\n%s\nwant\n%s", name, got, want)
		}
		back, err := f.decode(string(want))
		if err != nil || !reflect.DeepEqual(back, f.value) {
			t.Errorf("%s comes back as %+v, %v", name, back, err)
		}
	}
}

func TestStoredFormsRefuseWhatTheyDoNotKnow(t *testing.T) {
	for name, f := range storedForms() {
		text, err := f.encode()
		if err != nil {
			t.Fatal(err)
		}
		// A newer format need not even decode.
		for _, newer := range []string{strings.Replace(text, `"format":1`, `"format":2`, 1), `{"format":7,"window":[],"parts":"?"}`} {
			if _, err := f.decode(newer); !errors.Is(err, pipeline.ErrNewerFormat) {
				t.Errorf("%s of a newer format: %v", name, err)
			}
		}
		for _, bad := range []string{
			"", "null", "{}", "[]", "?", `{"format":0}`, `{"format":-1}`, `{"format":"1"}`, text[:len(text)-1], text + text,
			strings.Replace(text, `"format":1,`, "", 1),
		} {
			if _, err := f.decode(bad); err == nil || errors.Is(err, pipeline.ErrNewerFormat) {
				t.Errorf("%s %.40q: %v", name, bad, err)
			}
		}
	}
	m := sampleManifest()
	m.Layout = pipeline.LayoutVersion + 1
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pipeline.DecodeManifest(b); !errors.Is(err, pipeline.ErrNewerFormat) {
		t.Errorf("manifest of a newer layout: %v", err)
	}
}

func TestPartMetadataMustBeWhole(t *testing.T) {
	for name, change := range map[string]func(*pipeline.PartMeta){
		"lane":        func(p *pipeline.PartMeta) { p.Window.Lane = "" },
		"lane's name": func(p *pipeline.PartMeta) { p.Window.Lane = "a#b" },
		"number":      func(p *pipeline.PartMeta) { p.Window.N = 0 },
		"index":       func(p *pipeline.PartMeta) { p.Part = -1 },
		"table":       func(p *pipeline.PartMeta) { p.Table = "" },
	} {
		p := samplePart()
		change(p)
		text, err := p.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pipeline.DecodePartMeta(text); err == nil {
			t.Errorf("part metadata without %s is read", name)
		}
		p.Probe = true // a probe need say nothing else
		if text, err = p.Encode(); err != nil {
			t.Fatal(err)
		}
		if got, err := pipeline.DecodePartMeta(text); err != nil || !got.Probe {
			t.Errorf("probe without %s: %v", name, err)
		}
	}
}

func TestPartMatchesItsManifestInEverythingThatCouldTellItApart(t *testing.T) {
	if err := samplePart().Matches(sampleManifest()); err != nil {
		t.Errorf("the manifest's own part: %v", err)
	}
	for name, change := range map[string]func(*pipeline.PartMeta){
		"index of another part": func(p *pipeline.PartMeta) { p.Part = 0 },
		"index of no part":      func(p *pipeline.PartMeta) { p.Part = 2 },
		"table":                 func(p *pipeline.PartMeta) { p.Table = "sensor_readings_changes" },
		"partition":             func(p *pipeline.PartMeta) { p.Partition = "dt=2026-11-29" },
		"rows":                  func(p *pipeline.PartMeta) { p.Rows = 3 },
		"stream":                func(p *pipeline.PartMeta) { p.Stream += "1" },
		"contract":              func(p *pipeline.PartMeta) { p.Contract = "0000" },
		"shard":                 func(p *pipeline.PartMeta) { p.Ranges[1].Shard = "shardId-9" },
		"first":                 func(p *pipeline.PartMeta) { p.Ranges[0].First = "100000000000000000002" },
		"last":                  func(p *pipeline.PartMeta) { p.Ranges[0].Last = "100000000000000000008" },
		"end":                   func(p *pipeline.PartMeta) { p.Ranges[0].End = false },
		"a range less":          func(p *pipeline.PartMeta) { p.Ranges = p.Ranges[:2] },
		"a range more":          func(p *pipeline.PartMeta) { p.Ranges = append(p.Ranges, pipeline.Range{Shard: "shardId-4"}) },
		"ranges in other order": func(p *pipeline.PartMeta) { p.Ranges[0], p.Ranges[1] = p.Ranges[1], p.Ranges[0] },
		"no ranges":             func(p *pipeline.PartMeta) { p.Ranges = nil },
	} {
		p := samplePart()
		change(p)
		if err := p.Matches(sampleManifest()); err == nil {
			t.Errorf("a part with another %s matches", name)
		}
	}
}

func TestManifestSumsCountsAndTellsPositions(t *testing.T) {
	m := sampleManifest()
	if got, want := m.Counts(), (pipeline.Counts{Rows: 6, Changes: 1, Tombstones: 1, Quarantined: 1, Ignored: 1}); got != want {
		t.Errorf("counts are %+v, want %+v", got, want)
	}
	want := []pipeline.Position{{Seq: "100000000000000000009", End: true}, {Seq: "7", Created: time.Date(2026, 11, 30, 9, 0, 1, 0, time.UTC)}, {Seq: "12", End: true}}
	for i, s := range m.Shards {
		if got := s.Position(); got != want[i] {
			t.Errorf("position of %s is %+v, want %+v", s.Shard, got, want[i])
		}
	}
}

func TestObjectListsItsParts(t *testing.T) {
	o := sampleObject()
	w := sampleManifest().Window
	next := w
	next.N++
	want := []pipeline.PartID{{Window: w, Index: 1}, {Window: w, Index: 3}, {Window: next, Index: 0}}
	if got := o.PartIDs(); !reflect.DeepEqual(got, want) {
		t.Errorf("parts %v, want %v", got, want)
	}
}

func TestLaneNamesThatCanStandInKeys(t *testing.T) {
	for lane, ok := range map[pipeline.LaneID]bool{
		"a": true, "run-sensors_2.x": true, pipeline.LaneID(strings.Repeat("a", 128)): true,
		"": false, "A": false, "a b": false, "a#b": false, "a/b": false, "ä": false, pipeline.LaneID(strings.Repeat("a", 129)): false,
	} {
		if got := lane.Valid(); got != ok {
			t.Errorf("%q is valid: %v", lane, got)
		}
	}
}
