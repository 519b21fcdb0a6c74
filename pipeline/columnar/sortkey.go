package columnar

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"

	"telemetrylake/schemas"
)

// Rows are compared by one number each: the order columns side by side, byte strings as their rank
// among all that the parts have, words as how far they are from the least. What does not fit is
// left out, and rows with equal numbers are then compared value by value.

const (
	maxRanked      = 1 << 18  // byte strings of a column that get a rank
	maxRankedBytes = 16 << 20 // of them together
)

// A sortKey makes these numbers.
type sortKey struct {
	columns []keyColumn
	whole   int // how many columns are in the number completely
}

type keyColumn struct {
	*leaf
	index   int
	compare func(a, b []byte) int
	bits    int // in the number, after drop was taken off; 0 is none
	drop    int
	least   int64
	most    uint64 // above the least
	ranks   map[string]uint32
}

// newSortKey knows the order of the named columns, and of the position in the stream where the
// parts have it. The number is made of what the parts' footers and dictionaries say.
func newSortKey(inputs []*input, names []string) (*sortKey, error) {
	first := inputs[0]
	all := totalOrder(first.schema, names)
	k := &sortKey{}
	left := 64
	for n, name := range all {
		at := first.schema.FieldIndices(name)
		if len(at) != 1 {
			return nil, fmt.Errorf("order by column %s: the rows have %d columns of that name", name, len(at))
		}
		if t := first.schema.Field(at[0]).Type; arrow.IsNested(t.ID()) {
			return nil, fmt.Errorf("order by column %s: values of type %s have no order", name, t)
		}
		i := slices.IndexFunc(first.leaves, func(r *leafReader) bool {
			path := r.column.ColumnPath()
			return len(path) == 1 && path[0] == name
		})
		c := keyColumn{leaf: first.leaves[i].leaf, index: i}
		c.compare = c.compareBytes
		if name == string(schemas.StreamSeq) {
			c.compare = func(a, b []byte) int { return compareSequence(string(a), string(b)) }
		}
		// The position only tells apart what is equal.
		if left > 0 && n < len(names) {
			if err := c.measure(inputs); err != nil {
				return nil, err
			}
			if c.drop = max(0, c.bits-left); c.bits == 0 || c.drop > 0 {
				c.bits = min(c.bits, left)
				left = 0
			} else {
				left -= c.bits
				k.whole++
			}
		} else {
			left = 0
		}
		k.columns = append(k.columns, c)
	}
	return k, nil
}

// measure finds out how many bits the column takes.
func (c *keyColumn) measure(inputs []*input) error {
	if c.bytes {
		if err := c.rank(inputs); err != nil || c.ranks == nil {
			return err
		}
		c.bits = bits.Len(uint(len(c.ranks)))
		return nil
	}
	least, greatest, ok := int64(math.MaxInt64), int64(math.MinInt64), c.kind != parquet.Types.Double
	for _, in := range inputs {
		for _, chunk := range in.chunks(c.index) {
			lo, hi, known := wordBounds(chunk)
			if !known {
				ok = false
			}
			least, greatest = min(least, lo), max(greatest, hi)
		}
	}
	if !ok {
		least, greatest = math.MinInt64, math.MaxInt64
	}
	if least > greatest {
		least, greatest = 0, 0 // all is null
	}
	c.least, c.most = least, uint64(greatest)-uint64(least)
	if c.bits = bits.Len64(c.most); c.def > 0 {
		if c.most++; c.most == 0 { // room for null
			c.bits, c.most = 0, 0
			return nil
		}
		c.bits = bits.Len64(c.most)
	}
	c.bits = max(1, c.bits)
	return nil
}

// wordBounds are those that the footer gives; least above greatest is nothing but nulls.
func wordBounds(c *metadata.ColumnChunkMetaData) (least, greatest int64, ok bool) {
	s, err := c.Statistics()
	if err != nil || s == nil {
		return 0, 0, false
	}
	if !s.HasMinMax() {
		return math.MaxInt64, math.MinInt64, s.HasNullCount() && s.NullCount() == c.NumValues()
	}
	word := func(b []byte) int64 {
		switch len(b) {
		case 8:
			return int64(binary.LittleEndian.Uint64(b))
		case 4:
			return int64(int32(binary.LittleEndian.Uint32(b)))
		}
		return int64(b[0])
	}
	return word(s.EncodeMin()), word(s.EncodeMax()), true
}

// rank reads the column of all parts, only the dictionaries where all values are in them. Where
// these are too many there are no ranks.
func (c *keyColumn) rank(inputs []*input) error {
	seen := map[string]uint32{}
	size := 0
	see := func(b []byte) bool {
		if _, ok := seen[string(b)]; !ok {
			seen[string(b)] = 0
			size += len(b)
		}
		return len(seen) <= maxRanked && size <= maxRankedBytes
	}
	for _, in := range inputs {
		if ok, err := in.distinct(c, see); err != nil || !ok {
			return err
		}
	}
	sorted := make([]string, 0, len(seen))
	for s := range seen {
		sorted = append(sorted, s)
	}
	slices.SortFunc(sorted, func(a, b string) int {
		return cmp.Or(c.compare([]byte(a), []byte(b)), strings.Compare(a, b))
	})
	rank := uint32(1) // 0 is null
	for i, s := range sorted {
		if i > 0 && c.compare([]byte(sorted[i-1]), []byte(s)) != 0 {
			rank++
		}
		seen[s] = rank
	}
	c.ranks = seen
	return nil
}

