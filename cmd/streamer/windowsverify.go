package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
)

func newWindowsVerify() *cobra.Command {
	s := newSettings()
	var output string
	c := &cobra.Command{
		Use:   "verify",
		Short: "Compare the manifests and claims of windows with the objects in the lake",
		Long: `Read the footer of every object in the lake, and compare: each part is in the lake at
most once, with the rows of its window's manifest, in the object that the checkpoint
table has it in; and all that the table calls published, sealed or folded is there.
It may run beside everything else: what only one of two readings of the table shows
is taken for something under way. It costs a request for each object, and reads no
row: streamer query counts those.

It ends with exit code 1 if there is a difference. An old partition that was removed on
purpose takes parts of windows with it, and is one too.`,
		Example: `  streamer windows verify --lake s3://my-lake/
  streamer windows verify --land dir:./lake -o csv`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.load(c); err != nil {
				return err
			}
			at, err := s.lakeOnly()
			if err != nil {
				return err
			}
			clients, err := connect(c.Context())
			if err != nil {
				return err
			}
			v := verifier{store: checkpoint.New(clients.dynamodb, s.Checkpoint, checkpoint.Options{}), lake: openBuckets(clients, at).lake}
			r, err := v.verify(c.Context())
			if err != nil {
				return explain(err)
			}
			return errors.Join(r.print(c.OutOrStdout(), output), r.err())
		},
	}
	s.use(c, "checkpoint-table", "lake", "land")
	outputFlag(c.Flags(), &output, "table", "json", "csv")
	return c
}

// lakeOnly is destinations without staging: only the lake is read.
func (s *settings) lakeOnly() (places, error) {
	if s.Land != landFirehose {
		return s.destinations()
	}
	if s.Lake == "" {
		return places{}, usagef("--lake is not set; set it to s3://bucket/prefix/")
	}
	at, err := parseLocation("lake", s.Lake)
	return places{Checkpoint: s.Checkpoint, Lake: at, Objects: true}, err
}

// A verifier compares the checkpoint table with the lake.
type verifier struct {
	store *checkpoint.Store
	lake  lakeStore
}

// A verified is what a verifier found.
type verified struct {
	pipeline.Counted
	Differences []pipeline.Difference `json:"differences"`
}

func (r *verified) err() error {
	if len(r.Differences) == 0 {
		return nil
	}
	d := r.Differences[0]
	return fmt.Errorf("ledger and lake disagree in %s; first: %s%s: %s", counted(len(r.Differences), "place"), d.Object, within(d.Window), d.Problem)
}

func within(window string) string {
	if window == "" {
		return ""
	}
	return ", window " + window
}

func (v verifier) verify(ctx context.Context) (*verified, error) {
	before, err := v.books(ctx)
	if err != nil {
		return nil, err
	}
	objects, foreign, err := v.objects(ctx)
	if err != nil {
		return nil, err
	}
	r := &verified{Differences: []pipeline.Difference{}}
	var first []pipeline.Difference
	if first, r.Counted = pipeline.Reconcile(before, objects); len(first) > 0 {
		after, err := v.books(ctx)
		if err != nil {
			return nil, err
		}
		again, _ := pipeline.Reconcile(after, objects)
		for _, d := range first {
			if slices.Contains(again, d) {
				r.Differences = append(r.Differences, d)
			}
		}
	}
	r.Differences = append(r.Differences, amongOurs(foreign, objects)...)
	return r, nil
}

// books reads all that the table holds of windows.
func (v verifier) books(ctx context.Context) (pipeline.Books, error) {
	b := pipeline.Books{Lake: v.lake.String()}
	lanes, err := v.store.Lanes(ctx)
	if err != nil {
		return b, err
	}
	for _, l := range lanes {
		held, err := v.store.Manifests(ctx, l)
		if err != nil {
			return b, err
		}
		for i, h := range held {
			if held[i].Claims, err = v.store.Claims(ctx, h.Manifest.Window); err != nil {
				return b, err
			}
		}
		lives, err := v.store.Lives(ctx, l)
		if err != nil {
			return b, err
		}
		b.Held, b.Lives = append(b.Held, held...), append(b.Lives, lives...)
	}
	return b, nil
}

// objects reads the footers of the lake. What is none of ours is returned by its name.
func (v verifier) objects(ctx context.Context) (ours []pipeline.Sealed, foreign []string, err error) {
	var all []pipeline.Object
	for o, err := range v.lake.List(ctx) {
		if err != nil {
			return nil, nil, err
		}
		all = append(all, o)
	}
	var mu sync.Mutex
	err = each(ctx, all, func(ctx context.Context, o pipeline.Object) error {
		m, rows, err := readFooter(ctx, v.lake, o)
		if errors.Is(err, pipeline.ErrNotFound) {
			return nil // nobody of ours removes one: what lacks it is told of
		}
		if err != nil {
			return fmt.Errorf("read footer of %s: %w", o.Key, err)
		}
		mu.Lock()
		defer mu.Unlock()
		if m == nil {
			foreign = append(foreign, o.Key)
		} else {
			ours = append(ours, pipeline.Sealed{Key: o.Key, Rows: rows, Meta: m})
		}
		return nil
	})
	slices.SortFunc(ours, func(a, b pipeline.Sealed) int { return strings.Compare(a.Key, b.Key) })
	slices.Sort(foreign)
	return ours, foreign, err
}

// amongOurs are the foreign objects in folders of our tables, where queries read them as ours.
func amongOurs(foreign []string, ours []pipeline.Sealed) []pipeline.Difference {
	tables := map[string]bool{}
	for _, o := range ours {
		tables[o.Meta.Table] = true
	}
	var out []pipeline.Difference
	for _, key := range foreign {
		table, _, inFolder := strings.Cut(key, "/")
		if name := path.Base(key); inFolder && tables[table] && !strings.HasPrefix(name, "_") && !strings.HasPrefix(name, ".") {
			out = append(out, pipeline.Difference{Object: key, Problem: "no part of ours is in it, and queries read it with the others of its table"})
		}
	}
	return out
}

func (r *verified) print(w io.Writer, output string) error {
	switch output {
	case "json":
		return writeDocument(w, r)
	case "csv":
		rows := [][]string{{"object", "window", "problem"}}
		for _, d := range r.Differences {
			rows = append(rows, []string{d.Object, d.Window, d.Problem})
		}
		return csv.NewWriter(w).WriteAll(rows)
	}
	table(w, nil, [][]string{
		{"Lake objects", count(r.Objects)},
		{"  rows in them", count(int(r.Rows))},
		{"  parts in them", count(r.Parts)},
		{"Windows that the ledger holds", count(r.Held)},
		{"Windows folded, with parts in the lake", count(r.Folded)},
		{"Differences", count(len(r.Differences))},
	})
	if len(r.Differences) == 0 {
		return nil
	}
	var rows [][]string
	for _, d := range r.Differences {
		rows = append(rows, []string{d.Object, d.Window, d.Problem})
	}
	fmt.Fprintln(w)
	table(w, []string{"object", "window", "problem"}, rows)
	return nil
}
