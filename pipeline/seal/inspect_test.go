package seal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/deprecated"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"telemetrylake/pipeline"
)

func inspect(t testing.TB, b []byte) *Inspection {
	t.Helper()
	in, err := Inspect(io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b))))
	if err != nil {
		t.Fatal(err)
	}
	at := int64(0)
	for i, p := range in.Pieces {
		if p.Offset != at || p.Bytes <= 0 {
			t.Fatalf("piece %d is [%d,+%d), the one before ended at %d", i, p.Offset, p.Bytes, at)
		}
		at += p.Bytes
	}
	if at != int64(len(b)) || in.Bytes != at {
		t.Fatalf("pieces end at %d of %d bytes, the inspection says %d", at, len(b), in.Bytes)
	}
	return in
}

// A stranger is a row of somebody else's files.
type stranger struct {
	Device string               `parquet:"device,dict"`
	At     time.Time            `parquet:"at,timestamp(microsecond)"`
	Fine   int64                `parquet:"fine,timestamp(nanosecond)"`
	Old    deprecated.Int96     `parquet:"old"`
	Value  float64              `parquet:"value"`
	Tags   []string             `parquet:"tags,list"`
	Maybe  *int32               `parquet:"maybe,optional"`
	More   map[string]string    `parquet:"more"`
	Inner  struct{ A, B int64 } `parquet:"inner"`
}

var strangersStart = time.Date(2024, 2, 3, 4, 5, 6, 789_123_000, time.UTC)

