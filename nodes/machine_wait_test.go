package nodes

import (
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

func waitsForNode() *recordv1.Retry {
	return &recordv1.Retry{OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_WAIT}
}

// newWaitingStation is a station whose run waits for its node, as far as that state.
func newWaitingStation(t *testing.T, state string) *station {
	t.Helper()
	s := newLeasedStation(t)
	s.retry, s.timeoutMs = waitsForNode(), time.Hour.Milliseconds()
	s.reach(state)
	return s
}

// wantsRunning holds that the sandbox of the run runs and that nothing was told of an end.
func (s *station) wantsRunning() {
	s.t.Helper()
	if b := s.boxes[fenceBox]; b == nil || b.state != sandbox.StateRunning || b.starts != 1 {
		s.t.Fatalf("the sandbox is %+v", b)
	}
	for _, tell := range s.tells {
		if exit, ok := tell.Message.(*actorv1.Exited); ok {
			s.t.Fatalf("told as %v", exit)
		}
	}
}

// sayDead puts the word that the node's machine is dead, as the API does.
func (s *station) sayDead(by string) {
	s.t.Helper()
	kv, info := s.store.keys[s.keys.NodeInfo("n1")], &recordv1.NodeInfo{}
	if err := records.Decode(kv, info); err != nil {
		s.t.Fatal(err)
	}
	info.Removed = &recordv1.Removal{At: s.now.Milli(), By: by}
	if result := s.lab.commit(s.keys.Remove("n1", kv.Mod, info)); !result.Succeeded {
		s.t.Fatal("the word is not taken")
	}
}

func TestRunThatWaitsOutlivesTheSessionOfItsNode(t *testing.T) {
	for _, test := range []struct {
		name string
		away func(s *station)
	}{
		{name: "its daemon goes on", away: func(*station) {}},
		{name: "its daemon dies and comes back", away: func(s *station) {
			s.live(time.Minute)
			s.guard()
			s.launch()
		}},
		{name: "its guard fires first", away: func(s *station) {
			s.advanceTo(s.now.Mono + 46*time.Second)
			s.guard()
			s.launch()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newWaitingStation(t, "running")
			session := s.machine.session
			s.cut()
			test.away(s)
			s.live(2 * time.Minute)
			s.guard()
			s.wantsRunning()
			s.deleteKey(s.keys.Node("n1"))
			s.lessor.err = nil
			s.live(20 * time.Second)
			if s.machine.session == session || s.reached != PhaseAnnounced || s.machine.fenced() || s.machine.unfenced != 1 {
				t.Fatalf("session %d after %d, phase %s, %d unfenced", s.machine.session, session, s.reached, s.machine.unfenced)
			}
			s.wantsRunning()
			s.launch()
			s.live(10 * time.Second)
			s.wantsRunning()
			s.end(fenceBox, 3, 0)
			s.settle()
			if exit := heard[*actorv1.Exited](s).GetExit(); exit.GetCode() != 3 || exit.Code == nil || exit.GetFenced() {
				t.Errorf("told as %v", exit)
			}
			if s.machine.unfenced != 0 {
				t.Errorf("%d unfenced", s.machine.unfenced)
			}
		})
	}
}

// What ended while nobody was there to see it is told as it was, though the fence has
// fired: nobody killed it.
func TestRunThatWaitsIsToldAsItEndedBehindTheFence(t *testing.T) {
	s := newWaitingStation(t, "running")
	s.cut()
	s.advanceTo(s.now.Mono + time.Minute)
	s.guard()
	s.end(fenceBox, 7, 0)
	s.lessor.err = nil
	s.launch()
	s.live(20 * time.Second)
	if exit := heard[*actorv1.Exited](s).GetExit(); exit.Code == nil || exit.GetCode() != 7 {
		t.Errorf("told as %v", exit)
	}
}

func TestRunThatWaitsIsGivenBackByAFencedNodeIfItNeverStarted(t *testing.T) {
	for _, state := range []string{"creating", "journaling starting"} {
		t.Run(state, func(t *testing.T) {
			s := newWaitingStation(t, state)
			s.deleteKey(s.keys.Node("n1"))
			s.watch()
			s.settle()
			s.live(10 * time.Second)
			if void := heard[*actorv1.Voided](s); void == nil {
				t.Error("not given back")
			}
		})
	}
}

// Where the store is an older copy the run may be somewhere else.
func TestRunThatWaitsIsStoppedWhenTheStoreHasGoneBack(t *testing.T) {
	s := newWaitingStation(t, "running")
	s.step(actors.Followed{Prefix: s.keys.AssignmentsOf("n1"), Batch: records.Batch{Reset: true, Revision: 1}})
	s.settle()
	s.live(2 * time.Second)
	if b := s.boxes[fenceBox]; b != nil && b.alive {
		t.Error("it runs")
	}
}

// A machine that somebody has said to be dead, and that comes back all the same, has given
// its runs away: it registers only when nothing of them runs any more.
func TestNodeThatWasSaidToBeDeadRegistersEmpty(t *testing.T) {
	for _, test := range []struct {
		name string
		back func(s *station)
	}{
		{name: "its daemon goes on", back: func(*station) {}},
		{name: "its daemon is started anew", back: func(s *station) { s.launch() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newWaitingStation(t, "running")
			session := s.machine.session
			s.cut()
			s.live(2 * time.Minute)
			s.guard()
			s.wantsRunning()
			s.deleteKey(s.keys.Node("n1"))
			s.sayDead("alice")
			s.lessor.err = nil
			s.hang = func(verb SandboxVerb) error {
				if verb == VerbKill || verb == VerbSignal {
					return records.Errorf(records.ClassUnavailable, "it does not answer")
				}
				return nil
			}
			test.back(s)
			s.live(20 * time.Second)
			if s.machine.session != 0 && s.machine.session != session {
				t.Fatalf("it registers as %d while what it has given away runs", s.machine.session)
			}
			if b := s.boxes[fenceBox]; b == nil || !b.alive {
				t.Fatal("it does not run any more")
			}
			s.hang = nil
			s.live(30 * time.Second)
			if s.machine.session == session || s.machine.session == 0 || s.machine.fenced() || s.machine.removed != nil {
				t.Fatalf("session %d after %d, fenced %t, removed %v", s.machine.session, session, s.machine.fenced(), s.machine.removed)
			}
			if b := s.boxes[fenceBox]; b != nil && b.alive {
				t.Error("it runs")
			}
			if exit := heard[*actorv1.Exited](s).GetExit(); exit == nil || exit.Code != nil || !strings.Contains(exit.GetMessage(), "alice had said that its machine was dead") {
				t.Errorf("told as %v", exit)
			}
			info := &recordv1.NodeInfo{}
			if err := records.Decode(s.store.keys[s.keys.NodeInfo("n1")], info); err != nil || info.GetRemoved() != nil {
				t.Errorf("its nodeinfo is %v, %v", info, err)
			}
		})
	}
}
