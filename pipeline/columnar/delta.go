package columnar

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
)

// Whole numbers that differ little from their neighbours lie as differences, packed in blocks with
// the least of the block taken off: DELTA_BINARY_PACKED. Blocks and miniblocks have the sizes that
// all writers use.
const (
	deltaBlock = 128
	deltaMini  = 32
)

// appendDelta appends values; those of 32 bits have differences of 32 bits, which wrap around.
func appendDelta(b []byte, values []int64, narrow bool) []byte {
	b = binary.AppendUvarint(b, deltaBlock)
	b = binary.AppendUvarint(b, deltaBlock/deltaMini)
	b = binary.AppendUvarint(b, uint64(len(values)))
	if len(values) == 0 {
		return binary.AppendVarint(b, 0)
	}
	b = binary.AppendVarint(b, values[0])
	var deltas [deltaBlock]int64
	var rest [deltaBlock]uint64
	for last := values[0]; len(values) > 1; {
		n := min(deltaBlock, len(values)-1)
		for i, v := range values[1 : n+1] {
			deltas[i] = v - last
			last = v
		}
		if narrow {
			for i, d := range deltas[:n] {
				deltas[i] = int64(int32(d))
			}
		}
		least := slices.Min(deltas[:n])
		b = binary.AppendVarint(b, least)
		widths := len(b)
		b = append(b, 0, 0, 0, 0)
		clear(rest[n:])
		for from := 0; from < n; from += deltaMini {
			var all uint64
			for i, d := range deltas[from:min(n, from+deltaMini)] {
				r := uint64(d - least)
				if narrow {
					r = uint64(uint32(r))
				}
				rest[from+i] = r
				all |= r
			}
			width := bits.Len64(all)
			b[widths+from/deltaMini] = byte(width)
			b = pack(b, rest[from:from+deltaMini], width)
		}
		values = values[n:]
	}
	return b
}

// A deltaReader reads what appendDelta and other writers make, as many values at a time as its
// caller likes.
type deltaReader struct {
	src      []byte
	block    int // values of a block
	mini     int // values of a miniblock
	left     int // values still to come
	first    bool
	narrow   bool
	last     int64
	least    int64
	widths   []byte // of the miniblocks of this block that are still to come
	inMini   int    // values of this miniblock that are still to come
	packed   []byte
	bit      int
	miniBits int
}

func (r *deltaReader) reset(src []byte, narrow bool) error {
	*r = deltaReader{src: src, narrow: narrow, first: true}
	for _, to := range []*int{&r.block, &r.mini, &r.left} {
		v, n := binary.Uvarint(r.src)
		if n <= 0 || v > 1<<31 {
			return errShortPage
		}
		*to, r.src = int(v), r.src[n:]
	}
	if r.mini == 0 || r.block%r.mini != 0 || r.block/r.mini%8 != 0 || r.block == 0 || r.mini > 1<<10 {
		return fmt.Errorf("blocks of %d values in %d miniblocks", r.block, r.mini)
	}
	v, n := binary.Varint(r.src)
	if n <= 0 {
		return errShortPage
	}
	r.last, r.src = v, r.src[n:]
	r.mini = r.block / r.mini
	return nil
}

// nextMini begins the next miniblock, and the next block if this one is over.
func (r *deltaReader) nextMini() error {
	if len(r.widths) == 0 {
		v, n := binary.Varint(r.src)
		k := r.block / r.mini
		if n <= 0 || len(r.src)-n < k {
			return errShortPage
		}
		r.least, r.widths, r.src = v, r.src[n:n+k], r.src[n+k:]
	}
	r.miniBits, r.widths = int(r.widths[0]), r.widths[1:]
	size := r.mini / 8 * r.miniBits
	if r.miniBits > 64 || size > len(r.src) {
		return errShortPage
	}
	r.packed, r.bit, r.inMini = r.src, 0, r.mini
	if len(r.src)-size < 8 {
		r.packed = append(r.src[:size:size], make([]byte, 9)...) // so that nine bytes can be read where one is
	}
	r.src = r.src[size:]
	return nil
}

// read fills dst.
func (r *deltaReader) read(dst []int64) error {
	if len(dst) > r.left {
		return errShortPage
	}
	r.left -= len(dst)
	if r.first && len(dst) > 0 {
		dst[0] = r.last
		dst, r.first = dst[1:], false
	}
	for len(dst) > 0 {
		if r.inMini == 0 {
			if err := r.nextMini(); err != nil {
				return err
			}
		}
		n := min(r.inMini, len(dst))
		r.unpack(dst[:n])
		r.inMini -= n
		dst = dst[n:]
	}
	return nil
}

func (r *deltaReader) unpack(dst []int64) {
	width, bit, last, least := r.miniBits, r.bit, r.last, r.least
	mask := uint64(1)<<width - 1 // of 64 bits: all
	for i := range dst {
		v := binary.LittleEndian.Uint64(r.packed[bit>>3:]) >> (bit & 7)
		if over := bit&7 + width - 64; over > 0 {
			v |= uint64(r.packed[bit>>3+8]) << (64 - bit&7)
		}
		last += least + int64(v&mask)
		if r.narrow {
			last = int64(int32(last))
		}
		dst[i] = last
		bit += width
	}
	r.last, r.bit = last, bit
}
