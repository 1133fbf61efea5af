package nodes

import (
	"testing"

	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// forget puts the journal back to before the run was here.
func (s *station) forget() { s.entries = map[PlacementKey]*recordv1.JournalEntry{} }

// record puts the run's record, as its actor has written it, into the store.
func (s *station) record(run *recordv1.Run) {
	run.Id, run.App, run.Attempt = tableRun, records.DefaultApp, 1
	s.lab.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: s.keys.Run(tableRun), Value: records.Encode(run)}}})
}

// TestOlderCopyOfTheJournalNeverStartsAgain puts a journal back while a command runs
// that it has forgotten. Without solo the machine has booted since, or it has not; the
// node must end what runs, never void it, and be registered anew.
func TestOlderCopyOfTheJournalNeverStartsAgain(t *testing.T) {
	running := &recordv1.Run{Status: recordv1.Status_STATUS_RUNNING, Placement: &recordv1.Placement{Node: "n1", Number: 1}}
	for _, test := range []struct {
		name    string
		prepare func(*station)
		void    bool
	}{
		{name: "put back on the same boot", prepare: func(s *station) { s.forget(); s.reverted = true }},
		{name: "put back to where the start was accepted", prepare: func(s *station) {
			for _, entry := range s.entries {
				entry.State = recordv1.JournalState_JOURNAL_STATE_ACCEPTED
			}
			s.reverted = true
		}},
		{name: "the start after the one that noticed was cut short", prepare: func(s *station) { s.forget(); s.meta.Reverted = true }},
		{name: "put back before a reboot, and the store knows of the start", prepare: func(s *station) {
			s.forget()
			s.boxes, s.boot = map[string]*labBox{}, "boot-2"
			s.record(running)
		}},
		{name: "a reboot, and the store knows of the start of another placement", void: true, prepare: func(s *station) {
			s.forget()
			s.boxes, s.boot = map[string]*labBox{}, "boot-2"
			s.record(&recordv1.Run{Status: recordv1.Status_STATUS_RUNNING, Placement: &recordv1.Placement{Node: "n1", Number: 2}})
		}},
	} {
		for name, station := range map[string]func(*testing.T) *station{"solo": newStation, "leased": newLeasedStation} {
			t.Run(test.name+"/"+name, func(t *testing.T) {
				s := station(t)
				before := s.machine.session
				s.reach("running")
				test.prepare(s)
				s.restart()
				if s.reached != PhaseAnnounced || s.machine.session == before {
					t.Fatalf("phase %s, session %d as before, %v", s.reached, s.machine.session, s.failure)
				}
				if b := s.boxes[records.SandboxID(tableRun, 1, 1)]; b != nil && (b.alive || b.starts != 1) {
					t.Errorf("sandbox %+v", b)
				}
				if test.void {
					heard[*actorv1.Voided](s)
					return
				}
				if exit := heard[*actorv1.Exited](s).GetExit(); exit.Code != nil || exit.GetReason() != recordv1.Reason_REASON_START_UNKNOWN {
					t.Errorf("exit %v", exit)
				}
				if s.meta.GetReverted() || s.machine.reverted {
					t.Error("the new session is taken for one of the copy")
				}
			})
		}
	}
}

// TestOlderCopyOfTheJournalIsOnRecordBeforeAnythingElse: the first write ends what
// tells the copy, so it must be the one that remembers it.
func TestOlderCopyOfTheJournalIsOnRecordBeforeAnythingElse(t *testing.T) {
	s := newStation(t)
	s.reach("running")
	s.forget()
	s.reverted = true
	s.launch()
	for len(s.inputs) > 0 {
		in := s.inputs[0]
		s.inputs = s.inputs[1:]
		s.step(in)
	}
	if len(s.writes) != 1 || !s.writes[0].Change.Meta.GetReverted() || len(s.ops) > 0 || len(s.commits) > 0 {
		t.Errorf("writes %v, operations %v, commits %v", s.writes, s.ops, s.commits)
	}
}
