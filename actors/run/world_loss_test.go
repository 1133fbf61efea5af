package run

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// worldLoss is that of nodes that are quick, so that a walk sees losses.
var worldLoss = Loss{Window: 3 * time.Second, KillBudget: time.Second, Drift: 0.01}

// TestAnySequenceKeepsTheRulesWhereSessionsEnd is TestAnySequenceKeepsTheRules with
// nodes that lose their sessions, stop what they run as late as they may, and come
// back or not.
func TestAnySequenceKeepsTheRulesWhereSessionsEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorldOf(t, worldLoss)
		walk := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "walk"), 0))
		for range rapid.IntRange(actionsMax/10, actionsMax).Draw(t, "actions") {
			if walk.IntN(8) == 0 {
				w.actSession(walk.IntN(1 << 20))
			} else {
				w.act(walk.IntN(1 << 20))
			}
			w.checkWhy()
		}
		for _, n := range w.nodes {
			if walk.IntN(3) > 0 {
				n.comeBack()
			}
		}
		w.settle()
		w.checkWhy()
	})
}

func (w *world) actSession(how int) {
	n := w.nodes[how%2]
	switch how / 2 % 4 {
	case 0:
		if how/8%3 == 0 {
			n.loseSession()
		}
	case 1:
		n.stopLate(how/8%2 == 0)
	case 2:
		n.comeBack()
	default:
		w.pass(time.Duration(how%4_000) * time.Millisecond)
	}
}

// loseSession takes the node's key away. What it runs goes on for as long as it may.
func (n *node) loseSession() {
	key := n.world.keys.Node(n.name)
	if _, ok := n.world.store.keys[key]; !ok {
		return
	}
	n.world.store.txn(records.Txn{Then: []records.Op{{Kind: records.OpDelete, Key: key}}})
	n.goneAt[n.session] = n.world.now.Mono
	n.stopBy = n.world.now.Mono + worldLoss.After(worldLoss.Window)
}

// stopLate ends what the node runs when it must, or when it is told to before.
func (n *node) stopLate(now bool) {
	if n.stopBy == 0 || !now && n.world.now.Mono < n.stopBy {
		return
	}
	// What it had to end by then is dead by then, however far the clock has gone.
	ended := min(n.world.now.Mono, n.stopBy)
	n.stopBy = 0
	n.fenced = true
	for _, p := range n.slots() {
		switch e := n.journal[p]; {
		case e.void != nil || e.exit != nil:
		case e.started:
			e.exit = &recordv1.Exit{StartedAt: e.startedAt, At: max(e.startedAt, at(ended).Milli()), Fenced: true, Reason: recordv1.Reason_REASON_NODE_FENCED}
		default:
			e.void = &recordv1.Void{}
		}
	}
}

// comeBack opens another session, when nothing of the last one is left.
func (n *node) comeBack() {
	if n.stopBy > 0 {
		n.stopLate(true)
	}
	if !n.fenced {
		return
	}
	n.fenced = false
	n.world.store.txn(n.world.keys.Unregister(n.name, n.world.store.keys[n.world.keys.Node(n.name)].Mod))
	info := n.world.store.keys[n.world.keys.NodeInfo(n.name)].Mod
	n.world.store.txn(n.world.keys.Register(n.name, &recordv1.NodeSession{}, 0, info, &recordv1.NodeInfo{WindowMs: worldLoss.Window.Milliseconds()}))
	n.session = n.world.store.revision
	if kv, ok := n.assigned(); ok {
		held := &recordv1.Assignment{}
		if err := records.Decode(kv, held); err != nil {
			n.world.t.Fatal(err)
		}
		if n.journal[slotOf(held)] == nil {
			n.journal[slotOf(held)] = &entry{assignment: held, void: &recordv1.Void{}}
		}
	}
}

// lost tells whether a placement may be given up without a word of its node: its
// session is over, for so long that nothing of it can run.
func (n *node) lost(attempt int32, p *recordv1.Placement) bool {
	gone, over := n.goneAt[p.GetSession()]
	e := n.journal[slot{attempt, p.GetNumber()}]
	alive := e != nil && e.started && e.exit == nil
	return over && n.world.now.Mono-gone >= worldLoss.After(worldLoss.Window) && !alive
}
