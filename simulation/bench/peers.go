package main

import (
	"fmt"
	"io"
	"os/exec"
)

// peers are the schedulers that design figures are quoted of, by the names of their
// programs. None of them is measured beside ours: nothing lands here that was never run
// against the real program, and none could be had to run it against.
var peers = []string{"dkron", "nomad"}

// tellPeers says of each why the table has no row of it, so that nobody takes a row's
// absence for a comparison that was made.
func tellPeers(w io.Writer, find func(program string) (path string, err error)) {
	for _, peer := range peers {
		path, err := find(peer)
		if err != nil {
			fmt.Fprintf(w, "bench: %s: not installed: no row\n", peer)
			continue
		}
		fmt.Fprintf(w, "bench: %s: found at %s, but nothing here drives it yet: no row\n", peer, path)
	}
}

// onPath finds a program.
func onPath(program string) (string, error) { return exec.LookPath(program) }
