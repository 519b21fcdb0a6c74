package testenv

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// A multipart upload is a folder in s3-meta/uploads: upload.json, and for each
// part its bytes (00001) and what is known of them (00001.json).

const (
	minPart   = 5 << 20 // bytes of every part but the last
	maxParts  = 10000
	pageParts = 1000
)

type s3Upload struct {
	Bucket string  `json:"bucket"`
	Object sidecar `json:"object"` // without ETag and size
}

type uploadPart struct {
	Number   int    `json:"number"`
	ETag     string `json:"etag"`
	Size     int64  `json:"size"`
	Modified string `json:"modified"`
}

var uploadID = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (s *s3Server) uploadDir(id string) string { return filepath.Join(s.meta, "uploads", id) }

func partName(number int) string { return fmt.Sprintf("%05d", number) }

func (s *s3Server) serveUpload(w http.ResponseWriter, r *s3Request) error {
	if r.query.Has("uploads") {
		if r.Method != http.MethodPost {
			return errS3BadMethodHere
		}
		if err := r.allow("uploads"); err != nil {
			return err
		}
		return s.createUpload(w, r)
	}
	if err := r.allow("uploadId", "partNumber", "max-parts", "part-number-marker"); err != nil {
		return err
	}
	id := r.query.Get("uploadId")
	up, err := s.findUpload(r, id)
	if err != nil {
		return err
	}
	switch r.Method {
	case http.MethodPut:
		return s.putPart(w, r, id)
	case http.MethodPost:
		return s.completeUpload(w, r, id, up)
	case http.MethodGet:
		return s.listParts(w, r, id)
	case http.MethodDelete:
		if err := os.RemoveAll(s.uploadDir(id)); err != nil {
			return fmt.Errorf("abort upload %s: %w", id, err)
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return errS3BadMethodHere
}

func (s *s3Server) createUpload(w http.ResponseWriter, r *s3Request) error {
	if err := s.needBucket(r.bucket); err != nil {
		return err
	}
	sc, err := describe(r)
	if err != nil {
		return err
	}
	// Of the algorithms only CRCs have a checksum of the whole object made from parts.
	if algo := strings.ToLower(r.Header.Get("x-amz-checksum-algorithm")); strings.HasPrefix(algo, "crc") && checksums[algo] != nil {
		sc.Algo = algo
	}
	text, err := json.Marshal(s3Upload{r.bucket, sc})
	if err != nil {
		return err
	}
	id := s.ids.hex(64)
	dir := s.uploadDir(id)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("create upload: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "upload.json"), text, 0o666); err != nil {
		return fmt.Errorf("create upload: %w", err)
	}
	return writeXML(w, struct {
		XMLName               xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ InitiateMultipartUploadResult"`
		Bucket, Key, UploadId string
	}{Bucket: r.bucket, Key: r.key, UploadId: id})
}

func (s *s3Server) findUpload(r *s3Request, id string) (*s3Upload, error) {
	if !uploadID.MatchString(id) {
		return nil, errS3NoSuchUpload
	}
	text, err := os.ReadFile(filepath.Join(s.uploadDir(id), "upload.json"))
	if err != nil {
		return nil, errS3NoSuchUpload
	}
	var up s3Upload
	if err := json.Unmarshal(text, &up); err != nil {
		return nil, fmt.Errorf("read upload %s: %w", id, err)
	}
	if up.Bucket != r.bucket || up.Object.Key != r.key {
		return nil, errS3NoSuchUpload
	}
	return &up, nil
}

func (s *s3Server) putPart(w http.ResponseWriter, r *s3Request, id string) error {
	if r.Header.Get("x-amz-copy-source") != "" {
		return s3Errorf(http.StatusNotImplemented, "NotImplemented", "The embedded S3 does not implement UploadPartCopy.")
	}
	number, err := strconv.Atoi(r.query.Get("partNumber"))
	if err != nil || number < 1 || number > maxParts {
		return s3Errorf(http.StatusBadRequest, "InvalidArgument", "Part number must be an integer between 1 and 10000, inclusive")
	}
	st, err := s.stage(func(f io.Writer) (received, error) { return receive(r.Request, f) })
	if err != nil {
		return err
	}
	defer st.discard()
	text, err := json.Marshal(uploadPart{number, st.etag(), st.size, s3Time(s.clock.Now())})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := filepath.Join(s.uploadDir(id), partName(number))
	if err := os.Rename(st.path, name); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return errS3NoSuchUpload // aborted or completed meanwhile
		}
		return fmt.Errorf("put part %d of %s: %w", number, id, err)
	}
	if err := os.WriteFile(name+".json", text, 0o666); err != nil {
		return fmt.Errorf("put part %d of %s: %w", number, id, err)
	}
	w.Header().Set("ETag", st.etag())
	setPartChecksum(w.Header(), st.received)
	w.WriteHeader(http.StatusOK)
	return nil
}

func setPartChecksum(h http.Header, got received) {
	if got.checksum != "" {
		h.Set(checksumPrefix+got.algo, got.checksum)
	}
}

// parts reads an upload's parts in the order of their numbers.
func (s *s3Server) parts(id string) ([]uploadPart, error) {
	names, err := filepath.Glob(filepath.Join(s.uploadDir(id), "[0-9]*.json"))
	if err != nil {
		return nil, err
	}
	parts := make([]uploadPart, 0, len(names))
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read parts of %s: %w", id, err)
		}
		var p uploadPart
		if err := json.Unmarshal(text, &p); err != nil {
			return nil, fmt.Errorf("read parts of %s: %w", id, err)
		}
		parts = append(parts, p)
	}
	return parts, nil
}

