package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
)

// A startCheck finds out, before the first record is read, whether the checkpoint table knows less
// than the lake: it was emptied or restored, and reading on would double rows.
type startCheck struct {
	footprints
	store  *checkpoint.Store
	stream string
	lane   pipeline.LaneID // of a run; "" where each shard is a lane
	chosen bool            // the stream was named, not looked up
	now    time.Time
	way    checkpoint.Way // in which the lanes land
	// finish commits the pending windows of Lambda's lanes of a stream that is to be left.
	finish func(ctx context.Context, stream string) error
}

// checkStart is the check of a run.
func checkStart(store *checkpoint.Store, c clients, p places) *startCheck {
	at := openBuckets(c, p)
	return &startCheck{
		footprints: footprints{contract: p.Contract, lake: at.lake, staging: at.staging},
		store:      store, stream: p.StreamARN, lane: laneOf(p.Contract), chosen: p.Chosen != "", now: time.Now(), way: p.way(),
	}
}

// startObjects bounds the objects that are looked at, in the lake and in staging each: the newest,
// since what a restored table does not know is what was made last.
const startObjects = 100

// startDays is how many of a table's last days the newest lake objects are looked for in, and of
// those that have not come yet, by a device's clock, as many again. Of a stream whose positions are
// not known all are.
const startDays = 3

func (s *startCheck) run(ctx context.Context) error {
	if err := s.store.LandIn(ctx, s.lake.String(), s.way); err != nil {
		return err
	}
	side, sided, err := s.store.StreamSide(ctx, s.stream)
	if err != nil {
		return err
	}
	if side == checkpoint.Rebuilding {
		return pipeline.NeedPerson(fmt.Errorf("the positions of stream %s are being written anew", s.stream),
			"let that end, or start it again: streamer lanes rebuild --apply")
	}
	if err := s.sameStream(ctx); err != nil {
		return err
	}
	fresh := !sided
	if sided && s.lane != "" {
		if fresh, err = s.bare(ctx); err != nil {
			return err
		}
	}
	found, err := s.look(ctx, fresh)
	if err != nil {
		return err
	}
	// What is stored now is later than what was found: another process may be working.
	if fresh && len(found) > 0 {
		if _, sided, err = s.store.StreamSide(ctx, s.stream); err != nil {
			return err
		}
		bare := !sided
		if sided && s.lane != "" {
			if bare, err = s.bare(ctx); err != nil {
				return err
			}
		}
		if bare {
			return pipeline.NeedPerson(fmt.Errorf("the checkpoint table has no positions of stream %s, and the lake has rows of it: read again, they would be there twice", s.stream),
				"restore the checkpoint table, or take the positions from the lake: streamer lanes rebuild --contract "+s.contract.Name)
		}
	}
	for life, n := range found {
		st, err := s.store.Lane(ctx, life.lane)
		if err != nil {
			return err
		}
		if st.Exists && st.Hold.Incarnation == life.incarnation && n >= st.Next && n != st.Pending {
			return pipeline.NeedPerson(fmt.Errorf("the checkpoint table says that the next window of lane %s is %d, and window %d of it is landed: it was restored", life.lane, st.Next, n),
				"take the positions from the lake: streamer lanes rebuild --contract "+s.contract.Name)
		}
	}
	return nil
}

// bare reports whether a lane has committed windows, and the stream no shard.
func (s *startCheck) bare(ctx context.Context) (bool, error) {
	st, err := s.store.Lane(ctx, s.lane)
	if err != nil || st.Next <= 1 || st.Stream != "" && st.Stream != s.stream {
		return false, err
	}
	shards, _, err := s.store.StreamStatus(ctx, s.stream)
	return len(shards) == 0, err
}

