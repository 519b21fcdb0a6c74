package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/seal"
)

func newSeal() *cobra.Command {
	s := newSettings()
	var level string
	var output string
	c := &cobra.Command{
		Use:   "seal",
		Short: "Seal what Firehose has delivered, once",
		Long: `Look at every object in staging, publish each part of it in the lake once, and
remove the object. Any number of these may run at the same time, beside a run.`,
		Example: `  streamer seal --staging s3://my-staging/delivered/ --lake s3://my-lake/`,
		Args:    noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := newLog(c.ErrOrStderr(), level)
			if err != nil {
				return err
			}
			if err := s.load(c); err != nil {
				return err
			}
			rep, err := sealOnce(c.Context(), s, log)
			if err == nil || rep.Objects > 0 {
				err = errors.Join(err, printSealed(c, rep, output))
			}
			return explain(err)
		},
	}
	s.use(c, "checkpoint-table", "staging", "damaged", "lake")
	outputFlag(c.Flags(), &output, "table", "json")
	c.Flags().StringVar(&level, "log-level", "warn", "debug, info, warn or error")
	return c
}

func sealOnce(ctx context.Context, s *settings, log *slog.Logger) (seal.Report, error) {
	var none seal.Report
	p, err := s.buckets()
	if err != nil {
		return none, err
	}
	c, err := connect(ctx)
	if err != nil {
		return none, err
	}
	rep, err := newSealer(checkpoint.New(c.dynamodb, p.Checkpoint, checkpoint.Options{}), openBuckets(c, p), log).Sweep(ctx)
	if err == nil && rep.Kept[seal.Mismatch] > 0 {
		err = pipeline.NeedPerson(fmt.Errorf("%d parts differ from what their windows' manifests say; they stay in %s and their lanes are halted", rep.Kept[seal.Mismatch], p.Staging),
			"find out who wrote them; see the log above")
	}
	return rep, err
}

func printSealed(c *cobra.Command, r seal.Report, output string) error {
	if output == "json" {
		return writeDocument(c.OutOrStdout(), map[string]any{
			"staging_objects": r.Objects, "removed": r.Removed, "parts": r.Parts, "published": r.Published,
			"duplicates": r.Duplicates, "void": r.Void, "waiting": r.Waiting, "sealed_objects": r.Created,
			"rows": r.Rows, "damaged": r.Damaged, "kept": r.Kept,
		})
	}
	rows := [][]string{
		{"Staging objects read", count(r.Objects)},
		{"  removed", count(r.Removed)},
		{"Parts in them", count(r.Parts)},
		{"  published", count(r.Published)},
		{"  duplicates dropped", count(r.Duplicates)},
		{"  waiting for another copy", count(r.Waiting)},
		{"Lake objects made", count(r.Created)},
		{"  rows in them", count(r.Rows)},
		{"Damage put aside", count(r.Damaged)},
	}
	for _, k := range slices.Sorted(maps.Keys(r.Kept)) {
		rows = append(rows, []string{"Left in staging: " + string(k), count(r.Kept[k])})
	}
	table(c.OutOrStdout(), nil, rows)
	return nil
}
