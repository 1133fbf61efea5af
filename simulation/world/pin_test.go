package world

import (
	"slices"
	"testing"

	"github.com/errand-run/errand/simulation/plan"
)

func TestAPinnedPlanKeepsItsRunsWhenCallsAreTakenAway(t *testing.T) {
	for seed := uint64(1); seed <= 5; seed++ {
		p := plan.Draw(seed, plan.Wanted{})
		whole, pinned := runIDs(p), Pin(p)
		if err := pinned.Check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if Execute(pinned, Setup{}).Steps != Execute(p, Setup{}).Steps {
			t.Errorf("seed %d: pinned it is another world", seed)
		}
		pinned.Workload = slices.DeleteFunc(pinned.Workload, func(c plan.Call) bool { return c.Verb == plan.VerbSubmit && c.Label < "w3" })
		for label, id := range runIDs(pinned) {
			if id != whole[label] {
				t.Errorf("seed %d: %s is %s and was %s", seed, label, id, whole[label])
			}
		}
	}
}
