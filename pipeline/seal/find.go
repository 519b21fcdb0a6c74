package seal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/parquet-go/parquet-go"

	"telemetrylake/pipeline"
)

// A part is one of our files inside a staging object.
type part struct {
	span
	body   *io.SectionReader
	rows   int64
	schema string
	tally  tally
	meta   *pipeline.PartMeta
	total  int         // parts of its window
	lies   *timesError // a row of it is not its partition's

	held    pipeline.Claim // what the ledger holds
	settled bool           // in the lake by some copy, or void
	broken  bool           // kept: nothing more is done with it in this run
}

// find splits the object, puts damage aside and keeps what is not ours to judge.
func (w *work) find(ctx context.Context) error {
	spans, err := splitSource(w.src)
	if err != nil {
		return err
	}
	for _, sp := range spans {
		if sp.damage == nil {
			if sp.damage, err = w.look(ctx, sp); err != nil {
				return err
			}
		}
		if sp.damage != nil {
			if err := w.putAside(ctx, sp); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// look opens one file of the object. It returns why it is damaged, if it is.
func (w *work) look(ctx context.Context, sp span) (damage, err error) {
	p, err := open(w.src, sp)
	if e := w.src.failed(); e != nil {
		return nil, e
	}
	if bad := (*damageError)(nil); errors.As(err, &bad) {
		return err, nil
	}
	w.report.Parts++
	switch {
	case errors.Is(err, pipeline.ErrNewerFormat):
		w.keep(ctx, Newer, sp, err)
	case err != nil:
		w.keep(ctx, Foreign, sp, err)
	case p.meta.Probe:
		// A probe is no reading: it goes with the object.
	default:
		w.parts = append(w.parts, p)
	}
	return nil, nil
}

func open(s *source, sp span) (p *part, err error) {
	// The reader panics on some damaged files. One of them must not stop all sealing.
	defer func() {
		if e := recover(); e != nil {
			p, err = nil, &damageError{fmt.Errorf("read file: the reader panics: %v", e)}
		}
	}()
	_, md, err := fileBefore(s, sp.end)
	if err != nil {
		return nil, &damageError{err}
	}
	text, ok := keyValue(md, pipeline.PartMetaKey)
	if !ok {
		return nil, errors.New("it has no part metadata")
	}
	meta, err := pipeline.DecodePartMeta(text)
	if err != nil {
		return nil, err
	}
	if meta.Probe {
		return &part{span: sp, meta: meta}, nil
	}
	if md.NumRows != int64(meta.Rows) || len(meta.Order) == 0 {
		return nil, fmt.Errorf("part %s holds %d rows in order %v, its metadata says %d", meta.ID(), md.NumRows, meta.Order, meta.Rows)
	}
	if err := vet(s, sp, md); err != nil {
		return nil, &damageError{fmt.Errorf("part %s: %w", meta.ID(), err)}
	}
	body := s.section(sp.off, sp.end)
	f, err := openFile(body)
	if err != nil {
		return nil, &damageError{fmt.Errorf("open part %s: %w", meta.ID(), err)}
	}
	within, err := newTimes(f, meta)
	if err != nil {
		return nil, err
	}
	p = &part{span: sp, body: body, rows: f.NumRows(), schema: fingerprint(f), meta: meta}
	// A part is counted before it is claimed: a copy that cannot be read must not have the claim
	// while another could.
	p.tally, err = count(f, within, &s.scratch)
	if errors.As(err, &p.lies) {
		return p, nil // its window's manifest has the first word on it
	}
	if err != nil {
		return nil, &damageError{fmt.Errorf("count values of part %s: %w", meta.ID(), err)}
	}
	return p, nil
}

// openFile opens a file for reading all of it once, in order.
func openFile(r *io.SectionReader) (*parquet.File, error) {
	return parquet.OpenFile(r, r.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
}

// A damageError is why a part of ours cannot be read.
type damageError struct{ error }

func (e *damageError) Unwrap() error { return e.error }

// putAside stores damaged bytes under a name that says where they were, and beside them why.
func (w *work) putAside(ctx context.Context, sp span) error {
	key := fmt.Sprintf("%s/%s/%d-%d", w.object.Key, digest(w.object.ETag), sp.off, sp.end)
	why, err := json.Marshal(map[string]any{
		"object": w.object.Key, "etag": w.object.ETag, "offset": sp.off, "bytes": sp.end - sp.off, "reason": sp.damage.Error(),
	})
	if err != nil {
		return fmt.Errorf("describe damage: %w", err)
	}
	// The reason first: bytes that are there have theirs.
	reason := strings.NewReader(string(why))
	for _, c := range []struct {
		key  string
		body *io.SectionReader
	}{
		{key + ".json", io.NewSectionReader(reason, 0, reason.Size())}, {key, w.src.section(sp.off, sp.end)},
	} {
		if err := w.Damaged.CreateFrom(ctx, c.key, c.body); err != nil && !errors.Is(err, pipeline.ErrExists) {
			return fmt.Errorf("put damage aside: %w", err)
		}
	}
	w.report.Damaged++
	w.Log.ErrorContext(ctx, "damage in staging", "object", w.object.Key, "offset", sp.off, "bytes", sp.end-sp.off, "reason", sp.damage.Error(), "aside", key)
	return nil
}

// keep leaves a part where it is, and with it the object.
func (w *work) keep(ctx context.Context, why Keep, sp span, err error) {
	w.kept = true
	w.report.keep(why)
	w.Log.ErrorContext(ctx, "part stays in staging", "object", w.object.Key, "offset", sp.off, "why", string(why), "reason", err.Error())
}

// lookUp compares each part with its window: what is not the window's is kept, what belongs to
// a window that takes no more claims is settled. A window that cannot be looked up keeps its own
// parts waiting and no others.
func (w *work) lookUp(ctx context.Context) error {
	type window struct {
		state    pipeline.WindowState
		manifest *pipeline.Manifest
		err      error
	}
	seen := map[pipeline.WindowID]window{}
	var ours []*part
	for _, p := range w.parts {
		id := p.meta.Window
		win, ok := seen[id]
		if !ok {
			win.state, win.manifest, win.err = w.Ledger.Window(ctx, id)
			if win.err != nil && !errors.Is(win.err, pipeline.ErrNewerFormat) {
				w.fail(win.err)
			}
			seen[id] = win
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		switch {
		case errors.Is(win.err, pipeline.ErrNewerFormat):
			w.keep(ctx, Newer, p.span, win.err)
			continue
		case win.err != nil:
			w.report.Waiting++
			w.kept = true
			continue
		case win.state == pipeline.WindowUnknown:
			w.keep(ctx, Unknown, p.span, fmt.Errorf("window %s was never begun", id))
			continue
		}
		if win.manifest != nil {
			if err := p.meta.Matches(win.manifest); err != nil {
				w.keep(ctx, Mismatch, p.span, err)
				if err := w.Folder.Halt(ctx, id.Lane, err.Error()); err != nil {
					w.fail(err)
				}
				continue
			}
			p.total = len(win.manifest.Parts)
		}
		ours = append(ours, p)
		if w.close(p, win.state); !p.settled && p.lies != nil {
			w.setAside(ctx, p, p.lies)
		}
	}
	w.parts = ours
	return nil
}

func needsPerson(err error) bool {
	var person *pipeline.PersonError
	return errors.As(err, &person)
}
