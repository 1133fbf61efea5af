package nodes

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// copyStore copies what the store holds.
func (s *station) copyStore() labStore {
	return labStore{revision: s.store.revision, keys: maps.Clone(s.store.keys)}
}

// restore puts a copy in the place of the store, as an administrator must.
func (s *station) restore(older labStore, epoch int64) {
	s.store = labStore{revision: older.revision + 1_000_000, keys: maps.Clone(older.keys)}
	cluster := &recordv1.Cluster{}
	if err := records.Decode(s.store.keys[s.keys.Cluster()], cluster); err != nil {
		s.t.Fatal(err)
	}
	cluster.Epoch, cluster.RestoredAt, cluster.RestoredThrough = epoch, epoch*1000, s.store.revision
	s.lab.commit(records.Txn{Then: []records.Op{
		{Kind: records.OpPut, Key: s.keys.Cluster(), Value: records.Encode(cluster)},
		{Kind: records.OpDelete, Key: s.keys.Node("n1")},
	}})
}

// ranBefore is a station whose run has ended and is forgotten, and a copy of the store
// that was made when it was placed.
func ranBefore(t *testing.T, s *station) (older labStore) {
	t.Helper()
	s.reach("unknown")
	older = s.copyStore()
	s.forget()
	s.watched = nil
	return older
}

func TestRestoredStoreStartsNothingOfTheCopyAgain(t *testing.T) {
	s := newStation(t)
	older := ranBefore(t, s)
	s.restore(older, 2)
	through := s.store.revision - 1
	s.restart()
	if s.reached != PhaseAnnounced || s.meta.GetEpoch() != 2 {
		t.Fatalf("phase %s, %v, journal %v", s.reached, s.failure, s.meta)
	}
	if exit := heard[*actorv1.Exited](s).GetExit(); exit.Code != nil || exit.GetReason() != recordv1.Reason_REASON_START_UNKNOWN {
		t.Errorf("exit %v", exit)
	}
	for _, test := range []struct {
		name    string
		created int64
		yes     bool
	}{{"of the copy", through, false}, {"created since", through + 1, true}, {"of an actor that does not say", 0, true}} {
		s.tell(&actorv1.Reserve{Run: "r.default.waits", Attempt: 1, Placement: 1, Driver: "null", Created: test.created})
		answer := heard[*actorv1.Reserved](s)
		if answer.GetYes() != test.yes || test.yes == (answer.GetPermanentReason() == recordv1.Reason_REASON_START_UNKNOWN) {
			t.Errorf("a run %s: %v", test.name, answer)
		}
	}
	s.restart()
	if s.reached != PhaseAnnounced {
		t.Errorf("once more: phase %s, %v", s.reached, s.failure)
	}
}

// A node whose first registration the copy does not know is not taken for one of
// another store.
func TestNodeThatTheCopyDoesNotKnowRegisters(t *testing.T) {
	s := newStation(t)
	older := s.copyStore()
	delete(older.keys, s.keys.NodeInfo("n1"))
	s.restore(older, 2)
	s.restart()
	if s.reached != PhaseAnnounced {
		t.Errorf("phase %s, %v", s.reached, s.failure)
	}
}

// What it knows of ends is told again: the copy may be of before they were.
func TestEndThatWasAcknowledgedBeforeTheRestoreIsToldAgain(t *testing.T) {
	s := newLeasedStation(t)
	s.reach("reporting")
	older := s.copyStore()
	s.tell(&actorv1.Ack{Run: tableRun, Attempt: 1, Placement: 1, Commit: s.store.revision})
	s.restore(older, 2)
	s.tells = nil
	s.resync(s.keys.Node("n1"))
	s.live(2 * time.Minute)
	if s.machine.session <= older.revision {
		t.Fatalf("it has not registered anew: %s", s.machine.trouble)
	}
	if exit := heard[*actorv1.Exited](s).GetExit(); exit.Code == nil {
		t.Errorf("exit %v", exit)
	}
}

func TestNodeRegistersInANewEpochWhenNothingOfBeforeCanRun(t *testing.T) {
	s := newLeasedStation(t)
	s.restore(s.copyStore(), 2)
	began := s.now.Mono
	s.restart()
	if s.reached != PhaseAdopted || !strings.Contains(s.machine.trouble, "restored") {
		t.Fatalf("phase %s, %v, trouble %q", s.reached, s.failure, s.machine.trouble)
	}
	for s.reached != PhaseAnnounced && s.now.Mono-began < 5*time.Minute {
		s.live(time.Second)
	}
	// 105 s of the longest window, 1 % of drift, 10 s for the kill.
	if waited := s.now.Mono - began; waited < 116*time.Second || waited > 2*time.Minute {
		t.Errorf("registered after %v: phase %s, %v", waited, s.reached, s.failure)
	}
}

