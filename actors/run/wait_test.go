package run

import (
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
