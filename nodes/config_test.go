package nodes

import (
	"testing"
	"time"
)

// What the documents promise in numbers.
func TestTimesAreThoseOfTheProtocol(t *testing.T) {
	want := SessionConfig{
		Lease: 60 * time.Second, Renew: 5 * time.Second, Margin: 15 * time.Second,
		KillBudget: 10 * time.Second, Drift: 0.01, StartMargin: 2 * time.Second, RestartMax: 120 * time.Second,
	}
	if got := DefaultSession(); got != want {
		t.Errorf("a session is %+v; want %+v", got, want)
	}
	for name, times := range map[string][2]time.Duration{
		"what is in quarantine is kept for":                    {QuarantineHold, 24 * time.Hour},
		"a run is seen twice not to need a sandbox within":     {OrphanConfirm, 60 * time.Second},
		"a journal that is slower gives a placement back":      {StartingSyncMax, time.Second},
		"what is told is told again after, at first":           {RetryMin, 200 * time.Millisecond},
		"what is told is told again after, at last":            {RetryMax, 5 * time.Second},
		"an exit that must be there is waited for":             {ExitAfterKillMax, 30 * time.Second},
		"a kill at the fence does not wait for the disk after": {FenceSyncMax, time.Second},
	} {
		if times[0] != times[1] {
			t.Errorf("%s %s; want %s", name, times[0], times[1])
		}
	}
	// A sandbox that lingers is found by two sweeps, and its run is looked at twice.
	if gone := 2*SweepEvery + 2*OrphanConfirm; gone > 5*time.Minute {
		t.Errorf("what lingers is gone after %s; want 5 minutes at most", gone)
	}
}