// A run that was lost with the restore and created again has the names of before.
func TestPlacementOfARunThatWasCreatedAgainIsGivenBack(t *testing.T) {
	s := newStation(t)
	founded := s.copyStore()
	s.reach("reporting")
	s.tell(&actorv1.Ack{Run: tableRun, Attempt: 1, Placement: 1, Unknown: true})
	s.settle()
	s.restore(founded, 2)
	s.restart()
	s.tell(&actorv1.Ack{Run: tableRun, Attempt: 1, Placement: 1, Unknown: true})
	s.settle()
	starts := len(s.ops)
	again := s.assignment()
	again.StartToken = []byte{2}
	s.assign(again)
	s.watch()
	if void := heard[*actorv1.Voided](s); void.GetPlacement() != 1 || len(s.ops) != starts {
		t.Errorf("void %v, operations %v", void, s.ops)
	}
	s.tells = nil
	s.tell(&actorv1.Start{Assignment: again, Commit: s.commit})
	if void := heard[*actorv1.Voided](s); void.GetPlacement() != 1 {
		t.Errorf("void %v", void)
	}
	if entry := s.entries[PlacementKey{Run: tableRun, Attempt: 1, Placement: 1}]; entry.GetExit() == nil {
		t.Errorf("the end of before is %v", entry)
	}
}

// Without the procedure of a restore only a store that goes back before the eyes of a
// node can be noticed; then nothing of it is begun.
func TestStoreThatGoesBackUnderARunningNodeIsRefused(t *testing.T) {
	s := newLeasedStation(t)
	s.reach("unknown")
	older := s.copyStore()
	s.withdraw()
	s.watch()
	s.store = older
	s.resync(s.keys.AssignmentsOf("n1"))
	s.watch()
	s.settle()
	if slices.ContainsFunc(s.ops, func(op DoSandbox) bool { return op.Op.Verb == VerbCreate }) || len(s.boxes) > 0 {
		t.Errorf("operations %v, sandboxes %v", s.ops, s.boxes)
	}
	s.live(time.Minute)
	if trouble := s.machine.trouble; !strings.Contains(trouble, "older copy") {
		t.Errorf("trouble %q", trouble)
	}
}

func TestOlderCopyThatIsAcceptedEndsWhatItHasPlaced(t *testing.T) {
	s := newStation(t)
	older := ranBefore(t, s)
	older.revision = s.meta.GetSession() - 1
	s.store = older
	s.restart()
	if s.failure == nil || !strings.Contains(s.failure.Error(), "--accept-loss-of store") {
		t.Fatalf("phase %s, %v", s.reached, s.failure)
	}
	s.accept.store = true
	s.restart()
	if s.reached != PhaseAnnounced {
		t.Fatalf("phase %s, %v", s.reached, s.failure)
	}
	if exit := heard[*actorv1.Exited](s).GetExit(); exit.Code != nil || exit.GetReason() != recordv1.Reason_REASON_START_UNKNOWN {
		t.Errorf("exit %v", exit)
	}
	s.accept.store = false
	s.restart()
	if s.reached != PhaseAnnounced {
		t.Errorf("without the flag: phase %s, %v", s.reached, s.failure)
	}
}

func TestOlderStoresAreRefused(t *testing.T) {
	put := func(s *station, key string, value proto.Message) {
		s.lab.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: key, Value: records.Encode(value)}}})
	}
	for _, test := range []struct {
		name, refusal string
		prepare       func(*station)
	}{
		{"of an epoch of before", "raise the epoch", func(s *station) { s.meta.Epoch = 2 }},
		{"restored twice to one epoch", "tokens would come twice", func(s *station) {
			cluster := &recordv1.Cluster{}
			if err := records.Decode(s.store.keys[s.keys.Cluster()], cluster); err != nil {
				t.Fatal(err)
			}
			cluster.RestoredAt = 7
			put(s, s.keys.Cluster(), cluster)
		}},
		{"from before the registration", "has registered at", func(s *station) { s.store.revision = s.meta.GetSession() - 1 }},
		{"of fewer registrations", "knows registration 1 of this node", func(s *station) {
			s.meta.Generation = 2
			put(s, s.keys.NodeInfo("n1"), &recordv1.NodeInfo{Uuid: s.meta.GetUuid(), Generation: 1})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStation(t)
			s.meta = proto.CloneOf(s.meta)
			test.prepare(s)
			s.restart()
			if s.failure == nil || !strings.Contains(s.failure.Error(), test.refusal) {
				t.Errorf("failure %v, phase %s", s.failure, s.reached)
			}
		})
	}
}

// What a watch brings while the node has no session may be of a copy: that it never
// started is not said before the next one is opened.
func TestFencedNodeSaysNothingOfAssignmentsThatItDoesNotKnow(t *testing.T) {
	s := newLeasedStation(t)
	older := ranBefore(t, s)
	s.restore(older, 2)
	s.tells = nil
	s.resync(s.keys.Node("n1"))
	s.watch()
	s.resync(s.keys.AssignmentsOf("n1"))
	s.watch()
	s.live(2 * time.Minute)
	for _, tell := range s.tells {
		if void, ok := tell.Message.(*actorv1.Voided); ok {
			t.Fatalf("told %v", void)
		}
	}
	if exit := heard[*actorv1.Exited](s).GetExit(); exit.Code != nil || exit.GetReason() != recordv1.Reason_REASON_START_UNKNOWN {
		t.Errorf("exit %v", exit)
	}
}
