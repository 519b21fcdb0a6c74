package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"
)

// A loadReport says what became of the rows of a file.
type loadReport struct {
	File          string        `json:"file"`
	Contract      string        `json:"contract"`
	Table         string        `json:"table"`
	Complete      bool          `json:"complete"` // the whole file was read
	Rows          int           `json:"rows"`
	Written       int           `json:"written"`
	Present       int           `json:"already_there"`
	Refused       int           `json:"refused"`
	Malformed     int           `json:"malformed"`
	RefusedRows   []refusedRow  `json:"refused_rows"`    // the first of them
	MalformedRows []malformedAt `json:"malformed_lines"` // the first of them
	LeftOut       []string      `json:"columns_left_out"`
	Seconds       float64       `json:"seconds"`
	RowsPerSecond float64       `json:"rows_per_second"`
}

type refusedRow struct {
	Line int    `json:"line"`
	Key  string `json:"key"`
}

type malformedAt struct {
	Line   int    `json:"line"`
	Reason string `json:"reason"`
}

func (l *loading) report(complete bool) loadReport {
	c := l.Counts()
	seconds := time.Since(l.begun).Seconds()
	r := loadReport{
		File: l.in.name, Contract: l.contract.Name, Table: l.contract.Table, Complete: complete,
		Rows: c.Rows(), Written: c.Written, Present: c.Present, Refused: c.Refused, Malformed: c.Malformed,
		// A document has lists where a list can be, also empty ones.
		RefusedRows: []refusedRow{}, MalformedRows: []malformedAt{}, LeftOut: []string{},
		Seconds: seconds, RowsPerSecond: float64(c.Rows()) / seconds,
	}
	for _, x := range c.RefusedLines {
		r.RefusedRows = append(r.RefusedRows, refusedRow{x.Line, x.Key})
	}
	for _, x := range c.MalformedLines {
		r.MalformedRows = append(r.MalformedRows, malformedAt{x.Line, x.Err.Error()})
	}
	if complete {
		r.LeftOut = append(r.LeftOut, l.mapper.LeftOut()...)
	}
	return r
}

// far says how far the load came; where is empty or ends with a space.
func (r loadReport) far(where string) string {
	are := "are"
	if r.Rows == 1 {
		are = "is"
	}
	return fmt.Sprintf("%s %s%s done: %s written, %s already there, %s refused", counted(r.Rows, "row"), where, are, count(r.Written), count(r.Present), count(r.Refused))
}

func (r loadReport) print(out io.Writer, output string) error {
	if output == "json" {
		return writeDocument(out, r)
	}
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "%s into %s\n\n", printable(r.File), r.Table)
	rows := [][]string{
		{"written", count(r.Written)},
		{"already there", count(r.Present)},
		{"refused: another item has the key", count(r.Refused)},
		{"malformed lines", count(r.Malformed)},
	}
	table(w, nil, rows)
	fmt.Fprintf(w, "\n%s in %.1f seconds, %s a second\n", counted(r.Rows, "row"), r.Seconds, count(int(r.RowsPerSecond)))
	if !r.Complete {
		fmt.Fprintln(w, "Not the whole file. The same command goes on: what is there is left as it is.")
	}
	if len(r.LeftOut) > 0 {
		fmt.Fprintf(w, "Columns left out: %s\n", printable(strings.Join(r.LeftOut, ", ")))
	}
	if r.Refused > 0 {
		fmt.Fprintf(w, "\nRefused, by line\n\n")
		for _, x := range r.RefusedRows {
			fmt.Fprintf(w, "  %s:%d  %s\n", printable(r.File), x.Line, printable(x.Key))
		}
		more(w, r.Refused-len(r.RefusedRows))
	}
	if r.Malformed > 0 {
		fmt.Fprintf(w, "\nMalformed, by line\n\n")
		for _, x := range r.MalformedRows {
			fmt.Fprintf(w, "  %s:%d: %s\n", printable(r.File), x.Line, printable(x.Reason))
		}
		more(w, r.Malformed-len(r.MalformedRows))
	}
	return w.Flush()
}

func more(w io.Writer, n int) {
	if n > 0 {
		fmt.Fprintf(w, "  … %s more\n", count(n))
	}
}
