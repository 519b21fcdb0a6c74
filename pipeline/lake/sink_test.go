package lake

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/firehose"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/columnar"
	"telemetrylake/pipeline/pipelinetest"
	"telemetrylake/pipeline/seal"
	"telemetrylake/schemas"
	"telemetrylake/testenv"
)

// shores are the sinks, and whatever else lands parts.
var shores = map[string]func(testing.TB) *pipelinetest.Shore{
	"Firehose": func(t testing.TB) *pipelinetest.Shore {
		s, env, cfg := newShore(t, 2)
		f, _ := newSink(t, env.AWSConfig(), destination())
		on := func(cfg aws.Config) *Firehose {
			return NewFirehose(firehose.NewFromConfig(cfg), streamName, NewBucket(s3Client(cfg), bucketName, "staging"), nil)
		}
		s.Sink, s.Another = on(cfg), func() pipeline.Sink { return on(env.AWSConfig()) }
		s.Found = func() []*pipeline.PartMeta {
			env.FlushFirehose()
			return partsIn(t, f.staging)
		}
		return s
	},
	"Firehose's staging": func(t testing.TB) *pipelinetest.Shore {
		s, env, cfg := newShore(t, 1)
		on := func(cfg aws.Config) *Bucket { return NewBucket(s3Client(cfg), bucketName, "staging") }
		s.Sink, s.Another = NewStager(on(cfg)), func() pipeline.Sink { return NewStager(on(env.AWSConfig())) }
		s.Found = func() []*pipeline.PartMeta { return partsIn(t, on(env.AWSConfig())) }
		return s
	},
	"S3": func(t testing.TB) *pipelinetest.Shore {
		s, env, cfg := newShore(t, 2)
		on := func(cfg aws.Config) *Bucket { return NewBucket(s3Client(cfg), bucketName, "lake") }
		s.Lake, s.Once = on(cfg).String(), true
		s.Sink = NewObjects(on(cfg), storeOn(cfg), footers(on(env.AWSConfig())), nil)
		s.Another = func() pipeline.Sink {
			b := on(env.AWSConfig())
			return NewObjects(b, storeOn(env.AWSConfig()), footers(b), nil)
		}
		s.Found = func() []*pipeline.PartMeta { return partsIn(t, on(env.AWSConfig())) }
		return s
	},
	"folder": func(t testing.TB) *pipelinetest.Shore {
		s, env, _ := newShore(t, 2)
		root := t.TempDir()
		d := NewFolder(root)
		s.Lake, s.Once = d.String(), true
		s.Another = func() pipeline.Sink { return NewObjects(d, storeOn(env.AWSConfig()), footers(d), nil) }
		s.Sink = s.Another()
		s.Found = func() []*pipeline.PartMeta { return partsIn(t, d) }
		s.Break = func() func() { // a file where a partition's folder must be
			at := filepath.Join(root, "readings", "dt=2026-11-02")
			if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o777), os.WriteFile(at, nil, 0o666)); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := os.Remove(at); err != nil {
					t.Fatal(err)
				}
			}
		}
		return s
	},
}

func TestSink(t *testing.T) {
	for name, newShore := range shores {
		t.Run(name, func(t *testing.T) { pipelinetest.TestSink(t, newShore) })
	}
}

// newShore is a Shore without its sink. The returned configuration is one whose services break when
// the Shore does: so many requests have their effect, and the answer of the last is lost.
func newShore(t testing.TB, requests int64) (*pipelinetest.Shore, *testenv.Env, aws.Config) {
	t.Helper()
	env, cfg := newService(t, testenv.FirehoseBehaviour{})
	store := storeOn(cfg)
	if err := store.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := &breaking{next: cfg.HTTPClient}
	broken := cfg
	broken.HTTPClient = w
	broken.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
	s := &pipelinetest.Shore{
		Memory: pipelinetest.Memory{
			Checkpoints: store, Contracts: store, Ledger: store, Fold: store.Fold,
			Own: func(ctx context.Context, lane pipeline.LaneID, stream string, sh pipeline.Shard) (pipeline.Position, error) {
				return store.Shards(stream, lane, checkpoint.Run).Own(ctx, sh)
			},
		},
		Encode: encodeFile,
		Break: func() func() {
			w.left.Store(requests)
			w.broken.Store(true)
			return func() { w.broken.Store(false) }
		},
	}
	return s, env, broken
}

func storeOn(cfg aws.Config) *checkpoint.Store {
	return checkpoint.New(dynamodb.NewFromConfig(cfg), "checkpoint", checkpoint.Options{})
}

// A breaking client passes what is left of its requests, loses the last one's answer, and sends none
// after it.
type breaking struct {
	next   aws.HTTPClient
	broken atomic.Bool
	left   atomic.Int64
}

var errBroken = errors.New("the connection was lost")

func (b *breaking) Do(r *http.Request) (*http.Response, error) {
	if !b.broken.Load() {
		return b.next.Do(r)
	}
	switch left := b.left.Add(-1); {
	case left > 0:
		return b.next.Do(r)
	case left == 0:
		if resp, err := b.next.Do(r); err == nil {
			resp.Body.Close()
		}
	}
	return nil, errBroken
}

