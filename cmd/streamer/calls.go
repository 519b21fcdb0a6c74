package main

import (
	"context"
	"errors"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"

	"telemetrylake/pipeline/observe"
)

// countCalls has every request to AWS counted, each attempt of a call for itself.
func countCalls(o *observe.Observer) func(*aws.Config) {
	return func(cfg *aws.Config) {
		cfg.APIOptions = append(cfg.APIOptions, func(s *middleware.Stack) error {
			if err := s.Initialize.Add(startCounting, middleware.Before); err != nil {
				return err
			}
			// Behind the SDK's retries, which call what follows them once for each attempt.
			return s.Finalize.Insert(countAttempt(o), (*retry.Attempt)(nil).ID(), middleware.After)
		})
	}
}

// attemptsKey is where a call's context has the number of its attempts so far.
type attemptsKey struct{}

var startCounting = middleware.InitializeMiddlewareFunc("startCounting",
	func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
		return next.HandleInitialize(context.WithValue(ctx, attemptsKey{}, new(int)), in)
	})

func countAttempt(o *observe.Observer) middleware.FinalizeMiddleware {
	return middleware.FinalizeMiddlewareFunc("countAttempt",
		func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
			attempts := ctx.Value(attemptsKey{}).(*int)
			out, meta, err := next.HandleFinalize(ctx, in)
			*attempts++
			o.Call(awsmiddleware.GetServiceID(ctx), awsmiddleware.GetOperationName(ctx), outcome(err), *attempts > 1)
			return out, meta, err
		})
}

// outcome sorts the answer to one request.
func outcome(err error) observe.Outcome {
	if err == nil {
		return observe.CallOK
	}
	api, isAPI := errors.AsType[smithy.APIError](err)
	// Firehose says so when it throttles.
	if isAPI && api.ErrorCode() == "ServiceUnavailableException" || retry.IsErrorThrottles(retry.DefaultThrottles).IsErrorThrottle(err) == aws.TrueTernary {
		return observe.CallThrottled
	}
	if re, ok := errors.AsType[*awshttp.ResponseError](err); ok && re.HTTPStatusCode() >= 400 && re.HTTPStatusCode() < 500 {
		return observe.CallRefused
	}
	return observe.CallFailed
}
