package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/firehose"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"telemetrylake/testenv"
)

// Paths under which they say that they are ready, and some of them who they are.
const (
	ministackHealth  = "/_ministack/health"
	localstackHealth = "/_localstack/health"
	motoHealth       = "/moto-api/data.json"
)

// findRunning is what the SDK's own chain leads to. Without an endpoint of one's own that
// would be AWS itself.
func findRunning(ctx context.Context) (*AWS, error) {
	cfg, err := config.LoadDefaultConfig(ctx, config.WithDefaultRegion(testenv.DefaultRegion))
	if err != nil {
		return nil, err
	}
	a := &AWS{Kind: Running, region: cfg.Region, credentials: cfg.Credentials, endpoints: map[Service]string{}}
	for s, endpoint := range map[Service]*string{
		DynamoDB: dynamodb.NewFromConfig(cfg).Options().BaseEndpoint,
		Streams:  dynamodbstreams.NewFromConfig(cfg).Options().BaseEndpoint,
		Firehose: firehose.NewFromConfig(cfg).Options().BaseEndpoint,
		S3:       s3.NewFromConfig(cfg).Options().BaseEndpoint,
	} {
		a.endpoints[s] = aws.ToString(endpoint)
	}
	for _, s := range allServices {
		if a.Has(s) {
			a.Services = append(a.Services, s)
		}
	}
	if len(a.Services) == 0 {
		return nil, errors.New("no endpoint is named: set AWS_ENDPOINT_URL, or AWS_ENDPOINT_URL_S3 and the like, to one that is running; " + others)
	}
	if a.Name, a.Version, err = identify(ctx, a.endpoints[a.Services[len(a.Services)-1]]); err != nil {
		return nil, err
	}
	return a, nil
}

// identify asks an endpoint who it is. One that answers and does not say is unknown; one that
// does not answer is an error.
func identify(ctx context.Context, endpoint string) (name, version string, err error) {
	// MiniStack answers to LocalStack's path too.
	for _, h := range []struct{ name, path string }{{"ministack", ministackHealth}, {"moto", motoHealth}, {"localstack", localstackHealth}} {
		body, err := get(ctx, endpoint+h.path)
		if _, answered := errors.AsType[*statusError](err); answered {
			continue
		}
		if err != nil {
			return "", "", fmt.Errorf("ask who answers: %w", err)
		}
		var said struct{ Version string }
		if json.Unmarshal(body, &said) == nil {
			return h.name, said.Version, nil
		}
	}
	return "unknown", "", nil
}
