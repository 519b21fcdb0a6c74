package columnar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// Levels and dictionary codes lie in Parquet's hybrid of runs: a header with the lowest bit clear
// says how often the value that follows stands there, one with it set how many groups of eight
// bit-packed values follow. https://parquet.apache.org/docs/file-format/data-pages/encodings/

var errShortPage = errors.New("a page ends within its values")

// unpack reads len(dst) values of width bits, at most 32, from bit on.
func unpack(dst []uint32, src []byte, bit, width int) {
	mask := uint64(1)<<width - 1
	i := 0
	for last := len(src) - 8; i < len(dst) && bit>>3 <= last; i++ {
		dst[i] = uint32(binary.LittleEndian.Uint64(src[bit>>3:]) >> (bit & 7) & mask)
		bit += width
	}
	if i == len(dst) {
		return
	}
	// Fewer than eight bytes are left.
	var end [16]byte
	from := min(bit>>3, len(src))
	copy(end[:], src[from:])
	for bit -= 8 * from; i < len(dst) && bit < 64; i++ {
		dst[i] = uint32(binary.LittleEndian.Uint64(end[bit>>3:]) >> (bit & 7) & mask)
		bit += width
	}
}

// A hybridReader reads values of one width, as many at a time as its caller likes.
type hybridReader struct {
	src    []byte
	width  int
	run    int    // values of the current run that are still to come
	value  uint32 // of the run, if it repeats one
	packed []byte // where the run begins, if it is packed
	bit    int
}

func (r *hybridReader) reset(src []byte, width int) error {
	if width > 32 {
		return fmt.Errorf("values of %d bits", width)
	}
	*r = hybridReader{src: src, width: width}
	return nil
}

// next begins the next run.
func (r *hybridReader) next() error {
	h, n := binary.Uvarint(r.src)
	if n <= 0 || h>>1 == 0 || h>>1 > 1<<31 {
		return errShortPage
	}
	r.src = r.src[n:]
	if h&1 == 0 {
		size := (r.width + 7) / 8
		if size > len(r.src) {
			return errShortPage
		}
		var v [4]byte
		copy(v[:], r.src[:size])
		r.src, r.run, r.value, r.packed = r.src[size:], int(h>>1), binary.LittleEndian.Uint32(v[:]), nil
		return nil
	}
	// A writer may leave out what the last group has and nobody reads.
	size := min(int(h>>1)*r.width, len(r.src))
	if r.run = int(h>>1) * 8; r.width > 0 {
		r.run = min(r.run, size*8/r.width)
	}
	if r.run == 0 {
		return errShortPage
	}
	r.packed, r.src, r.bit = r.src, r.src[size:], 0
	return nil
}

// read fills dst.
func (r *hybridReader) read(dst []uint32) error {
	for len(dst) > 0 {
		if r.run == 0 {
			if err := r.next(); err != nil {
				return err
			}
		}
		n := min(r.run, len(dst))
		if r.packed == nil {
			for i := range dst[:n] {
				dst[i] = r.value
			}
		} else {
			unpack(dst[:n], r.packed, r.bit, r.width)
			r.bit += n * r.width
		}
		r.run -= n
		dst = dst[n:]
	}
	return nil
}

// repeats reports whether the next n values are the same, and which; it reads them only if so.
func (r *hybridReader) repeats(n int) (uint32, bool) {
	if r.run == 0 && r.next() != nil || r.packed != nil || r.run < n {
		return 0, false
	}
	r.run -= n
	return r.value, true
}

// appendHybrid appends values of one width: eight or more of the same as a run, others packed.
func appendHybrid[T uint8 | uint32](b []byte, values []T, width int) []byte {
	for len(values) > 0 {
		// Packed values come in eights, so that a run begins where such a group does.
		packed := 0
		run := 0
		for packed < len(values) {
			if run = repeated(values[packed:]); run >= 8 {
				break
			}
			packed += 8
		}
		if groups := min(packed, len(values)+7) / 8; groups > 0 {
			b = binary.AppendUvarint(b, uint64(groups)<<1|1)
			b = pack(b, values[:min(packed, len(values))], width)
		}
		if packed >= len(values) {
			return b
		}
		b = binary.AppendUvarint(b, uint64(run)<<1)
		for i, v := 0, uint32(values[packed]); i < (width+7)/8; i++ {
			b = append(b, byte(v>>(8*i)))
		}
		values = values[packed+run:]
	}
	return b
}

// repeated is how often the first value stands there in a row; less than eight is not counted
// exactly.
func repeated[T uint8 | uint32](values []T) int {
	if len(values) < 8 || values[0] != values[7] {
		return 0
	}
	n := 1
	for n < len(values) && values[n] == values[0] {
		n++
	}
	return n
}

// pack appends values of width bits, filled up with zeros to a multiple of eight.
func pack[T uint8 | uint32 | uint64](b []byte, values []T, width int) []byte {
	size := (len(values) + 7) / 8 * width
	at := len(b)
	b = slices.Grow(b, size+8)[:at+size+8]
	var acc uint64
	n := 0
	for _, v := range values {
		acc |= uint64(v) << n
		if n += width; n >= 64 {
			binary.LittleEndian.PutUint64(b[at:], acc)
			at += 8
			n -= 64
			acc = uint64(v) >> (width - n)
		}
	}
	binary.LittleEndian.PutUint64(b[at:], acc)
	clear(b[at+8:])
	return b[:len(b)-8]
}

// widthOf is how many bits the values up to the greatest take.
func widthOf(greatest uint32) int { return bits.Len32(greatest) }
