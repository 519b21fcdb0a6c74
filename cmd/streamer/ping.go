package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// pingWithin is how long an address has for its answer: a health check that takes longer is
// as good as none.
const pingWithin = 5 * time.Second

func newPing() *cobra.Command {
	return &cobra.Command{
		Use:   "ping URL",
		Short: "Ask an address over HTTP whether it is well",
		Long: `Exit 0 if the address answers with a status of 2xx, else print what it says and
exit 1. It is the health check of an image that holds nothing but this program.`,
		Example: `  streamer ping http://127.0.0.1:8080/readyz
  streamer ping http://127.0.0.1:4588/`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("%s takes one URL; see %s --help", c.CommandPath(), c.CommandPath())
			}
			return ping(c.Context(), args[0])
		},
	}
}

func ping(ctx context.Context, address string) error {
	if u, err := url.Parse(address); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return usagef("%q is no URL of the form http://HOST:PORT/PATH", address)
	}
	ctx, cancel := context.WithTimeout(ctx, pingWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return usage(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 == 2 {
		return nil
	}
	// Reasons are short; what else an address sends is not for a health check.
	why, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil {
		return fmt.Errorf("ping %s: %s: read the answer: %w", address, resp.Status, err)
	}
	return fmt.Errorf("ping %s: %s: %s", address, resp.Status, strings.TrimSpace(string(why)))
}
