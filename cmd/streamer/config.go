package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"telemetrylake/schemas"
)

// settings are what run and the commands beside it are configured with. A setting has one
// name in three spellings, strongest first: the flag --window-age, STREAMER_WINDOW_AGE in the
// environment, window_age in the YAML file. Region, credentials and endpoints of AWS are not
// among them: they come from the SDK's own chain (AWS_REGION, AWS_ENDPOINT_URL, …).
type settings struct {
	Contract   string
	Table      string
	Stream     string
	Checkpoint string
	Delivery   string
	Land       string
	Staging    string
	Damaged    string
	Lake       string
	LakeDir    string

	WindowRecords int
	WindowBytes   int
	WindowAge     time.Duration
	SealEvery     time.Duration
	StopWithin    time.Duration

	Start string
	Pages int

	Lease    time.Duration
	TakeOver bool
	Standby  bool

	HTTP           string
	ReadyWithin    time.Duration
	UnsealedWithin time.Duration

	flags   *pflag.FlagSet
	origins map[string]string
}

// newSettings returns the defaults, and a flag for each setting.
func newSettings() *settings {
	s := &settings{flags: pflag.NewFlagSet("settings", pflag.ContinueOnError), origins: map[string]string{}}
	f := s.flags
	f.StringVar(&s.Contract, "contract", "", "contract of the table: a YAML file, or one of "+strings.Join(schemas.Names(), ", "))
	f.StringVar(&s.Table, "table", "", "DynamoDB table (default: the contract's)")
	f.StringVar(&s.Stream, "stream", "", "ARN of the stream to read (default: the table's; needed after that was enabled anew)")
	f.StringVar(&s.Checkpoint, "checkpoint-table", checkpointTable, "DynamoDB table for lanes, windows and claims")
	f.StringVar(&s.Delivery, "delivery-stream", "", "Firehose delivery stream (default: the table's name)")
	f.StringVar(&s.Land, "land", landFirehose, "how records come into the lake: firehose, through staging; s3, each part an object of --lake at once; dir:FOLDER, the same in a folder")
	f.StringVar(&s.Staging, "staging", "", "where Firehose delivers: s3://bucket/prefix/")
	f.StringVar(&s.Damaged, "damaged", "", "where bytes go that are no Parquet file: s3://bucket/prefix/ (default: damaged/ in the staging bucket)")
	f.StringVar(&s.Lake, "lake", "", "where the tables are: s3://bucket/prefix/")
	f.StringVar(&s.LakeDir, "lake-dir", "", "folder that holds the tables, to query without AWS")
	f.IntVar(&s.WindowRecords, "window-records", 100_000, "a window is committed when it has this many records")
	f.IntVar(&s.WindowBytes, "window-bytes", 64<<20, "a window is committed when its records have this many bytes as received")
	f.DurationVar(&s.WindowAge, "window-age", time.Minute, "a window is committed when its first record has waited this long")
	f.DurationVar(&s.SealEvery, "seal-every", time.Minute, "how often staging is looked at")
	f.DurationVar(&s.StopWithin, "stop-within", 20*time.Second, "after a signal, what is gathered is landed within this time, or left to the next start")
	f.StringVar(&s.Start, "start", "horizon", "where a stream that was never read begins: horizon is its oldest record, latest what comes from now on")
	f.IntVar(&s.Pages, "pages-per-second", 200, "pages of the stream that are read in a second, of all shards together: GetRecords is billed")
	f.DurationVar(&s.Lease, "lease", 30*time.Second, "a process that waits for the lane takes it when its holder has not been seen for this long")
	f.BoolVar(&s.TakeOver, "take-over", false, "take the lane at once, without waiting for its holder: only if that is known to be gone, it is ended otherwise")
	f.BoolVar(&s.Standby, "standby", false, "when another process has taken the lane, wait to take it back instead of ending")
	f.StringVar(&s.HTTP, "http", "", "address that answers /metrics, /healthz, /readyz and /integrity, such as 127.0.0.1:8080 (default: none)")
	f.DurationVar(&s.ReadyWithin, "ready-within", 5*time.Minute, "how long nothing may move although there is work, before /readyz and the log say so")
	f.DurationVar(&s.UnsealedWithin, "unsealed-within", 0, "how long a landed window may wait to be in the lake, before /integrity says so and it is landed again; 0s: 15m more than Firehose gathers")
	return s
}

// use gives a command the flags of the named settings, and --config.
func (s *settings) use(c *cobra.Command, names ...string) {
	for _, n := range names {
		f := s.flags.Lookup(n)
		if f == nil {
			panic("no setting " + n) // a mistake in this package, seen by every test
		}
		c.Flags().AddFlag(f)
		if n == "contract" {
			err := c.RegisterFlagCompletionFunc(n, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
				return schemas.Names(), cobra.ShellCompDirectiveDefault
			})
			if err != nil {
				panic(err) // it was registered twice: a mistake in this package
			}
		}
	}
	c.Flags().String("config", "", "YAML file with settings (environment: STREAMER_CONFIG)")
}

// madeIfNone is said of the checkpoint table where a command makes it.
const madeIfNone = "made if there is none"

// makesTable has a command's help say when the checkpoint table is made.
func (s *settings) makesTable(when string) { s.flags.Lookup("checkpoint-table").Usage += "; " + when }

func envName(setting string) string {
	return "STREAMER_" + strings.ToUpper(strings.ReplaceAll(setting, "-", "_"))
}