// strangers is a Parquet file of n rows, of which tag says whose they are.
func strangers(t testing.TB, n int, tag string, options ...parquet.WriterOption) []byte {
	t.Helper()
	random := rand.New(rand.NewPCG(uint64(n), uint64(tag[0])))
	rows := make([]stranger, n)
	for i := range rows {
		at := strangersStart.Add(time.Duration(i) * time.Second)
		since := at.Sub(time.Date(2024, 2, 3, 0, 0, 0, 0, time.UTC)).Nanoseconds()
		rows[i] = stranger{
			Device: fmt.Sprintf("%s-%03d", tag, i%50), At: at, Fine: at.UnixNano(), Value: random.Float64(),
			Old:  deprecated.Int96{uint32(since), uint32(since >> 32), 2460344}, // 2024-02-03
			Tags: []string{tag, "x"}[:i%3%2+1], More: map[string]string{"k": tag},
		}
		if i%4 > 0 {
			v := int32(i)
			rows[i].Maybe = &v
		}
	}
	var b bytes.Buffer
	w := parquet.NewGenericWriter[stranger](&b, options...)
	if _, err := w.Write(rows); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestInspectTellsWhatEachPieceOfAnObjectIs(t *testing.T) {
	p := newPlant(t)
	parts := p.lane.window(append(on(0, 1, 2, 3), on(1, 4)...)...)
	foreign := strangers(t, 100, "a")
	newer := retold(t, parts[0], func(m *pipeline.PartMeta) { m.Format++ })
	probe := retold(t, parts[0], func(m *pipeline.PartMeta) { m.Probe = true })
	in := inspect(t, bytes.Join([][]byte{parts[0], []byte("\n"), parts[1], foreign, newer, probe, parts[2], parts[1][:200]}, nil))
	var kinds []Kind
	for _, p := range in.Pieces {
		kinds = append(kinds, p.Kind)
		if (p.Kind == KindDamage) != (p.Problem != "") {
			t.Errorf("%s with problem %q", p.Kind, p.Problem)
		}
	}
	want := []Kind{KindPart, KindDamage, KindPart, KindParquet, KindNewer, KindProbe, KindPart, KindDamage}
	if !slices.Equal(kinds, want) {
		t.Fatalf("pieces are %v, want %v", kinds, want)
	}
	if in.Files() != 6 || in.Rows != 2+1+100+2+2+1 || in.Plain.Problem == "" || in.Plain.Shows != -1 || in.Hidden() != in.Rows {
		t.Errorf("%d files, %d rows, a reader: %+v, hidden %d", in.Files(), in.Rows, in.Plain, in.Hidden())
	}
	for i, at := range []int{0, 2, 6} {
		meta := in.Pieces[at].Part
		if meta == nil || meta.ID() != (pipeline.PartID{Window: opened(t, parts[0]).meta.Window, Index: i}) || int64(meta.Rows) != in.Pieces[at].Rows {
			t.Errorf("piece %d is of part %+v", at, meta)
		}
	}
	ours := in.Pieces[0]
	if len(ours.Times) == 0 || ours.Times[0].Column != "taken_at" || ours.Times[0].From.Before(day) || ours.Times[0].To.Sub(ours.Times[0].From) != time.Second {
		t.Errorf("times %+v, want two seconds of %s", ours.Times, day)
	}
	if !strings.Contains(ours.Writer, "parquet-go version") {
		t.Errorf("written by %q", ours.Writer)
	}
	for _, p := range in.Pieces {
		if p.Kind == KindDamage {
			continue
		}
		var rows, packed int64
		for _, g := range p.RowGroups {
			rows, packed = rows+g.Rows, packed+g.Compressed
			if g.Offset != p.Offset+4 { // behind the magic: each has one row group
				t.Errorf("%s at %d: row group at %d", p.Kind, p.Offset, g.Offset)
			}
			for _, c := range g.Columns {
				if c.Path == "" || c.Type == "" || len(c.Encodings) == 0 || c.Codec == "" || c.Values < g.Rows || c.Compressed <= 0 {
					t.Errorf("column %+v of %d rows", c, g.Rows)
				}
			}
		}
		if rows != p.Rows || packed <= 0 || packed >= p.Bytes {
			t.Errorf("%s: row groups with %d of %d rows and %d of %d bytes", p.Kind, rows, p.Rows, packed, p.Bytes)
		}
	}
}

func TestInspectTellsWhatALakeObjectHolds(t *testing.T) {
	p := newPlant(t)
	parts := p.lane.window(on(0, 1, 2, 3)...)
	p.stage("o", parts...)
	p.sweep()
	keys := p.keys(p.lake)
	if len(keys) != 1 {
		t.Fatalf("lake objects %v", keys)
	}
	r, err := p.lake.Read(t.Context(), pipeline.Object{Key: keys[0]})
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	in := inspect(t, body)
	if len(in.Pieces) != 1 || in.Pieces[0].Kind != KindSealed || in.Rows != 3 || in.Hidden() != 0 || in.Plain != (Plain{Rows: 3}) {
		t.Fatalf("%+v", in)
	}
	if o := in.Pieces[0].Object; o == nil || len(o.PartIDs()) != len(parts) || o.Rows != 3 || o.Table != "sensor_readings" {
		t.Errorf("object %+v", o)
	}
}

func TestInspectReadsTheTimesOfOtherWriters(t *testing.T) {
	in := inspect(t, strangers(t, 60, "a"))
	from, to := strangersStart, strangersStart.Add(59*time.Second)
	got := map[string]TimeRange{}
	for _, r := range in.Pieces[0].Times {
		got[r.Column] = r
	}
	for _, column := range []string{"at", "fine", "old"} {
		if r := got[column]; !r.From.Equal(from) || !r.To.Equal(to) {
			t.Errorf("column %s holds %v to %v, want %v to %v", column, r.From, r.To, from, to)
		}
	}
	if len(got) != 3 {
		t.Errorf("times of %v", got)
	}
}

// What other writers put behind the last page must not hide where a file begins.
func TestInspectFindsFilesWithIndexesAndFilters(t *testing.T) {
	for name, options := range map[string][]parquet.WriterOption{
		"plain":   {parquet.SkipPageBounds("device")},
		"filters": {parquet.BloomFilters(parquet.SplitBlockFilter(10, "device"), parquet.SplitBlockFilter(10, "value"))},
		"zstd":    {parquet.Compression(&parquet.Zstd)},
		"groups":  {parquet.MaxRowsPerRowGroup(64)},
		"pages":   {parquet.PageBufferSize(512), parquet.DataPageVersion(1)},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := strangers(t, 500, "a", options...), strangers(t, 300, "b", options...)
			in := inspect(t, slices.Concat(a, b, []byte{'\n'}, a))
			if in.Files() != 3 || in.Rows != 1300 || in.Pieces[1].Offset != int64(len(a)) {
				t.Errorf("%d files with %d rows, the second at %d, want %d", in.Files(), in.Rows, in.Pieces[1].Offset, len(a))
			}
		})
	}
}

