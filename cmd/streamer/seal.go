package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/seal"
)

func newSeal() *cobra.Command {
	s := newSettings()
	var level, output string
	var watch bool
	c := &cobra.Command{
		Use:   "seal",
		Short: "Seal what Firehose has delivered, once",
		Long: `Look at every object in staging, publish each part of it in the lake once, and
remove the object. Any number of these may run at the same time, beside a run. With
--watch it does so at intervals until it is stopped.

A window that is not in the lake within --unsealed-within is landed again from its
stream, up to three times, each after twice the wait; what never comes in 25 hours
is given up, with a gap. Once an hour what is stored of windows and gaps is written
to the lake tables windows and gaps.`,
		Example: `  streamer seal --staging s3://my-staging/delivered/ --lake s3://my-lake/
  streamer seal --watch --seal-every 30s`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := newLog(c.ErrOrStderr(), level)
			if err != nil {
				return err
			}
			if err := s.load(c); err != nil {
				return err
			}
			if c.Flags().Changed("seal-every") && !watch {
				return usagef("--seal-every is for --watch")
			}
			rep, err := sealOnce(c.Context(), s, watch, log)
			if err == nil || rep.Objects > 0 {
				err = errors.Join(err, printSealed(c, rep, output))
			}
			return explain(err)
		},
	}
	s.use(c, "checkpoint-table", "staging", "damaged", "lake", "seal-every", "unsealed-within")
	c.Flags().BoolVar(&watch, "watch", false, "go on until stopped, every --seal-every")
	outputFlag(c.Flags(), &output, "table", "json")
	c.Flags().StringVar(&level, "log-level", "warn", "debug, info, warn or error")
	return c
}

// sealOnce looks at staging once or, to watch it, until ctx ends.
func sealOnce(ctx context.Context, s *settings, watch bool, log *slog.Logger) (seal.Report, error) {
	p, err := s.buckets()
	if err != nil {
		return seal.Report{}, err
	}
	c, err := connect(ctx)
	if err != nil {
		return seal.Report{}, err
	}
	sealer := newStagingSealer(c, p, s.unsealedWithin(0), log)
	if watch {
		return sealer.watch(ctx, s.SealEvery)
	}
	return sealer.sweep(ctx)
}

// foldEvery is how often watching looks at lanes of which nothing lay in staging.
const foldEvery = 15 * time.Minute

// watch sweeps staging at intervals until ctx ends, which is no error. What only a person can put
// right of one lane does not stop the others; what AWS refuses would be met again and ends it.
func (s *stagingSealer) watch(ctx context.Context, every time.Duration) (seal.Report, error) {
	var total seal.Report
	var folded time.Time
	for {
		sweep := s.sweep
		if time.Since(folded) < foldEvery {
			sweep = s.sweepStaged
		} else {
			folded = time.Now()
		}
		rep, err := sweep(ctx)
		// What stays is met by every sweep: the last one tells.
		total.Kept, total.Waiting = nil, 0
		total.Add(rep)
		if err = explain(err); err != nil && ctx.Err() == nil {
			_, ours := errors.AsType[*pipeline.PersonError](err)
			if needsPerson(err) && !ours {
				return total, err
			}
			s.log.Error("sealing goes on at the next sweep", "error", err, "person", ours)
		}
		if pipeline.Wait(ctx, every) != nil {
			return total, nil
		}
	}
}

// sealedDocument is a report as programs read it.
func sealedDocument(r seal.Report) map[string]any {
	return map[string]any{
		"staging_objects": r.Objects, "removed": r.Removed, "parts": r.Parts, "published": r.Published,
		"duplicates": r.Duplicates, "void": r.Void, "waiting": r.Waiting, "sealed_objects": r.Created,
		"rows": r.Rows, "damaged": r.Damaged, "kept": r.Kept,
	}
}

func printSealed(c *cobra.Command, r seal.Report, output string) error {
	if output == "json" {
		return writeDocument(c.OutOrStdout(), sealedDocument(r))
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
