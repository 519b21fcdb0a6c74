package testenv

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	defaultContentType = "binary/octet-stream" // S3's own
	maxObject          = 5 << 30               // bytes of one PutObject, CopyObject or UploadPart
	maxUserMetadata    = 2048                  // bytes of names and values together
	metaPrefix         = "X-Amz-Meta-"
)

// keptHeaders are the headers an object is stored and answered with.
var keptHeaders = []string{"Content-Type", "Content-Encoding", "Content-Disposition",
	"Content-Language", "Cache-Control", "Expires"}

// responseOverrides are the parameters by which a read asks for other headers.
var responseOverrides = []string{"response-content-type", "response-content-encoding",
	"response-content-disposition", "response-content-language", "response-cache-control", "response-expires"}

// describe reads what a request says an object is, apart from its bytes.
func describe(r *s3Request) (sidecar, error) {
	sc := sidecar{Key: r.key, Headers: map[string]string{}, Meta: map[string]string{}}
	for _, name := range keptHeaders {
		value := r.Header.Get(name)
		if name == "Content-Encoding" {
			value = withoutChunked(value)
		}
		if value != "" {
			sc.Headers[name] = value
		}
	}
	if sc.Headers["Content-Type"] == "" {
		sc.Headers["Content-Type"] = defaultContentType
	}
	size := 0
	for name, values := range r.Header {
		if suffix, ok := strings.CutPrefix(name, metaPrefix); ok {
			value := strings.Join(values, ",")
			sc.Meta[strings.ToLower(suffix)] = value
			size += len(suffix) + len(value)
		}
	}
	if size > maxUserMetadata {
		return sc, s3Errorf(http.StatusBadRequest, "MetadataTooLarge", "Your metadata headers exceed the maximum allowed metadata size")
	}
	return sc, nil
}

// withoutChunked drops the transfer's encoding from the object's.
func withoutChunked(encoding string) string {
	kept := slices.DeleteFunc(strings.Split(encoding, ","), func(e string) bool {
		e = strings.TrimSpace(e)
		return e == "" || e == "aws-chunked"
	})
	return strings.TrimSpace(strings.Join(kept, ","))
}

// readWriteIf reads If-None-Match and If-Match of a request that makes an object.
func readWriteIf(h http.Header) (writeIf, error) {
	var c writeIf
	switch none := h.Get("If-None-Match"); none {
	case "":
	case "*":
		c.create = true
	default:
		return c, s3Errorf(http.StatusNotImplemented, "NotImplemented", "A header you provided implies functionality that is not implemented: If-None-Match takes * only")
	}
	if match := h.Get("If-Match"); match != "" {
		c.check = func(current *s3Object) error {
			if current == nil {
				return errS3NoSuchKey
			}
			if !etagMatches(match, current.ETag) {
				return errS3Precondition
			}
			return nil
		}
	}
	return c, nil
}

// etagMatches compares with a list of ETags, each with or without its quotes.
func etagMatches(list, etag string) bool {
	for want := range strings.SplitSeq(list, ",") {
		want = strings.TrimSpace(want)
		if want == "*" || strings.Trim(want, `"`) == strings.Trim(etag, `"`) {
			return true
		}
	}
	return false
}

func (s *s3Server) putObject(w http.ResponseWriter, r *s3Request) error {
	sc, err := describe(r)
	if err != nil {
		return err
	}
	cond, err := readWriteIf(r.Header)
	if err != nil {
		return err
	}
	if r.ContentLength > maxObject {
		return s3Errorf(http.StatusBadRequest, "EntityTooLarge", "Your proposed upload exceeds the maximum allowed size")
	}
	if err := s.needBucket(r.bucket); err != nil {
		return err
	}
	st, err := s.stage(func(f io.Writer) (received, error) { return receive(r.Request, f) })
	if err != nil {
		return err
	}
	sc.ETag, sc.Size, sc.Algo, sc.Checksum = st.etag(), st.size, st.algo, st.checksum
	o, err := s.publish(r.bucket, st, sc, cond)
	if err != nil {
		return err
	}
	w.Header().Set("ETag", o.ETag)
	setChecksum(w.Header(), o.sidecar)
	w.WriteHeader(http.StatusOK)
	return nil
}

