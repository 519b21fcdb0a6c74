//go:build integration

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"testing"
)

func TestTheEmulatorOfLambdasRuntimeInvokesTheProgram(t *testing.T) {
	rie := os.Getenv("STREAMER_TEST_RIE")
	if rie == "" {
		t.Fatal("STREAMER_TEST_RIE does not name aws-lambda-rie; make lambda-rie builds it and sets it")
	}
	l := newLaptop(t)
	invocations, runtime := fixedPort(t), fixedPort(t)
	f := l.startFunction([]string{"AWS_LAMBDA_FUNCTION_TIMEOUT=60"}, rie,
		"--runtime-interface-emulator-address", invocations, "--runtime-api-address", runtime)
	functionMoves(t, l, func(ctx context.Context, event []byte) ([]byte, error) {
		var body []byte
		var err error
		until(t, "the emulator answers", func() bool {
			f.running()
			var req *http.Request
			if req, err = http.NewRequestWithContext(ctx, http.MethodPost, "http://"+invocations+"/2015-03-31/functions/function/invocations", bytes.NewReader(event)); err != nil {
				t.Fatal(err)
			}
			resp, failed := http.DefaultClient.Do(req)
			if failed != nil {
				return false // it does not listen yet
			}
			defer resp.Body.Close()
			body, err = io.ReadAll(resp.Body)
			return true
		})
		if err == nil && bytes.Contains(body, []byte("errorMessage")) {
			err = fmt.Errorf("the function failed: %s\n%s", body, f.stderr)
		}
		return body, err
	})
	if t.Failed() {
		t.Logf("%s%s", f.stdout, f.stderr)
	}
}
