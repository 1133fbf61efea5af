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

// newConsole is a bench with a run that ends with its client.
func newConsole(t *testing.T) *bench {
	t.Helper()
	b := newBench(t, false, "n1")
	run := newRun()
	run.Trigger, run.Spec.Stdin = recordv1.Trigger_TRIGGER_CONSOLE, true
	b.store.txn(b.keys.Create(run, 1))
	b.machine, b.timers = New(testID, b.machine.cfg), map[string]time.Duration{}
	b.step(actors.Activated{})
	return b
}

func (b *bench) attend() {
	b.receive(&actorv1.Attended{Run: testID})
	b.land()
}

// passTo fires timers until a moment.
func (b *bench) passTo(until time.Duration) {
	b.t.Helper()
	for {
		due := until + 1
		for _, at := range b.timers {
			due = min(due, at)
		}
		if due > until {
			b.now = at(until)
			return
		}
		b.pass()
		b.land()
	}
}

// TestConsoleEndsWithItsClient in each phase, and not while it is heard.
func TestConsoleEndsWithItsClient(t *testing.T) {
	for _, test := range []struct {
		name  string
		until func(b *bench)
		ended bool
	}{
		{name: "it waits", until: func(*bench) {}, ended: true},
		{name: "it is placed", until: (*bench).place},
		{name: "it runs", until: func(b *bench) {
			b.place()
			b.receive(&actorv1.Started{Run: testID, Attempt: 1, Placement: 1, Node: "n1", At: b.now.Milli()})
			b.land()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newConsole(t)
			b.attend()
			test.until(b)
			for second := range time.Duration(60) {
				b.passTo(second * time.Second)
				b.attend()
			}
			if run := b.record(); run.GetWish() != nil || records.Terminal(run.GetStatus()) {
				t.Fatalf("while its client is there it became %v", run)
			}
			last := b.now.Mono
			b.passTo(last + attendGrace - time.Second)
			if run := b.record(); run.GetWish() != nil || records.Terminal(run.GetStatus()) {
				t.Fatalf("within the grace it became %v", run)
			}
			b.passTo(last + attendGrace + time.Second)
			run := b.record()
			if test.ended {
				if run.GetStatus() != recordv1.Status_STATUS_CANCELED || !strings.Contains(run.GetMessage(), "its client has gone)") {
					t.Errorf("after the grace it is %v", run)
				}
				return
			}
			if run.GetWish().GetReason() != recordv1.Reason_REASON_CANCELED || run.GetWish().GetBy() != byAttendance || run.GetWish().GetForce() {
				t.Errorf("after the grace it is %v", run)
			}
			if to, told := b.told(); to != "n1" || told.(*actorv1.Stop).GetReason() != recordv1.Reason_REASON_CANCELED {
				t.Errorf("told %s %v", to, told)
			}
		})
	}
}

// TestAnotherActivationGivesTheClientTheWholeGrace, and is told by the live key to begin
// with that in time.
func TestAnotherActivationGivesTheClientTheWholeGrace(t *testing.T) {
	b := newConsole(t)
	b.attend()
	b.place()
	b.receive(&actorv1.Started{Run: testID, Attempt: 1, Placement: 1, Node: "n1", At: b.now.Milli()})
	b.land()
	live := &recordv1.Live{}
	if err := records.Decode(b.store.keys[b.keys.Live(testID)], live); err != nil {
		t.Fatal(err)
	}
	if in := time.UnixMilli(live.GetNextWake()).Sub(b.now.Wall); in > attendGrace+time.Millisecond {
		t.Errorf("after a restart it is woken in %s", in)
	}
	b.machine = New(testID, b.machine.cfg)
	b.timers = map[string]time.Duration{}
	b.now = at(time.Hour)
	b.step(actors.Activated{})
	b.wake()
	b.land()
	b.passTo(time.Hour + attendGrace - time.Second)
	if run := b.record(); run.GetWish() != nil {
		t.Fatalf("within the grace of the new activation: %v", run.GetWish())
	}
	b.passTo(time.Hour + attendGrace + time.Second)
	if run := b.record(); run.GetWish().GetBy() != byAttendance {
		t.Errorf("after it: %v", run.GetWish())
	}
}

// TestConsoleIsNotLeftByItsActivation: nobody else would know when the client was heard.
func TestConsoleIsNotLeftByItsActivation(t *testing.T) {
	b := newConsole(t)
	b.attend()
	b.place()
	for quiet := range time.Duration(5) {
		b.passTo(quiet * 2 * idleAfter)
		if b.leaves {
			t.Fatalf("leaves after %s", b.now.Mono)
		}
		b.attend()
	}
	b.receive(&actorv1.Cancel{Run: testID, By: "ann"})
	b.land()
	b.passTo(b.now.Mono + idleAfter + time.Second)
	if _, armed := b.timers[timerAttend]; !b.leaves || armed {
		t.Errorf("with its end on the way: leaves %t, timer %t", b.leaves, armed)
	}
}

// TestSignOfTheClientWinsAgainstTheEndOfTheGrace that waits for the store.
func TestSignOfTheClientWinsAgainstTheEndOfTheGrace(t *testing.T) {
	b := newConsole(t)
	b.attend()
	b.place()
	// The deadline actor's wake is read for when the grace ends.
	b.machine.snapshot.assignmentKnown = false
	b.wake()
	for b.commit == nil {
		t.Fatal("nothing is read")
	}
	read := b.commit
	for b.timers[timerAttend] > 0 {
		b.pass()
	}
	b.commit = read
	b.receive(&actorv1.Attended{Run: testID})
	b.land()
	if run := b.record(); run.GetWish() != nil {
		t.Errorf("it is to end: %v", run.GetWish())
	}
}

// TestOtherRunsGoOnWithoutAClient.
func TestOtherRunsGoOnWithoutAClient(t *testing.T) {
	b := newBench(t, true, "n1")
	b.place()
	b.attend()
	if _, armed := b.timers[timerAttend]; armed {
		t.Error("a run that needs no client waits for one")
	}
	run := proto.CloneOf(b.record())
	if d := decide(b.now, snapshot{run: run, assignmentKnown: true}, unattended{}); d.change != changeNothing {
		t.Errorf("decided %v", d)
	}
}
