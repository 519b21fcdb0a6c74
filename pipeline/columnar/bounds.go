package columnar

import (
	"bytes"
	"math"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/schema"
)

func (c *chunk) statistics() metadata.EncodedStatistics {
	for i := range c.texts.at {
		c.bounds.see(c.leaf, c.texts.value(uint32(i)))
	}
	s := metadata.EncodedStatistics{Signed: c.column.SortOrder() == schema.SortSIGNED}
	s.SetNullCount(c.nulls)
	if lo, hi, ok := c.bounds.encoded(c.leaf); ok {
		s.SetMin(lo).SetMax(hi)
		s.ApplyStatSizeLimits(maxStatistics)
	}
	return s
}

// maxStatistics is how long a bound in a footer may be.
const maxStatistics = 4 << 10

// bounds are the least and the greatest value.
type bounds struct {
	known            bool
	least, most      int64
	lowest, greatest []byte
}

func (b *bounds) see(l *leaf, v []byte) {
	if !b.known || l.compareBytes(v, b.lowest) < 0 {
		b.lowest = append(b.lowest[:0], v...)
	}
	if !b.known || l.compareBytes(v, b.greatest) > 0 {
		b.greatest = append(b.greatest[:0], v...)
	}
	b.known = true
}

func (b *bounds) seeWords(l *leaf, words []int64) {
	if len(words) == 0 {
		return
	}
	if l.kind == parquet.Types.Double {
		for _, w := range words {
			if f := math.Float64frombits(uint64(w)); f == f {
				b.seeWord(sortable(w))
			}
		}
		return
	}
	least, most := extremes(words)
	b.seeWord(least)
	b.seeWord(most)
}

// extremes are the least and the greatest of some words: of each four one is compared with one, so
// that they need not wait for each other.
func extremes(words []int64) (least, most int64) {
	l := [4]int64{words[0], words[0], words[0], words[0]}
	m := l
	for ; len(words) >= 4; words = words[4:] {
		for k := range 4 {
			l[k], m[k] = min(l[k], words[k]), max(m[k], words[k])
		}
	}
	for _, w := range words {
		l[0], m[0] = min(l[0], w), max(m[0], w)
	}
	return min(l[0], l[1], l[2], l[3]), max(m[0], m[1], m[2], m[3])
}

func (b *bounds) seeWord(w int64) {
	if !b.known || w < b.least {
		b.least = w
	}
	if !b.known || w > b.most {
		b.most = w
	}
	b.known = true
}

func (b *bounds) encoded(l *leaf) (lo, hi []byte, ok bool) {
	switch {
	case !b.known:
		return nil, nil, false
	case l.bytes:
		return bytes.Clone(b.lowest), bytes.Clone(b.greatest), true
	case l.kind == parquet.Types.Boolean:
		return []byte{byte(b.least)}, []byte{byte(b.most)}, true
	case l.kind == parquet.Types.Double:
		return appendWords(nil, []int64{unsortable(b.least, math.MinInt64)}, l.kind), appendWords(nil, []int64{unsortable(b.most, 0)}, l.kind), true
	}
	return appendWords(nil, []int64{b.least}, l.kind), appendWords(nil, []int64{b.most}, l.kind), true
}

// unsortable is the double that sortable made a word of; of the two zeros the one that is asked for.
func unsortable(w, zero int64) int64 {
	switch {
	case w == 0:
		return zero
	case w < 0:
		return math.MinInt64 - w
	}
	return w
}
