package seal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

var magic = []byte("PAR1")

// maxFooter bounds the footer of a file: ours are some kilobytes.
const maxFooter = 16 << 20

// A source is an object that is read in places. It remembers that the object could not be read:
// nobody must take that for damage.
type source struct {
	r       io.ReaderAt
	size    int64
	scratch scratch // of what is counted in it, one file after the other

	mu  sync.Mutex
	err error
}

func newSource(r *io.SectionReader) *source { return &source{r: r, size: r.Size()} }

// ReadAt implements io.ReaderAt.
func (s *source) ReadAt(p []byte, off int64) (int, error) {
	n, err := s.r.ReadAt(p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.err == nil {
			s.err = err
		}
	}
	return n, err
}

// failed is the first failure of a read.
func (s *source) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// bytes are from..to of the object, to exclusive.
func (s *source) bytes(from, to int64) ([]byte, error) {
	b := make([]byte, to-from)
	n, err := s.ReadAt(b, from)
	if n == len(b) {
		return b, nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return nil, err
}

func (s *source) section(off, end int64) *io.SectionReader {
	return io.NewSectionReader(s, off, end-off)
}

// A span is a run of bytes of a staging object: one Parquet file, or damage.
type span struct {
	off, end int64
	damage   error // why these bytes are no Parquet file; nil if they are one
}

// split is splitSource of bytes in memory.
func split(b []byte) []span {
	spans, _ := splitSource(&source{r: bytes.NewReader(b), size: int64(len(b))}) // memory can be read
	return spans
}

// splitSource finds the Parquet files that Firehose joined. It walks from the end, since only a
// footer says how long its file is; where no file ends it looks for the next place further
// in front where one does, and what lies between is damage. The spans cover all of the object, in
// order. It reads no more than footers, and damage.
func splitSource(s *source) ([]span, error) {
	var spans []span
	for end := s.size; end > 0; {
		off, _, err := fileBefore(s, end)
		if s.failed() != nil {
			return nil, s.failed()
		}
		if err == nil {
			spans = append(spans, span{off, end, nil})
			end = off
			continue
		}
		bad := end
		for end--; end > 0; end-- {
			if end = lastMagic(s, end); end == 0 {
				break
			}
			if _, _, e := fileBefore(s, end); e == nil {
				break
			}
		}
		if s.failed() != nil {
			return nil, s.failed()
		}
		spans = append(spans, span{end, bad, err})
	}
	slices.Reverse(spans)
	return spans, nil
}

// lastMagic is where the last magic that ends at or before end ends, 0 if there is none.
func lastMagic(s *source, end int64) int64 {
	const chunk = 256 << 10
	for end >= int64(len(magic)) {
		from := max(0, end-chunk)
		b, err := s.bytes(from, end)
		if err != nil {
			return 0
		}
		if i := bytes.LastIndex(b, magic); i >= 0 {
			return from + int64(i+len(magic))
		}
		if from == 0 {
			return 0
		}
		end = from + int64(len(magic)) - 1 // a magic may lie across the border
	}
	return 0
}

// fileBefore returns where the Parquet file that ends at end begins, and its footer. Nothing in it
// refers to where it begins: it is as long as the furthest byte its footer refers to, plus the
// footer.
func fileBefore(s *source, end int64) (int64, *format.FileMetaData, error) {
	const tail = 8 // footer length and magic
	if end < int64(len(magic))+tail {
		return 0, nil, errors.New("no Parquet file ends here")
	}
	b, err := s.bytes(end-tail, end)
	if err != nil {
		return 0, nil, err
	}
	if !bytes.Equal(b[4:], magic) {
		return 0, nil, errors.New("no Parquet file ends here")
	}
	n := int64(binary.LittleEndian.Uint32(b))
	footer := end - tail - n
	if n <= 0 || n > maxFooter || footer < int64(len(magic)) {
		return 0, nil, fmt.Errorf("footer of %d bytes does not fit", n)
	}
	// Every footer begins with the version, field 1 of type i32: most bytes that are none end here.
	if b, err = s.bytes(footer, footer+1); err != nil || b[0] != 0x15 {
		return 0, nil, errors.New("no footer where its length says")
	}
	if b, err = s.bytes(footer, footer+n); err != nil {
		return 0, nil, err
	}
	md, err := decodeFooter(b)
	if err != nil {
		return 0, nil, fmt.Errorf("read footer: %w", err)
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
	off := footer - length
	if off >= 0 {
		if b, err = s.bytes(off, off+int64(len(magic))); err != nil {
			return 0, nil, err
		}
	}
	if off < 0 || !bytes.Equal(b, magic) {
		return 0, nil, fmt.Errorf("file of %d bytes before its footer is cut off", length)
	}
	return off, md, nil
}

func decodeFooter(b []byte) (*format.FileMetaData, error) {
	if _, err := skipStruct(b, new(int)); err != nil {
		return nil, err
	}
	var md format.FileMetaData
	if err := thrift.Unmarshal(new(thrift.CompactProtocol), b, &md); err != nil {
		return nil, err
	}
	return &md, nil
}

// keyValue is the footer's value of a key.
func keyValue(md *format.FileMetaData, key string) (string, bool) {
	for _, kv := range md.KeyValueMetadata {
		if kv.Key == key {
			return kv.Value, true
		}
	}
	return "", false
}
