//go:build !race

package run

import (
	"math"
	"runtime"
	"testing"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// lifeAllocations are the allocations of each turn in the life of a run. They depend on
// nothing but the code: a number that rises is a cost for every run there ever is.
var lifeAllocations = []struct {
	turn string
	want uint64
}{
	{"activated", 4},
	{"told of the creation: a node is asked", 17},
	{"reserved: the placement is sent", 30},
	{"placed: the node is told", 10},
	{"started: is sent", 21},
	{"running", 0},
	{"exited: is sent", 30},
	{"ended: the node is told", 11},
}

func TestAllocationsOfTheTurnsOfARun(t *testing.T) {
	least := make([]uint64, len(lifeAllocations))
	for i := range least {
		least[i] = math.MaxUint64
	}
	const lives = 20 // the runtime allocates a little of its own now and then
	for range lives {
		for i, n := range lifeOf(t) {
			least[i] = min(least[i], n)
		}
	}
	for i, turn := range lifeAllocations {
		if least[i] != turn.want {
			t.Errorf("%s: %d allocations, want %d", turn.turn, least[i], turn.want)
		}
	}
}

// lifeOf takes a run through its life and returns the allocations of each turn.
func lifeOf(t *testing.T) (allocations []uint64) {
	t.Helper()
	b := newBench(t, true, "n1")
	m := New(testID, b.machine.cfg)
	b.machine = m
	turn := func(in actors.Input) *actors.Commit {
		before := mallocs()
		effects := m.Step(b.now, in)
		allocations = append(allocations, mallocs()-before)
		for _, effect := range effects {
			if commit, ok := effect.(actors.Commit); ok {
				return &commit
			}
		}
		return nil
	}
	land := func(commit *actors.Commit) {
		if commit == nil {
			t.Fatal("nothing was sent to the store")
		}
		turn(actors.Committed{Tag: commit.Tag, Result: b.store.txn(commit.Txn)})
	}
	turn(actors.Activated{})
	created := b.store.keys[b.keys.Run(testID)]
	turn(actors.Received{Message: &actorv1.Wake{Run: testID, Record: created.Value, Revision: created.Mod}})
	land(turn(actors.Received{Message: &actorv1.Reserved{
		Run: testID, Attempt: 1, Placement: 1, Node: "n1", Yes: true, Session: b.sessionOf("n1"),
	}}))
	land(turn(actors.Received{Message: &actorv1.Started{Run: testID, Attempt: 1, Placement: 1, Node: "n1", At: b.now.Milli()}}))
	code := int32(0)
	land(turn(actors.Received{Message: &actorv1.Exited{
		Run: testID, Attempt: 1, Placement: 1, Node: "n1", Exit: &recordv1.Exit{Code: &code, At: b.now.Milli(), StartedAt: b.now.Milli()},
	}}))
	if run := b.record(); run.GetStatus() != recordv1.Status_STATUS_SUCCEEDED {
		t.Fatalf("the run is %s", records.Word(run.GetStatus()))
	}
	return allocations
}

func mallocs() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.Mallocs
}
