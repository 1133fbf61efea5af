package run

import (
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
)

const (
	actionsMax    = 400
	inTransitMax  = 30
	calmSeconds   = 120
	messagesASlot = 40
)

// TestAnySequenceKeepsTheRules plays random inputs and faults, checks every
// transaction and every message, then ends the faults and waits for the run's end.
func TestAnySequenceKeepsTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		// Drawn one by one, numbers are mostly small and walks mostly dull.
		walk := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "walk"), 0))
		for range rapid.IntRange(actionsMax/10, actionsMax).Draw(t, "actions") {
			w.act(walk.IntN(1 << 20))
			w.checkWhy()
		}
		w.settle()
		w.checkWhy()
	})
}

// act carries one drawn action out; its low part says which, the rest how.
func (w *world) act(a int) {
	which, how := a%20, a/20
	i, n := how%2, w.nodes[how%2]
	switch which {
	case 0, 1, 2, 3:
		w.commit(i, 3+how%4)
	case 4:
		if how%8 < 4 {
			w.commit(i, how/2%3)
		}
	case 5, 6, 7:
		w.deliverToRun(i, how/2)
	case 8, 9, 10:
		w.deliverToNode(how)
	case 11:
		if how%4 == 0 {
			w.step(i, actors.Received{Message: &actorv1.Attended{Run: testID}})
			return
		}
		w.step(i, actors.Received{Message: &actorv1.Wake{Run: testID}})
		if how%8 == 0 {
			w.toRun = append(w.toRun, &actorv1.Quarantined{Run: testID, Attempt: 1, Placement: 1, Node: n.name, Since: int64(how/8%3) + 1, Reason: "nobody knows it"})
		}
	case 12:
		n.sync()
	case 13:
		n.start()
	case 14:
		if how%8 >= 4 {
			return
		}
		n.exit(int32(how/16%4) - 1)
	case 15:
		n.report(how%3 == 0)
	case 16:
		n.refuseToStart(how%16 == 0)
	case 17:
		if how%16 == 0 {
			w.canceled = true
			w.step(i, actors.Received{Message: &actorv1.Cancel{Run: testID, By: "ann", Force: how%32 == 0}, From: "caller"})
		}
		w.land(how)
	case 18:
		w.pass(time.Duration(how%1_200) * time.Millisecond)
	default:
		switch how % 4 {
		case 0:
			w.activate(i)
		case 1:
			w.now.WallHealthy = !w.now.WallHealthy
		case 2:
			w.land(how)
		default:
			w.lose(how)
		}
	}
}

// deliverToRun takes any message on its way; every third stays on it.
func (w *world) deliverToRun(i, how int) {
	if len(w.toRun) == 0 {
		return
	}
	at := how % len(w.toRun)
	message := w.toRun[at]
	if how%3 != 0 || len(w.toRun) > inTransitMax {
		w.toRun = append(w.toRun[:at:at], w.toRun[at+1:]...)
	}
	w.step(i, actors.Received{Message: proto.Clone(message)})
}

func (w *world) deliverToNode(how int) {
	if len(w.toNode) == 0 {
		return
	}
	at := how % len(w.toNode)
	m := w.toNode[at]
	if how%3 != 0 || len(w.toNode) > inTransitMax {
		w.toNode = append(w.toNode[:at:at], w.toNode[at+1:]...)
	}
	w.node(m.node).receive(m.message, how%4 != 0)
}

func (w *world) lose(how int) {
	if how%2 == 0 {
		w.toRun = nil
	} else {
		w.toNode = nil
	}
}

// land carries out a transaction that its sender has given up on.
func (w *world) land(how int) {
	if len(w.landing) == 0 {
		return
	}
	at := how % len(w.landing)
	txn := w.landing[at]
	w.landing = append(w.landing[:at:at], w.landing[at+1:]...)
	w.store.txn(txn)
}

// settle ends the faults: every run must end, and its nodes be acknowledged.
func (w *world) settle() {
	w.now.WallHealthy = true
	for range calmSeconds {
		w.step(0, actors.Received{Message: &actorv1.Wake{Run: testID}})
		for range messagesASlot {
			w.commit(0, 3)
			w.commit(1, 3)
			w.deliverToRun(0, 1)
			w.deliverToNode(1)
		}
		for _, n := range w.nodes {
			n.sync()
			n.start()
			n.report(false)
			n.exit(0)
		}
		w.pass(time.Second)
		if records.Terminal(w.run().GetStatus()) && w.acknowledged() {
			return
		}
	}
	for _, n := range w.nodes {
		for p, e := range n.journal {
			w.t.Logf("%s/%d: %+v", n.name, p, e)
		}
	}
	w.t.Fatalf("the run does not end: %v\n%+v", w.run(), w.actors[0].machine)
}

func (w *world) acknowledged() bool {
	for _, n := range w.nodes {
		for _, e := range n.journal {
			if !e.acked {
				return false
			}
		}
	}
	return true
}
