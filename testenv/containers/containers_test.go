package containers

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/firehose"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// use calls each service of a once.
func use(t *testing.T, a *AWS) {
	t.Helper()
	ctx := t.Context()
	var errs []error
	for _, s := range a.Services {
		var err error
		switch s {
		case DynamoDB:
			_, err = dynamodb.NewFromConfig(a.Config(s)).ListTables(ctx, &dynamodb.ListTablesInput{})
		case Streams:
			_, err = dynamodbstreams.NewFromConfig(a.Config(s)).ListStreams(ctx, &dynamodbstreams.ListStreamsInput{})
		case Firehose:
			_, err = firehose.NewFromConfig(a.Config(s)).ListDeliveryStreams(ctx, &firehose.ListDeliveryStreamsInput{})
		case S3:
			client := s3.NewFromConfig(a.Config(s), func(o *s3.Options) { o.UsePathStyle = true })
			_, err = client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String("a-bucket")})
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		t.Errorf("%s: %v", a, err)
	}
}

// noEndpoints is an environment that leads nowhere.
func noEndpoints(t *testing.T) {
	t.Helper()
	for _, s := range append([]Service{""}, allServices...) {
		name := "AWS_ENDPOINT_URL"
		if s != "" {
			name += "_" + string(s)
		}
		t.Setenv(name, "") // t.Setenv restores what was there
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"} {
		t.Setenv(name, os.DevNull)
	}
	t.Setenv("AWS_PROFILE", "")
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
}

func TestEmbeddedAnswersForAllServices(t *testing.T) {
	a := Start(t, Embedded)
	if !a.Has(allServices...) {
		t.Fatalf("%s has %v", a, a.Services)
	}
	use(t, a)
}

func TestAnAWSEndsWithItsTest(t *testing.T) {
	var a *AWS
	t.Run("inner", func(t *testing.T) { a = Start(t, Embedded) })
	if _, err := get(t.Context(), a.endpoints[S3]); err == nil {
		t.Errorf("%s still answers", a)
	}
}

func TestRunningIsWhatTheVariablesName(t *testing.T) {
	noEndpoints(t)
	one, other := Start(t, Embedded), Start(t, Embedded)
	t.Setenv("AWS_ENDPOINT_URL", one.endpoints[S3])
	t.Setenv("AWS_ENDPOINT_URL_FIREHOSE", other.endpoints[Firehose])
	a := Start(t, Running)
	if !a.Has(allServices...) || a.endpoints[DynamoDB] != one.endpoints[DynamoDB] || a.endpoints[Firehose] != other.endpoints[Firehose] {
		t.Errorf("it is at %v, the variables name %s and for Firehose %s", a.endpoints, one, other)
	}
	use(t, a)
}

func TestRunningHasOnlyTheServicesThatAreNamed(t *testing.T) {
	noEndpoints(t)
	one := Start(t, Embedded)
	t.Setenv("AWS_ENDPOINT_URL_S3", one.endpoints[S3])
	a := Start(t, Running)
	if !slices.Equal(a.Services, []Service{S3}) || a.Has(DynamoDB) {
		t.Errorf("it has %v, one is named", a.Services)
	}
	use(t, a)
}

// Without an endpoint of one's own the SDK would lead to AWS itself.
func TestRunningIsNeverAWSItself(t *testing.T) {
	noEndpoints(t)
	_, stop, err := start(t.Context(), Running, t.TempDir())
	if stop != nil || err == nil || !strings.Contains(err.Error(), "AWS_ENDPOINT_URL") || !strings.Contains(err.Error(), "kind embedded") {
		t.Errorf("start: %v", err)
	}
}

func TestRunningSaysWhoItIs(t *testing.T) {
	for _, tt := range []struct{ name, path, body, want, version string }{
		{"localstack", localstackHealth, `{"services":{"s3":"running"},"edition":"community","version":"4.14.0"}`, "localstack", "4.14.0"},
		{"ministack", ministackHealth, `{"services":{"s3":"available"},"version":"1.5.33"}`, "ministack", "1.5.33"},
		{"moto", motoHealth, `{}`, "moto", ""},
		{"somebody", "/", `<html>`, "unknown", ""},
		{"what is no JSON", localstackHealth, `ok`, "unknown", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			noEndpoints(t)
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != tt.path {
					http.NotFound(w, r)
					return
				}
				_, _ = w.Write([]byte(tt.body))
			}))
			defer s.Close()
			t.Setenv("AWS_ENDPOINT_URL", s.URL)
			if a := Start(t, Running); a.Name != tt.want || a.Version != tt.version {
				t.Errorf("it is %s %s, want %s %s", a.Name, a.Version, tt.want, tt.version)
			}
		})
	}
}

