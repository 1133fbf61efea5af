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

func TestFirstYesWinsAndStartIsToldAfterTheCommit(t *testing.T) {
	b := newBench(t, true, "n1", "n2")
	b.wake()
	if _, m := b.told(); m.(*actorv1.Awake).GetInMs() != 1000 {
		t.Errorf("the deadline actor hears %v", m)
	}
	if node, m := b.told(); node != "n1" || m.(*actorv1.Reserve).GetPlacement() != 1 {
		t.Fatalf("asked %s %v", node, m)
	}
	if b.pass() != timerReserve {
		t.Fatal("no reserve timer")
	}
	if node, _ := b.told(); node != "n2" {
		t.Fatalf("asked %s", node)
	}
	b.reserved("n1", true, b.sessionOf("n1"))
	if b.commit != nil {
		t.Fatal("an answer that came too late was taken")
	}
	b.reserved("n2", true, b.sessionOf("n2"))
	if len(b.tells) != 0 {
		t.Fatalf("told before the commit: %v", b.tells)
	}
	b.land()
	node, m := b.told()
	start, ok := m.(*actorv1.Start)
	if node != "n2" || !ok || start.GetCommit() != b.store.revision || len(start.GetAssignment().GetStartToken()) != startTokenBytes {
		t.Fatalf("told %s %v", node, m)
	}
	if run := b.record(); run.GetPlacement().GetNode() != "n2" || run.GetPlacements() != 1 || len(run.GetAttempts()) != 1 {
		t.Fatalf("recorded %v", run)
	}
}

func TestRefusalsAreRecordedOnceWithABackoffThatDoubles(t *testing.T) {
	b := newBench(t, true, "n1", "n2")
	b.wake()
	b.reserved("n1", false, 0)
	b.reserved("n2", false, 0)
	b.land()
	want := "node n1: no room: 64 of 64 sandboxes in use; node n2: no room: 64 of 64 sandboxes in use"
	if got := b.record().GetHoldMessage(); got != want {
		t.Fatalf("held by %q", got)
	}
	revision := b.store.revision
	for _, seconds := range []time.Duration{1, 1, 2, 4, 8, 16, 30, 30} {
		b.tells = nil
		b.wake()
		_, m := b.told()
		if got := time.Duration(m.(*actorv1.Awake).GetInMs()) * time.Millisecond; got != seconds*time.Second {
			t.Fatalf("asked to wait %s, want %s", got, seconds*time.Second)
		}
		b.now = at(b.now.Mono + seconds*time.Second)
		b.wake()
		b.reserved("n1", false, 0)
		b.reserved("n2", false, 0)
		b.land()
	}
	if b.store.revision != revision {
		t.Error("what is no news was written")
	}
}

func TestPermanentRefusalOfEveryNodeEndsTheRun(t *testing.T) {
	b := newBench(t, true, "n1", "n2")
	b.wake()
	refuse := func(node string) {
		b.receive(&actorv1.Reserved{
			Run: testID, Attempt: 1, Placement: 1, Node: node, Message: "the driver process is not enabled",
			PermanentReason: recordv1.Reason_REASON_START_ERROR,
		})
	}
	refuse("n1")
	refuse("n2")
	b.land()
	run := b.record()
	if run.GetStatus() != recordv1.Status_STATUS_FAILED || run.GetReason() != recordv1.Reason_REASON_START_ERROR ||
		!strings.Contains(run.GetMessage(), "not enabled") || !b.leaves {
		t.Fatalf("%v, leaves %t", run, b.leaves)
	}
}

