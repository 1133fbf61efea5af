package nodes

import (
	"strings"
	"testing"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

const orphanRun = "r.default.orphan"

// withOrphan puts a sandbox beside the station's that no journal knows.
func (s *station) withOrphan() (id string) {
	id = records.SandboxID(orphanRun, 1, 1)
	s.boxes[id] = strayBox(orphanRun, nil)
	return id
}

// loseJournal is journal.db gone, and a new uuid drawn for the next.
func (s *station) loseJournal() { s.meta, s.entries = nil, map[PlacementKey]*recordv1.JournalEntry{} }

// loseStore is a store founded anew.
func (s *station) loseStore() {
	s.store = labStore{keys: map[string]records.KV{}}
	s.store.apply(s.keys.Found(&recordv1.Cluster{Epoch: 1, Shards: 4, Hash: records.HashName, Solo: true, Id: "cluster-2"}))
}

func TestRefusedStartLeavesEverythingAsItWas(t *testing.T) {
	for _, test := range []struct {
		name, refusal string
		prepare       func(*station)
	}{
		{"a store of an older epoch", "older copy", func(s *station) { s.meta.Epoch = 2 }},
		{"a store without a cluster", "no cluster", func(s *station) { delete(s.store.keys, s.keys.Cluster()) }},
		{"another number of shards", "shards", func(s *station) { s.keys.Shards = 8 }},
		{"the journal of another data directory", "journal.db was replaced", func(s *station) { s.meta.Uuid = "uuid-2" }},
		{"no journal, and the store knows another uuid", "journal.db of this data directory is missing", func(s *station) {
			s.loseJournal()
			info := &recordv1.NodeInfo{Uuid: "uuid-0", Generation: 1}
			s.lab.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: s.keys.NodeInfo("n1"), Value: records.Encode(info)}}})
		}},
		{"no journal, and the uuid was kept beside it", "journal.db of this data directory is missing", (*station).loseJournal},
		{"neither journal nor store", "--accept-loss-of journal", func(s *station) {
			s.loseJournal()
			s.loseStore()
		}},
		{"the journal of another node", `node "n2"`, func(s *station) { s.meta.Node = "n2" }},
		{"another store", `cluster "cluster-1"`, (*station).loseStore},
		{"another store of the journal of an earlier version", "--accept-loss-of store", func(s *station) {
			s.meta.Cluster = ""
			s.loseStore()
		}},
		{"a store from before the registration", "--accept-loss-of store", func(s *station) {
			for _, key := range []string{s.keys.Node("n1"), s.keys.NodeInfo("n1")} {
				delete(s.store.keys, key)
			}
		}},
		{"entries without an owner", "damaged", func(s *station) {
			s.meta = nil
		}},
		{"a driver that is gone", "not enabled any more", func(s *station) {
			s.entries[PlacementKey{Run: "r.default.two"}] = &recordv1.JournalEntry{Run: "r.default.two", Driver: "gone", State: recordv1.JournalState_JOURNAL_STATE_STARTED}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			// A stop that is journaled is one that an adoption carries on with.
			s := newStation(t)
			s.reach("stopping")
			orphan := s.withOrphan()
			test.prepare(s)
			meta, entries := s.meta, len(s.entries)
			s.restart()
			if s.failure == nil || !strings.Contains(s.failure.Error(), test.refusal) {
				t.Errorf("failure %v, phase %s", s.failure, s.reached)
			}
			for _, id := range []string{orphan, records.SandboxID(tableRun, 1, 1)} {
				if b := s.boxes[id]; b == nil || !b.alive || b.state != sandbox.StateRunning {
					t.Errorf("sandbox of run %+v is touched", b)
				}
			}
			if s.meta != meta || len(s.entries) != entries {
				t.Errorf("the journal is %v with %d entries, it was %v with %d", s.meta, len(s.entries), meta, entries)
			}
			if len(s.tells) > 0 {
				t.Errorf("told: %v", s.tells)
			}
		})
	}
}

func TestOrphanLivesUntilTheNodeHasItsSession(t *testing.T) {
	s := newStation(t)
	orphan := s.withOrphan()
	s.goal = PhaseAdopted
	s.restart()
	if b := s.boxes[orphan]; s.reached != PhaseAdopted || !b.alive {
		t.Fatalf("phase %s, sandbox %+v", s.reached, b)
	}
	s.step(Advance{To: PhaseRegistered})
	s.settle()
	if b := s.boxes[orphan]; s.reached != PhaseRegistered || b != nil && b.alive {
		t.Errorf("phase %s, sandbox %+v", s.reached, b)
	}
}

func TestFirstRegistrationThatACrashCutShortIsMadeAgain(t *testing.T) {
	s := &station{lab: newLab(), t: t}
	s.meta = &recordv1.JournalMeta{Node: "n1", Uuid: "uuid-1", Generation: 3, BootId: s.boot, Epoch: 1, Cluster: "cluster-1"}
	s.restart()
	if s.reached != PhaseAnnounced || s.meta.GetSession() == 0 {
		t.Errorf("phase %s, %v, journal %v", s.reached, s.failure, s.meta)
	}
}