func setChecksum(h http.Header, sc sidecar) {
	if sc.Checksum != "" {
		h.Set(checksumPrefix+sc.Algo, sc.Checksum)
		h.Set("x-amz-checksum-type", "FULL_OBJECT")
	}
}

func (s *s3Server) getObject(w http.ResponseWriter, r *s3Request) error {
	f, o, err := s.open(r.bucket, r.key)
	if err != nil {
		return err
	}
	defer f.Close()
	h := w.Header()
	h.Set("ETag", o.ETag)
	h.Set("Last-Modified", o.modified().UTC().Format(http.TimeFormat))
	if err := readConditions(r.Header, "", o); err != nil {
		return err
	}
	from, to, partial, err := byteRange(r.Header.Get("Range"), o.Size)
	if err != nil {
		h.Set("Content-Range", fmt.Sprintf("bytes */%d", o.Size))
		return err
	}
	h.Set("Accept-Ranges", "bytes")
	for name, value := range o.Headers {
		h.Set(name, value)
	}
	if o.Headers == nil {
		h.Set("Content-Type", defaultContentType)
	}
	for name, value := range o.Meta {
		h.Set(metaPrefix+name, value)
	}
	for _, override := range responseOverrides {
		if value := r.query.Get(override); value != "" {
			h.Set(strings.TrimPrefix(override, "response-"), value)
		}
	}
	h.Set("Content-Length", strconv.FormatInt(to-from, 10))
	status := http.StatusOK
	if partial {
		status = http.StatusPartialContent
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, o.Size))
	} else if strings.EqualFold(r.Header.Get("x-amz-checksum-mode"), "ENABLED") {
		setChecksum(h, o.sidecar)
	}
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return nil
	}
	// The status is sent: an error now can only cut the body short, which a
	// client sees by its Content-Length.
	_, _ = io.Copy(w, io.NewSectionReader(f, from, to-from))
	return nil
}

// readConditions checks the four conditional headers; prefix is that of a copy's
// source.
func readConditions(h http.Header, prefix string, o *s3Object) error {
	match, none := h.Get(prefix+"If-Match"), h.Get(prefix+"If-None-Match")
	since, hasSince := httpTime(h.Get(prefix + "If-Modified-Since"))
	until, hasUntil := httpTime(h.Get(prefix + "If-Unmodified-Since"))
	unchanged := errS3NotModified
	if prefix != "" {
		unchanged = errS3Precondition // a copy has no 304
	}
	switch {
	case match != "" && !etagMatches(match, o.ETag):
		return errS3Precondition
	case match == "" && hasUntil && o.modified().After(until):
		return errS3Precondition
	case none != "" && etagMatches(none, o.ETag):
		return unchanged
	case none == "" && hasSince && !o.modified().After(since):
		return unchanged
	}
	return nil
}

func httpTime(text string) (time.Time, bool) {
	t, err := http.ParseTime(text)
	return t, err == nil
}

// byteRange reads a Range header as the half-open from..to. As S3 does, it
// ignores what it cannot parse and lists of ranges.
func byteRange(header string, size int64) (from, to int64, partial bool, err error) {
	spec, ok := strings.CutPrefix(header, "bytes=")
	first, last, dash := strings.Cut(spec, "-")
	if !ok || !dash {
		return 0, size, false, nil
	}
	if first == "" {
		n, err := strconv.ParseInt(last, 10, 64)
		if err != nil {
			return 0, size, false, nil
		}
		if n <= 0 || size == 0 {
			return 0, 0, false, errS3InvalidRange
		}
		return max(0, size-n), size, true, nil
	}
	from, err = strconv.ParseInt(first, 10, 64)
	if err != nil || from < 0 {
		return 0, size, false, nil
	}
	to = size
	if last != "" {
		end, err := strconv.ParseInt(last, 10, 64)
		if err != nil || end < from {
			return 0, size, false, nil
		}
		if end < size {
			to = end + 1
		}
	}
	if from >= size {
		return 0, 0, false, errS3InvalidRange
	}
	return from, to, true, nil
}

