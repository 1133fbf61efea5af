//go:build !race

package nodes

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// restingBytesMax bounds what the node's actor holds for a placement that runs, its
// timeout and its assignment's key included. There may be a hundred thousand.
const restingBytesMax = 580

func TestMemoryOfAPlacementThatRuns(t *testing.T) {
	const count = 20_000
	s := newStation(t)
	m := s.machine
	m.now = s.now
	before := heapAfterCollection()
	for i := range count {
		commit := m.assignments.Revision() + 1
		entry := m.entryOf(&recordv1.Assignment{
			Run: fmt.Sprintf("r.default.%026d", i), Attempt: 1, Placement: 1, Session: 1, StartToken: make([]byte, 16),
			Spec: &recordv1.Spec{Driver: "null", Command: []string{"after=24h"}, TimeoutMs: (24 * time.Hour).Milliseconds()},
		}, commit)
		entry.State, entry.StartedBoottimeNs = recordv1.JournalState_JOURNAL_STATE_STARTED, m.now.Boot.Nanoseconds()
		entry.StartedAt = m.now.Milli()
		p := m.add(entry, nil)
		m.adoptPlacement(p, sandbox.Info{State: sandbox.StateRunning}, true)
		m.assignments.Apply(records.Batch{Revision: commit, Events: []records.Event{
			{KV: records.KV{Key: m.keys.Assignment("n1", entry.GetRun()), Create: commit, Mod: commit}},
		}})
		m.caughtUp()
		if m.restPerhaps(); p.doing != nil {
			t.Fatalf("%s does not rest", entry.GetRun())
		}
		m.out = nil
	}
	each := (heapAfterCollection() - before) / count
	t.Logf("%d bytes each", each)
	if each <= 0 || each > restingBytesMax {
		t.Errorf("%d bytes each, want at most %d", each, restingBytesMax)
	}
	runtime.KeepAlive(m)
}

func heapAfterCollection() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
