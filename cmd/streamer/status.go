package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
)

func newStatus() *cobra.Command {
	s := newSettings()
	var output string
	c := &cobra.Command{
		Use:     "status",
		Short:   "Tell what is in flight, what is in the lake, and what is missing",
		Example: `  streamer status --contract device_telemetry --staging s3://my-staging/delivered/ --lake s3://my-lake/`,
		Args:    noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.load(c); err != nil {
				return err
			}
			st, err := readStatus(c.Context(), s)
			if err != nil {
				return explain(err)
			}
			if output == "json" {
				return writeDocument(c.OutOrStdout(), st)
			}
			return st.print(c.OutOrStdout())
		},
	}
	s.use(c, "contract", "table", "checkpoint-table", "land", "staging", "damaged", "lake")
	outputFlag(c.Flags(), &output, "table", "json")
	return c
}

// A status is what the checkpoint table and the buckets say of one table's way.
type status struct {
	Table   string          `json:"table"`
	Stream  string          `json:"stream"`
	Lane    laneStatus      `json:"lane"`
	Shards  []shardStatus   `json:"shards"`
	Gaps    int             `json:"gaps"`
	Lag     string          `json:"lag"` // since every open shard was read to its tip with all committed
	Staging objectsStatus   `json:"staging"`
	Lake    []objectsStatus `json:"lake"`

	oldestTip time.Time
}

type laneStatus struct {
	Name           string `json:"name"`
	Started        bool   `json:"started"`
	Holder         string `json:"holder,omitempty"` // host and process that hold the lane under a lease
	NextWindow     int64  `json:"next_window"`
	PendingWindow  int64  `json:"pending_window,omitempty"`
	CompleteWindow int64  `json:"complete_through_window"`
	Unsealed       int    `json:"unsealed_windows"`
	UnsealedRows   int    `json:"unsealed_rows"`
	Halted         string `json:"halted,omitempty"`
}

type shardStatus struct {
	ID     string `json:"id"`
	Parent string `json:"parent,omitempty"`
	Lane   string `json:"lane"`
	At     string `json:"committed,omitempty"`
	End    bool   `json:"end"`
	TipAt  string `json:"tip_at,omitempty"` // when it was last read to its tip with all committed
}

type objectsStatus struct {
	Name    string `json:"name"`
	Objects int    `json:"objects"`
	Bytes   int64  `json:"bytes"`
}

func readStatus(ctx context.Context, s *settings) (*status, error) {
	p, err := s.places()
	if err != nil {
		return nil, err
	}
	c, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.findStream(ctx, c); err != nil {
		return nil, err
	}
	l, err := wire(c, p, wireOptions{})
	if err != nil {
		return nil, err
	}
	st := &status{Table: p.Table, Stream: p.StreamARN}
	if err := st.readLane(ctx, l.store, laneOf(p.Contract)); err != nil {
		return nil, err
	}
	if l.staging != nil {
		st.Staging.Name = p.Staging.String()
		for o, err := range l.staging.List(ctx) {
			if err != nil {
				return nil, err
			}
			st.Staging.add(o)
		}
	}
	at := map[string]int{}
	for i, t := range p.Contract.Tables() {
		st.Lake = append(st.Lake, objectsStatus{Name: t.Name})
		at[t.Name] = i
	}
	for o, err := range l.lake.List(ctx) {
		if err != nil {
			return nil, err
		}
		name, _, _ := strings.Cut(o.Key, "/")
		if i, ours := at[name]; ours {
			st.Lake[i].add(o)
		}
	}
	return st, nil
}

func (o *objectsStatus) add(ob pipeline.Object) {
	o.Objects++
	o.Bytes += ob.Size
}

func (st *status) readLane(ctx context.Context, store *checkpoint.Store, id pipeline.LaneID) error {
	lane, err := store.Lane(ctx, id)
	if err != nil {
		return err
	}
	st.Lane = laneStatus{
		Name: string(id), Started: lane.Exists, NextWindow: lane.Next, PendingWindow: lane.Pending,
		CompleteWindow: lane.Watermark, Unsealed: lane.Unsealed(), Halted: lane.Halted,
	}
	if lane.Holder.Lease != 0 {
		st.Lane.Holder = holderText(lane.Holder)
	}
	for _, w := range lane.Windows {
		if w.State == pipeline.WindowPending || w.State == pipeline.WindowCommitted {
			st.Lane.UnsealedRows += w.Counts.Rows
		}
	}
	shards, gaps, err := store.StreamStatus(ctx, st.Stream)
	if err != nil {
		return err
	}
	st.Gaps = gaps
	for _, s := range shards {
		shown := shardStatus{ID: string(s.ID), Parent: string(s.Parent), Lane: string(s.Lane), At: string(s.At.Seq), End: s.At.End}
		if !s.TipAt.IsZero() {
			shown.TipAt = s.TipAt.Format(time.RFC3339)
		}
		st.Shards = append(st.Shards, shown)
		if !s.At.End && (len(st.Lag) == 0 || s.TipAt.Before(st.oldestTip)) {
			st.oldestTip, st.Lag = s.TipAt, lagSince(s.TipAt, time.Now())
		}
	}
	return nil
}

func lagSince(tip, now time.Time) string {
	if tip.IsZero() {
		return "unknown: not read to the tip yet"
	}
	return max(0, now.Sub(tip)).Round(time.Second).String()
}

func (st *status) print(w io.Writer) error {
	open, ended := 0, 0
	for _, s := range st.Shards {
		if s.End {
			ended++
		} else {
			open++
		}
	}
	rows := [][]string{
		{"Table", st.Table},
		{"Shards", fmt.Sprintf("%d being read, %d read to their end", open, ended)},
		{"Lane", st.Lane.Name},
	}
	if !st.Lane.Started {
		rows = append(rows, []string{"", "never started"})
	} else {
		rows = append(rows,
			[]string{"  in the lake", fmt.Sprintf("every window up to %d", st.Lane.CompleteWindow)},
			[]string{"  in flight", fmt.Sprintf("%d windows with %s rows", st.Lane.Unsealed, count(st.Lane.UnsealedRows))})
	}
	if st.Lane.Holder != "" {
		rows = append(rows, []string{"  held by", st.Lane.Holder})
	}
	if st.Lane.Halted != "" {
		rows = append(rows, []string{"  HALTED", st.Lane.Halted})
	}
	if st.Lag != "" {
		rows = append(rows, []string{"Lag", st.Lag})
	}
	rows = append(rows, []string{"Gaps", fmt.Sprintf("%d not closed", st.Gaps)})
	table(w, nil, rows)
	fmt.Fprintln(w)
	var sizes [][]string
	stores := st.Lake
	if st.Staging.Name != "" {
		stores = append([]objectsStatus{st.Staging}, st.Lake...)
	}
	for _, o := range stores {
		sizes = append(sizes, []string{o.Name, count(o.Objects), count(int(o.Bytes / 1024))})
	}
	table(w, []string{"place", "objects", "KiB"}, sizes)
	return nil
}