func (s *s3Server) listParts(w http.ResponseWriter, r *s3Request, id string) error {
	type part struct {
		PartNumber         int
		LastModified, ETag string
		Size               int64
	}
	var out struct {
		XMLName               xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListPartsResult"`
		Bucket, Key, UploadId string
		PartNumberMarker      int
		NextPartNumberMarker  int
		MaxParts              int
		IsTruncated           bool
		Part                  []part
	}
	out.Bucket, out.Key, out.UploadId, out.MaxParts = r.bucket, r.key, id, pageParts
	if text := r.query.Get("max-parts"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return s3Errorf(http.StatusBadRequest, "InvalidArgument", "Argument max-parts must be an integer between 0 and 2147483647")
		}
		out.MaxParts = min(n, pageParts)
	}
	out.PartNumberMarker, _ = strconv.Atoi(r.query.Get("part-number-marker"))
	s.mu.RLock()
	parts, err := s.parts(id)
	s.mu.RUnlock()
	if err != nil {
		return err
	}
	for _, p := range parts {
		if p.Number <= out.PartNumberMarker {
			continue
		}
		if len(out.Part) == out.MaxParts {
			out.IsTruncated = true
			break
		}
		out.Part = append(out.Part, part{p.Number, p.Modified, p.ETag, p.Size})
		out.NextPartNumberMarker = p.Number
	}
	return writeXML(w, out)
}

func (s *s3Server) completeUpload(w http.ResponseWriter, r *s3Request, id string, up *s3Upload) error {
	cond, err := readWriteIf(r.Header)
	if err != nil {
		return err
	}
	var body bytes.Buffer
	if _, err := io.Copy(&body, r.Body); err != nil {
		return err
	}
	var in struct {
		Part []struct {
			PartNumber int
			ETag       string
		}
	}
	if err := xml.Unmarshal(body.Bytes(), &in); err != nil || len(in.Part) == 0 {
		return errS3MalformedXML
	}
	s.mu.RLock()
	stored, err := s.parts(id)
	s.mu.RUnlock()
	if err != nil {
		return err
	}
	byNumber := map[int]uploadPart{}
	for _, p := range stored {
		byNumber[p.Number] = p
	}
	var chosen []uploadPart
	for i, want := range in.Part {
		if i > 0 && want.PartNumber <= in.Part[i-1].PartNumber {
			return s3Errorf(http.StatusBadRequest, "InvalidPartOrder", "The list of parts was not in ascending order. The parts list must be specified in order by part number.")
		}
		p, ok := byNumber[want.PartNumber]
		if !ok || !etagMatches(want.ETag, p.ETag) {
			return s3Errorf(http.StatusBadRequest, "InvalidPart", "One or more of the specified parts could not be found: part %d", want.PartNumber)
		}
		if p.Size < minPart && i < len(in.Part)-1 {
			return s3Errorf(http.StatusBadRequest, "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size: part %d", p.Number)
		}
		chosen = append(chosen, p)
	}
	st, err := s.stage(func(f io.Writer) (received, error) { return s.joinParts(f, id, chosen, up.Object.Algo) })
	if err != nil {
		return err
	}
	sc := up.Object
	sc.ETag, sc.Size, sc.Checksum = multipartETag(chosen), st.size, st.checksum
	o, err := s.publish(r.bucket, st, sc, cond)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(s.uploadDir(id)); err != nil {
		return fmt.Errorf("complete upload %s: %w", id, err)
	}
	return writeXML(w, struct {
		XMLName           xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CompleteMultipartUploadResult"`
		Bucket, Key, ETag string
	}{Bucket: r.bucket, Key: r.key, ETag: o.ETag})
}

// joinParts writes the parts' bytes one after the other, holding each against
// the ETag it was promised under.
func (s *s3Server) joinParts(w io.Writer, id string, parts []uploadPart, algo string) (received, error) {
	got := received{algo: algo}
	var check hash.Hash
	if algo != "" {
		check = checksums[algo]()
		w = io.MultiWriter(w, check)
	}
	for _, p := range parts {
		f, err := os.Open(filepath.Join(s.uploadDir(id), partName(p.Number)))
		if err != nil {
			return got, errS3NoSuchUpload
		}
		sum := md5.New()
		n, err := io.Copy(io.MultiWriter(w, sum), f)
		f.Close()
		if err != nil {
			return got, fmt.Errorf("join part %d of %s: %w", p.Number, id, err)
		}
		if `"`+hex.EncodeToString(sum.Sum(nil))+`"` != p.ETag {
			return got, s3Errorf(http.StatusBadRequest, "InvalidPart", "Part %d changed while the upload was being completed", p.Number)
		}
		got.size += n
	}
	if check != nil {
		got.checksum = base64.StdEncoding.EncodeToString(check.Sum(nil))
	}
	return got, nil
}

// multipartETag is the digest of the parts' digests, and their number.
func multipartETag(parts []uploadPart) string {
	all := md5.New()
	for _, p := range parts {
		sum, _ := hex.DecodeString(strings.Trim(p.ETag, `"`)) // written by putPart
		all.Write(sum)
	}
	return fmt.Sprintf(`"%x-%d"`, all.Sum(nil), len(parts))
}
