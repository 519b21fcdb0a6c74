package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/columnar"
)

// listShards returns the parent of every shard that the stream lists.
func listShards(ctx context.Context, c *dynamodbstreams.Client, arn string) (map[pipeline.ShardID]pipeline.ShardID, error) {
	parents := map[pipeline.ShardID]pipeline.ShardID{}
	in := &dynamodbstreams.DescribeStreamInput{StreamArn: &arn}
	for {
		out, err := c.DescribeStream(ctx, in)
		if err != nil {
			return nil, fmt.Errorf("list the shards of stream %s: %w", arn, err)
		}
		for _, s := range out.StreamDescription.Shards {
			parents[pipeline.ShardID(aws.ToString(s.ShardId))] = pipeline.ShardID(aws.ToString(s.ParentShardId))
		}
		if in.ExclusiveStartShardId = out.StreamDescription.LastEvaluatedShardId; in.ExclusiveStartShardId == nil {
			return parents, nil
		}
	}
}

// positions are those of a stream's shards: the higher one of what was found and what is stored,
// which may be ahead for records that left nothing.
type positions struct {
	stream string
	past   *pipeline.Past
	stored map[pipeline.ShardID]checkpoint.ShardStatus
	listed map[pipeline.ShardID]pipeline.ShardID // parents
	notes  map[pipeline.ShardID]string
}

// all returns the shards to write, by id. One that was not found and is not stored has never been
// read: it is left to the reader, which begins with its oldest record.
func (p *positions) all() []checkpoint.RebuiltShard {
	p.notes = map[pipeline.ShardID]string{}
	ids := map[pipeline.ShardID]bool{}
	for s := range p.past.Taken {
		if s.Stream == p.stream {
			ids[s.Shard] = true
		}
	}
	for s, first := range p.past.Again {
		if s.Stream == p.stream && first != "" {
			ids[s.Shard] = true
		}
	}
	for id := range p.stored {
		ids[id] = true
	}
	reached := p.rootsReached()
	var shards []checkpoint.RebuiltShard
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		at := p.at(id)
		parent, listed := p.listed[id]
		if _, ok := p.listed[parent]; !ok {
			parent = p.stored[id].Parent
		}
		_, again := p.past.Again[pipeline.StreamShard{Stream: p.stream, Shard: id}]
		switch {
		case !listed && (at.End || reached):
			continue // it is finished, and nobody asks for it any more
		case !listed:
			p.notes[id] = "the stream no longer has it, and its end was not seen: a gap when the stream is read"
		case !at.End && !again && p.childReached(id):
			at.End = true
			p.notes[id] = "its children were read"
		case again:
			p.notes[id] = "records that were not landed whole are read again"
		}
		shards = append(shards, checkpoint.RebuiltShard{ID: id, Parent: parent, At: at})
	}
	return shards
}

func (p *positions) at(id pipeline.ShardID) pipeline.Position {
	at, _ := p.past.Position(pipeline.StreamShard{Stream: p.stream, Shard: id})
	was, ok := p.stored[id]
	if !ok {
		return at
	}
	if was.At.Seq.Compare(at.Seq) >= 0 {
		was.At.End = was.At.End || at.End
		return was.At
	}
	at.End = at.End || was.At.End
	at.MetAt, at.StartAt = was.At.MetAt, was.At.StartAt
	return at
}

func (p *positions) known(id pipeline.ShardID) bool {
	s := pipeline.StreamShard{Stream: p.stream, Shard: id}
	_, again := p.past.Again[s]
	_, stored := p.stored[id]
	return stored && p.stored[id].At.Seq != "" || len(p.past.Taken[s]) > 0 || again
}

// childReached reports whether records of a shard's descendants were read, which is done only
// after its own end.
func (p *positions) childReached(id pipeline.ShardID) bool {
	for child, parent := range p.listed {
		if parent == id && child != id && (p.known(child) || p.childReached(child)) {
			return true
		}
	}
	return false
}

