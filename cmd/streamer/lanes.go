package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/spf13/cobra"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
)

func newLanes() *cobra.Command {
	c := &cobra.Command{
		Use:   "lanes",
		Short: "Who reads a table's stream, and handing it over",
		Args:  noCommand,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newLanesList(), newLanesHandover(), newLanesSweep(), newLanesRebuild())
	return c
}

// streamSettings are what a command needs that looks at the lanes of a table's stream.
var streamSettings = []string{"contract", "table", "checkpoint-table"}

// landSettings are what one needs that may also land.
var landSettings = []string{"contract", "table", "checkpoint-table", "delivery-stream", "staging", "damaged", "lake", "window-records", "window-bytes"}

func newLanesList() *cobra.Command {
	s := newSettings()
	var output string
	c := &cobra.Command{
		Use:     "list --contract NAME",
		Short:   "List the shards of a table's stream, their lanes and how far they are",
		Example: `  streamer lanes list --contract device_telemetry`,
		Args:    noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.load(c); err != nil {
				return err
			}
			l, err := listLanes(c.Context(), s)
			if err != nil {
				return explain(err)
			}
			return l.print(c, output)
		},
	}
	s.use(c, streamSettings...)
	outputFlag(c.Flags(), &output, "table", "json")
	return c
}

// A laneList is what the checkpoint knows of a stream's lanes.
type laneList struct {
	Stream string      `json:"stream"`
	Side   string      `json:"side"` // run, lambda, or "" before anybody has read it
	Shards []laneShard `json:"shards"`
}

type laneShard struct {
	Shard   pipeline.ShardID        `json:"shard"`
	Parent  pipeline.ShardID        `json:"parent,omitempty"`
	Lane    pipeline.LaneID         `json:"lane"`
	Seq     pipeline.SequenceNumber `json:"committed,omitempty"`
	End     bool                    `json:"end"`
	TipAt   time.Time               `json:"tip_at,omitzero"`
	Pending int64                   `json:"pending_window,omitempty"` // of its lane
}

// streamPlaces is the part of places that a stream's lanes need.
func (s *settings) streamPlaces(ctx context.Context) (places, clients, error) {
	contract, err := s.contract()
	if err != nil {
		return places{}, clients{}, err
	}
	p := places{Contract: contract, Table: s.Table, Checkpoint: s.Checkpoint}
	if p.Table == "" {
		p.Table = contract.Table
	}
	c, err := connect(ctx)
	if err != nil {
		return p, c, err
	}
	return p, c, p.findStream(ctx, c)
}

func listLanes(ctx context.Context, s *settings) (laneList, error) {
	p, c, err := s.streamPlaces(ctx)
	if err != nil {
		return laneList{}, err
	}
	store := checkpoint.New(c.dynamodb, p.Checkpoint, checkpoint.Options{})
	side, _, err := store.StreamSide(ctx, p.StreamARN)
	if err != nil {
		return laneList{}, err
	}
	shards, _, err := store.StreamStatus(ctx, p.StreamARN)
	if err != nil {
		return laneList{}, err
	}
	l := laneList{Stream: p.StreamARN, Side: string(side), Shards: []laneShard{}}
	pending := map[pipeline.LaneID]int64{}
	for _, sh := range shards {
		if _, asked := pending[sh.Lane]; !asked {
			st, err := store.Lane(ctx, sh.Lane)
			if err != nil {
				return l, err
			}
			pending[sh.Lane] = st.Pending
		}
		l.Shards = append(l.Shards, laneShard{
			Shard: sh.ID, Parent: sh.Parent, Lane: sh.Lane, Seq: sh.At.Seq, End: sh.At.End, TipAt: sh.TipAt, Pending: pending[sh.Lane],
		})
	}
	return l, nil
}

func (l laneList) print(c *cobra.Command, output string) error {
	if output == "json" {
		return writeDocument(c.OutOrStdout(), l)
	}
	side := l.Side
	if side == "" {
		side = "nobody yet"
	}
	fmt.Fprintf(c.OutOrStdout(), "Stream %s\nread by %s\n\n", l.Stream, side)
	var rows [][]string
	for _, s := range l.Shards {
		at := string(s.Seq)
		switch {
		case s.End:
			at = "the end"
		case at == "":
			at = "nothing yet"
		}
		tip, pending := "", ""
		if !s.TipAt.IsZero() {
			tip = s.TipAt.UTC().Format(time.RFC3339)
		}
		if s.Pending != 0 {
			pending = fmt.Sprint(s.Pending)
		}
		rows = append(rows, []string{string(s.Shard), string(s.Lane), at, tip, pending})
	}
	table(c.OutOrStdout(), []string{"Shard", "Lane", "Committed up to", "Read to its tip", "Pending window"}, rows)
	return nil
}

