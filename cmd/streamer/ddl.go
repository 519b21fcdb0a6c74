package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"telemetrylake/athena"
	"telemetrylake/schemas"
)

func newDDL() *cobra.Command {
	var contract, database, location string
	c := &cobra.Command{
		Use:   "ddl --contract NAME",
		Short: "Print the statements that create a contract's tables in Athena",
		Long: `Print the statements that create the lake tables of a contract in Athena: the
readings, and beside them changes, tombstones and quarantine. Athena takes one
statement at a time.

Contracts: ` + strings.Join(schemas.Names(), ", "),
		Example: `  streamer ddl --contract device_telemetry
  streamer ddl --contract ./mine.yaml --location s3://my-bucket/lake --database telemetry`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if contract == "" {
				return usagef("no contract named; add --contract with one of %s, or a file", strings.Join(schemas.Names(), ", "))
			}
			if !strings.HasPrefix(location, "s3://") {
				return usagef("--location %q is not of the form s3://bucket/prefix", location)
			}
			parsed, err := loadContract(contract)
			if err != nil {
				return err
			}
			for i, t := range parsed.Tables() {
				if i > 0 {
					fmt.Fprintln(c.OutOrStdout())
				}
				text := athena.DDL(t, athena.Options{Database: database, Location: location})
				if _, err := fmt.Fprintf(c.OutOrStdout(), "%s;\n", strings.TrimSuffix(text, "\n")); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&contract, "contract", "", "name of a contract, or a YAML file")
	c.Flags().StringVar(&database, "database", "", "Glue database of the tables; default: the session's")
	c.Flags().StringVar(&location, "location", "s3://"+lakeBucket, "folder of the lake; each table is a folder in it")
	return c
}

// loadContract takes a name that the program knows, or a YAML file.
func loadContract(name string) (*schemas.Contract, error) {
	if ext := filepath.Ext(name); ext != ".yaml" && ext != ".yml" {
		c, err := schemas.Load(name)
		if err != nil {
			return nil, usage(err)
		}
		return c, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, usagef("read contract: %w", err)
	}
	c, err := schemas.Parse(name, text)
	if problems, ok := errors.AsType[*schemas.ParseError](err); ok && len(problems.Problems) > 1 {
		// All of them would not fit a line, and the first often causes the others.
		return nil, usagef("%s (and %d more problems behind it)", problems.Problems[0], len(problems.Problems)-1)
	}
	if err != nil {
		return nil, usage(err)
	}
	return c, nil
}
