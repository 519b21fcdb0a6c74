package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/lake"
	"telemetrylake/pipeline/observe"
	"telemetrylake/pipeline/seal"
)

// Ways to land, as --land spells them. The last is followed by the folder.
const (
	landFirehose = "firehose"
	landS3       = "s3"
	landDir      = "dir:"
)

// objectBytes is the size that parts aim for where they are lake objects at once, and nothing joins
// them; objectBytesMost is what they never exceed.
const (
	objectBytes     = 64 << 20
	objectBytesMost = 128 << 20
)

// checkLand says what is wrong with --land; "" if nothing is.
func checkLand(land string) string {
	if land == landFirehose || land == landS3 || strings.HasPrefix(land, landDir) && land != landDir {
		return ""
	}
	return fmt.Sprintf("%q is none of %s, %s and %sFOLDER", land, landFirehose, landS3, landDir)
}

// destinations is where records go: as --land says.
func (s *settings) destinations() (places, error) {
	p := places{Checkpoint: s.Checkpoint}
	switch {
	case s.Land == landFirehose:
		return s.buckets()
	case s.Land == landS3:
		if s.Lake == "" {
			return p, usagef("--lake is not set; set it to s3://bucket/prefix/")
		}
		var err error
		p.Objects = true
		p.Lake, err = parseLocation("lake", s.Lake)
		return p, err
	}
	folder, err := filepath.Abs(strings.TrimPrefix(s.Land, landDir))
	if err != nil {
		return p, usagef("use --land %s: %w", s.Land, err)
	}
	// One that is named as strongly is no leftover of another way to land.
	if s.Lake != "" && s.strength("lake") >= s.strength("land") {
		return p, usagef("--land %s and --lake %s name two lakes; unset one of them", s.Land, s.Lake)
	}
	p.Objects, p.Folder = true, folder
	return p, nil
}

// strength is how strongly a setting was made: a flag overrules the environment, and that a file.
func (s *settings) strength(name string) int {
	switch s.origins[name] {
	case "default":
		return 0
	case "environment":
		return 2
	case "flag":
		return 3
	}
	return 1
}

// staged is places where only Firehose lands.
func (s *settings) staged(what string) (places, error) {
	p, err := s.places()
	if err == nil && p.Objects {
		err = usagef("%s lands through Firehose; unset --land %s, and name a lake in which nothing else lands", what, s.Land)
	}
	return p, err
}

// way is how parts come into the lake.
func (p places) way() checkpoint.Way {
	if p.Objects {
		return checkpoint.AtOnce
	}
	return checkpoint.ThroughStaging
}

// A lakeStore holds the objects of a lake: a bucket or a folder.
type lakeStore interface {
	seal.Store
	lake.Creator
	Newest(ctx context.Context, prefixes []string, most int) ([]pipeline.Object, error)
	Folders(ctx context.Context, prefix string) ([]string, error)
	Tail(ctx context.Context, o pipeline.Object, n int64) ([]byte, error)
}

var (
	_ lakeStore = (*lake.Bucket)(nil)
	_ lakeStore = (*lake.Folder)(nil)
)

// A landing is a sink with what a start asks of it.
type landing interface {
	pipeline.Sink
	Check(ctx context.Context, probe lake.Probe) error
	// Interval is how long what was landed may take until it can be sealed; 0 if that is not known.
	Interval() time.Duration
}

// objects is a sink whose parts are in the lake when they are landed: there is nothing to probe or
// to wait for.
type objects struct{ *lake.Objects }

func (o objects) Check(ctx context.Context, _ lake.Probe) error { return o.Objects.Check(ctx) }

func (objects) Interval() time.Duration { return 0 }

// newLanding is the sink of a stream lane, and what its lane must know of it.
func newLanding(c clients, p places, at buckets, store *checkpoint.Store, log *slog.Logger) (landing, pipeline.LaneOptions) {
	if !p.Objects {
		return newFirehose(c, p, at, log), pipeline.LaneOptions{}
	}
	return objects{lake.NewObjects(at.lake, store, footerIn(at.lake), log)},
		pipeline.LaneOptions{Lake: at.lake.String(), Parts: pipeline.PartSize{Aim: objectBytes, Limit: objectBytesMost}}
}

// newFirehose is the sink of whoever lands through staging.
func newFirehose(c clients, p places, at buckets, log *slog.Logger) *lake.Firehose {
	f := lake.NewFirehose(c.firehose, p.Delivery, at.staging, log)
	f.Lake, _ = at.lake.(*lake.Bucket) // in a folder nothing is delivered
	return f
}

// watchDelivery has an observer know how a delivery stream is used.
func watchDelivery(l landing, w *observe.Observer) {
	f, ok := l.(*lake.Firehose)
	if !ok {
		return
	}
	w.Deliver(observe.Quota(f.Quota()))
	f.OnPut = func(p lake.Put) { w.Delivered(observe.Delivery(p)) }
}

// footerIn reads what an object of a lake says of itself.
func footerIn(at lakeStore) lake.Footer {
	return func(ctx context.Context, name string) (*pipeline.ObjectMeta, error) {
		// Its size is not known: as much as is asked for.
		m, _, err := readFooter(ctx, at, pipeline.Object{Key: name, Size: math.MaxInt64})
		return m, err
	}
}

// noStaging is the staging of a lane that has none.
type noStaging struct{}

func (noStaging) List(context.Context) iter.Seq2[pipeline.Object, error] {
	return func(func(pipeline.Object, error) bool) {}
}

func (noStaging) View(context.Context, pipeline.Object, func(*io.SectionReader) error) error {
	return pipeline.ErrNotFound
}

func (noStaging) CreateFrom(context.Context, string, *io.SectionReader) error {
	return errors.New("there is no staging")
}

func (noStaging) Remove(context.Context, pipeline.Object) error { return nil }

// settle looks after a window whose parts are lake objects at once, and reports whether no more is to
// be done with it. Their objects are the claims: what is there is published, also if whoever landed
// it did not come to say so, and when the time has come the names of the others are taken before
// they are given up. Another lake's windows are looked after there.
func (g giver) settle(ctx context.Context, w checkpoint.WindowStatus) (bool, error) {
	switch {
	case w.Lake == "":
		return false, nil
	case w.Lake != g.sealer.LakeName || w.State != pipeline.WindowCommitted:
		return true, nil
	}
	due := g.now().Sub(w.LandedAt) >= checkpoint.GiveUpAfter
	_, err := g.sealer.Settle(ctx, w.ID, due)
	return !due || err != nil, err
}
