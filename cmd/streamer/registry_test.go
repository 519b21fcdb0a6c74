//go:build cgo && ((linux && (amd64 || arm64)) || (darwin && (amd64 || arm64)) || (windows && amd64))

package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/hot"
	"telemetrylake/schemas"
	"telemetrylake/testenv"
)

// A registry is a table whose items are overwritten, with its way into a lake.
type registry struct {
	*line
	t     *testing.T
	db    *dynamodb.Client
	env   *testenv.Env
	clock *testenv.ManualClock
	dir   string
}

func openRegistry(t *testing.T) *registry {
	t.Helper()
	c, err := schemas.Load("dispositivos")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	clock := testenv.NewManualClock(time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC))
	env, err := testenv.Open(testenv.Options{Dir: dir, Clock: clock, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	aws := newClients(env.AWSConfig())
	if err := furnish(t.Context(), aws, []*schemas.Contract{c}, 0); err != nil {
		t.Fatal(err)
	}
	table, err := hot.Describe(t.Context(), aws.dynamodb, c.Table)
	if err != nil {
		t.Fatal(err)
	}
	l, err := wire(aws, places{
		Contract: c, StreamARN: table.StreamARN, Checkpoint: checkpointTable, Delivery: c.Table, Lake: location{lakeBucket, ""},
		Staging: location{stagingBucket, partsPrefix}, Damaged: location{stagingBucket, damagedPrefix},
	}, wireOptions{Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &registry{l, t, aws.dynamodb, env, clock, dir}
}

func keysOf(device string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{
		"casaId": &types.AttributeValueMemberS{Value: "casa-1"}, "dispositivoId": &types.AttributeValueMemberS{Value: device},
	}
}

// put writes an entry over whatever there is.
func (r *registry) put(device, name string) {
	r.t.Helper()
	item := keysOf(device)
	item["tipo"] = &types.AttributeValueMemberS{Value: "enchufe"}
	item["nombre"] = &types.AttributeValueMemberS{Value: name}
	item["actualizadoEn"] = &types.AttributeValueMemberS{Value: r.clock.Now().UTC().Format("2006-01-02T15:04:05.000Z")}
	if _, err := r.db.PutItem(r.t.Context(), &dynamodb.PutItemInput{TableName: aws.String("dispositivos"), Item: item}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *registry) remove(device string) {
	r.t.Helper()
	if _, err := r.db.DeleteItem(r.t.Context(), &dynamodb.DeleteItemInput{TableName: aws.String("dispositivos"), Key: keysOf(device)}); err != nil {
		r.t.Fatal(err)
	}
}

// move brings all that was written into the lake.
func (r *registry) move() {
	r.t.Helper()
	if err := r.catchUp(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	if err := r.gatherer.Flush(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	r.seal()
}

func (r *registry) seal() {
	r.t.Helper()
	r.env.FlushFirehose()
	report, err := r.sealer.Sweep(r.t.Context())
	if err != nil || report.Damaged > 0 || len(report.Kept) > 0 {
		r.t.Fatalf("%+v, %v", report, err)
	}
	for o, err := range r.staging.List(r.t.Context()) {
		r.t.Errorf("%v stays in staging: %v", o, err)
	}
}

func (r *registry) query(sql string) []map[string]any {
	r.t.Helper()
	code, stdout, stderr := runCommand(r.t, newQuery(), "", sql, "-o", "json", "--lake-dir", filepath.Join(r.dir, "s3", lakeBucket))
	if code != exitOK {
		r.t.Fatal(stderr)
	}
	var rows []map[string]any
	if err := json.Unmarshal([]byte(stdout), &rows); err != nil {
		r.t.Fatal(err)
	}
	return rows
}

// wantNames compares the names of a query's rows.
func (r *registry) wantNames(sql string, want ...string) {
	r.t.Helper()
	var got []string
	for _, row := range r.query(sql) {
		got = append(got, row["nombre"].(string))
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		r.t.Errorf("%s gives %v, want %v", sql, got, want)
	}
}

const (
	versions = "SELECT nombre FROM dispositivos ORDER BY stream_seq"
	latest   = "SELECT nombre FROM dispositivos_latest ORDER BY dispositivo_id"
)

func TestARegistryKeepsEachVersionAndAViewGivesTheLatest(t *testing.T) {
	r := openRegistry(t)
	// All in one second: only sequence numbers tell the order.
	r.put("d1", "a")
	r.put("d2", "b")
	r.put("d1", "c")
	r.put("d3", "d")
	r.remove("d2")
	r.move()
	r.wantNames(versions, "a", "b", "c", "d")
	r.wantNames(latest, "c", "d")

	r.put("d2", "e")
	r.remove("d3")
	r.move()
	r.wantNames(versions, "a", "b", "c", "d", "e")
	r.wantNames(latest, "c", "e")

	// From its keys alone: the stream has no image of what was removed.
	got := r.query("SELECT casa_id, dispositivo_id, item_keys, delete_cause FROM dispositivos_tombstones ORDER BY stream_seq")
	if len(got) != 2 {
		t.Fatalf("tombstones are %v", got)
	}
	for i, device := range []string{"d2", "d3"} {
		keys := `{"casaId":{"S":"casa-1"},"dispositivoId":{"S":"` + device + `"}}`
		if got[i]["casa_id"] != "casa-1" || got[i]["dispositivo_id"] != device || got[i]["item_keys"] != keys || got[i]["delete_cause"] != schemas.CauseUser {
			t.Errorf("tombstone of %s is %v", device, got[i])
		}
	}
}

// Probes pass through the delivery stream like parts and between them, and leave nothing in the lake.
func TestProbesEndInSealing(t *testing.T) {
	r := openRegistry(t)
	first, err := r.probe()
	if err != nil {
		t.Fatal(err)
	}
	second, err := r.probe()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(first, second) {
		t.Error("two probes are the same")
	}
	part := func(b []byte) []pipeline.Part { return []pipeline.Part{{Body: b}} }
	if err := r.sink.Land(t.Context(), part(first)); err != nil {
		t.Fatal(err)
	}
	r.put("d1", "a")
	if err := r.catchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.gatherer.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.sink.Land(t.Context(), part(second)); err != nil {
		t.Fatal(err)
	}
	r.seal()
	if err := r.staging.Create(t.Context(), "alone", second); err != nil {
		t.Fatal(err)
	}
	r.seal()
	r.wantNames(versions, "a")
	n := 0
	for o, err := range r.lake.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; !strings.HasPrefix(o.Key, "dispositivos/") {
			t.Errorf("the lake holds %s", o.Key)
		}
	}
	if n != 1 {
		t.Errorf("the lake holds %d objects", n)
	}
}
