package containers

import (
	"context"
	"errors"
	"net"

	"golang.org/x/sync/errgroup"

	"telemetrylake/testenv"
)

// startEmbedded serves an embedded AWS that keeps nothing but S3's objects, which lie in dir.
func startEmbedded(ctx context.Context, dir string) (*AWS, func() error, error) {
	env, err := testenv.Open(testenv.Options{Dir: dir})
	if err != nil {
		return nil, nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, errors.Join(err, env.Close())
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // a test's own ends before what it stops
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return env.Serve(ctx, l) })
	g.Go(func() error { return env.Run(ctx) })
	a := newAWS(Embedded, "http://"+l.Addr().String(), allServices)
	a.Name = "embedded AWS"
	return a, func() error {
		cancel()
		return errors.Join(g.Wait(), env.Close())
	}, nil
}
