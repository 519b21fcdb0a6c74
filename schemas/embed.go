package schemas

import (
	"embed"
	"fmt"
	"path"
	"strings"
)

//go:embed *.yaml
var files embed.FS

// Names are the contracts that the program carries, in alphabetical order.
func Names() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		// An embedded directory cannot fail to be read.
		panic(err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = strings.TrimSuffix(e.Name(), path.Ext(e.Name()))
	}
	return names
}

// Load reads one of the contracts that the program carries.
func Load(name string) (*Contract, error) {
	text, err := files.ReadFile(name + ".yaml")
	if err != nil {
		return nil, fmt.Errorf("load contract %q: no such contract; write one of %s", name, strings.Join(Names(), ", "))
	}
	return Parse("schemas/"+name+".yaml", text)
}
