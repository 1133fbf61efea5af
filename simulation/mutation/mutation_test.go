package mutation_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/errand-run/errand/simulation/check"
	"github.com/errand-run/errand/simulation/mutation"
	"github.com/errand-run/errand/simulation/world"
)

// fell returns which of some guarantees a world has violated.
func fell(result world.Result, of []check.Guarantee) (first check.Violation, ok bool) {
	i := slices.IndexFunc(result.Violations, func(v check.Violation) bool {
		return v.Outside == "" && slices.Contains(of, v.Guarantee)
	})
	if i < 0 {
		return check.Violation{}, false
	}
	return result.Violations[i], true
}

// found carries the plan of a seed out with a mutation and, when a guarantee fell,
// once more without: only what the mutation has done counts.
func found(t *testing.T, m mutation.Mutation, seed uint64) (check.Violation, bool) {
	t.Helper()
	result := world.New(m.Plan(seed), world.Setup{Ports: m.Ports}).Run()
	if result.Panic != "" {
		t.Fatalf("seed %d: %s", seed, result.Panic)
	}
	v, ok := fell(result, m.Breaks)
	if !ok {
		return v, false
	}
	_, without := fell(world.New(m.Plan(seed), world.Setup{}).Run(), m.Breaks)
	return v, !without
}

// A checker that nothing can set off checks nothing.
func TestMutationsAreFound(t *testing.T) {
	for _, m := range mutation.Table() {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= m.Seeds; seed++ {
				if v, ok := found(t, m, seed); ok {
					t.Logf("seed %d of at most %d: %v", seed, m.Seeds, v)
					return
				}
			}
			t.Errorf("none of %v fell within %d seeds", m.Breaks, m.Seeds)
		})
	}
}

// The table of the document is that of the code.
func TestMutationsAreInTheDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/simulation.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range mutation.Table() {
		if names[m.Name] {
			t.Errorf("there are two mutations %q", m.Name)
		}
		names[m.Name] = true
		row := "| " + m.Name + " | " + m.How + " |"
		i := strings.Index(string(text), row)
		if i < 0 {
			t.Errorf("the document lacks the row\n%s", row)
			continue
		}
		line, _, _ := strings.Cut(string(text[i:]), "\n")
		if !strings.HasSuffix(line, "| "+strconv.FormatUint(m.Seeds, 10)+" |") {
			t.Errorf("the document says otherwise within how many seeds: %s", line)
		}
	}
}
