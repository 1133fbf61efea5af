package run

import (
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// A clock that has just been set, here or where a time was written, must not keep a run
// from being looked at.
func TestNoClockThatWasSetKeepsARunFromBeingLookedAt(t *testing.T) {
	good := actors.Instant{Wall: time.UnixMilli(1_800_000_000_000), WallHealthy: true}
	set := actors.Instant{Wall: good.Wall.Add(24 * time.Hour)}
	back := actors.Instant{Wall: good.Wall.Add(-24 * time.Hour)}
	milli := func(after time.Duration) int64 { return good.Wall.Add(after).UnixMilli() }
	held := &recordv1.Placement{Node: "n1", Session: 1, Number: 1}
	placed := &recordv1.Run{Status: recordv1.Status_STATUS_PENDING, Placement: held, QueuedAt: milli(0)}
	ran := &recordv1.Run{
		Status: recordv1.Status_STATUS_RUNNING, Placement: held, StartedAt: milli(0), Spec: &recordv1.Spec{TimeoutMs: time.Hour.Milliseconds()},
		Attempts: []*recordv1.Attempt{{StartedAt: milli(0)}},
	}
	for _, c := range []struct {
		name      string
		got, want time.Duration
	}{
		{"placed by a good clock", time.Duration(nextWake(good, placed) - milli(0)), 10_001},
		{"placed by one that was set", time.Duration(nextWake(set, placed)), dueAtOnce},
		{"running, by one that was set", time.Duration(nextWake(back, ran)), dueAtOnce},
		{"answered by a good clock", untilWake(good, ran), time.Hour + 30*time.Second},
		{"answered by one that was set back", untilWake(back, ran), waitingLook},
		{"answered by one that was set forward", untilWake(set, ran), unhealthyLook},
		{"a backoff", untilNotBefore(good, &recordv1.Run{NotBefore: milli(20 * time.Second)}), 20 * time.Second},
		{"a backoff that is over", untilNotBefore(good, &recordv1.Run{NotBefore: milli(-time.Second)}), 0},
		{"a backoff of a clock that was ahead", untilNotBefore(good, &recordv1.Run{NotBefore: milli(24 * time.Hour)}), 0},
		{"held after 5 s", holdBackoff(good, &recordv1.Run{QueuedAt: milli(-5 * time.Second)}), 5 * time.Second},
		{"held at once", holdBackoff(good, &recordv1.Run{QueuedAt: milli(time.Second)}), backoffMin},
		{"held, queued by a clock that was ahead", holdBackoff(good, &recordv1.Run{QueuedAt: milli(time.Hour)}), waitingLook},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.got != c.want {
				t.Errorf("%v, want %v", c.got, c.want)
			}
		})
	}
}
