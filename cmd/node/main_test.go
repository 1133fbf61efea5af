package main

import (
	"context"
	"strings"
	"testing"
)

// Who stops a service that has not come up yet is not told that it has failed.
func TestSignalDuringTheStartIsNoFailure(t *testing.T) {
	ctx, signal := context.WithCancel(t.Context())
	signal()
	var stdout, stderr strings.Builder
	args := []string{"--dev", "--data", t.TempDir(), "--runtime-dir", t.TempDir(), "--listen", "127.0.0.1:0", "--drivers", "process"}
	if code := run(ctx, args, nil, &stdout, &stderr); code != exitOK || stdout.String() != "" || stderr.String() != "" {
		t.Errorf("code %d, stdout %q, stderr %q", code, &stdout, &stderr)
	}
}