func newLanesHandover() *cobra.Command {
	s := newSettings()
	var to, level string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "handover --contract NAME --to lambda|run",
		Short: "Hand a table's stream to Lambda, or back to streamer run",
		Long: `Move the whole stream, with the positions of its shards, to the other side. It
happens between two windows, while data flows: the side that is left can begin
nothing any more, and says so. A window that was begun and is not committed within
--wait is finished here first. If this is interrupted, call it again.

Before you hand a stream to Lambda set up the function; its mapping may be enabled
before or after. What the mapping delivers of what is committed already is skipped.`,
		Example: `  streamer lanes handover --contract device_telemetry --to lambda`,
		Args:    noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := newLog(c.ErrOrStderr(), level)
			if err != nil {
				return err
			}
			if to != string(checkpoint.Run) && to != string(checkpoint.Lambda) {
				return usagef("--to %q is no side of a stream; write lambda or run", to)
			}
			if err := s.load(c); err != nil {
				return err
			}
			n, before, err := handOver(c.Context(), s, handing{to: checkpoint.Side(to), wait: wait, log: log})
			if err != nil {
				return explain(err)
			}
			if n == 0 && before == checkpoint.Side(to) {
				fmt.Fprintf(c.OutOrStdout(), "already read by %s\n", to)
				return nil
			}
			fmt.Fprintf(c.OutOrStdout(), "%s now read by %s\n", counted(n, "shard"), to)
			return nil
		},
	}
	s.use(c, landSettings...)
	s.makesTable(madeIfNone)
	f := c.Flags()
	f.StringVar(&to, "to", "", "the side that reads from now on: lambda or run")
	f.DurationVar(&wait, "wait", 30*time.Second, "how long a window that is begun is waited for")
	f.StringVar(&level, "log-level", "warn", "debug, info, warn or error")
	return c
}

// A handing is one handover.
type handing struct {
	to   checkpoint.Side
	wait time.Duration
	log  *slog.Logger
}

// between is the wait between two looks at whether a window has come to its end.
const between = 200 * time.Millisecond

// handOver returns how many shards changed their owner, and which side read the stream before.
func handOver(ctx context.Context, s *settings, h handing) (int, checkpoint.Side, error) {
	p, err := s.staged("handing a stream over")
	if err != nil {
		return 0, "", err
	}
	c, err := connect(ctx)
	if err != nil {
		return 0, "", err
	}
	if err := p.findStream(ctx, c); err != nil {
		return 0, "", err
	}
	before, _, err := checkpoint.New(c.dynamodb, p.Checkpoint, checkpoint.Options{}).StreamSide(ctx, p.StreamARN)
	if missing := (*types.ResourceNotFoundException)(nil); err != nil && !errors.As(err, &missing) {
		return 0, "", err
	}
	n, err := h.hand(ctx, c, p)
	return n, before, err
}

// hand moves the stream between two windows. A window that nobody finishes is finished here.
func (h handing) hand(ctx context.Context, c clients, p places) (int, error) {
	store := checkpoint.New(c.dynamodb, p.Checkpoint, checkpoint.Options{})
	if err := store.Create(ctx); err != nil {
		return 0, err
	}
	over := checkpoint.Handover{Stream: p.StreamARN, To: h.to, Lane: func(pipeline.ShardID) pipeline.LaneID { return laneOf(p.Contract) }}
	if h.to == checkpoint.Lambda {
		over.Lane = func(id pipeline.ShardID) pipeline.LaneID { return laneOfShard(p.Contract, id) }
	}
	moved := 0
	for begun := time.Now(); ; {
		n, err := store.Handover(ctx, over)
		moved += n
		if !errors.Is(err, checkpoint.ErrPending) {
			return moved, err
		}
		if time.Since(begun) >= h.wait {
			if err := h.finish(ctx, c, p); err != nil {
				return moved, err
			}
		}
		if err := pipeline.Wait(ctx, pipeline.Jitter(between)); err != nil {
			return moved, err
		}
	}
}

