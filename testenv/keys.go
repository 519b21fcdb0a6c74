package testenv

import (
	"encoding/binary"
	"math"
	"strings"
)

// keySchema names the key attributes of a table or an index. The sort key's name is
// empty when there is none.
type keySchema struct {
	partition, sort         string
	partitionKind, sortKind kind
}

const (
	maxPartitionKey = 2048 // bytes
	maxSortKey      = 1024 // bytes
)

// values returns the key attributes of it. Errors are the service's.
func (s *keySchema) values(it item) (partition, sort value, err error) {
	partition, err = keyValue(it, s.partition, s.partitionKind, maxPartitionKey)
	if err != nil || s.sort == "" {
		return partition, value{}, err
	}
	sort, err = keyValue(it, s.sort, s.sortKind, maxSortKey)
	return partition, sort, err
}

func keyValue(it item, name string, k kind, limit int) (value, error) {
	v, ok := it.get(name)
	if !ok {
		return value{}, invalid("One or more parameter values were invalid: Missing the key " + name + " in the item")
	}
	if v.kind != k {
		return value{}, invalid("One or more parameter values were invalid: Type mismatch for key " + name +
			" expected: " + k.String() + " actual: " + v.kind.String())
	}
	return v, checkKey(name, v, limit)
}

func checkKey(name string, v value, limit int) error {
	if v.kind != kindNumber && v.text == "" {
		return invalid("One or more parameter values are not valid. The AttributeValue for a key attribute cannot contain an empty " +
			map[kind]string{kindString: "string", kindBinary: "binary"}[v.kind] + " value. Key: " + name)
	}
	if len(v.text) > limit {
		return invalid("One or more parameter values were invalid: Size of key attribute " + name + " has exceeded the maximum size limit")
	}
	return nil
}

// exact returns the values of a request's Key, which must be the key and nothing else.
func (s *keySchema) exact(key item) (partition, sort value, err error) {
	want := 1
	if s.sort != "" {
		want = 2
	}
	if len(key) != want {
		return value{}, value{}, invalid("The provided key element does not match the schema")
	}
	p, ok := key.get(s.partition)
	if !ok || p.kind != s.partitionKind {
		return value{}, value{}, invalid("The provided key element does not match the schema")
	}
	if s.sort != "" {
		v, ok := key.get(s.sort)
		if !ok || v.kind != s.sortKind {
			return value{}, value{}, invalid("The provided key element does not match the schema")
		}
	}
	return s.values(key)
}

// has says whether name is a key attribute.
func (s *keySchema) has(name string) bool {
	return name == s.partition || name == s.sort && s.sort != ""
}

// project returns the key attributes of it.
func (s *keySchema) project(it item) item {
	out := make(item, 0, 2)
	for _, name := range []string{s.partition, s.sort} {
		if v, ok := it.get(name); ok && name != "" {
			out = out.with(name, v)
		}
	}
	return out
}

// hashKey spreads partition keys over 64 bits. It decides the order of a scan, the
// segment and the shard, as the service's undisclosed hash does.
func hashKey(v value) uint64 {
	h := uint64(14695981039346656037) ^ uint64(v.kind)
	for i := range len(v.text) {
		h = (h ^ uint64(v.text[i])) * 1099511628211
	}
	return mix(h)
}

// appendPartition appends a partition key: its hash, then the value so that no key is a
// prefix of another.
func appendPartition(b []byte, v value) []byte {
	b = binary.BigEndian.AppendUint64(b, hashKey(v))
	return appendSort(b, v)
}

// appendSort appends a value so that bytes order as values do and none is a prefix of
// another.
func appendSort(b []byte, v value) []byte {
	if v.kind == kindNumber {
		d, _ := parseDecimal(v.text)
		return d.appendKey(b)
	}
	return append(appendEscaped(b, v.text), 0, 1)
}

// appendEscaped writes 00 as 00 FF, so that 00 01 can end the text.
func appendEscaped(b []byte, s string) []byte {
	for {
		i := strings.IndexByte(s, 0)
		if i < 0 {
			return append(b, s...)
		}
		b = append(b, s[:i]...)
		b = append(b, 0, 0xff)
		s = s[i+1:]
	}
}

// after returns the first key that does not start with prefix.
func after(prefix string) string {
	b := []byte(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] != 0xff {
			b[i]++
			return string(b[:i+1])
		}
	}
	return "\xff\xff\xff\xff\xff\xff\xff\xff"
}

// segment returns the hashes lo to hi (both inclusive) that belong to one of total
// segments of a parallel scan.
func segment(number, total int) (lo, hi uint64) {
	step := math.MaxUint64/uint64(total) + 1
	if total == 1 {
		return 0, math.MaxUint64
	}
	lo = step * uint64(number)
	hi = lo + step - 1
	if number == total-1 {
		hi = math.MaxUint64
	}
	return lo, hi
}
