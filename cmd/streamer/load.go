package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/spf13/cobra"

	"telemetrylake/pipeline/hot"
	"telemetrylake/schemas"
)

// loadOptions are the flags of the load command.
type loadOptions struct {
	file        string // - for the standard input
	format      string
	columns     []string // ATTRIBUTE=COLUMN
	strict      bool
	expiresFrom string
	parallel    int
	output      string
	tolerance   tolerance // zero: usualTolerance
}

// A loadFormat is a mapping that has a name, for the table of one contract.
type loadFormat struct {
	contract string
	mapping  func() hot.Mapping
}

var loadFormats = map[string]loadFormat{"room-climate": {"sensor_readings", hot.RoomClimateMapping}}

// maxParallel bounds the connections to one endpoint.
const maxParallel = 1024

func newLoad() *cobra.Command {
	s := newSettings()
	var o loadOptions
	c := &cobra.Command{
		Use:   "load FILE",
		Short: "Write the readings of a file to a hot table",
		Long: `Write each row of a file to a hot table, unless its key is taken: CSV with a
header, or JSON Lines, plain or gzipped; - reads the standard input. Of several
rows with one key the first in the file is written.

A load that was stopped is started again with the same command: rows that are
there already are counted as such and left as they are. A row is refused if
another item has its key; when an item expires does not make it another one.

A column gives the attribute, the part of a key or the contract's column of its
own name; --map names others. Keys are composed as the contract says, and numbers
stay the text of the file. Times are ISO 8601 with a zone, or numbers counted as
the contract says. Empty fields give nothing. Columns of a CSV file that the
contract does not know are left out, and listed. Lines {"Item":{…}} of DynamoDB
JSON, as an export to S3 writes them, are items as they stand.

Items expire after the contract's retention: from now on, whatever the file says,
or with --expires-from event when the file says, else from the reading's time.

While puts fail they are repeated, with a line on stderr now and then, until
nothing has succeeded for 5 minutes.

Exit code 0: every row is in the table, or was refused. 1: lines were malformed
and left out, the load was interrupted, or the table cannot be written to. 2: the
file cannot be read to its end, or --strict met a malformed line; rows before it
are loaded.`,
		Example: `  streamer load room-climate.csv.gz --contract sensor_readings --format room-climate
  streamer load readings.csv --contract sensor_readings --map device_id=node --map event_time=ts
  streamer load export.json.gz --contract device_telemetry --expires-from event
  zcat more.jsonl.gz | streamer load - --contract device_telemetry --strict -o json`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("%s takes one file, or - for the standard input, not %d; see %s --help", c.CommandPath(), len(args), c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			o.file = args[0]
			if err := o.check(); err != nil {
				return err
			}
			if err := s.load(c); err != nil {
				return err
			}
			return runLoad(c, s, o)
		},
	}
	s.use(c, "contract", "table")
	f := c.Flags()
	f.StringVar(&o.format, "format", "", "what the file holds: room-climate")
	f.StringArrayVar(&o.columns, "map", nil, "`ATTRIBUTE=COLUMN`: which column gives an attribute or a part of a key; dots lead into maps; may be repeated")
	f.BoolVar(&o.strict, "strict", false, "stop at the first malformed line")
	f.StringVar(&o.expiresFrom, "expires-from", string(hot.ExpiresFromLoad), "what the retention counts from: load or event")
	f.IntVar(&o.parallel, "parallel", 16, "puts in flight")
	outputFlag(f, &o.output, "table", "json")
	return c
}

// check refuses what does not fit together.
func (o loadOptions) check() error {
	switch {
	case o.expiresFrom != string(hot.ExpiresFromLoad) && o.expiresFrom != string(hot.ExpiresFromEvent):
		return usagef("--expires-from %q is neither load nor event", o.expiresFrom)
	case o.parallel < 1 || o.parallel > maxParallel:
		return usagef("--parallel %d is not within 1 and %d", o.parallel, maxParallel)
	case o.format != "" && len(o.columns) > 0:
		return usagef("--format %s says what each column is; leave out --map", o.format)
	}
	if _, ok := loadFormats[o.format]; !ok && o.format != "" {
		return usagef("unknown format %q; write --format room-climate, or --map ATTRIBUTE=COLUMN", o.format)
	}
	return nil
}

