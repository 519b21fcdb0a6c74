package lake

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/firehose"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
	"telemetrylake/testenv"
)

// noProbe is for streams that must not be probed.
func noProbe() ([]byte, error) {
	return nil, errors.New("a stream is probed that reports its settings")
}

// probes makes bodies that begin and end as a Parquet file does, another each time.
func probes() Probe {
	n := 0
	return func() ([]byte, error) {
		n++
		return fmt.Appendf(nil, "PAR1 probe %d PAR1", n), nil
	}
}

// A stranger stands in for an emulator: it describes a stream as that emulator did, and delivers
// as deliver says.
type stranger struct {
	t       testing.TB
	s3      *s3.Client
	deliver func(s *stranger, records [][]byte)
	n       int // objects made
}

func (s *stranger) put(prefix string, body []byte) {
	s.t.Helper()
	s.n++
	_, err := s.s3.PutObject(s.t.Context(), &s3.PutObjectInput{
		Bucket: aws.String(bucketName), Key: aws.String(fmt.Sprintf("%s2026/11/30/19/parts-%d", prefix, s.n)), Body: bytes.NewReader(body),
	})
	if err != nil {
		s.t.Error(err)
	}
}

// newStranger is a sink on a stranger that describes itself as the recorded file says.
func newStranger(t testing.TB, describe string, deliver func(*stranger, [][]byte)) (*Firehose, *stranger, *wire) {
	t.Helper()
	_, cfg := newService(t, testenv.FirehoseBehaviour{})
	f, w := newSink(t, cfg, destination())
	s := &stranger{t: t, s3: s3Client(cfg), deliver: deliver}
	text, err := os.ReadFile("testdata/describe-" + describe + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded struct{ DeliveryStreamDescription map[string]any }
	if err := json.Unmarshal(text, &recorded); err != nil {
		t.Fatal(err)
	}
	w.rewrite = func(d map[string]any) {
		clear(d)
		maps.Copy(d, recorded.DeliveryStreamDescription)
	}
	w.answer = func(_ int, records [][]byte) (int, string) {
		s.deliver(s, records)
		responses := make([]string, len(records))
		for i := range responses {
			responses[i] = `{"RecordId":"r"}`
		}
		return http.StatusOK, `{"FailedPutCount":0,"Encrypted":false,"RequestResponses":[` + strings.Join(responses, ",") + `]}`
	}
	return f, s, w
}

// How each look-alike delivers what one call puts.
func joined(s *stranger, records [][]byte) { s.put("staging/", bytes.Join(records, nil)) }

func each(s *stranger, records [][]byte) {
	for _, r := range records {
		s.put("staging/", r)
	}
}

func TestAStreamThatDoesNotReportItsSettingsIsProbed(t *testing.T) {
	for name, c := range map[string]struct {
		describe string
		deliver  func(*stranger, [][]byte)
		puts     int
	}{
		"MiniStack reports all":                {"ministack", each, 0},
		"moto repeats what it was told":        {"moto", joined, 1},
		"LocalStack repeats what it was told":  {"localstack", joined, 1},
		"as moto, an object for each record":   {"moto", each, 1},
		"as moto, behind parts of others":      {"moto", func(s *stranger, r [][]byte) { s.put("staging/", append([]byte("PAR1 x PAR1"), bytes.Join(r, nil)...)) }, 1},
		"as moto, before parts of others":      {"moto", func(s *stranger, r [][]byte) { s.put("staging/", append(bytes.Join(r, nil), "PAR1 x PAR1"...)) }, 1},
		"as moto, twice":                       {"moto", func(s *stranger, r [][]byte) { joined(s, r); joined(s, r) }, 1},
		"as moto, each record twice, reversed": {"moto", func(s *stranger, r [][]byte) { joined(s, [][]byte{r[1], r[1], r[0], r[0]}) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f, s, w := newStranger(t, c.describe, c.deliver)
			s.put("staging/", []byte("PAR1 from before PAR1"))
			if err := f.Check(t.Context(), probes()); err != nil {
				t.Fatal(err)
			}
			if len(w.batches) != c.puts {
				t.Errorf("%d puts, want %d", len(w.batches), c.puts)
			}
		})
	}
}

func TestAStreamThatReportsADamagingSettingIsRefusedUnprobed(t *testing.T) {
	for _, who := range []string{"ministack", "moto", "localstack"} {
		t.Run(who, func(t *testing.T) {
			f, _, w := newStranger(t, who+"-gzip", joined)
			wantRefusal(t, f.Check(t.Context(), noProbe), "compresses (GZIP)", "UNCOMPRESSED")
			if len(w.batches) > 0 {
				t.Error("it was probed")
			}
		})
	}
}

func wantRefusal(t *testing.T, err error, what, do string) {
	t.Helper()
	var person *pipeline.PersonError
	if !errors.As(err, &person) || !strings.Contains(err.Error(), what) || !strings.Contains(person.Do, do) || !strings.Contains(err.Error(), streamName) {
		t.Errorf("check: %v, want a refusal that says %q and %q", err, what, do)
	}
}

func compress(t testing.TB, b []byte) []byte {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return z.Bytes()
}

// What a stream does to a probe it would do to parts: the start is refused, and what the probe
// left behind is taken away.
func TestAStreamThatSpoilsAProbeIsRefusedAndNothingStays(t *testing.T) {
	for name, c := range map[string]struct {
		deliver  func(*stranger, [][]byte)
		what, do string
		stays    int // objects of probes that are left for seal to drop
	}{
		"delimiter in one object": {func(s *stranger, r [][]byte) { s.put("staging/", append(bytes.Join(r, []byte("\n")), '\n')) },
			"puts bytes between records", "delimiter", 0},
		"delimiter between only": {func(s *stranger, r [][]byte) { s.put("staging/", bytes.Join(r, []byte("\n"))) },
			"puts bytes between records", "delimiter", 0},
		"delimiter, an object for each": {func(s *stranger, r [][]byte) {
			for _, b := range r {
				s.put("staging/", append(slices.Clone(b), '\n'))
			}
		}, "puts bytes between records", "delimiter", 1},
		"compression": {func(s *stranger, r [][]byte) { s.put("staging/", compress(s.t, bytes.Join(r, nil))) },
			"compresses (GZIP)", "UNCOMPRESSED", 0},
		"no prefix":                 {func(s *stranger, r [][]byte) { s.put("", bytes.Join(r, nil)) }, "delivered a probe to s3://the-bucket/2026/11/30/19/parts-", "staging", -1},
		"another prefix":            {func(s *stranger, r [][]byte) { s.put("errors/", bytes.Join(r, nil)) }, "delivered a probe to s3://the-bucket/errors/", "staging", -1},
		"nothing at all":            {func(*stranger, [][]byte) {}, "delivered no probe to s3://the-bucket/staging/", "as it receives", 0},
		"the first record only":     {func(s *stranger, r [][]byte) { s.put("staging/", r[0]) }, "delivered no probe", "as it receives", -1},
		"other bytes, as in base64": {func(s *stranger, r [][]byte) { s.put("staging/", bytes.ToUpper(bytes.Join(r, nil))) }, "delivered no probe", "conversion", -1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, s, w := newStranger(t, "moto", c.deliver)
				s.put("staging/", []byte("PAR1 from before PAR1"))
				s.put("lake/", []byte("PAR1 sealed PAR1"))
				begun := time.Now()
				wantRefusal(t, f.Check(t.Context(), probes()), c.what, c.do)
				if took := time.Since(begun); took > 60*time.Second+probeWait+time.Second {
					t.Errorf("the refusal took %v of the stream's 60 s and %v", took, probeWait)
				}
				if c.stays < 0 {
					return
				}
				all := NewBucket(s.s3, bucketName, "")
				if os := list(t, all); len(os) != 2+c.stays {
					t.Errorf("%d puts left %v", len(w.batches), os)
				}
			})
		})
	}
}

