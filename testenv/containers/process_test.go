package containers

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// beParent makes the test binary a test that ends without cleaning up.
const beParent = "TELEMETRYLAKE_TEST_BE_PARENT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(beParent); dir != "" {
		p, err := startProcess([]string{"/bin/sh", "-c", "sleep 600 & echo $! >child; wait"}, os.Environ(), dir)
		if err != nil {
			panic(err)
		}
		fmt.Println(p.cmd.Process.Pid)
		select {} // until it is killed
	}
	os.Exit(m.Run())
}

// until waits for what must happen.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// alive reports whether a process runs: one that is not waited for by its parent does not.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !strings.Contains(string(stat), ") Z ")
}

func childOf(t *testing.T, dir string) (pid int) {
	t.Helper()
	until(t, "the child says who it is", func() bool {
		text, err := os.ReadFile(dir + "/child")
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	return pid
}

func TestStoppedProcessTakesItsChildrenAlong(t *testing.T) {
	for name, script := range map[string]string{
		"that ends when told to": "sleep 600 & echo $! >child; wait",
		"that ended by itself":   "sleep 600 & echo $! >child",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p, err := startProcess([]string{"/bin/sh", "-c", script}, os.Environ(), dir)
			if err != nil {
				t.Fatal(err)
			}
			child := childOf(t, dir)
			if err := p.stop(); err != nil {
				t.Fatal(err)
			}
			until(t, "the child is gone", func() bool { return !alive(child) })
		})
	}
}

func TestProcessEndsWithATestThatIsKilled(t *testing.T) {
	dir := t.TempDir()
	test := exec.CommandContext(t.Context(), os.Args[0])
	test.Env = append(os.Environ(), beParent+"="+dir)
	out, err := test.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := test.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	shell, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	child := childOf(t, dir)
	if !alive(shell) || !alive(child) {
		t.Fatal("they do not run")
	}
	if err := test.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = test.Wait() // it was killed
	until(t, "shell and child are gone", func() bool { return !alive(shell) && !alive(child) })
}

func TestProcessThatEndsEarlyIsQuoted(t *testing.T) {
	p, err := startProcess([]string{"/bin/sh", "-c", "echo the reason >&2; exit 7"}, os.Environ(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	err = p.ready(t.Context(), nothingListens(t))
	if err == nil || !strings.Contains(err.Error(), "the reason") {
		t.Errorf("ready: %v", err)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}
