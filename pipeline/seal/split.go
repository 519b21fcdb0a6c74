package seal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

var magic = []byte("PAR1")

// A span is a run of bytes of a staging object: one Parquet file, or damage.
type span struct {
	off, end int
	damage   error // why these bytes are no Parquet file; nil if they are one
}

// split finds the Parquet files that Firehose joined. It walks from the end, since only a
// footer says how long its file is; where no file ends it looks for the next place further
// in front where one does, and what lies between is damage. The spans cover all of b, in order.
func split(b []byte) []span {
	var spans []span
	for end := len(b); end > 0; {
		off, err := fileStart(b, end)
		if err == nil {
			spans = append(spans, span{off, end, nil})
			end = off
			continue
		}
		bad := end
		for end--; end > 0; end-- {
			i := bytes.LastIndex(b[:end], magic)
			if i < 0 {
				end = 0
				break
			}
			end = i + len(magic)
			if _, e := fileStart(b, end); e == nil {
				break
			}
		}
		spans = append(spans, span{end, bad, err})
	}
	for i, j := 0, len(spans)-1; i < j; i, j = i+1, j-1 {
		spans[i], spans[j] = spans[j], spans[i]
	}
	return spans
}

// fileStart returns where the Parquet file that ends at end begins. Nothing in it refers to
// where it begins: it is as long as the furthest byte its footer refers to, plus the footer.
func fileStart(b []byte, end int) (int, error) {
	const tail = 8 // footer length and magic
	if end < len(magic)+tail || !bytes.Equal(b[end-4:end], magic) {
		return 0, errors.New("no Parquet file ends here")
	}
	n := int(binary.LittleEndian.Uint32(b[end-tail:]))
	footer := end - tail - n
	if n <= 0 || footer < len(magic) {
		return 0, fmt.Errorf("footer of %d bytes does not fit", n)
	}
	var md format.FileMetaData
	if err := thrift.Unmarshal(new(thrift.CompactProtocol), b[footer:end-tail], &md); err != nil {
		return 0, fmt.Errorf("read footer: %w", err)
	}
	length := int64(len(magic))
	for _, rg := range md.RowGroups {
		for _, c := range rg.Columns {
			m := c.MetaData
			first := m.DataPageOffset
			if m.DictionaryPageOffset > 0 {
				first = min(first, m.DictionaryPageOffset)
			}
			length = max(length, first+m.TotalCompressedSize,
				m.BloomFilterOffset+int64(m.BloomFilterLength),
				c.ColumnIndexOffset+int64(c.ColumnIndexLength),
				c.OffsetIndexOffset+int64(c.OffsetIndexLength))
		}
	}
	off := int64(footer) - length
	if off < 0 || !bytes.Equal(b[off:off+4], magic) {
		return 0, fmt.Errorf("file of %d bytes before its footer is cut off", length)
	}
	return int(off), nil
}