var readings = func() schemas.Table {
	c, err := schemas.Load("sensor_readings")
	if err != nil {
		panic(err)
	}
	return c.LakeTable(schemas.Readings)
}()

// encodeFile makes a file that says it is the part. Sinks read no rows, and it has none.
func encodeFile(m *pipeline.Manifest, meta pipeline.PartMeta, size, salt int) []byte {
	text, err := meta.Encode()
	if err != nil {
		panic(err)
	}
	footer := map[string]string{pipeline.PartMetaKey: text, "salt": string(rune('a' + salt)), "filling": filling(max(0, size-6000))}
	if m.Lake != "" {
		if footer[pipeline.ObjectMetaKey], err = meta.Object().Encode(); err != nil {
			panic(err)
		}
	}
	var b bytes.Buffer
	if err := columnar.NewEncoder(memory.DefaultAllocator).Empty(&b, readings, footer); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func filling(n int) string {
	rng := rand.New(rand.NewPCG(uint64(n), 0))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + rng.IntN(26))
	}
	return string(b)
}

// A source is where parts lie.
type source interface {
	Newest(ctx context.Context, prefixes []string, most int) ([]pipeline.Object, error)
	Tail(ctx context.Context, o pipeline.Object, n int64) ([]byte, error)
}

// partsIn reads what every part in a place says of itself.
func partsIn(t testing.TB, s source) []*pipeline.PartMeta {
	t.Helper()
	found, err := s.Newest(t.Context(), []string{""}, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	var all []*pipeline.PartMeta
	for _, o := range found {
		body, err := s.Tail(t.Context(), o, o.Size)
		if err != nil {
			t.Fatal(err)
		}
		parts, others := seal.ReadPartMetas(body)
		if others > 0 {
			t.Errorf("%s holds %d pieces that are no parts", o.Key, others)
		}
		all = append(all, parts...)
	}
	return all
}

// footers reads what objects say of themselves.
func footers(s source) Footer {
	return func(ctx context.Context, name string) (*pipeline.ObjectMeta, error) {
		end, err := s.Tail(ctx, pipeline.Object{Key: name}, 64<<20)
		if err != nil {
			return nil, err
		}
		m, _, err := seal.ReadObject(end)
		if err != nil {
			return nil, nil
		}
		return m, nil
	}
}

// objectsShore is a window of three parts, begun, and sinks into a folder.
type objectsShore struct {
	*pipelinetest.Shore
	folder *Folder
	m      *pipeline.Manifest
	parts  []pipeline.Part
	store  *checkpoint.Store
	seq    *pipelinetest.Sequence
}

func newObjectsShore(t *testing.T) objectsShore {
	t.Helper()
	s, env, _ := newShore(t, 2)
	o := objectsShore{Shore: s, folder: NewFolder(t.TempDir()), store: storeOn(env.AWSConfig())}
	s.Sink = NewObjects(o.folder, o.store, footers(o.folder), nil)
	o.seq = pipelinetest.Begun(t, s.Memory)
	o.m = o.seq.Manifest(3)
	o.m.Lake = o.folder.String()
	if err := o.store.Begin(t.Context(), o.seq.Hold, o.m); err != nil {
		t.Fatal(err)
	}
	for i, spec := range o.m.Parts {
		meta := pipeline.PartMeta{
			Format: pipeline.FormatVersion, Window: o.m.Window, Part: i, Stream: o.m.Stream, Contract: o.m.Contract,
			Table: spec.Table, Partition: spec.Partition, Rows: spec.Rows, Ranges: o.m.Ranges(), Last: i == 2,
		}
		o.parts = append(o.parts, pipeline.Part{ID: meta.ID(), Table: spec.Table, Partition: spec.Partition, Rows: spec.Rows, Body: encodeFile(o.m, meta, 0, 1)})
	}
	return o
}

func TestWhatLandsAsObjectsIsPublishedBeforeItsWindowIsCommitted(t *testing.T) {
	o := newObjectsShore(t)
	if err := o.Land(t.Context(), o.parts); err != nil {
		t.Fatal(err)
	}
	claims, err := o.store.Claims(t.Context(), o.m.Window)
	if err != nil || len(claims) != 3 {
		t.Fatalf("claims %+v, %v", claims, err)
	}
	for i, c := range claims {
		name, err := o.m.ObjectName(i)
		if err != nil || !c.Published || c.Name != name || !strings.HasPrefix(name, "readings/dt=2026-11-30/w-run-readings-") {
			t.Errorf("claim %+v of %s, %v", c, name, err)
		}
	}
	o.seq.Commit(t, o.m)
	if err := o.store.Fold(t.Context(), pipelinetest.Lane); err != nil {
		t.Fatal(err)
	}
	if st, err := o.store.Lane(t.Context(), pipelinetest.Lane); err != nil || st.Unsealed() != 0 || st.Watermark != 1 {
		t.Errorf("lane %+v, %v", st, err)
	}
}

// The last part alone says how many there are: were it missing, half a window could be taken for a
// whole one by whoever rebuilds positions from the lake.
func TestTheLastPartIsAnObjectBeforeAnyOther(t *testing.T) {
	o := newObjectsShore(t)
	for _, bad := range []int{0, 1} {
		name := filepath.Join(o.folder.root, filepath.FromSlash(o.parts[bad].ObjectName()))
		if err := os.MkdirAll(name, 0o777); err != nil { // nothing can be made there
			t.Fatal(err)
		}
	}
	if err := o.Land(t.Context(), o.parts); err == nil {
		t.Fatal("it landed")
	}
	found := partsIn(t, o.folder)
	if len(found) != 1 || found[0].Part != 2 || !found[0].Last {
		t.Errorf("parts %+v", found)
	}
	m, err := footers(o.folder)(t.Context(), o.parts[2].ObjectName())
	if err != nil || m.Windows[0].PartsTotal != 3 {
		t.Errorf("its object says %+v, %v", m, err)
	}
}

func TestAStrangerUnderAPartsNameIsLeftToAPerson(t *testing.T) {
	other := func(change func(*pipeline.PartMeta)) func(objectsShore) []byte {
		return func(o objectsShore) []byte {
			meta := pipeline.PartMeta{Format: 1, Window: o.m.Window, Part: 1, Table: "readings", Partition: "dt=2026-11-30", Rows: 1}
			change(&meta)
			return encodeFile(o.m, meta, 0, 1)
		}
	}
	for name, body := range map[string]func(objectsShore) []byte{
		"no Parquet file":          func(objectsShore) []byte { return []byte("hello") },
		"empty":                    func(objectsShore) []byte { return nil },
		"another window":           other(func(m *pipeline.PartMeta) { m.Window.N++ }),
		"another life of the lane": other(func(m *pipeline.PartMeta) { m.Window.Incarnation += "x" }),
		"another part":             other(func(m *pipeline.PartMeta) { m.Part = 0 }),
		"other rows":               other(func(m *pipeline.PartMeta) { m.Rows = 2 }),
		"a part without an object's foot": func(o objectsShore) []byte {
			m := *o.m
			m.Lake = ""
			return encodeFile(&m, pipeline.PartMeta{Format: 1, Window: o.m.Window, Part: 1, Table: "readings", Rows: 1}, 0, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newObjectsShore(t)
			stranger := body(o)
			if err := o.folder.Create(t.Context(), o.parts[1].ObjectName(), stranger); err != nil {
				t.Fatal(err)
			}
			err := o.Land(t.Context(), o.parts)
			pipelinetest.NeedsPerson(t, "land over it", err)
			err = o.folder.View(t.Context(), pipeline.Object{Key: o.parts[1].ObjectName()}, func(r *io.SectionReader) error {
				if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, stranger) {
					t.Errorf("it was replaced, %v", err)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			if claims, err := o.store.Claims(t.Context(), o.m.Window); err != nil || len(claims) != 0 {
				t.Errorf("claims %+v, %v", claims, err)
			}
		})
	}
}

// What was given up is not landed any more, and that is no failure of whoever comes too late.
func TestAPartThatComesAfterItWasGivenUpIsDropped(t *testing.T) {
	o := newObjectsShore(t)
	text, err := (&pipeline.ObjectMeta{Format: 1, Table: "readings", Partition: "dt=2026-11-30"}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	var empty bytes.Buffer
	if err := columnar.NewEncoder(memory.DefaultAllocator).Empty(&empty, readings, map[string]string{pipeline.ObjectMetaKey: text}); err != nil {
		t.Fatal(err)
	}
	if err := o.folder.Create(t.Context(), o.parts[1].ObjectName(), empty.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := o.Land(t.Context(), o.parts); err != nil {
		t.Fatal(err)
	}
	claims, err := o.store.Claims(t.Context(), o.m.Window)
	if err != nil || len(claims) != 2 || claims[0].Part.Index != 0 || claims[1].Part.Index != 2 {
		t.Errorf("claims %+v, %v", claims, err)
	}
}

// The ledger's word and the lake's must agree: where they do not, rows would be lost or doubled.
func TestAPartThatTheLedgerHoldsOtherwiseNeedsAPerson(t *testing.T) {
	for name, held := range map[string]func(pipeline.PartID) pipeline.Claim{
		"void": func(id pipeline.PartID) pipeline.Claim { return pipeline.Claim{Part: id, Void: true} },
		"through staging": func(id pipeline.PartID) pipeline.Claim {
			return pipeline.Claim{Part: id, Copy: pipeline.Copy{Key: "k", ETag: "e"}, Name: "readings/x.parquet"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newObjectsShore(t)
			if _, err := o.store.Claim(t.Context(), []pipeline.Claim{held(o.parts[1].ID)}); err != nil {
				t.Fatal(err)
			}
			pipelinetest.NeedsPerson(t, "land", o.Land(t.Context(), o.parts))
		})
	}
}
