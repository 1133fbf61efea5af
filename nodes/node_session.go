package nodes

import "github.com/errand-run/errand/actors"

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
