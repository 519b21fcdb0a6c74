package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
)

func newWindows() *cobra.Command {
	c := &cobra.Command{
		Use:   "windows",
		Short: "Look at windows on their way into the lake, and check those that are there",
		Args:  noCommand,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newWindowsList(), newWindowsVerify(), newWindowsOrphans())
	return c
}

func newWindowsList() *cobra.Command {
	s := newSettings()
	var o windowOptions
	var output string
	c := &cobra.Command{
		Use:   "list",
		Short: "List the windows that the checkpoint table still holds",
		Long: `A window is begun before its parts are landed, committed once they are, and sealed
when all of them are in the lake. One that is sealed stays in the table until all
windows of its lane before it are.`,
		Example: `  streamer windows list --unsealed
  streamer windows list --unsealed --waiting 30m --lane run-sensor_readings -o json`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.load(c); err != nil {
				return err
			}
			if o.waiting > 0 && !o.unsealed {
				return usagef("--waiting is for windows that are not sealed; add --unsealed")
			}
			if o.lane != "" && !pipeline.LaneID(o.lane).Valid() {
				return usagef("%q is no lane's name", o.lane)
			}
			clients, err := connect(c.Context())
			if err != nil {
				return err
			}
			windows, err := o.read(c.Context(), checkpoint.New(clients.dynamodb, s.Checkpoint, checkpoint.Options{}), time.Now())
			if err != nil {
				return explain(err)
			}
			return printWindows(c.OutOrStdout(), windows, output)
		},
	}
	s.use(c, "checkpoint-table")
	c.Flags().BoolVar(&o.unsealed, "unsealed", false, "only those of which some part is not known to be in the lake")
	c.Flags().DurationVar(&o.waiting, "waiting", 0, "of these, only those that were landed longer ago")
	c.Flags().StringVar(&o.lane, "lane", "", "only those of one lane (default: of all)")
	outputFlag(c.Flags(), &output, "table", "json")
	return c
}

type windowOptions struct {
	unsealed bool
	waiting  time.Duration
	lane     string
}

// A windowShown is a window as programs read it.
type windowShown struct {
	Window    string           `json:"window"`
	Lane      string           `json:"lane"`
	State     string           `json:"state"`
	Parts     int              `json:"parts"`
	Rows      int              `json:"rows"` // in all tables
	Oldest    string           `json:"oldest_record,omitempty"`
	Committed string           `json:"committed_at,omitempty"`
	Landed    string           `json:"landed_at,omitempty"`
	Waiting   float64          `json:"waiting_seconds"` // since it was last landed; 0 while it is not
	Landings  int              `json:"landed_again"`
	Gaps      bool             `json:"gaps"`
	Counts    *pipeline.Counts `json:"counts"`
}

// read lists the windows by lane, incarnation and number.
func (o windowOptions) read(ctx context.Context, store *checkpoint.Store, now time.Time) ([]windowShown, error) {
	lanes := []pipeline.LaneID{pipeline.LaneID(o.lane)}
	if o.lane == "" {
		var err error
		if lanes, err = store.Lanes(ctx); err != nil {
			return nil, err
		}
	}
	if o.lane != "" {
		_, known, err := store.Holder(ctx, lanes[0])
		if err != nil {
			return nil, err
		}
		if !known {
			return nil, usagef("the checkpoint table has no lane %s; without --lane the windows of all lanes are listed", o.lane)
		}
	}
	shown := []windowShown{}
	for _, l := range lanes {
		windows, err := o.windows(ctx, store, l)
		if err != nil {
			return nil, err
		}
		for _, w := range windows {
			v := showWindow(w, now)
			if time.Duration(v.Waiting*float64(time.Second)) >= o.waiting {
				shown = append(shown, v)
			}
		}
	}
	return shown, nil
}

func (o windowOptions) windows(ctx context.Context, store *checkpoint.Store, l pipeline.LaneID) ([]checkpoint.WindowStatus, error) {
	if o.unsealed {
		return store.Unsealed(ctx, l)
	}
	st, err := store.Lane(ctx, l)
	return st.Windows, err
}

func showWindow(w checkpoint.WindowStatus, now time.Time) windowShown {
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339)
	}
	c := w.Counts
	v := windowShown{
		Window: w.ID.String(), Lane: string(w.ID.Lane), State: string(w.State), Parts: w.Parts, Rows: c.Rows + c.Changes + c.Tombstones + c.Quarantined,
		Oldest: at(w.Oldest), Committed: at(w.CommittedAt), Landed: at(w.LandedAt), Landings: w.Landings, Gaps: w.Gaps, Counts: &c,
	}
	if since := slices.MaxFunc([]time.Time{w.CommittedAt, w.LandedAt}, time.Time.Compare); !since.IsZero() {
		v.Waiting = max(0, now.Sub(since).Seconds())
	}
	return v
}

func printWindows(w io.Writer, windows []windowShown, output string) error {
	if output == "json" {
		return writeDocument(w, windows)
	}
	if len(windows) == 0 {
		fmt.Fprintln(w, "no window is waiting")
		return nil
	}
	var rows [][]string
	for _, v := range windows {
		waiting := noValue
		if v.Waiting > 0 && v.State == string(pipeline.WindowCommitted) {
			waiting = (time.Duration(v.Waiting) * time.Second).String()
		}
		rows = append(rows, []string{v.Window, v.State, count(v.Parts), count(v.Rows), cmp.Or(v.Committed, noValue), waiting, count(v.Landings)})
	}
	table(w, []string{"window", "state", "parts", "rows", "committed", "waiting", "landed again"}, rows)
	return nil
}
