package simulation_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/world"
)

// Another process, built without the race detector whatever this one is, and on one
// processor, makes the same histories.
func TestAnotherProcessMakesTheSameHistory(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "simulate")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/errand-run/errand/cmd/simulate").CombinedOutput(); err != nil {
		t.Fatalf("build simulate: %v\n%s", err, out)
	}
	for s := uint64(1); s <= 12; s++ {
		command := exec.Command(binary, "--seed", strconv.FormatUint(s, 10), "--failures", t.TempDir())
		command.Env = append(command.Environ(), "GOMAXPROCS=1")
		out, err := command.Output()
		if err != nil {
			t.Fatalf("seed %d: %v", s, err)
		}
		want := fmt.Sprintf("hash %016x", world.Execute(plan.Draw(s, plan.Wanted{}), world.Setup{}).Hash)
		if !strings.Contains(string(out), want) {
			t.Errorf("seed %d: here it has the %s, there:\n%s", s, want, out)
		}
	}
}

// Not only are none left behind: at no event is there one more.
func TestAWorldStartsNoGoroutine(t *testing.T) {
	for s := uint64(1); s <= 5; s++ {
		before, most := runtime.NumGoroutine(), 0
		world.Execute(plan.Draw(s, plan.Wanted{}), world.Setup{Turns: true, Logs: true, Observe: func(history.Event) {
			most = max(most, runtime.NumGoroutine())
		}})
		if most > before {
			t.Errorf("seed %d: %d goroutines before, up to %d in the world", s, before, most)
		}
	}
}
