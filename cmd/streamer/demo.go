package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
	f.StringVarP(&o.output, "output", "o", "table", "table or json")
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
	if err != nil {
		return err
	}
	s.progress = newProgress(c.ErrOrStderr(), f.total)
	if err := s.run(c.Context()); err != nil {
		s.progress.clear()
		return fmt.Errorf("demo: %w", err)
	}
	s.progress.clear()
	s.result.Seconds = time.Since(begun).Seconds()
	if o.dir != "" {
		s.result.LakePath = s.tableFolder(f.contract.Name)
	}
	if o.output == "json" {
		enc := json.NewEncoder(c.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(s.result)
	}
	return s.print(c.OutOrStdout())
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
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, usagef("use --dir: %w; name a folder that can be written", err)
	}
	switch _, err := os.Stat(filepath.Join(dir, "s3")); {
	case err == nil:
		return "", nil, usagef("use --dir: %s holds an earlier lake; name another folder, or remove %s", dir, filepath.Join(dir, "s3*"))
	case !errors.Is(err, fs.ErrNotExist):
		return "", nil, usagef("use --dir: %w", err)
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
