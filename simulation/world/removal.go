package world

import (
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/history"
)

// sayAgain is how often an operator repeats a word that was not taken.
const sayAgain = 5 * time.Second

// removal is an operator who takes a node for dead, and says so until that is taken.
type removal struct {
	world         *World
	node, through string
	// over is set when his word was taken, or when he has given up.
	over bool
}

// sayDead lets somebody say through one node that another is dead; end makes him give up.
func (w *World) sayDead(node, through string) (end func()) {
	r := &removal{world: w, node: node, through: through}
	r.say()
	return func() { r.over = true }
}

// say is one try. It does what package api does: it reads who waits for the node, gives the
// word, which is refused while there is a session, and has those look for it.
func (r *removal) say() {
	if r.over {
		return
	}
	w := r.world
	w.timeline.After(sayAgain, r.say)
	s := w.seats[r.through]
	if s == nil || s.daemon == nil || s.daemon.stopping || s.daemon.assembled.Status().Session == 0 {
		return
	}
	d := s.daemon
	d.life.Deliver(func() {
		read := records.Read(records.Get(w.keys.Node(r.node)), records.Get(w.keys.NodeInfo(r.node)), records.Range(w.keys.AssignmentsOf(r.node)))
		d.calls.Txn(read, func(result records.Result) { r.decide(d, result) })
	})
}

func (r *removal) decide(d *daemon, result records.Result) {
	if result.Err != nil || r.over {
		return
	}
	kv, known := result.First(1)
	info := &recordv1.NodeInfo{}
	if _, there := result.First(0); there || !known || records.Decode(kv, info) != nil {
		return
	}
	if info.GetRemoved() != nil {
		r.taken(d, result.Responses[2].KVs)
		return
	}
	info.Removed = &recordv1.Removal{At: d.life.Clock().Now().Milli(), By: "operator"}
	d.calls.Txn(r.world.keys.Remove(r.node, kv.Mod, info), func(written records.Result) {
		if written.Err == nil && written.Succeeded {
			r.taken(d, result.Responses[2].KVs)
		}
	})
}

// taken wakes the runs that wait for the node.
func (r *removal) taken(d *daemon, assignments []records.KV) {
	r.over = true
	r.world.tell(history.KindFault, r.node, "is taken for dead")
	for _, kv := range assignments {
		assignment := &recordv1.Assignment{}
		if records.Decode(kv, assignment) == nil && assignment.GetSpec().GetRetry().GetOnNodeLoss() == recordv1.OnNodeLoss_ON_NODE_LOSS_WAIT {
			d.assembled.Router().Tell(actors.KindRun, assignment.GetRun(), &actorv1.Wake{Run: assignment.GetRun()})
		}
	}
}
