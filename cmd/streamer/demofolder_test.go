package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAnInterruptedDemoSaysThatItsFolderHoldsAPartialLake(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lake")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // as soon as something is in the lake
		for ctx.Err() == nil {
			if found, err := hasObject(filepath.Join(dir, "s3", lakeBucket)); err != nil || found {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	var stdout, stderr bytes.Buffer
	code := execute(ctx, []string{"demo", "--dir", dir, "--devices", "50"}, &stdout, &stderr)
	if code != exitFailed || stdout.Len() > 0 || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout.String(), stderr.String())
	}
	if text := stderr.String(); !strings.Contains(text, dir+" holds a partial lake") || strings.Contains(text, "after 0 rows") {
		t.Errorf("stderr %q", text)
	}
	// What is advised helps.
	old, err := filepath.Glob(filepath.Join(dir, "s3*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range old {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	if code, _, stderr := streamer(t, "demo", "--dir", dir, "--devices", "1", "--hours", "1"); code != exitOK {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

func TestDemoRefusesFoldersInUse(t *testing.T) {
	local, lake := t.TempDir(), t.TempDir()
	for _, dir := range []string{filepath.Join(local, "db"), filepath.Join(local, "s3", lakeBucket), filepath.Join(lake, "s3", lakeBucket)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for dir, want := range map[string]string{
		local:                                   "streamer local",
		filepath.Join(local, "new"):             "lies in " + local,
		lake:                                    "earlier lake",
		filepath.Join(lake, "new"):              "lies in " + lake,
		filepath.Join(lake, "s3", lakeBucket):   "lies in " + lake,
		filepath.Join(lake, "s3", "a", "b", ""): "lies in " + lake,
	} {
		code, stdout, stderr := streamer(t, "demo", "--dir", dir)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q; want %q", dir, code, stdout, stderr, want)
		}
		if dir == local && strings.Contains(stderr, "remove") {
			t.Errorf("the advice would delete what streamer local keeps: %q", stderr)
		}
	}
	if _, err := os.Stat(filepath.Join(lake, "new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder was made in a lake: %v", err)
	}
}

func TestDemoProposesToQueryTheLakeItKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "my lake")
	code, stdout, stderr := streamer(t, "demo", "--dir", dir, "--devices", "1", "--hours", "1")
	if code != exitOK || stderr != "" {
		t.Fatalf("exit code %d, stderr %q", code, stderr)
	}
	_, try, _ := strings.Cut(stdout, "\nTry\n")
	query := strings.Index(try, "streamer query --lake-dir '"+filepath.Join(dir, "s3", lakeBucket)+"' average_battery_by_site\n")
	duckdb := strings.Index(try, "duckdb -c ")
	if strings.Contains(stdout, withoutDuckDB) { // built without it, the program cannot query
		if query >= 0 || duckdb < 0 {
			t.Errorf("proposed:\n%s", try)
		}
		return
	}
	if query < 0 || duckdb < query {
		t.Errorf("proposed:\n%s", try)
	}
}
