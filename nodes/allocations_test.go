//go:build !race

package nodes

import (
	"math"
	"runtime"
	"testing"

	"github.com/errand-run/errand/actors"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
)

// placementAllocations are the allocations of the node actor's turns for one sandbox,
// from the room that a run asks for to the last that is known of it.
var placementAllocations = []struct {
	turn string
	want uint64
}{
	{"reserve", 5},
	{"told to start", 30},
	{"created", 11},
	{"starting journaled", 3},
	{"started", 15},
	{"held", 10},
	{"started journaled", 3},
	{"ended", 24},
	{"end journaled", 0},
	{"emptied", 5},
	{"flushed", 14},
	{"removed", 0},
	{"acknowledged", 7},
	{"watched its end", 11},
	{"forgotten", 0},
}

func TestAllocationsOfTheTurnsOfANode(t *testing.T) {
	least := make([]uint64, len(placementAllocations))
	for i := range least {
		least[i] = math.MaxUint64
	}
	const lives = 20 // the runtime allocates a little of its own now and then
	for range lives {
		for i, n := range placementOf(t) {
			least[i] = min(least[i], n)
		}
	}
	for i, turn := range placementAllocations {
		if least[i] != turn.want {
			t.Errorf("%s: %d allocations, want %d", turn.turn, least[i], turn.want)
		}
	}
}

// placementOf takes a node through the life of one sandbox and returns the allocations
// of each turn.
func placementOf(t *testing.T) (allocations []uint64) {
	t.Helper()
	s := newStation(t)
	var before uint64
	s.stepping = func() { before = mallocs() }
	s.stepped = func(actors.Input, []actors.Effect) { allocations = append(allocations, mallocs()-before) }
	s.tell(&actorv1.Reserve{Run: tableRun, Attempt: 1, Placement: 1, Driver: "null", CpuMillis: 100, MemoryBytes: 1 << 20})
	s.assign(s.assignment())
	s.tell(s.start())
	s.do(VerbCreate)
	s.write()
	s.do(VerbStart)
	s.pass(StartHold)
	s.write()
	for id := range s.boxes {
		s.lab.end(id, 0, 0)
	}
	s.do(VerbWait)
	s.write()
	s.do(VerbKill)
	s.do(VerbFlush)
	s.do(VerbRemove)
	s.withdraw()
	s.tell(&actorv1.Ack{Run: tableRun, Attempt: 1, Placement: 1, Commit: s.store.revision})
	s.watched = s.watched[len(s.watched)-1:]
	s.watch()
	s.write()
	if len(s.entries) != 0 {
		t.Fatalf("the journal still has %d entries", len(s.entries))
	}
	return allocations
}

func mallocs() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.Mallocs
}
