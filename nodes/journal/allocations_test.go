//go:build !race

package journal

import (
	"testing"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
)

// writeAllocations are those of one change of one entry, from Write to its answer.
const writeAllocations = 3

func TestAllocationsOfAWrite(t *testing.T) {
	j, err := Open(t.TempDir(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	written := make(chan error)
	change := nodes.JournalChange{Puts: []*recordv1.JournalEntry{{
		Run: "r.default.one", Attempt: 1, Placement: 1, State: recordv1.JournalState_JOURNAL_STATE_STARTED,
	}}}
	deliver := func(err error) { written <- err }
	if got := testing.AllocsPerRun(200, func() {
		j.Write(change, deliver)
		if err := <-written; err != nil {
			t.Fatal(err)
		}
	}); got != writeAllocations {
		t.Errorf("a write: %.0f allocations, want %d", got, writeAllocations)
	}
}
