package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/seal"
)

// A stagingSealer seals what lies in staging, at whoever's word that something does.
type stagingSealer struct {
	store   *checkpoint.Store
	sealer  *seal.Sealer
	buckets buckets
	staging location
	audit   *auditor
	notes   *noter
	log     *slog.Logger
}

// newStagingSealer returns one by which windows may wait as long as within to be in the lake.
func newStagingSealer(c clients, p places, within time.Duration, log *slog.Logger) *stagingSealer {
	s := &stagingSealer{store: checkpoint.New(c.dynamodb, p.Checkpoint, checkpoint.Options{}), buckets: openBuckets(c, p), staging: p.Staging, log: log}
	s.sealer = newSealer(s.store, s.buckets, log)
	s.audit = newAuditor(c, giver{s.store, s.sealer, time.Now, log}, s.buckets.staging, within)
	s.notes = newNoter(s.store, s.buckets.lake, p.Checkpoint)
	return s
}

// sweep seals all that lies in staging and audits every lane: a window without parts, or one whose
// seal died before folding, is in no staging object. What did not come in time is landed again, and
// given up a day later. Once an hour what is stored is written into the lake.
func (s *stagingSealer) sweep(ctx context.Context) (seal.Report, error) {
	rep, err := s.sealer.Sweep(ctx)
	lanes, failed := s.store.Lanes(ctx)
	_, late := s.audit.audit(ctx, lanes, err)
	return rep, errors.Join(err, s.forPerson(rep), failed, late, s.notes.note(ctx))
}

// sweepStaged seals all that lies in staging, and folds the lanes it is of.
func (s *stagingSealer) sweepStaged(ctx context.Context) (seal.Report, error) {
	rep, err := s.sealer.Sweep(ctx)
	return rep, errors.Join(err, s.forPerson(rep))
}

// forPerson is an error if the report has what only a person can put right.
func (s *stagingSealer) forPerson(rep seal.Report) error {
	if n := rep.Kept[seal.Mismatch]; n > 0 {
		return pipeline.NeedPerson(fmt.Errorf("%d parts differ from what their windows' manifests say; they stay in %s and their lanes are halted", n, s.staging),
			"find out who wrote them; see the log above")
	}
	return nil
}

// A createdObject is one of which an event says that it was created.
type createdObject struct {
	bucket string
	pipeline.Object
}

// seal seals the objects of an event that lie in staging. One that fails does not stop the others.
func (s *stagingSealer) seal(ctx context.Context, objects []createdObject) (seal.Report, error) {
	var total seal.Report
	var errs []error
	for _, o := range objects {
		key, ours := strings.CutPrefix(o.Key, s.staging.Prefix)
		if !ours || o.bucket != s.staging.Bucket || key == "" {
			// What was put aside in the same bucket, for one.
			s.log.Warn("the event is of no object in staging", "bucket", o.bucket, "key", o.Key, "staging", s.staging.String())
			continue
		}
		o.Key = key
		rep, err := s.sealer.Object(ctx, o.Object)
		total.Add(rep)
		errs = append(errs, err)
	}
	errs = append(errs, s.forPerson(total))
	return total, errors.Join(errs...)
}

// A creation is as much as is needed of what tells of created objects: a notification of S3, an
// event of EventBridge, or the message of a topic around either.
type creation struct {
	Records []struct {
		Source string `json:"eventSource"`
		Name   string `json:"eventName"` // ObjectCreated:Put, s3:ObjectCreated:Put
		S3     struct {
			Bucket struct {
				Name string `json:"name"`
			} `json:"bucket"`
			Object struct {
				Key  string `json:"key"` // as in a URL's query: a space is a plus sign
				Size int64  `json:"size"`
				ETag string `json:"eTag"`
			} `json:"object"`
		} `json:"s3"`
	} `json:"Records"`

	Source string `json:"source"`
	Type   string `json:"detail-type"`
	Detail struct {
		Bucket struct {
			Name string `json:"name"`
		} `json:"bucket"`
		Object struct {
			Key  string `json:"key"` // as it is
			Size int64  `json:"size"`
			ETag string `json:"etag"`
		} `json:"object"`
	} `json:"detail"`

	Event string `json:"Event"` // s3:TestEvent: what S3 sends once, when notifications are set up

	Topic   string `json:"TopicArn"`
	Message string `json:"Message"`
}

