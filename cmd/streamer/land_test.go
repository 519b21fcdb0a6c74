package main

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"telemetrylake/pipeline"
)

// A shore is a way to land without Firehose, on a laptop.
type shore struct {
	name string
	args func(*laptop) []string
	lake func(*laptop) string // the folder that holds it
}

var landings = []shore{
	{"s3", func(*laptop) []string { return []string{"--land", "s3"} }, func(l *laptop) string { return filepath.Join(l.dir, "s3", lakeBucket) }},
	{"dir", func(l *laptop) []string {
		return []string{"--land", "dir:" + filepath.Join(l.dir, "lake")}
	},
		func(l *laptop) string { return filepath.Join(l.dir, "lake") }},
}

func TestReadingsLandWithoutFirehose(t *testing.T) {
	t.Parallel()
	for _, way := range landings {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			l, file := newLaptop(t), roomClimate(t, 10_000)
			args := way.args(l)
			load := l.start("load", file.name, "--format", "room-climate")
			load.exits(exitOK)
			run := l.startRun(append(args, "--until-drained", "--window-records", "3000")...)
			run.exits(exitOK)
			var totals runTotals
			if run.document(&totals); !totals.Drained || totals.Rows != file.readings() || totals.Sealed != totals.Parts || totals.SealedRows != totals.Rows || totals.Unsealed != 0 {
				t.Errorf("the run says %+v", totals)
			}
			checkReadingsIn(t, way.lake(l), file)
			objects := objectsBelow(t, filepath.Join(way.lake(l), "sensor_readings"))
			if len(objects) != totals.Parts {
				t.Errorf("%d objects of %d parts: %v", len(objects), totals.Parts, objects)
			}
			if left := objectsBelow(t, filepath.Join(l.dir, "s3", stagingBucket)); len(left) > 0 {
				t.Errorf("in the staging bucket: %v", left)
			}

			shown := l.start(append([]string{"status", "--contract", "sensor_readings", "-o", "json"}, args...)...)
			shown.exits(exitOK)
			var st status
			if shown.document(&st); st.Lane.Unsealed != 0 || st.Lane.CompleteWindow != st.Lane.NextWindow-1 || st.Gaps != 0 || st.Lake[0].Objects != totals.Parts {
				t.Errorf("status %+v", st)
			}

			rebuild := l.start(append([]string{"lanes", "rebuild", "--contract", "sensor_readings", "-o", "json"}, args...)...)
			rebuild.exits(exitOK)
			var found rebuildShown
			rebuild.document(&found)
			if n := found.Windows[pipeline.FateStored] + found.Windows[pipeline.FateWhole]; n != totals.Windows || len(found.Windows) != 1 || len(found.Gaps) != 0 || found.Lake != totals.Parts {
				t.Errorf("rebuild sees %+v of %d windows", found, totals.Windows)
			}

			inspect := l.start("inspect", objects[0], "-o", "json")
			inspect.exits(exitOK)
			if text := inspect.stdout.String(); !strings.Contains(text, "run-sensor_readings") {
				t.Errorf("inspect of %s does not name its window: %s", objects[0], text)
			}

			// Another way into the same lake, or another lake for a stream that is in one.
			if way.name == "s3" {
				other := l.startRun("--until-drained")
				other.exits(exitPerson)
				if text := other.stderr.String(); !strings.Contains(text, "by way of objects") || !strings.Contains(text, "--land") {
					t.Errorf("a run through Firehose says %q", text)
				}
			}
		})
	}
}

func TestWhatLandsWithoutFirehoseIsThereOnceHoweverOftenItsProcessIsKilled(t *testing.T) {
	t.Parallel()
	for i, way := range landings {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			l, file := newLaptop(t), roomClimate(t, 8_000)
			k := &killing{laptop: l, random: rand.New(rand.NewPCG(planFromEnv(t).seed, uint64(i)))}
			more := append(way.args(l), "--window-records", "150", "--take-over", "--log-level", "info")
			start := func() {
				k.run = l.startRun(more...)
				k.runs = append(k.runs, k.run)
			}
			k.load = k.start("load", "-", "--format", "room-climate")
			k.feed = newFeeder(k.load.stdin, file.lines)
			start()
			const kills = 8
			for n := range kills {
				before := k.look()
				k.feed.upTo((n + 1) * len(file.lines) / (kills + 1))
				until(t, "a window is begun", func() bool {
					k.run.running()
					g := k.look()
					// A slow machine takes all that was fed into one window, which may be over unseen.
					return g.pending != 0 && g.pending >= before.next || g.next > before.next
				})
				k.nap(20 * time.Millisecond)
				k.run.kill()
				start()
			}
			if err := k.feed.end(); err != nil {
				t.Fatal(err)
			}
			k.load.exits(exitOK)
			k.run.kill()
			last := l.startRun(append(more, "--until-drained")...)
			last.exits(exitOK)
			k.runs = append(k.runs, last)
			var totals runTotals
			if last.document(&totals); !totals.Drained || totals.Unsealed != 0 {
				t.Errorf("the last run says %+v", totals)
			}
			rows := checkReadingsIn(t, way.lake(l), file)
			t.Logf("%d rows, each once; killed %d times, %d windows recovered", rows, kills+1, k.recovered())
		})
	}
}

func TestWaysToLandAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"unknown":              {[]string{"--land", "ftp"}, `"ftp" is none of firehose, s3 and dir:FOLDER`},
		"a folder without one": {[]string{"--land", "dir:"}, "dir:FOLDER"},
		"two lakes":            {[]string{"--land", "dir:" + t.TempDir(), "--lake", "s3://b/"}, "name two lakes"},
		"no lake":              {[]string{"--land", "s3"}, "--lake is not set"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := streamer(t, append([]string{"run", "--contract", "sensor_readings"}, c.args...)...)
			if code != exitUsage || !strings.Contains(stderr, c.want) {
				t.Errorf("exit code %d, stderr %q; want %q", code, stderr, c.want)
			}
		})
	}
	for _, command := range [][]string{{"lanes", "handover", "--to", "lambda"}, {"lanes", "sweep"}} {
		t.Run(fmt.Sprint(command), func(t *testing.T) {
			t.Setenv("STREAMER_LAND", "dir:"+t.TempDir())
			code, _, stderr := streamer(t, append(command, "--contract", "sensor_readings")...)
			if code != exitUsage || !strings.Contains(stderr, "lands through Firehose") {
				t.Errorf("exit code %d, stderr %q", code, stderr)
			}
		})
	}
}
