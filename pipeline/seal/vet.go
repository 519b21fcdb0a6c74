package seal

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// Readers believe the sizes that footers and page headers claim, and allocate so much. A few wrong
// bits then end the process, which no recover helps against: sizes are compared with the file first.

const (
	maxElements     = 1 << 18   // elements of all lists of one footer
	maxDepth        = 32        // of structs and lists within each other
	maxPartBytes    = 256 << 20 // of a part's pages before compression; a part has at most about 1 MB after it
	maxValues       = 16 << 20  // of one column of a part
	maxPageHeader   = 1 << 20   // with the statistics in it
	firstPageHeader = 512
)

var errCutOff = errors.New("a field goes beyond the end")

// skipStruct returns how long the struct of Thrift's compact protocol is that b begins with, or an
// error if it claims what is not there. It counts the elements of its lists in n.
func skipStruct(b []byte, n *int) (int, error) { return skipFields(b, n, 0) }

func skipFields(b []byte, n *int, depth int) (int, error) {
	if depth > maxDepth {
		return 0, errors.New("it is too deep")
	}
	for at := 0; ; {
		if at >= len(b) {
			return 0, errCutOff
		}
		h := b[at]
		at++
		if h == 0 {
			return at, nil
		}
		if h>>4 == 0 { // the field's number follows
			k, err := skipVarint(b[at:])
			if err != nil {
				return 0, err
			}
			at += k
		}
		if t := h & 0xf; t == 1 || t == 2 {
			continue // the type is the value of a boolean
		}
		k, err := skipValue(b[at:], h&0xf, n, depth)
		if err != nil {
			return 0, err
		}
		at += k
	}
}

func skipVarint(b []byte) (int, error) {
	_, k := binary.Uvarint(b)
	if k <= 0 {
		return 0, errCutOff
	}
	return k, nil
}

func skipValue(b []byte, typ byte, n *int, depth int) (int, error) {
	fixed := map[byte]int{1: 1, 2: 1, 3: 1, 7: 8}
	switch typ {
	case 1, 2, 3, 7:
		if len(b) < fixed[typ] {
			return 0, errCutOff
		}
		return fixed[typ], nil
	case 4, 5, 6:
		return skipVarint(b)
	case 8:
		size, k := binary.Uvarint(b)
		if k <= 0 || size > uint64(len(b)-k) {
			return 0, errCutOff
		}
		return k + int(size), nil
	case 9, 10:
		return skipList(b, n, depth)
	case 12:
		return skipFields(b, n, depth+1)
	}
	return 0, fmt.Errorf("a field of type %d", typ)
}

func skipList(b []byte, n *int, depth int) (int, error) {
	if len(b) == 0 {
		return 0, errCutOff
	}
	size, at := uint64(b[0]>>4), 1
	if size == 15 {
		k := 0
		if size, k = binary.Uvarint(b[1:]); k <= 0 {
			return 0, errCutOff
		}
		at += k
	}
	if size > uint64(len(b)-at) { // each element has a byte at least
		return 0, errCutOff
	}
	if *n += int(size); *n > maxElements {
		return 0, fmt.Errorf("more than %d elements", maxElements)
	}
	for range size {
		k, err := skipValue(b[at:], b[0]&0xf, n, depth+1)
		if err != nil {
			return 0, err
		}
		at += k
	}
	return at, nil
}

// vet compares what a part claims of its pages with the file and with itself, before anybody
// decodes them.
func vet(s *source, sp span, md *format.FileMetaData) error {
	total := int64(0)
	for i, rg := range md.RowGroups {
		for j, c := range rg.Columns {
			m := c.MetaData
			if m.TotalUncompressedSize < 0 || m.NumValues < 0 || m.NumValues > maxValues || rg.NumRows < 0 {
				return fmt.Errorf("row group %d, column %d claims %d bytes and %d values", i, j, m.TotalUncompressedSize, m.NumValues)
			}
			if total += m.TotalUncompressedSize; m.TotalUncompressedSize > maxPartBytes || total > maxPartBytes {
				return fmt.Errorf("its pages claim more than %d bytes", maxPartBytes)
			}
			if err := vetChunk(s, sp, &m); err != nil {
				return fmt.Errorf("row group %d, column %d: %w", i, j, err)
			}
		}
	}
	return nil
}

