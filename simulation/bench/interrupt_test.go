package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestAnInterruptedBenchmarkLeavesNothingBehind has it run below a keeper, which knows
// whatever it starts, and interrupts it while commands of an hour run.
func TestAnInterruptedBenchmarkLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	at := placeOf(t)
	if err := os.Mkdir(filepath.Join(at.folder, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(builtNode(t), filepath.Join(at.folder, "bin", "errand-node")); err != nil {
		t.Fatal(err)
	}
	if err := at.run(programAs(t, "bench"), "-short", "-only", "adoption"); err != nil {
		t.Fatal(err)
	}
	const enough = 10
	sleeping := 0
	for deadline := time.Now().Add(2 * time.Minute); sleeping < enough && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		below, err := descendants(at.keeper.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		sleeping = 0
		for _, p := range below {
			if p.name == "sleep" {
				sleeping++
			}
		}
	}
	if sleeping < enough {
		t.Errorf("%d commands run: %s", sleeping, at.tail())
	}
	log := at.log()
	left, err := filepath.Glob(filepath.Join(at.folder, "errand-bench-*"))
	if err != nil || len(left) != 1 {
		t.Errorf("while it runs there is %q, %v", left, err)
	}
	// As a terminal does it: to all of the group, which the keeper leads and takes no notice.
	if err := syscall.Kill(-at.keeper.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-at.ended
	text, err := os.ReadFile(log)
	if err != nil || !strings.Contains(string(text), "context canceled") {
		t.Errorf("it said %q, %v", text, err)
	}
	if left, err = filepath.Glob(filepath.Join(at.folder, "errand-bench-*")); err != nil || len(left) > 0 {
		t.Errorf("it left %q, %v", left, err)
	}
	wantError(t, at.close(), "it ended by itself: exit status 1")
}
