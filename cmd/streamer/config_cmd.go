package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newConfig() *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Look at the configuration",
		Long: `Every setting has one name in three spellings; the first that is given wins:
  flag          --window-age 30s
  environment   STREAMER_WINDOW_AGE=30s
  YAML file     window_age: 30s      (--config FILE, or STREAMER_CONFIG)

Region, credentials and endpoints of AWS come from the AWS SDK's own chain:
AWS_REGION, AWS_PROFILE, AWS_ENDPOINT_URL and the others.`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newConfigShow())
	return c
}

func newConfigShow() *cobra.Command {
	s := newSettings()
	var origin bool
	var output string
	c := &cobra.Command{
		Use:     "show",
		Short:   "Print the value of every setting",
		Example: "  streamer config show --origin --config streamer.yaml",
		Args:    noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.load(c); err != nil {
				return err
			}
			type shown struct {
				Name   string `json:"name"`
				Value  string `json:"value"`
				Origin string `json:"origin"`
			}
			var all []shown
			var rows [][]string
			s.flags.VisitAll(func(f *pflag.Flag) {
				v := shown{yamlName(f.Name), f.Value.String(), s.origins[f.Name]}
				all = append(all, v)
				row := []string{v.Name, v.Value}
				if origin {
					row = append(row, v.Origin)
				}
				rows = append(rows, row)
			})
			if output == "json" {
				return writeDocument(c.OutOrStdout(), all)
			}
			header := []string{"setting", "value"}
			if origin {
				header = append(header, "origin")
			}
			table(c.OutOrStdout(), header, rows)
			return nil
		},
	}
	var names []string
	s.flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	s.use(c, names...)
	c.Flags().BoolVar(&origin, "origin", false, "say where each value comes from")
	outputFlag(c.Flags(), &output, "table", "json")
	return c
}
