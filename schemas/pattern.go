package schemas

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Captures with a meaning of their own. Every other capture matches any text that is
// not empty.
const (
	// CaptureEventTime is the event time as text. It matches only the characters of an
	// ISO 8601 time, so a separator behind it is never part of it.
	CaptureEventTime = "event_time"
	// CaptureMonth is the UTC month of the event time. It matches only a real month, such
	// as 2026-11.
	CaptureMonth = "yyyy-mm"
)

// maxOptional bounds the ways a pattern can be read, which double with each optional
// piece.
const maxOptional = 3

// A Pattern composes the text of a key from captures: DEVICE#{device_id}[#{yyyy-mm}] is
// DEVICE#, the device's id, and optionally # and a month. The zero Pattern matches nothing.
//
// A capture may hold any character, the separators too. Where a text can be read in more
// than one way, optional pieces that can be there are there, the first one first, and then
// captures are as long as they can be, the first one first: DEVICE#a#b#2026-11 is device
// a#b in month 2026-11. Format refuses values that Match would read back differently.
type Pattern struct {
	text     string
	pieces   []piece
	variants [][]token // every choice of optional pieces, in the order they are tried
}

// A piece is a run of tokens that is there always, or only as a whole.
type piece struct {
	optional bool
	tokens   []token
}

// A token is a literal or a capture.
type token struct {
	literal string
	capture string
}

// ParsePattern reads a pattern. The error says what to write instead.
func ParsePattern(s string) (Pattern, error) {
	if s == "" {
		return Pattern{}, errors.New("pattern is empty; write for example DEVICE#{device_id}")
	}
	p := Pattern{text: s}
	seen := map[string]bool{}
	optionals := 0
	for rest := s; rest != ""; {
		if rest[0] != '[' {
			end := strings.IndexByte(rest, '[')
			if end < 0 {
				end = len(rest)
			}
			tokens, err := parseTokens(rest[:end], seen)
			if err != nil {
				return Pattern{}, fmt.Errorf("pattern %q: %w", s, err)
			}
			p.pieces = append(p.pieces, piece{tokens: tokens})
			rest = rest[end:]
			continue
		}
		end := strings.IndexByte(rest, ']')
		if end < 0 {
			return Pattern{}, fmt.Errorf("pattern %q: %q is never closed; write ] after the optional piece", s, "[")
		}
		if strings.Contains(rest[1:end], "[") {
			return Pattern{}, fmt.Errorf("pattern %q: an optional piece stands inside another; write them one after the other, as in [#{a}][#{b}]", s)
		}
		tokens, err := parseTokens(rest[1:end], seen)
		if err != nil {
			return Pattern{}, fmt.Errorf("pattern %q: %w", s, err)
		}
		if !slices.ContainsFunc(tokens, func(t token) bool { return t.capture != "" }) {
			return Pattern{}, fmt.Errorf("pattern %q: the optional piece %q has no capture, so nothing says when it is there; write it with one, as in [#{tie}]", s, rest[:end+1])
		}
		p.pieces = append(p.pieces, piece{optional: true, tokens: tokens})
		if optionals++; optionals > maxOptional {
			return Pattern{}, fmt.Errorf("pattern %q: more than %d optional pieces; make some of them required", s, maxOptional)
		}
		rest = rest[end+1:]
	}
	if len(seen) == 0 {
		return Pattern{}, fmt.Errorf("pattern %q has no capture, so every item would have the same key; write for example DEVICE#{device_id}", s)
	}
	return p.expand(optionals)
}

// expand lists the variants: the more pieces are there and the earlier they stand, the
// earlier the variant is tried.
func (p Pattern) expand(optionals int) (Pattern, error) {
	for absent := range 1 << optionals {
		var tokens []token
		bit := optionals
		for _, pc := range p.pieces {
			if pc.optional {
				// The last optional piece is the lowest bit, so it is the first to go.
				bit--
				if absent&(1<<bit) != 0 {
					continue
				}
			}
			tokens = append(tokens, pc.tokens...)
		}
		for i := 1; i < len(tokens); i++ {
			if tokens[i-1].capture != "" && tokens[i].capture != "" {
				return Pattern{}, fmt.Errorf("pattern %q: nothing separates {%s} from {%s}; write a separator between them, such as #",
					p.text, tokens[i-1].capture, tokens[i].capture)
			}
		}
		if len(tokens) > 0 {
			p.variants = append(p.variants, tokens)
		}
	}
	return p, nil
}

func parseTokens(s string, seen map[string]bool) ([]token, error) {
	var tokens []token
	for s != "" {
		i := strings.IndexAny(s, "{}]")
		switch {
		case i < 0:
			return append(tokens, token{literal: s}), nil
		case i > 0:
			tokens, s = append(tokens, token{literal: s[:i]}), s[i:]
		case s[0] != '{':
			return nil, fmt.Errorf("%q without its opening bracket; braces and brackets cannot be part of the text", s[:1])
		default:
			end := strings.IndexByte(s, '}')
			if end < 0 {
				return nil, fmt.Errorf("%q is never closed; write } after the capture's name", "{")
			}
			name := s[1:end]
			if name != CaptureMonth && !isIdentifier(name) {
				return nil, fmt.Errorf("{%s} is no capture; write letters, digits and underscores, as in {device_id}, or {%s}", name, CaptureMonth)
			}
			if seen[name] {
				return nil, fmt.Errorf("{%s} stands there twice; give each capture a name of its own", name)
			}
			seen[name] = true
			tokens, s = append(tokens, token{capture: name}), s[end+1:]
		}
	}
	return tokens, nil
}

