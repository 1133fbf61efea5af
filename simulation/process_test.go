package simulation_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"testing"

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

// Not only are none left behind: not one is started, be it for a moment, from the first
// event to the last judgement.
func TestAWorldStartsNoGoroutine(t *testing.T) {
	world.Execute(plan.Draw(1, plan.Wanted{}), world.Setup{})
	runtime.GC() // the collector starts its own once
	for s := uint64(1); s <= 5; s++ {
		before := goroutinesCreated(t)
		world.Execute(plan.Draw(s, plan.Wanted{}), world.Setup{Turns: true, Logs: true})
		if created := goroutinesCreated(t) - before; created > 0 {
			t.Errorf("seed %d: the world started %d goroutines", s, created)
		}
	}
}

// goroutinesCreated is how many there have been so far.
func goroutinesCreated(t *testing.T) uint64 {
	t.Helper()
	sample := []metrics.Sample{{Name: "/sched/goroutines-created:goroutines"}}
	if metrics.Read(sample); sample[0].Value.Kind() != metrics.KindUint64 {
		t.Fatalf("this runtime does not count %s", sample[0].Name)
	}
	return sample[0].Value.Uint64()
}
