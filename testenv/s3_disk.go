package testenv

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// sidecar is what S3 knows of an object beside its bytes.
//
// An object and its sidecar are two files and no file system writes two files at
// once. So a sidecar belongs to one version of an object, told by the file's
// modification time: the last six digits of its nanoseconds, which S3 does not
// show, are a digest of the sidecar. The sidecar is written first, then the
// object appears with one rename or link, then the version before loses its
// sidecar. Wherever that is cut off, the object that is there finds its own.
type sidecar struct {
	Key      string            `json:"key"`
	ETag     string            `json:"etag"` // with its quotes
	Size     int64             `json:"size"`
	Headers  map[string]string `json:"headers,omitempty"`  // Content-Type and its like
	Meta     map[string]string `json:"meta,omitempty"`     // x-amz-meta-, lower case without the prefix
	Checksum string            `json:"checksum,omitempty"` // base64, of the whole object
	Algo     string            `json:"algo,omitempty"`     // crc32, sha256, ...
}

// plain says that nothing is to be kept beside the bytes: the ETag is theirs and
// all else is default.
func (sc *sidecar) plain() bool {
	return len(sc.Meta) == 0 && sc.Checksum == "" && !strings.Contains(sc.ETag, "-") &&
		len(sc.Headers) == 1 && sc.Headers["Content-Type"] == defaultContentType
}

// s3Object is one object as found on disk.
type s3Object struct {
	path string
	info fs.FileInfo
	sidecar
}

func (o *s3Object) modified() time.Time { return o.info.ModTime().Truncate(time.Second) }

// maxETags bounds the memory for ETags that are remembered.
const maxETags = 1 << 16

type etagOf struct {
	modified time.Time
	size     int64
	etag     string
}

// staged is a file that has all its bytes and no name in a bucket yet.
type staged struct {
	path string
	received
}

// writeIf is a condition on publishing. It is asked with the names locked; current is nil when the key is free.
type writeIf struct {
	create bool // the key must be free
	check  func(current *s3Object) error
}

// stage writes bytes to a temporary file. It removes the file when fill fails.
func (s *s3Server) stage(fill func(io.Writer) (received, error)) (*staged, error) {
	tmp := filepath.Join(s.meta, "tmp")
	if err := os.MkdirAll(tmp, 0o777); err != nil {
		return nil, fmt.Errorf("stage object: %w", err)
	}
	f, err := os.CreateTemp(tmp, "put-*")
	if err != nil {
		return nil, fmt.Errorf("stage object: %w", err)
	}
	got, err := fill(f)
	if err == nil {
		err = f.Chmod(0o644) // CreateTemp's 0600 would hide the object from other users
	}
	if err == nil && s.sync {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		os.Remove(f.Name())
		return nil, err
	}
	return &staged{f.Name(), got}, nil
}

func (st *staged) discard() { os.Remove(st.path) }

