package hot

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// maxLine is the longest line of JSON that is read: ten times an item's limit of 400 KB, for
// escapes and base64 take room.
const maxLine = 4 << 20

// An ItemReader makes items of the rows of a file: CSV with a header, or JSON Lines, an
// object a line. A line {"Item":{…}} of DynamoDB JSON, as an export to S3 writes it, is an
// item as it stands.
type ItemReader struct {
	name   string
	mapper *Mapper
	csv    *csv.Reader   // nil for JSON Lines
	lines  *bufio.Reader // nil for CSV
	plan   []column
	line   int // last line begun
	dead   error
}

// NewItemReader reads the beginning of a file. The name says what the file holds: .csv, or
// .jsonl, .ndjson or .json, each with .gz or without; under any other name a first character
// { means JSON. A file is taken for gzipped by its first bytes. An error is about the file,
// or a *LineError about its header.
func NewItemReader(in io.Reader, name string, m *Mapper) (*ItemReader, error) {
	r := &ItemReader{name: name, mapper: m}
	text, err := uncompressed(in, name)
	if err != nil {
		return nil, err
	}
	buffered := bufio.NewReaderSize(text, 64<<10)
	if isJSON(name, buffered) {
		r.lines = buffered
		return r, nil
	}
	r.csv = csv.NewReader(buffered)
	r.csv.ReuseRecord = true
	header, err := readHeader(r.csv)
	r.line = 1
	if err == nil {
		r.plan, err = m.plan(header)
	}
	if err != nil {
		return nil, r.fatal(1, err)
	}
	return r, nil
}

// uncompressed returns the text of a file that may be gzipped.
func uncompressed(in io.Reader, name string) (io.Reader, error) {
	buffered := bufio.NewReaderSize(in, 64<<10)
	magic, err := buffered.Peek(2)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("read %s: %w", name, err)
	case string(magic) == "\x1f\x8b":
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		return z, nil
	case strings.HasSuffix(name, ".gz"):
		return nil, fmt.Errorf("read %s: it is not gzipped, though its name says so", name)
	}
	return buffered, nil
}

// byteOrderMark is what spreadsheets begin a text with.
const byteOrderMark = "\ufeff"

func isJSON(name string, in *bufio.Reader) bool {
	switch filepath.Ext(strings.TrimSuffix(strings.ToLower(name), ".gz")) {
	case ".csv":
		return false
	case ".json", ".jsonl", ".ndjson":
		return true
	}
	// One byte more at a time: a pipe may have no more yet.
	for n := 1; ; n++ {
		start, err := in.Peek(n)
		first := bytes.TrimSpace(bytes.TrimPrefix(start, []byte(byteOrderMark)))
		// What cannot be peeked at fails again when it is read.
		if err != nil || len(first) > 0 && !strings.HasPrefix(byteOrderMark, string(first)) {
			return bytes.HasPrefix(first, []byte("{"))
		}
	}
}

// readHeader reads the names of a CSV file's columns.
func readHeader(in *csv.Reader) ([]string, error) {
	record, err := in.Read()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("the file is empty; its first line must name the columns")
	}
	if err != nil {
		return nil, csvCause(err)
	}
	names := make([]string, len(record))
	seen := map[string]bool{}
	for i, name := range record {
		names[i] = strings.Clone(strings.TrimPrefix(name, byteOrderMark))
		if seen[names[i]] {
			return nil, fmt.Errorf("the column %s stands there twice", names[i])
		}
		seen[names[i]] = true
	}
	return names, nil
}

// csvCause is the cause without the position, which a LineError has itself.
func csvCause(err error) error {
	if p, ok := errors.AsType[*csv.ParseError](err); ok {
		return p.Err
	}
	return err
}

// rowCause says of a row of the wrong length how long it is.
func rowCause(err error, have, want int) error {
	if !errors.Is(err, csv.ErrFieldCount) {
		return err
	}
	return fmt.Errorf("%w: %d, and the header has %d", err, have, want)
}

func (r *ItemReader) fatal(line int, err error) error {
	r.dead = &LineError{File: r.name, Line: line, Err: err, Fatal: true}
	return r.dead
}

func (r *ItemReader) cannotReadOn(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("%w: it seems to be cut off", err)
	}
	return r.fatal(r.line+1, fmt.Errorf("the file cannot be read on: %w", err))
}

// Next returns the next item and its line, io.EOF after the last one, or a *LineError.
func (r *ItemReader) Next() (Item, int, error) {
	if r.dead != nil {
		return nil, 0, r.dead
	}
	var item Item
	var err error
	if r.csv != nil {
		var fields []string
		if fields, err = r.nextRecord(); err != nil {
			return nil, 0, err
		}
		item, err = r.mapper.fromFields(r.plan, fields)
	} else {
		var line []byte
		if line, err = r.nextLine(); err != nil {
			return nil, 0, err
		}
		item, err = r.mapper.fromJSON(line)
	}
	if err != nil {
		return nil, 0, &LineError{File: r.name, Line: r.line, Err: err}
	}
	return item, r.line, nil
}

func (r *ItemReader) nextRecord() ([]string, error) {
	fields, err := r.csv.Read()
	if errors.Is(err, io.EOF) {
		r.dead = io.EOF
		return nil, io.EOF
	}
	if err != nil {
		p, ok := errors.AsType[*csv.ParseError](err)
		if !ok {
			return nil, r.cannotReadOn(err)
		}
		r.line = p.Line
		le := &LineError{File: r.name, Line: p.StartLine, Err: rowCause(p.Err, len(fields), r.csv.FieldsPerRecord)}
		if le.More = max(p.Line-p.StartLine, 0); le.More > 0 {
			le.Err = fmt.Errorf("%w; it swallows what follows up to line %d", le.Err, p.Line)
		}
		return nil, le
	}
	r.line, _ = r.csv.FieldPos(0)
	for i, f := range fields {
		if !utf8.ValidString(f) {
			return nil, &LineError{File: r.name, Line: r.line, Err: fmt.Errorf("field %d is not UTF-8", i+1)}
		}
	}
	return fields, nil
}

// nextLine returns the next line that is not blank.
func (r *ItemReader) nextLine() ([]byte, error) {
	for {
		line, err := r.readLine()
		if err != nil {
			return nil, err
		}
		if r.line == 1 {
			line = bytes.TrimPrefix(line, []byte(byteOrderMark))
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line, nil
		}
	}
}

// readLine reads a line of any length, and keeps it if it is not too long.
func (r *ItemReader) readLine() ([]byte, error) {
	var whole []byte
	size := 0
	for {
		part, err := r.lines.ReadSlice('\n')
		size += len(part)
		if size <= maxLine {
			whole = append(whole, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && size == 0:
			r.dead = io.EOF
			return nil, io.EOF
		case err != nil && !errors.Is(err, io.EOF):
			return nil, r.cannotReadOn(err)
		}
		r.line++
		if size > maxLine {
			return nil, &LineError{File: r.name, Line: r.line, Err: fmt.Errorf("the line is longer than %d MiB", maxLine>>20)}
		}
		return whole, nil
	}
}