func TestPlaceRefusedByTheNodesStateAsksTheNext(t *testing.T) {
	cases := map[string]func(b *bench){
		"node n1: is draining": func(b *bench) {
			b.store.txn(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: b.keys.Drain("n1")}}})
		},
		"node n1: is not registered": func(b *bench) {
			b.store.txn(records.Txn{Then: []records.Op{{Kind: records.OpDelete, Key: b.keys.Node("n1")}}})
		},
		"node n1: was registered anew": func(b *bench) {
			b.store.txn(records.Txn{Then: []records.Op{{Kind: records.OpDelete, Key: b.keys.Node("n1")}}})
			b.store.txn(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: b.keys.Node("n1")}}})
		},
	}
	for want, change := range cases {
		t.Run(want, func(t *testing.T) {
			b := newBench(t, true, "n1", "n2")
			b.wake()
			session := b.sessionOf("n1")
			change(b)
			b.reserved("n1", true, session)
			b.landOne()
			if node, m := b.told(); node != "n2" {
				t.Fatalf("asked %s %v", node, m)
			}
			b.reserved("n2", false, 0)
			b.land()
			if got := b.record().GetHoldMessage(); !strings.HasPrefix(got, want) {
				t.Fatalf("held by %q", got)
			}
		})
	}
}

func TestNoNodeIsSaidSo(t *testing.T) {
	b := newBench(t, true)
	b.wake()
	b.land()
	if got := b.record().GetHoldMessage(); got != noNodes {
		t.Fatalf("held by %q", got)
	}
}

func TestCancelWinsOverAReservationUnderWay(t *testing.T) {
	b := newBench(t, true, "n1")
	b.wake()
	b.receive(&actorv1.Cancel{Run: testID, By: "ann"})
	if len(b.answers) != 0 {
		t.Fatal("answered before the commit")
	}
	b.reserved("n1", true, b.sessionOf("n1"))
	b.land()
	run := b.record()
	if run.GetStatus() != recordv1.Status_STATUS_CANCELED || run.GetMessage() != "canceled by ann"+beforeStart(run) {
		t.Fatalf("%v", run)
	}
	if len(b.answers) != 1 || b.answers[0].GetOutcome() != actorv1.Canceled_OUTCOME_RECORDED || b.answers[0].GetRevision() != b.store.revision {
		t.Fatalf("%v", b.answers)
	}
	b.receive(&actorv1.Cancel{Run: testID, By: "bob"})
	b.land()
	if len(b.answers) != 2 || b.answers[1].GetOutcome() != actorv1.Canceled_OUTCOME_RECORDED {
		t.Fatalf("%v", b.answers)
	}
}

func TestSecondCancelOnlyForces(t *testing.T) {
	b := newBench(t, true, "n1")
	b.place()
	b.receive(&actorv1.Cancel{Run: testID, By: "ann"})
	b.land()
	revision := b.store.revision
	b.receive(&actorv1.Cancel{Run: testID, By: "bob"})
	b.land()
	if b.store.revision != revision {
		t.Error("the same wish was written twice")
	}
	b.receive(&actorv1.Cancel{Run: testID, By: "bob", Force: true})
	b.land()
	assignment := &recordv1.Assignment{}
	if err := records.Decode(b.store.keys[b.keys.Assignment("n1", testID)], assignment); err != nil {
		t.Fatal(err)
	}
	wish := b.record().GetWish()
	if !wish.GetForce() || wish.GetBy() != "ann" || !assignment.GetStopForce() || assignment.GetDesired() != recordv1.Desired_DESIRED_STOP ||
		len(assignment.GetStartToken()) != startTokenBytes || len(b.answers) != 3 {
		t.Fatalf("%v %v %v", wish, assignment, b.answers)
	}
}

func TestUnknownPlaceThatLandedIsStarted(t *testing.T) {
	b := newBench(t, true, "n1")
	b.wake()
	b.reserved("n1", true, b.sessionOf("n1"))
	b.tells = nil
	b.fail(records.ClassOutcomeUnknown, true)
	if len(b.tells) != 0 {
		t.Fatalf("told without a known commit: %v", b.tells)
	}
	b.pass()
	b.land()
	node, m := b.told()
	if start, ok := m.(*actorv1.Start); node != "n1" || !ok || start.GetCommit() != b.store.revision {
		t.Fatalf("told %s %v", node, m)
	}
}

