package hot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/schemas"
)

func readingItem(device, celsius string, at time.Time) Item {
	return Item{
		"pk": text("DEVICE#" + device), "sk": text("TS#" + at.Format(eventTimeForm)), "takenAt": number(at.UnixMilli()),
		"celsius": &types.AttributeValueMemberN{Value: celsius}, "humidity": &types.AttributeValueMemberN{Value: "40"},
		"expiresAt": number(at.Add(time.Hour).Unix()),
	}
}

func TestPutWritesTheFirstOfAKeyAndRefusesTheOthers(t *testing.T) {
	for _, parallel := range []int{1, 7} {
		t.Run(fmt.Sprint(parallel), func(t *testing.T) {
			env := open(t)
			c := create(t, env, "sensor_readings")
			o := quick()
			o.Parallel, o.Examples = parallel, 3
			w := NewWriter(env.client, c, o)
			// Every key three times, the first with the value that must stay.
			var items []Item
			for round := range 3 {
				for k := range 100 {
					items = append(items, readingItem(fmt.Sprint(k), fmt.Sprintf("%d.%d", k, round), start))
				}
			}
			got, err := w.Put(t.Context(), items)
			if err != nil {
				t.Fatal(err)
			}
			if got.Written != 100 || got.Refused != 200 {
				t.Errorf("written %d, refused %d", got.Written, got.Refused)
			}
			for i, x := range got.Examples {
				if want := (Refusal{Index: 100 + i, Key: fmt.Sprintf("DEVICE#%d TS#2026-03-02T08:00:00.000Z", i)}); x != want {
					t.Errorf("example %d is %+v, want %+v", i, x, want)
				}
			}
			if len(got.Examples) != 3 {
				t.Errorf("%d examples", len(got.Examples))
			}
			for k := range 100 {
				item := get(t, env, c, items[k])
				if n := canonical(numberOf(t, item, "celsius")); n != canonical(fmt.Sprintf("%d.0", k)) {
					t.Errorf("item %d holds %s", k, n)
				}
			}
		})
	}
}

func TestPutRepeatsThroughThrottlingAndLostCalls(t *testing.T) {
	env := open(t)
	c := create(t, env, "sensor_readings")
	var items []Item
	for k := range 60 {
		items = append(items, readingItem(fmt.Sprint(k), "20.50", start))
	}
	env.faults.on = func(n int, r *http.Request) fault { return fault(n % 4) }
	got, err := NewWriter(env.client, c, quick()).Put(t.Context(), items)
	if err != nil {
		t.Fatal(err)
	}
	if got.Written != 60 || got.Refused != 0 {
		t.Errorf("written %d, refused %d: the echo of a put whose answer was lost is not a refusal", got.Written, got.Refused)
	}
}

func TestPutRefusesAnotherItemEvenAfterALostCall(t *testing.T) {
	env := open(t)
	c := create(t, env, "sensor_readings")
	w := NewWriter(env.client, c, quick())
	if _, err := w.Put(t.Context(), []Item{readingItem("1", "20.5", start)}); err != nil {
		t.Fatal(err)
	}
	env.faults.n = 0
	env.faults.on = func(n int, _ *http.Request) fault {
		if n == 1 {
			return lostResponse
		}
		return none
	}
	got, err := w.Put(t.Context(), []Item{readingItem("1", "20.6", start)})
	if err != nil {
		t.Fatal(err)
	}
	if got.Refused != 1 {
		t.Errorf("result %+v", got)
	}
}

func TestPutCountsAnIdenticalDuplicateAsRefused(t *testing.T) {
	env := open(t)
	c := create(t, env, "sensor_readings")
	item := readingItem("1", "20.5", start)
	got, err := NewWriter(env.client, c, quick()).Put(t.Context(), []Item{item, item})
	if err != nil {
		t.Fatal(err)
	}
	if got.Written != 1 || got.Refused != 1 {
		t.Errorf("result %+v", got)
	}
}

func TestPutStopsAtAnItemTheTableCannotTake(t *testing.T) {
	env := open(t)
	c := create(t, env, "sensor_readings")
	bad := readingItem("2", "20.5", start)
	delete(bad, "sk")
	_, err := NewWriter(env.client, c, quick()).Put(t.Context(), []Item{readingItem("1", "20.5", start), bad})
	if err == nil || !strings.Contains(err.Error(), "DEVICE#2") || !strings.Contains(err.Error(), c.Table) {
		t.Errorf("error %v", err)
	}
}

