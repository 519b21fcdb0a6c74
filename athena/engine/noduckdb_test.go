//go:build !cgo || !((linux && (amd64 || arm64)) || (darwin && (amd64 || arm64)) || (windows && amd64))

package engine

import (
	"errors"
	"strings"
	"testing"
)

func TestWithoutDuckDBOpenLakeSaysWhatIsMissing(t *testing.T) {
	_, err := OpenLake(t.Context(), "lake", nil)
	if !errors.Is(err, ErrNoDuckDB) || !strings.Contains(err.Error(), "CGO_ENABLED=1") {
		t.Errorf("error is %v, want ErrNoDuckDB and what to do", err)
	}
}
