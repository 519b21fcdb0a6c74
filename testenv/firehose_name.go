package testenv

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

const maxEvaluatedPrefix = 512

var partitionKey = regexp.MustCompile(`!\{partitionKeyFrom(Query|Lambda):[^}]+\}`)

// objectKey names an object whose oldest record arrived at t.
func (s *streamSettings) objectKey(t time.Time, ids *ids) string {
	t = t.UTC()
	prefix, timed, err := evaluatePrefix(s.prefix, t, ids)
	if err != nil {
		panic(fmt.Sprintf("evaluate prefix %q, which creation accepted: %v", s.prefix, err))
	}
	if !timed {
		prefix += t.Format("2006/01/02/15/")
	}
	return prefix + s.name + "-1-" + t.Format("2006-01-02-15-04-05") + "-" + ids.uuid() + s.extension
}

// evaluatePrefix replaces the expressions !{namespace:value}. timed says whether
// one of them was a timestamp.
func evaluatePrefix(prefix string, t time.Time, ids *ids) (out string, timed bool, err error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(prefix, "!{")
		b.WriteString(before)
		if !found {
			return b.String(), timed, nil
		}
		expression, after, closed := strings.Cut(rest, "}")
		namespace, value, ok := strings.Cut(expression, ":")
		if !closed || !ok {
			return "", false, fmt.Errorf("the expression !{%s is not of the form !{namespace:value}", expression)
		}
		switch {
		case namespace == "timestamp":
			timed = true
			text, err := javaTime(value, t)
			if err != nil {
				return "", false, err
			}
			b.WriteString(text)
		case namespace == "firehose" && value == "random-string":
			b.WriteString(ids.hex(11))
		default:
			return "", false, fmt.Errorf("the expression !{%s} is not implemented in this place", expression)
		}
		prefix = after
	}
}

// checkPrefixes holds both prefixes against the service's rules. Expressions for
// partition keys pass where dynamic partitioning gives them a meaning: such a
// stream takes no records here, but can be described.
func (f *firehose) checkPrefixes(d s3Destination) error {
	prefix := d.Prefix
	if d.DynamicPartitioningConfiguration.Enabled {
		prefix = partitionKey.ReplaceAllString(prefix, "")
	}
	for name, text := range map[string]string{
		"Prefix":            prefix,
		"ErrorOutputPrefix": strings.ReplaceAll(d.ErrorOutputPrefix, "!{firehose:error-output-type}", "processing-failed"),
	} {
		evaluated, _, err := evaluatePrefix(text, f.clock.Now().UTC(), f.ids)
		if err != nil {
			return invalidArgument("%s: %v", name, err)
		}
		if len(evaluated) > maxEvaluatedPrefix {
			return invalidArgument("%s: the evaluated prefix has more than %d characters", name, maxEvaluatedPrefix)
		}
	}
	if (strings.Contains(d.Prefix, "!{") || strings.Contains(d.ErrorOutputPrefix, "!{")) && !strings.Contains(d.ErrorOutputPrefix, "!{firehose:error-output-type}") {
		return invalidArgument("ErrorOutputPrefix must contain !{firehose:error-output-type} when it or Prefix contains expressions")
	}
	return nil
}

// javaTime formats t by a pattern of Java's DateTimeFormatter. Letters it does not
// know are an error, so that no pattern comes out wrong.
func javaTime(pattern string, t time.Time) (string, error) {
	var b strings.Builder
	for i := 0; i < len(pattern); {
		c := pattern[i]
		if c == '\'' {
			quoted, _, _ := strings.Cut(pattern[i+1:], "'")
			if quoted == "" {
				quoted = "'" // two quotes are one
				i += 2
			} else {
				i += len(quoted) + 2
			}
			b.WriteString(quoted)
			continue
		}
		n := 1
		for i+n < len(pattern) && pattern[i+n] == c {
			n++
		}
		i += n
		if c < 'A' || c > 'z' || c > 'Z' && c < 'a' {
			b.WriteString(strings.Repeat(string(rune(c)), n))
			continue
		}
		text, err := javaField(c, n, t)
		if err != nil {
			return "", err
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

func javaField(letter byte, n int, t time.Time) (string, error) {
	padded := func(v int) (string, error) { return fmt.Sprintf("%0*d", n, v), nil }
	switch letter {
	case 'y', 'u':
		if n == 2 {
			return padded(t.Year() % 100)
		}
		return padded(t.Year())
	case 'M', 'L':
		switch n {
		case 3:
			return t.Format("Jan"), nil
		case 4:
			return t.Format("January"), nil
		}
		return padded(int(t.Month()))
	case 'd':
		return padded(t.Day())
	case 'D':
		return padded(t.YearDay())
	case 'H':
		return padded(t.Hour())
	case 'k':
		return padded((t.Hour()+23)%24 + 1)
	case 'h':
		return padded((t.Hour()+11)%12 + 1)
	case 'K':
		return padded(t.Hour() % 12)
	case 'm':
		return padded(t.Minute())
	case 's':
		return padded(t.Second())
	case 'S':
		return (fmt.Sprintf("%09d", t.Nanosecond()) + strings.Repeat("0", n))[:n], nil
	case 'a':
		return t.Format("PM"), nil
	case 'E':
		if n == 4 {
			return t.Format("Monday"), nil
		}
		return t.Format("Mon"), nil
	}
	return "", fmt.Errorf("the letter %q of the timestamp pattern is not implemented", letter)
}
