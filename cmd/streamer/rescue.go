package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"telemetrylake/pipeline/seal"
)

func newRescue() *cobra.Command {
	var o rescueOptions
	var output string
	c := &cobra.Command{
		Use:   "rescue PREFIX",
		Short: "Find Parquet files that were joined into one object, and write them apart",
		Long: `Firehose joins the records that it delivers. If these are Parquet files, a reader
fails on the object, or shows the rows of one of the files and hides all others
without an error. Look at every object below a prefix of a bucket, or a folder, of
whatever schema: count the rows that a reader shows and those that it hides, and with
--to write each good file as an object of its own, below the same folders. Every
value of a file is read before it is written. Nothing below PREFIX is changed, and
nothing that exists is replaced: the same command goes on where it was interrupted.`,
		Example: `  streamer rescue s3://my-bucket/events/
  streamer rescue s3://my-bucket/events/ --to s3://my-bucket/events-good/`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("%s takes one prefix, s3://bucket/prefix/ or a folder; see %s --help", c.CommandPath(), c.CommandPath())
			}
			o.from = args[0]
			if !strings.HasPrefix(o.from, "s3://") {
				if _, err := os.Stat(o.from); errors.Is(err, fs.ErrNotExist) {
					return usagef("%s: there is no such folder", o.from)
				}
			}
			rep, err := o.run(c.Context())
			if err == nil || rep.Objects > 0 {
				if failed := rep.print(c.OutOrStdout(), output); err == nil {
					err = failed
				}
			}
			return explain(err)
		},
	}
	c.Flags().StringVar(&o.to, "to", "", "where good files go: s3://bucket/prefix/ or a folder (default: nothing is written)")
	c.Flags().BoolVar(&o.onlyJoined, "only-joined", false, "do not write objects that are one whole file already")
	c.Flags().BoolVar(&o.dropRepeats, "drop-repeats", false, "of files of one object that are the same byte for byte, write one: whoever sent it sent it twice")
	c.Flags().BoolVar(&o.unverified, "unverified", false, "write also files whose pages are whole and cannot be decoded here, such as those of a rare codec")
	outputFlag(c.Flags(), &output, "table", "json")
	return c
}

type rescueOptions struct {
	from, to                            string
	onlyJoined, dropRepeats, unverified bool
}

// A rescueReport sums what was found. Objects that are one whole file are only counted.
type rescueReport struct {
	Objects      int            `json:"objects"`
	Whole        int            `json:"whole"`  // one Parquet file and nothing else
	Joined       int            `json:"joined"` // several files
	Torn         int            `json:"torn"`   // remains of Parquet files, and none that is whole
	Other        int            `json:"other"`  // no Parquet file
	Files        int            `json:"files"`
	Repeats      int            `json:"repeats"`
	Rows         int64          `json:"rows"`
	Seen         int64          `json:"rows_seen"`
	Hidden       int64          `json:"rows_hidden"`
	Unread       int            `json:"unread"`  // files whose pages are whole and cannot be decoded
	Damaged      int            `json:"damaged"` // other runs of bytes in objects of Parquet files
	DamagedBytes int64          `json:"damaged_bytes"`
	Written      int            `json:"written"`
	Present      int            `json:"present"`
	Found        []seal.Rescued `json:"found"`
}

func (o rescueOptions) run(ctx context.Context) (rescueReport, error) {
	rep := rescueReport{Found: []seal.Rescued{}}
	if (o.onlyJoined || o.dropRepeats || o.unverified) && o.to == "" {
		return rep, usagef("--only-joined, --drop-repeats and --unverified say what is written; set --to")
	}
	if same, err := o.overlap(); err != nil || same {
		if err == nil {
			err = usagef("--to %s and %s overlap; write to a place of its own", o.to, o.from)
		}
		return rep, err
	}
	r := &seal.Rescuer{OnlyJoined: o.onlyJoined, DropRepeats: o.dropRepeats, Unverified: o.unverified}
	var err error
	if r.From, err = openStore(ctx, o.from); err != nil {
		return rep, err
	}
	if o.to != "" {
		if r.To, err = openStore(ctx, o.to); err != nil {
			return rep, err
		}
	}
	err = r.Run(ctx, func(x seal.Rescued) error { rep.add(x); return nil })
	return rep, err
}

// overlap reports whether what is written would be among what is read.
func (o rescueOptions) overlap() (bool, error) {
	if o.to == "" || strings.HasPrefix(o.from, "s3://") != strings.HasPrefix(o.to, "s3://") {
		return false, nil
	}
	if !strings.HasPrefix(o.to, "s3://") {
		from, err := filepath.Abs(o.from)
		if err != nil {
			return false, err
		}
		to, err := filepath.Abs(o.to)
		if err != nil {
			return false, err
		}
		a, b := from+string(filepath.Separator), to+string(filepath.Separator)
		return strings.HasPrefix(a, b) || strings.HasPrefix(b, a), nil
	}
	from, err := prefixOf(o.from)
	if err != nil {
		return false, err
	}
	to, err := prefixOf(o.to)
	return overlap(from, to), err
}

func (r *rescueReport) add(x seal.Rescued) {
	r.Objects++
	if x.Foreign {
		r.Other++
		return
	}
	r.Files += x.Files
	r.Repeats += x.Repeats
	r.Rows += x.Rows
	r.Seen += x.Seen
	r.Hidden += x.Hidden
	r.Written += len(x.Written)
	r.Present += len(x.Present)
	unread := 0
	for _, d := range x.Damage {
		if d.Kind == seal.KindUnread {
			unread++
			continue
		}
		r.Damaged++
		r.DamagedBytes += d.Bytes
	}
	r.Unread += unread
	if x.Whole() {
		r.Whole++
		return
	}
	switch {
	case x.Files+unread > 1:
		r.Joined++
	case x.Files+unread == 0:
		r.Torn++
	}
	r.Found = append(r.Found, x)
}

func (r *rescueReport) print(w io.Writer, output string) error {
	if output == "json" {
		return writeDocument(w, r)
	}
	table(w, nil, [][]string{
		{"Objects read", count(r.Objects)},
		{"  one whole Parquet file", count(r.Whole)},
		{"  several joined", count(r.Joined)},
		{"  cut off or damaged, without a whole file", count(r.Torn)},
		{"  no Parquet file", count(r.Other)},
		{"Parquet files in them, read to their end", count(r.Files)},
		{"  the same as one before, in one object", count(r.Repeats)},
		{"Rows", count(int(r.Rows))},
		{"  that a reader of the objects shows", count(int(r.Seen))},
		{"  that it hides", count(int(r.Hidden))},
		{"Files that cannot be decoded", count(r.Unread)},
		{"Runs of bytes that are no whole file", count(r.Damaged)},
		{"  bytes", count(int(r.DamagedBytes))},
		{"Files written", count(r.Written)},
		{"  there already", count(r.Present)},
	})
	if len(r.Found) == 0 {
		return nil
	}
	var rows [][]string
	for _, x := range r.Found {
		reader := "shows rows of one file"
		if x.Problem != "" {
			reader = "fails: " + short(x.Problem)
		}
		rows = append(rows, []string{x.Key, count(x.Files), count(int(x.Rows)), count(int(x.Hidden)), count(len(x.Damage)), reader})
	}
	fmt.Fprintln(w)
	limited(w, []string{"object", "files", "rows", "hidden", "damage", "a reader"}, rows)
	return nil
}