func vetChunk(s *source, sp span, m *format.ColumnMetaData) error {
	at := m.DataPageOffset
	if m.DictionaryPageOffset > 0 {
		at = min(at, m.DictionaryPageOffset)
	}
	end := at + m.TotalCompressedSize
	if at < int64(len(magic)) || m.TotalCompressedSize < 0 || end > sp.end-sp.off {
		return fmt.Errorf("its pages are at [%d,%d) of %d bytes", at, end, sp.end-sp.off)
	}
	at, end = at+sp.off, end+sp.off
	var size, values int64
	for values < m.NumValues {
		h, n, err := headerAt(s, at, end)
		if err != nil {
			return fmt.Errorf("page header: %w", err)
		}
		at += n
		body := at + int64(h.CompressedPageSize)
		if h.CompressedPageSize < 0 || h.UncompressedPageSize < 0 || body > end {
			return fmt.Errorf("a page claims %d bytes, %d uncompressed", h.CompressedPageSize, h.UncompressedPageSize)
		}
		if size += int64(h.UncompressedPageSize); size > m.TotalUncompressedSize {
			return fmt.Errorf("its pages claim more than its %d bytes", m.TotalUncompressedSize)
		}
		if err := vetPage(s, at, body, m.Codec, h); err != nil {
			return err
		}
		switch {
		case h.DictionaryPageHeader.Valid:
			if k := h.DictionaryPageHeader.V.NumValues; k < 0 || k > h.UncompressedPageSize {
				return fmt.Errorf("a dictionary of %d bytes claims %d values", h.UncompressedPageSize, k)
			}
		case h.DataPageHeader.Valid:
			values += int64(h.DataPageHeader.V.NumValues)
			if h.DataPageHeader.V.NumValues <= 0 && m.NumValues > 0 {
				return errors.New("a page without values")
			}
		case h.DataPageHeaderV2.Valid:
			v := h.DataPageHeaderV2.V
			values += int64(v.NumValues)
			if v.NumValues <= 0 || int64(v.RepetitionLevelsByteLength)+int64(v.DefinitionLevelsByteLength) > int64(h.CompressedPageSize) {
				return errors.New("a page that does not hold its levels")
			}
		}
		at = body
	}
	if values != m.NumValues || at != end {
		return fmt.Errorf("its pages hold %d values and end at %d, it claims %d and %d", values, at-sp.off, m.NumValues, end-sp.off)
	}
	return nil
}

// headerAt reads the page header at at, and returns its length.
func headerAt(s *source, at, end int64) (*format.PageHeader, int64, error) {
	for want := int64(firstPageHeader); ; want *= 8 {
		b, err := s.bytes(at, min(end, at+want))
		if err != nil {
			return nil, 0, err
		}
		n, err := skipStruct(b, new(int))
		if errors.Is(err, errCutOff) && at+want < end && want < maxPageHeader {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		h := new(format.PageHeader)
		return h, int64(n), thrift.Unmarshal(new(thrift.CompactProtocol), b[:n], h)
	}
}

// vetPage compares what the compressed bytes of a page say of their own size with its header.
func vetPage(s *source, at, end int64, codec format.CompressionCodec, h *format.PageHeader) error {
	if codec == format.Uncompressed || at == end {
		return nil
	}
	b, err := s.bytes(at, min(end, at+18))
	if err != nil {
		return err
	}
	size, known := uint64(0), false
	switch codec {
	case format.Snappy:
		size, _ = binary.Uvarint(b)
		known = true
	case format.Zstd:
		size, known = zstdSize(b)
	default:
		return fmt.Errorf("pages are compressed with %s, which no part is", codec)
	}
	if known && size > uint64(h.UncompressedPageSize) {
		return fmt.Errorf("a page of %d bytes claims to hold %d", h.UncompressedPageSize, size)
	}
	return nil
}

// zstdSize is the size that the header of a Zstandard frame claims (RFC 8878, 3.1.1.1).
func zstdSize(b []byte) (uint64, bool) {
	if len(b) < 6 || binary.LittleEndian.Uint32(b) != 0xFD2FB528 {
		return 0, false
	}
	desc := b[4]
	at := 5
	single := desc&0x20 != 0
	if !single {
		at++ // window descriptor
	}
	at += []int{0, 1, 2, 4}[desc&3] // dictionary
	n := []int{0, 2, 4, 8}[desc>>6]
	if n == 0 && single {
		n = 1
	}
	if n == 0 || at+n > len(b) {
		return 0, false
	}
	var field [8]byte
	copy(field[:], b[at:at+n])
	size := binary.LittleEndian.Uint64(field[:])
	if n == 2 {
		size += 256
	}
	return size, true
}
