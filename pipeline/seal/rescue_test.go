package seal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"telemetrylake/pipeline"
)

// shelf holds objects in memory.
type shelf map[string][]byte

func (s shelf) List(context.Context) iter.Seq2[pipeline.Object, error] {
	return func(yield func(pipeline.Object, error) bool) {
		for _, key := range slices.Sorted(maps.Keys(s)) {
			if !yield(pipeline.Object{Key: key, Size: int64(len(s[key]))}, nil) {
				return
			}
		}
	}
}

func (s shelf) View(_ context.Context, o pipeline.Object, f func(*io.SectionReader) error) error {
	b, ok := s[o.Key]
	if !ok || bytes.Equal(b, []byte("gone")) {
		return pipeline.ErrNotFound
	}
	return f(io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b))))
}

func (s shelf) CreateFrom(_ context.Context, key string, body *io.SectionReader) error {
	if _, ok := s[key]; ok {
		return fmt.Errorf("create %s: %w", key, pipeline.ErrExists)
	}
	var err error
	s[key], err = io.ReadAll(body)
	return err
}

func (s shelf) rescue(t *testing.T, change func(*Rescuer)) (map[string]Rescued, error) {
	t.Helper()
	before := maps.Clone(s)
	r := &Rescuer{From: s}
	change(r)
	found := map[string]Rescued{}
	err := r.Run(t.Context(), func(x Rescued) error { found[x.Key] = x; return nil })
	if !maps.EqualFunc(s, before, bytes.Equal) {
		t.Error("the source was changed")
	}
	return found, err
}

func TestRescueWritesTheGoodFilesOfJoinedObjectsApart(t *testing.T) {
	a, b, c := strangers(t, 300, "a"), strangers(t, 300, "b"), strangers(t, 40, "c", parquet.Compression(&parquet.Zstd))
	from := shelf{
		"dt=2024-02-03/one.parquet": a,
		"dt=2024-02-03/joined":      slices.Concat(a, b, c, b),
		"dt=2024-02-04/torn":        slices.Concat([]byte("\n"), b[:1000], c, []byte("\n")),
		"dt=2024-02-04/text.json":   []byte(`{"a":1}`),
		"dt=2024-02-04/":            {},
	}
	to := shelf{}
	want := shelf{
		"dt=2024-02-03/one.parquet":                a,
		"dt=2024-02-03/joined.piece-00000.parquet": a,
		"dt=2024-02-03/joined.piece-00001.parquet": b,
		"dt=2024-02-03/joined.piece-00002.parquet": c,
		"dt=2024-02-03/joined.piece-00003.parquet": b,
		"dt=2024-02-04/torn.piece-00001.parquet":   c,
	}
	for _, again := range []bool{false, true} {
		found, err := from.rescue(t, func(r *Rescuer) { r.To = to })
		if err != nil {
			t.Fatal(err)
		}
		if !maps.EqualFunc(to, want, bytes.Equal) {
			t.Errorf("written: %v, want %v", slices.Sorted(maps.Keys(to)), slices.Sorted(maps.Keys(want)))
		}
		joined, torn := found["dt=2024-02-03/joined"], found["dt=2024-02-04/torn"]
		if joined.Files != 4 || joined.Rows != 940 || joined.Hidden != 940-joined.Seen || joined.Repeats != 1 || len(joined.Damage) > 0 {
			t.Errorf("joined: %+v", joined)
		}
		if torn.Files != 1 || torn.Rows != 40 || torn.Seen != 0 || torn.Hidden != 40 || torn.Problem == "" || len(torn.Damage) != 2 || torn.Damage[0].Bytes != 1001 || torn.Damage[0].Reason == "" {
			t.Errorf("torn: %+v", torn)
		}
		if one := found["dt=2024-02-03/one.parquet"]; !one.Whole() || one.Rows != 300 || one.Seen != 300 || one.Hidden != 0 {
			t.Errorf("one: %+v", one)
		}
		if text := found["dt=2024-02-04/text.json"]; text.Files != 0 || len(text.Written) != 0 {
			t.Errorf("text: %+v", text)
		}
		if n := len(joined.Present); len(found) != 4 || again != (n == 4) || again == (len(joined.Written) == 4) {
			t.Errorf("again %v: %d objects, %v written, %v there already", again, len(found), joined.Written, joined.Present)
		}
	}
}

