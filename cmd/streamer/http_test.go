package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/observe"
)

var answeringAt = regexp.MustCompile(`metrics=(http://[0-9.:]+)/metrics`)

// A watchedRun is a run that answers monitors.
type watchedRun struct {
	*command
	url string
}

func watch(t *testing.T, more ...string) *watchedRun {
	t.Helper()
	r := &watchedRun{command: begin(t, append([]string{"run", "--http", "127.0.0.1:0", "--log-level", "debug"}, more...)...)}
	until(t, "the run answers monitors", func() bool {
		m := answeringAt.FindStringSubmatch(r.stderr.String())
		if m != nil {
			r.url = m[1]
		}
		return m != nil
	})
	return r
}

// ask returns what the run answers, and the status.
func (r *watchedRun) ask(path string) (string, int) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.url+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatalf("%v\n%s", err, &r.stderr)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(body), resp.StatusCode
}

func (r *watchedRun) integrity() (observe.Integrity, int) {
	r.t.Helper()
	body, status := r.ask("/integrity")
	var in observe.Integrity
	if err := json.Unmarshal([]byte(body), &in); err != nil {
		r.t.Fatalf("%v: %s", err, body)
	}
	return in, status
}

// metric is the value of a series, and false if there is none.
func (r *watchedRun) metric(series string) (float64, bool) {
	r.t.Helper()
	body, status := r.ask("/metrics")
	if status != http.StatusOK {
		r.t.Fatalf("/metrics answers %d: %s", status, body)
	}
	for line := range strings.Lines(body) {
		if text, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil {
				r.t.Fatal(err)
			}
			return v, true
		}
	}
	return 0, false
}

// is waits until a series has a value that will do.
func (r *watchedRun) is(series string, will func(float64) bool) {
	r.t.Helper()
	until(r.t, series, func() bool { v, ok := r.metric(series); return ok && will(v) })
}

func equals(n float64) func(float64) bool { return func(v float64) bool { return v == n } }
func above(n float64) func(float64) bool  { return func(v float64) bool { return v > n } }

func TestARunTellsMonitorsWhatItDoes(t *testing.T) {
	// So many nodes that every shard has records.
	file := &climateFile{lines: []string{climateHeader}}
	for i := range 300 {
		file.lines = append(file.lines, climateLine(i+1, climateStart.Add(time.Duration(i)*time.Second), i%60+1, "18.25", "35.125"))
	}
	file.name = writeLines(t, file.lines...)
	d := openDoor(t)
	d.load(file)
	before := time.Now()
	r := watch(t)
	rows := float64(file.readings())
	r.is(`streamer_records_total{outcome="row"}`, equals(rows))
	r.is("streamer_stream_records_total", equals(rows))
	r.is("streamer_lake_rows_total", equals(rows))
	r.is("streamer_unsealed_windows", equals(0))
	r.is("streamer_windows_total", above(0))
	r.is("streamer_landed_bytes_total", above(0))
	r.is(`streamer_aws_calls_total{operation="GetRecords",outcome="ok",service="DynamoDB Streams"}`, above(0))
	r.is(`streamer_aws_calls_total{operation="PutRecordBatch",outcome="ok",service="Firehose"}`, above(0))
	r.is(`streamer_aws_calls_total{operation="TransactWriteItems",outcome="ok",service="DynamoDB"}`, above(0))
	r.is(`streamer_aws_calls_total{operation="PutObject",outcome="ok",service="S3"}`, above(0))
	r.is("go_goroutines", above(1))
	until(t, "it is ready", func() bool { _, status := r.ask("/readyz"); return status == http.StatusOK })
	if text, status := r.ask("/readyz?format=text"); !strings.HasPrefix(text, "ready (active): reads sensor_readings\n") {
		t.Errorf("/readyz answers %d %s", status, text)
	}
	if body, status := r.ask("/healthz"); status != http.StatusOK || body != "ok\n" {
		t.Errorf("/healthz answers %d %s", status, body)
	}
	until(t, "the time is known through which the lake is complete", func() bool {
		in, status := r.integrity()
		return status == http.StatusOK && in.OK && !in.CompleteThrough.IsZero()
	})
	in, _ := r.integrity()
	if in.CompleteThrough.After(time.Now()) || in.CompleteThrough.Before(before.Add(-time.Hour)) || in.CompleteThrough.After(in.CommittedThrough) {
		t.Errorf("complete through %v, committed through %v; the run began at %v", in.CompleteThrough, in.CommittedThrough, before)
	}
	r.stop()
	r.exits(exitOK)
	if c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://")); err == nil {
		t.Error("the address answers after the run has ended", c.Close())
	}
	checkReadings(t, d.dir, file)
}

