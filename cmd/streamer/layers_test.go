package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A layer is what a package may import.
type layer struct {
	ours []string // packages of this module
	aws  []string // packages of the AWS SDK below service/ and feature/; its core is free for all that have one
	pure bool     // no files, sockets or databases: what it needs is handed to it
}

const (
	module = "telemetrylake/"
	awsSDK = "github.com/aws/aws-sdk-go-v2/"
)

var (
	onSchemas  = []string{"schemas"}
	onPipeline = []string{"pipeline", "schemas"}
)

// layers are the packages of the module, with those that are to come.
var layers = map[string]layer{
	"schemas":       {pure: true},
	"athena":        {ours: onSchemas, pure: true},
	"athena/engine": {ours: []string{"athena", "schemas"}, aws: []string{"service/athena", "service/athena/types"}},
	"pipeline":      {ours: onSchemas, aws: []string{"service/dynamodbstreams/types"}, pure: true},
	"pipeline/stream": {ours: onPipeline, aws: []string{
		"service/dynamodbstreams", "service/dynamodbstreams/types",
	}},
	"pipeline/columnar": {ours: onPipeline, aws: []string{"service/dynamodbstreams/types"}, pure: true},
	"pipeline/lake": {ours: onPipeline, aws: []string{
		"service/s3", "service/s3/types", "service/firehose", "service/firehose/types",
	}},
	"pipeline/seal": {ours: onPipeline, pure: true},
	"pipeline/checkpoint": {ours: onPipeline, aws: []string{
		"service/dynamodb", "service/dynamodb/types", "feature/dynamodb/attributevalue",
	}},
	"pipeline/backfill": {ours: onPipeline, aws: []string{
		"service/dynamodb", "service/dynamodb/types", "service/dynamodbstreams/types", "service/s3", "service/s3/types",
	}},
	"pipeline/hot":          {ours: onSchemas, aws: []string{"service/dynamodb", "service/dynamodb/types"}},
	"pipeline/deploy":       {ours: onSchemas},
	"pipeline/observe":      {ours: onPipeline},
	"pipeline/pipelinetest": {ours: onPipeline, aws: []string{"service/dynamodbstreams/types"}},
	"testenv":               {},
	"testenv/containers": {ours: []string{"testenv"}, aws: []string{
		"service/dynamodb", "service/dynamodbstreams", "service/s3", "service/firehose",
	}},
	"cmd/streamer": {ours: []string{
		"schemas", "athena", "athena/engine", "pipeline", "pipeline/stream", "pipeline/columnar", "pipeline/lake", "pipeline/seal",
		"pipeline/checkpoint", "pipeline/backfill", "pipeline/hot", "pipeline/deploy", "pipeline/observe", "testenv",
	}, aws: []string{
		"service/dynamodb", "service/dynamodb/types", "service/dynamodbstreams", "service/firehose", "service/firehose/types",
		"service/s3", "service/s3/types", "service/athena", "service/lambda", "service/lambda/types",
	}},
}

// owners are the libraries and who may import them; the longest prefix of a path counts.
var owners = map[string][]string{
	"github.com/apache/arrow-go/v18":               {"pipeline/columnar"},
	"github.com/apache/arrow-go/v18/arrow":         {"pipeline", "pipeline/columnar", "pipeline/pipelinetest", "cmd/streamer"}, // a data type
	"github.com/apache/arrow-go/v18/arrow/memory":  {"pipeline/columnar", "pipeline/pipelinetest", "cmd/streamer"},
	"github.com/apache/arrow-go/v18/arrow/array":   {"pipeline/columnar"},
	"github.com/apache/arrow-go/v18/arrow/compute": {"pipeline/columnar"},
	"github.com/apache/arrow-go/v18/parquet":       {"pipeline/columnar"},
	"github.com/parquet-go/parquet-go":             {"pipeline/seal"},
	"github.com/duckdb/duckdb-go/v2":               {"athena/engine"},
	"database/sql":                                 {"athena/engine"},
	"go.yaml.in/yaml/v3":                           {"schemas", "cmd/streamer"}, // contracts, and the configuration file
	"golang.org/x/sync":                            {"cmd/streamer", "testenv/containers"},
	"github.com/spf13/pflag":                       {"cmd/streamer"},
	"github.com/cockroachdb/pebble/v2":             {"testenv"},
	"github.com/spf13/cobra":                       {"cmd/streamer"},
	"github.com/truora/minidyn":                    {"testenv"},
	"github.com/tidwall/btree":                     {"testenv"},
	"github.com/prometheus/client_golang":          {"pipeline/observe"},
	"github.com/testcontainers/testcontainers-go":  {"testenv/containers"},
	"github.com/aws/smithy-go":                     {"pipeline/stream", "pipeline/lake", "pipeline/checkpoint", "pipeline/hot", "pipeline/backfill", "cmd/streamer"},
	"github.com/moby/moby/api":                     {"testenv/containers"}, // testcontainers' own words
	"github.com/aws/aws-sdk-go-v2/config":          {"cmd/streamer", "testenv/containers"},
	"github.com/aws/aws-lambda-go":                 {"cmd/streamer"},
}

