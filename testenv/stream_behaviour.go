package testenv

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// StreamsBehaviour is what DynamoDB Streams is free to do and a test wants to choose. Its
// functions are called one at a time and must not call the Env.
type StreamsBehaviour struct {
	// Page is asked for each page of GetRecords, with the request's limit, how many records it
	// has at most: with 0 it is empty although records follow ("it might take multiple calls
	// to get to a portion of the shard that contains stream records": GetRecords'
	// documentation). Nil: as many as fit.
	Page func(limit int) int
	// ChildDelay is asked for each child of a shard how long no listing names it yet. An Env
	// that is opened again has forgotten it. Nil: not at all.
	ChildDelay func() time.Duration
	// Omit is asked for each shard that a page of DescribeStream would name; true leaves it
	// out, as listings do that are made while shards change: a parent is missing, or a child
	// that was there before. Nil: none.
	Omit func(shardID string) bool
	// Order, when not 0, seeds the order in which shards are listed: children before their
	// parents too, on the pages before theirs. 0: as they were created.
	Order uint64
}

// SeededStreams returns a behaviour in which a seed decides: of each four pages one is empty or
// short, children appear up to 30 seconds late, and a listing leaves one shard in eight out and
// has any order.
func SeededStreams(seed uint64) StreamsBehaviour {
	rng := rand.New(rand.NewPCG(seed, 0x57ea))
	return StreamsBehaviour{
		Page: func(limit int) int {
			if rng.IntN(4) > 0 {
				return limit
			}
			return rng.IntN(2) * (1 + rng.IntN(limit))
		},
		ChildDelay: func() time.Duration { return time.Duration(rng.Int64N(int64(30 * time.Second))) },
		Omit:       func(string) bool { return rng.IntN(8) == 0 },
		Order:      seed | 1,
	}
}

// listing returns all shards, those that are gone too, in the order in which they are listed.
func (s *stream) listing() []*shard {
	order := s.db.opt.Streams.Order
	if order == 0 {
		return s.shards
	}
	shards := slices.Clone(s.shards)
	place := func(h *shard) uint64 { return mix(order ^ mix(uint64(h.number))) }
	slices.SortFunc(shards, func(a, b *shard) int { return cmp.Compare(place(a), place(b)) })
	return shards
}

// hides says whether a listing leaves a shard out.
func (s *stream) hides(h *shard, now time.Time) bool {
	if now.Before(h.listed) {
		return true
	}
	omit := s.db.opt.Streams.Omit
	return omit != nil && choose(&s.db.choosing, func() bool { return omit(h.id) })
}

// pageSize returns how many records a page has at most.
func (s *stream) pageSize(limit int) int {
	page := s.db.opt.Streams.Page
	if page == nil {
		return limit
	}
	return choose(&s.db.choosing, func() int { return page(limit) })
}

// change does something to the enabled stream of a table and stores it; what names the action
// in errors.
func (db *database) changeStream(name, what string, do func(*stream) ([]write, error)) error {
	t, err := db.table(name)
	if err != nil {
		return fmt.Errorf("%s of table %s: %w", what, name, err)
	}
	db.commit.Lock()
	defer db.commit.Unlock()
	s := t.stream
	if s == nil {
		return fmt.Errorf("%s of table %s: its stream is not enabled", what, name)
	}
	undo := s.keep()
	ws, err := do(s)
	if err == nil {
		err = db.save(nil, s, ws...)
	}
	if err != nil {
		undo()
		return fmt.Errorf("%s of table %s: %w", what, name, err)
	}
	return nil
}

// splitShards splits one shard of the table's stream, or all open ones for id "".
func (db *database) splitShards(name, id string, now time.Time) error {
	return db.changeStream(name, "reshard stream", func(s *stream) ([]write, error) {
		found := false
		for _, h := range slices.Clone(s.live) {
			if id != "" && h.id != id {
				continue
			}
			found = true
			if err := s.split(h, now); err != nil {
				return nil, err
			}
		}
		if !found {
			return nil, fmt.Errorf("it has no open shard %s", id)
		}
		return nil, nil
	})
}

func (db *database) rotateShards(name string, times int, now time.Time) error {
	return db.changeStream(name, "rotate shards of the stream", func(s *stream) ([]write, error) {
		for range times {
			for _, h := range slices.Clone(s.live) {
				s.close(h, now)
				s.open(h.id, h.lo, h.hi, now)
			}
		}
		return nil, nil
	})
}

func (db *database) trimStream(name string, before time.Time) error {
	return db.changeStream(name, "trim the stream", func(s *stream) ([]write, error) { return s.trim(before) })
}
