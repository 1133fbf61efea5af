package run

import (
	"fmt"
	"slices"
	"testing"

	"github.com/errand-run/errand/actors"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
)

// Several nodes may have a deadline actor for one shard, and several an activation
// of one run.
func TestAnswersAreAddressedToTheActivationThatAsks(t *testing.T) {
	b := newBench(t, true, "n1")
	shard := int32(3)
	b.receive(&actorv1.Wake{Run: testID, Shard: &shard, Node: "n7"})
	b.receive(&actorv1.Wake{Run: testID, Shard: &shard, Node: "n8"})
	var awake []string
	for _, tell := range b.tells {
		switch m := tell.Message.(type) {
		case *actorv1.Awake:
			awake = append(awake, tell.Node)
		case *actorv1.Reserve:
			if m.GetNode() != "here" {
				t.Errorf("the reservation is to be answered to %q", m.GetNode())
			}
		}
	}
	if !slices.Equal(awake, []string{"n7", "n8"}) {
		t.Errorf("answered the wakes of %q", awake)
	}
}

// Wakes of several deadline actors that wait for one transaction are all answered.
func TestWakesOfSeveralNodesAreNotTakenForOne(t *testing.T) {
	shard := int32(3)
	of := func(node string) wake { return wake{shard: &shard, node: node} }
	if same(of("n7"), of("n8")) || !same(of("n7"), of("n7")) {
		t.Error("wakes are told apart by something else than their node")
	}
}

func TestRunsAskTheNodesInOrdersOfTheirOwn(t *testing.T) {
	nodes := candidates{"n1", "n2", "n3", "n4", "n5"}
	first := map[string]int{}
	const runs = 500
	for i := range runs {
		m := New(fmt.Sprintf("r.default.%d", i), Config{Nodes: nodes})
		m.snapshot.run = newRun()
		m.seek(at(0))
		if len(m.round.candidates) != len(nodes) {
			t.Fatalf("asks %v", m.round.candidates)
		}
		for _, effect := range m.out {
			if tell, ok := effect.(actors.Tell); ok {
				first[tell.Identity]++
			}
		}
	}
	for _, node := range nodes {
		if first[node] < runs/len(nodes)/2 {
			t.Errorf("%s is asked first by %d of %d runs", node, first[node], runs)
		}
	}
}
