package main

import (
	"cmp"
	"context"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go/logging"

	"telemetrylake/pipeline/hot"
	"telemetrylake/schemas"
)

// parseLocation reads s3://bucket/prefix/.
func parseLocation(setting, s string) (location, error) {
	rest, ok := strings.CutPrefix(s, "s3://")
	bucket, prefix, _ := strings.Cut(rest, "/")
	if !ok || bucket == "" {
		return location{}, usagef("--%s %q is not of the form s3://bucket/prefix/", setting, s)
	}
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	return location{bucket, prefix}, nil
}

// contract is the contract that the settings name, with the table they name.
func (s *settings) contract() (*schemas.Contract, error) {
	if s.Contract == "" {
		return nil, usagef("no contract named; set --contract to a YAML file or to one of %s", strings.Join(schemas.Names(), ", "))
	}
	return loadContract(s.Contract)
}

// places says where a table's records come from and go to. Nothing is looked up yet.
func (s *settings) places() (places, error) {
	c, err := s.contract()
	if err != nil {
		return places{}, err
	}
	p, err := s.destinations()
	p.Contract, p.Table, p.Chosen = c, cmp.Or(s.Table, c.Table), s.Stream
	p.Delivery = cmp.Or(s.Delivery, p.Table)
	return p, err
}

// buckets is the part of places that sealing needs, for whatever table.
func (s *settings) buckets() (places, error) {
	p := places{Checkpoint: s.Checkpoint}
	var err error
	for _, at := range []struct {
		setting, value string
		to             *location
	}{{"staging", s.Staging, &p.Staging}, {"lake", s.Lake, &p.Lake}} {
		if at.value == "" {
			return p, usagef("--%s is not set; set it to s3://bucket/prefix/", at.setting)
		}
		if *at.to, err = parseLocation(at.setting, at.value); err != nil {
			return p, err
		}
	}
	p.Damaged = location{p.Staging.Bucket, "damaged/"}
	if s.Damaged != "" {
		if p.Damaged, err = parseLocation("damaged", s.Damaged); err != nil {
			return p, err
		}
	}
	for name, other := range map[string]location{"lake": p.Lake, "damaged": p.Damaged} {
		if overlap(p.Staging, other) {
			return p, usagef("--staging %s and --%s %s overlap; give each a prefix of its own", p.Staging, name, other)
		}
	}
	return p, nil
}

// overlap reports whether one location lies in the other.
func overlap(a, b location) bool {
	return a.Bucket == b.Bucket && (strings.HasPrefix(a.Prefix, b.Prefix) || strings.HasPrefix(b.Prefix, a.Prefix))
}

// String returns s3://bucket/prefix/.
func (l location) String() string { return "s3://" + l.Bucket + "/" + l.Prefix }

// connect makes the clients from the SDK's own chain: AWS_REGION, AWS_PROFILE,
// AWS_ENDPOINT_URL and the rest, and changes it as asked.
func connect(ctx context.Context, change ...func(*aws.Config)) (clients, error) {
	// The SDK's own logger tells of retries and closed connections, which it handles: no errors
	// of ours, and nothing to do for who reads them.
	cfg, err := config.LoadDefaultConfig(ctx, config.WithLogger(logging.Nop{}))
	if err != nil {
		return clients{}, usagef("load the AWS configuration: %w", err)
	}
	if cfg.Region == "" {
		return clients{}, usagef("no AWS region; set AWS_REGION, or for an AWS of streamer local read what it wrote:  . FOLDER/env")
	}
	cfg.APIOptions = append(cfg.APIOptions, plainBodies)
	for _, f := range change {
		f(&cfg)
	}
	return newClients(cfg), nil
}

// findStream fills in the stream of the table.
func (p *places) findStream(ctx context.Context, c clients) error {
	t, err := hot.Describe(ctx, c.dynamodb, p.Table)
	if err != nil {
		if t.Name != "" { // the table is there, its stream is not what it must be
			return said{err, oneLine(err), exitPerson}
		}
		return err
	}
	p.StreamARN = t.StreamARN
	if p.Chosen != "" {
		if tableOf(p.Chosen) != tableOf(t.StreamARN) {
			return usagef("--stream %s is no stream of table %s; its streams begin with %s/stream/", p.Chosen, p.Table, tableOf(t.StreamARN))
		}
		p.StreamARN = p.Chosen
	}
	return nil
}