func TestAnOpenGapIsAskedForInVainUntilItIsClosed(t *testing.T) {
	d := openDoor(t)
	r := watch(t)
	until(t, "integrity is ok", func() bool { _, status := r.integrity(); return status == http.StatusOK })
	store := checkpoint.New(d.dynamodb, checkpointTable, checkpoint.Options{})
	until(t, "a shard is met", func() bool { return len(d.status().Shards) > 0 })
	st := d.status()
	gap, opened, err := store.OpenGap(t.Context(), pipeline.Gap{
		Stream: st.Stream, Shard: pipeline.ShardID(st.Shards[0].ID), First: "7", Last: "9",
		Missing: pipeline.Missing{Cause: pipeline.GapDiscarded, From: time.Now().Add(-time.Hour), To: time.Now()},
	})
	if err != nil || !opened {
		t.Fatalf("open a gap: %v %v", opened, err)
	}
	until(t, "integrity is not ok", func() bool { _, status := r.integrity(); return status == http.StatusServiceUnavailable })
	in, _ := r.integrity()
	if in.OK || in.Gaps["open"] != 1 || len(in.Reasons) != 1 || !strings.HasPrefix(in.Reasons[0], "1 gap is open") {
		t.Errorf("with an open gap: %+v", in)
	}
	if text, _ := r.ask("/integrity?format=text"); !strings.HasPrefix(text, "not ok\n- 1 gap is open") {
		t.Errorf("as text: %s", text)
	}
	r.is(`streamer_gaps{state="open"}`, equals(1))
	r.is("streamer_integrity_ok", equals(0))
	r.is("streamer_ready", equals(1)) // reading goes on
	gap.Repair = "a test"
	if err := store.MoveGap(t.Context(), gap, pipeline.GapRepairing, ""); err != nil {
		t.Fatal(err)
	}
	r.is(`streamer_gaps{state="repairing"}`, equals(1))
	r.is("streamer_integrity_ok", equals(0))
	gap.State = pipeline.GapRepairing
	if err := store.MoveGap(t.Context(), gap, pipeline.GapClosed, "a test put it there"); err != nil {
		t.Fatal(err)
	}
	r.is(`streamer_gaps{state="closed"}`, equals(1))
	r.is("streamer_integrity_ok", equals(1))
	r.stop()
	r.exits(exitOK)
}

func TestAWindowThatIsNotSealedInTimeIsTold(t *testing.T) {
	file := roomClimate(t, 20)
	d := openDoor(t)
	d.shut("GetObject", noSpace) // delivered, and not sealed
	d.load(file)
	r := watch(t, "--unsealed-within", "300ms")
	until(t, "integrity is not ok", func() bool {
		in, _ := r.integrity()
		return in.Unsealed.PastBound > 0
	})
	in, status := r.integrity()
	if status != http.StatusServiceUnavailable || !strings.Contains(strings.Join(in.Reasons, "|"), "not in the lake") {
		t.Errorf("%d %+v", status, in)
	}
	r.is("streamer_unsealed_age_seconds", above(0.3))
	r.is(`streamer_stage_failures_total{stage="seal"}`, above(0))
	d.open()
	r.is("streamer_unsealed_windows", equals(0))
	until(t, "integrity is ok", func() bool { in, _ := r.integrity(); return in.OK })
	r.stop()
	r.exits(exitOK)
	checkReadings(t, d.dir, file)
}

func TestARunThatCannotReadIsNotReadyAndSaysWhy(t *testing.T) {
	file := roomClimate(t, 20)
	d := openDoor(t)
	r := watch(t, "--ready-within", "1s")
	until(t, "it is ready", func() bool { _, status := r.ask("/readyz"); return status == http.StatusOK })
	d.shut("GetRecords", refusal{400, "ProvisionedThroughputExceededException", "slow down"})
	d.load(file)
	until(t, "it is not ready", func() bool { _, status := r.ask("/readyz"); return status == http.StatusServiceUnavailable })
	until(t, "the reasons name the call", func() bool { body, _ := r.ask("/readyz?format=text"); return strings.Contains(body, "GetRecords") })
	until(t, "the watchdog says so", func() bool { return strings.Contains(r.stderr.String(), `msg="no progress"`) })
	r.is("streamer_ready", equals(0))
	r.is(`streamer_aws_calls_total{operation="GetRecords",outcome="throttled",service="DynamoDB Streams"}`, above(0))
	if _, status := r.ask("/healthz"); status != http.StatusOK {
		t.Errorf("/healthz answers %d of a process that lives", status)
	}
	d.open()
	until(t, "it is ready again", func() bool { _, status := r.ask("/readyz"); return status == http.StatusOK })
	r.is("streamer_lake_rows_total", equals(float64(file.readings())))
	r.stop()
	r.exits(exitOK)
	checkReadings(t, d.dir, file)
}

func TestAnAddressThatCannotBeHadStartsNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	openDoor(t)
	for _, addr := range []string{taken.Addr().String(), "nowhere", "127.0.0.1:99999"} {
		c := begin(t, "run", "--http", addr)
		c.exits(exitUsage)
		if words := c.lastWords(); !strings.Contains(words, "--http "+addr) || !strings.Contains(words, "127.0.0.1:8080") {
			t.Errorf("the run ends with %q", words)
		}
	}
}

