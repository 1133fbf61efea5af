package process_test

import (
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/errand-run/errand/nodes/sandbox"
)

// endless is input that has no end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// terminals counts those that this process has open.
func terminals(t *testing.T) (count int) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if to, err := os.Readlink(file); err == nil && (to == "/dev/ptmx" || to == "/dev/pts/ptmx") {
			count++
		}
	}
	return count
}

// TestExecThatDoesNotReadItsTerminalLeavesNothing: its input stands in a write that
// nothing ends but the terminal's end here.
func TestExecThatDoesNotReadItsTerminalLeavesNothing(t *testing.T) {
	d := open(t, config(t))
	defer d.Close()
	spec := specOf(t.TempDir(), "r.unread.1", "sleep", "3600")
	start(t, d, spec)
	defer remove(t, d, spec.ID)
	before := terminals(t)
	var under sync.WaitGroup
	for range 8 {
		under.Go(func() {
			for range 8 { // whether the kernel ends the write by itself is a matter of luck
				_, err := d.(sandbox.Execs).Exec(bounded(t), spec.ID, sandbox.Exec{
					Command: []string{"sh", "-c", "stty raw; sleep 0.05"}, Stdin: endless{}, Stdout: io.Discard, Stderr: io.Discard,
					Terminal: &sandbox.TerminalSize{Rows: 24, Columns: 80},
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	under.Wait()
	for deadline := time.Now().Add(2 * time.Minute); terminals(t) > before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d terminals are open of commands that have ended", terminals(t)-before)
		}
	}
}
