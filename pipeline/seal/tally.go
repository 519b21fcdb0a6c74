package seal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding"
)

// A tally is what a file holds, in whatever order its rows are.
type tally struct {
	columns []columnTally
	rows    uint64 // sum of the hashes of whole rows: no two rows have exchanged a value
}

type columnTally struct {
	values, nulls int64
	sum           uint64 // of the hashes of its values: a merger that doubles one row and loses another keeps the rest
}

func (t *tally) add(u tally) {
	for i, c := range u.columns {
		t.columns[i].values += c.values
		t.columns[i].nulls += c.nulls
		t.columns[i].sum += c.sum
	}
	t.rows += u.rows
}

// mix is far from secret and good enough to tell rows apart: nobody chooses values against it.
func mix(h, v uint64) uint64 {
	hi, lo := bits.Mul64(h^0x9e3779b97f4a7c15, v^0xd6e8feb86659fd93)
	return hi ^ lo
}

func hashBytes(h uint64, b []byte) uint64 {
	n := len(b)
	for ; len(b) >= 8; b = b[8:] {
		h = mix(h, binary.LittleEndian.Uint64(b))
	}
	var last [8]byte
	copy(last[:], b)
	return mix(h^uint64(n), binary.LittleEndian.Uint64(last[:]))
}

// appendHashes appends the hash of each value.
func appendHashes(hs []uint64, seed uint64, v encoding.Values) ([]uint64, error) {
	switch v.Kind() {
	case encoding.Int64:
		for _, x := range v.Uint64() {
			hs = append(hs, mix(seed, x))
		}
		return hs, nil
	case encoding.Int32:
		for _, x := range v.Uint32() {
			hs = append(hs, mix(seed, uint64(x)))
		}
		return hs, nil
	case encoding.ByteArray:
		data, offsets := v.ByteArray()
		for i := 1; i < len(offsets); i++ {
			hs = append(hs, hashBytes(seed, data[offsets[i-1]:offsets[i]]))
		}
		return hs, nil
	case encoding.Boolean:
		for _, b := range v.Boolean() {
			for k := range 8 {
				hs = append(hs, mix(seed, uint64(b>>k&1)))
			}
		}
		return hs, nil
	case encoding.Undefined: // of a page of nulls
		return hs, nil
	}
	data, _ := v.Data()
	size := 8
	switch v.Kind() {
	case encoding.Float:
		size = 4
	case encoding.Int96:
		size = 12
	case encoding.FixedLenByteArray:
		_, size = v.FixedLenByteArray()
	}
	if size <= 0 {
		return nil, fmt.Errorf("values of %d bytes", size)
	}
	for ; len(data) >= size; data = data[size:] {
		hs = append(hs, hashBytes(seed, data[:size]))
	}
	return hs, nil
}

// A counter counts one column of a row group.
type counter struct {
	*columnTally
	within   times // without a name unless this column places rows
	seed     uint64
	def, rep int      // greatest levels
	rows     []uint64 // a hash of each row, of the columns so far
	row      int      // rows that have begun

	dict    parquet.Dictionary
	entries []uint64 // the hashes of its values
	hashes  []uint64 // of the page's values
}

// A scratch is what counting needs for one row group after the other.
type scratch struct{ rows, hashes, entries []uint64 }

// count reads every value of a file, and fails with a *timesError if one lies outside of within.
// A number for each row of a row group is in memory.
func count(f *parquet.File, within times, s *scratch) (tally, error) {
	leaves := leavesOf(f.Root())
	t := tally{columns: make([]columnTally, len(leaves))}
	for _, rg := range f.RowGroups() {
		n := rg.NumRows()
		if n < 0 || n > f.NumRows() {
			return t, fmt.Errorf("a row group claims %d rows of %d", n, f.NumRows())
		}
		s.rows = slices.Grow(s.rows[:0], int(n))[:n]
		clear(s.rows)
		for i, chunk := range rg.ColumnChunks() {
			c := counter{
				columnTally: &t.columns[i], seed: mix(uint64(i), 1), def: leaves[i].MaxDefinitionLevel(), rep: leaves[i].MaxRepetitionLevel(),
				rows: s.rows, hashes: s.hashes, entries: s.entries,
			}
			if i == within.column {
				c.within = within
			}
			err := eachPage(chunk, c.page)
			if late := (*timesError)(nil); errors.As(err, &late) {
				return t, err
			}
			if err != nil {
				return t, fmt.Errorf("column %v: %w", leaves[i].Path(), err)
			}
			if c.row != len(s.rows) {
				return t, fmt.Errorf("column %v has %d rows, its group has %d", leaves[i].Path(), c.row, n)
			}
			s.hashes, s.entries = c.hashes, c.entries
		}
		for _, h := range s.rows {
			t.rows += h
		}
	}
	return t, nil
}