// mapping is what format and columns say.
func (o loadOptions) mapping() (hot.Mapping, error) {
	if o.format != "" {
		return loadFormats[o.format].mapping(), nil
	}
	m := hot.Mapping{Columns: map[string]string{}}
	for _, pair := range o.columns {
		attribute, column, ok := strings.Cut(pair, "=")
		if !ok || attribute == "" || column == "" {
			return m, usagef("--map %q is not of the form ATTRIBUTE=COLUMN", pair)
		}
		if first, twice := m.Columns[attribute]; twice {
			return m, usagef("--map gives %s twice, from %s and from %s", attribute, first, column)
		}
		m.Columns[attribute] = column
	}
	return m, nil
}

func runLoad(c *cobra.Command, s *settings, o loadOptions) error {
	if s.Contract == "" && o.format != "" {
		s.Contract = loadFormats[o.format].contract
	}
	contract, err := s.contract()
	if err != nil {
		return err
	}
	if s.Table != "" {
		renamed := *contract
		renamed.Table = s.Table
		contract = &renamed
	}
	in, err := openInput(o.file, c.InOrStdin())
	if err != nil {
		return err
	}
	defer in.Close()
	l, err := newLoading(contract, in, o)
	if err != nil {
		return err
	}
	aws, err := connect(c.Context())
	if err != nil {
		return err
	}
	if err := l.open(c.Context(), pooled(aws.dynamodb, o.parallel)); err != nil {
		if c.Context().Err() != nil {
			return &unfinished{c.Context().Err(), fmt.Sprintf("load %s: interrupted before anything was written", in.name)}
		}
		return explain(err)
	}
	return l.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
}

// pooled keeps a connection for each put in flight; the SDK's own client keeps ten.
func pooled(client *dynamodb.Client, parallel int) *dynamodb.Client {
	options := client.Options()
	standard, ok := options.HTTPClient.(*awshttp.BuildableClient)
	if !ok {
		return client
	}
	return dynamodb.New(options, func(o *dynamodb.Options) {
		o.HTTPClient = standard.WithTransportOptions(func(t *http.Transport) {
			t.MaxIdleConnsPerHost = max(t.MaxIdleConnsPerHost, parallel)
			t.MaxIdleConns = max(t.MaxIdleConns, parallel)
		})
	})
}

// An input is a file that knows how much of it was read.
type input struct {
	io.ReadCloser
	name string
	size int64 // bytes; 0: unknown
	read atomic.Int64
}

func (in *input) Read(p []byte) (int, error) {
	n, err := in.ReadCloser.Read(p)
	in.read.Add(int64(n))
	return n, err
}

func openInput(path string, stdin io.Reader) (*input, error) {
	if path == "-" {
		return &input{ReadCloser: io.NopCloser(stdin), name: "standard input"}, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, usagef("load: %w", err)
	}
	in := &input{ReadCloser: f, name: path}
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, errors.Join(usagef("load: %w", err), f.Close())
	case info.IsDir():
		return nil, errors.Join(usagef("load: %s is a folder; name a file", path), f.Close())
	case info.Mode().IsRegular():
		in.size = info.Size()
	}
	return in, nil
}

// A loading is one run of the load command.
type loading struct {
	*hot.Load
	in       *input
	mapper   *hot.Mapper
	contract *schemas.Contract
	o        loadOptions
	begun    time.Time
}

// newLoading checks what can be checked without the table and the file's content.
func newLoading(c *schemas.Contract, in *input, o loadOptions) (*loading, error) {
	mapping, err := o.mapping()
	if err != nil {
		return nil, err
	}
	if o.tolerance == (tolerance{}) {
		o.tolerance = usualTolerance
	}
	l := &loading{in: in, contract: c, o: o, begun: time.Now()}
	l.mapper, err = hot.NewMapper(c, hot.MapperOptions{Mapping: mapping, Expires: hot.ExpiresFrom(o.expiresFrom), Now: l.begun})
	if err != nil {
		return nil, usage(err)
	}
	return l, nil
}

// open checks table and file before anything is written.
func (l *loading) open(ctx context.Context, client *dynamodb.Client) error {
	if err := hot.CheckKeys(ctx, client, l.contract); err != nil {
		return err
	}
	rows, err := l.begin(ctx)
	if err != nil {
		return err
	}
	w := hot.NewWriter(client, l.contract, hot.WriterOptions{Parallel: l.o.parallel, GiveUp: l.o.tolerance.giveUp})
	l.Load = hot.NewLoad(w, rows, hot.LoadOptions{Strict: l.o.strict})
	return nil
}

