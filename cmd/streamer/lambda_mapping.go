package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-lambda-go/lambdacontext"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/aws/smithy-go/logging"

	"telemetrylake/pipeline"
)

// mappingEvery is how long a look at the mapping counts: it can be changed while an environment
// lives.
const mappingEvery = 15 * time.Minute

// A mappingCheck refuses to work for an event source mapping that would lose or mix records.
type mappingCheck struct {
	client *lambda.Client
	log    *slog.Logger
	// expired says that removals by TTL become rows: then nothing may be filtered.
	expired bool

	at    time.Time // of the last look
	known bool      // it was seen and is as it must be
}

func connectLambda(ctx context.Context) (*lambda.Client, error) {
	cfg, err := config.LoadDefaultConfig(ctx, config.WithLogger(logging.Nop{}))
	if err != nil {
		return nil, usagef("load the AWS configuration: %w", err)
	}
	cfg.APIOptions = append(cfg.APIOptions, plainBodies)
	return lambda.NewFromConfig(cfg), nil
}

// check looks at the function's mappings of the stream, now and then. known reports that there
// is one and that it understands partial answers. A function that may not look goes on: what
// it reads is checked against the stream anyway, and it answers with failures only.
func (m *mappingCheck) check(ctx context.Context, stream string) (known bool, err error) {
	if !m.at.IsZero() && time.Since(m.at) < mappingEvery {
		return m.known, nil
	}
	inv, ok := lambdacontext.FromContext(ctx)
	if !ok || inv.InvokedFunctionArn == "" {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var found []types.EventSourceMappingConfiguration
	pages := lambda.NewListEventSourceMappingsPaginator(m.client, &lambda.ListEventSourceMappingsInput{
		FunctionName: &inv.InvokedFunctionArn, EventSourceArn: &stream,
	})
	for pages.HasMorePages() {
		out, err := pages.NextPage(ctx)
		if err != nil {
			m.log.Warn("the event source mapping cannot be checked; allow lambda:ListEventSourceMappings in the role's policy", "error", explain(err))
			m.at, m.known = time.Now(), false
			return false, nil
		}
		found = append(found, out.EventSourceMappings...)
	}
	found = slices.DeleteFunc(found, func(c types.EventSourceMappingConfiguration) bool {
		return aws.ToString(c.State) == "Disabled" || aws.ToString(c.EventSourceArn) != stream
	})
	if err := refuseMappings(found, m.expired); err != nil {
		return false, err
	}
	m.at, m.known = time.Now(), len(found) > 0
	return m.known, nil
}

func refuseMappings(found []types.EventSourceMappingConfiguration, expired bool) error {
	if len(found) > 1 {
		return pipeline.NeedPerson(fmt.Errorf("%d event source mappings deliver this stream to this function", len(found)), "leave one of them enabled")
	}
	for _, c := range found {
		if wrong := mappingFaults(c, expired); len(wrong) > 0 {
			return pipeline.NeedPerson(fmt.Errorf("event source mapping %s cannot be worked with", aws.ToString(c.UUID)), "set its "+strings.Join(wrong, "; its "))
		}
	}
	return nil
}

// mappingFaults says what must be set to what. A value that is not there is Lambda's default,
// as its API reference has it.
func mappingFaults(c types.EventSourceMappingConfiguration, expired bool) []string {
	var wrong []string
	must := func(ok bool, what string) {
		if !ok {
			wrong = append(wrong, what)
		}
	}
	n := func(p *int32, otherwise int32) int32 {
		if p == nil {
			return otherwise
		}
		return *p
	}
	must(n(c.ParallelizationFactor, 1) == 1, "ParallelizationFactor to 1: events of one shard must come one after the other")
	must(!aws.ToBool(c.BisectBatchOnFunctionError), "BisectBatchOnFunctionError to false: nothing here fails for one record alone")
	must(n(c.MaximumRecordAgeInSeconds, -1) == -1, "MaximumRecordAgeInSeconds to -1: older records would be given up")
	must(n(c.MaximumRetryAttempts, -1) == -1, "MaximumRetryAttempts to -1: records would be given up after some failures")
	must(n(c.TumblingWindowInSeconds, 0) == 0, "TumblingWindowInSeconds to 0: this function keeps no state between events")
	must(slices.Contains(c.FunctionResponseTypes, types.FunctionResponseTypeReportBatchItemFailures), "FunctionResponseTypes to ReportBatchItemFailures")
	if expired {
		// The sweep takes from the stream what a filter drops, but what nobody takes for a day is then in
		// no event either, and no record behind it tells that it is missing.
		must(c.FilterCriteria == nil || len(c.FilterCriteria.Filters) == 0, "FilterCriteria to none: the contract makes tombstones of removals by TTL (on_expire)")
		return wrong
	}
	must(passesAll(c.FilterCriteria), `FilterCriteria to none, or to {"userIdentity":{"type":[{"exists":false}]}}, which drops removals by TTL: others drop rows`)
	return wrong
}

// passesAll reports whether a filter lets everything through but removals by TTL. A record has to
// pass one of its patterns.
func passesAll(f *types.FilterCriteria) bool {
	if f == nil || len(f.Filters) == 0 {
		return true
	}
	return slices.ContainsFunc(f.Filters, func(p types.Filter) bool {
		var got any
		if json.Unmarshal([]byte(aws.ToString(p.Pattern)), &got) != nil {
			return false
		}
		absent := []any{map[string]any{"exists": false}}
		for _, field := range []string{"type", "principalId"} {
			if reflect.DeepEqual(got, any(map[string]any{"userIdentity": map[string]any{field: absent}})) {
				return true
			}
		}
		return reflect.DeepEqual(got, any(map[string]any{}))
	})
}
