package containers

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// A process is one that lives no longer than the test's: a shell between the two kills it when
// its standard input ends, which the kernel sees to however the test's process goes.
type process struct {
	name   string
	cmd    *exec.Cmd
	alive  io.Closer // the shell's standard input
	output string    // file with what it writes
	ended  chan struct{}
}

// guard runs its arguments until they end. When its standard input ends, it and everything that
// was started below it is killed: they are a process group. Whoever kills stands ready before
// there is anything to kill. A background command of a shell has no standard input of its own,
// so that is handed on as descriptor 3.
const guard = `trap 'kill -TERM $child' TERM
exec 3<&0
{ cat <&3 >/dev/null; kill -KILL 0; } &
"$@" </dev/null 3<&- &
child=$!
exec 3<&-
wait $child
while kill -0 $child 2>/dev/null; do wait $child; done
`

// startProcess starts a program in a folder, with no variables but these.
func startProcess(argv, env []string, dir string) (*process, error) {
	out, err := os.CreateTemp(dir, filepath.Base(argv[0])+"-*.log")
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{name: filepath.Base(argv[0]), output: out.Name(), ended: make(chan struct{})}
	p.cmd = exec.Command("/bin/sh", append([]string{"-c", guard, "guard"}, argv...)...)
	p.cmd.Env, p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = env, dir, out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.alive, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		_ = p.cmd.Wait() // the state tells
		close(p.ended)
	}()
	return p, nil
}

// stopWait is how long one may take to end by itself.
const stopWait = 10 * time.Second

// stop ends it, by force if it takes its time.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	select {
	case <-p.ended:
	case <-time.After(stopWait):
	}
	_ = p.alive.Close() // closed already if it has ended
	<-p.ended
	return nil
}

// lastWords are the end of what it wrote.
func (p *process) lastWords() []byte {
	text, err := os.ReadFile(p.output)
	if err != nil {
		return []byte(err.Error())
	}
	return text[max(0, len(text)-4000):]
}
