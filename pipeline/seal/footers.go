package seal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"telemetrylake/pipeline"
)

// ErrShort means that a footer is longer than the bytes that were read of its file.
var ErrShort = errors.New("the footer is longer than that")

// FooterSize says how many of the last bytes of a Parquet file its footer takes, from the last
// eight.
func FooterSize(end []byte) (int64, error) {
	if len(end) < 8 || !bytes.Equal(end[len(end)-4:], magic) {
		return 0, errors.New("no Parquet file ends here")
	}
	return int64(binary.LittleEndian.Uint32(end[len(end)-8:])) + 8, nil
}

// ReadObject reads what a lake object says of itself, and how many rows the file itself says it has,
// from its last bytes. It fails with ErrShort if these are too few; nil without an error is an object
// that is not ours.
func ReadObject(end []byte) (*pipeline.ObjectMeta, int64, error) {
	md, err := footerOf(end)
	if err != nil {
		return nil, 0, err
	}
	text, ok := keyValue(md, pipeline.ObjectMetaKey)
	if !ok {
		return nil, 0, nil
	}
	m, err := pipeline.DecodeObjectMeta(text)
	if err != nil {
		return nil, 0, err
	}
	return m, md.NumRows, nil
}

// ReadPartMetas reads what the parts of a staging object say of themselves, and counts what is no
// part of ours, or is one of a newer version. Probes are left out. No value is read.
func ReadPartMetas(body []byte) (parts []*pipeline.PartMeta, others int) {
	for _, sp := range split(body) {
		if sp.damage != nil {
			others++
			continue
		}
		md, err := footerOf(body[sp.off:sp.end])
		if err != nil {
			others++
			continue
		}
		text, ok := keyValue(md, pipeline.PartMetaKey)
		if !ok {
			others++
			continue
		}
		m, err := pipeline.DecodePartMeta(text)
		switch {
		case err != nil:
			others++
		case !m.Probe:
			parts = append(parts, m)
		}
	}
	return parts, others
}

// footerOf reads the footer of the file that ends with end.
func footerOf(end []byte) (*format.FileMetaData, error) {
	n, err := FooterSize(end)
	if err != nil {
		return nil, err
	}
	if n > int64(len(end)) {
		return nil, ErrShort
	}
	var md format.FileMetaData
	if err := thrift.Unmarshal(new(thrift.CompactProtocol), end[int64(len(end))-n:len(end)-8], &md); err != nil {
		return nil, fmt.Errorf("read footer: %w", err)
	}
	return &md, nil
}