// distinct calls see with each value of a column, some more than once; it is false if see was.
func (in *input) distinct(c *keyColumn, see func([]byte) bool) (ok bool, err error) {
	defer func() { err = blame(in.part, "read", err) }()
	defer recovered(&err)
	r := &leafReader{stretch: stretch{leaf: c.leaf}, index: c.index}
	defer r.close()
	for g := range in.file.NumRowGroups() {
		group := in.file.RowGroup(g)
		if err := r.begin(group); err != nil {
			return false, err
		}
		chunk, err := group.MetaData().ColumnChunk(c.index)
		if err != nil {
			return false, err
		}
		if dictionaryOnly(chunk) {
			if _, err := r.next(); err != nil {
				return false, err
			}
			for i := 0; r.dict != nil && i < len(r.dict.at); i++ {
				if !see(r.dict.value(uint32(i))) {
					return false, nil
				}
			}
			continue
		}
		for left := int(group.NumRows()); left > 0; left -= in.atOnce {
			if err := r.read(min(left, in.atOnce)); err != nil {
				return false, err
			}
			for _, code := range r.codes {
				if !see(r.text(code)) {
					return false, nil
				}
			}
		}
	}
	return true, nil
}

// dictionaryOnly reports whether the footer says that no page has values of its own.
func dictionaryOnly(c *metadata.ColumnChunkMetaData) bool {
	data := 0
	for _, s := range c.EncodingStats() {
		if s.PageType == file.PageTypeDataPage {
			if data++; s.Encoding != parquet.Encodings.RLEDict && s.Encoding != parquet.Encodings.PlainDict {
				return false
			}
		}
	}
	return data > 0
}

// numbers computes those of the input's rows.
func (k *sortKey) numbers(in *input) error {
	in.keys = slices.Grow(in.keys[:0], in.rows)[:in.rows]
	in.fields = slices.Grow(in.fields[:0], in.rows)[:in.rows]
	clear(in.keys)
	for i := range k.columns {
		c := &k.columns[i]
		if c.bits == 0 {
			break
		}
		if err := c.fields(in.leaves[c.index], in.fields); err != nil {
			return err
		}
		for j, f := range in.fields {
			in.keys[j] = in.keys[j]<<c.bits | f>>c.drop
		}
	}
	return nil
}

// fields are what the column adds to the rows' numbers.
func (c *keyColumn) fields(s *leafReader, to []uint64) error {
	there := to
	if s.leaf.def > 0 && !s.def.all(s.leaf.def) {
		there = to[:len(s.words)+len(s.codes)]
	}
	if c.bytes {
		for i, code := range s.codes {
			r, ok := c.rankOf(&s.stretch, code)
			if !ok {
				return fmt.Errorf("column %s: a dictionary has changed", c.column.Name())
			}
			there[i] = r
		}
	} else {
		null := uint64(min(1, s.leaf.def))
		for i, w := range s.words {
			if c.kind == parquet.Types.Double {
				w = sortable(w)
			}
			there[i] = uint64(w) - uint64(c.least) + null
		}
		if len(there) > 0 && slices.Max(there) > c.most {
			return fmt.Errorf("column %s: a value is not between the least and the greatest of its footer", c.column.Name())
		}
	}
	if len(there) < len(to) {
		v := len(there)
		for row := len(to) - 1; row >= 0; row-- {
			to[row] = 0
			if s.def.mixed && s.def.each[row] == s.leaf.def {
				v--
				to[row] = there[v]
			}
		}
	}
	return nil
}

// sortable maps the bits of a double to a word that sorts as it does.
func sortable(w int64) int64 {
	switch f := math.Float64frombits(uint64(w)); {
	case f != f:
		return math.MinInt64 // as package cmp has it
	case f == 0:
		return 0 // of either sign
	case f < 0:
		return math.MinInt64 - w
	}
	return w
}

func (c *keyColumn) rankOf(s *stretch, code uint32) (uint64, bool) {
	if code&inOwn != 0 {
		r, ok := c.ranks[string(s.text(code))]
		return uint64(r), ok
	}
	if s.dict.ranks == nil {
		s.dict.ranks = make([]uint32, len(s.dict.at))
	}
	r := s.dict.ranks[code]
	if r == 0 {
		r = c.ranks[string(s.dict.value(code))]
		s.dict.ranks[code] = r
	}
	return uint64(r), r > 0
}

// A keyCell is a value of an order column.
type keyCell struct {
	there bool
	word  int64
	text  []byte
}

func (c *keyColumn) cell(in *input, row int) keyCell {
	s := &in.leaves[c.index].stretch
	v := s.index(row)
	switch {
	case v < 0:
		return keyCell{}
	case c.bytes:
		return keyCell{there: true, text: s.text(s.codes[v])}
	}
	return keyCell{there: true, word: s.words[v]}
}

func (c *keyColumn) compareCells(a, b keyCell) int {
	switch {
	case !a.there || !b.there:
		return compareBool(a.there, b.there) // nulls come first
	case c.bytes:
		return c.compare(a.text, b.text)
	case c.kind == parquet.Types.Double:
		return cmp.Compare(math.Float64frombits(uint64(a.word)), math.Float64frombits(uint64(b.word)))
	}
	return cmp.Compare(a.word, b.word)
}

// rest are the cells of a row that its number says nothing of, for when the row is gone.
func (k *sortKey) rest(in *input, row int) []keyCell {
	var cells []keyCell
	for i := range k.columns[k.whole:] {
		cell := k.columns[k.whole+i].cell(in, row)
		cell.text = bytes.Clone(cell.text)
		cells = append(cells, cell)
	}
	return cells
}

// compareRest compares rows whose numbers are the same.
func (k *sortKey) compareRest(a *input, i int, b *input, j int) int {
	for n := k.whole; n < len(k.columns); n++ {
		c := &k.columns[n]
		if r := c.compareCells(c.cell(a, i), c.cell(b, j)); r != 0 {
			return r
		}
	}
	return 0
}
