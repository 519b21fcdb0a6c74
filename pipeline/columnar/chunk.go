package columnar

import (
	"bytes"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
)

const (
	pageValues = 64 << 10 // of one page, about
	// maxDictionary is how large a dictionary may be; values that come later are written plainly.
	maxDictionary = 1 << 20
	maxWordCodes  = 1 << 15
)

// A chunk is a leaf column of the row group that is being written: finished pages, and what goes
// into the next one.
type chunk struct {
	*leaf
	index  int
	packer *packer

	encoding parquet.Encoding // of the next page
	chosen   bool             // encoding is; else the first page's values decide
	later    parquet.Encoding // what follows when the dictionary is full
	vain     int              // pages to come that are not compressed
	pages    []page
	size     int64 // of these

	defs, reps levels
	words      []int64
	room       int // for so many at first
	codes      []uint32
	plain      byteValues

	dict  wordCodes // of words
	texts byteValues
	known map[string]uint32 // of texts

	nulls  int64
	bounds bounds
	group  int
	body   []byte // scratch
}

// A page is a data page that is packed already.
type page struct {
	packed   []byte
	size     int32 // unpacked
	slots    int32
	encoding parquet.Encoding
}

func newChunk(l *leaf, index int, p *packer, rows int64) *chunk {
	c := &chunk{leaf: l, index: index, packer: p, encoding: parquet.Encodings.RLEDict, group: 1}
	if l.kind == parquet.Types.Boolean {
		c.encoding = parquet.Encodings.Plain
	}
	c.chosen = l.bytes || l.kind == parquet.Types.Boolean
	c.later = parquet.Encodings.Plain
	c.room = int(min(rows, pageValues+batchRows))
	c.texts.size, c.plain.size = l.size, l.size
	return c
}

// next is the chunk of the next row group: it has the same buffers, and what was learned of the values.
func (c *chunk) next() *chunk {
	c.pages, c.size = nil, 0
	c.dict.reset()
	c.texts.reset()
	clear(c.known)
	c.nulls, c.bounds = 0, bounds{}
	c.group++
	return c
}

// take appends the rows of runs.
func (c *chunk) take(runs []run) {
	uniform := true
	level := runs[0].in.leaves[c.index].def.level
	rows := 0
	for _, r := range runs {
		rows += r.rows
	}
	if c.leaf.rep > 0 {
		uniform = false
	} else if c.leaf.def > 0 {
		for _, r := range runs {
			if d := &r.in.leaves[c.index].def; d.mixed || d.level != level {
				uniform = false
				break
			}
		}
	}
	switch {
	case uniform && level < c.leaf.def:
		c.defs.repeat(level, rows)
		c.nulls += int64(rows)
	case uniform && !c.bytes:
		c.defs.repeat(level, rows)
		for _, r := range runs {
			c.takeWords(&r.in.leaves[c.index].stretch, r.rows)
		}
	case uniform:
		for _, r := range runs {
			c.defs.repeat(level, r.rows)
			c.takeTexts(&r.in.leaves[c.index].stretch, r.rows)
		}
	default:
		for _, r := range runs {
			s := &r.in.leaves[c.index].stretch
			n := c.takeLevels(s, r.rows)
			if c.bytes {
				c.takeTexts(s, n)
			} else {
				c.takeWords(s, n)
			}
		}
	}
	if c.defs.n >= pageValues {
		c.endPage()
	}
}

// takeWords appends n words.
func (c *chunk) takeWords(s *stretch, n int) {
	words := s.words[s.value : s.value+n]
	s.value += n
	if c.words == nil {
		c.words = make([]int64, 0, c.room)
	}
	if n == 1 { // of rows that change places one by one: a call to copy would take longer
		c.words = append(c.words, words[0])
		return
	}
	c.words = append(c.words, words...)
}

// takeLevels appends the levels of rows, and returns how many values they have.
func (c *chunk) takeLevels(s *stretch, rows int) int {
	from := s.slot
	to := from + rows
	if c.leaf.rep > 0 {
		for to = from; to < s.rep.n; to++ {
			if s.rep.each[to] == 0 {
				if rows == 0 {
					break
				}
				rows--
			}
		}
		copy(c.reps.add(to-from), s.rep.each[from:to])
	}
	s.slot = to
	if !s.def.mixed {
		c.defs.repeat(s.def.level, to-from)
		if s.def.level < c.leaf.def {
			c.nulls += int64(to - from)
			return 0
		}
		return to - from
	}
	there := 0
	for _, l := range s.def.each[from:to] {
		if l == c.leaf.def {
			there++
		}
	}
	copy(c.defs.add(to-from), s.def.each[from:to])
	c.nulls += int64(to - from - there)
	return there
}

// takeTexts appends n byte strings.
func (c *chunk) takeTexts(s *stretch, n int) {
	codes := s.codes[s.value : s.value+n]
	s.value += n
	if c.encoding == parquet.Encodings.Plain {
		for _, code := range codes {
			b := s.text(code)
			c.bounds.see(c.leaf, b)
			appendText(&c.plain, b)
		}
		if len(c.plain.data) >= dataPageSize {
			c.endPage()
		}
		return
	}
	if s.dict != nil && s.dict.group != c.group {
		s.dict.group = c.group
		s.dict.out = slices.Grow(s.dict.out[:0], len(s.dict.at))[:len(s.dict.at)]
		clear(s.dict.out)
	}
	for _, code := range codes {
		if code&inOwn != 0 {
			b := s.text(code)
			if n := len(c.codes); n > 0 && bytes.Equal(b, c.texts.value(c.codes[n-1])) {
				c.codes = append(c.codes, c.codes[n-1]) // rows are sorted
				continue
			}
			c.codes = append(c.codes, c.codeOf(b))
			continue
		}
		out := s.dict.out[code]
		if out == 0 {
			out = c.codeOf(s.dict.value(code)) + 1
			s.dict.out[code] = out
		}
		c.codes = append(c.codes, out-1)
	}
	if len(c.texts.data) > maxDictionary {
		c.endPage()
		c.encoding = parquet.Encodings.Plain
	}
}

