package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// The same seed makes the same trace in another process, on one processor and on eight.
// That process is built without the race detector and this one, in make test, with it.
func TestTraceIsTheSameInEveryProcess(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "simulate")
	build := exec.CommandContext(t.Context(), "go", "build", "-race=false", "-o", binary, "github.com/errand-run/errand/cmd/simulate")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build simulate: %v\n%s", err, out)
	}
	t.Chdir(t.TempDir())
	for seed := 1; seed <= 10; seed++ {
		args := []string{"--seed", strconv.Itoa(seed), "--nodes", "3", "--hours", "0.02", "--json"}
		var own, stderr bytes.Buffer
		if code := Execute(t.Context(), args, &own, &stderr); code != ExitPassed {
			t.Fatalf("seed %d: exit %d\n%s", seed, code, stderr.String())
		}
		for _, processors := range []string{"1", "8"} {
			command := exec.CommandContext(t.Context(), binary, args...)
			command.Env = append(os.Environ(), "GOMAXPROCS="+processors)
			out, err := command.Output()
			if err != nil || !bytes.Equal(eventsOf(out), eventsOf(own.Bytes())) || len(eventsOf(out)) == 0 {
				t.Errorf("seed %d with %s processors: another trace, %v", seed, processors, err)
			}
		}
	}
}

// eventsOf is a trace without its last line, which names the version.
func eventsOf(trace []byte) []byte {
	return trace[:bytes.LastIndexByte(bytes.TrimRight(trace, "\n"), '\n')+1]
}
