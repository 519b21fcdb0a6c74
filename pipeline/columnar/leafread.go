package columnar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
)

// A leafReader decodes one leaf column of a part, some rows at a time. It knows the encodings that
// parts have and refuses others.
type leafReader struct {
	stretch
	index int // of the column
	pages file.PageReader

	left     int // slots of this page that are still to come
	encoding parquet.Encoding
	reps     hybridReader
	defs     hybridReader
	coded    hybridReader
	delta    deltaReader
	plain    []byte
	bit      int     // of a byte of booleans
	ahead    []uint8 // repetition levels of the page that are still to come
	entries  []int64 // the dictionary of words
	scratch  []uint32
}

// begin goes to a row group.
func (r *leafReader) begin(g *file.RowGroupReader) error {
	r.close()
	r.left, r.ahead, r.entries, r.dict = 0, nil, nil, nil
	var err error
	r.pages, err = g.GetColumnPageReader(r.index)
	return err
}

func (r *leafReader) close() {
	if r.pages != nil {
		_ = r.pages.Close() // frees its buffers and cannot fail
		r.pages = nil
	}
}

// next goes to the next page of values; false if the row group has no more.
func (r *leafReader) next() (bool, error) {
	for r.pages.Next() {
		switch p := r.pages.Page().(type) {
		case *file.DictionaryPage:
			if err := r.setDictionary(p); err != nil {
				return false, fmt.Errorf("dictionary: %w", err)
			}
		case *file.DataPageV1:
			if err := r.setPage(p); err != nil {
				return false, err
			}
			if r.left > 0 {
				return true, nil
			}
		default:
			return false, fmt.Errorf("pages of type %T, which no part has", p)
		}
	}
	return false, r.pages.Err()
}

func (r *leafReader) setDictionary(p *file.DictionaryPage) error {
	n := int(p.NumValues())
	if !r.bytes {
		r.plain, r.entries = p.Data(), make([]int64, n)
		return r.readPlain(r.entries)
	}
	r.dict = &dictionary{byteValues: byteValues{size: r.size}}
	_, err := r.dict.add(p.Data(), n)
	return err
}

func (r *leafReader) setPage(p *file.DataPageV1) error {
	r.left, r.encoding = int(p.NumValues()), parquet.Encoding(p.Encoding())
	b := p.Data()
	for _, l := range []struct {
		to       *hybridReader
		greatest uint8
		encoding parquet.Encoding
	}{{&r.reps, r.leaf.rep, parquet.Encoding(p.RepetitionLevelEncoding())}, {&r.defs, r.leaf.def, parquet.Encoding(p.DefinitionLevelEncoding())}} {
		if l.greatest == 0 {
			continue
		}
		if l.encoding != parquet.Encodings.RLE || len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
			return fmt.Errorf("levels of encoding %s do not fit their page", l.encoding)
		}
		n := 4 + int(binary.LittleEndian.Uint32(b))
		if err := l.to.reset(b[4:n], widthOf(uint32(l.greatest))); err != nil {
			return err
		}
		b = b[n:]
	}
	if r.leaf.rep > 0 {
		r.ahead = slices.Grow(r.ahead[:0], r.left)[:r.left]
		if err := r.readLevels(&r.reps, r.ahead); err != nil {
			return err
		}
	}
	switch r.encoding {
	case parquet.Encodings.Plain:
		r.plain, r.bit = b, 0
		return nil
	case parquet.Encodings.RLEDict, parquet.Encodings.PlainDict:
		if len(b) == 0 {
			b = []byte{0} // of a page of nulls
		}
		if !r.bytes && r.entries == nil || r.bytes && r.dict == nil {
			return errors.New("codes without a dictionary")
		}
		return r.coded.reset(b[1:], int(b[0]))
	case parquet.Encodings.DeltaBinaryPacked:
		if r.kind == parquet.Types.Int32 || r.kind == parquet.Types.Int64 {
			return r.delta.reset(b, r.kind == parquet.Types.Int32)
		}
	}
	return fmt.Errorf("values of encoding %s, which no part has", r.encoding)
}

func (r *leafReader) readLevels(from *hybridReader, to []uint8) error {
	r.scratch = slices.Grow(r.scratch[:0], len(to))[:len(to)]
	if err := from.read(r.scratch); err != nil {
		return err
	}
	for i, v := range r.scratch {
		to[i] = uint8(v)
	}
	return nil
}

