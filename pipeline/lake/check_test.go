package lake

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/aws/aws-sdk-go-v2/aws"

	"telemetrylake/pipeline"
	"telemetrylake/testenv"
)

func TestFirehoseCheckRefusesToDeliverIntoATable(t *testing.T) {
	_, cfg := newService(t, testenv.FirehoseBehaviour{})
	f, _ := newSink(t, cfg, destination())
	for name, at := range map[string]struct {
		bucket, prefix string
		refused        bool
	}{
		"the lake is all of the bucket": {bucketName, "", true},
		"staging is in the lake":        {bucketName, "stag", false}, // stag/ is no part of staging/
		"staging is the lake":           {bucketName, "staging", true},
		"a lake beside it":              {bucketName, "lake", false},
		"a lake of another bucket":      {"elsewhere", "", false},
	} {
		f.Lake = NewBucket(f.staging.client, at.bucket, at.prefix)
		err := f.Check(t.Context(), noProbe)
		var person *pipeline.PersonError
		if at.refused != errors.As(err, &person) || !at.refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if at.refused && (!strings.Contains(person.Do, "Prefix") || !strings.Contains(person.Do, "--lake")) {
			t.Errorf("%s: it says to do: %s", name, person.Do)
		}
	}
}

// An unreadable client answers reads of objects as S3 does where it must not give them.
type unreadable struct {
	next   aws.HTTPClient
	status int
	code   string
}

func (u *unreadable) Do(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet && !strings.Contains(r.URL.RawQuery, "list-type") {
		return response(r, u.status, fmt.Sprintf("<Error><Code>%s</Code><Message>no</Message></Error>", u.code)), nil
	}
	return u.next.Do(r)
}

func TestFirehoseCheckRefusesObjectsThatCannotBeRead(t *testing.T) {
	const key = "arn:aws:kms:us-east-1:000000000000:key/k"
	for name, c := range map[string]struct {
		status int
		code   string
		kms    bool
		says   []string
	}{
		"by its key":       {http.StatusForbidden, "AccessDenied", true, []string{key, "kms:Decrypt"}},
		"by its policy":    {http.StatusForbidden, "AccessDenied", false, []string{"s3:GetObject"}},
		"a customer's key": {http.StatusBadRequest, "InvalidRequest", false, []string{"SSE-C"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, cfg := newService(t, testenv.FirehoseBehaviour{})
			f, w := newSink(t, cfg, destination())
			w.rewrite = func(d map[string]any) {
				if c.kms {
					s := d["Destinations"].([]any)[0].(map[string]any)["ExtendedS3DestinationDescription"].(map[string]any)
					s["EncryptionConfiguration"] = map[string]any{"KMSEncryptionConfig": map[string]any{"AWSKMSKeyARN": key}}
				}
			}
			cfg.HTTPClient = &unreadable{cfg.HTTPClient, c.status, c.code}
			on := NewBucket(s3Client(cfg), bucketName, "staging")
			f.staging = on
			if err := f.Check(t.Context(), noProbe); err != nil {
				t.Errorf("nothing is there to be tried: %v", err)
			}
			if err := on.Create(t.Context(), "o", []byte("x")); err != nil {
				t.Fatal(err)
			}
			err := f.Check(t.Context(), noProbe)
			var person *pipeline.PersonError
			if !errors.As(err, &person) {
				t.Fatalf("check: %v, want what to do", err)
			}
			for _, want := range c.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %s", err, want)
				}
			}
		})
	}
}

func TestAnObjectThatCanBeReadIsNoObstacle(t *testing.T) {
	b := newBucket(t, "staging")
	for i, body := range []string{"", "some"} {
		if err := b.Create(t.Context(), fmt.Sprint("a", 9-i), []byte(body)); err != nil {
			t.Fatal(err)
		}
		if err := b.CheckRead(t.Context()); err != nil {
			t.Errorf("first object of %d bytes: %v", len(body), err)
		}
	}
	// Another failure of S3 is one that may pass.
	cfg := aws.Config{Region: "us-east-1", HTTPClient: &unreadable{b.client.Options().HTTPClient, http.StatusConflict, "Odd"}, Credentials: b.client.Options().Credentials, BaseEndpoint: b.client.Options().BaseEndpoint}
	err := NewBucket(s3Client(cfg), bucketName, "staging").CheckRead(t.Context())
	if _, person := errors.AsType[*pipeline.PersonError](err); err == nil || person {
		t.Errorf("check: %v", err)
	}
}

// Throttling is waited out while other windows wait behind it: what waits stays below the limit.
func TestPartsWaitForThoseBeforeThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, cfg := newService(t, testenv.FirehoseBehaviour{})
		f, w := newSink(t, cfg, destination())
		f.waiting.limit = 100
		open := make(chan struct{})
		busy := 0
		w.answer = func(int, [][]byte) (int, string) {
			select {
			case <-open:
				return 0, ""
			default:
				busy++
				return http.StatusServiceUnavailable, `{"__type":"ServiceUnavailableException","message":"Slow down."}`
			}
		}
		most := 0
		var mu sync.Mutex
		f.OnPut = func(p Put) {
			mu.Lock()
			defer mu.Unlock()
			if most = max(most, p.Waiting); p.Waiting > 100 && p.Waiting != 150 {
				t.Errorf("%d bytes wait", p.Waiting)
			}
		}
		landed := make(chan error, 3)
		go func() { landed <- f.Land(t.Context(), someParts(60)) }()
		synctest.Wait()
		go func() { landed <- f.Land(t.Context(), someParts(30)) }()
		synctest.Wait()
		go func() { landed <- f.Land(t.Context(), someParts(50, 100)) }() // more than the limit: alone
		synctest.Wait()
		if got := f.waiting.size(); got != 90 || len(landed) != 0 {
			t.Errorf("%d bytes wait, %d are landed", got, len(landed))
		}
		close(open)
		for range 3 {
			if err := <-landed; err != nil {
				t.Error(err)
			}
		}
		if got := env.FirehoseStats()[streamName].Records; got != 4 || f.waiting.size() != 0 || busy == 0 || most != 150 {
			t.Errorf("%d records accepted, %d bytes wait, throttled %d times, at most %d bytes waited", got, f.waiting.size(), busy, most)
		}
	})
}

func TestWhoWaitsForOthersGivesUpWhenItsContextIsDone(t *testing.T) {
	b := backlog{limit: 10}
	if err := b.enter(t.Context(), 8); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.enter(ctx, 3); err == nil || b.size() != 8 {
		t.Errorf("it entered, %d bytes wait", b.size())
	}
}

func TestEachPutIsToldWithWhatWasRefused(t *testing.T) {
	fails := []bool{false, true, false}
	_, cfg := newService(t, testenv.FirehoseBehaviour{Fail: func() bool { f := len(fails) > 0 && fails[0]; fails = fails[min(1, len(fails)):]; return f }})
	f, _ := newSink(t, cfg, destination())
	var puts []Put
	f.OnPut = func(p Put) { puts = append(puts, p) }
	if err := f.Land(t.Context(), someParts(10, 20, 30)); err != nil {
		t.Fatal(err)
	}
	want := []Put{{Records: 3, Bytes: 60, Refused: 1, Waiting: 60}, {Records: 1, Bytes: 20, Waiting: 60}}
	if fmt.Sprint(puts) != fmt.Sprint(want) {
		t.Errorf("told %+v, want %+v", puts, want)
	}
	if q := f.Quota(); q != (Quota{2000, 500_000, 5 << 20}) {
		t.Errorf("quota of us-east-1 %+v", q)
	}
}
