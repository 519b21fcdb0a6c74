package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"telemetrylake/pipeline"
)

// surelyHeld is an age at which no record is gone, whatever the clocks of two servers.
const surelyHeld = 23 * time.Hour

// errUnnamed means that a shard is to be read from its first number, which no listing has told.
// Beginning with the oldest record would hide what has aged out.
var errUnnamed = errors.New("no listing names the shard that has to be read from its beginning")

// maxUnnamed is how many listings may leave a shard out before it is read without one, as a shard
// whose first records are gone.
const maxUnnamed = 5

// lossless reports whether nothing of s can have aged out before it was read: all that was
// created until less than a day ago has been. A shard of which nothing is known, at the first
// discovery, begins where the stream does; a position without a time may be any age.
func (s *shard) lossless(now time.Time) bool {
	at := s.seen
	if at.IsZero() {
		at = s.met
	}
	if at.IsZero() {
		return s.after == ""
	}
	return now.Sub(at) < retention
}

// missingBefore completes what is known to be missing once it is known up to where: the first
// record, or the tip. nil if nothing is missing, or that is not known yet.
func (s *shard) missingBefore(records []pipeline.Record, tipAt time.Time, atTip bool) *pipeline.Missing {
	if s.missing == nil || len(records) == 0 && !atTip {
		return nil
	}
	m := *s.missing
	if m.To = tipAt; len(records) > 0 {
		m.To = records[0].Created
	}
	return &m
}

// beforeMark returns how many of the first records were created before the start mark. Those
// behind the first that was not are kept, whatever they say: a range has no holes.
func (s *shard) beforeMark(records []pipeline.Record) int {
	n := 0
	for n < len(records) && records[n].Created.Before(s.mark) {
		n++
	}
	return n
}

// failed sorts an error of reading s: one that may pass is noted, one that the reader can go
// around is gone around, one that needs a cause removed is returned.
func (r *Reader) failed(ctx context.Context, s *shard, p page, emit func(pipeline.Batch) error, info *RoundInfo) error {
	switch {
	case errors.Is(p.err, errUnnamed):
		if s.unnamed++; s.unnamed > maxUnnamed {
			r.trimmed(s, p, info)
			return nil
		}
		r.listed = time.Time{}
		r.putOff(s, p.err, info)
	case trimmed(p.err):
		r.trimmed(s, p, info)
	case notFound(p.err):
		return r.gone(s, p, emit, info)
	case expired(p.err) || passes(ctx, p.err):
		if !throttled(p.err) {
			// It may be the iterator that the service cannot serve: some fail with a fault of their own
			// for one that they no longer know.
			s.iterator = ""
		}
		r.putOff(s, p.err, info)
	case invalid(p.err) && s.after == "" && s.begins != "" && !s.horizon:
		r.trimmed(s, p, info) // the shard's first number was asked for, and is no longer understood
	case invalid(p.err) && s.after != "":
		return pipeline.NeedPerson(fmt.Errorf("the service does not take position %s for one of shard %s: %w", s.after, s.ID, p.err),
			"the checkpoint is of another stream or was damaged: restore it, or rebuild the lane's positions from the lake")
	default:
		return p.err
	}
	return nil
}

// putOff notes a failure that may pass.
func (r *Reader) putOff(s *shard, err error, info *RoundInfo) {
	s.fail.again(r.o.Now(), r.o.RetryBase, r.o.RetryCap)
	s.fail.err, s.full = err, false
	info.trouble.add(err)
	r.log.Info("shard not read, trying again", "shard", s.ID, "failures", s.fail.n, "cause", err)
}

// trimmed goes on from the oldest record that a shard still has. If its position is old, and it
// was read to its tip less than a day ago, nothing came in between; then it is no gap. A fresh
// stream of DynamoDB Local calls its own beginning trimmed.
func (r *Reader) trimmed(s *shard, p page, info *RoundInfo) {
	if s.horizon {
		r.putOff(s, p.err, info) // the horizon itself moves on, but not away from every question
		return
	}
	s.horizon, s.iterator, s.state = true, "", Reading
	// A position that the service must still hold contradicts what it promises: its word counts.
	contradicted := s.after != "" && !s.position.IsZero() && p.at.Sub(s.position) < surelyHeld
	if s.lossless(p.at) && !contradicted {
		r.log.Info("reading on from the oldest record: all before it has been read", "shard", s.ID, "after", s.after, "until", s.seen)
		return
	}
	s.lose(pipeline.GapTrimmed)
}

// lose notes that records of s are missing behind what was seen of it.
func (s *shard) lose(cause pipeline.GapCause) {
	if s.missing == nil {
		s.missing = &pipeline.Missing{Cause: cause, From: s.seen}
	}
}

// gone ends a shard that the service no longer has. One answer is not believed: a complete
// listing that was made after it must agree, and the shard be asked for once more.
func (r *Reader) gone(s *shard, p page, emit func(pipeline.Batch) error, info *RoundInfo) error {
	if !s.suspect || r.listings <= s.suspected || s.named {
		if !s.suspect || r.listings > s.suspected {
			s.suspect, s.suspected = true, r.listings
			r.listed = time.Time{}
		}
		s.iterator = ""
		r.putOff(s, p.err, info)
		return nil
	}
	s.lose(pipeline.GapVanished)
	m := *s.missing
	m.Cause = pipeline.GapVanished
	// What it held was a day old, or it would be there. A server that forgets sooner may have
	// forgotten anything.
	m.To = p.at.Add(-retention)
	if !m.To.After(later(m.From, s.position)) {
		m.To = p.at
	}
	r.log.Error("shard is gone from the stream before it was read to its end", "shard", s.ID, "after", s.after, "from", m.From, "to", m.To)
	if err := emit(pipeline.Batch{Shard: s.ID, Missing: &m, End: true}); err != nil {
		return err
	}
	info.Gaps++
	// Its children hold what was created since it was seen last: seen stays where it is.
	s.missing, s.fail, s.full = nil, failures{}, false
	r.drained(s)
	return nil
}