func TestUnknownPlaceThatLandsLaterPlacesOnce(t *testing.T) {
	b := newBench(t, true, "n1")
	b.wake()
	b.reserved("n1", true, b.sessionOf("n1"))
	first := b.commit.Txn
	b.fail(records.ClassOutcomeUnknown, false)
	b.pass()
	b.landOne()
	if b.commit == nil {
		t.Fatal("not tried again")
	}
	b.store.txn(first)
	b.land()
	if run := b.record(); run.GetPlacements() != 1 || !strings.HasSuffix(run.GetWriter(), "/1") {
		t.Fatalf("%v", run)
	}
	if _, m := b.told(); m.(*actorv1.Start).GetCommit() != b.store.revision {
		t.Fatalf("told %v", m)
	}
}

func TestStartedIsLeftOutWhenTheExitIsHere(t *testing.T) {
	b := newBench(t, true, "n1")
	b.place()
	b.receive(&actorv1.Started{Run: "other", Attempt: 1, Placement: 9}) // occupies nothing
	b.land()
	b.receive(&actorv1.Cancel{Run: testID, By: "ann"}) // in flight
	b.receive(&actorv1.Started{Run: testID, Attempt: 1, Placement: 1, Node: "n1", At: 5})
	b.receive(&actorv1.Exited{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Exit: exitOf(0)})
	revision := b.store.revision
	b.land()
	run := b.record()
	if b.store.revision != revision+2 || run.GetStatus() != recordv1.Status_STATUS_SUCCEEDED || run.GetStartedAt() == 0 {
		t.Fatalf("%d transactions, %v", b.store.revision-revision, run)
	}
}

func TestAbsentRunIsNotRemembered(t *testing.T) {
	b := newBench(t, false, "n1")
	b.receive(&actorv1.Cancel{Run: testID})
	b.land()
	if len(b.answers) != 1 || b.answers[0].GetOutcome() != actorv1.Canceled_OUTCOME_NOT_FOUND || !b.leaves {
		t.Fatalf("%v, leaves %t", b.answers, b.leaves)
	}
	b.receive(&actorv1.Exited{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Exit: exitOf(0)})
	b.land()
	if _, m := b.told(); !m.(*actorv1.Ack).GetUnknown() {
		t.Fatalf("told %v", m)
	}
	b.store.txn(b.keys.Create(newRun(), 1))
	b.receive(&actorv1.Wake{Run: testID})
	b.land()
	if _, m := b.told(); m == nil {
		t.Fatal("a run that was created meanwhile is not seen")
	}
}

func TestLateExitIsNotedOnceAndAcknowledged(t *testing.T) {
	b := newBench(t, true, "n1")
	b.place()
	b.receive(&actorv1.Exited{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Exit: exitOf(0)})
	b.land()
	ended := b.store.revision
	b.receive(&actorv1.Exited{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Exit: exitOf(0)})
	b.land()
	if b.store.revision != ended {
		t.Fatal("the exit that ended the run was noted as late")
	}
	for range 2 {
		b.receive(&actorv1.Exited{Run: testID, Attempt: 0, Placement: 3, Node: "n2", Exit: exitOf(9)})
		b.land()
		if node, m := b.told(); node != "n2" || m.(*actorv1.Ack).GetCommit() != ended+1 {
			t.Fatalf("told %s %v", node, m)
		}
	}
	if run := b.record(); len(run.GetLateExits()) != 1 || run.GetStatus() != recordv1.Status_STATUS_SUCCEEDED || run.GetExitCode() != 0 {
		t.Fatalf("%v", run)
	}
}

func TestStoreAwayIsBoundedAndAnswered(t *testing.T) {
	b := newBench(t, true, "n1")
	b.receive(&actorv1.Cancel{Run: testID, By: "ann"})
	for i := 1; i < failuresMax; i++ {
		b.fail(records.ClassUnavailable, false)
		if len(b.answers) != 0 {
			t.Fatal("answered although it is still tried")
		}
		if name := b.pass(); name == timerIdle {
			b.pass()
		}
	}
	b.fail(records.ClassUnavailable, false)
	if len(b.answers) != 1 || b.answers[0].GetOutcome() != actorv1.Canceled_OUTCOME_UNKNOWN || !b.leaves {
		t.Fatalf("%v, leaves %t", b.answers, b.leaves)
	}
	b.receive(&actorv1.Cancel{Run: testID, By: "ann"})
	b.land()
	if len(b.answers) != 2 || b.answers[1].GetOutcome() != actorv1.Canceled_OUTCOME_RECORDED {
		t.Fatalf("%v", b.answers)
	}
}

