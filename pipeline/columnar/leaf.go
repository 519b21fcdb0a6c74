package columnar

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/schema"
)

// Parts are merged leaf column by leaf column, as Parquet has them: the levels that say what is
// null and where lists begin, and the values that are there. Nothing becomes an Arrow row.

// A leaf is what is known of a leaf column.
type leaf struct {
	column   *schema.Column
	kind     parquet.Type
	def, rep uint8 // greatest levels
	bytes    bool  // values are byte strings, and words if not
	size     int   // of a byte string; 0 if each has its own
}

func newLeaf(c *schema.Column) *leaf {
	return &leaf{
		column: c, kind: c.PhysicalType(),
		bytes: c.PhysicalType() == parquet.Types.ByteArray || c.PhysicalType() == parquet.Types.FixedLenByteArray,
		size:  max(0, c.TypeLength()),
		def:   uint8(c.MaxDefinitionLevel()), rep: uint8(c.MaxRepetitionLevel()),
	}
}

// A byteValues is a list of byte strings as Parquet's PLAIN encoding has them.
type byteValues struct {
	size int // of each, 0 if its length stands in front of it
	data []byte
	at   []uint32 // where each begins, behind its length
}

// add appends n values of plain bytes, and returns the rest of these.
func (v *byteValues) add(plain []byte, n int) ([]byte, error) {
	from := len(v.data)
	at := 0
	for range n {
		size := v.size
		if size == 0 {
			if len(plain)-at < 4 {
				return nil, errShortPage
			}
			size = int(binary.LittleEndian.Uint32(plain[at:]))
			at += 4
		}
		if size < 0 || size > len(plain)-at {
			return nil, errShortPage
		}
		v.at = append(v.at, uint32(from+at))
		at += size
	}
	v.data = append(v.data, plain[:at]...)
	return plain[at:], nil
}

// appendText appends one value.
func appendText[T []byte | string](v *byteValues, b T) {
	if v.size == 0 {
		v.data = binary.LittleEndian.AppendUint32(v.data, uint32(len(b)))
	}
	v.at = append(v.at, uint32(len(v.data)))
	v.data = append(v.data, b...)
}

func (v *byteValues) value(i uint32) []byte {
	at := v.at[i]
	size := uint32(v.size)
	if size == 0 {
		size = binary.LittleEndian.Uint32(v.data[at-4:])
	}
	return v.data[at : at+size]
}

func (v *byteValues) reset() { v.data, v.at = v.data[:0], v.at[:0] }

// A dictionary is that of one row group of a part. It remembers what its values are in the
// dictionary that is being written.
type dictionary struct {
	byteValues
	ranks []uint32 // among all that the parts have; 0 is not known
	group int      // for which out holds
	out   []uint32 // code there + 1; 0 is not known
}

// inOwn marks codes of values that are in no dictionary.
const inOwn = 1 << 31

// A stretch is what is decoded of a leaf column: some whole rows.
type stretch struct {
	*leaf
	def, rep levels
	words    []int64  // the values that are there
	codes    []uint32 // the same of bytes: in dict, or with inOwn set in own
	dict     *dictionary
	own      byteValues

	slot, value int   // what is merged next
	at          []int // of each row its value, -1 where it is null; made when asked for
}

// index is where the value of a row is among those that are there; -1 if it is null. The leaf is
// not in a list.
func (s *stretch) index(row int) int {
	switch {
	case s.leaf.def == 0 || s.def.all(s.leaf.def):
		return row
	case !s.def.mixed:
		return -1
	}
	if len(s.at) == 0 {
		n := 0
		for _, l := range s.def.each {
			if l < s.leaf.def {
				s.at = append(s.at, -1)
				continue
			}
			s.at = append(s.at, n)
			n++
		}
	}
	return s.at[row]
}

func (s *stretch) reset() {
	s.at = s.at[:0]
	s.slot, s.value = 0, 0
	s.words, s.codes = s.words[:0], s.codes[:0]
	s.def.reset()
	s.rep.reset()
	s.own.reset()
}

// text is the byte string of a code.
func (s *stretch) text(code uint32) []byte {
	if code&inOwn != 0 {
		return s.own.value(code &^ inOwn)
	}
	return s.dict.value(code)
}

// A levels is a list of levels. Most are all the same.
type levels struct {
	n     int
	mixed bool
	level uint8   // of all, unless they are mixed
	each  []uint8 // if they are
}

func (l *levels) reset() { l.n, l.mixed, l.each = 0, false, l.each[:0] }

// all reports whether each one is level.
func (l *levels) all(level uint8) bool { return !l.mixed && (l.n == 0 || l.level == level) }

func (l *levels) repeat(level uint8, n int) {
	if n == 0 {
		return
	}
	if l.all(level) {
		l.level = level
		l.n += n
		return
	}
	l.mix()
	for range n {
		l.each = append(l.each, level)
	}
	l.n += n
}

func (l *levels) mix() {
	if l.mixed {
		return
	}
	for range l.n {
		l.each = append(l.each, l.level)
	}
	l.mixed = true
}

// unmix notices that all levels are the same.
func (l *levels) unmix() {
	if l.n == 0 || !l.mixed || repeated(l.each) < max(8, l.n) {
		return
	}
	l.level, l.each, l.mixed = l.each[0], l.each[:0], false
}

// add appends n levels for the caller to fill.
func (l *levels) add(n int) []uint8 {
	l.mix()
	l.each = slices.Grow(l.each, n)[:l.n+n]
	l.n += n
	return l.each[l.n-n:]
}

// appendTo appends the levels as data pages have them.
func (l *levels) appendTo(b []byte, greatest uint8) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	width := widthOf(uint32(greatest))
	if l.mixed {
		b = appendHybrid(b, l.each, width)
	} else if l.n > 0 {
		b = binary.AppendUvarint(b, uint64(l.n)<<1)
		b = append(b, l.level)
	}
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

// compareBytes orders values of a leaf: decimals as numbers, others byte by byte.
func (l *leaf) compareBytes(a, b []byte) int {
	if l.column.SortOrder() == schema.SortSIGNED && len(a) == len(b) && len(a) > 0 && (a[0]^b[0])&0x80 != 0 {
		return bytes.Compare(b[:1], a[:1]) // two's complement: the negative one has the greater byte
	}
	return bytes.Compare(a, b)
}
