package columnar

import (
	"encoding/binary"

	"github.com/apache/arrow-go/v18/parquet"
)

// encodeWords makes codes of the page's words; false if the dictionary would grow too large.
func (c *chunk) encodeWords() bool {
	before := len(c.dict.words)
	c.codes = c.codes[:0]
	for _, w := range c.words {
		c.codes = append(c.codes, c.dict.code(w))
	}
	if len(c.dict.words) <= maxWordCodes {
		return true
	}
	c.dict.words, c.codes = c.dict.words[:before], c.codes[:0]
	return false
}

// appendCodes appends codes of a dictionary of so many entries as data pages have them.
func appendCodes(b []byte, codes []uint32, entries int) []byte {
	width := widthOf(uint32(max(1, entries) - 1))
	return appendHybrid(append(b, byte(width)), codes, width)
}

// appendWords appends words as they are.
func appendWords(b []byte, words []int64, kind parquet.Type) []byte {
	switch kind {
	case parquet.Types.Boolean:
		bits := make([]uint32, len(words))
		for i, w := range words {
			bits[i] = uint32(w)
		}
		full := pack(nil, bits, 1)
		return append(b, full[:(len(words)+7)/8]...)
	case parquet.Types.Int32:
		for _, w := range words {
			b = binary.LittleEndian.AppendUint32(b, uint32(w))
		}
		return b
	}
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, uint64(w))
	}
	return b
}

// sampled is how many of the first values decide how words are written.
const sampled = 4 << 10

// choose tries the encodings that Athena reads on the first values, and takes what is smallest when
// packed. A dictionary of which every second value is new is none.
func (c *chunk) choose() {
	words := c.words[:min(len(c.words), sampled)]
	if len(words) == 0 {
		return
	}
	c.chosen = true
	vain := false
	try := func(b []byte) int {
		c.body = b
		n := len(c.packer.pack(b))
		vain = inVain(n, len(b))
		return n + len(b)/16 // who packs and unpacks it counts too
	}
	least := try(appendWords(c.body[:0], words, c.kind))
	c.later = parquet.Encodings.Plain
	if c.kind != parquet.Types.Double {
		if n := try(appendDelta(c.body[:0], words, c.kind == parquet.Types.Int32)); n <= least {
			least, c.later = n, parquet.Encodings.DeltaBinaryPacked
			if vain {
				c.vain = trustedPages
			}
		}
	}
	c.encoding = c.later
	defer c.dict.reset()
	c.codes = c.codes[:0]
	for _, w := range words {
		c.codes = append(c.codes, c.dict.code(w))
	}
	if entries := c.dict.words; 2*len(entries) <= len(words) &&
		try(appendCodes(c.body[:0], c.codes, len(entries)))+try(appendWords(c.body[:0], entries, c.kind)) < least {
		c.encoding, c.vain = parquet.Encodings.RLEDict, 0
	}
}