func TestPutEndsWithItsContext(t *testing.T) {
	env := open(t)
	c := create(t, env, "sensor_readings")
	ctx, cancel := context.WithCancel(t.Context())
	env.faults.on = func(n int, _ *http.Request) fault {
		if n > 20 {
			cancel()
		}
		return throttle
	}
	if _, err := NewWriter(env.client, c, quick()).Put(ctx, []Item{readingItem("1", "20.5", start)}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestOverwriteProlongDeleteAndCount(t *testing.T) {
	env := open(t)
	c := create(t, env, "sensor_readings")
	w := NewWriter(env.client, c, quick())
	a, b := readingItem("1", "20.5", start), readingItem("2", "20.5", start)
	if _, err := w.Put(t.Context(), []Item{a, b}); err != nil {
		t.Fatal(err)
	}
	if err := w.Overwrite(t.Context(), readingItem("1", "21", start)); err != nil {
		t.Fatal(err)
	}
	until := start.Add(48 * time.Hour)
	if err := w.Prolong(t.Context(), a, until); err != nil {
		t.Fatal(err)
	}
	item := get(t, env, c, a)
	if n, ttl := numberOf(t, item, "celsius"), numberOf(t, item, "expiresAt"); n != "21" || ttl != fmt.Sprint(until.Unix()) {
		t.Errorf("item holds celsius %s, expiresAt %s", n, ttl)
	}
	if err := w.Delete(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if n, err := w.Count(t.Context()); err != nil || n != 1 {
		t.Errorf("count %d, %v", n, err)
	}
	if err := w.Prolong(t.Context(), b, until); err == nil {
		t.Error("an item that is not there was prolonged")
	}
	if get(t, env, c, b) != nil {
		t.Error("prolonging made an item")
	}
}

func TestExpiredItemsLeaveTheHotTable(t *testing.T) {
	env := open(t)
	c := create(t, env, "sensor_readings")
	w := NewWriter(env.client, c, quick())
	if _, err := w.Put(t.Context(), []Item{readingItem("1", "20", start), readingItem("2", "20", start.Add(time.Hour))}); err != nil {
		t.Fatal(err)
	}
	env.clock.Advance(90 * time.Minute)
	if n := env.SweepTTL(); n != 1 {
		t.Errorf("%d items expired", n)
	}
	if n, err := w.Count(t.Context()); err != nil || n != 1 {
		t.Errorf("count %d, %v", n, err)
	}
}

func BenchmarkPut(b *testing.B) {
	env := open(b)
	c := create(b, env, "sensor_readings")
	r, err := NewReadings(c)
	if err != nil {
		b.Fatal(err)
	}
	w := NewWriter(env.client, c, WriterOptions{})
	b.ReportAllocs()
	const batch = 1000
	items := make([]Item, 0, batch)
	for n := range b.N {
		item, err := r.Item(Reading{DeviceID: fmt.Sprint(n % 4), TakenAt: start.Add(time.Duration(n) * time.Millisecond), Celsius: "20.48", Humidity: "42.332"})
		if err != nil {
			b.Fatal(err)
		}
		if items = append(items, item); len(items) < batch && n < b.N-1 {
			continue
		}
		if _, err := w.Put(b.Context(), items); err != nil {
			b.Fatal(err)
		}
		items = items[:0]
	}
}

// takesAll is a table that takes every put.
type takesAll struct{}

func (takesAll) RoundTrip(r *http.Request) (*http.Response, error) {
	ok := jsonError(r, "{}")
	ok.StatusCode, ok.Status = http.StatusOK, "200 OK"
	return ok, nil
}

// writerOver writes through a network that drops a request while down says so.
func writerOver(c *schemas.Contract, o WriterOptions, down func() bool) *Writer {
	network := &faults{next: takesAll{}, on: func(int, *http.Request) fault {
		if down() {
			return lostRequest
		}
		return none
	}}
	return NewWriter(dynamodb.New(dynamodb.Options{
		Region: "us-east-1", HTTPClient: &http.Client{Transport: network}, BaseEndpoint: aws.String("http://127.0.0.1:1"),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "a", SecretAccessKey: "b"}, nil
		}),
	}), c, o)
}

func TestAWriterGivesUpAfterNothingButFailures(t *testing.T) {
	c := contract(t, "sensor_readings")
	items := []Item{readingItem("1", "20", start), readingItem("2", "20", start)}
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		w := writerOver(c, WriterOptions{GiveUp: 5 * time.Minute}, func() bool { return true })
		ended := make(chan error)
		go func() {
			_, err := w.Put(t.Context(), items)
			ended <- err
		}()
		time.Sleep(time.Minute)
		h := w.Health()
		if h.Failing(time.Now()) != time.Minute || h.Answered != 0 || !errors.Is(h.Err, io.ErrUnexpectedEOF) {
			t.Errorf("after a minute: %+v", h)
		}
		err := <-ended
		// The longest wait between two attempts is ten seconds.
		if passed := time.Since(begun); passed < 5*time.Minute || passed > 5*time.Minute+10*time.Second {
			t.Errorf("gave up after %s", passed)
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "nothing but failures") {
			t.Errorf("error is %v", err)
		}
		if h := w.Health(); h.Failing(time.Now()) != 0 {
			t.Errorf("a writer at rest fails: %+v", h)
		}
	})
}

func TestASuccessKeepsAWriterFromGivingUp(t *testing.T) {
	c := contract(t, "sensor_readings")
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		// Up for a moment every four minutes, long enough for the longest wait between attempts.
		w := writerOver(c, WriterOptions{Parallel: 1, GiveUp: 5 * time.Minute}, func() bool {
			return time.Since(begun)%(4*time.Minute) < 4*time.Minute-10*time.Second
		})
		for i := range 4 {
			r, err := w.Put(t.Context(), []Item{readingItem("1", "20", start.Add(time.Duration(i)*time.Second))})
			if err != nil || r.Written != 1 || w.Health().Answered != i+1 || w.Health().Err != nil {
				t.Fatalf("put %d: %+v, %v, %+v", i, r, err, w.Health())
			}
			time.Sleep(20 * time.Second)
		}
	})
}
