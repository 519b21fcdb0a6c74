package testenv

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// s3Server is the embedded S3. A bucket is a folder and an object is a plain
// file, so people and query engines read the store without asking it.
//
// On disk, for an Env whose Dir is D:
//
//	D/s3/<bucket>/<key>      the objects and nothing else
//	D/s3-meta/objects/...    per object version: ETag, headers, user metadata, checksum
//	D/s3-meta/tmp/...        bytes still arriving, or left by a process that died
//	D/s3-meta/uploads/...    parts of multipart uploads not yet completed
//
// Keys stand literally wherever a path can hold them; s3_path.go describes the
// escapes. One server at a time writes a folder: its locks are in this process.
//
// Served: CreateBucket, DeleteBucket, HeadBucket, ListBuckets, PutObject
// (If-None-Match: *, If-Match), GetObject (Range and all four conditions),
// HeadObject, DeleteObject and DeleteObjects (If-Match), ListObjectsV2,
// CopyObject, and multipart uploads (Create, UploadPart, Complete, Abort,
// ListParts). Content-MD5, x-amz-content-sha256, the flexible checksums CRC32,
// CRC32C, CRC64NVME, SHA1, SHA256, SHA512 and MD5, and aws-chunked bodies with
// trailers are decoded and verified. Reads are strongly consistent.
//
// Accepted and without effect: encryption, storage class, ACL, tagging and
// object lock headers. Signatures are not checked. Everything else, versions
// and the other sub-resources above all, is refused with NotImplemented rather
// than answered wrongly.
type s3Server struct {
	root  string // holds the buckets' folders
	meta  string // beside root, on the same file system
	clock Clock
	sync  bool
	ids   *ids

	// mu guards the names below root: held for writing while a name appears,
	// moves or goes, for reading while names are looked up. Bodies are copied
	// outside it; an open file outlives its name.
	mu sync.RWMutex

	etagMu sync.Mutex
	etags  map[string]etagOf // by path; spares reading plain objects for theirs
}

// newS3 serves the buckets that are folders of dir. What is no object stands
// beside it, in the folder dir + "-meta".
func newS3(dir string, clock Clock, sync bool, ids *ids) *s3Server {
	return &s3Server{
		root:  dir,
		meta:  dir + "-meta",
		clock: clock,
		sync:  sync,
		ids:   ids,
		etags: map[string]etagOf{},
	}
}

// s3Error is an error as S3 reports it: a status and an XML body.
type s3Error struct {
	status  int
	code    string
	message string
}

func (e *s3Error) Error() string { return e.code + ": " + e.message }

func s3Errorf(status int, code, format string, args ...any) *s3Error {
	return &s3Error{status, code, fmt.Sprintf(format, args...)}
}

var (
	errS3NoSuchKey     = &s3Error{http.StatusNotFound, "NoSuchKey", "The specified key does not exist."}
	errS3Precondition  = &s3Error{http.StatusPreconditionFailed, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold"}
	errS3NotModified   = &s3Error{http.StatusNotModified, "NotModified", "Not Modified"}
	errS3MalformedXML  = &s3Error{http.StatusBadRequest, "MalformedXML", "The XML you provided was not well-formed or did not validate against our published schema"}
	errS3NoSuchUpload  = &s3Error{http.StatusNotFound, "NoSuchUpload", "The specified multipart upload does not exist. The upload ID might be invalid, or the multipart upload might have been aborted or completed."}
	errS3InvalidRange  = &s3Error{http.StatusRequestedRangeNotSatisfiable, "InvalidRange", "The requested range is not satisfiable"}
	errS3BadMethodHere = &s3Error{http.StatusMethodNotAllowed, "MethodNotAllowed", "The specified method is not allowed against this resource."}
)

// s3Request is a request whose target has been read and checked.
type s3Request struct {
	*http.Request
	query  url.Values
	bucket string
	key    string
}

func (s *s3Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Server", "AmazonS3")
	w.Header().Set("x-amz-request-id", s.ids.requestID())
	req, err := parseS3Request(r)
	if err == nil {
		err = s.serve(w, req)
	}
	if err != nil {
		writeS3Error(w, r, err)
	}
}

func parseS3Request(r *http.Request) (*s3Request, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, s3Errorf(http.StatusBadRequest, "InvalidURI", "Couldn't parse the specified URI.")
	}
	req := &s3Request{Request: r, query: query}
	path := strings.TrimPrefix(r.URL.Path, "/")
	req.bucket, req.key, _ = strings.Cut(path, "/")
	if req.bucket != "" && !validBucket(req.bucket) {
		return nil, s3Errorf(http.StatusBadRequest, "InvalidBucketName", "The specified bucket is not valid.")
	}
	if err := checkS3Key(req.key); err != nil {
		return nil, err
	}
	return req, nil
}

