package main

import (
	"bufio"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"telemetrylake/athena"
	"telemetrylake/schemas"
)

// firstRows is how many rows of a long answer are shown.
const firstRows = 8

// print tells the story of the show, at most 80 columns wide where names allow it.
func (s *show) print(out io.Writer) error {
	w := bufio.NewWriter(out)
	c, r := s.feed.contract, s.result
	fmt.Fprintf(w, "From %s to %s on the virtual clock\n%s\n\n",
		s.feed.start.Format("2006-01-02 15:04"), s.clock.Now().UTC().Format("2006-01-02 15:04"), s.feed.name)
	table(w, nil, [][]string{
		{"Hot table " + c.Table, "written", count(r.Written)},
		{"", "written over or prolonged", count(r.Modified)},
		{"", "refused: the key was taken", count(r.Refused)},
		{"Stream", "records", count(r.StreamRecords)},
		{"", "of these, removals by TTL", count(r.TTLRemovals)},
		{"Windows", "begun, landed, committed", count(r.Windows)},
		{"Parts", "Parquet files put on Firehose", count(r.FirehoseRecords)},
		{"Staging objects", "made of them by Firehose", count(r.StagingObjects)},
		{"", "parts in each, least", count(r.PartsPerObject.Min)},
		{"", "median", count(r.PartsPerObject.Median)},
		{"", "most", count(r.PartsPerObject.Max)},
		{"Sealed objects", "in the lake, staging is empty", count(r.SealedObjects)},
	})
	fmt.Fprintf(w, "\nThe lake, counted by reading its files\n\n")
	var rows [][]string
	for _, t := range s.tables {
		rows = append(rows, []string{t.Name, roleText(t.Role), count(t.Rows), count(t.Objects), count(int(t.Bytes / 1024))})
	}
	table(w, []string{"table", "holds", "rows", "objects", "KiB"}, rows)
	fmt.Fprintf(w, "\n%s rows of %s have %s distinct keys. Gaps: %s.\n", count(r.LakeRows), c.Name, count(r.LakeDistinctKeys), count(r.Gaps))
	for _, a := range s.answers {
		s.printAnswer(w, a)
	}
	fmt.Fprintf(w, "\nTime to live passed\n\n")
	table(w, []string{"", "before", "after"}, [][]string{
		{"rows in the hot table", count(r.HotRowsBeforeTTL), count(r.HotRowsAfterTTL)},
		{"rows in the lake", count(s.before[0].Rows), count(r.LakeRows)},
	})
	s.printLake(w)
	fmt.Fprintf(w, "\n%.1f seconds\n", r.Seconds)
	return w.Flush()
}

func roleText(r schemas.Role) string {
	switch r {
	case schemas.Changes:
		return "readings written over"
	case schemas.Tombstones:
		return "deletions"
	case schemas.Quarantine:
		return "what fits no contract"
	}
	return "readings"
}

func (s *show) printAnswer(w io.Writer, a answer) {
	fmt.Fprintf(w, "\n%s\n", a.query.Purpose)
	if a.without != "" {
		fmt.Fprintf(w, "(%s)\n", a.without)
	}
	fmt.Fprintln(w)
	rows := a.rows[:min(len(a.rows), firstRows)]
	table(w, a.columns, rows)
	if more := len(a.rows) - len(rows); more > 0 {
		fmt.Fprintf(w, "  … %s\n", counted(more, "more row"))
	}
}

func (s *show) printLake(w io.Writer) {
	c := s.feed.contract
	fmt.Fprintf(w, "\nThe readings' table in Athena\n\n%s", athena.DDL(c.LakeTable(schemas.Readings), athena.Options{Location: "s3://" + lakeBucket}))
	if s.result.LakePath == "" {
		fmt.Fprintf(w, "\nThe lake was in a temporary folder and is removed. Keep it with --dir:\n  streamer demo --dir ./lake\n")
		return
	}
	fmt.Fprintf(w, "\nThe lake is in\n  %s\nTry\n", s.result.LakePath)
	if a := s.answers; len(a) > 0 && a[0].without == "" {
		fmt.Fprintf(w, "  streamer query --lake-dir %s %s\n", shellWord(s.lakeFolder()), a[0].query.Name)
	}
	fmt.Fprintf(w, "  duckdb -c \"SELECT * FROM '%s' LIMIT 10\"\n", filepath.ToSlash(filepath.Join(s.result.LakePath, "**", "*.parquet")))
}

// shellWord is a path as a shell takes it for one word.
func shellWord(path string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/\\:._-+,=@%", r)
	}
	if path != "" && !strings.ContainsFunc(path, func(r rune) bool { return !plain(r) }) {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// table prints columns apart by two spaces, columns of numbers on the right.
func table(w io.Writer, header []string, rows [][]string) {
	all := rows
	if header != nil {
		all = append([][]string{header}, rows...)
	}
	var width []int
	for _, row := range all {
		for i, text := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(text))
		}
	}
	for _, row := range all {
		var b strings.Builder
		for i, text := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(text))
			if numeric(rows, i) {
				text, pad = pad, text
			}
			b.WriteString("  " + text + pad)
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

func numeric(rows [][]string, column int) bool {
	for _, row := range rows {
		text := strings.ReplaceAll(row[column], ",", "")
		if _, err := strconv.ParseFloat(text, 64); err != nil && text != noValue {
			return false
		}
	}
	return len(rows) > 0
}

// counted is "1 row" or "7 rows".
func counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return count(n) + " " + thing
}

// count writes a number with a comma before each three digits.
func count(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
