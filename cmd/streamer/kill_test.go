package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/pipeline"
)

// A feeder writes lines to a process that reads them, as far as it is let.
type feeder struct {
	lines []string
	sent  int
	more  chan []string
	done  chan error
}

func newFeeder(to io.WriteCloser, lines []string) *feeder {
	f := &feeder{lines: lines, more: make(chan []string, len(lines)), done: make(chan error, 1)}
	go func() {
		for lines := range f.more {
			if _, err := io.WriteString(to, strings.Join(lines, "\n")+"\n"); err != nil {
				f.done <- err
				return
			}
		}
		f.done <- to.Close()
	}()
	return f
}

// upTo lets it write the first n lines.
func (f *feeder) upTo(n int) {
	if n > f.sent {
		f.more <- f.lines[f.sent:n]
		f.sent = n
	}
}

// end lets it write the rest and returns when the process has taken it.
func (f *feeder) end() error {
	f.upTo(len(f.lines))
	close(f.more)
	return <-f.done
}

// killPlan says what is killed how often.
type killPlan struct {
	rows, runs, locals int
	seed               uint64
}

// planFromEnv reads STREAMER_KILL_ROWS (a number, or all), STREAMER_KILL_RUNS,
// STREAMER_KILL_LOCALS and STREAMER_KILL_SEED, as make kill sets them.
func planFromEnv(t *testing.T) killPlan {
	t.Helper()
	number := func(name string, otherwise uint64) uint64 {
		text := os.Getenv(name)
		if text == "" {
			return otherwise
		}
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return n
	}
	p := killPlan{runs: int(number("STREAMER_KILL_RUNS", 3)), locals: int(number("STREAMER_KILL_LOCALS", 1)), seed: number("STREAMER_KILL_SEED", 1)}
	if os.Getenv("STREAMER_KILL_ROWS") != "all" {
		p.rows = int(number("STREAMER_KILL_ROWS", 10_000))
	}
	return p
}

// A moment is what the run is waited for to do before it is killed.
type moment string

const (
	opening   moment = "starting"
	begun     moment = "a window begun and not committed"
	committed moment = "a window committed"
	staged    moment = "an object in staging"
	claimed   moment = "a part claimed and not published"
)

// moments begin with those that a kill is hardest on.
var moments = []moment{begun, claimed, committed, staged, opening}

// A glance is what the checkpoint table holds, read without a process: some of it is there for
// milliseconds.
type glance struct {
	next, pending int64
	unsealed      int // windows
	claims        int // of parts that are not published
}

func (k *killing) look() glance {
	k.t.Helper()
	out, err := k.dynamodb.Scan(k.t.Context(), &dynamodb.ScanInput{TableName: aws.String(checkpointTable)})
	if err != nil {
		k.t.Fatal(err)
	}
	var g glance
	for _, item := range out.Items {
		var it struct {
			SK        string `dynamodbav:"sk"`
			Next      int64  `dynamodbav:"next"`
			Pending   int64  `dynamodbav:"pending"`
			State     string `dynamodbav:"state"`
			Published string `dynamodbav:"published_at"`
		}
		if err := attributevalue.UnmarshalMap(item, &it); err != nil {
			k.t.Fatal(err)
		}
		switch {
		case it.SK == "lane":
			g.next, g.pending = it.Next, it.Pending
		case strings.HasPrefix(it.SK, "window#") && (it.State == string(pipeline.WindowPending) || it.State == string(pipeline.WindowCommitted)):
			g.unsealed++
		case strings.HasPrefix(it.SK, "part#") && it.Published == "":
			g.claims++
		}
	}
	return g
}

func (k *killing) objectStaged() bool {
	k.t.Helper()
	out, err := k.s3.ListObjectsV2(k.t.Context(), &s3.ListObjectsV2Input{Bucket: aws.String(stagingBucket)})
	if err != nil {
		k.t.Fatal(err)
	}
	return len(out.Contents) > 0
}

// A killing is a test in progress.
type killing struct {
	*laptop
	random *rand.Rand
	feed   *feeder
	runs   []*process // the last is run
	run    *process
	load   *process
}

// nap is a moment that the seed chooses.
func (k *killing) nap(longest time.Duration) {
	time.Sleep(time.Duration(k.random.Int64N(int64(longest))))
}

