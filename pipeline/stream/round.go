package stream

import (
	"context"
	"fmt"
	"time"

	"telemetrylake/pipeline"
)

// A State says how far a shard has been read.
type State int

// States of a shard.
const (
	Waiting  State = iota // not read yet: its parent is not committed to the end
	Reading               // its last page had records, or it has none yet
	Tip                   // its last page was empty. The service may give an empty page though more lies ahead
	Closing               // nothing follows, says its last page; no listing has confirmed that it is closed
	Drained               // closed and emitted to its end, not committed
	Finished              // closed and committed to its end
)

// String returns the state as a lower-case word.
func (s State) String() string {
	return [...]string{"waiting", "reading", "tip", "closing", "drained", "finished"}[s]
}

// A Wait says why a shard is not read at the moment.
type Wait string

// What shards wait for.
const (
	NoWait        Wait = ""
	WaitOwner     Wait = "not owned" // its checkpoint could not be made yet
	WaitParent    Wait = "parent"    // its parent is not committed to the end
	WaitThrottled Wait = "throttled" // the service asked for fewer calls
	WaitBackoff   Wait = "backoff"   // it failed otherwise
	WaitBudget    Wait = "budget"    // other shards had longer to wait for one of the calls that a second has
	WaitPoll      Wait = "poll"      // its last page was not full
	WaitListing   Wait = "listing"   // its end is to be confirmed
	WaitCommit    Wait = "commit"    // it is emitted to its end, and not committed
)

// A ShardInfo is what a round knows of one shard.
type ShardInfo struct {
	ID      pipeline.ShardID
	Parent  pipeline.ShardID // "" for a root
	State   State
	Last    pipeline.SequenceNumber // last emitted or committed record; "" for none
	Created time.Time               // of the last record emitted since Reset; zero for none
	// TipAt is a time, of the server's clock, before which all that was created has been emitted;
	// zero if the tip was not reached since Reset.
	TipAt    time.Time
	ReadAt   time.Time // last page, by Options.Now; zero if none since Reset
	Wait     Wait
	Until    time.Time // when the wait ends, by Options.Now; zero if that is not known
	Failures int       // in a row
	Err      error     // the last of them; nil if there is none
}

// A RoundInfo is what a round saw.
type RoundInfo struct {
	At         time.Time // the server's clock
	Records    int       // emitted
	Skipped    int       // created before the start mark, and therefore not emitted
	Gaps       int       // emitted
	Pages      int       // read, with the empty ones
	EmptyPages int
	Listed     bool        // a complete listing was made
	Disabled   bool        // the stream takes no more records
	Shards     []ShardInfo // by id; also those that are not owned yet
	// Failed holds what could not be read and may be readable later, for instance because of
	// throttling; nil if all went well. The next round tries again.
	Failed error
	// Ended reports that the stream is disabled and every shard emitted to its end.
	Ended bool

	trouble   troubles
	searching bool // children of an ended shard were not looked for yet
}

// Count returns how many shards are in state s.
func (i *RoundInfo) Count(s State) int {
	n := 0
	for _, sh := range i.Shards {
		if sh.State == s {
			n++
		}
	}
	return n
}

// CaughtUp reports whether another round would find nothing unless something is written or
// committed in between: no page of this round had records, no shard waits for its parent to
// be committed, and the children of each ended shard have been looked for.
func (i *RoundInfo) CaughtUp() bool {
	return len(i.Shards) > 0 && i.Failed == nil && !i.searching &&
		i.Count(Waiting) == 0 && i.Count(Reading) == 0 && i.Count(Closing) == 0
}

// Round lists the shards if that is due and reads one page of every shard that can be read, one
// after the other, by shard id. It emits each page that has records, and a shard's last page with
// End set even if it has none. What it emitted is not read again until Reset. Round waits for
// nothing: a process that reads for long polls.
//
// Records that the stream no longer holds are emitted as Missing, and reading goes on behind
// them. Throttling and the service's own failures do not end a round: they are in
// RoundInfo.Failed. An error is emit's, the Shards', or needs a cause removed.
func (r *Reader) Round(ctx context.Context, emit func(pipeline.Batch) error) (RoundInfo, error) {
	return r.round(ctx, emit, false)
}

