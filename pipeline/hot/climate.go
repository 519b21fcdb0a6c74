package hot

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// A Reading is one reading of a sensor node. Its numbers are the text of the file.
type Reading struct {
	DeviceID string
	TakenAt  time.Time // whole milliseconds, UTC
	Celsius  string
	Humidity string // percent
	Line     int    // in the file, the header being line 1
}

// A LineError says what is wrong with which line of a file.
type LineError struct {
	File string
	Line int
	Err  error
	// Fatal tells that nothing behind the line can be read. Otherwise the next call of Next
	// goes on with the next line.
	Fatal bool
	// More counts the lines behind it that are lost with it, as when a quote is not closed.
	More int
}

func (e *LineError) Error() string { return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err) }

func (e *LineError) Unwrap() error { return e.Err }

// The columns read from a room-climate file, those of the Room Climate Datasets (Morgner et
// al., ESORICS 2017) joined into one file. Others are ignored, the order does not matter.
const (
	nodeColumn     = "node_id"
	takenColumn    = "taken_at_ms"
	celsiusColumn  = "celsius"
	humidityColumn = "humidity"
)

// RoomClimate reads a room-climate CSV file, plain or gzipped, one reading at a time.
type RoomClimate struct {
	file   *os.File
	name   string
	csv    *csv.Reader
	column map[string]int
	line   int // last line begun
	dead   error
}

// OpenRoomClimate opens a file and reads its header. A file is taken for gzipped by its first
// bytes. An error is about the file, or a *LineError about its header.
func OpenRoomClimate(path string) (*RoomClimate, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open readings: %w", err)
	}
	r := &RoomClimate{file: f, name: path}
	if err := r.header(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return r, nil
}

func (r *RoomClimate) header() error {
	in, err := uncompressed(r.file, r.name)
	if err != nil {
		return err
	}
	r.csv = csv.NewReader(in)
	r.csv.ReuseRecord = true
	r.line = 1
	names, err := readHeader(r.csv)
	if err != nil {
		return r.fatal(1, err)
	}
	r.column = map[string]int{}
	for i, name := range names {
		r.column[name] = i
	}
	var missing []string
	for _, name := range []string{nodeColumn, takenColumn, celsiusColumn, humidityColumn} {
		if _, ok := r.column[name]; !ok {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return r.fatal(1, fmt.Errorf("the header lacks %s", strings.Join(missing, ", ")))
	}
	return nil
}

func (r *RoomClimate) fatal(line int, err error) error {
	r.dead = &LineError{File: r.name, Line: line, Err: err, Fatal: true}
	return r.dead
}

// Next returns the next reading, io.EOF after the last one, or a *LineError.
func (r *RoomClimate) Next() (Reading, error) {
	if r.dead != nil {
		return Reading{}, r.dead
	}
	fields, err := r.csv.Read()
	if errors.Is(err, io.EOF) {
		r.dead = io.EOF
		return Reading{}, io.EOF
	}
	if err != nil {
		p, ok := errors.AsType[*csv.ParseError](err)
		if !ok {
			return Reading{}, r.fatal(r.line+1, fmt.Errorf("the file cannot be read on: %w", err))
		}
		r.line = p.Line
		return Reading{}, &LineError{File: r.name, Line: p.StartLine, Err: rowCause(p.Err, len(fields), r.csv.FieldsPerRecord)}
	}
	r.line, _ = r.csv.FieldPos(0)
	reading, err := r.reading(fields)
	if err != nil {
		return Reading{}, &LineError{File: r.name, Line: r.line, Err: err}
	}
	return reading, nil
}

// lastMilli is the last millisecond of the year 9999, the last that ISO 8601 and Athena write
// with four digits.
var lastMilli = time.Date(9999, 12, 31, 23, 59, 59, 999e6, time.UTC).UnixMilli()

func (r *RoomClimate) reading(fields []string) (Reading, error) {
	out := Reading{
		// The record is one string inside; a copy keeps a reading from holding its whole line.
		DeviceID: strings.Clone(fields[r.column[nodeColumn]]),
		Celsius:  strings.Clone(fields[r.column[celsiusColumn]]),
		Humidity: strings.Clone(fields[r.column[humidityColumn]]),
		Line:     r.line,
	}
	if out.DeviceID == "" {
		return out, fmt.Errorf("%s is empty", nodeColumn)
	}
	ms, err := strconv.ParseInt(fields[r.column[takenColumn]], 10, 64)
	if err != nil || ms < 0 || ms > lastMilli {
		return out, fmt.Errorf("%s: %q is not a time in milliseconds since 1970", takenColumn, fields[r.column[takenColumn]])
	}
	out.TakenAt = time.UnixMilli(ms).UTC()
	if _, err := parseDecimal(out.Celsius); err != nil {
		return out, fmt.Errorf("%s: %w", celsiusColumn, err)
	}
	if _, err := parseDecimal(out.Humidity); err != nil {
		return out, fmt.Errorf("%s: %w", humidityColumn, err)
	}
	return out, nil
}

// Close closes the file.
func (r *RoomClimate) Close() error {
	if err := r.file.Close(); err != nil {
		return fmt.Errorf("close readings: %w", err)
	}
	return nil
}