// createdObjects reads the objects that an event or a queue's message tells of. It returns false
// for anything else.
func createdObjects(text []byte) ([]createdObject, bool, error) {
	var c creation
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, false, nil // it is something else: whoever reads that says what is wrong
	}
	switch {
	case c.Topic != "" && c.Message != "":
		return createdObjects([]byte(c.Message))
	case c.Event == "s3:TestEvent":
		return nil, true, nil
	case c.Source == "aws.s3":
		if c.Type != "Object Created" {
			return nil, true, nil
		}
		o := c.Detail.Object
		return []createdObject{{c.Detail.Bucket.Name, pipeline.Object{Key: o.Key, ETag: o.ETag, Size: o.Size}}}, true, nil
	case len(c.Records) == 0 || c.Records[0].Source != "aws:s3":
		return nil, false, nil
	}
	var objects []createdObject
	for _, r := range c.Records {
		if !strings.HasPrefix(strings.TrimPrefix(r.Name, "s3:"), "ObjectCreated:") {
			continue
		}
		key, err := url.QueryUnescape(r.S3.Object.Key)
		if err != nil {
			return nil, true, fmt.Errorf("read event: key %q: %w", r.S3.Object.Key, err)
		}
		objects = append(objects, createdObject{r.S3.Bucket.Name, pipeline.Object{Key: key, ETag: r.S3.Object.ETag, Size: r.S3.Object.Size}})
	}
	return objects, true, nil
}

// created seals the objects that an event of S3 or EventBridge tells of.
func (f *function) created(ctx context.Context, objects []createdObject) (any, error) {
	rep, err := f.sealing.seal(ctx, objects)
	f.sealed(rep)
	return sealedDocument(rep), f.failed("seal", err)
}

// sweepStaging seals all that lies in staging: what events were lost of, and what waited for another copy.
func (f *function) sweepStaging(ctx context.Context) (any, error) {
	rep, err := f.sealing.sweep(ctx)
	f.sealed(rep)
	return sealedDocument(rep), f.failed("sweep staging", err)
}

func (f *function) sealed(r seal.Report) {
	f.log.Info("sealed", "staging_objects", r.Objects, "removed", r.Removed, "parts", r.Parts, "published", r.Published, "duplicates", r.Duplicates,
		"void", r.Void, "waiting", r.Waiting, "sealed_objects", r.Created, "rows", r.Rows, "damaged", r.Damaged)
}

// queued handles the messages of a queue, each by what it is: what S3, EventBridge or a topic sent
// of created objects, or what a mapping gave up.
func (f *function) queued(ctx context.Context, in invocation) (any, error) {
	out := batchResponse{Failures: []itemFailure{}}
	var total seal.Report
	sealing := false
	for _, r := range in.Records {
		objects, created, err := createdObjects([]byte(r.Body))
		switch {
		case err == nil && created:
			sealing = true
			var rep seal.Report
			rep, err = f.sealing.seal(ctx, objects)
			total.Add(rep)
		case err == nil:
			err = f.discarded(ctx, r.Body)
		}
		if err != nil {
			_ = f.failed("handle message "+r.MessageID, err)
			out.Failures = append(out.Failures, itemFailure{r.MessageID})
		}
	}
	if sealing {
		f.sealed(total)
	}
	return out, nil
}

// errNoStream is what a function says of a stream's records if it is only to seal.
var errNoStream = pipeline.NeedPerson(errors.New("this function has no contract, so that it seals and does nothing else"),
	"set "+envName("contract")+" and the other settings of streamer lambda, or send it events of staging only")
