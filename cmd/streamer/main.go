// Command streamer moves device telemetry from a DynamoDB table into a data lake that
// Athena reads. The package knows flags, wiring and exit codes, and is the only one that
// knows all others; its one rule: it holds no step of the pipeline itself.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"telemetrylake/pipeline"
	"telemetrylake/schemas"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := execute(ctx, arguments(os.Args), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Exit codes.
const (
	exitOK     = 0 // finished; of run and local also ended by a signal
	exitFailed = 1 // starting again may help
	exitUsage  = 2 // wrong flags, files or configuration
	exitPerson = 3 // a person must act; the message ends with what to do
)

// execute runs the command line and returns the exit code. An error is one line on stderr, but
// for the problems of a contract, which are a line each.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	command, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitOK
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		text := "interrupted before it was finished"
		if u, ok := errors.AsType[*unfinished](err); ok {
			text = u.Error()
		}
		fmt.Fprintln(stderr, "streamer: "+text)
		if name := command.Name(); name == "run" || name == "local" {
			return exitOK // a signal is how they end
		}
		return exitFailed
	}
	if p, ok := errors.AsType[*schemas.ParseError](err); ok && len(p.Problems) > 1 {
		// A line for each: whoever corrects them wants to see them all.
		fmt.Fprintf(stderr, "streamer: %s in %s\n%s\n", counted(len(p.Problems), "problem"), p.Problems[0].File, p)
		return exitCode(err)
	}
	fmt.Fprintln(stderr, "streamer: "+oneLine(err))
	return exitCode(err)
}

// An unfinished is what an interrupted command has done, and how to go on.
type unfinished struct {
	err  error
	text string
}

func (u *unfinished) Error() string { return u.text }

func (u *unfinished) Unwrap() error { return u.err }

func exitCode(err error) int {
	if _, ok := errors.AsType[*pipeline.PersonError](err); ok {
		return exitPerson
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	if s, ok := errors.AsType[said](err); ok {
		return s.code
	}
	return exitFailed
}

// oneLine joins an error of several lines, such as all that is wrong with a contract.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// A usageError is the caller's to correct: a flag, a file or a folder.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }

func (e *usageError) Unwrap() error { return e.err }

func usage(err error) error { return &usageError{err} }

func usagef(format string, args ...any) error { return usage(fmt.Errorf(format, args...)) }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "streamer",
		Short: "Device telemetry from DynamoDB into a lake that Athena reads, each row once",
		Example: `  streamer demo                                          everything in one process
  streamer local --dir ./aws                             an AWS on this machine
  . ./aws/env                                            point the rest at it
  streamer load readings.csv --contract sensor_readings
  streamer run --contract sensor_readings --until-drained
  streamer query average_climate_by_device`,
		Args:          noCommand,
		Version:       versionText(),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%w; see %s --help", err, c.CommandPath())
	})
	root.AddCommand(newDemo(), newLocal(), newLoad(), newRun(), newSeal(), newQuery(), newStatus(), newGaps(), newConfig(), newDDL(), newPing(), newLambda(), newLanes(), newWindows(), newInspect(), newRescue(), newVersion())
	return root
}

// noCommand answers a name that is no command with those that are like it.
func noCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	c.SuggestionsMinimumDistance = 2 // letters to change
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		return usagef("unknown command %q; did you mean %s? See %s --help", args[0], strings.Join(near, " or "), c.CommandPath())
	}
	return usagef("unknown command %q; see %s --help", args[0], c.CommandPath())
}

func noArguments(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no argument %q; see %s --help", c.CommandPath(), args[0], c.CommandPath())
	}
	return nil
}
