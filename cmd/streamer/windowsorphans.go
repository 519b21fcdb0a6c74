package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/lake"
	"telemetrylake/pipeline/seal"
)

func newWindowsOrphans() *cobra.Command {
	s := newSettings()
	var output string
	c := &cobra.Command{
		Use:   "orphans",
		Short: "List what lies in staging and does not come into the lake",
		Long: `List the pieces of staging objects that are there for longer than a window may wait,
and why: unknown is of a window that was never begun here, mismatch differs from its
window's manifest, foreign is a Parquet file of somebody else, newer was written by a
newer version, damaged is none; these stay until a person has looked. What is late
because nothing seals is waiting, and duplicate or void if seal will drop it.`,
		Example: `  streamer windows orphans --staging s3://my-staging/delivered/
  streamer windows orphans --unsealed-within 2h -o json`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.load(c); err != nil {
				return err
			}
			if s.Staging == "" {
				return usagef("--staging is not set; set it to s3://bucket/prefix/")
			}
			p := places{Checkpoint: s.Checkpoint}
			var err error
			if p.Staging, err = parseLocation("staging", s.Staging); err != nil {
				return err
			}
			clients, err := connect(c.Context())
			if err != nil {
				return err
			}
			at := openBuckets(clients, p)
			store := checkpoint.New(clients.dynamodb, p.Checkpoint, checkpoint.Options{})
			f := orphanFinder{store: store, staging: at.staging, sealer: newSealer(store, at, nil), within: s.unsealedWithin(0)}
			found, err := f.find(c.Context())
			if err != nil {
				return explain(err)
			}
			return printOrphans(c.OutOrStdout(), found, output)
		},
	}
	s.use(c, "checkpoint-table", "staging", "unsealed-within")
	outputFlag(c.Flags(), &output, "table", "json", "csv")
	return c
}

// An orphan is a piece of a staging object that stays there.
type orphan struct {
	Object string  `json:"object"`
	Offset int64   `json:"offset"`
	Bytes  int64   `json:"bytes"`
	Age    float64 `json:"age_seconds"`
	Why    string  `json:"why"`
	Window string  `json:"window,omitempty"`
	Part   int     `json:"part"` // of Window
	Table  string  `json:"table,omitempty"`
	Rows   int     `json:"rows"`
	Detail string  `json:"detail,omitempty"`
}

// Reasons beside those for which seal keeps a part.
const (
	whyDamaged   = "damaged"
	whyWaiting   = "waiting"
	whyDuplicate = "duplicate"
	whyVoid      = "void"
)

type orphanFinder struct {
	store   *checkpoint.Store
	staging *lake.Bucket
	sealer  *seal.Sealer
	within  time.Duration
}

// find lists the orphans by object and offset.
func (f orphanFinder) find(ctx context.Context) ([]orphan, error) {
	found := []orphan{}
	windows := map[pipeline.WindowID]windowSeen{}
	for o, err := range f.staging.Dated(ctx) {
		if err != nil {
			return nil, err
		}
		age := time.Since(o.At)
		if age < f.within {
			continue
		}
		pieces, err := f.sealer.Staged(ctx, o.Object)
		if errors.Is(err, pipeline.ErrNotFound) {
			continue // sealed meanwhile
		}
		if err != nil {
			return nil, err
		}
		for _, p := range pieces {
			v := orphan{Object: o.Key, Offset: p.Offset, Bytes: p.Bytes, Age: age.Truncate(time.Second).Seconds(), Why: string(p.Keep)}
			if p.Meta == nil {
				v.Why, v.Detail = cmp.Or(v.Why, whyDamaged), p.Err.Error()
				found = append(found, v)
				continue
			}
			v.Window, v.Part, v.Table, v.Rows = p.Meta.Window.String(), p.Meta.Part, p.Meta.Table, p.Meta.Rows
			if v.Why, v.Detail, err = f.why(ctx, p.Meta, windows); err != nil {
				return nil, err
			}
			found = append(found, v)
		}
	}
	return found, nil
}

type windowSeen struct {
	state    pipeline.WindowState
	manifest *pipeline.Manifest
	claims   []pipeline.Claim
}

// why says why a part lies in staging.
func (f orphanFinder) why(ctx context.Context, m *pipeline.PartMeta, seen map[pipeline.WindowID]windowSeen) (why, detail string, err error) {
	w, ok := seen[m.Window]
	if !ok {
		if w.state, w.manifest, err = f.store.Window(ctx, m.Window); err != nil {
			return "", "", err
		}
		if w.claims, err = f.store.Claims(ctx, m.Window); err != nil {
			return "", "", err
		}
		seen[m.Window] = w
	}
	if w.manifest != nil {
		if err := m.Matches(w.manifest); err != nil {
			return string(seal.Mismatch), err.Error(), nil
		}
	}
	switch w.state {
	case pipeline.WindowUnknown:
		return string(seal.Unknown), "its window was never begun, or its lane is not known here", nil
	case pipeline.WindowSealed, pipeline.WindowFolded:
		return whyDuplicate, "its window is sealed", nil
	case pipeline.WindowVoid:
		return whyVoid, "its window was given up", nil
	}
	i := slices.IndexFunc(w.claims, func(c pipeline.Claim) bool { return c.Part == m.ID() })
	switch {
	case i >= 0 && w.claims[i].Void:
		return whyVoid, "it was given up", nil
	case i >= 0 && w.claims[i].Published:
		return whyDuplicate, "it is in the lake as " + w.claims[i].Name, nil
	}
	return whyWaiting, "nothing has sealed it", nil
}

func printOrphans(w io.Writer, found []orphan, output string) error {
	if output == "json" {
		return writeDocument(w, found)
	}
	head := []string{"object", "offset", "bytes", "age", "why", "window", "part", "rows", "detail"}
	age := func(seconds float64) string { return time.Duration(seconds * float64(time.Second)).String() }
	if output == "csv" {
		head[3], age = "age_seconds", func(seconds float64) string { return strconv.FormatFloat(seconds, 'f', 0, 64) }
	}
	var rows [][]string
	for _, o := range found {
		part := ""
		if o.Window != "" {
			part = strconv.Itoa(o.Part)
		}
		rows = append(rows, []string{
			o.Object, strconv.FormatInt(o.Offset, 10), strconv.FormatInt(o.Bytes, 10),
			age(o.Age), o.Why, o.Window, part, strconv.Itoa(o.Rows), o.Detail,
		})
	}
	switch {
	case output == "csv":
		return csv.NewWriter(w).WriteAll(append([][]string{head}, rows...))
	case len(rows) == 0:
		fmt.Fprintln(w, "nothing lies in staging for longer than a window may wait")
		return nil
	}
	table(w, head, rows)
	return nil
}
