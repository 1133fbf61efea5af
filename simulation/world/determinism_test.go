package world

import (
	"runtime"
	"testing"

	"github.com/errand-run/errand/simulation/plan"
)

// short is a plan that is executed in little time.
func short(seed uint64) plan.Plan {
	return plan.Draw(seed, plan.Wanted{Length: lengthShort, Nodes: 1 + int(seed%4)})
}

func TestSameSeedMakesTheSameHistory(t *testing.T) {
	seeds := uint64(100)
	hashes := make([]uint64, seeds)
	before := runtime.NumGoroutine()
	for _, procs := range []int{1, 8} {
		old := runtime.GOMAXPROCS(procs)
		for seed := range seeds {
			r := New(short(seed), Setup{}).Run()
			if r.Panic != "" {
				t.Errorf("seed %d: %s", seed, r.Panic)
			}
			if hashes[seed] != 0 && hashes[seed] != r.Hash {
				t.Errorf("seed %d: another history with %d processors", seed, procs)
			}
			hashes[seed] = r.Hash
		}
		runtime.GOMAXPROCS(old)
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines before, %d after", before, after)
	}
}

func TestWatchingAWorldDoesNotChangeIt(t *testing.T) {
	for seed := range uint64(10) {
		blind := New(short(seed), Setup{}).Run()
		watched := New(short(seed), Setup{Turns: true, Logs: true, Observe: func(e event) {
			if e.Text == "" {
				t.Errorf("seed %d: an event without words: %+v", seed, e)
			}
		}}).Run()
		if blind.Hash != watched.Hash {
			t.Errorf("seed %d: watched, it is another history", seed)
		}
	}
}

func TestCanaryFails(t *testing.T) {
	r := New(short(1), Setup{Canary: true}).Run()
	if v, ok := r.First(); !ok || r.Verdict() != Violated || v.Guarantee != "canary" {
		t.Errorf("%s: %v", r, r.Violations)
	}
}

func TestPanicOfAWorldIsItsResult(t *testing.T) {
	r := New(short(1), Setup{Prepare: func(w *World) {
		w.timeline.After(lengthShort/2, func() { panic("as told") })
	}}).Run()
	if r.Verdict() != Panicked || r.Checker() != "panic: as told" {
		t.Errorf("%s: %q", r, r.Checker())
	}
}
