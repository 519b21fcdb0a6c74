package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
)

func newGaps() *cobra.Command {
	c := &cobra.Command{
		Use:   "gaps",
		Short: "Look at what the stream dropped before it was in the lake",
		Long: `A stream keeps its records for 24 hours. Those of a shard that were not read, or
not landed, in that time are a gap: an entry of the checkpoint table with its
bounds, open until what is missing was taken from elsewhere. While one is not
closed, /integrity of a run is not ok.`,
		Args: noCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newGapsList(), newGapsShow())
	return c
}

// gapStates are what --state takes.
var gapStates = []string{"not-closed", string(pipeline.GapOpen), string(pipeline.GapRepairing), string(pipeline.GapClosed), "all"}

func newGapsList() *cobra.Command {
	s := newSettings()
	var output, state string
	var everywhere bool
	c := &cobra.Command{
		Use:   "list --contract NAME",
		Short: "List the gaps of a table's streams",
		Example: `  streamer gaps list --contract device_telemetry
  streamer gaps list --contract device_telemetry --state all -o csv
  streamer gaps list --all-tables`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.load(c); err != nil {
				return err
			}
			gaps, err := readGaps(c.Context(), s, everywhere)
			if err != nil {
				return explain(err)
			}
			shown := []gapShown{}
			for _, g := range gaps {
				if state == "all" || string(g.State) == state || state == gapStates[0] && g.State != pipeline.GapClosed {
					shown = append(shown, showGap(g))
				}
			}
			return printGaps(c.OutOrStdout(), shown, output, state)
		},
	}
	s.use(c, "contract", "table", "checkpoint-table")
	outputFlag(c.Flags(), &output, "table", "json", "csv")
	choiceFlag(c.Flags(), &state, "state", gapStates...)
	c.Flags().BoolVar(&everywhere, "all-tables", false, "of all tables, also those that are gone")
	return c
}

func newGapsShow() *cobra.Command {
	s := newSettings()
	var output string
	c := &cobra.Command{
		Use:     "show ID",
		Short:   "Show one gap with its bounds",
		Example: `  streamer gaps show 'shardId-00000001-a#4700#1'`,
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("%s takes one ID, as gaps list prints it; see %s --help", c.CommandPath(), c.CommandPath())
			}
			if err := s.load(c); err != nil {
				return err
			}
			gaps, err := readGaps(c.Context(), s, s.Contract == "")
			if err != nil {
				return explain(err)
			}
			var found []gapShown
			for _, g := range gaps {
				if g.ID == args[0] {
					found = append(found, showGap(g))
				}
			}
			switch len(found) {
			case 0:
				return usagef("no gap %q in table %s; streamer gaps list --state all shows those there are", args[0], s.Checkpoint)
			case 1:
				return printGap(c.OutOrStdout(), found[0], output)
			}
			return usagef("%d streams have a gap %q; name the contract of one with --contract", len(found), args[0])
		},
	}
	s.use(c, "contract", "table", "checkpoint-table")
	outputFlag(c.Flags(), &output, "table", "json")
	return c
}

// readGaps reads the gaps of the streams that the contract's table has and had, or of all.
func readGaps(ctx context.Context, s *settings, everywhere bool) ([]pipeline.Gap, error) {
	var p places
	if !everywhere {
		contract, err := s.contract()
		if err != nil {
			return nil, err
		}
		p.Contract, p.Table = contract, cmp.Or(s.Table, contract.Table)
	}
	c, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	if !everywhere {
		if err := p.findStream(ctx, c); err != nil {
			return nil, err
		}
	}
	all, err := checkpoint.New(c.dynamodb, s.Checkpoint, checkpoint.Options{}).Gaps(ctx, "")
	if err != nil || everywhere {
		return all, err
	}
	return slices.DeleteFunc(all, func(g pipeline.Gap) bool { return tableOf(g.Stream) != tableOf(p.StreamARN) }), nil
}