// outside are standard packages that reach out of the process.
var outside = []string{"os", "os/exec", "net", "net/http", "syscall", "database/sql", "io/ioutil"}

var badNames = []string{"util", "utils", "common", "model", "models", "mock", "mocks", "helpers", "misc"}

const maxLines = 500

// A sourceFile is one Go file, by its path in the module.
type sourceFile struct{ path, text string }

// checkLayers returns what the files do against the layout, in order.
func checkLayers(files []sourceFile) []string {
	var problems []string
	documented := map[string]bool{}
	for _, f := range files {
		if strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		dir := path.Dir(f.path)
		fail := func(format string, args ...any) {
			problems = append(problems, f.path+": "+fmt.Sprintf(format, args...))
		}
		file, err := parser.ParseFile(token.NewFileSet(), f.path, f.text, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			fail("%v", err)
			continue
		}
		documented[dir] = documented[dir] || hasDoc(file)
		if slices.Contains(badNames, file.Name.Name) || slices.Contains(badNames, path.Base(dir)) {
			fail("the package's name says nothing: name what it knows")
		}
		if n := strings.Count(f.text, "\n"); n > maxLines {
			fail("%d lines; split the file, at most %d", n, maxLines)
		}
		l, ok := layers[dir]
		if !ok {
			fail("package %s is not in the layout", dir)
			continue
		}
		for _, imp := range file.Imports {
			name, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				fail("%v", err)
				continue
			}
			if why := l.refuse(dir, name); why != "" {
				fail("imports %s: %s", name, why)
			}
		}
	}
	for dir, ok := range documented {
		if !ok {
			problems = append(problems, dir+": the package has no doc comment")
		}
	}
	slices.Sort(problems)
	return problems
}

// hasDoc tells a doc comment from a build constraint and the like.
func hasDoc(f *ast.File) bool {
	return f.Doc != nil && strings.TrimSpace(f.Doc.Text()) != "" && len(strings.Fields(f.Doc.Text())) > 5
}

// refuse says why a package of this layer may not import another; "" if it may.
func (l layer) refuse(dir, name string) string {
	if ours, ok := strings.CutPrefix(name, module); ok {
		if !slices.Contains(l.ours, ours) {
			return "arrows point down, and adapters do not know each other"
		}
		return ""
	}
	if l.pure && slices.Contains(outside, name) {
		return "the package does no I/O of its own"
	}
	if owned, ok := owner(name); ok {
		if !slices.Contains(owned, dir) {
			return fmt.Sprintf("the library belongs to %v", owned)
		}
		return ""
	}
	if sdk, ok := strings.CutPrefix(name, awsSDK); ok {
		service := strings.HasPrefix(sdk, "service/") || strings.HasPrefix(sdk, "feature/")
		switch {
		case service && !slices.Contains(l.aws, sdk):
			return "the AWS client is not on the package's list"
		case !service && l.aws == nil && dir != "testenv":
			return "the package has no AWS client"
		}
		return ""
	}
	if first, _, _ := strings.Cut(name, "/"); strings.Contains(first, ".") {
		return "the library has no owner"
	}
	return ""
}

func owner(name string) ([]string, bool) {
	longest := ""
	for prefix := range owners {
		if (name == prefix || strings.HasPrefix(name, prefix+"/")) && len(prefix) > len(longest) {
			longest = prefix
		}
	}
	return owners[longest], longest != ""
}

