package seal

import (
	"fmt"
	"io"
)

// inMemory is a Spool in memory.
type inMemory struct{ b []byte }

func (m *inMemory) Write(p []byte) (int, error) {
	m.b = append(m.b, p...)
	return len(p), nil
}

func (m *inMemory) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= int64(len(m.b)) {
		return 0, io.EOF
	}
	n := copy(p, m.b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (m *inMemory) Close() error {
	m.b = nil
	return nil
}

// built is a file that was made and is not stored yet. It knows whether its spool failed: that is
// the fault of no part.
type built struct {
	spool Spool
	src   *source
	n     int64
	err   error
}

func (s *Sealer) build() (*built, error) {
	spool, err := s.Spool()
	if err != nil {
		return nil, fmt.Errorf("make room for an object: %w", err)
	}
	return &built{spool: spool}, nil
}

func (b *built) Write(p []byte) (int, error) {
	n, err := b.spool.Write(p)
	b.n += int64(n)
	if err != nil && b.err == nil {
		b.err = err
	}
	return n, err
}

// read is what was written.
func (b *built) read() *source {
	if b.src == nil {
		b.src = &source{r: b.spool, size: b.n}
	}
	return b.src
}

func (b *built) section() *io.SectionReader { return b.read().section(0, b.n) }

// failed is why the spool could not be written or read.
func (b *built) failed() error {
	if b.err != nil {
		return b.err
	}
	return b.read().failed()
}

func (b *built) close() { _ = b.spool.Close() } // nothing in it is wanted any more
