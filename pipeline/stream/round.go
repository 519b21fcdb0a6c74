package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"

	"telemetrylake/pipeline"
)

// A State says how far a shard has been read.
type State int

// States of a shard.
const (
	Waiting  State = iota // not read yet: its parent is not committed to the end
	Reading               // its last page had records, or it has none yet
	Tip                   // its last page was empty. The service may give an empty page though more lies ahead
	Drained               // closed and emitted to its end, not committed
	Finished              // closed and committed to its end
)

// String returns the state as a lower-case word.
func (s State) String() string {
	return [...]string{"waiting", "reading", "tip", "drained", "finished"}[s]
}

// A ShardInfo is what a round knows of one shard.
type ShardInfo struct {
	ID      pipeline.ShardID
	State   State
	Last    pipeline.SequenceNumber // last emitted or committed record; "" for none
	Created time.Time               // of the last record emitted since Reset; zero for none
}

// A RoundInfo is what a round saw.
type RoundInfo struct {
	Records    int // emitted
	Pages      int // read, with the empty ones
	EmptyPages int
	Listed     bool        // a complete listing was made
	Shards     []ShardInfo // by id
	// Failed holds what could not be read and may be readable later, for instance because of
	// throttling; nil if all went well. The next round tries again.
	Failed error
	// Ended reports that the stream is disabled and every shard emitted to its end.
	Ended bool

	full      bool // a page was as large as pages get
	ended     bool // a shard ended
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
	return len(i.Shards) > 0 && i.Failed == nil && !i.searching && i.Count(Waiting) == 0 && i.Count(Reading) == 0
}

// Round lists the shards if that is due and reads one page of every shard that can be read,
// by shard id. It emits each page that has records, and a shard's last page with End set even
// if it has none. What it emitted is not read again until Reset.
//
// Throttling and the service's own failures do not end a round: they are in RoundInfo.Failed.
// An error is emit's, the Shards', or needs a cause removed. Records that the stream no longer
// holds are a pipeline.PersonError that wraps pipeline.ErrTrimmed: the reader never skips.
func (r *Reader) Round(ctx context.Context, emit func(pipeline.Batch) error) (RoundInfo, error) {
	return r.round(ctx, emit, false)
}

// round leaves shards alone that failed a moment ago if patient is set.
func (r *Reader) round(ctx context.Context, emit func(pipeline.Batch) error, patient bool) (RoundInfo, error) {
	var info RoundInfo
	listed, later, err := r.refresh(ctx, patient)
	if err != nil {
		return info, err
	}
	info.Listed, info.Failed = listed, later
	readable, err := r.readable(ctx, patient)
	if err != nil {
		return info, err
	}
	for len(readable) > 0 {
		// Pages are held while they are emitted, so only as many as are read at one time.
		n := min(r.o.Parallel, len(readable))
		pages := r.readPages(ctx, readable[:n])
		for i, s := range readable[:n] {
			if err := r.deliver(ctx, s, pages[i], emit, &info); err != nil {
				return info, err
			}
		}
		readable = readable[n:]
	}
	r.summarise(&info)
	return info, nil
}

// readable returns the shards to read now.
func (r *Reader) readable(ctx context.Context, patient bool) ([]*shard, error) {
	var ready []*shard
	now := r.o.Now()
	for _, s := range r.sorted() {
		if s.state == Waiting && s.owned {
			free, err := r.parentFinished(ctx, s)
			if err != nil {
				return nil, err
			}
			if free {
				s.state = Reading
			}
		}
		if (s.state == Reading || s.state == Tip) && !(patient && s.fail.waiting(now)) {
			ready = append(ready, s)
		}
	}
	return ready, nil
}

func (r *Reader) parentFinished(ctx context.Context, s *shard) (bool, error) {
	if s.Parent == "" {
		return true, nil
	}
	p := r.shards[s.Parent]
	if p == nil {
		// It was finished, and a later listing no longer named it.
		return true, nil
	}
	if p.state != Drained {
		return p.state == Finished, nil
	}
	pos, _, err := r.o.Shards.Position(ctx, p.ID)
	if err != nil {
		return false, fmt.Errorf("look up position of shard %s, parent of %s: %w", p.ID, s.ID, err)
	}
	if pos.End {
		p.state = Finished
	}
	return pos.End, nil
}

// A page is the answer for one shard.
type page struct {
	batch pipeline.Batch
	next  string // next iterator; "" at the end of a closed shard
	count int    // records as received
	err   error
}

// readPages reads a page of each shard. It changes nothing in them but the iterator.
func (r *Reader) readPages(ctx context.Context, shards []*shard) []page {
	pages := make([]page, len(shards))
	if len(shards) == 1 {
		pages[0] = r.readPage(ctx, shards[0])
		return pages
	}
	var wg sync.WaitGroup
	for i, s := range shards {
		wg.Go(func() { pages[i] = r.readPage(ctx, s) })
	}
	wg.Wait()
	return pages
}

