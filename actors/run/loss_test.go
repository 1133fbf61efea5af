package run

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

var testLoss = Loss{Window: 45 * time.Second, KillBudget: 10 * time.Second, Drift: 0.01}

// lossAfter is how long a run waits for a node of the default session.
const lossAfter = 45*time.Second + 450*time.Millisecond + 10*time.Second

// newLossBench is a bench whose run is placed on n1, where sessions can end.
func newLossBench(t *testing.T) *bench {
	b := newBench(t, true, "n1", "n2")
	b.machine.cfg.Loss = testLoss
	b.step(actors.Activated{})
	b.receive(&actorv1.Activate{})
	b.land()
	b.place()
	b.tells = nil
	return b
}

func (b *bench) delete(key string) {
	b.store.txn(records.Txn{Then: []records.Op{{Kind: records.OpDelete, Key: key}}})
}

func (b *bench) put(key string, value proto.Message) {
	b.store.txn(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: key, Value: records.Encode(value)}}})
}

// awakeIn wakes the run and returns for how long its answer puts off the next wake.
func (b *bench) awakeIn() time.Duration {
	b.tells = nil
	b.wake()
	b.land()
	for _, tell := range b.tells {
		if awake, ok := tell.Message.(*actorv1.Awake); ok {
			return time.Duration(awake.GetInMs()) * time.Millisecond
		}
	}
	return -1
}

func TestRunIsLostOnlyAfterItsNodeMustHaveStoppedIt(t *testing.T) {
	started := &actorv1.Started{Run: testID, Attempt: 1, Placement: 1, Node: "n1", At: epoch.UnixMilli()}
	for _, test := range []struct {
		name    string
		running bool
		window  int64
		cancel  bool
		again   bool
		after   time.Duration
		status  recordv1.Status
		reason  recordv1.Reason
	}{
		{name: "placed", window: 45_000, after: lossAfter, status: recordv1.Status_STATUS_FAILED, reason: recordv1.Reason_REASON_NODE_LOST},
		{name: "running", running: true, window: 45_000, after: lossAfter, status: recordv1.Status_STATUS_FAILED, reason: recordv1.Reason_REASON_NODE_LOST},
		{name: "of a slower node", window: 100_000, after: 111 * time.Second, status: recordv1.Status_STATUS_FAILED, reason: recordv1.Reason_REASON_NODE_LOST},
		{name: "of a node that does not say", after: lossAfter, status: recordv1.Status_STATUS_FAILED, reason: recordv1.Reason_REASON_NODE_LOST},
		{name: "registered anew", again: true, window: 45_000, after: lossAfter, status: recordv1.Status_STATUS_FAILED, reason: recordv1.Reason_REASON_NODE_LOST},
		{name: "placed and canceled", cancel: true, window: 45_000, after: lossAfter, status: recordv1.Status_STATUS_CANCELED, reason: recordv1.Reason_REASON_CANCELED},
		{name: "running and canceled", running: true, cancel: true, window: 45_000, after: lossAfter, status: recordv1.Status_STATUS_FAILED, reason: recordv1.Reason_REASON_NODE_LOST},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newLossBench(t)
			if test.running {
				b.receive(started)
				b.land()
			}
			if test.cancel {
				b.receive(&actorv1.Cancel{Run: testID, By: "ann"})
				b.land()
			}
			if test.window > 0 {
				b.put(b.keys.NodeInfo("n1"), &recordv1.NodeInfo{WindowMs: test.window})
			} else {
				b.delete(b.keys.NodeInfo("n1"))
			}
			b.delete(b.keys.Node("n1"))
			if test.again {
				b.put(b.keys.Node("n1"), &recordv1.NodeSession{})
			}
			seen := b.now.Mono
			if got := b.awakeIn(); got < test.after-time.Second || got > test.after {
				t.Fatalf("wait %s, want %s", got, test.after)
			}
			for b.now.Mono < seen+test.after {
				if b.leaves {
					t.Fatalf("passivates at %s", b.now.Mono-seen)
				}
				if status := b.record().GetStatus(); records.Terminal(status) {
					t.Fatalf("%s after %s", status, b.now.Mono-seen)
				}
				b.pass()
				b.land()
			}
			run := b.record()
			if run.GetStatus() != test.status || run.GetReason() != test.reason || run.ExitCode != nil || run.GetPlacement() != nil {
				t.Errorf("got %v", run)
			}
			if test.reason == recordv1.Reason_REASON_NODE_LOST && !strings.Contains(run.GetMessage(), "node n1 was lost") {
				t.Errorf("message %q", run.GetMessage())
			}
			if _, ok := b.store.keys[b.keys.Assignment("n1", testID)]; ok || !b.leaves {
				t.Errorf("assignment there %t, leaves %t", ok, b.leaves)
			}
		})
	}
}

