package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"telemetrylake/pipeline"
)

// explain shortens what AWS's SDK says to one line: which operation, on what, and what to do.
// The original stays in the chain.
func explain(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*pipeline.PersonError](err); ok {
		return err
	}
	op, ok := errors.AsType[*smithy.OperationError](err)
	if !ok {
		return err
	}
	// What we say before the SDK's part names the table, the bucket or the stream.
	ours, _, _ := strings.Cut(err.Error(), "operation error ")
	what := oneLine(errors.New(ours)) + op.ServiceID + " " + op.OperationName
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		switch code := api.ErrorCode(); code {
		case "AccessDenied", "AccessDeniedException", "UnauthorizedOperation":
			return said{err, fmt.Sprintf("%s: not allowed (%s): allow it in the role's policy", what, api.ErrorMessage()), exitPerson}
		case "UnrecognizedClientException", "InvalidSignatureException", "SignatureDoesNotMatch", "InvalidAccessKeyId", "ExpiredToken", "ExpiredTokenException":
			return said{err, fmt.Sprintf("%s: the credentials were refused (%s): check AWS_PROFILE or the access key", what, code), exitPerson}
		case "ResourceNotFoundException", "NoSuchBucket", "NotFound":
			do := "check its name and AWS_REGION"
			if op.ServiceID == "DynamoDB" && ownEndpoint() {
				do += "; if AWS is a streamer local, start that with the contract whose table it is: streamer local --dir FOLDER --contract NAME"
			}
			return said{err, fmt.Sprintf("%s: there is no such thing in %s (%s): %s", what, region(), oneLine(errors.New(api.ErrorMessage())), do), exitPerson}
		default:
			return said{err, fmt.Sprintf("%s: %s: %s", what, code, oneLine(errors.New(api.ErrorMessage()))), exitFailed}
		}
	}
	if n, ok := errors.AsType[*net.OpError](err); ok {
		how := "cannot connect"
		if n.Op != "dial" {
			how = "the connection was lost"
		}
		return said{err, fmt.Sprintf("%s: %s: %v: check AWS_ENDPOINT_URL, AWS_REGION and the network", what, how, lastOf(n)), exitFailed}
	}
	if n, ok := errors.AsType[*net.DNSError](err); ok {
		return said{err, fmt.Sprintf("%s: %v: check AWS_ENDPOINT_URL, AWS_REGION and the network", what, n), exitFailed}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return said{err, what + ": no answer in time: check AWS_ENDPOINT_URL, AWS_REGION and the network", exitFailed}
	}
	if re, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		return said{err, fmt.Sprintf("%s: status %d: is AWS_ENDPOINT_URL the right service?", what, re.HTTPStatusCode()), exitFailed}
	}
	return err
}

// region is where the SDK looks, for people.
func region() string {
	for _, v := range []string{"AWS_REGION", "AWS_DEFAULT_REGION"} {
		if r := os.Getenv(v); r != "" {
			return "region " + r
		}
	}
	return "this region"
}

// ownEndpoint reports whether the environment names another DynamoDB than that of AWS.
func ownEndpoint() bool {
	return cmp.Or(os.Getenv("AWS_ENDPOINT_URL_DYNAMODB"), os.Getenv("AWS_ENDPOINT_URL")) != ""
}

// lastOf is the innermost error.
func lastOf(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

// said is an error put in our words.
type said struct {
	err  error
	text string
	code int
}

func (s said) Error() string { return s.text }

func (s said) Unwrap() error { return s.err }