func TestRescueWritesOnlyWhatIsAskedFor(t *testing.T) {
	a, b := strangers(t, 30, "a"), strangers(t, 30, "b")
	from := shelf{"one": a, "joined": slices.Concat(a, b, a)}
	to := shelf{}
	if _, err := from.rescue(t, func(r *Rescuer) { r.To, r.OnlyJoined, r.DropRepeats = to, true, true }); err != nil {
		t.Fatal(err)
	}
	if want := (shelf{"joined.piece-00000.parquet": a, "joined.piece-00001.parquet": b}); !maps.EqualFunc(to, want, bytes.Equal) {
		t.Errorf("written: %v", slices.Sorted(maps.Keys(to)))
	}
	found, err := from.rescue(t, func(*Rescuer) {})
	if j := found["joined"]; err != nil || j.Repeats != 1 || len(j.Written) > 0 || len(j.Present) > 0 {
		t.Errorf("without a target: %+v, %v", j, err)
	}
}

func TestRescueReplacesNothingAndGoesOn(t *testing.T) {
	a, b := strangers(t, 30, "a"), strangers(t, 30, "b")
	from := shelf{"1": a, "2": []byte("gone"), "3": slices.Concat(a, b), "4": b}
	to := shelf{"1": b, "3.piece-00001.parquet": []byte("somebody's")}
	found, err := from.rescue(t, func(r *Rescuer) { r.To = to })
	if p := (*pipeline.PersonError)(nil); !errors.As(err, &p) || !errors.Is(err, pipeline.ErrNotFound) {
		t.Errorf("error %v", err)
	}
	for _, name := range []string{"rescue 1:", "rescue 2:", "rescue 3:"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("error %v does not name %s", err, name)
		}
	}
	if len(found["4"].Written) != 1 || !bytes.Equal(to["1"], b) || string(to["3.piece-00001.parquet"]) != "somebody's" || !bytes.Equal(to["4"], b) {
		t.Errorf("found %+v, target %v", found, slices.Sorted(maps.Keys(to)))
	}
}

func TestRescueDoesNotWriteAFileThatCannotBeReadToItsEnd(t *testing.T) {
	a, b := strangers(t, 300, "a", parquet.Compression(&parquet.Zstd)), strangers(t, 300, "b")
	bad := slices.Clone(a)
	first := inspect(t, a).Pieces[0].RowGroups[0].Columns[0]
	for i := range 8 { // the last bytes of the first column's last page
		bad[4+int(first.Compressed)-1-i] ^= 0x55
	}
	from, to := shelf{"o": slices.Concat(bad, b)}, shelf{}
	found, err := from.rescue(t, func(r *Rescuer) { r.To = to })
	if err != nil {
		t.Fatal(err)
	}
	if o := found["o"]; o.Files != 1 || o.Rows != 300 || len(o.Damage) != 1 || o.Damage[0].Bytes != int64(len(bad)) || len(to) != 1 || !bytes.Equal(to["o.piece-00001.parquet"], b) {
		t.Errorf("%+v, written %v", o, slices.Sorted(maps.Keys(to)))
	}
	// Its pages are where they should be: whoever knows why they cannot be decoded can have them.
	found, err = from.rescue(t, func(r *Rescuer) { r.To, r.Unverified = to, true })
	if o := found["o"]; err != nil || o.Damage[0].Kind != KindUnread || o.Damage[0].Reason == "" || !slices.Equal(o.Written, []string{"o.piece-00000.parquet"}) || !bytes.Equal(to["o.piece-00000.parquet"], bad) {
		t.Errorf("unverified: %+v, %v", o, err)
	}
}
