package main

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"fmt"
	"io"
	"math/big"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A climateFile is a room-climate file of which each line is at hand.
type climateFile struct {
	name  string
	lines []string // the first is the header
}

// roomClimate is a file of the first n readings that STREAMER_TEST_READINGS names, or of n
// generated ones. 0 is all of them.
func roomClimate(t *testing.T, n int) *climateFile {
	t.Helper()
	f := &climateFile{}
	if name := os.Getenv("STREAMER_TEST_READINGS"); name != "" {
		f.lines = readLines(t, name, n)
	} else {
		f.lines = climateLines(n)
	}
	f.name = writeLines(t, f.lines...)
	return f
}

// realReadings is how many the file of real readings holds.
const realReadings = 273_145

func climateLines(n int) []string {
	if n == 0 {
		n = realReadings
	}
	lines := []string{climateHeader}
	for i := range n {
		taken := climateStart.Add(time.Duration(i)*5*time.Second + time.Duration(i*i%997)*time.Millisecond)
		lines = append(lines, climateLine(i+1, taken, i%4+1, fmt.Sprintf("%d.%02d", 18+i%7, i*31%100), fmt.Sprintf("%d.%03d", 35+i%20, i*577%1000)))
	}
	return lines
}

func readLines(t *testing.T, name string, n int) []string {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var in io.Reader = file
	if strings.HasSuffix(name, ".gz") {
		if in, err = gzip.NewReader(file); err != nil {
			t.Fatal(err)
		}
	}
	var lines []string
	scanner := bufio.NewScanner(in)
	for (n == 0 || len(lines) <= n) && scanner.Scan() {
		lines = append(lines, scanner.Text())
	}
	if err := scanner.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}

// readings is how many lines follow the header.
func (f *climateFile) readings() int { return len(f.lines) - 1 }

// cells are node, time, temperature and humidity of each reading as the lake spells them,
// sorted. They are read without the code under test.
func (f *climateFile) cells(t *testing.T) []string {
	t.Helper()
	rows, err := csv.NewReader(strings.NewReader(strings.Join(f.lines, "\n"))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	column := func(name string) int { return slices.Index(rows[0], name) }
	node, taken, celsius, humidity := column("node_id"), column("taken_at_ms"), column("celsius"), column("humidity")
	var cells []string
	for _, row := range rows[1:] {
		ms, err := strconv.ParseInt(row[taken], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		cells = append(cells, strings.Join([]string{
			row[node], time.UnixMilli(ms).UTC().Format(instantForm), exactly(t, row[celsius], 2), exactly(t, row[humidity], 3),
		}, " "))
	}
	slices.Sort(cells)
	return cells
}

// exactly writes a number with that many decimals. One that has more is no number of the file's.
func exactly(t *testing.T, text string, decimals int) string {
	t.Helper()
	v, ok := new(big.Rat).SetString(text)
	if !ok {
		t.Fatalf("%q is not a number", text)
	}
	written := v.FloatString(decimals)
	if back, _ := new(big.Rat).SetString(written); back.Cmp(v) != 0 {
		t.Fatalf("%s does not fit %d decimals", text, decimals)
	}
	return written
}
