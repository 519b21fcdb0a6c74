package main

import (
	"encoding/json"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// An outputKind is the value of -o, or of another flag that takes one of a few words.
type outputKind struct {
	value *string
	kinds []string
	flag  string // "" for -o
}

// choiceFlag adds a flag that takes one of the kinds; the first is the default.
func choiceFlag(f *pflag.FlagSet, value *string, name string, kinds ...string) {
	*value = kinds[0]
	f.Var(&outputKind{value, kinds, "--" + name}, name, strings.Join(kinds[:len(kinds)-1], ", ")+" or "+kinds[len(kinds)-1])
}

// outputFlag adds -o, which takes one of the kinds; the first is the default.
func outputFlag(f *pflag.FlagSet, value *string, kinds ...string) {
	*value = kinds[0]
	f.VarP(&outputKind{value, kinds, ""}, "output", "o", strings.Join(kinds[:len(kinds)-1], ", ")+" or "+kinds[len(kinds)-1])
}

func (o *outputKind) String() string { return *o.value }

func (o *outputKind) Type() string { return "kind" }

func (o *outputKind) Set(s string) error {
	switch {
	case slices.Contains(o.kinds, s):
		*o.value = s
		return nil
	case o.flag != "":
		return usagef("unknown %q; write %s %s", s, o.flag, strings.Join(o.kinds, " or "+o.flag+" "))
	}
	return usagef("unknown output %q; write -o %s", s, strings.Join(o.kinds, " or -o "))
}

// writeDocument writes one document for programs.
func writeDocument(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false) // no browser reads it
	return enc.Encode(v)
}