// page counts a page. What stands there for a value is hashed once where it is in a dictionary.
func (c *counter) page(p parquet.Page) error {
	slots, nulls := int(p.NumValues()), int(p.NumNulls())
	c.values += int64(slots)
	c.nulls += int64(nulls)
	if err := c.hash(p); err != nil {
		return err
	}
	there := slots - nulls
	if p.Type().Kind() == parquet.Boolean && p.Dictionary() == nil {
		c.hashes = c.hashes[:min(there, len(c.hashes))] // the last byte has bits to spare
	}
	if len(c.hashes) != there {
		return fmt.Errorf("a page of %d values and %d nulls holds %d values", slots, nulls, len(c.hashes))
	}
	if c.within.name != "" {
		if err := c.checkTimes(p, nulls); err != nil {
			return err
		}
	}
	if c.rep > 0 || c.def > 1 {
		return c.addDeep(p.DefinitionLevels(), p.RepetitionLevels())
	}
	if slots > len(c.rows)-c.row {
		return c.tooMany()
	}
	rows := c.rows[c.row : c.row+slots]
	c.row += slots
	switch levels := p.DefinitionLevels(); {
	case nulls == 0:
		for i, h := range c.hashes {
			c.sum += h
			rows[i] = mix(rows[i], h)
		}
	case there > 0:
		if len(levels) != slots {
			return errors.New("a page does not say which values are null")
		}
		v := 0
		for i, l := range levels {
			if l > 0 {
				h := c.hashes[v]
				v++
				c.sum += h
				rows[i] = mix(rows[i], h)
			}
		}
	}
	return nil
}

func (c *counter) tooMany() error {
	return fmt.Errorf("it has more than the %d rows of its group", len(c.rows))
}

// hash makes hashes of the page's values that are there.
func (c *counter) hash(p parquet.Page) (err error) {
	c.hashes = c.hashes[:0]
	d := p.Dictionary()
	if d == nil {
		c.hashes, err = appendHashes(c.hashes, c.seed, p.Data())
		return err
	}
	if d != c.dict {
		if c.entries, err = appendHashes(c.entries[:0], c.seed, d.Page().Data()); err != nil {
			return err
		}
		c.dict = d
	}
	data := p.Data()
	for _, code := range data.Int32() {
		if uint(code) >= uint(len(c.entries)) {
			return fmt.Errorf("code %d in a dictionary of %d", code, len(c.entries))
		}
		c.hashes = append(c.hashes, c.entries[code])
	}
	return nil
}

// addDeep adds values that lists or groups hold. Their levels are part of them.
func (c *counter) addDeep(defs, reps []byte) error {
	v := 0
	for i, def := range defs {
		rep := byte(0)
		if c.rep > 0 {
			rep = reps[i]
		}
		if rep == 0 {
			c.row++
		}
		if c.row == 0 || c.row > len(c.rows) {
			return c.tooMany()
		}
		h := mix(c.seed+uint64(rep), uint64(def))
		if int(def) == c.def {
			if v == len(c.hashes) {
				return errors.New("a page has fewer values than it says")
			}
			h += c.hashes[v]
			v++
		}
		c.sum += h
		c.rows[c.row-1] = mix(c.rows[c.row-1], h)
	}
	if v != len(c.hashes) {
		return errors.New("a page has more values than it says")
	}
	return nil
}

// checkTimes compares the page's times with the bounds of the partition.
func (c *counter) checkTimes(p parquet.Page, nulls int) error {
	if nulls > 0 {
		return c.within.fail("null")
	}
	data := p.Data()
	d := p.Dictionary()
	if d == nil {
		return c.within.check(data)
	}
	entries := d.Page()
	all := entries.Data()
	if c.within.check(all) == nil {
		return nil
	}
	// It may be one that no row has.
	if all.Kind() != encoding.Int64 {
		return c.within.check(all)
	}
	for _, code := range data.Int32() {
		if at := all.Int64()[code]; !c.within.has(at) {
			return c.within.fail(at)
		}
	}
	return nil
}

func eachPage(c parquet.ColumnChunk, f func(parquet.Page) error) error {
	pages := c.Pages()
	defer pages.Close()
	for {
		p, err := pages.ReadPage()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		err = f(p)
		parquet.Release(p)
		if err != nil {
			return err
		}
	}
}