func isIdentifier(s string) bool {
	for i, r := range []byte(s) {
		letter := r == '_' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}

// String is the pattern as it stands in the contract.
func (p Pattern) String() string { return p.text }

// IsZero reports whether the key has no pattern.
func (p Pattern) IsZero() bool { return p.text == "" }

// Captures are the names of the captures, in order.
func (p Pattern) Captures() []string {
	var names []string
	for _, pc := range p.pieces {
		for _, t := range pc.tokens {
			if t.capture != "" {
				names = append(names, t.capture)
			}
		}
	}
	return names
}

// Optional reports whether a key can lack the capture.
func (p Pattern) Optional(capture string) bool {
	for _, pc := range p.pieces {
		for _, t := range pc.tokens {
			if t.capture == capture {
				return pc.optional
			}
		}
	}
	return false
}

// Match reads a key. The result has an entry for each capture that is there, never an
// empty one; ok is false if the text does not fit the pattern.
func (p Pattern) Match(s string) (values map[string]string, ok bool) {
	for _, tokens := range p.variants {
		m := matcher{tokens: tokens}
		if m.match(0, s) {
			return m.values, true
		}
	}
	return nil, false
}

// A matcher tries the ways to read a text by one variant, longest captures first.
type matcher struct {
	tokens []token
	values map[string]string
	// failed holds the states that led nowhere, token and length of the rest. Without it a
	// text of many separators would be tried in exponentially many ways.
	failed map[[2]int]bool
}

func (m *matcher) match(i int, s string) bool {
	if i == len(m.tokens) {
		if s != "" {
			return false
		}
		m.values = make(map[string]string, len(m.tokens))
		return true
	}
	state := [2]int{i, len(s)}
	if m.failed[state] {
		return false
	}
	if m.try(i, s) {
		return true
	}
	if m.failed == nil {
		m.failed = map[[2]int]bool{}
	}
	m.failed[state] = true
	return false
}

func (m *matcher) try(i int, s string) bool {
	t := m.tokens[i]
	if t.capture == "" {
		return strings.HasPrefix(s, t.literal) && m.match(i+1, s[len(t.literal):])
	}
	end := len(s)
	for {
		if i+1 < len(m.tokens) {
			// The next token is a literal: a capture can only end where one begins.
			next := m.tokens[i+1].literal
			end = strings.LastIndex(s[:min(len(s), end+len(next)-1)], next)
		}
		if end <= 0 {
			return false
		}
		if fits(t.capture, s[:end]) && m.match(i+1, s[end:]) {
			m.values[t.capture] = s[:end]
			return true
		}
		if i+1 == len(m.tokens) {
			return false
		}
	}
}

// fits reports whether a text can be the value of a capture.
func fits(capture, s string) bool {
	switch capture {
	case CaptureMonth:
		if len(s) != len("2006-01") || s[4] != '-' {
			return false
		}
		for _, i := range []int{0, 1, 2, 3, 5, 6} {
			if s[i] < '0' || s[i] > '9' {
				return false
			}
		}
		return "01" <= s[5:] && s[5:] <= "12"
	case CaptureEventTime:
		return s != "" && strings.Trim(s, "0123456789TtZz:.+- ") == ""
	}
	return s != ""
}

// Format composes a key. Optional pieces are there when all their captures are given. It
// refuses a missing, unknown or unfit value, and values that Match would read back
// differently, such as a device id that ends like a month.
func (p Pattern) Format(values map[string]string) (string, error) {
	given := 0
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if values[name] == "" {
			continue
		}
		given++
		if !slices.Contains(p.Captures(), name) {
			return "", fmt.Errorf("format key %s: it has no capture {%s}", p, name)
		}
	}
	var b strings.Builder
	for _, pc := range p.pieces {
		if pc.optional && !slices.ContainsFunc(pc.tokens, func(t token) bool { return values[t.capture] != "" }) {
			continue
		}
		for _, t := range pc.tokens {
			if t.capture == "" {
				b.WriteString(t.literal)
				continue
			}
			v := values[t.capture]
			if v == "" {
				return "", fmt.Errorf("format key %s: no value for {%s}", p, t.capture)
			}
			if !fits(t.capture, v) {
				return "", fmt.Errorf("format key %s: %q cannot be {%s}", p, v, t.capture)
			}
			b.WriteString(v)
		}
	}
	key := b.String()
	back, ok := p.Match(key)
	if !ok || len(back) != given {
		return "", fmt.Errorf("format key %s: %q would be read back differently", p, key)
	}
	for name, v := range back {
		if values[name] != v {
			return "", fmt.Errorf("format key %s: %q would be read back with {%s} as %q, not %q", p, key, name, v, values[name])
		}
	}
	return key, nil
}
