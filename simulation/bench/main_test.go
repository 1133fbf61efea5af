package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// TestMain lets this program be what the tests need beside it: the keeper of a peer, a
// peer with a flaw, and what the documentation of Nomad and Dkron says of them.
func TestMain(m *testing.M) {
	switch name := filepath.Base(os.Args[0]); {
	case os.Args[0] == keeperName:
		os.Exit(keeperMain(os.Args[1:]))
	case name == "bench":
		main()
		return
	case name == "impostor":
		os.Exit(impostorMain(os.Args[1:]))
	case name == "nomad", name == "dkron":
		os.Exit(documentedMain(name, os.Args[1:]))
	}
	var err error
	if built, err = os.MkdirTemp("", "errand-bench-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(built)
		os.Exit(code)
	}))
}

// builtNode returns errand-node, built once for all tests.
func builtNode(t *testing.T) string {
	t.Helper()
	path, err := buildNode()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var buildNode = sync.OnceValues(func() (string, error) {
	path := filepath.Join(built, "errand-node")
	build := exec.Command("go", "build", "-race", "-o", path, "./cmd/node")
	build.Dir = filepath.Join("..", "..")
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build errand-node: %w: %s", err, output)
	}
	return path, nil
})

// built is where it is.
var built string

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
