package seal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	"telemetrylake/pipeline"
)

// maxFanIn is how many parts are merged at once. Of each a page of every column is in memory, so
// that more are merged in passes.
const maxFanIn = 48

// A faultError is why parts cannot be published as one object, as far as the parts themselves are
// to blame.
type faultError struct {
	part int // its index; -1: any of them
	err  error
}

func (e *faultError) Error() string { return e.err.Error() }

func (e *faultError) Unwrap() error { return e.err }

// merge makes the object of the parts and verifies it.
func (w *work) merge(ctx context.Context, parts []*part, meta string) (*built, error) {
	in := make([]*io.SectionReader, len(parts))
	for i, p := range parts {
		in[i] = p.body
	}
	var passes []*built
	defer func() {
		for _, b := range passes {
			b.close()
		}
	}()
	order := parts[0].meta.Order
	for pass := 0; len(in) > maxFanIn; pass++ {
		// Neighbours together: rows that are equal in all columns of the order keep their parts'.
		n := (len(in) + maxFanIn - 1) / maxFanIn
		next := make([]*io.SectionReader, n)
		for i := range n {
			from, to := i*len(in)/n, (i+1)*len(in)/n
			b, err := w.mergeOnce(ctx, in[from:to], order, nil)
			if fault := (*faultError)(nil); errors.As(err, &fault) && fault.part >= 0 {
				if fault.part += from; pass > 0 {
					fault.part = -1
				}
			}
			if err != nil {
				return nil, w.cause(err, passes, parts)
			}
			passes = append(passes, b)
			next[i] = b.section()
		}
		in = next
	}
	b, err := w.mergeOnce(ctx, in, order, map[string]string{pipeline.ObjectMetaKey: meta})
	if err != nil {
		if fault := (*faultError)(nil); errors.As(err, &fault) && len(passes) > 0 {
			fault.part = -1
		}
		return nil, w.cause(err, passes, parts)
	}
	if err := verify(b.read(), parts); err != nil {
		b.close()
		if b.failed() != nil {
			return nil, fmt.Errorf("verify: %w", b.failed())
		}
		return nil, &faultError{-1, fmt.Errorf("verify: %w", err)}
	}
	return b, nil
}

// cause is err, or why what was merged could not be read: no part is to blame for that.
func (w *work) cause(err error, passes []*built, parts []*part) error {
	for _, b := range passes {
		if e := b.failed(); e != nil {
			return fmt.Errorf("merge %d parts in passes: %w", len(parts), e)
		}
	}
	if e := w.src.failed(); e != nil {
		return e
	}
	return err
}

func (w *work) mergeOnce(ctx context.Context, in []*io.SectionReader, order []string, meta map[string]string) (b *built, err error) {
	if b, err = w.build(); err != nil {
		return nil, err
	}
	// Both libraries panic on some damaged schemas: the object fails, the others go on.
	defer func() {
		if e := recover(); e != nil {
			err = &faultError{-1, fmt.Errorf("merge %d parts: panic: %v\n%s", len(in), e, debug.Stack())}
		}
		if err != nil {
			b.close()
			b = nil
		}
	}()
	err = w.Merger.Merge(ctx, b, in, order, meta)
	if err == nil || ctx.Err() != nil {
		return b, err
	}
	err = fmt.Errorf("merge %d parts: %w", len(in), err)
	var bad interface{ BadPart() int }
	if b.failed() == nil && errors.As(err, &bad) {
		err = &faultError{bad.BadPart(), err}
	}
	return b, err
}

// mergeable makes the object of those parts that can be merged. A part that cannot even alone is
// kept with its reason; one that only does not go with the others is left for a later round.
func (w *work) mergeable(ctx context.Context, parts []*part, describe func([]*part) (string, error)) (*built, []*part, error) {
	for len(parts) > 0 {
		text, err := describe(parts)
		if err != nil {
			return nil, nil, err
		}
		b, err := w.merge(ctx, parts, text)
		if err == nil {
			return b, parts, nil
		}
		fault := (*faultError)(nil)
		if !errors.As(err, &fault) || ctx.Err() != nil {
			return nil, nil, err
		}
		if parts, err = w.without(ctx, parts, fault, describe); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, nil
}

// without returns the parts without those that are to blame for the fault.
func (w *work) without(ctx context.Context, parts []*part, fault *faultError, describe func([]*part) (string, error)) ([]*part, error) {
	if len(parts) == 1 {
		w.setAside(ctx, parts[0], fault.err)
		return nil, nil
	}
	suspects := parts
	if fault.part >= 0 && fault.part < len(parts) {
		suspects = parts[fault.part : fault.part+1]
	}
	guilty := map[*part]bool{}
	for _, p := range suspects {
		text, err := describe([]*part{p})
		if err != nil {
			return nil, err
		}
		b, err := w.merge(ctx, []*part{p}, text)
		if err == nil {
			b.close()
			continue
		}
		alone := (*faultError)(nil)
		if !errors.As(err, &alone) || ctx.Err() != nil {
			return nil, err
		}
		guilty[p] = true
		w.setAside(ctx, p, alone.err)
	}
	if len(guilty) == 0 {
		if len(suspects) > 1 {
			w.fail(fmt.Errorf("%d parts that each can be published cannot be together: %w", len(parts), fault.err))
			return parts[:len(parts)/2], nil
		}
		guilty[suspects[0]] = true // here, not for good
	}
	var rest []*part
	for _, p := range parts {
		if !guilty[p] {
			rest = append(rest, p)
		}
	}
	return rest, nil
}

// setAside keeps a part that cannot be published from stopping the others.
func (w *work) setAside(ctx context.Context, p *part, why error) {
	p.broken = true
	w.keep(ctx, Broken, p.span, why)
	w.fail(fmt.Errorf("part %s at offset %d: %w", p.meta.ID(), p.off, why))
}
