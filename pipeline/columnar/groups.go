package columnar

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/schema"
)

// Least size of a row group. Trino, and so Athena, reads ranges that lie within 1 MB of
// each other as one: below about 1.5 MB it reads whole row groups for one column.
const (
	minGroupRows  = 250_000
	minGroupBytes = 2 << 20
)

// A groupWriter cuts a stream of rows whose number is known into row groups of about equal
// size, none below the least size unless the whole file is.
type groupWriter struct {
	files
	schema *schema.Schema
	sink   *sink
	meta   *metadata.FileMetaDataBuilder
	chunks []*chunk

	groups    int16
	remaining int64 // rows that are still to come
	inGroup   int64 // rows in the current group
	target    int64 // rows after which the current group may end
	minRows   int64 // rows that a group needs for the least size, as far as known
}

var magic = []byte("PAR1")

func (f files) newGroupWriter(w io.Writer, s *schema.Schema, total int64) *groupWriter {
	g := &groupWriter{
		files: f, schema: s, sink: &sink{w: bufio.NewWriterSize(w, 64<<10)}, meta: metadata.NewFileMetadataBuilder(s, f.properties(), nil),
		remaining: total, minRows: minGroupRows,
	}
	p := newPacker(f.codec)
	for i := range s.NumColumns() {
		g.chunks = append(g.chunks, newChunk(newLeaf(s.Column(i)), i, p, total))
	}
	g.sink.put(magic)
	g.plan()
	return g
}

// plan divides the remaining rows evenly.
func (g *groupWriter) plan() {
	groups := max(1, g.remaining/g.minRows)
	g.inGroup, g.target = 0, (g.remaining+groups-1)/groups
}

// room is how many rows the next batch may have.
func (g *groupWriter) room() int { return int(min(math.MaxInt32, max(1, g.target-g.inGroup))) }

func (g *groupWriter) write(runs []run, rows int) error {
	for _, c := range g.chunks {
		c.take(runs)
	}
	g.inGroup += int64(rows)
	g.remaining -= int64(rows)
	if g.inGroup < g.target || g.remaining <= 0 {
		return nil
	}
	// Without dictionaries: a group comes out larger than it says, never smaller.
	bytes := int64(0)
	for _, c := range g.chunks {
		c.endPage()
		bytes += c.size
	}
	if bytes < minGroupBytes {
		g.target += pageValues
		return nil
	}
	// A little more than that: the rows to come may compress better than those before.
	needed := math.Ceil(1.1 * float64(g.inGroup) * minGroupBytes / float64(bytes))
	g.minRows = max(minGroupRows, int64(needed))
	if g.remaining < g.minRows {
		// Too few for a group of their own.
		g.target += g.remaining
		return nil
	}
	if err := g.endGroup(); err != nil {
		return err
	}
	g.plan()
	return nil
}

func (g *groupWriter) endGroup() error {
	group := g.meta.AppendRowGroup()
	group.SetNumRows(int(g.inGroup))
	for i, c := range g.chunks {
		if err := c.end(g, group.NextColumnChunk()); err != nil {
			return fmt.Errorf("column %s of row group %d: %w", c.column.Path(), g.groups, err)
		}
		g.chunks[i] = c.next()
	}
	if err := group.Finish(0, g.groups); err != nil {
		return err
	}
	g.groups++
	return g.sink.err
}

// close writes the last group and the footer.
func (g *groupWriter) close(meta map[string]string) error {
	if g.inGroup > 0 {
		if err := g.endGroup(); err != nil {
			return err
		}
	}
	for _, k := range slices.Sorted(maps.Keys(meta)) {
		if err := g.meta.AppendKeyValueMetadata(k, meta[k]); err != nil {
			return fmt.Errorf("add metadata %s: %w", k, err)
		}
	}
	footer, err := g.meta.Finish()
	if err != nil {
		return err
	}
	from := g.sink.n
	if _, err := footer.WriteTo(g.sink, nil); err != nil {
		return err
	}
	g.sink.put(binary.LittleEndian.AppendUint32(nil, uint32(g.sink.n-from)))
	g.sink.put(magic)
	return g.sink.flush()
}

// A sink counts what is written, and remembers the first error.
type sink struct {
	w     *bufio.Writer
	n     int64
	err   error
	muted bool // what is written now is not wanted
}

func (s *sink) Write(p []byte) (int, error) {
	if s.muted {
		return len(p), nil
	}
	n, err := s.w.Write(p)
	s.n += int64(n)
	if err != nil && s.err == nil {
		s.err = err
	}
	return n, err
}

func (s *sink) put(p []byte) { _, _ = s.Write(p) } // it remembers

func (s *sink) flush() error {
	if err := s.w.Flush(); err != nil && s.err == nil {
		s.err = err
	}
	return s.err
}

// Tell is where the next byte goes.
func (s *sink) Tell() int64 { return s.n }