// read decodes the next n rows; there are so many in the row group.
func (r *leafReader) read(n int) error {
	r.stretch.reset()
	if r.leaf.rep > 0 {
		return r.readNested(n)
	}
	for n > 0 {
		if err := r.need(); err != nil {
			return err
		}
		k := min(n, r.left)
		if err := r.slots(k); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// need makes sure that there are slots.
func (r *leafReader) need() error {
	if r.left > 0 {
		return nil
	}
	if ok, err := r.next(); !ok {
		return errors.Join(err, errors.New("it has fewer values than its row group has rows"))
	}
	return nil
}

// readNested reads up to where the row after the next n begins.
func (r *leafReader) readNested(n int) error {
	for begun := 0; ; {
		if r.left == 0 {
			if ok, err := r.next(); !ok && (err != nil || begun < n) {
				return errors.Join(err, errShortPage)
			} else if !ok {
				return nil
			}
		}
		k := 0
		for k < len(r.ahead) && (r.ahead[k] > 0 || begun < n) {
			if r.ahead[k] == 0 {
				begun++
			} else if begun == 0 {
				return errors.New("a page begins within a row that no page begins")
			}
			k++
		}
		copy(r.stretch.rep.add(k), r.ahead)
		r.ahead = r.ahead[k:]
		if err := r.slots(k); err != nil {
			return err
		}
		if r.left > 0 {
			return nil
		}
	}
}

// slots reads n slots of this page: their definition levels, and the values that are there.
func (r *leafReader) slots(n int) error {
	r.left -= n
	there := n
	if r.leaf.def > 0 {
		if level, ok := r.defs.repeats(n); ok {
			if r.stretch.def.repeat(uint8(level), n); uint8(level) != r.leaf.def {
				there = 0
			}
		} else {
			each := r.stretch.def.add(n)
			if err := r.readLevels(&r.defs, each); err != nil {
				return err
			}
			there = 0
			for _, l := range each {
				if l > r.leaf.def {
					return fmt.Errorf("a level of %d, where the greatest is %d", l, r.leaf.def)
				}
				if l == r.leaf.def {
					there++
				}
			}
		}
	}
	if there == 0 {
		return nil
	}
	if !r.bytes {
		r.stretch.words = slices.Grow(r.stretch.words, there)
		at := len(r.stretch.words)
		r.stretch.words = r.stretch.words[:at+there]
		return r.readWords(r.stretch.words[at:])
	}
	r.stretch.codes = slices.Grow(r.stretch.codes, there)
	at := len(r.stretch.codes)
	r.stretch.codes = r.stretch.codes[:at+there]
	return r.readBytes(r.stretch.codes[at:])
}

func (r *leafReader) readWords(dst []int64) error {
	switch r.encoding {
	case parquet.Encodings.Plain:
		return r.readPlain(dst)
	case parquet.Encodings.DeltaBinaryPacked:
		return r.delta.read(dst)
	}
	r.scratch = slices.Grow(r.scratch[:0], len(dst))[:len(dst)]
	if err := r.coded.read(r.scratch); err != nil {
		return err
	}
	for i, c := range r.scratch {
		if int(c) >= len(r.entries) {
			return fmt.Errorf("code %d in a dictionary of %d", c, len(r.entries))
		}
		dst[i] = r.entries[c]
	}
	return nil
}

// readPlain reads words from r.plain.
func (r *leafReader) readPlain(dst []int64) error {
	b := r.plain
	switch r.kind {
	case parquet.Types.Int64, parquet.Types.Double:
		if len(b) < 8*len(dst) {
			return errShortPage
		}
		for i := range dst {
			dst[i] = int64(binary.LittleEndian.Uint64(b[8*i:]))
		}
		r.plain = b[8*len(dst):]
	case parquet.Types.Int32:
		if len(b) < 4*len(dst) {
			return errShortPage
		}
		for i := range dst {
			dst[i] = int64(int32(binary.LittleEndian.Uint32(b[4*i:])))
		}
		r.plain = b[4*len(dst):]
	case parquet.Types.Boolean:
		if len(b)*8 < r.bit+len(dst) {
			return errShortPage
		}
		for i := range dst {
			dst[i] = int64(b[(r.bit+i)/8] >> ((r.bit + i) % 8) & 1)
		}
		r.bit += len(dst)
	default:
		return fmt.Errorf("values of type %s, which no part has", r.kind)
	}
	return nil
}

func (r *leafReader) readBytes(dst []uint32) error {
	if r.encoding == parquet.Encodings.Plain {
		from := len(r.own.at)
		if len(r.own.data)+len(r.plain) > math.MaxInt32 {
			return fmt.Errorf("%d bytes in so few rows", len(r.own.data))
		}
		var err error
		r.plain, err = r.own.add(r.plain, len(dst))
		for i := range dst {
			dst[i] = inOwn | uint32(from+i)
		}
		return err
	}
	if err := r.coded.read(dst); err != nil {
		return err
	}
	if c := slices.Max(dst); int(c) >= len(r.dict.at) {
		return fmt.Errorf("code %d in a dictionary of %d", c, len(r.dict.at))
	}
	return nil
}