// What devices send is for the lake alone: whatever goes wrong, neither a log line nor an answer
// repeats any of it.
func TestNoLogLineAndNoAnswerHoldsWhatDevicesSend(t *testing.T) {
	const secret = "SECRETmark"
	d := openDoor(t)
	n := 0
	put := func(change func(item map[string]types.AttributeValue)) {
		t.Helper()
		n++
		s := func(text string) types.AttributeValue { return &types.AttributeValueMemberS{Value: text} }
		taken := time.Date(2026, 11, 30, 0, 0, n, 0, time.UTC)
		item := map[string]types.AttributeValue{
			"pk": s("DEVICE#" + secret), "sk": s("TS#" + taken.Format("2006-01-02T15:04:05.000Z")),
			"takenAt": &types.AttributeValueMemberN{Value: fmt.Sprint(taken.UnixMilli())},
			"note":    s(secret), "celsius": &types.AttributeValueMemberN{Value: "21.5"},
		}
		change(item)
		if _, err := d.dynamodb.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: aws.String("sensor_readings"), Item: item}); err != nil {
			t.Fatal(err)
		}
	}
	text := &types.AttributeValueMemberS{Value: secret}
	deep := &types.AttributeValueMemberM{Value: map[string]types.AttributeValue{secret: text}}
	d.shut("PutRecordBatch", refusal{500, "InternalFailure", "down"})
	r := watch(t, "--ready-within", "1s")
	put(func(map[string]types.AttributeValue) {})
	put(func(item map[string]types.AttributeValue) { item["pk"] = text })
	put(func(item map[string]types.AttributeValue) { item["sk"] = text })
	put(func(item map[string]types.AttributeValue) { item["celsius"] = text })
	put(func(item map[string]types.AttributeValue) { item["humidity"] = deep })
	put(func(item map[string]types.AttributeValue) { item[secret] = deep })
	put(func(item map[string]types.AttributeValue) {
		item["celsius"] = &types.AttributeValueMemberN{Value: "12345678901234567890.123456789"}
	})
	put(func(item map[string]types.AttributeValue) {
		item["sk"] = &types.AttributeValueMemberS{Value: "TS#" + secret}
	})
	_, err := d.dynamodb.DeleteItem(t.Context(), &dynamodb.DeleteItemInput{TableName: aws.String("sensor_readings"), Key: map[string]types.AttributeValue{
		"pk": text, "sk": &types.AttributeValueMemberS{Value: "TS#2026-11-30T00:00:02Z#2"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "it is not ready", func() bool {
		_, status := r.ask("/readyz")
		return status == http.StatusServiceUnavailable && d.refusals("PutRecordBatch") > 1
	})
	look := func(when string) {
		t.Helper()
		for _, path := range []string{"/metrics", "/readyz", "/readyz?format=text", "/integrity", "/integrity?format=text"} {
			if body, _ := r.ask(path); strings.Contains(body, secret) || strings.Contains(body, "12345678901234567890") {
				t.Errorf("%s: %s holds what a device sent:\n%s", when, path, body)
			}
		}
		for line := range strings.Lines(r.stderr.String()) {
			if strings.Contains(line, secret) || strings.Contains(line, "12345678901234567890") {
				t.Errorf("%s: the log holds what a device sent: %s", when, line)
			}
		}
	}
	look("while parts cannot be landed")
	d.open()
	r.is("streamer_unsealed_windows", equals(0))
	r.is(`streamer_records_total{outcome="quarantined"}`, above(3))
	r.is(`streamer_records_total{outcome="row"}`, above(0))
	r.is(`streamer_quarantined_records_total{reason="key"}`, above(0))
	r.is(`streamer_quarantined_records_total{reason="type"}`, above(0))
	until(t, "integrity knows the share of quarantined records", func() bool {
		in, _ := r.integrity()
		return strings.Contains(strings.Join(in.Reasons, "|"), "are quarantined")
	})
	look("once they are sealed")
	if log := r.stderr.String(); !strings.Contains(log, "level=DEBUG") && !strings.Contains(log, "level=INFO") {
		t.Errorf("the log is too quiet to tell:\n%s", log)
	}
	r.stop()
	r.exits(exitOK)
	look2 := r.stderr.String() + r.stdout.String()
	if strings.Contains(look2, secret) {
		t.Errorf("the last words hold what a device sent:\n%s", look2)
	}
}

func TestAStandbyIsReadyAndSaysForWhomItWaits(t *testing.T) {
	d := openDoor(t)
	first := begin(t, "run")
	until(t, "the first run reads", func() bool { return len(d.status().Shards) > 0 })
	r := watch(t)
	until(t, "the second stands by", func() bool {
		body, status := r.ask("/readyz")
		return status == http.StatusOK && strings.Contains(body, `"role": "standby"`) && strings.Contains(body, hostText())
	})
	until(t, "it knows what is stored", func() bool { in, status := r.integrity(); return status == http.StatusOK && !in.AsOf.IsZero() })
	first.stop()
	first.exits(exitOK)
	until(t, "it is active", func() bool {
		body, status := r.ask("/readyz")
		return status == http.StatusOK && strings.Contains(body, `"role": "active"`)
	})
	r.stop()
	r.exits(exitOK)
}
