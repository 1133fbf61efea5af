package records

import recordv1 "github.com/errand-run/errand/messages/errand/record/v1"

// LoadSession reads a node's session, its nodeinfo and its drain, in this order.
func (k Keys) LoadSession(node string) Txn {
	return Read(Get(k.Node(node)), Get(k.NodeInfo(node)), Get(k.Drain(node)))
}

// Register opens a session: the revision of this transaction. In solo the key has
// no lease. infoMod is the revision at which nodeinfo was read, 0 if absent. Its
// Else answers what LoadSession does.
func (k Keys) Register(node string, session *recordv1.NodeSession, lease, infoMod int64, info *recordv1.NodeInfo) Txn {
	register := put(k.Node(node), Encode(session))
	register.Lease = lease
	return Txn{
		If:   []Compare{absent(k.Node(node)), unchanged(k.NodeInfo(node), infoMod)},
		Then: []Op{register, put(k.NodeInfo(node), Encode(info))},
		Else: k.LoadSession(node).Then,
	}
}

// Alone makes a registration one that only comes about when no node has a session.
func (k Keys) Alone(register Txn) Txn {
	register.If = append(register.If, Compare{Key: k.Nodes(), Prefix: true, Target: TargetCreate, Relation: Equal})
	return register
}

// Unregister ends a session that was seen at mod. Only its own node does this,
// and only when its sandboxes are seen empty.
func (k Keys) Unregister(node string, mod int64) Txn {
	return Txn{If: []Compare{unchanged(k.Node(node), mod)}, Then: []Op{del(k.Node(node))}, Else: k.LoadSession(node).Then}
}

// Remove takes the word that a node's machine is dead, which has no session and whose
// nodeinfo was read at infoMod: info is that nodeinfo with the word. Its Else answers what
// LoadSession does. The word and a session exclude each other, so whoever reads the word
// knows that it is about the session of before.
func (k Keys) Remove(node string, infoMod int64, info *recordv1.NodeInfo) Txn {
	return Txn{
		If:   []Compare{absent(k.Node(node)), unchanged(k.NodeInfo(node), infoMod)},
		Then: []Op{put(k.NodeInfo(node), Encode(info)), del(k.Drain(node))},
		Else: k.LoadSession(node).Then,
	}
}

// Resume updates what a session says of its node (address, version) and keeps
// the session.
func (k Keys) Resume(node string, mod int64, session *recordv1.NodeSession, lease int64) Txn {
	resume := put(k.Node(node), Encode(session))
	resume.Lease = lease
	return Txn{If: []Compare{unchanged(k.Node(node), mod)}, Then: []Op{resume}, Else: k.LoadSession(node).Then}
}

// Relet puts a session that was seen at mod under another lease and says in nodeinfo,
// which was read at infoMod, for how long its node may go on without a word. Both move
// together, since whoever sees the session's end waits for as long as nodeinfo says.
func (k Keys) Relet(node string, mod int64, session *recordv1.NodeSession, lease, infoMod int64, info *recordv1.NodeInfo) Txn {
	txn := k.Resume(node, mod, session, lease)
	txn.If = append(txn.If, unchanged(k.NodeInfo(node), infoMod))
	txn.Then = append(txn.Then, put(k.NodeInfo(node), Encode(info)))
	return txn
}

// Found creates meta/cluster unless it exists. Its Else answers it.
func (k Keys) Found(cluster *recordv1.Cluster) Txn {
	return Txn{If: []Compare{absent(k.Cluster())}, Then: []Op{put(k.Cluster(), Encode(cluster))}, Else: []Op{Get(k.Cluster())}}
}
