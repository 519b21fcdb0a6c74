package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// demoOptions are the flags of the demo command.
type demoOptions struct {
	readings, format string
	dir              string
	output           string
	seed             uint64
	devices, hours   int
}

func newDemo() *cobra.Command {
	var o demoOptions
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show the whole way of readings in one process, with nothing but this program",
		Long: `Show the whole way of readings in one process, on an embedded AWS and a virtual
clock: they are written to the hot table, read from its stream, encoded as
Parquet, joined by Firehose into staging objects, sealed into the lake and
queried there. Then their time to live passes, and the lake keeps them all.

Without --readings a fleet of devices is simulated; the same seed gives the same
readings. Of two readings with the same key the first in the file is written.`,
		Example: `  streamer demo
  streamer demo --dir ./lake --devices 100 --hours 24
  streamer demo --readings room-climate.csv.gz --format room-climate -o json`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.check(c.Flags().Changed); err != nil {
				return err
			}
			return demo(c, o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.readings, "readings", "", "CSV file with readings, plain or gzipped; default: a simulated fleet")
	f.StringVar(&o.format, "format", "", "what the file holds: "+formatNames())
	f.StringVar(&o.dir, "dir", "", "folder to keep the lake in; default: a temporary one that is removed")
	outputFlag(f, &o.output, "table", "json")
	f.Uint64Var(&o.seed, "seed", 1, "of the simulated fleet and of the embedded AWS")
	f.IntVar(&o.devices, "devices", 24, "devices of the simulated fleet")
	f.IntVar(&o.hours, "hours", 48, "how long the simulated fleet sends")
	return c
}

func demo(c *cobra.Command, o demoOptions) (err error) {
	begun := time.Now()
	f, err := o.open()
	if err != nil {
		return err
	}
	dir, cleanUp, err := demoFolder(o.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanUp()) }()
	s, err := newShow(c.Context(), f, dir, o.seed)
	if err == nil {
		s.progress = newProgress(c.ErrOrStderr(), f.total)
		err = s.run(c.Context())
		s.progress.clear()
	}
	if err != nil {
		return o.unfinished(c.Context(), err, s)
	}
	s.result.Seconds = time.Since(begun).Seconds()
	if o.dir != "" {
		s.result.LakePath = s.tableFolder(f.contract.Name)
	}
	if o.output == "json" {
		return writeDocument(c.OutOrStdout(), s.result)
	}
	return s.print(c.OutOrStdout())
}

// unfinished says what a demo that did not come to its end leaves behind. s is nil if it did not
// begin.
func (o demoOptions) unfinished(ctx context.Context, err error, s *show) error {
	kept := ""
	if o.dir != "" {
		kept = fmt.Sprintf("; %s holds a partial lake, so name another folder or remove %s", o.dir, filepath.Join(o.dir, "s3*"))
	}
	if ctx.Err() == nil {
		return fmt.Errorf("demo: %w%s", err, kept)
	}
	done := 0
	if s != nil && s.progress != nil {
		done = s.progress.done
	}
	if kept == "" {
		kept = "; nothing of it is kept"
	}
	return &unfinished{ctx.Err(), fmt.Sprintf("demo: interrupted after %s%s; run again, it begins anew", counted(done, "row"), kept)}
}

// demoFolder makes the folder for the embedded AWS and returns what removes it, if it is not
// to be kept.
func demoFolder(dir string) (string, func() error, error) {
	if dir == "" {
		dir, err := os.MkdirTemp("", "streamer-demo-")
		if err != nil {
			return "", nil, fmt.Errorf("make temporary folder: %w", err)
		}
		return dir, func() error { return os.RemoveAll(dir) }, nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", nil, usagef("use --dir: %w", err)
	}
	if err := refuseUsed(dir); err != nil {
		return "", nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, usagef("use --dir: %w; name a folder that can be written", err)
	}
	probe, err := os.CreateTemp(dir, ".writable-")
	if err != nil {
		return "", nil, usagef("use --dir: %w; name a folder that can be written", err)
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return "", nil, usagef("use --dir: %w", err)
	}
	return dir, func() error { return nil }, nil
}

// refuseUsed refuses a folder that holds something of ours, or lies in one that does: a demo must
// add nothing to it.
func refuseUsed(dir string) error {
	for at := dir; ; at = filepath.Dir(at) {
		local, err := exists(filepath.Join(at, "db"), filepath.Join(at, "s3"))
		if err != nil {
			return err
		}
		// Further up a folder s3 may be anybody's; with our bucket in it, it is a lake.
		lake := filepath.Join(at, "s3")
		if at != dir {
			lake = filepath.Join(lake, lakeBucket)
		}
		used, err := exists(lake)
		switch {
		case err != nil:
			return err
		case local && at == dir:
			return usagef("use --dir: %s is the folder of a streamer local, whose lake the demo would spoil; name another folder", dir)
		case used && at == dir:
			return usagef("use --dir: %s holds an earlier lake; name another folder, or remove %s", dir, filepath.Join(dir, "s3*"))
		case used:
			return usagef("use --dir: %s lies in %s, which holds an earlier lake; name a folder outside it", dir, at)
		}
		if filepath.Dir(at) == at {
			return nil
		}
	}
}

// exists reports whether all the paths are there.
func exists(paths ...string) (bool, error) {
	for _, path := range paths {
		switch _, err := os.Stat(path); {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
			return false, nil
		case err != nil:
			return false, usagef("use --dir: %w", err)
		}
	}
	return true, nil
}