func TestOverflowAnswersCancelAndDropsTheRest(t *testing.T) {
	b := newBench(t, true, "n1")
	b.place()
	for range pendingMax {
		b.receive(&actorv1.Cancel{Run: testID, By: "ann"})
	}
	if len(b.answers) != 0 {
		t.Fatalf("%d answers with the transaction in flight", len(b.answers))
	}
	b.receive(&actorv1.Cancel{Run: testID, By: "bob"})
	b.receive(&actorv1.Exited{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Exit: exitOf(0)})
	if len(b.answers) != 1 || b.answers[0].GetOutcome() != actorv1.Canceled_OUTCOME_UNKNOWN {
		t.Fatalf("%v", b.answers)
	}
	b.land()
	if len(b.answers) != 1+pendingMax || records.Terminal(b.record().GetStatus()) {
		t.Fatalf("%d answers, %v", len(b.answers), b.record())
	}
}

func TestIdleActivationLeaves(t *testing.T) {
	b := newBench(t, true, "n1")
	b.place()
	if b.leaves {
		t.Fatal("leaves at once")
	}
	for !b.leaves {
		if b.pass() != timerIdle {
			t.Fatal("another timer is set")
		}
	}
	if b.now.Mono < idleAfter || b.now.Mono > 2*idleAfter {
		t.Errorf("left after %s", b.now.Mono)
	}
}

func TestRecordOfANewerWriterIsLeftAlone(t *testing.T) {
	b := newBench(t, false, "n1")
	run := newRun()
	run.MinWriter = records.Writer + 1
	b.store.txn(b.keys.Create(run, 1))
	revision := b.store.revision
	b.receive(&actorv1.Cancel{Run: testID})
	b.land()
	if b.store.revision != revision || len(b.answers) != 1 || b.answers[0].GetOutcome() != actorv1.Canceled_OUTCOME_UNKNOWN {
		t.Fatalf("%v", b.answers)
	}
}

// TestTimeoutBackupStopsWhatTheNodeForgot: the first clock that finds the timeout long
// passed may be wrong, or that of the node that has dated the start, so it counts once
// more.
func TestTimeoutBackupStopsWhatTheNodeForgot(t *testing.T) {
	b := newBench(t, true, "n1")
	b.place()
	b.receive(&actorv1.Started{Run: testID, Attempt: 1, Placement: 1, Node: "n1", At: b.now.Milli()})
	b.land()
	b.now = at(99 * time.Second)
	b.wake()
	if _, m := b.told(); m.(*actorv1.Awake).GetInMs() != 1000 || b.commit != nil {
		t.Fatalf("told %v", m)
	}
	b.now = at(100 * time.Second)
	b.wake()
	b.land()
	if run := b.record(); run.GetWish() != nil || run.GetOverdueAt() != b.now.Milli() {
		t.Fatalf("when it is found: %v", run)
	}
	b.now = at(199 * time.Second)
	b.wake()
	if b.commit != nil {
		t.Fatal("ended before it has counted once more")
	}
	b.now = at(200 * time.Second)
	b.wake()
	b.land()
	_, m := b.told()
	if stop, ok := m.(*actorv1.Stop); !ok || stop.GetReason() != recordv1.Reason_REASON_TIMEOUT || stop.GetDesired() != recordv1.Desired_DESIRED_STOP {
		t.Fatalf("told %v", m)
	}
	if b.record().GetWish().GetReason() != recordv1.Reason_REASON_TIMEOUT {
		t.Fatalf("%v", b.record())
	}
}

