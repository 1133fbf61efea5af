package nodes

import (
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// other puts a session of another daemon into the store.
func (s *station) other(name string, generation int64) {
	session := &recordv1.NodeSession{Uuid: "uuid-1", Generation: generation, Address: "10.0.0.7:7400", RegisteredAt: s.now.Milli()}
	s.lab.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: s.keys.Node(name), Value: records.Encode(session)}}})
}

// A node whose session has ended stays out, with what it ran stopped, for as long as
// another one has the store or its name, says who that is, and comes back after it.
func TestNodeStaysOutWhileAnotherOneHasItsPlace(t *testing.T) {
	for _, test := range []struct {
		name, other, says string
		generation        int64
	}{
		{"the store", "n2", `node "n2" has this store, at 10.0.0.7:7400, since 20`, 1},
		{"the name", "n1", "has this node's name, by registration 7, and the last of this one was 1, at 10.0.0.7:7400, since 20", 7},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &station{lab: newLeasedLab(), t: t}
			s.only = true
			s.launch()
			s.settle()
			s.reach("running")
			before, _ := s.key()
			// The machine stands still past its lease, and another one comes meanwhile.
			s.now.Boot, s.now.Mono = s.now.Boot+2*time.Minute, s.now.Mono+2*time.Minute
			s.expire()
			s.other(test.other, test.generation)
			taken := s.store.keys[s.keys.Node(test.other)]
			s.live(5 * time.Minute)
			if box := s.boxes[fenceBox]; box != nil && box.alive {
				t.Error("what it ran goes on")
			}
			if kv, ok := s.key(); ok && kv.Create == before.Create || s.store.keys[s.keys.Node(test.other)].Mod != taken.Mod {
				t.Errorf("sessions: %+v, %+v", kv, s.store.keys[s.keys.Node(test.other)])
			}
			if test.other != "n1" {
				if kv, ok := s.key(); ok {
					t.Errorf("it has registered beside another node: %+v", kv)
				}
			}
			if trouble := s.machine.trouble; !strings.Contains(trouble, test.says) || !strings.Contains(trouble, "a cluster has one node so far") {
				t.Errorf("its trouble is %q", trouble)
			}
			s.deleteKey(s.keys.Node(test.other))
			s.live(2 * time.Minute)
			if kv, ok := s.key(); !ok || kv.Create == before.Create || s.machine.trouble != "" {
				t.Errorf("when the other one is gone it has %+v, %q", kv, s.machine.trouble)
			}
		})
	}
}

// Two that look at the same moment see no other: the registration itself makes sure.
func TestRegistrationOfAnOnlyNodeFailsWhenAnotherOneWasFaster(t *testing.T) {
	s := &station{lab: newLeasedLab(), t: t}
	s.only = true
	s.launch()
	s.settleWhile(func() bool {
		if len(s.commits) > 0 {
			for _, op := range s.commits[0].Txn.Then {
				if op.Kind == records.OpPut && op.Key == s.keys.Node("n1") {
					return false
				}
			}
		}
		return true
	})
	s.other("n2", 1)
	s.settle()
	if kv, ok := s.key(); ok {
		t.Errorf("it has registered: %+v", kv)
	}
	s.live(time.Minute)
	if s.failure == nil || !strings.Contains(s.failure.Error(), `node "n2" has this store`) {
		t.Errorf("the start ends with %v", s.failure)
	}
}