func TestInspectTellsWhatAPlainReaderWouldShow(t *testing.T) {
	type row struct {
		Device string `parquet:"device,plain"`
		Value  int64  `parquet:"value,plain"`
	}
	file := func(tag string, n int) []byte {
		var b bytes.Buffer
		w := parquet.NewGenericWriter[row](&b, parquet.Compression(&parquet.Uncompressed))
		for i := range n {
			if _, err := w.Write([]row{{fmt.Sprintf("%s-%05d", tag, i), int64(i)}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	a, b, c := file("a", 1000), file("b", 1000), file("c", 700)
	tests := []struct {
		name   string
		object []byte
		want   Plain
		hidden int64
	}{
		{"one file", a, Plain{Rows: 1000}, 0},
		{"two files of one layout", slices.Concat(a, b), Plain{Rows: 1000, Shows: 0}, 1000},
		{"the same file twice", slices.Concat(b, b), Plain{Rows: 1000, Shows: 0}, 1000},
		{"two layouts", slices.Concat(a, c), Plain{Problem: "any", Shows: -1}, 1700},
		{"a newline behind", slices.Concat(a, []byte{'\n'}), Plain{Problem: "any", Shows: -1}, 1000},
		{"a footer that is longer than the object", slices.Concat(a, []byte("\xff\xff\xff\xffPAR1")), Plain{Problem: "any", Shows: -1}, 1000},
		{"nothing", nil, Plain{Problem: "any", Shows: -1}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := inspect(t, tt.object)
			got := in.Plain
			if got.Problem != "" && tt.want.Problem != "" {
				got.Problem = tt.want.Problem
			}
			if got != tt.want || in.Hidden() != tt.hidden {
				t.Errorf("a reader: %+v, hidden %d; want %+v, %d", in.Plain, in.Hidden(), tt.want, tt.hidden)
			}
		})
	}
}

// boasting is a file of one column and page, whose header says something else than is so.
func boasting(t *testing.T, change func(*format.PageHeader)) []byte {
	t.Helper()
	type row struct {
		Value int64 `parquet:"value,plain"`
	}
	var b bytes.Buffer
	if err := parquet.Write(&b, make([]row, 100), parquet.Compression(&parquet.Zstd)); err != nil {
		t.Fatal(err)
	}
	f, err := parquet.OpenFile(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	md := *f.Metadata()
	chunk := &md.RowGroups[0].Columns[0]
	m := &chunk.MetaData
	from, end := firstPage(m), firstPage(m)+m.TotalCompressedSize
	h, size, err := headerAt(newSource(io.NewSectionReader(bytes.NewReader(b.Bytes()), 0, int64(b.Len()))), from, end)
	if err != nil {
		t.Fatal(err)
	}
	page := b.Bytes()[from+size : end]
	change(h)
	header, err := thrift.Marshal(new(thrift.CompactProtocol), h)
	if err != nil {
		t.Fatal(err)
	}
	m.TotalCompressedSize = int64(len(header) + len(page))
	chunk.ColumnIndexOffset, chunk.ColumnIndexLength, chunk.OffsetIndexOffset, chunk.OffsetIndexLength = 0, 0, 0, 0
	footer, err := thrift.Marshal(new(thrift.CompactProtocol), &md)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat(magic, header, page, footer, binary.LittleEndian.AppendUint32(nil, uint32(len(footer))), magic)
}

// The reader allocates what a page's header says.
func TestInspectDoesNotBelieveWhatPagesSayOfThemselves(t *testing.T) {
	for name, change := range map[string]func(*format.PageHeader){
		"a page of a GiB":         func(h *format.PageHeader) { h.UncompressedPageSize = 1 << 30 },
		"a page behind the end":   func(h *format.PageHeader) { h.CompressedPageSize += 1 << 20 },
		"a page of less than 0":   func(h *format.PageHeader) { h.UncompressedPageSize = -1 },
		"a billion values":        func(h *format.PageHeader) { h.DataPageHeader.V.NumValues, h.DataPageHeaderV2.V.NumValues = 1e9, 0 },
		"values that are missing": func(h *format.PageHeader) { h.DataPageHeader.V.NumValues, h.DataPageHeaderV2.V.NumValues = 99, 0 },
	} {
		t.Run(name, func(t *testing.T) {
			b := boasting(t, change)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			in := inspect(t, b)
			runtime.ReadMemStats(&after)
			if in.Pieces[0].Kind != KindDamage || in.Rows != 0 {
				t.Errorf("%+v", in.Pieces[0])
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
				t.Errorf("a file of %d bytes took %d bytes of memory", len(b), n)
			}
		})
	}
	if in := inspect(t, boasting(t, func(*format.PageHeader) {})); in.Pieces[0].Kind != KindParquet || in.Rows != 100 {
		t.Errorf("a page that says what is so: %+v", in.Pieces[0])
	}
}

// Damage in headers must cost neither a panic nor the memory that it says it needs.
func TestInspectOutlivesDamageInHeaders(t *testing.T) {
	whole := strangers(t, 200, "a")
	footer := len(whole) - 400
	random := rand.New(rand.NewPCG(5, 5))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	damaged := 0
	const tries = 400
	for range tries {
		b := slices.Clone(whole)
		for range 1 + random.IntN(3) {
			b[4+random.IntN(footer)] = byte(random.Uint32())
		}
		if in := inspect(t, b); in.Pieces[0].Kind == KindDamage {
			damaged++
		}
	}
	runtime.ReadMemStats(&after)
	each := (after.TotalAlloc - before.TotalAlloc) / tries
	if each > 16<<20 {
		t.Errorf("a file of %d bytes took %d bytes of memory", len(whole), each)
	}
	if damaged == 0 || damaged == tries {
		t.Errorf("%d of %d are damaged", damaged, tries)
	}
	t.Logf("%d of %d damaged, %d bytes of memory each", damaged, tries, each)
}

func TestInspectLeavesAloneWhatTheReaderCannotUnpack(t *testing.T) {
	in := inspect(t, slices.Concat(strangers(t, 30, "a", parquet.Compression(&parquet.Lz4Raw)), strangers(t, 30, "b")))
	if p := in.Pieces[0]; len(in.Pieces) != 2 || p.Kind != KindUnread || !strings.Contains(p.Problem, "LZ4_RAW") || in.Rows != 30 || in.Files() != 1 || len(p.RowGroups) != 1 {
		t.Errorf("%+v", in)
	}
}

// A reader that fails is not damage: whoever looked again would see a whole object.
func TestInspectTellsWhatCannotBeReadFromDamage(t *testing.T) {
	object := slices.Concat(strangers(t, 30, "a"), strangers(t, 30, "b"))
	reads, failing := 0, 0
	for n := 1; ; n++ {
		reads = 0
		in, err := Inspect(io.NewSectionReader(readerAt(func(p []byte, off int64) (int, error) {
			if reads++; reads == n {
				return 0, errLine
			}
			return bytes.NewReader(object).ReadAt(p, off)
		}), 0, int64(len(object))))
		if reads < n {
			break // it needs no more
		}
		if failing++; !errors.Is(err, errLine) {
			t.Fatalf("read %d failed: %+v, %v", n, in, err)
		}
	}
	if failing < 10 {
		t.Errorf("only %d reads", failing)
	}
}

var errLine = errors.New("the line is cut")

type readerAt func([]byte, int64) (int, error)

func (r readerAt) ReadAt(p []byte, off int64) (int, error) { return r(p, off) }

func FuzzInspect(f *testing.F) {
	a, b := strangers(f, 30, "a"), strangers(f, 8, "b", parquet.Compression(&parquet.Snappy))
	f.Add(a)
	f.Add(slices.Concat(a, []byte("\n"), b))
	f.Add(slices.Concat(b[:500], b, []byte("\x40\x00\x00\x00PAR1")))
	f.Fuzz(func(t *testing.T, object []byte) {
		if in := inspect(t, object); in.Hidden() > in.Rows || in.Plain.Problem == "" && len(object) == 0 {
			t.Errorf("%+v", in)
		}
	})
}
