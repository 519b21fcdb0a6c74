package main

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"telemetrylake/pipeline"
	"telemetrylake/pipeline/lake"
	"telemetrylake/pipeline/seal"
	"telemetrylake/schemas"
)

// footprints are what the lake and staging say of the windows that are in them: objects name the
// windows of their parts in their footers.
type footprints struct {
	contract *schemas.Contract
	lake     lakeStore
	staging  *lake.Bucket // nil: there is none
}

// parallelFooters is how many footers are read at once. Each is one short request.
const parallelFooters = 16

// footerGuess is what is read of the end of an object at first: few footers are longer.
const footerGuess = 64 << 10

// ours reports whether a lane reads the stream of the contract's table.
func (f *footprints) ours(lane pipeline.LaneID) bool {
	return lane == laneOf(f.contract) || strings.HasPrefix(string(lane), "lambda-"+f.contract.Name+"-")
}

// tables are the prefixes of the contract's lake tables.
func (f *footprints) tables() []string {
	var prefixes []string
	for _, t := range f.contract.Tables() {
		prefixes = append(prefixes, t.Name+"/")
	}
	return prefixes
}

// eachObject reads the newest of the lake objects below the prefixes, in no order, and hands each
// that is ours on, one at a time, with those of its windows that stream lanes made. It returns how
// many objects it looked at.
func (f *footprints) eachObject(ctx context.Context, prefixes []string, most int, visit func(name string, m *pipeline.ObjectMeta) error) (int, error) {
	objects, err := f.lake.Newest(ctx, prefixes, most)
	if err != nil {
		return 0, err
	}
	var mu sync.Mutex
	return len(objects), each(ctx, objects, func(ctx context.Context, o pipeline.Object) error {
		m, _, err := readFooter(ctx, f.lake, o)
		if errors.Is(err, pipeline.ErrNotFound) {
			return nil
		}
		if err != nil || m == nil {
			return err
		}
		m.Windows = slices.DeleteFunc(m.Windows, func(w pipeline.ObjectWindow) bool { return !f.ours(w.Window.Lane) })
		mu.Lock()
		defer mu.Unlock()
		return visit(o.Key, m)
	})
}

// readFooter reads what a lake object says of itself, and how many rows the file says it has; nil for
// one that is not ours.
func readFooter(ctx context.Context, at lakeStore, o pipeline.Object) (*pipeline.ObjectMeta, int64, error) {
	for n := int64(footerGuess); ; {
		end, err := at.Tail(ctx, o, n)
		if err != nil {
			return nil, 0, err
		}
		m, rows, err := seal.ReadObject(end)
		switch {
		case errors.Is(err, pipeline.ErrNewerFormat):
			return nil, 0, pipeline.NeedPerson(err, "upgrade this binary to the version that runs elsewhere")
		case errors.Is(err, seal.ErrShort) && int64(len(end)) == n: // there is more of it
			if n, err = seal.FooterSize(end); err != nil {
				return nil, 0, nil
			}
		case err != nil: // a file of somebody else
			return nil, 0, nil
		default:
			return m, rows, nil
		}
	}
}

// eachPart reads the newest staging objects and hands the parts on that stream lanes made, one at a
// time. It returns how many objects it looked at.
func (f *footprints) eachPart(ctx context.Context, most int, visit func(*pipeline.PartMeta) error) (int, error) {
	if f.staging == nil {
		return 0, nil
	}
	objects, err := f.staging.Newest(ctx, []string{""}, most)
	if err != nil {
		return 0, err
	}
	var mu sync.Mutex
	return len(objects), each(ctx, objects, func(ctx context.Context, o pipeline.Object) error {
		body, err := f.staging.Tail(ctx, o, o.Size)
		if errors.Is(err, pipeline.ErrNotFound) || o.Size == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		parts, _ := seal.ReadPartMetas(body)
		mu.Lock()
		defer mu.Unlock()
		for _, p := range parts {
			if f.ours(p.Window.Lane) {
				if err := visit(p); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func each(ctx context.Context, objects []pipeline.Object, read func(context.Context, pipeline.Object) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelFooters)
	for _, o := range objects {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { return read(ctx, o) })
	}
	return g.Wait()
}

// allObjects is the count of newest objects that leaves none out.
const allObjects = math.MaxInt
