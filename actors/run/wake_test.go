package run

import (
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
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

// What holds a run up keeps nobody from looking at it when its start deadline has come.
func TestRunThatIsHeldIsLookedAtWhenItsStartDeadlineComes(t *testing.T) {
	b := newBench(t, true, "n1")
	deadline := time.Duration(b.record().GetSpec().GetStartDeadlineMs()) * time.Millisecond
	if deadline < time.Minute {
		t.Fatalf("its start deadline is %s", deadline)
	}
	const left = 3 * time.Second
	b.now = at(deadline - left)
	for range 2 { // the second refusal is no news, so nothing is written
		b.machine.askAgain = 0
		b.receive(&actorv1.Wake{Run: testID})
		b.reserved("n1", false, 0)
		b.land()
	}
	b.tells = nil
	b.wake()
	_, message := b.told()
	if awake, ok := message.(*actorv1.Awake); !ok || awake.GetInMs() <= 0 || awake.GetInMs() > left.Milliseconds() {
		t.Errorf("%s before its start deadline it answers %v", left, message)
	}
	b.now = at(deadline)
	b.wake()
	b.land()
	if run := b.record(); run.GetReason() != recordv1.Reason_REASON_START_DEADLINE {
		t.Errorf("the run is %v", run)
	}
}
