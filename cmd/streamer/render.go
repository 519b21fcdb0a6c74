package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"telemetrylake/athena/engine"
)

// A renderer writes the rows of an answer, one after the other.
type renderer interface {
	row(values []any) error
	end() error
}

func newRenderer(o queryOptions, out io.Writer, columns []engine.ResultColumn) (renderer, error) {
	switch o.output {
	case "csv":
		return newCSVRows(out, columns)
	case "json":
		return newJSONRows(out, columns)
	}
	t := &tableRows{out: out, columns: columns, limit: o.limit}
	if isTerminal(out) {
		t.width = terminalWidth()
	}
	return t, nil
}

const usualWidth = 80

// terminalWidth is what the shell says, if it does.
func terminalWidth() int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	return usualWidth
}

// valueText is a value other than NULL as text.
func valueText(v any, typ string) string {
	switch v := v.(type) {
	case string:
		return v
	case float64:
		return floatText(v)
	case time.Time:
		return timeText(v, typ)
	case []byte:
		return base64.StdEncoding.EncodeToString(v)
	case []any, map[string]any:
		var b bytes.Buffer
		writeJSON(&b, v, "")
		return b.String()
	}
	return fmt.Sprint(v)
}

// floatText has the digits that tell the number from every other.
func floatText(v float64) string {
	if a := math.Abs(v); a != 0 && (a < 1e-6 || a >= 1e21) {
		return strconv.FormatFloat(v, 'e', -1, 64)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

func timeText(t time.Time, typ string) string {
	switch {
	case typ == "DATE":
		return t.Format(time.DateOnly)
	case t.Nanosecond()%int(time.Millisecond) != 0:
		return t.Format("2006-01-02T15:04:05.000000Z")
	}
	return t.Format("2006-01-02T15:04:05.000Z")
}

// writeJSON writes a value. typ is the column's, "" inside a list or a map.
func writeJSON(b *bytes.Buffer, v any, typ string) {
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case bool, int64:
		fmt.Fprint(b, v)
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			writeJSON(b, strconv.FormatFloat(v, 'g', -1, 64), typ)
			return
		}
		b.WriteString(floatText(v))
	case []any:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			writeJSON(b, e, "")
		}
		b.WriteByte(']')
	case map[string]any:
		b.WriteByte('{')
		for i, name := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				b.WriteByte(',')
			}
			writeJSON(b, name, "")
			b.WriteByte(':')
			writeJSON(b, v[name], "")
		}
		b.WriteByte('}')
	default:
		enc := json.NewEncoder(b)
		enc.SetEscapeHTML(false)
		// A text can always be encoded, and the buffer takes it.
		_ = enc.Encode(valueText(v, typ))
		b.Truncate(b.Len() - 1) // the line break
	}
}

// jsonRows writes one document: a list of objects, an object a line.
type jsonRows struct {
	w       *bufio.Writer
	columns []engine.ResultColumn
	names   [][]byte // as JSON
	n       int
}

func newJSONRows(out io.Writer, columns []engine.ResultColumn) (*jsonRows, error) {
	r := &jsonRows{w: bufio.NewWriter(out), columns: columns}
	seen := map[string]bool{}
	for _, c := range columns {
		if seen[c.Name] {
			return nil, usagef("two columns are named %s, which an object of JSON cannot have; name one of them with AS", c.Name)
		}
		seen[c.Name] = true
		var b bytes.Buffer
		writeJSON(&b, c.Name, "")
		r.names = append(r.names, b.Bytes())
	}
	return r, nil
}

func (r *jsonRows) row(values []any) error {
	var b bytes.Buffer
	b.WriteString(",\n{")
	if r.n == 0 {
		b.Reset()
		b.WriteString("[\n{")
	}
	r.n++
	for i, v := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(r.names[i])
		b.WriteByte(':')
		writeJSON(&b, v, r.columns[i].Type)
	}
	b.WriteByte('}')
	_, err := r.w.Write(b.Bytes())
	return err
}

func (r *jsonRows) end() error {
	end := "\n]\n"
	if r.n == 0 {
		end = "[]\n"
	}
	r.w.WriteString(end)
	return r.w.Flush()
}

// csvRows writes CSV with a header. The standard library's writer does not tell an empty
// text from nothing; here NULL is an empty field, and the empty text is "".
type csvRows struct {
	w       *bufio.Writer
	columns []engine.ResultColumn
}

func newCSVRows(out io.Writer, columns []engine.ResultColumn) (*csvRows, error) {
	r := &csvRows{w: bufio.NewWriter(out), columns: columns}
	for i, c := range columns {
		r.field(i, c.Name)
	}
	return r, r.w.WriteByte('\n')
}

func (r *csvRows) field(i int, text string) {
	if i > 0 {
		r.w.WriteByte(',')
	}
	if text == "" || strings.ContainsAny(text, ",\"\r\n") || text[0] == ' ' || text[0] == '\t' {
		text = `"` + strings.ReplaceAll(text, `"`, `""`) + `"`
	}
	r.w.WriteString(text)
}

