package testenv

import (
	"cmp"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A listing walks the folders and never a copy of them, so it shows what is
// there. It reads only the folders whose keys can be in the page asked for.

// lister walks a bucket in the order of its keys' bytes.
type lister struct {
	bucket string
	prefix string
	after  string // only keys greater than this one
	skip   string // no key that begins with this; empty: none
	visit  func(key, path string) error
}

var errStopListing = errors.New("stop listing")

// named is one name in a folder: an object's whole key, or the beginning, up to
// and with its slash, that all keys below it share.
type named struct {
	key    string
	path   string
	folder bool
}

func (l *lister) walk(root string) error {
	// Everything with the prefix lies below the folder its last slash ends.
	start := l.prefix[:strings.LastIndexByte(l.prefix, '/')+1]
	dir := filepath.Join(root, l.bucket)
	if start != "" {
		dir = filepath.Join(dir, filepath.FromSlash(keyToPath(strings.TrimSuffix(start, "/"))))
	}
	return l.folder(filepath.Join(root, l.bucket), dir, start)
}

func (l *lister) folder(top, dir, key string) error {
	names, err := readNames(dir, key)
	if err != nil {
		return err
	}
	slices.SortFunc(names, func(a, b named) int { return cmp.Compare(a.key, b.key) })
	for _, n := range names {
		if l.skip != "" && strings.HasPrefix(n.key, l.skip) {
			continue
		}
		if n.folder {
			inPrefix := strings.HasPrefix(n.key, l.prefix) || strings.HasPrefix(l.prefix, n.key)
			allBefore := n.key < l.after && !strings.HasPrefix(l.after, n.key)
			if !inPrefix || allBefore {
				continue
			}
			if err := l.folder(top, n.path, n.key); err != nil {
				return err
			}
			continue
		}
		if !strings.HasPrefix(n.key, l.prefix) || n.key <= l.after {
			continue
		}
		rel, err := filepath.Rel(top, n.path)
		if err != nil {
			return err
		}
		if strings.TrimSuffix(filepath.ToSlash(rel), besideFolder) != keyToPath(n.key) {
			continue // the name of no key
		}
		if err := l.visit(n.key, n.path); err != nil {
			return err
		}
	}
	return nil
}

// readNames reads a folder whose keys begin with key; the folders of a continued
// segment count as names in this one.
func readNames(dir, key string) ([]named, error) {
	entries, err := os.ReadDir(dir)
	if isAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names := make([]named, 0, len(entries))
	for _, e := range entries {
		path, name := filepath.Join(dir, e.Name()), e.Name()
		if e.IsDir() {
			if chunk, ok := strings.CutSuffix(name, continued); ok {
				if segment, ok := nameToSegment(chunk); ok {
					more, err := readNames(path, key+segment)
					if err != nil {
						return nil, err
					}
					names = append(names, more...)
				}
				continue
			}
		} else if !e.Type().IsRegular() {
			continue
		} else {
			name = strings.TrimSuffix(name, besideFolder)
		}
		segment, ok := nameToSegment(name)
		if !ok {
			continue
		}
		if e.IsDir() {
			segment += "/"
		}
		names = append(names, named{key + segment, path, e.IsDir()})
	}
	return names, nil
}

type listedObject struct {
	Key, LastModified, ETag string
	Size                    int64
	StorageClass            string
}

type listedPrefix struct{ Prefix string }

type listResult struct {
	XMLName               xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListBucketResult"`
	Name                  string
	Prefix                string
	Delimiter             string `xml:",omitempty"`
	StartAfter            string `xml:",omitempty"`
	EncodingType          string `xml:",omitempty"`
	MaxKeys               int
	KeyCount              int
	IsTruncated           bool
	ContinuationToken     string `xml:",omitempty"`
	NextContinuationToken string `xml:",omitempty"`
	Contents              []listedObject
	CommonPrefixes        []listedPrefix
}

// A continuation token names the last thing shown: a key, or a common prefix and
// with it everything below it.
const (
	tokenKey    = "k"
	tokenPrefix = "p"
)

func (s *s3Server) listObjects(w http.ResponseWriter, r *s3Request) error {
	out := listResult{
		Name: r.bucket, Prefix: r.query.Get("prefix"), Delimiter: r.query.Get("delimiter"),
		StartAfter: r.query.Get("start-after"), EncodingType: r.query.Get("encoding-type"),
		ContinuationToken: r.query.Get("continuation-token"), MaxKeys: 1000,
	}
	if text := r.query.Get("max-keys"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return s3Errorf(http.StatusBadRequest, "InvalidArgument", "Argument max-keys must be an integer between 0 and 2147483647")
		}
		out.MaxKeys = min(n, 1000)
	}
	if out.EncodingType != "" && out.EncodingType != "url" {
		return s3Errorf(http.StatusBadRequest, "InvalidArgument", "Invalid Encoding Method specified in Request")
	}
	l := &lister{bucket: r.bucket, prefix: out.Prefix, after: out.StartAfter}
	if out.ContinuationToken != "" {
		if err := l.resume(out.ContinuationToken); err != nil {
			return err
		}
	}
	if err := s.fill(&out, l); err != nil {
		return err
	}
	if out.EncodingType == "url" {
		out.Prefix, out.Delimiter, out.StartAfter = urlEncode(out.Prefix), urlEncode(out.Delimiter), urlEncode(out.StartAfter)
		for i := range out.Contents {
			out.Contents[i].Key = urlEncode(out.Contents[i].Key)
		}
		for i := range out.CommonPrefixes {
			out.CommonPrefixes[i].Prefix = urlEncode(out.CommonPrefixes[i].Prefix)
		}
	}
	return writeXML(w, out)
}

