package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/seal"
)

// shownRows is how many lines a table of an inspection has; JSON has all.
const shownRows = 40

func newInspect() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "inspect OBJECT",
		Short: "Look into a Parquet file, a staging object or a lake object",
		Long: `Read all of one object and tell what it holds: the files that were joined in it and
where they begin, their windows, row groups, columns, encodings, sizes and times, and
what a reader that takes the object for one file would show of it. Nothing is changed.`,
		Example: `  streamer inspect s3://my-staging/delivered/sensor_readings-1-2026-11-30-08-00-00-0b7f
  streamer inspect ./part.parquet -o json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("%s takes one object, s3://bucket/key or a file; see %s --help", c.CommandPath(), c.CommandPath())
			}
			in, err := inspectObject(c.Context(), args[0])
			if err != nil {
				return explain(err)
			}
			if output == "json" {
				return writeDocument(c.OutOrStdout(), inspected{args[0], in.Files(), in.Hidden(), in})
			}
			printInspection(c.OutOrStdout(), args[0], in)
			return nil
		},
	}
	outputFlag(c.Flags(), &output, "table", "json")
	return c
}

// inspected is an inspection as programs read it.
type inspected struct {
	Object string `json:"object"`
	Files  int    `json:"files"`
	Hidden int64  `json:"rows_hidden"`
	*seal.Inspection
}

func inspectObject(ctx context.Context, name string) (*seal.Inspection, error) {
	store, o, err := openObject(ctx, name)
	if err != nil {
		return nil, err
	}
	var in *seal.Inspection
	err = store.View(ctx, o, func(body *io.SectionReader) error {
		in, err = seal.Inspect(body)
		return err
	})
	if errors.Is(err, pipeline.ErrNotFound) {
		return nil, usagef("%s: there is no such object", name)
	}
	if err == nil && in.Foreign() {
		return nil, usagef("%s is no Parquet file, and holds none", name)
	}
	return in, err
}

func printInspection(w io.Writer, name string, in *seal.Inspection) {
	rows := [][]string{
		{"Object", name}, {"Bytes", count(int(in.Bytes))},
		{"Files in it", count(in.Files())}, {"Rows", count(int(in.Rows))},
	}
	switch p := in.Plain; {
	case len(in.Pieces) == 0:
		rows = append(rows, []string{"It is", "empty"})
	case in.Files() == 1 && len(in.Pieces) == 1:
	case p.Problem != "":
		rows = append(rows, []string{"Taken for one file", "cannot be read: " + short(p.Problem)})
	case p.Shows < 0:
		rows = append(rows, []string{"Taken for one file", fmt.Sprintf("shows %s, of values that are no file's", counted(int(p.Rows), "row"))})
	default:
		rows = append(rows, []string{"Taken for one file", fmt.Sprintf("shows %s of file %d; %s hidden", counted(int(p.Rows), "row"), p.Shows, count(int(in.Hidden())))})
	}
	table(w, nil, rows)
	if len(in.Pieces) == 0 {
		return
	}
	fmt.Fprintln(w)
	printPieces(w, in)
	printGroups(w, in)
	printColumns(w, in)
}

func printPieces(w io.Writer, in *seal.Inspection) {
	var rows [][]string
	for i, p := range in.Pieces {
		from, to := noValue, noValue
		if t := mainTimes(p); t != nil {
			from, to = t.From.Format(time.RFC3339), t.To.Format(time.RFC3339)
		}
		rows = append(rows, []string{
			count(i), count(int(p.Offset)), count(int(p.Bytes)), string(p.Kind), count(int(p.Rows)), count(len(p.RowGroups)),
			from, to, belonging(p),
		})
	}
	limited(w, []string{"file", "offset", "bytes", "is", "rows", "groups", "from", "to", "of"}, rows)
}

// mainTimes are those of the column that says when its event was, or the first there are.
func mainTimes(p seal.Piece) *seal.TimeRange {
	if p.Part != nil && len(p.Part.Order) > 0 {
		event := p.Part.Order[len(p.Part.Order)-1]
		if i := slices.IndexFunc(p.Times, func(t seal.TimeRange) bool { return t.Column == event }); i >= 0 {
			return &p.Times[i]
		}
	}
	if len(p.Times) > 0 {
		return &p.Times[0]
	}
	return nil
}

// belonging says whose a piece is, or what is wrong with it.
func belonging(p seal.Piece) string {
	switch {
	case p.Part != nil:
		return fmt.Sprintf("%s %s/%s", p.Part.ID(), p.Part.Table, p.Part.Partition)
	case p.Object != nil:
		parts := p.Object.PartIDs()
		return fmt.Sprintf("%s of %s %s/%s", counted(len(parts), "part"), counted(len(p.Object.Windows), "window"), p.Object.Table, p.Object.Partition)
	case p.Problem != "":
		return short(p.Problem)
	}
	return cmp.Or(short(p.Writer), noValue)
}

// short is a text that fits a line.
func short(s string) string {
	s = oneLine(errors.New(s))
	if r := []rune(s); len(r) > 100 {
		return string(r[:99]) + "…"
	}
	return s
}

func printGroups(w io.Writer, in *seal.Inspection) {
	var rows [][]string
	for i, p := range in.Pieces {
		for k, g := range p.RowGroups {
			rows = append(rows, []string{count(i), count(k), count(int(g.Offset)), count(int(g.Rows)), count(int(g.Compressed)), count(int(g.Uncompressed))})
		}
	}
	if len(rows) > 0 {
		fmt.Fprintln(w)
		limited(w, []string{"file", "row group", "offset", "rows", "compressed", "uncompressed"}, rows)
	}
}

// printColumns sums each column over all row groups of all files, in the order of the first that has it.
func printColumns(w io.Writer, in *seal.Inspection) {
	type sum struct {
		seal.Column
		encodings map[string]bool
	}
	var all []*sum
	for _, p := range in.Pieces {
		for _, g := range p.RowGroups {
			for _, c := range g.Columns {
				i := slices.IndexFunc(all, func(s *sum) bool { return s.Path == c.Path && s.Type == c.Type && s.Codec == c.Codec })
				if i < 0 {
					i = len(all)
					all = append(all, &sum{seal.Column{Path: c.Path, Type: c.Type, Codec: c.Codec}, map[string]bool{}})
				}
				all[i].Values += c.Values
				all[i].Compressed += c.Compressed
				all[i].Uncompressed += c.Uncompressed
				for _, e := range c.Encodings {
					if !all[i].encodings[e] {
						all[i].encodings[e] = true
						all[i].Encodings = append(all[i].Encodings, e)
					}
				}
			}
		}
	}
	var rows [][]string
	for _, c := range all {
		rows = append(rows, []string{c.Path, c.Type, c.Codec, strings.Join(c.Encodings, " "), count(int(c.Values)), count(int(c.Compressed)), count(int(c.Uncompressed))})
	}
	if len(rows) > 0 {
		fmt.Fprintln(w)
		limited(w, []string{"column", "type", "codec", "encodings", "values", "compressed", "uncompressed"}, rows)
	}
}

// limited prints a table, or the beginning of a long one.
func limited(w io.Writer, header []string, rows [][]string) {
	table(w, header, rows[:min(len(rows), shownRows)])
	if more := len(rows) - shownRows; more > 0 {
		fmt.Fprintf(w, "  … %s; -o json has all\n", counted(more, "more line"))
	}
}
