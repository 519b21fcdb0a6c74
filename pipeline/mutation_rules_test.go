package pipeline_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/seal"
	"telemetrylake/pipeline/stream"
)

// What switches rules of reading and of giving up off.

// ask rewrites a request for records.
func (o switches) ask(r *http.Request) error {
	if !o.horizon || !strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".GetShardIterator") {
		return nil
	}
	return rewrite(r, "TRIM_HORIZON", "LATEST")
}

// rewrite replaces text in a request's body.
func rewrite(r *http.Request, from, to string) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	body = bytes.Replace(body, []byte(from), []byte(to), 1)
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	return nil
}

// answer rewrites what GetRecords answers.
func (o switches) answer(r *http.Request, resp *http.Response) error {
	if !(o.lastPage || o.emptyPage) || resp.StatusCode != http.StatusOK || !strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".GetRecords") {
		return nil
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var page struct {
		Records           []json.RawMessage
		NextShardIterator string `json:",omitempty"`
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return err
	}
	switch {
	case o.lastPage && page.NextShardIterator == "":
		page.Records = nil
	case o.emptyPage && len(page.Records) == 0:
		page.NextShardIterator = ""
	}
	if body, err = json.Marshal(page); err != nil {
		return err
	}
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	resp.Header.Del("X-Amz-Crc32")
	return nil
}

// reader changes what a reader is told of the lane it reads for.
func (o switches) reader(w *world, r stream.Options) stream.Options {
	switch {
	case o.order:
		r.Shards = parentless{r.Shards}
	case o.finished:
		r.Shards = forgetful{r.Shards, w}
	case o.seen:
		r.Shards = allSeen{r.Shards}
	}
	return r
}

// parentless knows of no shard that another one has to be read first.
type parentless struct{ stream.Shards }

func (p parentless) Position(ctx context.Context, id pipeline.ShardID) (pipeline.Position, bool, error) {
	pos, ok, err := p.Shards.Position(ctx, id)
	pos.End = true
	return pos, ok, err
}

func (p parentless) All(ctx context.Context) (map[pipeline.ShardID]pipeline.Position, error) {
	all, err := p.Shards.All(ctx)
	for id, pos := range all {
		pos.Parent = ""
		all[id] = pos
	}
	return all, err
}

// forgetful drops a finished shard while the stream still has it.
type forgetful struct {
	stream.Shards
	w *world
}

func (f forgetful) All(ctx context.Context) (map[pipeline.ShardID]pipeline.Position, error) {
	all, err := f.Shards.All(ctx)
	for id, pos := range all {
		if !pos.End {
			continue
		}
		delete(all, id)
		if _, err := f.w.client.DeleteItem(ctx, &dynamodb.DeleteItemInput{TableName: aws.String("checkpoint"), Key: map[string]types.AttributeValue{
			"pk": &types.AttributeValueMemberS{Value: "stream#" + f.w.table.StreamARN}, "sk": &types.AttributeValueMemberS{Value: "shard#" + string(id)},
		}}); err != nil {
			return nil, err
		}
	}
	return all, err
}

// allSeen says of every position that all up to now has been read.
type allSeen struct{ stream.Shards }

func (s allSeen) All(ctx context.Context) (map[pipeline.ShardID]pipeline.Position, error) {
	all, err := s.Shards.All(ctx)
	for id, pos := range all {
		pos.TipAt = time.Now()
		all[id] = pos
	}
	return all, err
}

// emit is how batches come from the reader.
func (o switches) emit(b pipeline.Batch) pipeline.Batch {
	if o.gaps {
		b.Missing = nil
	}
	return b
}

// giveUp gives a window up.
func (o switches) giveUp(ctx context.Context, p *process, win checkpoint.WindowStatus) (int, error) {
	if !o.early && !o.gapFirst {
		if time.Since(win.LandedAt) < checkpoint.GiveUpAfter-time.Minute {
			return 0, nil
		}
		return p.store.GiveUp(ctx, win.ID)
	}
	if o.early {
		// Its clock is a day fast.
		cfg := p.w.config(roundTrip(func(r *http.Request) (*http.Response, error) {
			resp, err := p.w.env.Transport().RoundTrip(r)
			if err == nil {
				resp.Header.Set("Date", time.Now().Add(26*time.Hour).UTC().Format(http.TimeFormat))
			}
			return resp, err
		}))
		return checkpoint.New(dynamodb.NewFromConfig(cfg), "checkpoint", checkpoint.Options{}).GiveUp(ctx, win.ID)
	}
	if time.Since(win.LandedAt) < checkpoint.GiveUpAfter {
		return 0, nil
	}
	n := 0
	for i := range win.Parts {
		c, err := p.store.Void(ctx, pipeline.PartID{Window: win.ID, Index: i})
		if err != nil {
			return n, err
		}
		if c.Void {
			n++
		}
	}
	return n, nil
}

// lastWord takes an object that exists for the one that was to be created.
type lastWord struct{ seal.Store }

func (l lastWord) CreateFrom(ctx context.Context, key string, body *io.SectionReader) error {
	err := l.Store.CreateFrom(ctx, key, body)
	if errors.Is(err, pipeline.ErrExists) {
		return nil
	}
	return err
}
