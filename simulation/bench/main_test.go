package main

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// TestMain lets this program be what the tests need beside it: the keeper of a peer, a
// peer with a flaw, and what the documentation of Nomad and Dkron says of them.
func TestMain(m *testing.M) {
	switch name := filepath.Base(os.Args[0]); {
	case os.Args[0] == keeperName:
		os.Exit(keeperMain(os.Args[1:]))
	case name == "impostor":
		os.Exit(impostorMain(os.Args[1:]))
	case name == "nomad", name == "dkron":
		os.Exit(documentedMain(name, os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// programAs returns a path at which this program has another name.
func programAs(t *testing.T, name string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}
