package columnar

import (
	"fmt"
	"unicode/utf8"
)

// Reasons for quarantine: the stable words of the reason column.
const (
	ReasonKey               = "key"                // a key attribute does not fit its pattern
	ReasonMissing           = "missing"            // no value, or NULL, for a column that needs one
	ReasonType              = "type"               // another DynamoDB type than the column's
	ReasonRange             = "range"              // outside what the column's type can hold
	ReasonScale             = "scale"              // finer than what the column's type can hold
	ReasonFormat            = "format"             // a text that does not read as the column's type
	ReasonOutsideProjection = "outside_projection" // an event time in a partition that no query looks at
)

// Reasons lists them.
func Reasons() []string {
	return []string{ReasonKey, ReasonMissing, ReasonType, ReasonRange, ReasonScale, ReasonFormat, ReasonOutsideProjection}
}

// A misfit says why a record does not fit its contract. nil means that it does.
type misfit struct {
	reason string
	detail string // for people
}

func misfitf(reason, format string, args ...any) *misfit {
	return &misfit{reason, fmt.Sprintf(format, args...)}
}

// in puts where it happened in front of the detail.
func (m *misfit) in(where string) *misfit {
	if m == nil {
		return nil
	}
	return &misfit{m.reason, where + ": " + m.detail}
}

// clip keeps details readable: the whole value stands beside them in the item.
func clip(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
