package nodes

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// shown is what the node tells of its quarantine.
func (s *station) shown() []*actorv1.QuarantinedThing {
	s.t.Helper()
	for _, effect := range s.step(actors.Received{Message: &actorv1.Describe{}, From: "caller"}) {
		if answer, ok := effect.(actors.Answer); ok {
			return answer.Message.(*actorv1.Described).GetQuarantined()
		}
	}
	s.t.Fatal("no answer")
	return nil
}

// wantKept fails the test unless a sandbox is stopped, there, and shown with a reason.
func (s *station) wantKept(id, reason string) {
	s.t.Helper()
	b := s.boxes[id]
	if b == nil || b.alive || b.starts > 1 {
		s.t.Fatalf("it is not stopped and kept: %+v", b)
	}
	things := s.shown()
	if len(things) != 1 || things[0].GetSandbox() != id || things[0].GetRunning() || !strings.Contains(things[0].GetReason(), reason) {
		s.t.Fatalf("quarantine %v, want %s because %q", things, id, reason)
	}
}

// hold lets looks at runs and tells be repeated, for a part of the day.
func (s *station) hold(d time.Duration) {
	s.pass(d)
	s.settle()
}

func TestStrangeSandboxIsStoppedAndKeptInQuarantine(t *testing.T) {
	for name, spoil := range map[string]func(*labBox){
		"without a start token": func(b *labBox) { b.token = nil },
		"without a spec hash":   func(b *labBox) { b.hash = nil },
		"of another run":        func(b *labBox) { b.run = tableRun },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStation(t)
			id := s.withOrphan()
			spoil(s.boxes[id])
			s.restart()
			for range 5 {
				s.hold(OrphanConfirm)
			}
			s.wantKept(id, strangeClaims)
			s.hold(QuarantineHold)
			if s.boxes[id] != nil || len(s.shown()) > 0 {
				t.Error("it is still there after a day")
			}
		})
	}
}

// What carries the name of a sandbox of the journal, and not its token or its spec, is
// somebody else's: it is not adopted, and how it ends is not told as the run's end.
func TestSandboxWithAnotherTokenOrSpecThanTheJournalsIsNotAdopted(t *testing.T) {
	id := records.SandboxID(tableRun, 1, 1)
	spoils := []struct {
		name, says string
		spoil      func(*labBox)
	}{
		{"another token", strangeToken, func(b *labBox) { b.token = []byte("another token") }},
		{"another spec", strangeSpec, func(b *labBox) { b.hash = slices.Repeat([]byte{7}, len(b.hash)) }},
	}
	for _, test := range []struct {
		name, state string
		meanwhile   func(*station)
		reason      recordv1.Reason
		code        int32
	}{
		{"running", "running", nil, recordv1.Reason_REASON_SANDBOX_LOST, 0},
		{"after a reboot", "running", func(s *station) { s.end(id, 3, 0); s.boot = "boot-2" }, recordv1.Reason_REASON_SANDBOX_LOST, 0},
		{"ended by itself meanwhile", "running", func(s *station) { s.end(id, 3, 0) }, recordv1.Reason_REASON_SANDBOX_LOST, 0},
		{"starting", "starting", func(s *station) {
			s.perform(slices.IndexFunc(s.ops, func(op DoSandbox) bool { return op.Op.Verb == VerbStart }))
		}, recordv1.Reason_REASON_START_UNKNOWN, 0},
		{"reporting", "reporting", nil, 0, 143},
	} {
		for _, other := range spoils {
			t.Run(test.name+", "+other.name, func(t *testing.T) {
				s := newStation(t)
				s.reach(test.state)
				if test.meanwhile != nil {
					test.meanwhile(s)
				}
				other.spoil(s.boxes[id])
				s.restart()
				exit := heard[*actorv1.Exited](s).GetExit()
				if exit.GetReason() != test.reason || exit.GetCode() != test.code || (exit.Code == nil) != (test.reason != 0) {
					t.Fatalf("exit %v", exit)
				}
				if exit.Code == nil && (!strings.Contains(exit.GetMessage(), other.says) || exit.GetEmptiedAt() == 0) {
					t.Errorf("the end is told as %v", exit)
				}
				s.wantKept(id, other.says)
				// Neither the acknowledgement, nor the next life, which no longer knows the
				// placement, makes it go sooner.
				s.tell(&actorv1.Ack{Run: tableRun, Attempt: 1, Placement: 1, Commit: s.store.revision})
				s.withdraw()
				s.settle()
				if len(s.entries) > 0 {
					t.Fatalf("the entry stays: %v", s.entries)
				}
				s.restart()
				for range 5 {
					s.hold(OrphanConfirm)
				}
				s.wantKept(id, other.says)
				s.hold(QuarantineHold - 5*OrphanConfirm)
				if s.boxes[id] != nil {
					t.Error("it is still there after a day")
				}
			})
		}
	}
}