// tableOf is the part of a stream's ARN that names its table: a stream that was disabled and
// enabled again is another of the same table.
func tableOf(stream string) string {
	table, _, _ := strings.Cut(stream, "/stream/") // arn:aws:dynamodb:region:account:table/name/stream/label
	return table
}

// A gapShown is a gap as programs read it.
type gapShown struct {
	ID       string `json:"id"`
	State    string `json:"state"`
	Cause    string `json:"cause"`
	Stream   string `json:"stream"`
	Shard    string `json:"shard"`
	Lane     string `json:"lane,omitempty"`
	After    string `json:"after,omitempty"`
	Before   string `json:"before,omitempty"`
	First    string `json:"first,omitempty"`
	Last     string `json:"last,omitempty"`
	From     string `json:"created_from,omitempty"`
	To       string `json:"created_to,omitempty"`
	Window   string `json:"window,omitempty"`
	Detected string `json:"detected,omitempty"`
	Evidence string `json:"evidence,omitempty"`
	Repair   string `json:"repair,omitempty"`
}

func showGap(g pipeline.Gap) gapShown {
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339)
	}
	v := gapShown{
		ID: g.ID, State: string(g.State), Cause: string(g.Cause), Stream: g.Stream, Shard: string(g.Shard), Lane: string(g.Lane),
		After: string(g.After), Before: string(g.Before), First: string(g.First), Last: string(g.Last),
		From: at(g.From), To: at(g.To), Detected: at(g.Detected), Evidence: g.Evidence, Repair: g.Repair,
	}
	if g.Window != nil {
		v.Window = g.Window.String()
	}
	return v
}

// fields are the names and values of all of a gap, in one order.
func (v gapShown) fields() [][2]string {
	return [][2]string{
		{"id", v.ID}, {"state", v.State}, {"cause", v.Cause}, {"stream", v.Stream}, {"shard", v.Shard}, {"lane", v.Lane},
		{"after", v.After}, {"before", v.Before}, {"first", v.First}, {"last", v.Last},
		{"created_from", v.From}, {"created_to", v.To}, {"window", v.Window}, {"detected", v.Detected}, {"evidence", v.Evidence}, {"repair", v.Repair},
	}
}

func printGaps(w io.Writer, gaps []gapShown, output, state string) error {
	switch output {
	case "json":
		return writeDocument(w, gaps)
	case "csv":
		return csvGaps(w, gaps)
	}
	if len(gaps) == 0 {
		what := map[string]string{gapStates[0]: "no gap that is not closed", "all": "no gap"}[state]
		fmt.Fprintln(w, cmp.Or(what, "no gap in state "+state))
		return nil
	}
	var rows [][]string
	for _, g := range gaps {
		rows = append(rows, []string{g.ID, g.State, g.Cause, cmp.Or(g.From, "unknown"), cmp.Or(g.To, "unknown"), g.Detected})
	}
	table(w, []string{"gap", "state", "cause", "created from", "created to", "detected"}, rows)
	return nil
}

func csvGaps(w io.Writer, gaps []gapShown) error {
	out := csv.NewWriter(w)
	var names []string
	for _, f := range (gapShown{}).fields() {
		names = append(names, f[0])
	}
	rows := [][]string{names}
	for _, g := range gaps {
		var row []string
		for _, f := range g.fields() {
			row = append(row, f[1])
		}
		rows = append(rows, row)
	}
	return out.WriteAll(rows)
}

// gapWords say what the fields of a gap mean.
var gapWords = map[string]string{
	"after": "Last record read before it", "before": "First record read after it",
	"first": "First record that is missing", "last": "Last record that is missing",
	"created_from": "Created from", "created_to": "Created to",
}

func printGap(w io.Writer, g gapShown, output string) error {
	if output == "json" {
		return writeDocument(w, g)
	}
	var rows [][]string
	for _, f := range g.fields() {
		if f[1] != "" {
			rows = append(rows, []string{cmp.Or(gapWords[f[0]], strings.ToUpper(f[0][:1])+f[0][1:]), f[1]})
		}
	}
	table(w, nil, rows)
	return nil
}