// codeOf finds a byte string in the dictionary, or puts it there.
func (c *chunk) codeOf(b []byte) uint32 {
	code, ok := c.known[string(b)]
	if !ok {
		if c.known == nil {
			c.known = map[string]uint32{}
		}
		code = uint32(len(c.texts.at))
		c.known[string(b)] = code
		appendText(&c.texts, b)
	}
	return code
}

// endPage packs what is there as a page.
func (c *chunk) endPage() {
	n := c.defs.n
	if n == 0 {
		return
	}
	if !c.bytes {
		c.bounds.seeWords(c.leaf, c.words)
		if !c.chosen {
			c.choose()
		}
		if c.encoding == parquet.Encodings.RLEDict && !c.encodeWords() {
			c.encoding = c.later
		}
	}
	b := c.body[:0]
	if c.leaf.rep > 0 {
		b = c.reps.appendTo(b, c.leaf.rep)
	}
	if c.leaf.def > 0 {
		b = c.defs.appendTo(b, c.leaf.def)
	}
	encoding := c.encoding
	if len(c.words)+len(c.codes) == 0 && len(c.dict.words)+len(c.texts.at) == 0 {
		encoding = parquet.Encodings.Plain // nothing but nulls so far: no dictionary
	}
	switch encoding {
	case parquet.Encodings.RLEDict:
		entries := len(c.dict.words)
		if c.bytes {
			entries = len(c.texts.at)
		}
		b = appendCodes(b, c.codes, entries)
	case parquet.Encodings.DeltaBinaryPacked:
		b = appendDelta(b, c.words, c.kind == parquet.Types.Int32)
	default:
		b = append(b, c.plain.data...)
		b = appendWords(b, c.words, c.kind)
	}
	p := page{packed: c.pack(b), size: int32(len(b)), slots: int32(n), encoding: encoding}
	c.pages = append(c.pages, p)
	c.size += int64(len(p.packed))
	c.body, c.words, c.codes = b, c.words[:0], c.codes[:0]
	c.defs.reset()
	c.reps.reset()
	c.plain.reset()
}

// pack compresses a page, unless it was in vain with the pages before it: every so often it is tried
// again.
func (c *chunk) pack(b []byte) []byte {
	if c.vain > 0 {
		c.vain--
		return c.packer.store(b)
	}
	packed := c.packer.pack(b)
	if inVain(len(packed), len(b)) {
		c.vain = trustedPages
	}
	return packed
}

// inVain reports whether compressing saves less than what it costs to compress and to read again:
// one part in 64.
func inVain(packed, size int) bool { return size >= 1<<10 && packed > size-size/64 }

// trustedPages are written as the one before was found to be.
const trustedPages = 7

// Encodings as footers number them.
const (
	plainValues       = 0
	deltaBinaryPacked = 5
)

// end writes the column's pages.
func (c *chunk) end(g *groupWriter, meta *metadata.ColumnChunkMetaDataBuilder) error {
	c.endPage()
	w, err := file.NewPageWriter(g.sink, g.codec, compressionLevel, meta, g.groups, int16(c.index), g.mem, false, nil, nil)
	if err != nil {
		return err
	}
	encodings := map[parquet.Encoding]bool{}
	for _, p := range c.pages {
		encodings[p.encoding] = true
	}
	coded := encodings[parquet.Encodings.RLEDict]
	if coded {
		entries, n := c.texts.data, len(c.texts.at)
		if !c.bytes {
			entries, n = appendWords(nil, c.dict.words, c.kind), len(c.dict.words)
		}
		d := file.NewDictionaryPage(memory.NewBufferBytes(entries), int32(n), parquet.Encodings.Plain)
		if _, err := w.WriteDictionaryPage(d); err != nil {
			return err
		}
	}
	for _, p := range c.pages {
		d := file.NewDataPageV1(memory.NewBufferBytes(p.packed), p.slots, p.encoding, parquet.Encodings.RLE, parquet.Encodings.RLE, p.size)
		if _, err := w.WriteDataPage(d); err != nil {
			return err
		}
		d.Release()
	}
	meta.SetStats(c.statistics())
	// arrow-go would put a second copy of the metadata behind the pages.
	g.sink.muted = true
	err = w.Close(coded, coded && len(encodings) > 1)
	g.sink.muted = false
	if err != nil {
		return err
	}
	// arrow-go knows of one encoding for a column, not of one for a chunk, and has pages counted in
	// random order.
	md := meta.Contents().MetaData
	if encodings[parquet.Encodings.DeltaBinaryPacked] {
		if coded {
			md.Encodings[len(md.Encodings)-1] = deltaBinaryPacked
		} else if md.Encodings[0] = deltaBinaryPacked; encodings[parquet.Encodings.Plain] {
			md.Encodings = append(md.Encodings, plainValues)
		}
	}
	for s := md.EncodingStats; len(s) > 1; s = s[1:] {
		for i := range s {
			if s[i].PageType > s[0].PageType || s[i].PageType == s[0].PageType && s[i].Encoding > s[0].Encoding {
				s[0], s[i] = s[i], s[0]
			}
		}
	}
	return nil
}