// killRun lets rows up to n be written, waits for a moment, and kills and restarts the run. It
// says whether it saw the moment: with everything sealed, that has passed. Some pass in
// milliseconds, so there are several tries.
func (k *killing) killRun(at moment, n int) (seen bool) {
	const tries = 4
	first := k.feed.sent
	for try := 1; try <= tries && !seen; try++ {
		before := max(1, k.look().next)
		k.feed.upTo(first + (n-first)*try/tries)
		for start, passed := time.Now(), false; !seen && !passed; {
			if time.Since(start) > patience {
				k.t.Fatalf("the run never came to %s", at)
			}
			k.run.running()
			k.load.running()
			g := k.look()
			switch at {
			case begun:
				seen = g.pending != 0
			case claimed:
				seen = g.claims > 0
			case committed:
				seen = g.next > before
			case staged:
				seen = k.objectStaged()
			case opening:
				seen = true
			}
			passed = g.next > before && g.unsealed == 0
		}
	}
	if at != begun && at != claimed {
		k.nap(300 * time.Millisecond)
	}
	k.run.kill()
	k.startRun()
	k.feed.upTo(n)
	return seen
}

// startRun starts the run, which logs what it recovers.
func (k *killing) startRun() {
	// The one before was killed: nobody waits for its lease.
	k.runs = append(k.runs, k.laptop.startRun("--log-level", "info", "--take-over"))
	k.run = k.runs[len(k.runs)-1]
}

// recovered is how many windows the runs found begun and finished.
func (k *killing) recovered() (windows int) {
	for _, p := range k.runs {
		windows += strings.Count(p.stderr.String(), "recovering pending window")
	}
	return windows
}

// killLocal kills and restarts the embedded AWS while load and run write to it rows up to n,
// and checks that both go on. A run that has only begun may not: it is one that cannot connect.
func (k *killing) killLocal(n int) {
	step := (n - k.feed.sent) / 3
	k.moves(k.feed.sent + step)
	k.feed.upTo(k.feed.sent + step)
	k.nap(100 * time.Millisecond)
	k.local.kill()
	k.nap(500 * time.Millisecond)
	k.startLocal()
	k.moves(n)
}

// moves lets rows up to n be written and waits for a window.
func (k *killing) moves(n int) {
	before := k.next()
	k.feed.upTo(n)
	until(k.t, "load and run write rows", func() bool {
		k.run.running()
		k.load.running()
		return k.next() > before
	})
}

func TestNothingIsLostOrDoubledHoweverOftenProcessesAreKilled(t *testing.T) {
	t.Parallel()
	began := time.Now()
	plan := planFromEnv(t)
	file := roomClimate(t, plan.rows)
	random := rand.New(rand.NewPCG(plan.seed, 0))
	k := &killing{laptop: newLaptop(t), random: random}
	t.Logf("seed %d: %d rows, %d kills of run, %d of local", plan.seed, file.readings(), plan.runs, plan.locals)

	k.load = k.start("load", "-", "--format", "room-climate", "-o", "json")
	k.feed = newFeeder(k.load.stdin, file.lines)
	k.startRun()
	const local moment = "" // it is local that is killed
	kills := slices.Repeat([]moment{local}, plan.locals)
	for i := range plan.runs {
		kills = append(kills, moments[i%len(moments)])
	}
	random.Shuffle(len(kills), func(i, j int) { kills[i], kills[j] = kills[j], kills[i] })
	seen, missed := map[moment]int{}, 0
	for i, at := range kills {
		n := 1 + (i+1)*file.readings()/(len(kills)+1)
		switch {
		case at == local:
			k.killLocal(n)
		case k.killRun(at, n):
			seen[at]++
		default:
			missed++
		}
	}
	if err := k.feed.end(); err != nil {
		t.Fatal(err)
	}
	k.load.exits(exitOK)
	var loaded loadReport
	if k.load.document(&loaded); !loaded.Complete || loaded.Written != file.readings() || loaded.Refused+loaded.Malformed+loaded.Present != 0 {
		t.Errorf("load says %+v", loaded)
	}
	k.run.signal(syscall.SIGTERM)
	k.run.exits(exitOK)

	again := k.start("load", file.name, "--format", "room-climate", "-o", "json")
	again.exits(exitOK)
	if again.document(&loaded); loaded.Present != file.readings() || loaded.Written != 0 || loaded.Refused != 0 {
		t.Errorf("load of what is there says %+v", loaded)
	}
	k.drain()
	k.local.signal(syscall.SIGTERM)
	k.local.exits(exitOK)
	checkReadings(t, k.dir, file)
	var times []string
	for _, m := range moments {
		times = append(times, fmt.Sprintf("%d at %s", seen[m], m))
	}
	t.Logf("%d rows, each once; run killed %s, %d later than that, and %d windows recovered; local killed %d times; %.0f seconds",
		file.readings(), strings.Join(times, ", "), missed, k.recovered(), plan.locals, time.Since(began).Seconds())
}