// rootsReached reports whether the oldest shards that the stream lists were all read from: then
// those before them were read to their ends.
func (p *positions) rootsReached() bool {
	for id, parent := range p.listed {
		if _, ok := p.listed[parent]; !ok && !p.known(id) && !p.childReached(id) {
			return false
		}
	}
	return len(p.listed) > 0
}

// compare reads what the stream still holds before a shard's position, and returns as gaps the
// records that make rows and are in no window that was found.
func (b *rebuild) compare(ctx context.Context, past *pipeline.Past, id pipeline.ShardID) ([]pipeline.Gap, error) {
	s := pipeline.StreamShard{Stream: b.places.StreamARN, Shard: id}
	var taken []pipeline.Range
	for _, r := range past.Taken[s] {
		if r.First != "" {
			taken = append(taken, r)
		}
	}
	// The stream drops the oldest first.
	low, high := 0, len(taken)
	for low < high {
		mid := (low + high) / 2
		_, ok, err := b.record(ctx, s, taken[mid].First)
		if err != nil {
			return nil, err
		}
		if ok {
			high = mid
		} else {
			low = mid + 1
		}
	}
	if low >= len(taken)-1 {
		return nil, nil // nothing lies between two ranges
	}
	taken = taken[low:]
	c := &comparison{rebuild: b, shard: s, taken: taken}
	err := b.reader.Replay(ctx, []pipeline.Range{{Shard: id, First: taken[0].First, Last: taken[len(taken)-1].Last}}, c.see)
	if errors.Is(err, pipeline.ErrTrimmed) {
		err = nil // while it was read: what came before was compared
	}
	return c.gaps, errors.Join(err, c.flush())
}

// A comparison holds a shard's records against the ranges that were found of it.
type comparison struct {
	*rebuild
	shard pipeline.StreamShard
	taken []pipeline.Range
	run   []pipeline.Record // consecutive, in no range
	after pipeline.SequenceNumber
	gaps  []pipeline.Gap
}

func (c *comparison) see(batch pipeline.Batch) error {
	for _, rec := range batch.Records {
		c.shown.Compare++
		for len(c.taken) > 0 && c.taken[0].Last.Compare(rec.Seq) < 0 {
			if err := c.flush(); err != nil {
				return err
			}
			c.after, c.taken = c.taken[0].Last, c.taken[1:]
		}
		if len(c.taken) > 0 && c.taken[0].First.Compare(rec.Seq) <= 0 {
			if err := c.flush(); err != nil {
				return err
			}
			continue
		}
		c.run = append(c.run, rec)
	}
	return nil
}

// flush makes a gap of the run, if the contract makes anything of it.
func (c *comparison) flush() error {
	run := c.run
	c.run = nil
	if len(run) == 0 {
		return nil
	}
	rows, err := columnar.NewDecoder(memory.DefaultAllocator).Decode(c.contract, []pipeline.Batch{{Shard: c.shard.Shard, Records: run}})
	if err != nil {
		return fmt.Errorf("decode records %s to %s of shard %s: %w", run[0].Seq, run[len(run)-1].Seq, c.shard.Shard, err)
	}
	n := rows.Counts[c.shard.Shard]
	rows.Release()
	n.Ignored = 0
	if n == (pipeline.Counts{}) {
		return nil
	}
	g := pipeline.Gap{
		Missing: pipeline.Missing{Cause: pipeline.GapRebuilt, From: run[0].Created, To: run[len(run)-1].Created},
		Stream:  c.shard.Stream, Shard: c.shard.Shard, After: c.after, First: run[0].Seq, Last: run[len(run)-1].Seq,
	}
	if len(c.taken) > 0 {
		g.Before = cmp.Or(c.taken[0].First, g.Before)
	}
	c.gaps = append(c.gaps, g)
	return nil
}
