package run

import (
	"fmt"
	"slices"
	"testing"

	"github.com/errand-run/errand/actors"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
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

// Of a run that an older copy of the store holds any node says that it may have been
// started: it is asked for by the revision at which its record was created.
func TestNodesAreToldWhenTheRecordWasCreatedAndOneSaysForAllThatItMayHaveRun(t *testing.T) {
	b := newBench(t, true, "n1")
	b.receive(&actorv1.Wake{Run: testID})
	asked := 0
	for _, tell := range b.tells {
		if m, ok := tell.Message.(*actorv1.Reserve); ok {
			asked++
			if m.GetCreated() != b.store.keys[b.keys.Run(testID)].Create {
				t.Errorf("created at %d", m.GetCreated())
			}
		}
	}
	if asked == 0 {
		t.Error("nobody was asked")
	}
	const unknown, other = recordv1.Reason_REASON_START_UNKNOWN, recordv1.Reason_REASON_START_ERROR
	for _, c := range []struct {
		refusals []refusal
		want     recordv1.Reason
	}{
		{nil, 0},
		{[]refusal{{}, {permanent: unknown}}, unknown},
		{[]refusal{{permanent: other}, {permanent: unknown}}, unknown},
		{[]refusal{{permanent: other}, {}}, 0},
		{[]refusal{{permanent: other}, {permanent: other}}, other},
	} {
		if got := permanentOf(c.refusals); got != c.want {
			t.Errorf("%v: %v, want %v", c.refusals, got, c.want)
		}
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
