package lake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/firehose/types"

	"telemetrylake/pipeline"
	"telemetrylake/testenv"
)

func bodies(ps []pipeline.Part) [][]byte {
	var bs [][]byte
	for _, p := range ps {
		bs = append(bs, p.Body)
	}
	return bs
}

func same(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }

func TestFirehoseBatchesWithinTheLimitsAndInOrder(t *testing.T) {
	random := make([]int, 60)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range random {
		random[i] = 1 + rng.IntN(MaxRecordBytes)
	}
	for name, c := range map[string]struct {
		sizes   []int
		batches int // 0: as many as it takes
	}{
		"none":                      {nil, 0},
		"one":                       {[]int{10}, 1},
		"500 records":               {slices.Repeat([]int{10}, 500), 1},
		"501 records":               {slices.Repeat([]int{10}, 501), 2},
		"3 MiB":                     {slices.Repeat([]int{1 << 20 / 2}, 6), 1},
		"3 MiB and a byte":          {append(slices.Repeat([]int{1 << 20 / 2}, 6), 10), 2},
		"the largest record":        {[]int{MaxRecordBytes}, 1},
		"many of the largest":       {slices.Repeat([]int{MaxRecordBytes}, 7), 3},
		"any sizes":                 {random, 0},
		"a large one between small": {[]int{10, MaxRecordBytes + 1, 10}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			env, cfg := newService(t, testenv.FirehoseBehaviour{})
			f, w := newSink(t, cfg, destination())
			ps := someParts(c.sizes...)
			if err := f.Land(t.Context(), ps); err != nil {
				t.Fatal(err)
			}
			var sent [][]byte
			for _, b := range w.batches {
				size := 0
				for _, r := range b {
					size += len(r)
				}
				if len(b) == 0 || len(b) > 500 || size > 3<<20 {
					t.Errorf("a batch has %d records of %d bytes", len(b), size)
				}
				sent = append(sent, b...)
			}
			small := slices.DeleteFunc(bodies(ps), func(b []byte) bool { return len(b) > MaxRecordBytes })
			if !same(sent, small) {
				t.Errorf("%d records were sent, in another order or not those of %d parts", len(sent), len(small))
			}
			if c.batches > 0 && len(w.batches) != c.batches {
				t.Errorf("%d batches, want %d", len(w.batches), c.batches)
			}
			if got := env.FirehoseStats()[streamName].Records; got != len(small) {
				t.Errorf("Firehose accepted %d records of %d", got, len(small))
			}
		})
	}
}

// Each part becomes one record, and what was landed is what Firehose joins.
func TestFirehoseLandsBytesUnchanged(t *testing.T) {
	env, cfg := newService(t, testenv.FirehoseBehaviour{})
	f, _ := newSink(t, cfg, destination())
	ps := someParts(100, 2000, 30)
	if err := f.Land(t.Context(), ps); err != nil {
		t.Fatal(err)
	}
	env.FlushFirehose()
	os := list(t, f.staging)
	if len(os) != 1 {
		t.Fatalf("staging holds %v", os)
	}
	if got, err := read(t, f.staging, os[0]); err != nil || got != string(bytes.Join(bodies(ps), nil)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestFirehoseSendsOnlyFailedRecordsAgainAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := []bool{false, true, false, true, true /* again: */, true, false, true /* again: */, false, false}
		n := 0
		env, cfg := newService(t, testenv.FirehoseBehaviour{Fail: func() bool { n++; return fails[n-1] }})
		f, w := newSink(t, cfg, destination())
		ps := someParts(10, 20, 30, 40, 50)
		if err := f.Land(t.Context(), ps); err != nil {
			t.Fatal(err)
		}
		b := bodies(ps)
		want := [][][]byte{b, {b[1], b[3], b[4]}, {b[1], b[4]}}
		if !slices.EqualFunc(w.batches, want, same) {
			t.Errorf("sent %d batches, want all, then those that failed", len(w.batches))
		}
		if got := env.FirehoseStats()[streamName].Records; got != 5 {
			t.Errorf("%d records accepted", got)
		}
	})
}

