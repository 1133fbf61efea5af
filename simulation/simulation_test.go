// Package simulation_test executes simulated clusters in the test runner: a fixed set
// of seeds, every plan that once found a fault, and, with -seed K, one seed.
package simulation_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/report"
	"github.com/errand-run/errand/simulation/world"
)

var (
	seed  = flag.Int64("seed", -1, "execute one seed, and print what happens")
	seeds = flag.Uint64("seeds", 40, "how many seeds to execute")
)

// execute carries a plan out, which arguments of simulate show again.
func execute(t *testing.T, p plan.Plan, setup world.Setup, arguments string) {
	t.Helper()
	r := world.Execute(p, setup)
	if r.Verdict() == world.Passed {
		return
	}
	t.Errorf("%s\n%s", r, r.Panic)
	for _, v := range r.Violations {
		t.Errorf("%s", v)
	}
	t.Errorf("replay: go run ./cmd/simulate %s --trace", arguments)
}

func TestSeed(t *testing.T) {
	if *seed < 0 {
		t.Skip("only with -seed K")
	}
	lines := report.NewText(os.Stdout, report.Filter{})
	execute(t, plan.Draw(uint64(*seed), plan.Wanted{}), world.Setup{Turns: true, Logs: true, Observe: lines.Observe}, fmt.Sprintf("--seed %d", *seed))
}

func TestSeeds(t *testing.T) {
	if *seed >= 0 {
		t.Skip("with -seed K only that one")
	}
	for s := uint64(1); s <= *seeds; s++ {
		execute(t, plan.Draw(s, plan.Wanted{}), world.Setup{}, fmt.Sprintf("--seed %d", s))
	}
}

// Each file is a plan that once found a fault, cut down; its note says what it was.
func TestRegressions(t *testing.T) {
	files, err := filepath.Glob("regressions/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			p, err := plan.Decode(data)
			if err != nil {
				t.Fatal(err)
			}
			execute(t, p, world.Setup{Observe: func(history.Event) {}}, "--plan simulation/"+file)
		})
	}
}
