package lake

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/firehose/types"

	"telemetrylake/pipeline"
)

// A Probe makes a part that is marked as a probe, other bytes each time. Seal drops such parts.
type Probe func() ([]byte, error)

const (
	// probeWait is how long a probe may take beyond the buffering interval that the stream reports.
	// The look-alikes that do not report their settings deliver within the call.
	probeWait = 15 * time.Second
	// probeAgain is the time after which a probe that was not seen is put again: a seal that works
	// on the same staging may have dropped it before we looked.
	probeAgain = 5 * time.Second
)

// reports tells whether s is a description as AWS gives it, with every setting in it, also those
// that nobody chose: what s does not say is then not set. moto 5.2 and LocalStack 4.14 repeat only
// what they were created with.
func reports(s *types.ExtendedS3DestinationDescription) bool {
	return s.CompressionFormat != "" && s.EncryptionConfiguration != nil && s.S3BackupMode != ""
}

// ownEndpoint tells whether the client talks to something that is not AWS. A start on AWS never
// waits for a probe: that would take the stream's buffering interval.
func (f *Firehose) ownEndpoint() bool {
	endpoint := aws.ToString(f.client.Options().BaseEndpoint)
	u, err := url.Parse(endpoint)
	if endpoint == "" || err != nil {
		return false
	}
	for _, domain := range []string{".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu", ".api.aws"} {
		if strings.HasSuffix(u.Hostname(), domain) {
			return false
		}
	}
	return true
}

// try puts two probes on the stream and waits until both lie in staging as they were put, each
// right behind the other or in an object of its own. interval is the buffering that the stream
// reports.
func (f *Firehose) try(ctx context.Context, probe Probe, interval time.Duration) error {
	var probes []pipeline.Part
	for i := range 2 {
		body, err := probe()
		if err != nil {
			return fmt.Errorf("make a probe of delivery stream %s: %w", f.stream, err)
		}
		probes = append(probes, pipeline.Part{ID: pipeline.PartID{Window: pipeline.WindowID{Lane: "probe"}, Index: i}, Body: body})
	}
	l := look{staging: f.staging, probes: probes, seen: map[pipeline.Object]bool{}}
	if err := l.skip(ctx); err != nil {
		return err
	}
	f.log.InfoContext(ctx, "delivery stream does not report its settings, probing it", "stream", f.stream, "longest", interval+probeWait)
	within, cancel := context.WithTimeout(ctx, interval+probeWait)
	defer cancel()
	var put time.Time
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		if put.IsZero() || time.Since(put) >= probeAgain+interval {
			put = time.Now()
			if err := f.put(within, probes); err != nil {
				return err
			}
		}
		done, err := l.once(within)
		if done {
			return nil
		}
		if err == nil {
			err = pipeline.Wait(within, wait)
		}
		var bad *spoilt
		switch {
		case err == nil:
		case errors.As(err, &bad):
			return f.refuse(bad.what, bad.do)
		case ctx.Err() == nil && within.Err() != nil:
			return f.missed(ctx, l, interval)
		default:
			return fmt.Errorf("probe delivery stream %s: %w", f.stream, err)
		}
	}
}

// missed refuses a stream whose probe did not come, and says where it went if that can be seen.
func (f *Firehose) missed(ctx context.Context, l look, interval time.Duration) error {
	at, err := l.elsewhere(ctx, NewBucket(f.staging.client, f.staging.bucket, ""))
	if err != nil {
		return fmt.Errorf("look for the probe of delivery stream %s: %w", f.stream, err)
	}
	if at != "" {
		return f.refuse(fmt.Sprintf("delivered a probe to %s, which is not under %s", at, f.staging), "set its prefix to that of staging, or nothing is ever sealed")
	}
	return f.refuse(fmt.Sprintf("delivered no probe to %s within %s", f.staging, interval+probeWait),
		"check that it delivers to this bucket as it receives, without conversion; what reads staging meanwhile must be streamer seal only")
}

func (f *Firehose) refuse(what, do string) error {
	return pipeline.NeedPerson(fmt.Errorf("delivery stream %s %s", f.stream, what), do)
}

