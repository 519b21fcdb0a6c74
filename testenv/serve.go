package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

// How often Run looks for what is due.
const (
	tickEvery  = 100 * time.Millisecond
	sweepEvery = 30 * time.Second
)

// Run makes time pass for an Env on the system clock: it ticks ten times a second and
// deletes expired items twice a minute, until ctx is done, which is no error. It returns
// early, with what to do, when a durable Env can write no more.
func (e *Env) Run(ctx context.Context) error {
	ticks, sweeps := time.NewTicker(tickEvery), time.NewTicker(sweepEvery)
	defer ticks.Stop()
	defer sweeps.Stop()
	var failed chan struct{}
	disk, durable := e.store.(*diskStore)
	if durable {
		failed = disk.failed
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-failed:
			return *disk.broken.Load()
		case <-ticks.C:
			e.Tick()
		case <-sweeps.C:
			e.SweepTTL()
		}
	}
}

const (
	maxHeader    = 64 << 10 // bytes
	headerWait   = 10 * time.Second
	requestWait  = 10 * time.Minute // for the largest object on a slow disk
	idleWait     = 2 * time.Minute
	shutdownWait = 5 * time.Second
)

// Serve answers requests on a loopback listener until ctx is done, lets those that are
// running end for some seconds, and closes the listener. It refuses any other listener:
// there are no credentials to check. It is no error that ctx is done.
//
// Browsers run other people's programs on this machine. A request whose Host is not a name
// of this machine (a name rebound to its address) or that a page of another origin sends is
// refused.
func (e *Env) Serve(ctx context.Context, l net.Listener) error {
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok || !addr.IP.IsLoopback() {
		return errors.Join(fmt.Errorf("serve on %s: not a loopback address: listen on 127.0.0.1 or [::1]", l.Addr()), l.Close())
	}
	return e.ServeContainer(ctx, l)
}

// ServeContainer is Serve on any listener, for a process with a network of its own: what
// reaches it there is decided by who starts the container. It still answers to the names of
// this machine alone, so that a container beside it calls it aws.internal.
func (e *Env) ServeContainer(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           onlyFromHere(http.NewCrossOriginProtection().Handler(e)),
		MaxHeaderBytes:    maxHeader,
		ReadHeaderTimeout: headerWait,
		ReadTimeout:       requestWait,
		WriteTimeout:      requestWait,
		IdleTimeout:       idleWait,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownWait)
	defer cancel()
	if server.Shutdown(last) != nil {
		server.Close() // what still runs loses its connection, and the client tries again
	}
	<-ended
	return nil
}

// onlyFromHere refuses a request that was not sent to a name of this machine.
func onlyFromHere(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLocalHost(r.Host) {
			http.Error(w, "the embedded AWS answers to localhost, a loopback address or "+localName+" only", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

const localName = "aws.internal" // the host of Endpoint

// isLocalHost says whether a Host header names this machine. A bucket may stand before a
// name: nobody can register one below localhost or internal.
func isLocalHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	if ip := net.ParseIP(host); ip != nil {
		return ip.IsLoopback()
	}
	for _, name := range []string{"localhost", localName} {
		if host == name || strings.HasSuffix(host, "."+name) {
			return true
		}
	}
	return false
}
