package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

func loadSettings(t *testing.T, file string, args ...string) (*settings, error) {
	t.Helper()
	s := newSettings()
	c := &cobra.Command{RunE: func(c *cobra.Command, _ []string) error { return s.load(c) }, SilenceErrors: true, SilenceUsage: true}
	s.use(c, "window-age", "window-records", "lake")
	if file != "" {
		path := filepath.Join(t.TempDir(), "streamer.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	c.SetArgs(args)
	return s, c.Execute()
}

func TestFlagBeatsEnvironmentBeatsFileBeatsDefault(t *testing.T) {
	t.Setenv("STREAMER_WINDOW_AGE", "2m")
	t.Setenv("STREAMER_LAKE", "s3://env/")
	s, err := loadSettings(t, "window_age: 3m\nwindow_records: 7\nlake: s3://file/\n", "--lake", "s3://flag/")
	if err != nil {
		t.Fatal(err)
	}
	if s.Lake != "s3://flag/" || s.WindowAge != 2*time.Minute || s.WindowRecords != 7 || s.SealEvery != time.Minute {
		t.Errorf("lake %s, age %s, records %d, seal every %s", s.Lake, s.WindowAge, s.WindowRecords, s.SealEvery)
	}
	for name, want := range map[string]string{"lake": "flag", "window-age": "environment", "seal-every": "default"} {
		if got := s.origins[name]; got != want {
			t.Errorf("%s comes from %q, want %q", name, got, want)
		}
	}
	if got := s.origins["window-records"]; !strings.HasSuffix(got, "streamer.yaml:2") {
		t.Errorf("window-records comes from %q, want the file's line 2", got)
	}
}

func TestBadConfigurationNamesLineAndRemedy(t *testing.T) {
	for _, tc := range []struct{ file, want string }{
		{"window_ages: 3m\n", `streamer.yaml:1: unknown setting "window_ages"; write one of `},
		{"\nwindow-age: 3m\n", `streamer.yaml:2: unknown setting "window-age"`},
		{"window_age: soon\n", `streamer.yaml:1: window_age: "soon" is no duration such as 90s or 15m`},
		{"window_records: 1.5\n", `"1.5" is no whole number`},
		{"window_age: 3m\nwindow_age: 4m\n", "streamer.yaml:2: window_age is set twice, first at "},
		{"window_age: [3m]\n", "streamer.yaml:1: window_age takes one value"},
		{"window_records: 0\n", "streamer.yaml:1): 0 is not above 0"},
		{"window_age: -3s\n", "-3s is not above 0"},
		{"- window_age\n", "streamer.yaml:1: write settings as key: value lines"},
	} {
		_, err := loadSettings(t, tc.file)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("file %q: error %v, want it to contain %q", tc.file, err, tc.want)
		}
		if err != nil && exitCode(err) != exitUsage {
			t.Errorf("file %q: exit code %d, want %d", tc.file, exitCode(err), exitUsage)
		}
	}
}

func TestEmptyConfigurationFileSetsNothing(t *testing.T) {
	s, err := loadSettings(t, "\n")
	if err != nil || s.WindowAge != time.Minute {
		t.Errorf("age %s, error %v", s.WindowAge, err)
	}
}

func TestAMistypedVariableIsNotSilentlyWithoutEffect(t *testing.T) {
	t.Setenv("STREAMER_WINDOW_AG", "3s")
	if _, err := loadSettings(t, ""); err == nil || !strings.Contains(err.Error(), "STREAMER_WINDOW_AG is no setting") || exitCode(err) != exitUsage {
		t.Errorf("error %v", err)
	}
}
