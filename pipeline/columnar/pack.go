package columnar

import (
	"bytes"
	"encoding/binary"

	"github.com/apache/arrow-go/v18/parquet/compress"
)

// compressionLevel is Zstandard's. Pages are small already when they get there: higher levels take
// far more time than they save bytes.
const compressionLevel = 1

// A packer compresses pages.
type packer struct {
	codec   compress.Codec // nil: none
	scratch []byte
}

func newPacker(c compress.Compression) *packer {
	if c == compress.Codecs.Uncompressed {
		return &packer{}
	}
	codec, err := compress.GetCodec(c)
	if err != nil {
		panic(err) // Zstandard is compiled in
	}
	return &packer{codec: codec}
}

// pack returns the bytes compressed. They are the caller's.
func (p *packer) pack(b []byte) []byte {
	if p.codec == nil {
		return bytes.Clone(b)
	}
	if n := int(p.codec.CompressBound(int64(len(b)))); n > cap(p.scratch) {
		p.scratch = make([]byte, 0, n)
	}
	return bytes.Clone(p.codec.EncodeLevel(p.scratch[:0], b, compressionLevel))
}

// store returns the bytes in a frame that says they are not compressed (RFC 8878, 3.1.1): every reader
// of Zstandard takes it, and copies.
func (p *packer) store(b []byte) []byte {
	const (
		most     = 128 << 10 // of a block
		withSize = 2 << 6    // four bytes say how much it holds
		single   = 1 << 5    // in one piece
	)
	if p.codec == nil {
		return bytes.Clone(b)
	}
	f := make([]byte, 0, len(b)+9+3*(len(b)/most+1))
	f = append(f, 0x28, 0xb5, 0x2f, 0xfd, withSize|single)
	f = binary.LittleEndian.AppendUint32(f, uint32(len(b)))
	for {
		n := min(most, len(b))
		last := 0
		if n == len(b) {
			last = 1
		}
		h := n<<3 | last
		f = append(f, byte(h), byte(h>>8), byte(h>>16))
		f = append(f, b[:n]...)
		if b = b[n:]; last == 1 {
			return f
		}
	}
}

// wordCodes is a dictionary of words: a table with open addresses, at most half full.
type wordCodes struct {
	words []int64
	table []uint32 // code + 1
	shift uint
}

func (d *wordCodes) reset() {
	d.words = d.words[:0]
	clear(d.table)
}

// code finds a word, or gives it the next code.
func (d *wordCodes) code(w int64) uint32 {
	if 2*len(d.words) >= len(d.table) {
		d.grow()
	}
	mask := uint64(len(d.table) - 1)
	for i := uint64(w) * 0x9e3779b97f4a7c15 >> d.shift; ; i++ {
		switch at := d.table[i&mask]; {
		case at == 0:
			d.words = append(d.words, w)
			d.table[i&mask] = uint32(len(d.words))
			return uint32(len(d.words) - 1)
		case d.words[at-1] == w:
			return at - 1
		}
	}
}

func (d *wordCodes) grow() {
	bits := uint(10)
	for 1<<bits < 4*len(d.words) {
		bits++
	}
	d.table, d.shift = make([]uint32, 1<<bits), 64-bits
	words := d.words
	d.words = d.words[:0]
	for _, w := range words {
		d.code(w)
	}
}