func TestFirehoseWaitsOutThrottling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, cfg := newService(t, testenv.FirehoseBehaviour{})
		f, w := newSink(t, cfg, destination())
		w.answer = func(n int, _ [][]byte) (int, string) {
			if n < 60 {
				return http.StatusServiceUnavailable, `{"__type":"ServiceUnavailableException","message":"Slow down."}`
			}
			return 0, ""
		}
		if err := f.Land(t.Context(), someParts(10, 20)); err != nil {
			t.Fatal(err)
		}
		if got := env.FirehoseStats()[streamName].Records; got != 2 {
			t.Errorf("%d records accepted", got)
		}
	})
}

func TestFirehoseGivesUpWhenItsContextIsDone(t *testing.T) {
	for name, answer := range map[string]func(int, [][]byte) (int, string){
		"throttled": func(int, [][]byte) (int, string) {
			return http.StatusServiceUnavailable, `{"__type":"ServiceUnavailableException","message":"Slow down."}`
		},
		"each record fails": func(_ int, records [][]byte) (int, string) {
			entry := `{"ErrorCode":"ServiceUnavailableException","ErrorMessage":"Slow down."}`
			return http.StatusOK, fmt.Sprintf(`{"FailedPutCount":%d,"RequestResponses":[%s]}`, len(records),
				strings.Join(slices.Repeat([]string{entry}, len(records)), ","))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, cfg := newService(t, testenv.FirehoseBehaviour{})
				f, w := newSink(t, cfg, destination())
				w.answer = answer
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				if err := f.Land(ctx, someParts(10)); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("land: %v", err)
				}
				if len(w.batches) < 100 {
					t.Errorf("%d tries in an hour: it backs off for ever longer", len(w.batches))
				}
			})
		})
	}
}

// What no waiting cures is an error at once.
func TestFirehoseFailsOnOtherErrors(t *testing.T) {
	for name, answer := range map[string]string{
		"refused":             `{"__type":"ResourceNotFoundException","message":"no such stream"}`,
		"responses too few":   `{"FailedPutCount":0,"RequestResponses":[{"RecordId":"1"}]}`,
		"responses too many":  `{"FailedPutCount":0,"RequestResponses":[{"RecordId":"1"},{"RecordId":"2"},{"RecordId":"3"}]}`,
		"no responses at all": `{}`,
	} {
		t.Run(name, func(t *testing.T) {
			_, cfg := newService(t, testenv.FirehoseBehaviour{})
			f, w := newSink(t, cfg, destination())
			w.answer = func(int, [][]byte) (int, string) {
				if strings.Contains(answer, "__type") {
					return http.StatusBadRequest, answer
				}
				return http.StatusOK, answer
			}
			if err := f.Land(t.Context(), someParts(10, 20)); err == nil {
				t.Error("it landed")
			}
			if len(w.batches) != 1 {
				t.Errorf("%d tries", len(w.batches))
			}
		})
	}
}

// A part that is too large for a record lies in staging by itself; landing it again changes
// nothing, and another encoding of the same part lies beside it.
func TestFirehosePutsALargePartStraightIntoStagingOnce(t *testing.T) {
	_, cfg := newService(t, testenv.FirehoseBehaviour{})
	f, w := newSink(t, cfg, destination())
	ps := someParts(MaxRecordBytes + 1)
	for range 2 {
		if err := f.Land(t.Context(), ps); err != nil {
			t.Fatal(err)
		}
	}
	os := list(t, f.staging)
	if len(os) != 1 || len(w.batches) != 0 {
		t.Fatalf("staging holds %v, %d batches were sent", os, len(w.batches))
	}
	if got, err := read(t, f.staging, os[0]); err != nil || got != string(ps[0].Body) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	ps[0].Body = append(ps[0].Body, 'x')
	if err := f.Land(t.Context(), ps); err != nil {
		t.Fatal(err)
	}
	if os := list(t, f.staging); len(os) != 2 {
		t.Errorf("staging holds %v", os)
	}
}