// round reads only what is due, within the budget and several shards at a time, if patient is set.
func (r *Reader) round(ctx context.Context, emit func(pipeline.Batch) error, patient bool) (RoundInfo, error) {
	info := RoundInfo{}
	err := r.refresh(ctx, patient, &info)
	if err != nil {
		return info, err
	}
	if err := r.settle(emit, &info); err != nil {
		return info, err
	}
	readable, err := r.readable(ctx, patient, &info)
	if err != nil {
		return info, err
	}
	parallel := 1
	if patient {
		readable, parallel = r.affordable(readable), r.o.Parallel
	}
	err = r.pages(ctx, readable, parallel, func(s *shard, p page) error { return r.deliver(ctx, s, p, emit, &info) })
	if err != nil {
		return info, err
	}
	r.summarise(&info)
	return info, nil
}

// readable returns the shards to read now.
func (r *Reader) readable(ctx context.Context, patient bool, info *RoundInfo) ([]*shard, error) {
	var ready []*shard
	now := r.o.Now()
	for _, s := range r.sorted() {
		if s.state == Drained && !r.hasChild(s.ID) && !(patient && !s.due(now)) {
			// Nobody waits for its end, and yet it has to be known.
			if err := r.committed(ctx, s); err != nil && !passes(ctx, err) {
				return nil, err
			}
			s.next = now.Add(r.o.Floor)
		}
		if s.state >= Closing || !s.owned || patient && !s.due(now) {
			continue
		}
		if s.state == Waiting {
			free, err := r.parentFinished(ctx, s)
			if passes(ctx, err) {
				r.putOff(s, err, info)
				continue
			}
			if err != nil {
				return nil, err
			}
			if !free {
				s.next = now.Add(r.o.Floor)
				continue
			}
			s.state = Reading
		}
		ready = append(ready, s)
	}
	return ready, nil
}

func (r *Reader) parentFinished(ctx context.Context, s *shard) (bool, error) {
	if s.Parent == "" {
		return true, nil
	}
	p := r.shards[s.Parent]
	if p == nil {
		return r.absentFinished(ctx, s)
	}
	if err := r.committed(ctx, p); err != nil {
		return false, fmt.Errorf("parent of shard %s: %w", s.ID, err)
	}
	if p.state != Finished {
		return false, nil
	}
	if s.after == "" {
		s.seen = later(s.seen, p.seen) // what a child holds was created after all that its parent showed
	}
	return true, nil
}

// committed finishes a shard that was emitted to its end, if that is committed.
func (r *Reader) committed(ctx context.Context, s *shard) error {
	if s.state != Drained {
		return nil
	}
	pos, _, err := r.o.Shards.Position(ctx, s.ID)
	if err != nil {
		return fmt.Errorf("look up position of shard %s: %w", s.ID, err)
	}
	if pos.End {
		s.state = Finished
	}
	return nil
}

// absentFinished is parentFinished for a parent that no listing names.
func (r *Reader) absentFinished(ctx context.Context, s *shard) (bool, error) {
	if pos, ok := r.known[s.Parent]; ok { // it was finished, or it would have been met
		if s.after == "" {
			s.seen = later(s.seen, seenBy(pos))
		}
		return true, nil
	}
	// A process met the shard and came to its end before it met the parent, which it knew of.
	if err := r.findParent(ctx, s); err != nil || s.Parent != "" {
		return false, err
	}
	if s.Orphan && s.after == "" && s.seen.IsZero() {
		s.lose(pipeline.GapVanished)
	}
	return true, nil
}

// deliver emits a page and moves the shard on.
func (r *Reader) deliver(ctx context.Context, s *shard, p page, emit func(pipeline.Batch) error, info *RoundInfo) error {
	if p.err != nil {
		return r.failed(ctx, s, p, emit, info)
	}
	info.Pages++
	if s.horizon && !s.lossless(p.at) {
		// Nothing was missing when the service said that the position is too old. It may have taken
		// so long to come to this page that something is.
		s.lose(pipeline.GapTrimmed)
	}
	tipAt, atTip := time.Time{}, false
	if p.count == 0 {
		info.EmptyPages++
		tipAt, atTip = s.tip.empty(p.at)
	}
	b := p.batch
	b.Records = b.Records[s.beforeMark(b.Records):]
	b.End = p.next == "" && r.closed(s)
	if b.End {
		tipAt, atTip = p.at, true
	}
	b.Missing = s.missingBefore(b.Records, tipAt, atTip)
	if len(b.Records) > 0 || b.End || b.Missing != nil {
		if err := emit(b); err != nil {
			return err
		}
	}
	s.delivered(p, b, r.o.Now())
	if atTip {
		s.tipAt = later(s.tipAt, tipAt)
	}
	if atTip && !b.End {
		s.seen = later(s.seen, tipAt)
	}
	info.Records += len(b.Records)
	info.Skipped += p.count - len(b.Records)
	if b.Missing != nil {
		info.Gaps++
		r.log.Error("records of a shard aged out before they were read", "shard", s.ID, "cause", b.Missing.Cause,
			"from", b.Missing.From, "to", b.Missing.To)
	}
	switch {
	case b.End:
		r.drained(s)
	case p.next == "":
		// A server that was started anew says the same of an iterator it does not know: the shard
		// is not given up before a listing says that it is closed.
		s.state, s.closing = Closing, r.listings
		s.children.wanted = true
	default:
		r.schedule(s, p)
	}
	return nil
}