// A spoilt is what a stream did to a probe.
type spoilt struct{ what, do string }

func (s *spoilt) Error() string { return s.what }

// A look is the search for probes among the objects of staging.
type look struct {
	staging *Bucket
	probes  []pipeline.Part
	found   [2]bool
	seen    map[pipeline.Object]bool // no need to read them (again)
}

// skip passes over what lies in staging already.
func (l *look) skip(ctx context.Context) error {
	for o, err := range l.staging.List(ctx) {
		if err != nil {
			return err
		}
		l.seen[o] = true
	}
	return nil
}

// once looks at what is new, and reports whether all probes are there.
func (l *look) once(ctx context.Context) (bool, error) {
	for o, err := range l.staging.List(ctx) {
		if err != nil {
			return false, err
		}
		if l.seen[o] {
			continue
		}
		b, err := l.read(ctx, l.staging, o)
		if err != nil {
			return false, err
		}
		l.seen[o] = true
		if bad := l.judge(b); bad != nil {
			if err := l.clear(ctx, l.staging, o); err != nil {
				return false, err
			}
			return false, bad
		}
	}
	return l.found[0] && l.found[1], nil
}

// read returns nothing of an object that a seal has removed meanwhile.
func (l *look) read(ctx context.Context, from *Bucket, o pipeline.Object) ([]byte, error) {
	r, err := from.Read(ctx, o)
	if errors.Is(err, pipeline.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// judge notes which probes an object holds, and returns what is wrong with them.
func (l *look) judge(b []byte) *spoilt {
	for i, p := range l.probes {
		before, after, ok := bytes.Cut(b, p.Body)
		if !ok {
			continue
		}
		// What is joined to a part must be a part: it ends, or begins, as a Parquet file does.
		if len(before) > 0 && !bytes.HasSuffix(before, parquetMagic) || len(after) > 0 && !bytes.HasPrefix(after, parquetMagic) {
			return &spoilt{"puts bytes between records", "turn its delimiter off: a part is told from the next by its own bytes"}
		}
		l.found[i] = true
	}
	if l.compressed(b) {
		return &spoilt{"compresses (GZIP)", "set CompressionFormat to UNCOMPRESSED: parts are compressed inside"}
	}
	return nil
}

var parquetMagic = []byte("PAR1")

func (l *look) compressed(b []byte) bool {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return false
	}
	// What cannot be read to its end may still show a probe.
	plain, _ := io.ReadAll(io.LimitReader(z, 1<<20))
	return bytes.Contains(plain, l.probes[0].Body) || bytes.Contains(plain, l.probes[1].Body)
}

// clear removes an object that is nothing but spoilt probes. Whatever else it holds is left to
// seal, which puts damage aside.
func (l *look) clear(ctx context.Context, from *Bucket, o pipeline.Object) error {
	if o.Size > l.most() {
		return nil
	}
	return from.Remove(ctx, o)
}

// most is the size of an object that holds probes and nothing else, with room for delimiters.
func (l *look) most() int64 { return int64(len(l.probes[0].Body)+len(l.probes[1].Body)) + 64 }

// maxElsewhere bounds how many objects are read in search of a probe that went astray.
const maxElsewhere = 200

// elsewhere looks for a probe in all of the bucket, removes it and says where it was; "" if it is
// not found.
func (l *look) elsewhere(ctx context.Context, all *Bucket) (string, error) {
	n := 0
	for o, err := range all.List(ctx) {
		if err != nil {
			return "", err
		}
		if o.Size > l.most() || strings.HasPrefix(o.Key, l.staging.prefix) {
			continue
		}
		if n++; n > maxElsewhere {
			break
		}
		b, err := l.read(ctx, all, o)
		if err != nil {
			return "", err
		}
		if bytes.Contains(b, l.probes[0].Body) || bytes.Contains(b, l.probes[1].Body) || l.compressed(b) {
			return all.String() + o.Key, l.clear(ctx, all, o)
		}
	}
	return "", nil
}
