package nodes

import (
	"context"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
)

// Leave readies the node for the end of its daemon, before Close: from here on it takes
// nothing more, and what runs may go on without a daemon for as long as
// SessionConfig.RestartMax says. It returns when the node has that time, or none that
// it could have. When the context ends before, what runs has the time of any other
// silence. It may be called again.
func (n *Node) Leave(ctx context.Context) error {
	if n.config.Session.Lease <= 0 {
		return nil // the session has no end
	}
	n.mu.Lock()
	if !n.leaving {
		n.leaving = true
		if n.deliver != nil {
			n.deliver(Leave{})
		} else {
			n.left = true // there is no session to leave
		}
	}
	n.mu.Unlock()
	for {
		n.mu.Lock()
		left, changed := n.left, n.changed
		n.mu.Unlock()
		if left {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return records.Errorf(records.ClassDeadline, "node %s has no longer than %s until a daemon must be back: %w", n.config.ID, n.config.Session.Window(), ctx.Err())
		}
	}
}

func (n *Node) noteLeft() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.left = true
	close(n.changed)
	n.changed = make(chan struct{})
}

// performSession carries out the effects by which the node actor holds a session
// that has a lease.
func (n *Node) performSession(effect actors.Effect, deliver func(actors.Input)) bool {
	switch e := effect.(type) {
	case CallLease:
		n.callLease(e, func(result actors.LeaseResult) { deliver(LeaseCalled{Tag: e.Tag, Result: result}) })
	case ReadFence:
		state, ok := n.ports.Fence.Load()
		deliver(FenceRead{Tag: e.Tag, State: state, OK: ok})
	case ArmFence:
		n.ports.Fence.Arm(e.State)
		state, ok := n.ports.Fence.Load()
		deliver(FenceRead{Tag: e.Tag, State: state, OK: ok})
	case Left:
		n.noteLeft()
	default:
		return false
	}
	return true
}

func (n *Node) callLease(call CallLease, deliver func(actors.LeaseResult)) {
	switch call.Op.Verb {
	case LeaseGrant:
		n.ports.Leases.Grant(call.Op.TTL, deliver)
	case LeaseKeepAlive:
		n.ports.Leases.KeepAlive(call.Op.Lease, deliver)
	default:
		n.ports.Leases.Revoke(call.Op.Lease, deliver)
	}
}
