package containerd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/errand-run/errand/nodes/sandbox/guest"
)

func TestAnInitOfAnEarlierVersionLetsNoOtherCommandIn(t *testing.T) {
	dir := t.TempDir()
	now, err := guest.Install(dir)
	if err != nil {
		t.Fatal(err)
	}
	earlier := filepath.Join(dir, "earlier")
	if err := os.WriteFile(earlier, []byte("#!/bin/sh\necho \"sandbox-init: unknown mode \\\"$1\\\"\" >&2\nexit 125\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if enters(t.Context(), earlier) || !enters(t.Context(), now) {
		t.Errorf("an earlier init: %t, today's: %t", enters(t.Context(), earlier), enters(t.Context(), now))
	}
}