// publish gives a staged file its name. It consumes the file.
func (s *s3Server) publish(bucket string, st *staged, sc sidecar, cond writeIf) (*s3Object, error) {
	defer st.discard()
	text, err := json.Marshal(sc)
	if err != nil {
		return nil, err
	}
	digest := fnv.New64a()
	digest.Write(text)
	modified := s.clock.Now().Truncate(time.Millisecond).Add(time.Duration(digest.Sum64() % 1e6))
	if err := os.Chtimes(st.path, modified, modified); err != nil {
		return nil, fmt.Errorf("put %s/%s: %w", bucket, sc.Key, err)
	}
	info, err := os.Lstat(st.path) // the time as this file system keeps it
	if err != nil {
		return nil, fmt.Errorf("put %s/%s: %w", bucket, sc.Key, err)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.needBucket(bucket); err != nil {
		return nil, err
	}
	old, err := s.lookup(bucket, sc.Key)
	if err != nil {
		return nil, err
	}
	if cond.create && old != nil {
		return nil, errS3Precondition
	}
	if cond.check != nil {
		if err := cond.check(old); err != nil {
			return nil, err
		}
	}
	side := s.sidecarPath(bucket, sc.Key, info)
	if !sc.plain() {
		if err := s.writeSidecar(side, text); err != nil {
			return nil, fmt.Errorf("put %s/%s: %w", bucket, sc.Key, err)
		}
	}
	dst, err := s.claimPath(bucket, sc.Key)
	if err == nil {
		if cond.create {
			err = os.Link(st.path, dst) // unlike rename, never replaces: not even a file that another process made
		} else {
			err = os.Rename(st.path, dst)
		}
	}
	if cond.create && errors.Is(err, fs.ErrExist) {
		return nil, errS3Precondition
	}
	if err != nil {
		return nil, fmt.Errorf("put %s/%s: %w", bucket, sc.Key, err)
	}
	if old != nil {
		if before := s.sidecarPath(bucket, sc.Key, old.info); before != side {
			os.Remove(before)
		}
	}
	o := &s3Object{dst, info, sc}
	s.rememberETag(o)
	return o, s.syncDir(filepath.Dir(dst))
}

// lookup finds an object by its key and reads its sidecar; nil when there is
// none. The caller holds mu.
func (s *s3Server) lookup(bucket, key string) (*s3Object, error) {
	path := filepath.Join(s.root, bucket, filepath.FromSlash(keyToPath(key)))
	for _, p := range []string{path, path + besideFolder} {
		info, err := os.Lstat(p)
		if err == nil && info.Mode().IsRegular() {
			o := &s3Object{path: p, info: info}
			return o, s.readSidecar(bucket, key, o)
		}
		if err != nil && !isAbsent(err) {
			return nil, fmt.Errorf("look up %s/%s: %w", bucket, key, err)
		}
	}
	return nil, nil
}

// isAbsent also takes ENOTDIR, which says that a parent is an object.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// claimPath makes the folders above a key and returns the path its object is to
// have. An object that stands where a folder must be moves beside it. The caller
// holds mu for writing.
func (s *s3Server) claimPath(bucket, key string) (string, error) {
	dir := filepath.Join(s.root, bucket)
	names := strings.Split(keyToPath(key), "/")
	for _, name := range names[:len(names)-1] {
		sub := filepath.Join(dir, name)
		info, err := os.Lstat(sub)
		if err == nil && info.Mode().IsRegular() {
			if err := os.Rename(sub, sub+besideFolder); err != nil {
				return "", err
			}
			err = fs.ErrNotExist
		}
		if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
			if err := s.makeDirs(sub); err != nil {
				return "", err
			}
		} else if err != nil {
			return "", err
		}
		dir = sub
	}
	path := filepath.Join(dir, names[len(names)-1])
	for _, p := range []string{path + besideFolder, path} {
		info, err := os.Lstat(p)
		if err == nil && info.Mode().IsRegular() {
			return p, nil
		}
		if err == nil && info.IsDir() {
			return path + besideFolder, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return path, nil
}

// remove takes an object away, and the folders that are empty without it. The
// caller holds mu for writing.
func (s *s3Server) remove(bucket string, o *s3Object) error {
	if err := os.Remove(o.path); err != nil {
		return fmt.Errorf("delete %s/%s: %w", bucket, o.Key, err)
	}
	os.Remove(s.sidecarPath(bucket, o.Key, o.info))
	s.etagMu.Lock()
	delete(s.etags, o.path)
	s.etagMu.Unlock()
	dir, top := filepath.Dir(o.path), filepath.Join(s.root, bucket)
	for dir != top && os.Remove(dir) == nil {
		dir = filepath.Dir(dir)
	}
	return s.syncDir(dir)
}

func (s *s3Server) sidecarPath(bucket, key string, info fs.FileInfo) string {
	sum := sha256.Sum256([]byte(key))
	name := hex.EncodeToString(sum[:16])
	version := fmt.Sprintf("%x-%x", uint64(info.ModTime().UnixNano()), info.Size())
	return filepath.Join(s.meta, "objects", bucket, name[:2], name+"-"+version+".json")
}

// writeSidecar writes the sidecar of a version that has no name yet. Nobody reads
// it before the name is there, so it needs no temporary file.
func (s *s3Server) writeSidecar(path string, text []byte) error {
	dir := filepath.Dir(path)
	if err := s.makeDirs(dir); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		// The same bytes were put at the same time before: the sidecar is that
		// object's and stays, unless a writer died over it.
		if old, err := os.ReadFile(path); err == nil && string(old) == string(text) {
			return nil
		}
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0o666)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil && s.sync {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return s.syncDir(dir)
}

// readSidecar fills an object from its sidecar. A file without one is a plain
// object: put as one, put there by somebody else, or copied without s3-meta.
func (s *s3Server) readSidecar(bucket, key string, o *s3Object) error {
	text, err := os.ReadFile(s.sidecarPath(bucket, key, o.info))
	if err == nil && json.Unmarshal(text, &o.sidecar) == nil && o.Key == key && o.Size == o.info.Size() {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read metadata of %s/%s: %w", bucket, key, err)
	}
	etag, err := s.computeETag(o)
	o.sidecar = sidecar{Key: key, ETag: etag, Size: o.info.Size()}
	return err
}

func (s *s3Server) computeETag(o *s3Object) (string, error) {
	s.etagMu.Lock()
	known, ok := s.etags[o.path]
	s.etagMu.Unlock()
	if ok && known.modified.Equal(o.info.ModTime()) && known.size == o.info.Size() {
		return known.etag, nil
	}
	f, err := os.Open(o.path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := md5.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("compute ETag: %w", err)
	}
	o.ETag = `"` + hex.EncodeToString(sum.Sum(nil)) + `"`
	s.rememberETag(o)
	return o.ETag, nil
}

func (s *s3Server) rememberETag(o *s3Object) {
	s.etagMu.Lock()
	defer s.etagMu.Unlock()
	if len(s.etags) >= maxETags {
		for path := range s.etags { // any of them: reading a file again is the price
			if delete(s.etags, path); len(s.etags) <= maxETags/2 {
				break
			}
		}
	}
	s.etags[o.path] = etagOf{o.info.ModTime(), o.info.Size(), o.ETag}
}

// open finds and opens an object; the file stays what it is when the name is
// given to another object meanwhile.
func (s *s3Server) open(bucket, key string) (*os.File, *s3Object, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.needBucket(bucket); err != nil {
		return nil, nil, err
	}
	o, err := s.lookup(bucket, key)
	if err != nil {
		return nil, nil, err
	}
	if o == nil {
		return nil, nil, errS3NoSuchKey
	}
	f, err := os.Open(o.path)
	if err != nil {
		return nil, nil, fmt.Errorf("open %s/%s: %w", bucket, key, err)
	}
	return f, o, nil
}

// makeDirs is os.MkdirAll whose new names are durable when that is asked for.
func (s *s3Server) makeDirs(dir string) error {
	err := os.Mkdir(dir, 0o777)
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.makeDirs(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o777)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.syncDir(filepath.Dir(dir))
}

// syncDir makes a change of names durable, when that is asked for.
func (s *s3Server) syncDir(dir string) error {
	if !s.sync {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// holds says whether an object of a size is there.
func (s *s3Server) holds(bucket, key string, size int) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	o, err := s.lookup(bucket, key)
	return err == nil && o != nil && o.info.Size() == int64(size)
}

// putBytes stores an object on behalf of another service of the Env.
func (s *s3Server) putBytes(bucket, key string, data []byte) error {
	if err := checkS3Key(key); err != nil {
		return err
	}
	if err := s.needBucket(bucket); err != nil {
		return err // before megabytes are written in vain, again at every tick
	}
	st, err := s.stage(func(w io.Writer) (received, error) {
		_, err := w.Write(data)
		return received{md5: md5.Sum(data), size: int64(len(data))}, err
	})
	if err != nil {
		return err
	}
	_, err = s.publish(bucket, st, sidecar{
		Key: key, ETag: st.etag(), Size: st.size,
		Headers: map[string]string{"Content-Type": defaultContentType},
	}, writeIf{})
	return err
}