// nothingListens is an address of this machine that nobody answers on.
func nothingListens(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	return s.URL
}

func TestRunningThatDoesNotAnswerIsAnError(t *testing.T) {
	noEndpoints(t)
	url := nothingListens(t)
	t.Setenv("AWS_ENDPOINT_URL", url)
	if _, _, err := start(t.Context(), Running, t.TempDir()); err == nil || !strings.Contains(err.Error(), url) {
		t.Errorf("start: %v", err)
	}
}

func TestWithoutDockerTheErrorSaysWhatToStartInstead(t *testing.T) {
	_, stop, err := startContainer(t.Context(), func(context.Context) error { return errors.New("no such socket") })
	if err == nil || stop != nil {
		t.Fatalf("start: %v", err)
	}
	for _, want := range []string{"no such socket", "DOCKER_HOST", "install.sh", "localstack, ministack, moto", "streamer local", "embedded"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not speak of %s: %v", want, err)
		}
	}
}

func TestPackageThatIsNotInstalledSaysHowToInstallIt(t *testing.T) {
	t.Setenv("STREAMER_TEST_STRANGERS", t.TempDir())
	for kind, p := range packages {
		_, _, err := start(t.Context(), kind, t.TempDir())
		if err == nil || !strings.Contains(err.Error(), "testenv/strangers/install.sh "+string(kind)) || !strings.Contains(err.Error(), p.distribution) {
			t.Errorf("start %s: %v", kind, err)
		}
	}
}

func TestUnknownKindIsAnError(t *testing.T) {
	if _, _, err := start(t.Context(), "azure", t.TempDir()); err == nil {
		t.Error("started")
	}
}

// Two of them side by side are one environment.
func TestEnvironNamesTheServicesOfEach(t *testing.T) {
	one, other := newAWS(Embedded, "http://127.0.0.1:1", allServices), newAWS(LocalStack, "http://127.0.0.1:2", localStackServices)
	first, err := one.Environ(t.Context(), DynamoDB, Streams)
	if err != nil {
		t.Fatal(err)
	}
	second, err := other.Environ(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := slices.Concat(first, second)
	for _, want := range []string{
		"AWS_ENDPOINT_URL_DYNAMODB=http://127.0.0.1:1", "AWS_ENDPOINT_URL_DYNAMODB_STREAMS=http://127.0.0.1:1",
		"AWS_ENDPOINT_URL_FIREHOSE=http://127.0.0.1:2", "AWS_ENDPOINT_URL_S3=http://127.0.0.1:2",
		"AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("no %s in %q", want, got)
		}
	}
	if slices.Contains(first, "AWS_ENDPOINT_URL_S3=http://127.0.0.1:1") {
		t.Errorf("S3 was not asked for: %q", first)
	}
	if _, err := other.Environ(t.Context(), DynamoDB); err == nil {
		t.Error("LocalStack has a DynamoDB")
	}
}

func TestVersionsPinEveryPackageAndTheImage(t *testing.T) {
	for _, name := range []string{"LOCALSTACK_IMAGE", "LOCALSTACK_PYTHON", "LOCALSTACK_REQUIREMENTS"} {
		if v, err := pinned(name); err != nil || v == "" {
			t.Errorf("%s: %q, %v", name, v, err)
		}
	}
	for kind, p := range packages {
		if v, err := pinned(p.pin); err != nil || strings.Count(v, ".") < 2 {
			t.Errorf("%s: %q, %v", kind, v, err)
		}
	}
	version, err := pinned("LOCALSTACK_VERSION")
	if err != nil {
		t.Fatal(err)
	}
	if image, _ := pinned("LOCALSTACK_IMAGE"); !strings.HasSuffix(image, ":"+version) {
		t.Errorf("the image is %s, the packages are %s", image, version)
	}
	if _, err := pinned("NOTHING"); err == nil {
		t.Error("a name that is not there is pinned")
	}
}

// What a shell would read otherwise than we do is refused.
func TestVersionsFileHoldsPlainValuesOnly(t *testing.T) {
	for text, ok := range map[string]bool{
		"# a comment\n\nA=1.2.3\nB=x:y,z==1\n": true, "A": false, "A='1'": false, "A=1 2": false, "A=$B": false, "A=a<2": false,
	} {
		name := filepath.Join(t.TempDir(), "versions.env")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		v, err := parseVersions(f)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if (err == nil) != ok || ok && (len(v) != 2 || v["A"] != "1.2.3") {
			t.Errorf("%q: %v, %v", text, v, err)
		}
	}
}
