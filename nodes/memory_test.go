//go:build !race

package nodes

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// restingBytesMax bounds what the node's actor holds for a placement that runs, its
// timeout included, and its wait not. There may be a hundred thousand.
const restingBytesMax = 1100

func TestMemoryOfAPlacementThatRuns(t *testing.T) {
	const count = 20_000
	s := newStation(t)
	m := s.machine
	m.now = s.now
	before := heapAfterCollection()
	for i := range count {
		entry := m.entryOf(&recordv1.Assignment{
			Run: fmt.Sprintf("r.default.%026d", i), Attempt: 1, Placement: 1, Session: 1, StartToken: make([]byte, 16),
			Spec: &recordv1.Spec{Driver: "null", Command: []string{"after=24h"}, TimeoutMs: (24 * time.Hour).Milliseconds()},
		}, int64(i)+2)
		entry.State, entry.StartedBoottimeNs = recordv1.JournalState_JOURNAL_STATE_STARTED, m.now.Boot.Nanoseconds()
		m.watchTimeout(m.add(entry, nil))
	}
	m.out, m.ahead = nil, nil
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
