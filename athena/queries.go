package athena

import (
	"embed"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"telemetrylake/schemas"
)

//go:embed queries/*.sql
var queryFiles embed.FS

// A Query is a query that we ship. Its text runs unchanged on Athena and on DuckDB, and
// names its table as the contract does.
type Query struct {
	Name       string
	Purpose    string // one line
	Contract   string // name of the contract
	Role       schemas.Role
	Parameters []Parameter // one for each ? of SQL, in order
	SQL        string      // without the header
}

// A Parameter is a value to bind, never to paste.
type Parameter struct {
	Name    string
	Type    ParameterType
	Default string
	Purpose string
}

// ParameterType says which texts a parameter takes.
type ParameterType string

// Day is a UTC day, as in 2026-11-30, bound as text: partition columns are text.
const Day ParameterType = "day"

// Queries are all queries that we ship, in alphabetical order.
func Queries() []Query {
	entries, err := queryFiles.ReadDir("queries")
	if err != nil {
		// An embedded directory cannot fail to be read.
		panic(err)
	}
	queries := make([]Query, len(entries))
	for i, e := range entries {
		text, err := queryFiles.ReadFile("queries/" + e.Name())
		if err != nil {
			panic(err)
		}
		queries[i], err = parseQuery(e.Name(), string(text))
		if err != nil {
			// The files are ours and a test parses each.
			panic(err)
		}
	}
	return queries
}

// Find finds a query that we ship.
func Find(name string) (Query, error) {
	var names []string
	for _, q := range Queries() {
		if q.Name == name {
			return q, nil
		}
		names = append(names, q.Name)
	}
	return Query{}, fmt.Errorf("find query %q: no such query; write one of %s", name, strings.Join(names, ", "))
}

// Args are the values to bind, in order. A parameter that values does not name takes its
// default.
func (q Query) Args(values map[string]string) ([]any, error) {
	var known []string
	args := make([]any, len(q.Parameters))
	for i, p := range q.Parameters {
		known = append(known, p.Name)
		value, given := values[p.Name]
		if !given {
			value = p.Default
		}
		if err := p.check(value); err != nil {
			return nil, fmt.Errorf("bind query %s: %w", q.Name, err)
		}
		args[i] = value
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("bind query %s: it has no parameter %q; write one of %s", q.Name, name, strings.Join(known, ", "))
		}
	}
	return args, nil
}

func (p Parameter) check(value string) error {
	if _, err := time.Parse(time.DateOnly, value); err != nil {
		return fmt.Errorf("parameter %s is %q; write a day, as in 2026-11-30", p.Name, value)
	}
	return nil
}

// parseQuery reads a query file: a header of comment lines "-- key: value", then SQL. A
// parameter's value is its name, type, default and purpose.
func parseQuery(file, text string) (Query, error) {
	q := Query{Name: strings.TrimSuffix(path.Base(file), ".sql")}
	fail := func(format string, args ...any) (Query, error) {
		return Query{}, fmt.Errorf("read query %s: %s", file, fmt.Sprintf(format, args...))
	}
	for {
		line, rest, _ := strings.Cut(text, "\n")
		header, ok := strings.CutPrefix(line, "-- ")
		if !ok {
			break
		}
		text = rest
		key, value, ok := strings.Cut(header, ": ")
		if !ok {
			return fail("header line %q is not of the form -- key: value", line)
		}
		switch value = strings.TrimSpace(value); key {
		case "purpose":
			q.Purpose = value
		case "contract":
			q.Contract = value
		case "role":
			q.Role = schemas.Role(value)
		case "parameter":
			words := strings.SplitN(value, " ", 4)
			if len(words) < 4 {
				return fail("parameter %q is not name, type, default and purpose", value)
			}
			p := Parameter{Name: words[0], Type: ParameterType(words[1]), Default: words[2], Purpose: words[3]}
			if p.Type != Day {
				return fail("parameter %s has no type %q; write %s", p.Name, p.Type, Day)
			}
			if err := p.check(p.Default); err != nil {
				return fail("default: %v", err)
			}
			q.Parameters = append(q.Parameters, p)
		default:
			return fail("unknown header key %q", key)
		}
	}
	q.SQL = strings.TrimSpace(text) + "\n"
	switch {
	case q.Purpose == "" || q.Contract == "" || q.Role == "":
		return fail("the header must have purpose, contract and role")
	case strings.Count(q.SQL, "?") != len(q.Parameters):
		return fail("%d parameters for %d question marks", len(q.Parameters), strings.Count(q.SQL, "?"))
	case strings.Contains(q.SQL, ";"):
		return fail("a semicolon; a file holds one statement without one")
	}
	return q, nil
}