func TestWaitForALostNodeEndsWhenItSpeaks(t *testing.T) {
	for _, test := range []struct {
		name   string
		speak  proto.Message
		status recordv1.Status
	}{
		{"of an exit", &actorv1.Exited{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Exit: exitOf(0)}, recordv1.Status_STATUS_SUCCEEDED},
		{"of a fenced exit", &actorv1.Exited{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Exit: &recordv1.Exit{Fenced: true}}, recordv1.Status_STATUS_FAILED},
		{"of a void", &actorv1.Voided{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Void: &recordv1.Void{}}, recordv1.Status_STATUS_PENDING},
		{"of a void of another node", &actorv1.Voided{Run: testID, Attempt: 1, Placement: 1, Node: "n2", Void: &recordv1.Void{}}, recordv1.Status_STATUS_UNSPECIFIED},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newLossBench(t)
			b.delete(b.keys.Node("n1"))
			b.awakeIn()
			b.receive(test.speak)
			b.land()
			if test.status == recordv1.Status_STATUS_UNSPECIFIED {
				if run := b.record(); run.GetPlacement().GetNode() != "n1" {
					t.Errorf("another node's void moved %v", run)
				}
				return
			}
			if run := b.record(); run.GetStatus() != test.status || run.GetPlacement() != nil || run.GetReason() == recordv1.Reason_REASON_NODE_LOST {
				t.Errorf("got %v", run)
			}
			if _, waits := b.timers[timerLoss]; waits || b.machine.absence != nil {
				t.Error("it still waits")
			}
		})
	}
}

func TestAnotherActivationWaitsFromTheStart(t *testing.T) {
	b := newLossBench(t)
	b.delete(b.keys.Node("n1"))
	b.awakeIn()
	b.now = at(b.now.Mono + lossAfter - time.Second)
	b.step(actors.Activated{})
	b.receive(&actorv1.Activate{})
	b.land()
	if got := b.awakeIn(); got != lossAfter-time.Millisecond && got != lossAfter {
		t.Errorf("waits %s", got)
	}
}

func TestSessionThatIsThereIsNotLost(t *testing.T) {
	b := newLossBench(t)
	for range 100 {
		b.now = at(b.now.Mono + 3*time.Second)
		b.awakeIn()
	}
	if run := b.record(); run.GetPlacement().GetNode() != "n1" {
		t.Errorf("got %v", run)
	}
}

func TestLossIsRefusedWhenTheSessionIsThereAfterAll(t *testing.T) {
	b := newLossBench(t)
	key, node := b.keys.Node("n1"), b.store.keys[b.keys.Node("n1")]
	b.delete(key)
	b.awakeIn()
	for {
		b.pass()
		for b.commit != nil && b.commit.Txn.ReadOnly() {
			b.landOne()
		}
		if b.commit != nil {
			break
		}
	}
	// What was seen was an old copy.
	b.store.keys[key] = node
	b.land()
	if run := b.record(); records.Terminal(run.GetStatus()) || b.machine.absence != nil {
		t.Errorf("got %v, waits %t", run, b.machine.absence != nil)
	}
}

func TestLateExitOfALostRunIsKept(t *testing.T) {
	b := newLossBench(t)
	b.delete(b.keys.Node("n1"))
	b.awakeIn()
	for !records.Terminal(b.record().GetStatus()) {
		b.pass()
		b.land()
	}
	b.tells = nil
	exit := exitOf(0)
	exit.At = b.now.Milli() + 1000
	b.receive(&actorv1.Exited{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Exit: exit})
	b.land()
	run := b.record()
	if run.GetStatus() != recordv1.Status_STATUS_FAILED || len(run.GetLateExits()) != 1 || run.ExitCode != nil {
		t.Errorf("got %v", run)
	}
	if _, m := b.told(); m == nil || m.(*actorv1.Ack).GetUnknown() {
		t.Errorf("told %v", m)
	}
}

func TestSoloLosesNothingAndReadsNoNode(t *testing.T) {
	b := newBench(t, true, "n1")
	b.place()
	b.delete(b.keys.Node("n1"))
	for range 100 {
		b.now = at(b.now.Mono + 2*time.Second)
		b.wake()
		if b.commit != nil && len(b.commit.Txn.Then) > 2 {
			t.Fatalf("reads %v", b.commit.Txn)
		}
		b.land()
	}
	if run := b.record(); run.GetPlacement().GetNode() != "n1" {
		t.Errorf("got %v", run)
	}
}
