package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"telemetrylake/pipeline"
	"telemetrylake/schemas"
)

func TestBadInputIsOneClearLine(t *testing.T) {
	good := climateLine(1, climateStart, 1, "20.48", "42.332")
	malformed := writeLines(t, climateHeader, good, strings.Replace(good, "20.48", "warm", 1))
	twice := writeLines(t, climateHeader, "A,01", good, good+",9")
	noColumn := writeLines(t, strings.Replace(climateHeader, "humidity", "moisture", 1), good)
	headerOnly := writeLines(t, climateHeader)
	farFuture := writeLines(t, climateHeader, good, climateLine(2, climateStart.AddDate(800, 0, 0), 1, "20.48", "42.332"), good)
	folder := t.TempDir()
	used := t.TempDir()
	if err := os.Mkdir(filepath.Join(used, "s3"), 0o755); err != nil {
		t.Fatal(err)
	}
	badContract := filepath.Join(folder, "bad.yaml")
	text, err := schemas.Load("lecturas")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(badContract, bytes.Replace(text.Text(), []byte("mode: append"), []byte("mode: apend"), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(folder, "kept")
	demo := func(args ...string) []string { return append([]string{"demo", "--dir", kept}, args...) }
	tests := []struct {
		name string
		args []string
		want []string
	}{
		{"unknown command", []string{"bogus"}, []string{`unknown command "bogus"; see streamer --help`}},
		{"mistyped command", []string{"dmeo"}, []string{`unknown command "dmeo"; did you mean demo?`}},
		{"unknown flag", []string{"demo", "--speed", "9"}, []string{"--speed", "--help"}},
		{"argument", []string{"demo", "file.csv"}, []string{"file.csv"}},
		{"unknown format", demo("--readings", malformed, "--format", "excel"), []string{`"excel"`, "room-climate"}},
		{"readings without format", demo("--readings", malformed), []string{"--format", "room-climate"}},
		{"format without readings", demo("--format", "room-climate"), []string{"--readings"}},
		{"unknown output", demo("-o", "yaml"), []string{`"yaml"`, "json"}},
		{"no devices", demo("--devices", "0"), []string{"--devices 0"}},
		{"fleet flag with readings", demo("--readings", malformed, "--format", "room-climate", "--hours", "3"), []string{"--hours"}},
		{"missing file", demo("--readings", filepath.Join(folder, "none.csv"), "--format", "room-climate"), []string{"none.csv", "no such file"}},
		{"folder for a file", demo("--readings", folder, "--format", "room-climate"), []string{folder, "not a regular file"}},
		{"malformed line", demo("--readings", malformed, "--format", "room-climate"), []string{malformed + ":3", "celsius", "warm", "nothing was written"}},
		{"malformed lines", demo("--readings", twice, "--format", "room-climate"), []string{twice + ":2", "1 more line"}},
		{"missing column", demo("--readings", noColumn, "--format", "room-climate"), []string{noColumn + ":1", "humidity"}},
		{"no readings", demo("--readings", headerOnly, "--format", "room-climate"), []string{"no readings"}},
		{"mistyped year", demo("--readings", farFuture, "--format", "room-climate"), []string{farFuture + ":3", "days after the first"}},
		{"too large a fleet", demo("--devices", "10000", "--hours", "8000"), []string{"device hours"}},
		{"file for a folder", []string{"demo", "--dir", filepath.Join(malformed, "lake")}, []string{"--dir", malformed}},
		{"folder with a lake", []string{"demo", "--dir", used}, []string{used, "earlier lake"}},
		{"no lake", []string{"ddl", "--contract", "lecturas"}, []string{"--lake", "s3://"}},
		{"unknown contract", []string{"ddl", "--lake", "s3://b/", "--contract", "devices"}, []string{`"devices"`, "device_telemetry"}},
		{"missing contract file", []string{"ddl", "--lake", "s3://b/", "--contract", "./none.yaml"}, []string{"none.yaml"}},
		{"bad contract", []string{"ddl", "--lake", "s3://b/", "--contract", badContract}, []string{badContract + ":", "apend"}},
		{"bad location", []string{"ddl", "--contract", "lecturas", "--lake", "/lake"}, []string{"s3://"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := streamer(t, tt.args...)
			if code != exitUsage || stdout != "" {
				t.Errorf("exit code %d, stdout %q; want %d and nothing", code, stdout, exitUsage)
			}
			if !strings.HasPrefix(stderr, "streamer: ") || strings.Count(stderr, "\n") != 1 {
				t.Errorf("stderr %q is not one line", stderr)
			}
			for _, want := range tt.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("stderr %q does not say %q", stderr, want)
				}
			}
		})
	}
	if _, err := os.Stat(kept); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("bad input left something in %s: %v", kept, err)
	}
}