func (s *s3Server) deleteObject(w http.ResponseWriter, r *s3Request) error {
	if err := s.deleteKey(r.bucket, r.key, r.Header.Get("If-Match")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// deleteKey removes an object, if there is one: DeleteObject's documentation
// calls a missing object a success even under If-Match.
func (s *s3Server) deleteKey(bucket, key, ifMatch string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.needBucket(bucket); err != nil {
		return err
	}
	o, err := s.lookup(bucket, key)
	if err != nil || o == nil {
		return err
	}
	if ifMatch != "" && !etagMatches(ifMatch, o.ETag) {
		return errS3Precondition
	}
	return s.remove(bucket, o)
}

func (s *s3Server) deleteObjects(w http.ResponseWriter, r *s3Request) error {
	var body bytes.Buffer
	if _, err := receive(r.Request, &body); err != nil {
		return err
	}
	var in struct {
		Quiet  bool
		Object []struct{ Key, ETag, VersionId string }
	}
	if err := xml.Unmarshal(body.Bytes(), &in); err != nil || len(in.Object) == 0 || len(in.Object) > 1000 {
		return errS3MalformedXML
	}
	if err := s.needBucket(r.bucket); err != nil {
		return err
	}
	type deleted struct{ Key string }
	type failed struct{ Key, Code, Message string }
	var out struct {
		XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ DeleteResult"`
		Deleted []deleted
		Error   []failed
	}
	for _, o := range in.Object {
		err := checkS3Key(o.Key)
		if err == nil && o.VersionId != "" {
			err = s3Errorf(http.StatusNotImplemented, "NotImplemented", "The embedded S3 keeps no versions.")
		}
		if err == nil {
			err = s.deleteKey(r.bucket, o.Key, o.ETag)
		}
		if e, ok := errors.AsType[*s3Error](err); ok {
			out.Error = append(out.Error, failed{o.Key, e.code, e.message})
		} else if err != nil {
			out.Error = append(out.Error, failed{o.Key, "InternalError", err.Error()})
		} else if !in.Quiet {
			out.Deleted = append(out.Deleted, deleted{o.Key})
		}
	}
	return writeXML(w, out)
}

func (s *s3Server) copyObject(w http.ResponseWriter, r *s3Request) error {
	source, _, hasVersion := strings.Cut(r.Header.Get("x-amz-copy-source"), "?")
	source, err := url.PathUnescape(source)
	bucket, key, ok := strings.Cut(strings.TrimPrefix(source, "/"), "/")
	if err != nil || !ok || key == "" || hasVersion || !validBucket(bucket) {
		return s3Errorf(http.StatusBadRequest, "InvalidArgument", "Copy Source must mention the source bucket and key: sourcebucket/sourcekey, without a version")
	}
	if err := checkS3Key(key); err != nil {
		return err
	}
	cond, err := readWriteIf(r.Header)
	if err != nil {
		return err
	}
	f, from, err := s.open(bucket, key)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := readConditions(r.Header, "x-amz-copy-source-", from); err != nil {
		return err
	}
	sc := from.sidecar
	if r.Header.Get("x-amz-metadata-directive") == "REPLACE" {
		if sc, err = describe(r); err != nil {
			return err
		}
		sc.Algo, sc.Checksum = from.Algo, from.Checksum
	} else if bucket == r.bucket && key == r.key {
		return s3Errorf(http.StatusBadRequest, "InvalidRequest", "This copy request is illegal because it is trying to copy an object to itself without changing the object's metadata.")
	}
	st, err := s.stage(func(w io.Writer) (received, error) {
		return receive(&http.Request{Header: http.Header{}, Body: f}, w)
	})
	if err != nil {
		return err
	}
	sc.Key, sc.ETag, sc.Size = r.key, st.etag(), st.size
	o, err := s.publish(r.bucket, st, sc, cond)
	if err != nil {
		return err
	}
	return writeXML(w, struct {
		XMLName            xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CopyObjectResult"`
		LastModified, ETag string
	}{LastModified: s3Time(o.modified()), ETag: o.ETag})
}