// begin reads the beginning of the file. A pipe may never begin: then a signal ends it.
func (l *loading) begin(ctx context.Context) (*hot.ItemReader, error) {
	var rows *hot.ItemReader
	begun := make(chan error, 1)
	go func() {
		var err error
		rows, err = hot.NewItemReader(l.in, l.in.name, l.mapper)
		begun <- err
	}()
	select {
	case err := <-begun:
		if err != nil {
			return nil, usage(err)
		}
		return rows, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// run loads, and says what became of the file also if it was stopped.
func (l *loading) run(ctx context.Context, stdout, stderr io.Writer) error {
	stop := l.watch(stderr)
	err := l.Load.Run(ctx)
	stop()
	r := l.report(err == nil)
	if perr := r.print(stdout, l.o.output); perr != nil {
		return errors.Join(err, perr)
	}
	if line, ok := errors.AsType[*hot.LineError](err); ok {
		if !line.Fatal {
			return usagef("%w; --strict stops there, and %s", err, r.far("before it "))
		}
		return usagef("%w; %s", err, r.far("before it "))
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return &unfinished{err, fmt.Sprintf("load %s: interrupted; %s; the same command goes on", l.in.name, r.far(""))}
	case err != nil:
		return fmt.Errorf("load %s: %w", l.in.name, explain(err))
	case r.Malformed > 0:
		return fmt.Errorf("load %s: %s malformed and left out; correct them and load the file again, what is in the table stays as it is", l.in.name, lines(r.Malformed))
	}
	return nil
}

// watch says how far the load is, on a terminal, and that puts fail, wherever stderr goes,
// until the returned function is called.
func (l *loading) watch(out io.Writer) (stop func()) {
	onTerminal := isTerminal(out)
	over := ""
	if onTerminal {
		over = clearLine
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		w := warner{tolerance: l.o.tolerance}
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				fmt.Fprint(out, over)
				return
			case <-tick.C:
				if text := w.look(l.Health()); text != "" {
					fmt.Fprintf(out, "%sstreamer: load %s: %s\n", over, l.in.name, text)
				}
				if onTerminal {
					fmt.Fprint(out, over+l.progressText(time.Since(l.begun)))
				}
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

func (l *loading) progressText(passed time.Duration) string {
	counts := l.Counts()
	rows := counts.Rows()
	text := fmt.Sprintf("%s, %s a second", counted(rows, "row"), count(int(float64(rows)/passed.Seconds())))
	if counts.Malformed > 0 {
		text += ", " + lines(counts.Malformed) + " malformed"
	}
	if d := l.Health().Failing(time.Now()); d >= stalledAfter {
		return fmt.Sprintf("%s, no put has succeeded for %s", text, d.Round(time.Second))
	}
	read := l.in.read.Load()
	if l.in.size <= 0 || read <= 0 {
		return text
	}
	left := time.Duration(float64(passed) * float64(max(l.in.size-read, 0)) / float64(read))
	return fmt.Sprintf("%s, %d%%, %s left", text, min(100*read/l.in.size, 100), left.Round(time.Second))
}

// A tolerance is how long a load bears that nothing but failures comes back.
type tolerance struct {
	warnAfter, warnEvery time.Duration // when it says so
	giveUp               time.Duration // when it ends
}

var usualTolerance = tolerance{warnAfter: 5 * time.Second, warnEvery: 30 * time.Second, giveUp: 5 * time.Minute}

// stalledAfter is when a time left would be a guess.
const stalledAfter = 2 * time.Second

// A warner says now and then that puts fail, and when they succeed again.
type warner struct {
	tolerance
	warned   time.Time // zero: there is nothing to take back
	began    time.Time // what it warned of
	answered int       // attempts until then
}

// look returns what is to be said now; "" for nothing.
func (w *warner) look(h hot.Health) string {
	now := time.Now()
	failing := h.Failing(now)
	switch {
	case !w.warned.IsZero() && h.Answered > w.answered:
		w.warned = time.Time{}
		return fmt.Sprintf("puts succeed again, after %s", now.Sub(w.began).Round(time.Second))
	case failing < w.warnAfter, !w.warned.IsZero() && now.Sub(w.warned) < w.warnEvery:
		return ""
	}
	if w.warned.IsZero() {
		w.began = h.Since
	}
	w.warned, w.answered = now, h.Answered
	why := "no answer"
	if h.Err != nil {
		why = oneLine(explain(h.Err))
	}
	return fmt.Sprintf("no put has succeeded for %s: %s; still trying", failing.Round(time.Second), why)
}

// lines is "1 line is" or "7 lines are".
func lines(n int) string {
	if n == 1 {
		return "1 line is"
	}
	return count(n) + " lines are"
}