func TestLostStoreThatIsAcceptedEndsWhatRanAndTakesNewRuns(t *testing.T) {
	s := newStation(t)
	s.reach("running")
	generation := s.meta.GetGeneration()
	s.loseStore()
	s.accept.store = true
	s.restart()
	if s.reached != PhaseAnnounced {
		t.Fatalf("phase %s, %v", s.reached, s.failure)
	}
	if s.meta.GetCluster() != "cluster-2" || s.meta.GetGeneration() != generation+1 {
		t.Errorf("journal %v", s.meta)
	}
	exit := heard[*actorv1.Exited](s).GetExit()
	if exit.Code != nil || exit.GetReason() != recordv1.Reason_REASON_SANDBOX_LOST {
		t.Errorf("exit %v", exit)
	}
	for id, b := range s.boxes {
		if b.alive {
			t.Errorf("sandbox %s is alive", id)
		}
	}
	// No revision of the store of before is left to wait for.
	s.tell(&actorv1.Ack{Run: tableRun, Attempt: 1, Placement: 1, Unknown: true})
	s.settle()
	s.pass(QuarantineHold)
	s.settle()
	if len(s.entries) > 0 {
		t.Errorf("entries %v", s.entries)
	}
	s.accept.store = false
	s.restart()
	if s.reached != PhaseAnnounced {
		t.Errorf("without the flag: phase %s, %v", s.reached, s.failure)
	}
}

// TestReturnToAStoreThatWasLeftDoesNotStartAgain: its assignments may have been
// started before it was left, and the journal has forgotten them.
func TestReturnToAStoreThatWasLeftDoesNotStartAgain(t *testing.T) {
	s := newStation(t)
	s.reach("running")
	left := s.store
	s.loseStore()
	s.accept.store = true
	s.restart()
	s.entries, s.boxes = map[PlacementKey]*recordv1.JournalEntry{}, map[string]*labBox{}
	s.store = left
	s.restart()
	if s.reached != PhaseAnnounced {
		t.Fatalf("phase %s, %v", s.reached, s.failure)
	}
	if exit := heard[*actorv1.Exited](s).GetExit(); exit.Code != nil || exit.GetReason() != recordv1.Reason_REASON_START_UNKNOWN {
		t.Errorf("exit %v", exit)
	}
}

// TestLostJournalThatIsAccepted: the node takes the uuid of before from the store.
func TestLostJournalThatIsAcceptedEndsWhatRanWithoutACode(t *testing.T) {
	s := newStation(t)
	s.reach("running")
	s.loseJournal()
	s.accept.journal = true
	s.restart()
	if s.reached != PhaseAnnounced {
		t.Fatalf("phase %s, %v", s.reached, s.failure)
	}
	exit := heard[*actorv1.Exited](s).GetExit()
	if exit.Code != nil || exit.GetReason() != recordv1.Reason_REASON_START_UNKNOWN {
		t.Errorf("exit %v", exit)
	}
	if b := s.boxes[records.SandboxID(tableRun, 1, 1)]; b != nil && b.alive {
		t.Errorf("sandbox %+v", b)
	}
}

// What is found out about assignments is journaled before there is a session, and
// for that the store must still grant a lease.
func TestStartWithoutAJournalThatTheStoreCutsShortCanBeDoneAgain(t *testing.T) {
	s := newLeasedStation(t)
	s.reach("running")
	s.loseJournal()
	s.accept.journal, s.lessor.full = true, true
	s.restart()
	if s.reached != PhaseAdopted || len(s.entries) != 1 {
		t.Fatalf("phase %s, %v, entries %v", s.reached, s.failure, s.entries)
	}
	s.lessor.full = false
	s.restart()
	if s.reached != PhaseAnnounced {
		t.Fatalf("phase %s, %v", s.reached, s.failure)
	}
	if exit := heard[*actorv1.Exited](s).GetExit(); exit.Code != nil || exit.GetReason() != recordv1.Reason_REASON_START_UNKNOWN {
		t.Errorf("exit %v", exit)
	}
}

// The loss is accepted once: wherever the start after it is cut short, the next one
// goes on without being told again, and tells the same.
func TestStartAfterALostJournalCutShortAnywhereCanBeMadeAgain(t *testing.T) {
	for writes := 1; ; writes++ {
		s := newStation(t)
		s.reach("running")
		s.loseJournal()
		s.accept.journal = true
		left := writes
		s.stepped = func(in actors.Input, _ []actors.Effect) {
			if _, written := in.(JournalWritten); written {
				left--
			}
		}
		s.tells = nil
		s.launch()
		s.settleWhile(func() bool { return left > 0 })
		cut := s.reached < PhaseAnnounced
		s.accept.journal = false
		s.restart()
		if s.reached != PhaseAnnounced {
			t.Fatalf("after %d writes: phase %s, %v", writes, s.reached, s.failure)
		}
		if exit := heard[*actorv1.Exited](s).GetExit(); exit.Code != nil || exit.GetReason() != recordv1.Reason_REASON_START_UNKNOWN {
			t.Errorf("after %d writes: exit %v", writes, exit)
		}
		if !cut {
			return
		}
	}
}
