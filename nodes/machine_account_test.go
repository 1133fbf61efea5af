package nodes

import (
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// accounts is what the node says of sandboxes, by their ids.
func (s *station) accounts(ids ...string) map[string]*actorv1.SandboxAccount {
	s.t.Helper()
	for _, effect := range s.step(actors.Received{Message: &actorv1.Describe{Sandboxes: ids}, From: "caller"}) {
		if answer, ok := effect.(actors.Answer); ok {
			told := map[string]*actorv1.SandboxAccount{}
			for _, account := range answer.Message.(*actorv1.Described).GetAccounts() {
				told[account.GetSandbox()] = account
			}
			return told
		}
	}
	s.t.Fatal("no answer")
	return nil
}

func TestNodeAccountsForASandboxUntilItIsRemoved(t *testing.T) {
	s := newStation(t)
	id, strange := records.SandboxID(tableRun, 1, 1), records.SandboxID("r.default.nobodys", 1, 1)
	if told := s.accounts(id, strange); len(told) > 0 {
		t.Errorf("it accounts for what it never had: %v", told)
	}
	s.reach("running")
	if a := s.accounts(id, strange); len(a) != 1 || a[id].GetUse() != actorv1.SandboxUse_SANDBOX_USE_RUN || a[id].GetRun() != tableRun || a[id].GetAttempt() != 1 {
		t.Errorf("of a run that goes on it says %v", a)
	}
	s.boxes[id].stuck = true
	s.end(id, 0, 0)
	began := s.now.Milli()
	s.passSettled(30 * time.Second)
	a := s.accounts(id)[id]
	if a.GetUse() != actorv1.SandboxUse_SANDBOX_USE_ENDED || a.GetTries() < 3 || a.GetLastError() != "it is stuck" ||
		a.GetSince() < began || a.GetSince() > began+10_000 || a.GetNext() <= s.now.Milli()-RetryMax.Milliseconds() || a.GetNext() > s.now.Milli()+RetryMax.Milliseconds() {
		t.Errorf("of one that can not be removed it says %v; it is %d", a, s.now.Milli())
	}
	s.boxes[id].stuck = false
	s.passSettled(RetryMax + time.Second)
	if a := s.accounts(id)[id]; a != nil && (a.GetUse() != actorv1.SandboxUse_SANDBOX_USE_REMOVED || a.GetTries() > 0) {
		t.Errorf("of one that is removed it says %v", a)
	}
	if len(s.machine.removals) > 0 {
		t.Errorf("it remembers %v", s.machine.removals)
	}
}

// What is left of a sandbox that nobody knows is removed when two looks have seen it: at
// once if nothing runs, else stopped and kept for a day like any other in quarantine.
func TestTracesOfSandboxesAreRemoved(t *testing.T) {
	for name, alive := range map[string]bool{"nothing of it runs": false, "something of it runs": true} {
		t.Run(name, func(t *testing.T) {
			s := newStation(t)
			id := records.SandboxID("r.default.gone", 1, 1)
			s.boxes[id] = &labBox{state: sandbox.TraceOf(id, alive).State, alive: alive, trace: true}
			s.passSettled(2*SweepEvery + 10*time.Second)
			if !alive {
				if s.boxes[id] != nil || len(s.machine.orphans) > 0 {
					t.Errorf("after two sweeps there is %+v, %v", s.boxes[id], s.machine.orphans)
				}
				return
			}
			if b := s.boxes[id]; b == nil || b.alive {
				t.Fatalf("after two sweeps there is %+v", b)
			}
			if a := s.accounts(id)[id]; a.GetUse() != actorv1.SandboxUse_SANDBOX_USE_QUARANTINED {
				t.Errorf("it says %v", a)
			}
			s.hold(QuarantineHold)
			if s.boxes[id] != nil {
				t.Error("it is there after a day")
			}
		})
	}
}

// Of a start whose outcome was not heard nothing is left but a trace: what the command
// did nobody can tell any more.
func TestTraceIsNotTheSandboxOfAStartWhoseOutcomeIsUnknown(t *testing.T) {
	s := newStation(t)
	s.startErr = func(id string) error {
		s.boxes[id].trace = true
		return records.Errorf(records.ClassOutcomeUnknown, "cut")
	}
	s.reach("starting")
	s.settle()
	s.pass(StartHold)
	s.settle()
	if exited := heard[*actorv1.Exited](s); exited.GetExit().GetReason() != recordv1.Reason_REASON_START_UNKNOWN {
		t.Errorf("what is but a trace has ended as %v", exited)
	}
}

// At its start a node takes no trace for a sandbox: not for the one that its journal
// knows either.
func TestTraceIsNoSurvivor(t *testing.T) {
	s := newStation(t)
	s.reach("running")
	id := records.SandboxID(tableRun, 1, 1)
	s.boxes[id].trace = true
	s.restart()
	s.settle()
	if len(s.machine.orphans) > 0 {
		t.Errorf("in quarantine: %v", s.machine.orphans)
	}
	if p := s.machine.find(id); p != nil && !p.ended() {
		t.Errorf("it is adopted: %+v", p)
	}
}
