package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"telemetrylake/athena"
	"telemetrylake/schemas"
)

func newDDL() *cobra.Command {
	s := newSettings()
	var database string
	c := &cobra.Command{
		Use:   "ddl",
		Short: "Print the statements that create a contract's tables in Athena",
		Long: `Print the statements that create the lake tables of a contract in Athena: the
readings, and beside them changes, tombstones and quarantine, and of a table whose
items are overwritten the view of the latest versions; and those in which the
pipeline tells of itself, windows and gaps, each with a view of what was stored
last. Athena takes one statement at a time. Without a contract: those of every contract that comes with
this program.

Contracts: ` + strings.Join(schemas.Names(), ", "),
		Example: `  streamer ddl --contract device_telemetry --lake s3://my-lake/
  streamer ddl --contract ./mine.yaml --lake s3://my-lake/ --database telemetry`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.load(c); err != nil {
				return err
			}
			if s.Lake == "" {
				return usagef("--lake is not set; set it to s3://bucket/prefix/, where the tables are")
			}
			if _, err := parseLocation("lake", s.Lake); err != nil {
				return err
			}
			names := []string{s.Contract}
			if s.Contract == "" {
				names = schemas.Names()
			}
			var statements []string
			o := athena.Options{Database: database, Location: s.Lake}
			add := func(text string) { statements = append(statements, strings.TrimSuffix(text, "\n")+";\n") }
			for _, name := range names {
				contract, err := loadContract(name)
				if err != nil {
					return err
				}
				for _, t := range contract.Tables() {
					add(athena.DDL(t, o))
				}
				if v, ok := athena.Latest(contract, o); ok {
					add(v.DDL(o))
				}
			}
			for _, t := range schemas.OwnTables() {
				add(athena.DDL(t, o))
				if v, ok := athena.LatestOfOwn(t, o); ok {
					add(v.DDL(o))
				}
			}
			_, err := io.WriteString(c.OutOrStdout(), strings.Join(statements, "\n"))
			return err
		},
	}
	s.use(c, "contract", "lake")
	c.Flags().StringVar(&database, "database", "", "Glue database of the tables; default: the session's")
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
	if err != nil {
		return nil, usage(err)
	}
	return c, nil
}
