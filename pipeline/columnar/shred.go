package columnar

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/parquet/schema"
)

// A shredder makes leaf columns of Arrow rows, as if they had been read from a part.
type shredder struct {
	input
	next  int // the leaf to fill next
	slots []slot
}

// A slot is where a leaf has a value or the reason why there is none.
type slot struct {
	at       int // in the array; -1 if something above it is null or empty
	def, rep uint8
}

func newShredder(s *schema.Schema) *shredder {
	var sh shredder
	for i := range s.NumColumns() {
		sh.leaves = append(sh.leaves, &leafReader{stretch: stretch{leaf: newLeaf(s.Column(i))}, index: i})
	}
	return &sh
}

// shred takes rows from..to, to exclusive.
func (s *shredder) shred(batch arrow.RecordBatch, from, to int) error {
	s.next = 0
	for _, r := range s.leaves {
		r.reset()
	}
	for i, f := range batch.Schema().Fields() {
		s.slots = s.slots[:0]
		for at := from; at < to; at++ {
			s.slots = append(s.slots, slot{at: at})
		}
		if err := s.field(f, batch.Column(i), s.slots, 1); err != nil {
			return fmt.Errorf("column %s: %w", f.Name, err)
		}
	}
	return nil
}

// field fills the leaves of a field; depth is the repetition level of a list in it. It may change
// slots.
func (s *shredder) field(f arrow.Field, a arrow.Array, slots []slot, depth uint8) error {
	if f.Nullable {
		for i := range slots {
			if at := slots[i].at; at >= 0 {
				if slots[i].at = -1; a.IsValid(at) {
					slots[i].at = at
					slots[i].def++
				}
			}
		}
	}
	switch a := a.(type) {
	case *array.Map: // before the list that it is built on
		elems := elementsOf(a, slots, depth)
		key, item := a.DataType().(*arrow.MapType).KeyField(), a.DataType().(*arrow.MapType).ItemField()
		key.Nullable = false
		if err := s.field(key, a.Keys(), append([]slot(nil), elems...), depth+1); err != nil {
			return err
		}
		return s.field(item, a.Items(), elems, depth+1)
	case *array.List:
		return s.field(a.DataType().(*arrow.ListType).ElemField(), a.ListValues(), elementsOf(a, slots, depth), depth+1)
	case *array.Struct:
		for k, child := range a.DataType().(*arrow.StructType).Fields() {
			if err := s.field(child, a.Field(k), append([]slot(nil), slots...), depth); err != nil {
				return err
			}
		}
		return nil
	}
	r := s.leaves[s.next]
	s.next++
	return r.fill(a, slots)
}

// elementsOf are the slots of what the lists hold.
func elementsOf(a array.ListLike, slots []slot, depth uint8) []slot {
	var elems []slot
	for _, l := range slots {
		if l.at < 0 {
			elems = append(elems, l)
			continue
		}
		from, to := a.ValueOffsets(l.at)
		if from == to {
			elems = append(elems, slot{-1, l.def, l.rep})
		}
		for at, rep := from, l.rep; at < to; at, rep = at+1, depth {
			elems = append(elems, slot{int(at), l.def + 1, rep})
		}
	}
	return elems
}

// fill takes the values of the slots.
func (r *leafReader) fill(a arrow.Array, slots []slot) error {
	if r.leaf.def > 0 {
		each := r.stretch.def.add(len(slots))
		for i, s := range slots {
			each[i] = s.def
		}
		r.stretch.def.unmix()
	}
	if r.leaf.rep > 0 {
		each := r.stretch.rep.add(len(slots))
		for i, s := range slots {
			each[i] = s.rep
		}
	}
	if r.bytes {
		r.own.size = r.size
		return r.fillTexts(a, slots)
	}
	return r.fillWords(a, slots)
}

func (r *leafReader) fillWords(a arrow.Array, slots []slot) error {
	var word func(int) int64
	switch a := a.(type) {
	case *array.Int64:
		word = a.Value
	case *array.Timestamp:
		word = func(i int) int64 { return int64(a.Value(i)) }
	case *array.Int32:
		word = func(i int) int64 { return int64(a.Value(i)) }
	case *array.Date32:
		word = func(i int) int64 { return int64(a.Value(i)) }
	case *array.Float64:
		word = func(i int) int64 { return int64(math.Float64bits(a.Value(i))) }
	case *array.Boolean:
		word = func(i int) int64 {
			if a.Value(i) {
				return 1
			}
			return 0
		}
	case *array.Decimal128:
		for _, s := range slots {
			if s.at < 0 {
				continue
			}
			n := a.Value(s.at)
			if n.HighBits() != int64(n.LowBits())>>63 {
				return fmt.Errorf("%s does not fit %s", n.BigInt(), a.DataType())
			}
			r.words = append(r.words, int64(n.LowBits()))
		}
		return nil
	default:
		return fmt.Errorf("no place for values of type %s", a.DataType())
	}
	for _, s := range slots {
		if s.at >= 0 {
			r.words = append(r.words, word(s.at))
		}
	}
	return nil
}

func (r *leafReader) fillTexts(a arrow.Array, slots []slot) error {
	var add func(int)
	switch a := a.(type) {
	case *array.String:
		add = func(i int) { appendText(&r.own, a.Value(i)) }
	case *array.Binary:
		add = func(i int) { appendText(&r.own, a.Value(i)) }
	case *array.Decimal128:
		var b [16]byte
		add = func(i int) {
			n := a.Value(i)
			binary.BigEndian.PutUint64(b[:], uint64(n.HighBits()))
			binary.BigEndian.PutUint64(b[8:], n.LowBits())
			appendText(&r.own, b[16-r.size:])
		}
	default:
		return fmt.Errorf("no place for values of type %s", a.DataType())
	}
	for _, s := range slots {
		if s.at >= 0 {
			r.codes = append(r.codes, inOwn|uint32(len(r.own.at)))
			add(s.at)
		}
	}
	return nil
}
