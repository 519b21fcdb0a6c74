// Package containers gives a test an AWS: look-alikes that others wrote, in a container or as
// a process of their packages, whatever the SDK's endpoint variables name, and the embedded
// one, all by the same call. It knows how each is started, stopped and asked who it is, and
// nothing of those who use it. Its one rule: a test gets what it asked for, or fails with what
// to start instead; it is never given another AWS, and never the real one.
package containers

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"telemetrylake/testenv"
)

// A Kind is an AWS and the way it is started.
type Kind string

// The kinds. LocalStack, MiniStack and Moto are processes of packages that
// testenv/strangers/install.sh has installed; versions are those of testenv/versions.env.
const (
	Embedded   Kind = "embedded"   // testenv in the test's process, over HTTP
	Running    Kind = "running"    // what AWS_ENDPOINT_URL or AWS_ENDPOINT_URL_<SERVICE> name
	Container  Kind = "container"  // LocalStack's image, by testcontainers
	LocalStack Kind = "localstack" // LocalStack's packages
	MiniStack  Kind = "ministack"
	Moto       Kind = "moto"
)

// A Service is one of AWS's, spelled as AWS_ENDPOINT_URL_<SERVICE> spells it.
type Service string

// The services that a telemetry pipeline uses.
const (
	DynamoDB Service = "DYNAMODB"
	Streams  Service = "DYNAMODB_STREAMS"
	Firehose Service = "FIREHOSE"
	S3       Service = "S3"
)

var (
	allServices = []Service{DynamoDB, Streams, Firehose, S3}
	// LocalStack's DynamoDB is a download of its own (DynamoDB Local), which no package has.
	localStackServices = []Service{Firehose, S3}
)

// An AWS is one that answers, until the end of the test that started it.
type AWS struct {
	Kind     Kind
	Name     string // as it says itself; "unknown" if it does not
	Version  string // "" if it does not say
	Services []Service

	endpoints   map[Service]string
	region      string
	credentials aws.CredentialsProvider
	process     *process // nil: not one of ours
}

// Start starts an AWS and stops it when the test ends. A test that cannot have it fails.
func Start(t testing.TB, k Kind) *AWS {
	t.Helper()
	dir, err := os.MkdirTemp("", "aws-"+string(k)+"-")
	if err != nil {
		t.Fatal(err)
	}
	a, stop, err := start(t.Context(), k, dir)
	t.Cleanup(func() {
		if stop != nil {
			if err := stop(); err != nil {
				t.Errorf("stop %s: %v", k, err)
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatalf("start %s: %v", k, err)
	}
	return a
}

// start returns an AWS that keeps its files in dir, and what stops it, which may be there
// beside an error.
func start(ctx context.Context, k Kind, dir string) (*AWS, func() error, error) {
	switch k {
	case Embedded:
		return startEmbedded(ctx, dir)
	case Running:
		a, err := findRunning(ctx)
		return a, nil, err
	case Container:
		return startContainer(ctx, dockerAnswers)
	case LocalStack, MiniStack, Moto:
		return startPackage(ctx, packages[k], dir)
	}
	return nil, nil, fmt.Errorf("unknown kind %q of AWS", k)
}

// newAWS is one that answers all its services on one endpoint and looks at no credentials.
func newAWS(k Kind, endpoint string, services []Service) *AWS {
	a := &AWS{
		Kind: k, Services: services, endpoints: map[Service]string{}, region: testenv.DefaultRegion,
		credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	}
	for _, s := range services {
		a.endpoints[s] = endpoint
	}
	return a
}

// Has reports whether it answers for all of these services.
func (a *AWS) Has(services ...Service) bool {
	return !slices.ContainsFunc(services, func(s Service) bool { return a.endpoints[s] == "" })
}

// String is its name, version and endpoints.
func (a *AWS) String() string {
	var at []string
	for _, s := range a.Services {
		if !slices.Contains(at, a.endpoints[s]) {
			at = append(at, a.endpoints[s])
		}
	}
	return strings.TrimSpace(a.Name+" "+a.Version) + " on " + strings.Join(at, " and ")
}

// Config is what a client of the service is made from. It panics if a does not have the
// service: Has tells.
func (a *AWS) Config(s Service) aws.Config {
	if !a.Has(s) {
		panic(fmt.Sprintf("%s has no %s", a, s))
	}
	return aws.Config{Region: a.region, BaseEndpoint: aws.String(a.endpoints[s]), Credentials: a.credentials}
}

// Environ are the variables, NAME=value, with which another process uses these services of a;
// none named are all it has. Variables of two of them side by side name the services of each.
// They hold credentials.
func (a *AWS) Environ(ctx context.Context, services ...Service) ([]string, error) {
	if len(services) == 0 {
		services = a.Services
	}
	who, err := a.credentials.Retrieve(ctx)
	if err != nil {
		return nil, fmt.Errorf("find credentials for %s: %w", a, err)
	}
	env := []string{
		"AWS_REGION=" + a.region,
		"AWS_ACCESS_KEY_ID=" + who.AccessKeyID,
		"AWS_SECRET_ACCESS_KEY=" + who.SecretAccessKey,
		"AWS_EC2_METADATA_DISABLED=true",
	}
	if who.SessionToken != "" {
		env = append(env, "AWS_SESSION_TOKEN="+who.SessionToken)
	}
	for _, s := range services {
		if !a.Has(s) {
			return nil, fmt.Errorf("%s has no %s", a, s)
		}
		env = append(env, "AWS_ENDPOINT_URL_"+string(s)+"="+a.endpoints[s])
	}
	return env, nil
}

// startWait is how long one may take until it answers: a first start compiles thousands of
// Python files.
const startWait = 2 * time.Minute
