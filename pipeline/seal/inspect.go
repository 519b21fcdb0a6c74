package seal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"telemetrylake/pipeline"
)

// A Kind is what a piece of an object is.
type Kind string

// Kinds of pieces.
const (
	KindPart    Kind = "part"    // of a window, not sealed yet
	KindProbe   Kind = "probe"   // what tried a delivery stream out
	KindSealed  Kind = "sealed"  // a lake object
	KindNewer   Kind = "newer"   // ours, of a newer version: what it says of itself is not known
	KindParquet Kind = "parquet" // anybody's
	// KindUnread is a file whose pages are where its footer says, and whose values cannot be decoded:
	// they are damaged, or packed as the reader that verifies cannot unpack them.
	KindUnread Kind = "unread"
	KindDamage Kind = "damage" // no whole Parquet file
)

// An Inspection is what an object holds: every byte is in one of its pieces, in order.
type Inspection struct {
	Bytes  int64   `json:"bytes"`
	Rows   int64   `json:"rows"` // of all files that were read to their end
	Pieces []Piece `json:"pieces"`
	Plain  Plain   `json:"plain_reader"`
}

// A Plain is what a reader makes of the object that takes it for one file, as Athena does: it
// follows the last footer, whose offsets it counts from the object's beginning.
type Plain struct {
	Rows    int64  `json:"rows"`
	Problem string `json:"problem,omitempty"` // why it reads nothing
	// Shows is the index of the piece whose values it reads, whatever the footer says; -1 if they are
	// no piece's.
	Shows int `json:"shows"`
}

// Hidden counts the rows that a plain reader does not get to see.
func (i *Inspection) Hidden() int64 { return max(0, i.Rows-i.Plain.Rows) }

// Files counts the pieces that are Parquet files and were read to their end.
func (i *Inspection) Files() int {
	n := 0
	for _, p := range i.Pieces {
		if p.good() {
			n++
		}
	}
	return n
}

// Foreign reports whether nothing in the object is a Parquet file or the remains of one. An empty
// object is not foreign.
func (i *Inspection) Foreign() bool {
	return len(i.Pieces) > 0 && !slices.ContainsFunc(i.Pieces, func(p Piece) bool { return p.Kind != KindDamage || p.Torn })
}

// A Piece is a Parquet file inside an object, or what lies between two.
type Piece struct {
	Kind      Kind                 `json:"kind"`
	Offset    int64                `json:"offset"`
	Bytes     int64                `json:"bytes"`
	Problem   string               `json:"problem,omitempty"` // of what is damaged or not read
	Torn      bool                 `json:"torn,omitempty"`    // damage that begins or ends as a Parquet file does
	Rows      int64                `json:"rows"`
	Writer    string               `json:"written_by,omitempty"`
	Part      *pipeline.PartMeta   `json:"part,omitempty"`
	Object    *pipeline.ObjectMeta `json:"object,omitempty"`
	Times     []TimeRange          `json:"times,omitempty"`
	RowGroups []RowGroup           `json:"row_groups,omitempty"`

	held  []held // by column
	whole bool   // its pages are where its footer says
}

func (p *Piece) good() bool { return p.Kind != KindDamage && p.Kind != KindUnread }

// A TimeRange is what a column of timestamps holds, read from its values.
type TimeRange struct {
	Column string    `json:"column"`
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
}

// A RowGroup is one of a file's row groups. Sizes are in bytes, with the pages' headers.
type RowGroup struct {
	Offset       int64    `json:"offset"` // of its first page, from the object's beginning
	Rows         int64    `json:"rows"`
	Compressed   int64    `json:"compressed"`
	Uncompressed int64    `json:"uncompressed"`
	Columns      []Column `json:"columns"`
}

// A Column is one column of a row group.
type Column struct {
	Path         string   `json:"path"`
	Type         string   `json:"type"`
	Codec        string   `json:"codec"`
	Encodings    []string `json:"encodings"`
	Values       int64    `json:"values"` // with nulls
	Compressed   int64    `json:"compressed"`
	Uncompressed int64    `json:"uncompressed"`
}

// Inspect reads all of an object, also one that is no Parquet file: it fails only if the bytes
// cannot be had. Every value of every file is decoded.
func Inspect(object *io.SectionReader) (*Inspection, error) {
	src := newSource(object)
	spans, err := splitSource(src)
	if err != nil {
		return nil, err
	}
	in := &Inspection{Bytes: src.size}
	for _, sp := range spans {
		p := Piece{Kind: KindDamage, Offset: sp.off, Bytes: sp.end - sp.off}
		if sp.damage != nil {
			p.Problem = sp.damage.Error()
		} else if err := p.read(newSource(src.section(sp.off, sp.end))); err != nil {
			// Its footer can be read and the rest cannot.
			if p.Kind, p.Problem, p.Rows = KindDamage, err.Error(), 0; p.whole {
				p.Kind = KindUnread
			}
		}
		if p.Kind == KindDamage {
			p.Torn = torn(src, sp)
		}
		in.Rows += p.Rows
		in.Pieces = append(in.Pieces, p)
	}
	in.Plain = in.plain(src)
	return in, src.failed() // which is no damage
}

