package minimize

import (
	"slices"
	"testing"
	"time"

	"github.com/errand-run/errand/simulation/plan"
)

// guilty fails when two faults and one call are there, on at least three nodes.
func guilty(p plan.Plan) bool {
	crash := slices.ContainsFunc(p.Faults, func(f plan.Fault) bool { return f.What.Kind() == "crash" && f.Begin < plan.Duration(time.Minute) })
	cut := slices.ContainsFunc(p.Faults, func(f plan.Fault) bool { return f.What.Kind() == "cut" })
	call := slices.ContainsFunc(p.Workload, func(c plan.Call) bool { return c.Label == "w7" })
	return crash && cut && call && p.Options.Nodes >= 3
}

func bloated(t *testing.T) plan.Plan {
	t.Helper()
	p := plan.Draw(1, plan.Wanted{Nodes: 7, Length: 10 * time.Minute})
	p.Faults, p.Workload = nil, nil
	for i := range 60 {
		at := plan.Duration(time.Duration(i) * 10 * time.Second)
		p.Faults = append(p.Faults, plan.Fault{Begin: at, End: at, What: plan.Compaction{}})
		p.Workload = append(p.Workload, plan.Call{At: at, Verb: plan.VerbGet, Node: plan.NodeName(i % 7), Label: "w" + plan.NodeName(i)[1:]})
	}
	p.Faults = slices.Insert(p.Faults, 3, plan.Fault{Begin: plan.Duration(25 * time.Second), End: plan.Duration(time.Minute), What: plan.Crash{Node: "n2"}})
	p.Faults = slices.Insert(p.Faults, 20, plan.Fault{Begin: plan.Duration(3 * time.Minute), End: plan.Duration(4 * time.Minute), What: plan.Cut{From: []string{"n1"}, To: []string{"n3"}}})
	if !guilty(p) {
		t.Fatal("the plan does not fail")
	}
	return p
}

func TestMinimizeKeepsWhatIsNeededAndNothingElse(t *testing.T) {
	executions := 0
	small, checker := Minimize(bloated(t), func(p plan.Plan) string {
		executions++
		if guilty(p) {
			return "G2"
		}
		return ""
	}, nil)
	if checker != "G2" || !guilty(small) {
		t.Fatalf("fails by %q", checker)
	}
	if len(small.Faults) != 2 || len(small.Workload) != 1 || small.Options.Nodes != 3 || small.Options.Policy.Kind != plan.PolicyFIFO {
		t.Errorf("left: %v, %v, %+v", small.Faults, small.Workload, small.Options)
	}
	if small.Options.Length > plan.Duration(182*time.Second) {
		t.Errorf("%s long", small.Options.Length)
	}
	if executions > 300 {
		t.Errorf("%d executions", executions)
	}
}

func TestMinimizeIsNotLedAstrayByAnotherFailure(t *testing.T) {
	small, checker := Minimize(bloated(t), func(p plan.Plan) string {
		if guilty(p) {
			return "G2"
		}
		return "liveness"
	}, nil)
	if checker != "G2" || !guilty(small) {
		t.Errorf("ends with %q", checker)
	}
}

func TestMinimizeLeavesAPlanThatPassesAlone(t *testing.T) {
	p := bloated(t)
	small, checker := Minimize(p, func(plan.Plan) string { return "" }, nil)
	if checker != "" || len(small.Faults) != len(p.Faults) {
		t.Errorf("%d faults, %q", len(small.Faults), checker)
	}
}
