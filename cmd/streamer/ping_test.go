package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestPingTellsWhetherAnAddressIsWell(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			http.Error(w, "no progress for 10m", http.StatusServiceUnavailable)
		}
	}))
	gone := httptest.NewServer(nil)
	gone.Close()
	defer server.Close()
	for name, tt := range map[string]struct {
		args []string
		code int
		want string
	}{
		"well":        {[]string{server.URL + "/healthz"}, exitOK, ""},
		"unwell":      {[]string{server.URL + "/readyz"}, exitFailed, "503 Service Unavailable: no progress for 10m"},
		"not there":   {[]string{gone.URL}, exitFailed, "connection refused"},
		"no scheme":   {[]string{"127.0.0.1:8080"}, exitUsage, "http://HOST:PORT/PATH"},
		"nothing":     {nil, exitUsage, "takes one URL"},
		"two at once": {[]string{server.URL, server.URL}, exitUsage, "takes one URL"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := streamer(t, append([]string{"ping"}, tt.args...)...)
			if code != tt.code || !strings.Contains(stderr, tt.want) || stdout != "" {
				t.Errorf("exit code %d, stderr %q, stdout %q; want %d and %q", code, stderr, stdout, tt.code, tt.want)
			}
			if tt.want == "" && stderr != "" {
				t.Errorf("stderr has %q", stderr)
			}
		})
	}
}