// sameStream refuses a stream that the lane, or Lambda, did not read before, unless somebody named it.
func (s *startCheck) sameStream(ctx context.Context) error {
	was, noted, err := s.before(ctx)
	switch {
	case err != nil:
		return err
	case was == s.stream && noted:
		return nil
	case was == s.stream, was == "":
		return s.readBy(ctx)
	case !s.chosen && s.lane == "":
		return pipeline.NeedPerson(fmt.Errorf("functions read stream %s of contract %s before, and the table's stream is %s: it was disabled and enabled again, or the table is another", was, s.contract.Name, s.stream),
			fmt.Sprintf("first let the mapping and the schedule deliver what the old one still holds, for 24 hours after it was disabled, with the function's variable %s=%s; then go on with a mapping of the new one, and %s=%s. What was written while no stream was enabled becomes a gap", envName("stream"), was, envName("stream"), s.stream))
	case !s.chosen:
		return pipeline.NeedPerson(fmt.Errorf("lane %s read stream %s before, and the table's stream is %s: it was disabled and enabled again, or the table is another", s.lane, was, s.stream),
			fmt.Sprintf("first read what the old one still holds, for 24 hours after it was disabled: streamer run --until-drained --stream %s; then go on with: streamer run --stream %s. What was written while no stream was enabled becomes a gap", was, s.stream))
	case tableOf(was) == tableOf(s.stream) && s.stream < was: // they end in the time they were enabled
		return s.readBy(ctx) // back to what an earlier one still holds
	}
	f := checkpoint.Following{Lane: s.lane, From: was, To: s.stream, At: enabledAt(s.stream)}
	if s.lane == "" {
		f.Contract = s.contract.Name
		if err := s.finish(ctx, was); err != nil {
			return fmt.Errorf("finish the windows of stream %s: %w", was, err)
		}
	}
	return s.store.Follow(ctx, f)
}

// before is the stream that was read before, "" if none was, and whether it is written down as such.
func (s *startCheck) before(ctx context.Context) (stream string, noted bool, err error) {
	if s.lane == "" {
		return s.store.LambdaReads(ctx, s.contract.Name, tableOf(s.stream))
	}
	st, err := s.store.Lane(ctx, s.lane)
	return st.Stream, true, err
}

// readBy notes that Lambda reads the stream. A lane says so itself, with its first window.
func (s *startCheck) readBy(ctx context.Context) error {
	if s.lane != "" {
		return nil
	}
	return s.store.ReadByLambda(ctx, s.contract.Name, s.stream)
}

// enabledAt is when a stream was enabled, which its label says; zero if it does not.
func enabledAt(stream string) time.Time {
	label := stream[min(len(tableOf(stream))+len("/stream/"), len(stream)):]
	at, err := time.Parse("2006-01-02T15:04:05.999", label)
	if err != nil {
		return time.Time{}
	}
	return at.UTC()
}

// A laneLife is one incarnation of a lane.
type laneLife struct {
	lane        pipeline.LaneID
	incarnation string
}

// look finds the highest window of each lane and incarnation that took records of the stream.
func (s *startCheck) look(ctx context.Context, fresh bool) (map[laneLife]int64, error) {
	found := map[laneLife]int64{}
	see := func(w pipeline.WindowID, stream string) {
		if stream == s.stream {
			life := laneLife{w.Lane, w.Incarnation}
			found[life] = max(found[life], w.N)
		}
	}
	_, err := s.eachPart(ctx, startObjects, func(m *pipeline.PartMeta) error {
		see(m.Window, m.Stream)
		return nil
	})
	if err != nil {
		return nil, err
	}
	prefixes := s.tables()
	if !fresh {
		if prefixes, err = s.lastDays(ctx); err != nil {
			return nil, err
		}
	}
	_, err = s.eachObject(ctx, prefixes, startObjects, func(_ string, m *pipeline.ObjectMeta) error {
		for _, w := range m.Windows {
			see(w.Window, w.Stream)
		}
		return nil
	})
	return found, err
}

// lastDays are the prefixes of the tables' last days.
func (s *startCheck) lastDays(ctx context.Context) ([]string, error) {
	var prefixes []string
	tomorrow := "dt=" + s.now.UTC().AddDate(0, 0, 1).Format(time.DateOnly) + "/"
	for _, t := range s.tables() {
		days, err := s.footprints.lake.Folders(ctx, t)
		if err != nil {
			return nil, err
		}
		come, _ := slices.BinarySearch(days, tomorrow)
		for _, d := range slices.Concat(days[max(0, come-startDays):come], days[max(come, len(days)-startDays):]) {
			prefixes = append(prefixes, t+d)
		}
	}
	return prefixes, nil
}
