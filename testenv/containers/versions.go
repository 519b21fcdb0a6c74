package containers

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// versionsFile is where versions are pinned, in the module.
const versionsFile = "testenv/versions.env"

// versions reads the pinned versions of the module that the test runs in: go test runs it in
// the folder of its package.
func versions() (map[string]string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("look for %s: %w", versionsFile, err)
	}
	for from := dir; ; {
		f, err := os.Open(filepath.Join(dir, filepath.FromSlash(versionsFile)))
		if err == nil {
			defer f.Close()
			return parseVersions(f)
		}
		up := filepath.Dir(dir)
		if !errors.Is(err, fs.ErrNotExist) || up == dir {
			return nil, fmt.Errorf("look for %s from %s upwards: %w", versionsFile, from, err)
		}
		dir = up
	}
}

func parseVersions(f *os.File) (map[string]string, error) {
	v := map[string]string{}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok || strings.ContainsAny(line, " \t'\"$<>&|;()`\\") {
			return nil, fmt.Errorf("%s:%d: %q is not NAME=value without what a shell reads otherwise", f.Name(), n, line)
		}
		v[name] = value
	}
	return v, lines.Err()
}

// pinned is the version of a name in testenv/versions.env.
func pinned(name string) (string, error) {
	v, err := versions()
	if err == nil && v[name] == "" {
		err = fmt.Errorf("%s pins no %s", versionsFile, name)
	}
	return v[name], err
}