func (l *lister) resume(token string) error {
	text, err := base64.URLEncoding.DecodeString(token)
	if err != nil || len(text) < 2 {
		return s3Errorf(http.StatusBadRequest, "InvalidArgument", "The continuation token provided is incorrect")
	}
	l.after = string(text[1:])
	switch string(text[:1]) {
	case tokenKey:
	case tokenPrefix:
		l.skip = l.after
	default:
		return s3Errorf(http.StatusBadRequest, "InvalidArgument", "The continuation token provided is incorrect")
	}
	return nil
}

// fill puts one page into out.
func (s *s3Server) fill(out *listResult, l *lister) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.needBucket(l.bucket); err != nil {
		return err
	}
	if out.MaxKeys == 0 {
		return nil
	}
	last := ""
	l.visit = func(key, path string) error {
		if out.KeyCount == out.MaxKeys {
			out.IsTruncated = true
			out.NextContinuationToken = base64.URLEncoding.EncodeToString([]byte(last))
			return errStopListing
		}
		rest := key[len(l.prefix):]
		if i := strings.Index(rest, out.Delimiter); out.Delimiter != "" && i >= 0 {
			shared := key[:len(l.prefix)+i+len(out.Delimiter)]
			out.CommonPrefixes = append(out.CommonPrefixes, listedPrefix{shared})
			out.KeyCount++
			l.skip = shared
			last = tokenPrefix + shared
			return nil
		}
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // taken away by another process
		}
		if err != nil {
			return err
		}
		o := &s3Object{path: path, info: info}
		if err := s.readSidecar(l.bucket, key, o); err != nil {
			return err
		}
		out.Contents = append(out.Contents, listedObject{key, s3Time(o.modified()), o.ETag, o.Size, "STANDARD"})
		out.KeyCount++
		last = tokenKey + key
		return nil
	}
	if err := l.walk(s.root); err != nil && !errors.Is(err, errStopListing) {
		return err
	}
	return nil
}

// urlEncode escapes as encoding-type=url does: everything but slashes.
func urlEncode(key string) string {
	return strings.ReplaceAll(url.QueryEscape(key), "%2F", "/")
}