// checkS3Key refuses what S3 refuses: more than 1,024 bytes, or bytes that are
// not UTF-8.
func checkS3Key(key string) error {
	if len(key) > 1024 {
		return s3Errorf(http.StatusBadRequest, "KeyTooLongError", "Your key is too long")
	}
	if !utf8.ValidString(key) {
		return s3Errorf(http.StatusBadRequest, "InvalidURI", "Couldn't parse the specified URI.")
	}
	return nil
}

// validBucket follows the naming rules; a name that keeps them is also safe as
// the name of a folder.
func validBucket(name string) bool {
	if len(name) < 3 || len(name) > 63 || strings.Contains(name, "..") {
		return false
	}
	for i, c := range []byte(name) {
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		inner := i > 0 && i < len(name)-1 && (c == '-' || c == '.')
		if !alnum && !inner {
			return false
		}
	}
	return true
}

// allow refuses query parameters the caller does not act on, so that a request
// for a sub-resource never passes for a request for the object itself.
func (r *s3Request) allow(names ...string) error {
	for name := range r.query {
		if name == "x-id" || strings.HasPrefix(strings.ToLower(name), "x-amz-") || slices.Contains(names, name) {
			continue
		}
		return s3Errorf(http.StatusNotImplemented, "NotImplemented",
			"The embedded S3 does not implement %s with the parameter %q.", r.Method, name)
	}
	return nil
}

func (s *s3Server) serve(w http.ResponseWriter, r *s3Request) error {
	switch {
	case r.bucket == "":
		if r.Method != http.MethodGet {
			return errS3BadMethodHere
		}
		return s.listBuckets(w, r)
	case r.key == "":
		return s.serveBucket(w, r)
	case r.query.Has("uploads") || r.query.Has("uploadId"):
		return s.serveUpload(w, r)
	default:
		return s.serveObject(w, r)
	}
}

func (s *s3Server) serveBucket(w http.ResponseWriter, r *s3Request) error {
	switch r.Method {
	case http.MethodPut:
		if err := r.allow(); err != nil {
			return err
		}
		return s.createBucket(w, r)
	case http.MethodHead:
		if err := r.allow(); err != nil {
			return err
		}
		return s.needBucket(r.bucket)
	case http.MethodDelete:
		if err := r.allow(); err != nil {
			return err
		}
		return s.deleteBucket(w, r)
	case http.MethodGet:
		if r.query.Get("list-type") != "2" {
			return s3Errorf(http.StatusNotImplemented, "NotImplemented",
				"The embedded S3 lists a bucket with list-type=2 only; other reads of a bucket are not implemented.")
		}
		if err := r.allow("list-type", "prefix", "delimiter", "max-keys", "start-after",
			"continuation-token", "encoding-type", "fetch-owner"); err != nil {
			return err
		}
		return s.listObjects(w, r)
	case http.MethodPost:
		if !r.query.Has("delete") {
			return errS3BadMethodHere
		}
		if err := r.allow("delete"); err != nil {
			return err
		}
		return s.deleteObjects(w, r)
	}
	return errS3BadMethodHere
}