// torn reports whether a span begins or ends with the magic. What cannot be read the source remembers.
func torn(s *source, sp span) bool {
	n := int64(len(magic))
	if sp.end-sp.off < n {
		return false
	}
	for _, at := range []int64{sp.off, sp.end - n} {
		if b, err := s.bytes(at, at+n); err == nil && bytes.Equal(b, magic) {
			return true
		}
	}
	return false
}

// plain reads the object as if it were one file.
func (i *Inspection) plain(object *source) Plain {
	if len(i.Pieces) == 1 && i.Pieces[0].good() {
		return Plain{Rows: i.Pieces[0].Rows} // it is one file
	}
	var p Piece
	if err := p.read(object); err != nil {
		return Plain{Problem: err.Error(), Shows: -1}
	}
	shows := slices.IndexFunc(i.Pieces, func(q Piece) bool { return q.good() && slices.Equal(q.held, p.held) })
	return Plain{Rows: p.Rows, Shows: shows}
}

// read fills p in from the file's footer and its values.
func (p *Piece) read(body *source) (err error) {
	// The reader panics on some damaged files.
	defer func() {
		if e := recover(); e != nil {
			err = fmt.Errorf("the reader panics: %v", e)
		}
	}()
	if err := checkFooter(body); err != nil {
		return err
	}
	f, err := openFile(body.section(0, body.size))
	if err != nil {
		return err
	}
	md := f.Metadata()
	p.Rows, p.Writer = f.NumRows(), md.CreatedBy
	p.tell(f)
	leaves := leavesOf(f.Root())
	for _, g := range md.RowGroups {
		if len(g.Columns) != len(leaves) {
			return fmt.Errorf("a row group has %d columns, the schema %d", len(g.Columns), len(leaves))
		}
		shown := RowGroup{Offset: p.Offset + body.size, Rows: g.NumRows}
		for i, c := range g.Columns {
			m := &c.MetaData
			shown.Offset = min(shown.Offset, p.Offset+firstPage(m))
			shown.Compressed += m.TotalCompressedSize
			shown.Uncompressed += m.TotalUncompressedSize
			shown.Columns = append(shown.Columns, describe(m, leaves[i]))
			if err := checkPages(body, m); err != nil {
				return fmt.Errorf("column %s: %w", shown.Columns[i].Path, err)
			}
		}
		p.RowGroups = append(p.RowGroups, shown)
	}
	p.whole = true
	if err := checkCodecs(f); err != nil {
		return err
	}
	p.held, err = valuesOf(f, leaves)
	if err != nil {
		return err
	}
	for i, h := range p.held {
		if h.times > 0 {
			p.Times = append(p.Times, TimeRange{strings.Join(leaves[i].Path(), "."), h.from, h.to})
		}
	}
	return nil
}

// checkFooter looks whether a footer is there as the last bytes say: the reader allocates so much.
func checkFooter(body *source) error {
	if body.size < int64(2*len(magic)+4) {
		return fmt.Errorf("%d bytes are too few for a Parquet file", body.size)
	}
	end, err := body.bytes(body.size-8, body.size)
	if err != nil {
		return err
	}
	n, err := FooterSize(end)
	if err == nil && n > min(maxFooter, body.size-int64(len(magic))) {
		err = fmt.Errorf("footer of %d bytes does not fit", n)
	}
	if err != nil {
		return err
	}
	b, err := body.bytes(body.size-n, body.size-8)
	if err != nil {
		return err
	}
	_, err = decodeFooter(b)
	return err
}

// tell fills in what the file says of itself, if it is ours.
func (p *Piece) tell(f *parquet.File) {
	p.Kind = KindParquet
	if text, ok := f.Lookup(pipeline.PartMetaKey); ok {
		m, err := pipeline.DecodePartMeta(text)
		switch {
		case errors.Is(err, pipeline.ErrNewerFormat):
			p.Kind = KindNewer
		case err == nil && m.Probe:
			p.Kind = KindProbe
		case err == nil:
			p.Kind, p.Part = KindPart, m
		}
		return
	}
	if text, ok := f.Lookup(pipeline.ObjectMetaKey); ok {
		m, err := pipeline.DecodeObjectMeta(text)
		switch {
		case errors.Is(err, pipeline.ErrNewerFormat):
			p.Kind = KindNewer
		case err == nil:
			p.Kind, p.Object = KindSealed, m
		}
	}
}

func describe(m *format.ColumnMetaData, leaf *parquet.Column) Column {
	c := Column{
		Path: strings.Join(m.PathInSchema, "."), Type: leaf.Type().String(), Codec: m.Codec.String(),
		Values: m.NumValues, Compressed: m.TotalCompressedSize, Uncompressed: m.TotalUncompressedSize,
	}
	for _, e := range m.Encoding {
		c.Encodings = append(c.Encodings, e.String())
	}
	slices.Sort(c.Encodings)
	c.Encodings = slices.Compact(c.Encodings)
	return c
}

// leavesOf lists the columns that hold values, in the order of the file.
func leavesOf(c *parquet.Column) []*parquet.Column {
	if c.Leaf() {
		return []*parquet.Column{c}
	}
	var leaves []*parquet.Column
	for _, child := range c.Columns() {
		leaves = append(leaves, leavesOf(child)...)
	}
	return leaves
}