func TestEveryProblemOfAContractIsALine(t *testing.T) {
	c, err := schemas.Load("lecturas")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "bad.yaml")
	text := bytes.Replace(c.Text(), []byte("mode: append"), []byte("mode: apend"), 1)
	text = bytes.Replace(text, []byte("event_time: ts"), []byte("event_time: tss"), 1)
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := streamer(t, "ddl", "--lake", "s3://b/", "--contract", path)
	lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	if code != exitUsage || stdout != "" || len(lines) != 3 || lines[0] != "streamer: 2 problems in "+path {
		t.Fatalf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	for i, want := range []string{"apend", "tss"} {
		if !strings.HasPrefix(lines[i+1], path+":") || !strings.Contains(lines[i+1], want) {
			t.Errorf("line %q does not say where %q is", lines[i+1], want)
		}
	}
}

func TestVersionIsAFlagAndACommand(t *testing.T) {
	code, flag, stderr := streamer(t, "--version")
	if code != exitOK || stderr != "" || !strings.HasPrefix(flag, "streamer ") || strings.Count(flag, "\n") != 1 {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, flag, stderr)
	}
	if _, command, _ := streamer(t, "version"); command != flag {
		t.Errorf("the flag says %q, the command %q", flag, command)
	}
}

func TestASignalEndsOnlyWhatRunsForEver(t *testing.T) {
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	serveAWS(t, "sensor_readings")
	file := writeLines(t, climateHeader, climateLine(1, climateStart, 1, "20", "40"))
	places := []string{"--contract", "sensor_readings", "--staging", "s3://s/p/", "--lake", "s3://l/"}
	for want, commands := range map[int][][]string{
		exitOK:     {append([]string{"run"}, places...)},
		exitFailed: {{"load", file, "--format", "room-climate"}, {"demo", "--devices", "1", "--hours", "1"}},
	} {
		for _, args := range commands {
			var stdout, stderr bytes.Buffer
			code := execute(interrupted, args, &stdout, &stderr)
			if code != want || !strings.Contains(stderr.String(), "interrupted") || strings.Count(stderr.String(), "\n") != 1 {
				t.Errorf("%s: exit code %d, stderr %q; want %d", args[0], code, stderr.String(), want)
			}
		}
	}
}