func (s *s3Server) serveObject(w http.ResponseWriter, r *s3Request) error {
	switch r.Method {
	case http.MethodPut:
		if err := r.allow(); err != nil {
			return err
		}
		if r.Header.Get("x-amz-copy-source") != "" {
			return s.copyObject(w, r)
		}
		return s.putObject(w, r)
	case http.MethodGet, http.MethodHead:
		if err := r.allow(responseOverrides...); err != nil {
			return err
		}
		return s.getObject(w, r)
	case http.MethodDelete:
		if err := r.allow(); err != nil {
			return err
		}
		return s.deleteObject(w, r)
	}
	return errS3BadMethodHere
}

// needBucket reports NoSuchBucket when the bucket's folder is missing.
func (s *s3Server) needBucket(bucket string) error {
	info, err := os.Stat(filepath.Join(s.root, bucket))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return s3Errorf(http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist: %s", bucket)
	}
	return err
}

func (s *s3Server) createBucket(w http.ResponseWriter, r *s3Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.MkdirAll(s.root, 0o777); err != nil {
		return fmt.Errorf("create bucket %s: %w", r.bucket, err)
	}
	err := os.Mkdir(filepath.Join(s.root, r.bucket), 0o777)
	if errors.Is(err, fs.ErrExist) {
		// us-east-1 alone answers 200 here; the refusal is what callers must cope with.
		return s3Errorf(http.StatusConflict, "BucketAlreadyOwnedByYou",
			"Your previous request to create the named bucket succeeded and you already own it.")
	}
	if err != nil {
		return fmt.Errorf("create bucket %s: %w", r.bucket, err)
	}
	w.Header().Set("Location", "/"+r.bucket)
	w.WriteHeader(http.StatusOK)
	return s.syncDir(s.root)
}

func (s *s3Server) deleteBucket(w http.ResponseWriter, r *s3Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.needBucket(r.bucket); err != nil {
		return err
	}
	// Remove, never RemoveAll: the file system itself refuses a bucket in use.
	if err := os.Remove(filepath.Join(s.root, r.bucket)); err != nil {
		return s3Errorf(http.StatusConflict, "BucketNotEmpty", "The bucket you tried to delete is not empty")
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *s3Server) listBuckets(w http.ResponseWriter, r *s3Request) error {
	if err := r.allow("prefix"); err != nil {
		return err
	}
	type bucket struct {
		Name         string
		CreationDate string
	}
	var out struct {
		XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListAllMyBucketsResult"`
		Owner   struct{ ID, DisplayName string }
		Buckets []bucket `xml:"Buckets>Bucket"`
	}
	out.Owner.ID, out.Owner.DisplayName = "embedded", "embedded"
	entries, err := os.ReadDir(s.root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list buckets: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() || !validBucket(e.Name()) || !strings.HasPrefix(e.Name(), r.query.Get("prefix")) {
			continue
		}
		created := ""
		if info, err := e.Info(); err == nil {
			created = s3Time(info.ModTime())
		}
		out.Buckets = append(out.Buckets, bucket{e.Name(), created})
	}
	return writeXML(w, out)
}

func s3Time(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func writeXML(w http.ResponseWriter, v any) error {
	body, err := xml.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(http.StatusOK)
	// A client that went away mid-answer is no fault of the store's.
	_, _ = w.Write(append([]byte(xml.Header), body...))
	return nil
}

func writeS3Error(w http.ResponseWriter, r *http.Request, err error) {
	e, ok := errors.AsType[*s3Error](err)
	if !ok {
		e = &s3Error{http.StatusInternalServerError, "InternalError", err.Error()}
	}
	if r.Method == http.MethodHead || e.status == http.StatusNotModified {
		w.WriteHeader(e.status)
		return
	}
	body, _ := xml.Marshal(struct {
		XMLName                            xml.Name `xml:"Error"`
		Code, Message, Resource, RequestId string
	}{Code: e.code, Message: e.message, Resource: r.URL.Path, RequestId: w.Header().Get("x-amz-request-id")})
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(e.status)
	_, _ = w.Write(append([]byte(xml.Header), body...))
}