func TestVoidBacksOffAndLeavesNoTrace(t *testing.T) {
	b := newBench(t, true, "n1")
	b.place()
	b.receive(&actorv1.Voided{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Void: &recordv1.Void{Message: "no room"}})
	b.land()
	run := b.record()
	if run.GetPlacement() != nil || len(run.GetAttempts()) != 0 || run.GetVoids() != 1 || run.GetHoldMessage() != "node n1: no room" ||
		run.GetNotBefore() != milliAfter(b.now, time.Second) {
		t.Fatalf("%v", run)
	}
	if _, m := b.told(); m.(*actorv1.Ack).GetCommit() != b.store.revision {
		t.Fatalf("told %v", m)
	}
	b.wake()
	if _, m := b.told(); m.(*actorv1.Awake).GetInMs() < 1000 {
		t.Fatalf("told %v", m)
	}
}

func TestMessageAboutAnotherRunIsDropped(t *testing.T) {
	b := newBench(t, true, "n1")
	b.receive(&actorv1.Cancel{Run: "r.default.other"})
	if b.commit != nil || len(b.answers) != 0 {
		t.Fatal("it was carried out")
	}
}

func TestWordsThatAreNotTextAreStillRecorded(t *testing.T) {
	bad := "no such file: \xff\xfe" + strings.Repeat("é", messageBytesMax)
	b := newBench(t, true, "n1")
	b.place()
	exit := &recordv1.Exit{Reason: recordv1.Reason_REASON_NOT_FOUND, Message: bad, Source: "\xff"}
	b.receive(&actorv1.Exited{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Exit: exit})
	b.land()
	b.receive(&actorv1.Exited{Run: testID, Attempt: 0, Placement: 1, Node: "n1", Exit: exit})
	b.land()
	run := b.record()
	if run.GetStatus() != recordv1.Status_STATUS_FAILED || len(run.GetLateExits()) != 1 || len(run.GetMessage()) > messageBytesMax+10 {
		t.Fatalf("%v", run)
	}
}

func TestStartDeadlineOfAPlacedRunIsAWishThatItsNodeDecides(t *testing.T) {
	cases := []struct {
		name   string
		answer proto.Message
		status recordv1.Status
	}{
		{"it never started", &actorv1.Voided{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Void: &recordv1.Void{Reason: recordv1.Reason_REASON_START_DEADLINE}}, recordv1.Status_STATUS_TIMED_OUT},
		{"it had started", &actorv1.Started{Run: testID, Attempt: 1, Placement: 1, Node: "n1", At: epoch.UnixMilli()}, recordv1.Status_STATUS_RUNNING},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, true, "n1")
			b.place()
			b.now = at(300 * time.Second)
			b.wake()
			b.land()
			if _, m := b.told(); m.(*actorv1.Stop).GetDesired() != recordv1.Desired_DESIRED_STOP_IF_NOT_STARTED {
				t.Fatalf("told %v", m)
			}
			b.wake()
			if _, m := b.told(); time.Duration(m.(*actorv1.Awake).GetInMs())*time.Millisecond != wishReminder {
				t.Fatalf("told %v", m)
			}
			if _, m := b.told(); m.(*actorv1.Stop).GetPlacement() != 1 {
				t.Fatalf("not reminded: %v", m)
			}
			b.receive(c.answer)
			b.land()
			if run := b.record(); run.GetStatus() != c.status || run.GetStatus() == recordv1.Status_STATUS_RUNNING && run.GetWish() != nil {
				t.Fatalf("%v", run)
			}
		})
	}
}

func TestPlacedRunRemindsItsNodeOfTheStart(t *testing.T) {
	b := newBench(t, true, "n1")
	b.place()
	placed := b.store.revision
	b.step(actors.Activated{})
	b.receive(&actorv1.Activate{})
	b.land()
	b.tells = nil
	b.now = at(waitingLook)
	b.wake()
	b.land()
	_, awake := b.told()
	node, m := b.told()
	start, ok := m.(*actorv1.Start)
	if node != "n1" || !ok || start.GetCommit() != placed || !proto.Equal(start.GetAssignment().GetSpec(), newRun().GetSpec()) {
		t.Fatalf("told %s %v", node, m)
	}
	if ms := awake.(*actorv1.Awake).GetInMs(); ms < waitingLook.Milliseconds() || b.store.revision != placed {
		t.Fatalf("asked to wait %d ms, revision %d", ms, b.store.revision)
	}
}