// A sandbox that ran although the journal has it that it was not to be started yet.
func TestSandboxThatRanBeforeTheJournalKnewIsNotTakenForOneThatNeverDid(t *testing.T) {
	s := newStation(t)
	s.reach("running")
	id := records.SandboxID(tableRun, 1, 1)
	s.entries[PlacementKey{tableRun, 1, 1}].State = recordv1.JournalState_JOURNAL_STATE_ACCEPTED
	s.restart()
	if exit := heard[*actorv1.Exited](s).GetExit(); exit.Code != nil || exit.GetReason() != recordv1.Reason_REASON_START_UNKNOWN {
		t.Errorf("exit %v", exit)
	}
	if b := s.boxes[id]; b != nil && b.alive {
		t.Errorf("sandbox %+v", b)
	}
}

func TestSandboxThatTheJournalKnowsAndNobodyHasIsSaid(t *testing.T) {
	s := newStation(t)
	s.reach("running")
	s.boxes = map[string]*labBox{}
	s.restart()
	if exit := heard[*actorv1.Exited](s).GetExit(); exit.GetReason() != recordv1.Reason_REASON_SANDBOX_LOST || exit.GetMessage() == "" {
		t.Errorf("exit %v", exit)
	}
	if !slices.Contains(s.logs, "sandbox that the journal knows is not there") {
		t.Errorf("the log has %q", s.logs)
	}
}

// The run in whose name it is hears of it until its record says so, and after a restart
// nothing is told that it knows.
func TestRunIsToldOfASandboxInItsName(t *testing.T) {
	s := newStation(t)
	run := &recordv1.Run{Id: orphanRun, App: "default", Status: recordv1.Status_STATUS_RUNNING}
	created := s.lab.commit(s.keys.Create(run, 1))
	id := s.withOrphan()
	s.restart()
	s.hold(OrphanConfirm)
	if got := s.toldOfOrphan(); got != 2 {
		t.Fatalf("told %d times", got)
	}
	m := heard[*actorv1.Quarantined](s)
	if m.GetNode() != "n1" || m.GetAttempt() != 1 || m.GetPlacement() != 1 || m.GetSince() == 0 || m.GetReason() == "" {
		t.Errorf("told %v", m)
	}
	run.Events = append(run.Events, &recordv1.RunEvent{
		Kind: recordv1.RunEventKind_RUN_EVENT_KIND_QUARANTINED, At: m.GetSince(), Attempt: 1, Placement: 1, Node: "n1",
	})
	s.lab.commit(s.keys.Update(proto.CloneOf(run), created.Revision, 1))
	for range 2 {
		s.restart()
		s.hold(3 * OrphanConfirm)
		if got := s.toldOfOrphan(); got != 0 {
			t.Fatalf("told %d times what the record says", got)
		}
	}
	if b := s.boxes[id]; b == nil || b.state == sandbox.StateRunning {
		t.Errorf("sandbox %+v", b)
	}
}

// toldOfOrphan counts how often the run in whose name the orphan is was told of it.
func (s *station) toldOfOrphan() (times int) {
	for _, tell := range s.tells {
		if _, ok := tell.Message.(*actorv1.Quarantined); ok && tell.Identity == orphanRun {
			times++
		}
	}
	return times
}

// One that is not made of what its run asks for stays for its day although that run has
// ended, and is told until the record speaks of it.
func TestSandboxOfAnotherSpecThanItsRunsIsKeptForADay(t *testing.T) {
	s := newStation(t)
	run := &recordv1.Run{Id: orphanRun, App: "default", Status: recordv1.Status_STATUS_RUNNING, Spec: &recordv1.Spec{Driver: "null"}}
	created := s.lab.commit(s.keys.Create(run, 1))
	run.Status, run.EndedAt = recordv1.Status_STATUS_SUCCEEDED, 1
	s.lab.commit(s.keys.End(run, created.Revision, ""))
	id := s.withOrphan()
	s.restart()
	for range 5 {
		s.hold(OrphanConfirm)
	}
	s.wantKept(id, strangeSpec)
	if got := s.toldOfOrphan(); got != 6 {
		t.Errorf("told %d times", got)
	}
	if m := heard[*actorv1.Quarantined](s); m.GetReason() != strangeSpec {
		t.Errorf("told %v", m)
	}
	s.restart()
	s.hold(QuarantineHold - 5*OrphanConfirm)
	if s.boxes[id] != nil {
		t.Error("it is still there after a day")
	}
}
