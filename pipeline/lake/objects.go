package lake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"telemetrylake/pipeline"
)

// parallelCreates is how many parts are stored at once: a window of many days has many small ones,
// and each is a request.
const parallelCreates = 8

// A Creator stores objects that are never replaced, as Bucket and Folder do.
type Creator interface {
	// Create fails with pipeline.ErrExists if there is an object of this name.
	Create(ctx context.Context, name string, body []byte) error
	Check(ctx context.Context) error
	String() string
}

// Footer reads what an object says of itself; nil if it is none of ours.
type Footer func(ctx context.Context, name string) (*pipeline.ObjectMeta, error)

// Objects lands each part as an object of the lake at once, under a name that is a function of its
// window and number. Whoever lands a window again, also a process that was taken for dead, finds the
// names taken; what is landed is claimed and published in the ledger before Land returns.
type Objects struct {
	lake   Creator
	ledger pipeline.Claimer
	footer Footer
	log    *slog.Logger
}

var _ pipeline.Sink = (*Objects)(nil)

// NewObjects returns a sink into a lake; a nil log is none. Its windows' manifests must name the
// lake, so that parts carry an object's footer.
func NewObjects(lake Creator, ledger pipeline.Claimer, footer Footer, log *slog.Logger) *Objects {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Objects{lake, ledger, footer, log}
}

// Check fails if the lake cannot be looked into.
func (o *Objects) Check(ctx context.Context) error { return o.lake.Check(ctx) }

// Land implements pipeline.Sink. The last part goes first: it alone knows how many there are, and
// whoever rebuilds positions from the lake must not take half a window for all of it.
func (o *Objects) Land(ctx context.Context, parts []pipeline.Part) error {
	n := len(parts)
	if n == 0 {
		return nil
	}
	there := make([]bool, n)
	var err error
	if there[n-1], err = o.create(ctx, parts[n-1]); err != nil {
		return err
	}
	errs := make([]error, n-1)
	slots := make(chan struct{}, parallelCreates)
	var wg sync.WaitGroup
	for i := range n - 1 {
		slots <- struct{}{}
		wg.Go(func() {
			there[i], errs[i] = o.create(ctx, parts[i])
			<-slots
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var claims []pipeline.Claim
	for i, p := range parts {
		if there[i] {
			claims = append(claims, pipeline.ClaimOf(p.ID, p.ObjectName()))
		}
	}
	if err := pipeline.PublishInLake(ctx, o.ledger, claims); !errors.Is(err, pipeline.ErrWindowClosed) {
		return err
	}
	return nil // all of the window is published
}

// create stores a part, or finds that it is stored; false if it was given up.
func (o *Objects) create(ctx context.Context, p pipeline.Part) (bool, error) {
	name := p.ObjectName()
	err := o.lake.Create(ctx, name, p.Body)
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, pipeline.ErrExists) {
		return false, fmt.Errorf("land part %s: %w", p.ID, err)
	}
	meta, err := o.footer(ctx, name)
	if err != nil {
		return false, fmt.Errorf("land part %s, whose name exists: %w", p.ID, err)
	}
	switch meta.Occupies(p.ID, p.Rows) {
	case pipeline.Landed:
		return true, nil
	case pipeline.Voided:
		o.log.WarnContext(ctx, "a part was given up before it came, and is dropped", "part", p.ID.String(), "rows", p.Rows)
		return false, nil
	}
	return false, pipeline.NeedPerson(fmt.Errorf("land part %s of %d rows: %s holds another object under its name %s", p.ID, p.Rows, o.lake, name),
		"find out what wrote it and move it out of the lake; nothing of ours replaces it")
}
