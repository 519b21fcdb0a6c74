package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"telemetrylake/pipeline"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of the program and of the formats it writes",
		Args:  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), versionText())
			return err
		},
	}
}

func versionText() string {
	info, _ := debug.ReadBuildInfo()
	return fmt.Sprintf("streamer %s %s %s/%s, format %d, layout %d",
		version(info), runtime.Version(), runtime.GOOS, runtime.GOARCH, pipeline.FormatVersion, pipeline.LayoutVersion)
}

// version is the module's version, or the commit that a checkout was built from.
func version(info *debug.BuildInfo) string {
	if info == nil {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return "devel"
}
