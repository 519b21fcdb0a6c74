package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"telemetrylake/schemas"
)

// The README's contract is one that parses, and its commands exist with the flags it gives them.
func TestReadmeIsTrue(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```(\\w+)\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	contracts, commands := 0, 0
	for _, b := range blocks {
		switch b[1] {
		case "yaml":
			contracts++
			if _, err := schemas.Parse("README.md", []byte(b[2])); err != nil {
				t.Error(err)
			}
		case "sh":
			for _, line := range strings.Split(b[2], "\n") {
				words := strings.Fields(line)
				if len(words) < 2 || words[0] != "streamer" {
					continue
				}
				commands++
				c, rest, err := newRoot().Find(words[1:])
				if err != nil || c.CommandPath() != "streamer "+words[1] && !strings.HasPrefix(c.CommandPath(), "streamer "+words[1]+" ") {
					t.Errorf("%s: no such command: %v", line, err)
					continue
				}
				for _, w := range rest {
					if name, ok := strings.CutPrefix(w, "--"); ok && c.Flags().Lookup(strings.Split(name, "=")[0]) == nil {
						t.Errorf("%s: no flag %s", line, w)
					}
				}
			}
		}
	}
	if contracts == 0 || commands < 5 || !slices.ContainsFunc(blocks, func(b []string) bool { return strings.Contains(b[2], "go run ./cmd/streamer demo") }) {
		t.Errorf("found %d contracts and %d commands: is this the README?", contracts, commands)
	}
}
