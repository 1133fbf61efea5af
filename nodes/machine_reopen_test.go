package nodes

import (
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
)

// TestNodeThatIsAloneRegistersAnewWhenItsKeyIsTakenAway: what runs goes on, what had
// not come to its start yet is given back, new work is taken, and the next daemon
// resumes the new session.
func TestNodeThatIsAloneRegistersAnewWhenItsKeyIsTakenAway(t *testing.T) {
	s := newStation(t)
	before := s.machine.session
	s.reach("running")
	s.tells = nil
	other := s.assignment()
	other.Run = "r.default.two"
	s.assign(other) // the watch will show it after the key is gone
	s.lab.commit(records.Txn{Then: []records.Op{{Kind: records.OpDelete, Key: s.keys.Node("n1")}}})
	s.settle()
	session := s.store.keys[s.keys.Node("n1")].Create
	if session == 0 || s.machine.session != session || session == before || s.meta.GetSession() != session {
		t.Fatalf("session %d, in the store %d, in the journal %d, before %d", s.machine.session, session, s.meta.GetSession(), before)
	}
	if b := s.boxes[records.SandboxID(tableRun, 1, 1)]; b == nil || !b.alive {
		t.Fatalf("what ran is %+v", b)
	}
	if !strings.Contains(strings.Join(s.logs, "\n"), "key was removed") {
		t.Errorf("logs %v", s.logs)
	}
	answer, ok := told[*actorv1.Reserved](s.tell(&actorv1.Reserve{Run: "r.default.three", Attempt: 1, Placement: 1, Driver: "null", Node: "n1"}))
	if !ok || !answer.GetYes() || answer.GetSession() != session {
		t.Errorf("a reservation is answered %v", answer)
	}
	s.pass(time.Second)
	s.restart()
	if b := s.boxes[records.SandboxID(tableRun, 1, 1)]; s.machine.session != session || b == nil || !b.alive || b.starts != 1 {
		t.Errorf("the next daemon has session %d, and what ran is %+v", s.machine.session, b)
	}
}
