package testenv

import (
	"context"
	"net"
	"net/http"
	"testing"
)

// A wideListener says that it listens on every address. It does not: tests stay on loopback.
type wideListener struct{ net.Listener }

func (wideListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4zero, Port: 4588} }

func TestServedContainerAnswersToTheSameNamesOnly(t *testing.T) {
	env := openFor(t, Options{Dir: t.TempDir()})
	l := listen(t, "127.0.0.1:0")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- env.ServeContainer(ctx, wideListener{l}) }()
	for host, status := range map[string]int{
		"127.0.0.1:4588":    http.StatusOK,
		"aws.internal:4588": http.StatusOK,
		"172.18.0.2:4588":   http.StatusForbidden,
		"evil.example:4588": http.StatusForbidden,
	} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.Addr().String()+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		if resp.StatusCode != status {
			t.Errorf("%s: got %s, want %d", host, resp.Status, status)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("ServeContainer ended with %v", err)
	}
}