func (r *csvRows) row(values []any) error {
	for i, v := range values {
		if v != nil {
			r.field(i, valueText(v, r.columns[i].Type))
		} else if i > 0 {
			r.w.WriteByte(',')
		}
	}
	return r.w.WriteByte('\n')
}

func (r *csvRows) end() error { return r.w.Flush() }

// tableRows shows the first rows for people, and counts the others.
type tableRows struct {
	out     io.Writer
	columns []engine.ResultColumn
	limit   int // 0: none
	width   int // of the terminal; 0: none
	rows    [][]string
	more    int
}

func (r *tableRows) row(values []any) error {
	if r.limit > 0 && len(r.rows) == r.limit {
		r.more++
		return nil
	}
	row := make([]string, len(values))
	for i, v := range values {
		row[i] = tableCell(v, r.columns[i].Type)
	}
	r.rows = append(r.rows, row)
	return nil
}

const nullText = "NULL"

// tableCell shows what is no plain text such that it cannot be taken for another.
func tableCell(v any, typ string) string {
	if v == nil {
		return nullText
	}
	if s, ok := v.(string); ok && (s == "" || s == nullText) {
		return `"` + s + `"`
	}
	return printable(valueText(v, typ))
}

// printable writes what would move the cursor as an escape.
func printable(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	quoted := strconv.Quote(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

func (r *tableRows) end() error {
	w := bufio.NewWriter(r.out)
	if widths, ok := r.fit(); ok {
		r.printTable(w, widths)
	} else {
		r.printRecords(w)
	}
	total := len(r.rows) + r.more
	switch {
	case r.more > 0:
		fmt.Fprintf(w, "… %s; --limit 0 shows all\n", counted(r.more, "more row"))
	default:
		fmt.Fprintln(w, counted(total, "row"))
	}
	return w.Flush()
}

// gap is between two columns.
const gap = "  "

// narrowest is how far a column of text is cut; if that is not enough, rows are shown as
// lines. A day still fits.
const narrowest = 10

// fit says how wide the columns may be; ok is false if they do not fit. Only text is cut: of
// a number or a time a part would be another one.
func (r *tableRows) fit() (widths []int, ok bool) {
	widths = make([]int, len(r.columns))
	longest := 0
	for i, c := range r.columns {
		widths[i] = utf8.RuneCountInString(printable(c.Name))
		for _, row := range r.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		longest = max(longest, widths[i])
	}
	if r.width == 0 {
		return widths, true
	}
	for most := max(longest, narrowest); most >= narrowest; most-- {
		fitted := slices.Clone(widths)
		total := len(gap) * (len(widths) - 1)
		for i, c := range r.columns {
			if isText(c.Type) {
				fitted[i] = min(fitted[i], most)
			}
			total += fitted[i]
		}
		if total <= r.width {
			return fitted, true
		}
	}
	return nil, false
}

func isText(typ string) bool {
	switch {
	case strings.HasSuffix(typ, "[]"), strings.HasPrefix(typ, "STRUCT"), strings.HasPrefix(typ, "MAP"):
		return true
	}
	return typ == "VARCHAR" || typ == "BLOB"
}

func cut(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	if width < 1 {
		return ""
	}
	return string([]rune(s)[:width-1]) + "…"
}

func (r *tableRows) printTable(w *bufio.Writer, widths []int) {
	line := func(cells func(i int) string) {
		var b strings.Builder
		for i, width := range widths {
			if i > 0 {
				b.WriteString(gap)
			}
			text := cut(cells(i), width)
			pad := strings.Repeat(" ", width-utf8.RuneCountInString(text))
			if numericType(r.columns[i].Type) {
				text, pad = pad, text
			}
			b.WriteString(text + pad)
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
	line(func(i int) string { return printable(r.columns[i].Name) })
	line(func(i int) string { return strings.Repeat("-", widths[i]) })
	for _, row := range r.rows {
		line(func(i int) string { return row[i] })
	}
}

// printRecords shows each row as lines of name and value.
func (r *tableRows) printRecords(w *bufio.Writer) {
	widest := 0
	for _, c := range r.columns {
		widest = max(widest, utf8.RuneCountInString(printable(c.Name)))
	}
	widest = min(widest, r.width/2)
	for n, row := range r.rows {
		fmt.Fprintf(w, "-- row %d\n", n+1)
		for i, text := range row {
			name := cut(printable(r.columns[i].Name), widest)
			pad := strings.Repeat(" ", widest-utf8.RuneCountInString(name))
			fmt.Fprintln(w, name+pad+gap+cut(text, r.width-widest-len(gap)))
		}
	}
}

func numericType(typ string) bool {
	switch typ {
	case "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "FLOAT", "DOUBLE":
		return true
	}
	return strings.HasPrefix(typ, "DECIMAL")
}
