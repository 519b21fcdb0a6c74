package testenv

import (
	"bufio"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// received is what is known of a body once it has been read and verified.
type received struct {
	md5      [md5.Size]byte
	size     int64
	algo     string // of the checksum the client sent; empty: none
	checksum string // base64
}

func (r received) etag() string { return `"` + hex.EncodeToString(r.md5[:]) + `"` }

// The flexible checksums the standard library can compute.
var checksums = map[string]func() hash.Hash{
	"crc32":     func() hash.Hash { return crc32.NewIEEE() },
	"crc32c":    func() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) },
	"crc64nvme": func() hash.Hash { return crc64.New(crc64nvme) },
	"sha1":      sha1.New,
	"sha256":    sha256.New,
	"sha512":    sha512.New,
	"md5":       md5.New,
}

// crc64nvme is the polynomial of the NVM Express specification, reflected.
var crc64nvme = crc64.MakeTable(0x9a6c9329ac4bc9b5)

const checksumPrefix = "X-Amz-Checksum-"

// checksumHeader finds the checksum a client announced: by its value in a
// header, or by a trailer of that name (value is empty then).
func checksumHeader(h http.Header) (algo, value string, err error) {
	for name, values := range h {
		suffix, ok := strings.CutPrefix(name, checksumPrefix)
		if !ok || suffix == "Mode" || suffix == "Type" || suffix == "Algorithm" {
			continue
		}
		algo, value = strings.ToLower(suffix), values[0]
	}
	if trailer := h.Get("x-amz-trailer"); algo == "" && trailer != "" {
		suffix, ok := strings.CutPrefix(http.CanonicalHeaderKey(strings.TrimSpace(trailer)), checksumPrefix)
		if !ok {
			return "", "", s3Errorf(http.StatusBadRequest, "InvalidRequest", "The value specified in the x-amz-trailer header is not supported")
		}
		algo = strings.ToLower(suffix)
	}
	if algo != "" && checksums[algo] == nil {
		return "", "", s3Errorf(http.StatusNotImplemented, "NotImplemented",
			"The embedded S3 cannot verify the checksum algorithm %s; use CRC32.", strings.ToUpper(algo))
	}
	return algo, value, nil
}

// receive copies a request's body to w and holds it against everything the
// client said about it.
func receive(r *http.Request, w io.Writer) (received, error) {
	algo, want, err := checksumHeader(r.Header)
	if err != nil {
		return received{}, err
	}
	var body io.Reader = r.Body
	if r.Body == nil {
		body = http.NoBody
	}
	length := r.Header.Get("x-amz-decoded-content-length")
	contentSHA := r.Header.Get("x-amz-content-sha256")
	var chunks *chunkedReader
	if strings.HasPrefix(contentSHA, "STREAMING-") || strings.Contains(r.Header.Get("Content-Encoding"), "aws-chunked") {
		chunks = newChunkedReader(body)
		body = chunks
	} else if r.ContentLength > 0 {
		length = strconv.FormatInt(r.ContentLength, 10)
	}

	sum := md5.New()
	sinks := []io.Writer{w, sum}
	var check, sha hash.Hash
	if algo != "" {
		check = checksums[algo]()
		sinks = append(sinks, check)
	}
	if len(contentSHA) == 2*sha256.Size {
		sha = sha256.New()
		sinks = append(sinks, sha)
	}
	size, err := io.Copy(io.MultiWriter(sinks...), body)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return received{}, errIncompleteBody
	}
	if err != nil {
		return received{}, err
	}
	got := received{size: size, algo: algo}
	sum.Sum(got.md5[:0])

	if n, err := strconv.ParseInt(length, 10, 64); length != "" && (err != nil || n != size) {
		return received{}, errIncompleteBody
	}
	if text := r.Header.Get("Content-MD5"); text != "" {
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(b) != md5.Size {
			return received{}, s3Errorf(http.StatusBadRequest, "InvalidDigest", "The Content-MD5 you specified was invalid.")
		}
		if [md5.Size]byte(b) != got.md5 {
			return received{}, s3Errorf(http.StatusBadRequest, "BadDigest", "The Content-MD5 you specified did not match what we received.")
		}
	}
	if sha != nil && hex.EncodeToString(sha.Sum(nil)) != strings.ToLower(contentSHA) {
		return received{}, s3Errorf(http.StatusBadRequest, "XAmzContentSHA256Mismatch", "The provided 'x-amz-content-sha256' header does not match what was computed.")
	}
	if check != nil {
		if want == "" && chunks != nil {
			want = chunks.trailer.Get(checksumPrefix + algo)
		}
		got.checksum = base64.StdEncoding.EncodeToString(check.Sum(nil))
		if want != got.checksum {
			return received{}, s3Errorf(http.StatusBadRequest, "BadDigest", "The %s you specified did not match the calculated checksum.", strings.ToUpper(algo))
		}
	}
	return got, nil
}

var errIncompleteBody = &s3Error{http.StatusBadRequest, "IncompleteBody", "The request body terminated unexpectedly"}

// chunkedReader decodes the aws-chunked encoding: `hex-size[;extensions]\r\n`,
// the bytes, `\r\n`, ended by a chunk of size 0 and trailers. Signatures in
// extensions and trailers are not checked.
type chunkedReader struct {
	r       *bufio.Reader
	left    int64 // of the current chunk
	begun   bool
	err     error
	trailer http.Header // once Read has returned io.EOF
}

func newChunkedReader(r io.Reader) *chunkedReader {
	return &chunkedReader{r: bufio.NewReaderSize(r, 32<<10), trailer: http.Header{}}
}

func (c *chunkedReader) Read(p []byte) (int, error) {
	if c.err == nil && c.left == 0 {
		c.err = c.nextChunk()
	}
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	if err != nil {
		c.err = io.ErrUnexpectedEOF // the end of the body inside a chunk is never its end
		if !errors.Is(err, io.EOF) {
			c.err = err
		}
	}
	return n, c.err
}

func (c *chunkedReader) nextChunk() error {
	line := textproto.NewReader(c.r)
	if c.begun {
		if rest, err := line.ReadLine(); err != nil || rest != "" {
			return errIncompleteBody
		}
	}
	c.begun = true
	head, err := line.ReadLine()
	if err != nil {
		return errIncompleteBody
	}
	size, _, _ := strings.Cut(head, ";")
	n, err := strconv.ParseInt(strings.TrimSpace(size), 16, 63)
	if err != nil || n < 0 {
		return errIncompleteBody
	}
	if n > 0 {
		c.left = n
		return nil
	}
	for {
		text, err := line.ReadLine()
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		name, value, ok := strings.Cut(text, ":")
		if ok {
			c.trailer.Set(strings.TrimSpace(name), strings.TrimSpace(value))
		}
		if err != nil || text == "" {
			return io.EOF
		}
	}
}