func TestSourcesKeepToTheLayout(t *testing.T) {
	root := filepath.Join("..", "..")
	var files []sourceFile
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(rel, ".") && rel != ".") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(name) != ".go" {
			return nil
		}
		text, err := os.ReadFile(name)
		files = append(files, sourceFile{filepath.ToSlash(rel), string(text)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 50 {
		t.Fatalf("only %d files below %s: the test looks in the wrong place", len(files), root)
	}
	for _, p := range checkLayers(files) {
		t.Error(p)
	}
}

// The test above is worth nothing if the checker lets things pass.
func TestLayoutCheckerRefuses(t *testing.T) {
	const doc = "// Package x knows one thing and keeps to one rule.\n"
	source := func(pkg string, imports ...string) string {
		text := doc + "package " + pkg + "\n"
		for _, i := range imports {
			text += "import _ " + strconv.Quote(i) + "\n"
		}
		return text
	}
	tests := []struct {
		name string
		file sourceFile
		want string // part of the one problem; "" for none
	}{
		{"nothing", sourceFile{"schemas/a.go", source("schemas", "io", "go.yaml.in/yaml/v3")}, ""},
		{"an arrow that points down", sourceFile{"athena/a.go", source("athena", "telemetrylake/schemas")}, ""},
		{"an arrow that points up", sourceFile{"schemas/a.go", source("schemas", "telemetrylake/pipeline")}, "arrows point down"},
		{"an adapter that knows another", sourceFile{"pipeline/seal/a.go", source("seal", "telemetrylake/pipeline/lake")}, "adapters do not know"},
		{"the product with containers", sourceFile{"cmd/streamer/a.go", source("main", "telemetrylake/testenv/containers")}, "arrows point down"},
		{"test stages in the product", sourceFile{"cmd/streamer/a.go", source("main", "telemetrylake/pipeline/pipelinetest")}, "arrows point down"},
		{"testenv that knows us", sourceFile{"testenv/a.go", source("testenv", "telemetrylake/schemas")}, "arrows point down"},
		{"arrow's arrays elsewhere", sourceFile{"pipeline/seal/a.go", source("seal", "github.com/apache/arrow-go/v18/arrow/array")}, "belongs to [pipeline/columnar]"},
		{"arrow's types where they cross", sourceFile{"pipeline/a.go", source("pipeline", "github.com/apache/arrow-go/v18/arrow")}, ""},
		{"the second reader as the first", sourceFile{"pipeline/columnar/a.go", source("columnar", "github.com/parquet-go/parquet-go")}, "belongs to [pipeline/seal]"},
		{"DuckDB in the pipeline", sourceFile{"pipeline/lake/a.go", source("lake", "github.com/duckdb/duckdb-go/v2")}, "belongs to [athena/engine]"},
		{"YAML in the pipeline", sourceFile{"pipeline/a.go", source("pipeline", "go.yaml.in/yaml/v3")}, "belongs to [schemas cmd/streamer]"},
		{"a library without owner", sourceFile{"pipeline/a.go", source("pipeline", "example.com/left-pad")}, "no owner"},
		{"a client that is not on the list", sourceFile{"pipeline/stream/a.go", source("stream", awsSDK+"service/s3")}, "not on the package's list"},
		{"a client in the vocabulary", sourceFile{"pipeline/a.go", source("pipeline", awsSDK+"service/dynamodbstreams")}, "not on the package's list"},
		{"AWS in seal", sourceFile{"pipeline/seal/a.go", source("seal", awsSDK+"aws")}, "no AWS client"},
		{"files in the vocabulary", sourceFile{"pipeline/a.go", source("pipeline", "os")}, "no I/O"},
		{"sockets in the DDL", sourceFile{"athena/a.go", source("athena", "net/http")}, "no I/O"},
		{"a package outside the layout", sourceFile{"tools/a.go", source("tools")}, "not in the layout"},
		{"a name that says nothing", sourceFile{"pipeline/columnar/a.go", source("utils")}, "says nothing"},
		{"no doc comment", sourceFile{"athena/a.go", "package athena\n"}, "no doc comment"},
		{"a build constraint for a doc comment", sourceFile{"athena/a.go", "//go:build linux\n\npackage athena\n"}, "no doc comment"},
		{"a long file", sourceFile{"athena/a.go", source("athena") + strings.Repeat("\n", maxLines)}, "split the file"},
		{"a long test", sourceFile{"athena/a_test.go", source("athena", "os", "telemetrylake/pipeline") + strings.Repeat("\n", maxLines)}, ""},
		{"what is no Go", sourceFile{"athena/a.go", "packag athena"}, "expected 'package'"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := checkLayers([]sourceFile{tt.file})
			if tt.want == "" && len(got) > 0 || tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)) {
				t.Errorf("problems %q, want one with %q", got, tt.want)
			}
		})
	}
}