func yamlName(setting string) string { return strings.ReplaceAll(setting, "-", "_") }

// load fills in what the flags left open from the environment and the file, and remembers
// where each value came from.
func (s *settings) load(c *cobra.Command) error {
	path, _ := c.Flags().GetString("config")
	if path == "" {
		path = os.Getenv("STREAMER_CONFIG")
	}
	file, err := readConfig(path, s.flags)
	if err != nil {
		return usage(err)
	}
	errs := unknownVariables(s.flags)
	s.flags.VisitAll(func(f *pflag.Flag) {
		value, fromEnv := os.LookupEnv(envName(f.Name))
		entry, fromFile := file[f.Name]
		switch {
		case f.Changed:
			s.origins[f.Name] = "flag"
			return
		case fromEnv:
			s.origins[f.Name] = "environment"
		case fromFile:
			value, s.origins[f.Name] = entry.value, entry.at
		default:
			s.origins[f.Name] = "default"
			return
		}
		if err := f.Value.Set(value); err != nil {
			where := envName(f.Name)
			if !fromEnv {
				where = entry.at + ": " + yamlName(f.Name)
			}
			errs = append(errs, fmt.Errorf("%s: %q is no %s", where, value, kindOf(f)))
		}
	})
	errs = append(errs, s.check()...)
	if err := errors.Join(errs...); err != nil {
		return usage(err)
	}
	return nil
}

// unknownVariables refuses variables that look like settings and are none: a mistyped one would
// be silently without effect. Those of the tests are not settings.
func unknownVariables(known *pflag.FlagSet) []error {
	var errs []error
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		setting, ours := strings.CutPrefix(name, "STREAMER_")
		if !ours || setting == "CONFIG" || strings.HasPrefix(setting, "TEST_") || strings.HasPrefix(setting, "KILL_") {
			continue
		}
		if known.Lookup(strings.ToLower(strings.ReplaceAll(setting, "_", "-"))) == nil {
			errs = append(errs, fmt.Errorf("environment: %s is no setting; write STREAMER_ and one of %s in capitals, or unset it", name, settingNames(known)))
		}
	}
	return errs
}

// check refuses values that no run could work with, and says where they came from.
func (s *settings) check() []error {
	var errs []error
	refuse := func(name, why string) {
		errs = append(errs, fmt.Errorf("%s (from %s): %s", yamlName(name), s.origins[name], why))
	}
	for name, n := range map[string]int{"window-records": s.WindowRecords, "window-bytes": s.WindowBytes, "pages-per-second": s.Pages} {
		if n < 1 {
			refuse(name, fmt.Sprintf("%d is not above 0", n))
		}
	}
	if why := checkLand(s.Land); why != "" {
		refuse("land", why)
	}
	if s.Start != "horizon" && s.Start != "latest" {
		refuse("start", fmt.Sprintf("%q is neither horizon nor latest", s.Start))
	}
	for name, d := range map[string]time.Duration{"window-age": s.WindowAge, "seal-every": s.SealEvery, "ready-within": s.ReadyWithin} {
		if d <= 0 {
			refuse(name, fmt.Sprintf("%s is not above 0", d))
		}
	}
	if s.Lease < time.Second {
		refuse("lease", fmt.Sprintf("%s is below 1s", s.Lease))
	}
	for name, d := range map[string]time.Duration{"stop-within": s.StopWithin, "unsealed-within": s.UnsealedWithin} {
		if d < 0 {
			refuse(name, fmt.Sprintf("%s is below 0", d))
		}
	}
	return errs
}

func kindOf(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "duration":
		return "duration such as 90s or 15m"
	case "int":
		return "whole number"
	}
	return f.Value.Type()
}

// An entry is one line of a configuration file.
type entry struct{ value, at string }

// readConfig reads a YAML file of settings. Unknown and repeated keys are errors, with the
// line and the nearest name.
func readConfig(path string, known *pflag.FlagSet) (map[string]entry, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read configuration %s: there is no such file", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	var doc yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&doc); err != nil {
		if len(bytes.TrimSpace(text)) == 0 {
			return nil, nil
		}
		return nil, fmt.Errorf("read configuration %s: %w", path, err)
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: write settings as key: value lines", path, root.Line)
	}
	entries := map[string]entry{}
	var errs []error
	for i := 0; i < len(root.Content); i += 2 {
		k, v := root.Content[i], root.Content[i+1]
		at := fmt.Sprintf("%s:%d", path, k.Line)
		name := strings.ReplaceAll(k.Value, "_", "-")
		switch {
		case known.Lookup(name) == nil || strings.Contains(k.Value, "-"):
			errs = append(errs, fmt.Errorf("%s: unknown setting %q; write one of %s", at, k.Value, settingNames(known)))
		case v.Kind != yaml.ScalarNode:
			errs = append(errs, fmt.Errorf("%s: %s takes one value", at, k.Value))
		case entries[name] != entry{}:
			errs = append(errs, fmt.Errorf("%s: %s is set twice, first at %s", at, k.Value, entries[name].at))
		default:
			entries[name] = entry{v.Value, at}
		}
	}
	return entries, errors.Join(errs...)
}

func settingNames(known *pflag.FlagSet) string {
	var names []string
	known.VisitAll(func(f *pflag.Flag) { names = append(names, yamlName(f.Name)) })
	slices.Sort(names)
	return strings.Join(names, ", ")
}
