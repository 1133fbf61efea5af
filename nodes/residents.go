package nodes

import (
	"strconv"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/actors/deadline"
	ranking "github.com/errand-run/errand/cluster/placement"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
)

// viewLook is how often a node looks whether its view of the others has changed.
const viewLook = time.Second

// residents are the actors of this node that work without being asked: of each
// shard one here if the node is among the first in rank for it. Who leaves the
// ranks does so itself, once it is told to look.
type residents struct {
	// view is the one that they were last told of.
	view *ranking.View
	// told are the shards whose actors may be here.
	told map[int32]bool
	// stop ends the wait for the next look; nil when there is none.
	stop   func()
	closed bool
}

// keepResidents activates the actors that work without being asked, and goes on to
// do so as the view changes.
func (n *Node) keepResidents() {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := &n.residents
	if r.closed {
		return
	}
	if r.stop != nil {
		r.stop()
	}
	r.view = nil // tell all again, whoever restarted
	n.lookAtView()
}

func (n *Node) lookAtView() {
	r := &n.residents
	if view := n.view.View(); view != r.view {
		r.view = view
		n.tellResidents()
	}
	if n.ports.Transport == nil {
		return
	}
	r.stop = n.ports.Clock.After(viewLook, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if !r.closed {
			n.lookAtView()
		}
	})
}

// tellResidents tells those that belong here, and those that did, to look.
func (n *Node) tellResidents() {
	told := map[int32]bool{}
	for shard := range n.config.Keys.Shards {
		identity := strconv.Itoa(int(shard))
		rank := n.residents.view.Rank(n.config.ID, actors.KindDeadline, identity)
		belongs := rank > 0 && rank <= deadline.RanksMax
		if belongs {
			told[shard] = true
		}
		if belongs || n.residents.told[shard] {
			n.directory.TellAt(n.config.ID, actors.KindDeadline, identity, &actorv1.Activate{})
		}
	}
	n.residents.told = told
}

// leaveResidents ends the looking.
func (n *Node) leaveResidents() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.residents.closed = true
	if n.residents.stop != nil {
		n.residents.stop()
	}
}
