package world

import (
	"fmt"
	"testing"
	"time"

	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"

	"github.com/errand-run/errand/cluster/placement"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/plan"
)

// sick is the node that starts nothing from sickFrom to sickTo, and is well again then.
const (
	sick     = "n1"
	sickFrom = 20 * time.Second
	sickTo   = 4 * time.Minute
	sickEnd  = 9 * time.Minute
)

// sickNode is a plan of three nodes on which nothing fails but the starts of one of them,
// while a run is submitted each second.
func sickNode() plan.Plan {
	p := plan.Draw(1, plan.Wanted{Nodes: 3, Length: sickEnd, Classes: []plan.Class{}})
	p.Faults, p.Workload = nil, nil
	p.Options.Solo, p.Options.SandboxesMax = false, 64
	for i := range int(sickEnd/time.Second) - 30 {
		p.Workload = append(p.Workload, plan.Call{
			At: plan.Duration(i) * plan.Duration(time.Second), Verb: plan.VerbSubmit, Node: plan.NodeName(i % 3), Label: fmt.Sprintf("s%d", i),
			Command: &plan.Command{
				Takes: plan.Duration(time.Second), Timeout: plan.Duration(time.Hour), StartDeadline: plan.Duration(5 * time.Minute), StopGrace: plan.Duration(10 * time.Second),
			},
		})
	}
	return p
}

func TestOtherRunsGoElsewhereWhileANodeFailsStartsAndComeBack(t *testing.T) {
	count := func(life time.Duration) (tried, back int) {
		result := New(sickNode(), Setup{
			Ports: func(_ string, ports *nodes.Ports, _ func(string, *actorv1.Packet)) {
				ports.Scores = placement.NewScores(life)
			},
			Prepare: func(w *World) {
				refuse := func(rate float64) func() {
					return func() {
						faults := w.base()
						faults.Runtime.StartRefuseRate = rate
						w.Machine(sick).Alter(faults)
					}
				}
				w.Timeline().After(sickFrom, refuse(1))
				w.Timeline().After(sickTo, refuse(0))
			},
			Observe: func(e history.Event) {
				if e.Kind != history.KindSandbox || e.Node != sick || e.Text != "created" {
					return
				}
				switch {
				case e.At > sickFrom && e.At < sickTo:
					tried++
				case e.At > sickEnd-2*time.Minute:
					back++
				}
			},
		}).Run()
		if result.Verdict() != Passed {
			t.Fatalf("%v %v", result, result.Violations)
		}
		return tried, back
	}
	without, _ := count(0)
	with, back := count(placement.MarkLife)
	t.Logf("starts tried on the sick node: %d with scores, %d without; %d in its share of the last two minutes", with, without, back)
	if with > without/3 {
		t.Errorf("%d starts were tried on the sick node, and %d without scores", with, without)
	}
	if back < 20 {
		t.Errorf("%d of about 30 runs came back to the node that is well again", back)
	}
}