func TestFirehoseCheckAcceptsPlainStreams(t *testing.T) {
	for name, change := range map[string]func(*types.ExtendedS3DestinationConfiguration){
		"as created here": func(*types.ExtendedS3DestinationConfiguration) {},
		"says no compression": func(d *types.ExtendedS3DestinationConfiguration) {
			d.CompressionFormat = types.CompressionFormatUncompressed
		},
		"says no processors": func(d *types.ExtendedS3DestinationConfiguration) {
			d.ProcessingConfiguration = &types.ProcessingConfiguration{Enabled: aws.Bool(false)}
		},
		"says no conversion": func(d *types.ExtendedS3DestinationConfiguration) {
			d.DataFormatConversionConfiguration = &types.DataFormatConversionConfiguration{Enabled: aws.Bool(false)}
		},
		"says not partitioned": func(d *types.ExtendedS3DestinationConfiguration) {
			d.DynamicPartitioningConfiguration = &types.DynamicPartitioningConfiguration{Enabled: aws.Bool(false)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, cfg := newService(t, testenv.FirehoseBehaviour{})
			d := destination()
			change(d)
			f, _ := newSink(t, cfg, d)
			if err := f.Check(t.Context(), noProbe); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFirehoseCheckRefusesWhatDamagesPartsAndSaysWhatToChange(t *testing.T) {
	s3d := func(d map[string]any) map[string]any {
		return d["Destinations"].([]any)[0].(map[string]any)["ExtendedS3DestinationDescription"].(map[string]any)
	}
	for name, c := range map[string]struct {
		change func(map[string]any)
		do     string
	}{
		"gzip":                 {func(d map[string]any) { s3d(d)["CompressionFormat"] = "GZIP" }, "UNCOMPRESSED"},
		"format conversion":    {func(d map[string]any) { s3d(d)["DataFormatConversionConfiguration"] = map[string]any{"Enabled": true} }, "DataFormatConversionConfiguration"},
		"processors":           {func(d map[string]any) { s3d(d)["ProcessingConfiguration"] = map[string]any{"Enabled": true} }, "ProcessingConfiguration"},
		"dynamic partitioning": {func(d map[string]any) { s3d(d)["DynamicPartitioningConfiguration"] = map[string]any{"Enabled": true} }, "dynamic partitioning"},
		"being created":        {func(d map[string]any) { d["DeliveryStreamStatus"] = "CREATING" }, "ACTIVE"},
		"another source":       {func(d map[string]any) { d["DeliveryStreamType"] = "KinesisStreamAsSource" }, "Direct PUT"},
		"another destination": {func(d map[string]any) {
			delete(d["Destinations"].([]any)[0].(map[string]any), "ExtendedS3DestinationDescription")
		}, "S3"},
		"no destination":          {func(d map[string]any) { d["Destinations"] = []any{} }, "S3"},
		"another bucket":          {func(d map[string]any) { s3d(d)["BucketARN"] = "arn:aws:s3:::elsewhere" }, "the same"},
		"another prefix":          {func(d map[string]any) { s3d(d)["Prefix"] = "elsewhere/" }, "the same"},
		"errors beside the parts": {func(d map[string]any) { s3d(d)["ErrorOutputPrefix"] = aws.ToString(destination().Prefix) + "errors/" }, "ErrorOutputPrefix"},
		"errors under a table":    {func(d map[string]any) { s3d(d)["ErrorOutputPrefix"] = "lake/readings/errors/" }, "ErrorOutputPrefix"},
		"copies under a table": {func(d map[string]any) {
			s3d(d)["S3BackupMode"] = "Enabled"
			s3d(d)["S3BackupDescription"] = map[string]any{"BucketARN": "arn:aws:s3:::" + bucketName, "Prefix": "lake/readings/"}
		}, "S3BackupDescription.Prefix"},
		"copies beside the parts": {func(d map[string]any) {
			s3d(d)["S3BackupMode"] = "Enabled"
			s3d(d)["S3BackupDescription"] = map[string]any{"BucketARN": "arn:aws-cn:s3:::" + bucketName, "Prefix": "staging/copies/"}
		}, "S3BackupDescription.Prefix"},
	} {
		t.Run(name, func(t *testing.T) {
			_, cfg := newService(t, testenv.FirehoseBehaviour{})
			f, w := newSink(t, cfg, destination())
			f.Lake = NewBucket(f.staging.client, bucketName, "lake")
			w.rewrite = c.change
			err := f.Check(t.Context(), noProbe)
			var person *pipeline.PersonError
			if !errors.As(err, &person) || !strings.Contains(person.Do, c.do) || !strings.Contains(err.Error(), streamName) {
				t.Errorf("check: %v, want what to do about %s", err, c.do)
			}
		})
	}
	_, cfg := newService(t, testenv.FirehoseBehaviour{})
	f, _ := newSink(t, cfg, destination())
	f.stream = "missing"
	if err := f.Check(t.Context(), noProbe); err == nil {
		t.Error("a delivery stream that does not exist passes")
	}
}