// reissues bounds how often one read asks for a new iterator.
const reissues = 3

func (r *Reader) readPage(ctx context.Context, s *shard) page {
	for try := 0; ; try++ {
		s.fresh = s.iterator == ""
		if s.fresh {
			it, err := r.iterator(ctx, s)
			if err != nil {
				return page{err: err}
			}
			s.iterator = it
		}
		p := r.getRecords(ctx, s.ID, s.iterator, s.after)
		if p.err == nil {
			return p
		}
		// An iterator lives 15 minutes; behind a consumer that was blocked longer it is dead,
		// and nothing is lost by asking for another behind the last emitted record.
		again := expired(p.err)
		// A shard of which nothing was read begins wherever the stream begins: if its first
		// records age out between the two calls, the new beginning is as good. An iterator that
		// was held from an earlier round is another matter: what it pointed at is lost.
		again = again || trimmed(p.err) && s.after == "" && s.fresh
		if !again || try == reissues {
			return p
		}
		r.log.Info("iterator issued again", "shard", s.ID, "after", s.after, "cause", p.err)
		s.iterator = ""
	}
}

func (r *Reader) getRecords(ctx context.Context, id pipeline.ShardID, iterator string, after pipeline.SequenceNumber) page {
	in := &dynamodbstreams.GetRecordsInput{ShardIterator: aws.String(iterator)}
	if r.o.PageLimit > 0 {
		in.Limit = aws.Int32(int32(min(r.o.PageLimit, maxPage)))
	}
	out, err := call(ctx, in, r.client.GetRecords)
	if err != nil {
		return page{err: fmt.Errorf("read shard %s after %q: %w", id, after, err)}
	}
	b, err := convert(id, after, out.Records)
	return page{batch: b, next: aws.ToString(out.NextShardIterator), count: len(out.Records), err: err}
}

// deliver emits a page and moves the shard on.
func (r *Reader) deliver(ctx context.Context, s *shard, p page, emit func(pipeline.Batch) error, info *RoundInfo) error {
	if p.err != nil {
		return r.failed(ctx, s, p.err, info)
	}
	s.fail = failures{}
	info.Pages++
	if p.count == 0 {
		info.EmptyPages++
	}
	p.batch.End = p.next == ""
	if p.count > 0 || p.batch.End {
		if err := emit(p.batch); err != nil {
			return err
		}
	}
	s.iterator = p.next
	s.state = Tip
	if p.count > 0 {
		last := p.batch.Records[p.count-1]
		s.after, s.created, s.state = last.Seq, last.Created, Reading
		info.Records += p.count
		limit := maxPage
		if r.o.PageLimit > 0 {
			limit = min(limit, r.o.PageLimit)
		}
		info.full = info.full || p.count >= limit || p.batch.Bytes >= fullBytes
	}
	if p.batch.End {
		s.state = Drained
		s.children.wanted = !r.hasChild(s.ID)
		info.ended = true
		r.log.Info("shard read to its end", "shard", s.ID, "last", s.after)
	}
	return nil
}

func (r *Reader) hasChild(id pipeline.ShardID) bool {
	for _, s := range r.shards {
		if s.Parent == id {
			return true
		}
	}
	return false
}

// failed sorts an error of reading s: one that may pass is noted, one that will not is returned.
func (r *Reader) failed(ctx context.Context, s *shard, err error, info *RoundInfo) error {
	if lost := lostRecords(s.ID, s.after, err); lost != nil {
		return lost
	}
	if expired(err) || passes(ctx, err) {
		s.fail.again(r.o.Now(), r.o.RetryBase, r.o.RetryCap)
		info.Failed = errors.Join(info.Failed, err)
		r.log.Info("shard not read, trying again", "shard", s.ID, "failures", s.fail.n, "cause", err)
		return nil
	}
	return err
}

// lostRecords turns the service's word that a position is no longer there into one for a
// person; nil if err is something else.
func lostRecords(id pipeline.ShardID, after pipeline.SequenceNumber, err error) error {
	if !trimmed(err) && !notFound(err) {
		return nil
	}
	position := "its beginning"
	if after != "" {
		position = "position " + string(after)
	}
	return pipeline.NeedPerson(fmt.Errorf("read shard %s from %s: %w: %w", id, position, pipeline.ErrTrimmed, err),
		"records of this shard are in no lake yet and the stream has dropped them; take them from the table or an export before the checkpoint is moved past them")
}

func (r *Reader) summarise(info *RoundInfo) {
	info.Shards = make([]ShardInfo, 0, len(r.shards))
	open := false
	for _, s := range r.sorted() {
		info.Shards = append(info.Shards, ShardInfo{ID: s.ID, State: s.state, Last: s.after, Created: s.created})
		open = open || s.state < Drained
		info.searching = info.searching || s.children.wanted && !s.children.asked
	}
	info.Ended = r.disabled && !open && len(r.shards) > 0 && !r.listed.IsZero()
}
