package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestAPeerWithoutARowIsTold(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	for _, c := range []struct{ name, install, want string }{
		{"none is installed", "", "bench: dkron: not installed: no row\nbench: nomad: not installed: no row\n"},
		{
			"one is", "nomad",
			"bench: dkron: not installed: no row\nbench: nomad: found at " + filepath.Join(bin, "nomad") + ", but nothing here drives it yet: no row\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.install != "" {
				if err := os.WriteFile(filepath.Join(bin, c.install), []byte("#!/bin/sh\n"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			var told bytes.Buffer
			tellPeers(&told, onPath)
			if told.String() != c.want {
				t.Errorf("told %q, want %q", told.String(), c.want)
			}
		})
	}
}
