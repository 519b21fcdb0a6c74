package lake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
)

const (
	blockSize = 8 << 20  // bytes of one ranged GET: few requests, and a retry costs little
	tailSize  = 64 << 10 // first look at an object of unknown size: our footers are smaller
)

// View calls f with the object's bytes and returns f's error. They are fetched by ranged GETs, each
// block once and only if f reads in it, all of one ETag. Objects of up to a block stay in memory;
// larger ones go into a temporary file that is as sparse as what was read (TMPDIR: in Lambda that is
// /tmp with 512 MB by default, enough for Firehose's 128 MiB and what is made of them). What f is
// given must not be used after it returns.
//
// An o.Size of 0 is not known yet. Reads fail with pipeline.ErrNotFound if the object is gone or is
// not the one of o.ETag any more; an empty o.ETag takes any.
func (b *Bucket) View(ctx context.Context, o pipeline.Object, f func(*io.SectionReader) error) error {
	v := &view{ctx: ctx, b: b, key: o.Key, etag: o.ETag, size: o.Size}
	defer v.close()
	if o.Size == 0 {
		if err := v.measure(); err != nil {
			return err
		}
	}
	return f(io.NewSectionReader(v, 0, v.size))
}

// A view is an object while it is looked at.
type view struct {
	ctx  context.Context
	b    *Bucket
	key  string
	etag string
	size int64

	mu     sync.Mutex
	tail   []byte // the last bytes, if measure read them
	block  []byte // all of an object that is no larger than a block
	file   *os.File
	loaded map[int64]bool // blocks that file holds
}

// measure finds out the size, and keeps the last bytes that come with it.
func (v *view) measure() error {
	out, err := v.get("bytes=-" + strconv.Itoa(tailSize))
	if status(err) == http.StatusRequestedRangeNotSatisfiable {
		return nil // the object is empty
	}
	if err != nil {
		return err
	}
	defer out.Body.Close()
	v.etag = unquote(out.ETag)
	if v.tail, err = io.ReadAll(out.Body); err != nil {
		return v.failed(err)
	}
	v.size = int64(len(v.tail))
	if _, total, ok := strings.Cut(aws.ToString(out.ContentRange), "/"); ok {
		if v.size, err = strconv.ParseInt(total, 10, 64); err != nil {
			return v.failed(fmt.Errorf("content range %q: %w", aws.ToString(out.ContentRange), err))
		}
	}
	return nil
}

func (v *view) get(span string) (*s3.GetObjectOutput, error) {
	in := &s3.GetObjectInput{Bucket: &v.b.bucket, Key: aws.String(v.b.prefix + v.key), Range: &span}
	if v.etag != "" {
		in.IfMatch = aws.String(`"` + v.etag + `"`)
	}
	out, err := v.b.client.GetObject(v.ctx, in)
	if missing(err) || status(err) == http.StatusPreconditionFailed {
		err = pipeline.ErrNotFound
	}
	if err != nil {
		return nil, v.failed(err)
	}
	return out, nil
}

func (v *view) failed(err error) error { return fmt.Errorf("read %s%s: %w", v.b, v.key, err) }

// ReadAt implements io.ReaderAt.
func (v *view) ReadAt(p []byte, off int64) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if off < 0 || off >= v.size {
		return 0, io.EOF
	}
	short := off+int64(len(p)) > v.size
	if short {
		p = p[:v.size-off]
	}
	n, err := v.read(p, off)
	if err == nil && short {
		err = io.EOF
	}
	return n, err
}

func (v *view) read(p []byte, off int64) (int, error) {
	if from := v.size - int64(len(v.tail)); off >= from {
		return copy(p, v.tail[off-from:]), nil
	}
	if v.size <= blockSize {
		if v.block == nil {
			b := make([]byte, v.size)
			if err := v.load(0, &fill{b: b}); err != nil {
				return 0, err
			}
			v.block = b
		}
		return copy(p, v.block[off:]), nil
	}
	if err := v.spool(off, off+int64(len(p))); err != nil {
		return 0, err
	}
	n, err := v.file.ReadAt(p, off)
	if err != nil {
		return n, v.failed(err)
	}
	return n, nil
}

// spool brings the blocks of from..to, to exclusive, into the temporary file.
func (v *view) spool(from, to int64) error {
	if v.file == nil {
		f, err := tempFile()
		if err != nil {
			return v.failed(err)
		}
		v.file, v.loaded = f, map[int64]bool{}
	}
	for i := from / blockSize; i*blockSize < to; i++ {
		if v.loaded[i] {
			continue
		}
		if err := v.load(i*blockSize, io.NewOffsetWriter(v.file, i*blockSize)); err != nil {
			return err
		}
		v.loaded[i] = true
	}
	return nil
}

// load writes the block that begins at from to w.
func (v *view) load(from int64, w io.Writer) error {
	to := min(from+blockSize, v.size)
	out, err := v.get(fmt.Sprintf("bytes=%d-%d", from, to-1))
	if err != nil {
		return err
	}
	defer out.Body.Close()
	n, err := io.Copy(w, out.Body)
	if err == nil && n != to-from {
		err = fmt.Errorf("%d bytes of %d from %d", n, to-from, from)
	}
	if err != nil {
		return v.failed(err)
	}
	if v.etag == "" {
		v.etag = unquote(out.ETag)
	}
	return nil
}

func (v *view) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.file != nil {
		discard(v.file)
	}
}

// A fill writes into b and no further.
type fill struct {
	b []byte
	n int
}

func (f *fill) Write(p []byte) (int, error) {
	n := copy(f.b[f.n:], p)
	f.n += n
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// tempFile is a file that nobody else finds: where the system allows it has no name any more, so
// that nothing is left of it however the process ends.
func tempFile() (*os.File, error) {
	f, err := os.CreateTemp("", "streamer-spool-*")
	if err != nil {
		return nil, fmt.Errorf("make a temporary file: %w", err)
	}
	_ = os.Remove(f.Name()) // not possible everywhere: discard tries again
	return f, nil
}

func discard(f *os.File) {
	_ = f.Close()
	_ = os.Remove(f.Name())
}

// A Spool is written once and then read: in memory up to a block, in a temporary file above.
type Spool struct {
	buf  []byte
	file *os.File
	n    int64
}

// NewSpool returns an empty Spool. Close frees what it holds.
func NewSpool() *Spool { return &Spool{} }

// Write appends p.
func (s *Spool) Write(p []byte) (int, error) {
	if s.file == nil {
		if len(s.buf)+len(p) <= blockSize {
			s.buf = append(s.buf, p...)
			s.n = int64(len(s.buf))
			return len(p), nil
		}
		f, err := tempFile()
		if err != nil {
			return 0, err
		}
		if _, err := f.Write(s.buf); err != nil {
			return 0, errors.Join(fmt.Errorf("spool: %w", err), f.Close())
		}
		s.file, s.buf = f, nil
	}
	n, err := s.file.Write(p)
	s.n += int64(n)
	if err != nil {
		return n, fmt.Errorf("spool: %w", err)
	}
	return n, nil
}

// ReadAt implements io.ReaderAt.
func (s *Spool) ReadAt(p []byte, off int64) (int, error) {
	if s.file != nil {
		return s.file.ReadAt(p, off)
	}
	if off < 0 || off >= int64(len(s.buf)) {
		return 0, io.EOF
	}
	n := copy(p, s.buf[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// Close frees the memory or the file.
func (s *Spool) Close() error {
	if s.file != nil {
		discard(s.file)
	}
	s.buf, s.file = nil, nil
	return nil
}