func TestAProbeThatTakesTheStreamsIntervalIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s, w := newStranger(t, "moto", func(s *stranger, r [][]byte) {
			time.AfterFunc(61*time.Second, func() { joined(s, r) })
		})
		begun := time.Now()
		if err := f.Check(t.Context(), probes()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took < 61*time.Second || took > 63*time.Second {
			t.Errorf("the probe was noticed after %v", took)
		}
		if len(w.batches) != 1 {
			t.Errorf("%d puts", len(w.batches))
		}
		_ = s
	})
}

// A seal beside us may drop a probe before we have seen it.
func TestAProbeThatASealDroppedIsPutAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		f, _, w := newStranger(t, "moto", func(s *stranger, r [][]byte) {
			if n++; n > 1 {
				joined(s, r)
			}
		})
		if err := f.Check(t.Context(), probes()); err != nil {
			t.Fatal(err)
		}
		if len(w.batches) != 2 {
			t.Errorf("%d puts", len(w.batches))
		}
	})
}

func TestAProbeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, _ := newStranger(t, "moto", func(*stranger, [][]byte) {})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := f.Check(ctx, probes()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}

func TestAProbeThatCannotBeMadeOrPutIsReported(t *testing.T) {
	f, _, w := newStranger(t, "moto", joined)
	if err := f.Check(t.Context(), noProbe); err == nil || !strings.Contains(err.Error(), "make a probe of delivery stream parts") {
		t.Errorf("error %v", err)
	}
	w.answer = func(int, [][]byte) (int, string) {
		return http.StatusBadRequest, `{"__type":"ResourceNotFoundException","message":"gone"}`
	}
	if err := f.Check(t.Context(), probes()); err == nil || !strings.Contains(err.Error(), "ResourceNotFound") {
		t.Errorf("error %v", err)
	}
}

// A start on AWS must not wait for the buffering of a probe, whatever a description leaves out.
func TestAWSItselfIsNeverProbed(t *testing.T) {
	for endpoint, own := range map[string]bool{
		"": false,
		"https://firehose.eu-west-1.amazonaws.com":               false,
		"https://vpce-1-a.firehose.us-east-1.vpce.amazonaws.com": false,
		"https://firehose.cn-north-1.amazonaws.com.cn":           false,
		"https://firehose.us-east-1.api.aws":                     false,
		"http://127.0.0.1:4566":                                  true,
		"http://localstack:4566":                                 true,
		"https://amazonaws.com.internal":                         true,
	} {
		o := firehose.Options{Region: "eu-west-1"}
		if endpoint != "" {
			o.BaseEndpoint = &endpoint
		}
		f := NewFirehose(firehose.New(o), streamName, nil, nil)
		if f.ownEndpoint() != own {
			t.Errorf("%q is taken for a stand-in: %t", endpoint, !own)
		}
	}
}
