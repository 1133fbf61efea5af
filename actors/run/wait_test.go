package run

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// waitForNode makes the bench's run one that waits for its node.
func (b *bench) waitForNode() {
	b.t.Helper()
	run := b.record()
	run.Spec.Retry = &recordv1.Retry{Retries: 3, OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_WAIT}
	b.put(b.keys.Run(testID), run)
	b.machine.loaded = false
}

func TestRunThatWaitsIsNotLostWithItsNode(t *testing.T) {
	for _, running := range []bool{false, true} {
		b := newLossBench(t)
		b.waitForNode()
		if running {
			b.receive(&actorv1.Started{Run: testID, Attempt: 1, Placement: 1, Node: "n1", At: epoch.UnixMilli()})
			b.land()
		}
		b.delete(b.keys.Node("n1"))
		for range 60 {
			b.awakeIn()
			b.pass()
			b.now.Mono += time.Minute
			b.now.Boot += time.Minute
		}
		if run := b.record(); records.Terminal(run.GetStatus()) || run.GetAttempt() != 1 || run.GetPlacement().GetNode() != "n1" {
			t.Fatalf("running %t: after an hour it is %v", running, run)
		}
		b.receive(&actorv1.Exited{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Exit: &recordv1.Exit{Reason: recordv1.Reason_REASON_SANDBOX_LOST, At: epoch.UnixMilli()}})
		b.land()
		if run := b.record(); run.GetStatus() != recordv1.Status_STATUS_FAILED || run.GetReason() != recordv1.Reason_REASON_SANDBOX_LOST {
			t.Errorf("running %t: told to be lost it is %v", running, run)
		}
	}
}

// sayDead puts the word that the bench's node is dead, as the API does.
func (b *bench) sayDead(node, by string) {
	b.t.Helper()
	b.put(b.keys.NodeInfo(node), &recordv1.NodeInfo{
		Uuid: "u-" + node, Generation: 1, WindowMs: 45_000, Removed: &recordv1.Removal{At: epoch.Add(time.Hour).UnixMilli(), By: by},
	})
}

// TestRunThatWaitsIsLostByAWord: at the next look, without another attempt, in words that
// say whose word it was.
func TestRunThatWaitsIsLostByAWord(t *testing.T) {
	for _, running := range []bool{false, true} {
		b := newLossBench(t)
		b.waitForNode()
		if running {
			b.receive(&actorv1.Started{Run: testID, Attempt: 1, Placement: 1, Node: "n1", At: epoch.UnixMilli()})
			b.land()
		}
		b.delete(b.keys.Node("n1"))
		if in := b.awakeIn(); in <= 0 || in > awayLook {
			t.Fatalf("running %t: while its node is away it wants to be looked at in %v", running, in)
		}
		b.sayDead("n1", "alice")
		b.awakeIn()
		run := b.record()
		attempt := run.GetAttempts()[0]
		if run.GetStatus() != recordv1.Status_STATUS_FAILED || run.GetReason() != recordv1.Reason_REASON_NODE_LOST || run.ExitCode != nil || run.GetAttempt() != 1 {
			t.Fatalf("running %t: it is %v", running, run)
		}
		if attempt.GetSafeBy() != recordv1.SafeBy_SAFE_BY_WORD || attempt.GetSafeAt() != epoch.Add(time.Hour).UnixMilli() || attempt.GetSafeWordBy() != "alice" {
			t.Errorf("running %t: safe %v at %d by %q", running, attempt.GetSafeBy(), attempt.GetSafeAt(), attempt.GetSafeWordBy())
		}
		if left := b.store.matching(b.keys.AssignmentsOf("n1"), true); len(left) > 0 {
			t.Errorf("running %t: its assignment is still there", running)
		}
		events, _ := History(run)
		i := slices.IndexFunc(events, func(e Event) bool { return e.Kind == recordv1.RunEventKind_RUN_EVENT_KIND_SAFE })
		if i < 0 || !strings.Contains(events[i].Text, "alice has said that it is dead") {
			t.Errorf("running %t: history %+v", running, events)
		}
		causes := Why(epoch.Add(2*time.Hour), run, Unrecorded{})
		if i := slices.IndexFunc(causes, func(c Cause) bool { return c.Code == CauseSafe }); i < 0 || !strings.Contains(causes[i].Text, "alice has said that it is dead") {
			t.Errorf("running %t: why %+v", running, causes)
		}
	}
}

// TestWordEndsNothingElse: neither what runs on a node that is there in another session,
// nor, before its time, what does not wait.
func TestWordEndsNothingElse(t *testing.T) {
	for _, test := range []struct {
		name  string
		waits bool
		there bool
	}{
		{name: "of a node that has another session", waits: true, there: true},
		{name: "for a run that does not wait"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newLossBench(t)
			if test.waits {
				b.waitForNode()
			}
			b.delete(b.keys.Node("n1"))
			if test.there {
				b.put(b.keys.Node("n1"), &recordv1.NodeSession{Uuid: "u-n1"})
			}
			b.sayDead("n1", "alice")
			b.awakeIn()
			if run := b.record(); records.Terminal(run.GetStatus()) || run.GetPlacement().GetNode() != "n1" {
				t.Errorf("it is %v", run)
			}
		})
	}
}