func TestCountsHaveASeparatorAndANumber(t *testing.T) {
	for n, want := range map[int]string{0: "0 rows", 1: "1 row", 2: "2 rows", 1234567: "1,234,567 rows"} {
		if got := counted(n, "row"); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

func TestFolderThatCannotBeWrittenIsRefused(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Log("permissions do not bind this user; a file in the folder's place is tested above")
		return
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := streamer(t, "demo", "--dir", dir)
	if code != exitUsage || !strings.Contains(stderr, dir) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
}

func TestExitCodeTellsWhoMustAct(t *testing.T) {
	failed := errors.New("the disk is full")
	tests := []struct {
		err  error
		want int
	}{
		{failed, exitFailed},
		{fmt.Errorf("demo: %w", usage(failed)), exitUsage},
		{fmt.Errorf("demo: %w", pipeline.NeedPerson(failed, "free some")), exitPerson},
		{errors.Join(failed, pipeline.NeedPerson(failed, "free some")), exitPerson},
	}
	for _, tt := range tests {
		if got := exitCode(tt.err); got != tt.want {
			t.Errorf("exit code of %q is %d, want %d", tt.err, got, tt.want)
		}
	}
	if got := oneLine(errors.Join(failed, failed)); strings.Contains(got, "\n") {
		t.Errorf("%q is not one line", got)
	}
}

func TestDDLPrintsEveryTableOfAContract(t *testing.T) {
	for _, name := range schemas.Names() {
		code, stdout, stderr := streamer(t, "ddl", "--contract", name, "--database", "d", "--lake", "s3://b/l/")
		if code != 0 || stderr != "" {
			t.Fatalf("ddl of %s: exit code %d, stderr %q", name, code, stderr)
		}
		c, err := schemas.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		tables := slices.Concat(c.Tables(), schemas.OwnTables())
		statements := len(tables)
		for _, own := range schemas.OwnTables() {
			statements++
			if !strings.Contains(stdout, `VIEW "d"."`+own.LatestName()+`" AS`) {
				t.Errorf("ddl of %s lacks view %s", name, own.LatestName())
			}
		}
		if v := c.LatestName(); v != "" {
			statements++
			if !strings.Contains(stdout, `VIEW "d"."`+v+`" AS`) || strings.Index(stdout, "VIEW") < strings.LastIndex(stdout, "EXTERNAL TABLE IF NOT EXISTS `d`.`"+c.Name) {
				t.Errorf("ddl of %s lacks its view, or has it before its tables", name)
			}
		}
		if got := strings.Count(stdout, ";\n"); got != statements {
			t.Errorf("ddl of %s has %d statements, want %d", name, got, statements)
		}
		for _, table := range tables {
			if !strings.Contains(stdout, "`d`.`"+table.Name+"`") || !strings.Contains(stdout, "'s3://b/l/"+table.Name+"/'") {
				t.Errorf("ddl of %s lacks table %s", name, table.Name)
			}
		}
	}
}

func TestHelpSaysThatTheCheckpointTableIsMadeOnlyWhereItIs(t *testing.T) {
	for command, makes := range map[string]bool{
		"run": true, "lambda": true, "lanes handover": true, "lanes rebuild": true,
		"lanes list": false, "lanes sweep": false, "status": false, "seal": false, "windows list": false, "gaps list": false, "config show": false,
	} {
		code, stdout, _ := streamer(t, append(strings.Fields(command), "--help")...)
		if code != exitOK || !strings.Contains(stdout, "--checkpoint-table") || strings.Contains(stdout, "made if there is none") != makes {
			t.Errorf("%s: exit code %d, says that the table is made: %v, want %v", command, code, !makes, makes)
		}
	}
}

func TestATableThatIsMissingIsLookedForInAnAWSOfOnesOwn(t *testing.T) {
	missing := &smithy.OperationError{ServiceID: "DynamoDB", OperationName: "DescribeTable", Err: &types.ResourceNotFoundException{Message: new("Table: t not found")}}
	for endpoint, want := range map[string]bool{"": false, "http://127.0.0.1:4588": true} {
		t.Setenv("AWS_ENDPOINT_URL_DYNAMODB", "")
		t.Setenv("AWS_ENDPOINT_URL", endpoint)
		err := explain(fmt.Errorf("describe table t: %w", missing))
		if text := err.Error(); exitCode(err) != exitPerson || !strings.Contains(text, "check its name and AWS_REGION") || strings.Contains(text, "streamer local --dir FOLDER --contract NAME") != want {
			t.Errorf("at %q: %v", endpoint, err)
		}
	}
}

func TestHelpHasExamples(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"demo", "--help"}, {"ddl", "--help"}, nil} {
		code, stdout, _ := streamer(t, args...)
		if code != 0 || !strings.Contains(stdout, "Examples:") {
			t.Errorf("help of %v: exit code %d, %q", args, code, stdout)
		}
	}
	if code, stdout, _ := streamer(t, "version"); code != 0 || !strings.HasPrefix(stdout, "streamer ") {
		t.Errorf("version: exit code %d, %q", code, stdout)
	}
}

func TestProgressIsForTerminalsOnly(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "stderr")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for name, out := range map[string]io.Writer{"buffer": &bytes.Buffer{}, "file": file, "null device": null} {
		if p := newProgress(out, 10); p.out != nil {
			t.Errorf("progress would be shown on a %s", name)
		}
	}
	var terminal bytes.Buffer
	p := progress{out: &terminal, total: 200, begun: time.Now().Add(-time.Second)}
	p.add(50)
	p.add(50) // too soon to be shown
	p.clear()
	if got := terminal.String(); !strings.Contains(got, "50 of 200 rows (25%)") || strings.Contains(got, "100 of 200") || !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("a terminal shows %q", got)
	}
}

func TestReadingsThatChangeMeanwhileStopTheDemo(t *testing.T) {
	file := writeLines(t, climateHeader, climateLine(1, climateStart, 1, "20.48", "42.332"))
	f, err := readingsFeed(file, "room-climate")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(climateHeader+"\nA,01,x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := newShow(context.Background(), f, t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	s.progress = newProgress(io.Discard, f.total)
	if err := s.run(context.Background()); err == nil || !strings.Contains(err.Error(), "changed while it was read") {
		t.Errorf("the demo ended with %v", err)
	}
}