// delivered notes what was emitted of a page.
func (s *shard) delivered(p page, b pipeline.Batch, now time.Time) {
	s.fail, s.suspect, s.full = failures{}, false, false
	s.readAt = now
	s.iterator = p.next
	s.state = Tip
	if p.count > 0 {
		last := p.batch.Records[p.count-1]
		s.after, s.state, s.horizon = last.Seq, Reading, false
		s.position = last.Created
		s.seen = later(s.seen, last.Created)
		s.tip.records()
	}
	if n := len(b.Records); n > 0 {
		s.created, s.mark = b.Records[n-1].Created, time.Time{}
	}
	if b.Missing != nil {
		s.missing = nil
	}
}

func (r *Reader) drained(s *shard) {
	s.state, s.iterator = Drained, ""
	s.children.wanted = !r.hasChild(s.ID)
	r.log.Info("shard read to its end", "shard", s.ID, "last", s.after)
}

// closed reports whether a shard is known to take no more records. Where listings say nothing of
// that, the last page is believed.
func (r *Reader) closed(s *shard) bool {
	return s.begins == "" || s.ends != "" || r.hasChild(s.ID)
}

func (r *Reader) hasChild(id pipeline.ShardID) bool {
	for _, s := range r.shards {
		if s.Parent == id {
			return true
		}
	}
	return false
}

// settle ends the shards that need no page for it: those that a listing now says are closed, and
// those that were closed before the start mark. One that is still open is read on.
func (r *Reader) settle(emit func(pipeline.Batch) error, info *RoundInfo) error {
	for _, s := range r.sorted() {
		over := s.state == Closing && r.closed(s) || s.skip && s.owned
		switch {
		case over:
			b := pipeline.Batch{Shard: s.ID, End: true}
			b.Missing = s.missingBefore(nil, r.serverNow().Truncate(time.Second), true)
			if err := emit(b); err != nil {
				return err
			}
			if b.Missing != nil {
				info.Gaps++
			}
			s.skip, s.missing = false, nil
			r.drained(s)
		case s.state != Closing:
		case r.listings > s.closing:
			r.log.Warn("a page said that the shard ended, and the listing that it is open: reading on", "shard", s.ID, "after", s.after)
			s.state, s.iterator = Reading, ""
			s.reopened++
			s.next = r.o.Now().Add(backoff(s.reopened, r.o.RetryBase, r.o.RetryCap))
		case s.children.asked:
			r.listed = time.Time{}
		}
	}
	return nil
}

func (r *Reader) summarise(info *RoundInfo) {
	now := r.o.Now()
	info.At, info.Disabled = r.serverNow(), r.disabled
	info.Shards = make([]ShardInfo, 0, len(r.shards))
	open := false
	for _, s := range r.sorted() {
		info.Shards = append(info.Shards, s.info(now))
		open = open || s.state < Drained
		info.searching = info.searching || s.children.wanted && !s.children.asked
	}
	info.Failed = info.trouble.join()
	info.Ended = r.disabled && !open && len(r.shards) > 0 && !r.listed.IsZero()
}

func (s *shard) info(now time.Time) ShardInfo {
	i := ShardInfo{
		ID: s.ID, Parent: s.Parent, State: s.state, Last: s.after, Created: s.created, TipAt: s.tipAt, ReadAt: s.readAt,
		Failures: s.fail.n, Err: s.fail.err,
	}
	switch {
	case s.state == Finished:
	case s.state == Drained:
		i.Wait = WaitCommit
	case s.state == Closing:
		i.Wait = WaitListing
	case !s.owned:
		i.Wait, i.Until = WaitOwner, s.fail.until
	case s.fail.n > 0 && throttled(s.fail.err):
		i.Wait, i.Until = WaitThrottled, s.fail.until
	case s.fail.n > 0:
		i.Wait, i.Until = WaitBackoff, s.fail.until
	case s.state == Waiting:
		i.Wait = WaitParent
	case s.next.After(now):
		i.Wait, i.Until = WaitPoll, s.next
	case s.starved:
		i.Wait = WaitBudget
	}
	return i
}