// finish takes over the lanes of the stream that have a pending window, which finishes it.
func (h handing) finish(ctx context.Context, c clients, p places) error {
	o := wireOptions{Log: h.log}
	f := wireFunction(c, p, o)
	run, err := wire(c, p, o)
	if err != nil {
		return err
	}
	shards, _, err := f.store.StreamStatus(ctx, p.StreamARN)
	if err != nil {
		return err
	}
	opened := map[pipeline.LaneID]bool{}
	for _, sh := range shards {
		st, err := f.store.Lane(ctx, sh.Lane)
		if err != nil {
			return err
		}
		if st.Pending == 0 || opened[sh.Lane] {
			continue
		}
		opened[sh.Lane] = true
		lane := run.lane
		switch sh.Lane {
		case laneOf(p.Contract):
		case laneOfShard(p.Contract, sh.ID):
			if lane, err = f.lane(sh.ID); err != nil {
				return err
			}
		default:
			return pipeline.NeedPerson(fmt.Errorf("shard %s belongs to lane %s, which is none of contract %s", sh.ID, sh.Lane, p.Contract.Name),
				"hand the stream over with the contract that its lane is of")
		}
		h.log.Warn("finishing a window that nobody finished", "lane", sh.Lane, "window", st.Pending)
		if err := lane.Open(ctx); err != nil {
			if now, failed := f.store.Lane(ctx, sh.Lane); failed != nil || now.Pending == st.Pending && !errors.Is(err, pipeline.ErrFenced) {
				return err
			}
			// Somebody else finishes it, or has: the next try sees what became of it.
		}
	}
	return nil
}

func newLanesSweep() *cobra.Command {
	s := newSettings()
	var level, output string
	c := &cobra.Command{
		Use:   "sweep --contract NAME",
		Short: "Look at the shards that are at rest, as Lambda's schedule does",
		Long: `For a stream that Lambda reads: note which shards are read to their tips, take the
ends of shards and the removals by TTL that a mapping does not deliver, and what a
mapping should have delivered hours ago. The function does the same when a schedule
invokes it.`,
		Example: `  streamer lanes sweep --contract device_telemetry`,
		Args:    noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := newLog(c.ErrOrStderr(), level)
			if err != nil {
				return err
			}
			if err := s.load(c); err != nil {
				return err
			}
			r, err := sweepLanes(c.Context(), s, log)
			if err != nil {
				return explain(err)
			}
			if output == "json" {
				return writeDocument(c.OutOrStdout(), r)
			}
			table(c.OutOrStdout(), nil, [][]string{
				{"Shards looked at", count(r.Shards)},
				{"  read to their tips", count(r.Tips)},
				{"  finished", count(r.Finished)},
				{"  left to the mapping", count(r.Busy)},
				{"  waiting for their parents", count(r.Waiting)},
				{"Not done when the time ran out", count(r.Unreached)},
				{"Records taken", count(r.Records)},
				{"Gaps closed", count(r.Settled)},
			})
			return nil
		},
	}
	s.use(c, landSettings...)
	outputFlag(c.Flags(), &output, "table", "json")
	c.Flags().StringVar(&level, "log-level", "warn", "debug, info, warn or error")
	return c
}

func sweepLanes(ctx context.Context, s *settings, log *slog.Logger) (sweepReport, error) {
	p, err := s.staged("a sweep of Lambda's shards")
	if err != nil {
		return sweepReport{}, err
	}
	c, err := connect(ctx)
	if err != nil {
		return sweepReport{}, err
	}
	if err := p.findStream(ctx, c); err != nil {
		return sweepReport{}, err
	}
	f := wireFunction(c, p, wireOptions{Limits: pipeline.Limits{Records: s.WindowRecords, Bytes: s.WindowBytes}, Log: log})
	side, _, err := f.store.StreamSide(ctx, p.StreamARN)
	if err != nil {
		return sweepReport{}, err
	}
	if side == checkpoint.Run {
		return sweepReport{}, usagef("the stream of table %s is read by run; sweep is for a stream that Lambda reads", p.Table)
	}
	return f.sweep(ctx)
}
