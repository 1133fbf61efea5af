package records

import recordv1 "github.com/errand-run/errand/messages/errand/record/v1"

// Get reads one key.
func Get(key string) Op { return Op{Kind: OpGet, Key: key} }

// Range reads every key below a prefix.
func Range(prefix string) Op { return Op{Kind: OpGet, Key: prefix, Prefix: true} }

func put(key string, value []byte) Op { return Op{Kind: OpPut, Key: key, Value: value} }

func del(key string) Op { return Op{Kind: OpDelete, Key: key} }

func absent(key string) Compare {
	return Compare{Key: key, Target: TargetCreate, Relation: Equal}
}

func unchanged(key string, mod int64) Compare {
	return Compare{Key: key, Target: TargetMod, Relation: Equal, Operand: mod}
}

// Read is the transaction that only reads.
func Read(ops ...Op) Txn { return Txn{Then: ops} }

// Create records a run that must not exist nor have existed. Its Else answers
// the record and the tombstone, in this order.
func (k Keys) Create(run *recordv1.Run, nextWakeMs int64) Txn {
	key, gone := k.Run(run.GetId()), k.Gone(run.GetId())
	return Txn{
		Change: ChangeCreate,
		If:     []Compare{absent(key), absent(gone)},
		Then:   []Op{put(key, Encode(run)), k.putLive(run, nextWakeMs)},
		Else:   []Op{Get(key), Get(gone)},
	}
}

// Place commits a run to a node's session: once, while the node is not draining.
// Its Else answers the record, the node's session and its drain, in this order.
func (k Keys) Place(run *recordv1.Run, mod, nextWakeMs int64, assignment *recordv1.Assignment) Txn {
	node, id := run.GetPlacement().GetNode(), run.GetId()
	key, session, drain, assigned := k.Run(id), k.Node(node), k.Drain(node), k.Assignment(node, id)
	conditions := []Compare{
		unchanged(key, mod),
		{Key: session, Target: TargetCreate, Relation: Equal, Operand: assignment.GetSession()},
		absent(drain),
		absent(assigned),
	}
	for _, gate := range run.GetGates() {
		conditions = append(conditions, Compare{Key: k.Slot(gate, id), Target: TargetCreate, Relation: NotEqual})
	}
	return Txn{
		Change: ChangePlace,
		If:     conditions,
		Then:   []Op{put(key, Encode(run)), k.putLive(run, nextWakeMs), put(assigned, Encode(assignment))},
		Else:   []Op{Get(key), Get(session), Get(drain)},
	}
}

// Unplace takes a run off the node that it provably left: after a void, or for a
// retry. It frees the slots; a later requeue asks for them again.
func (k Keys) Unplace(run *recordv1.Run, mod, nextWakeMs int64, node string) Txn {
	id := run.GetId()
	then := []Op{put(k.Run(id), Encode(run)), k.putLive(run, nextWakeMs), del(k.Assignment(node, id))}
	for _, gate := range run.GetGates() {
		then = append(then, del(k.Slot(gate, id)))
	}
	return k.change(ChangeUnplace, run, mod, then)
}

// Update changes a run that stays where it is: Started, or a new hold reason.
func (k Keys) Update(run *recordv1.Run, mod, nextWakeMs int64) Txn {
	return k.change(ChangeUpdate, run, mod, []Op{put(k.Run(run.GetId()), Encode(run)), k.putLive(run, nextWakeMs)})
}

// Wish records that the run shall end and tells its node by the assignment. The
// assignment keeps its create revision, and with it the fencing token.
func (k Keys) Wish(run *recordv1.Run, mod, nextWakeMs int64, node string, assignment *recordv1.Assignment) Txn {
	id := run.GetId()
	return k.change(ChangeWish, run, mod, []Op{
		put(k.Run(id), Encode(run)), k.putLive(run, nextWakeMs), put(k.Assignment(node, id), Encode(assignment)),
	})
}

// End makes a run terminal and frees everything it held, in one transaction (G4,
// G5). The node is where it was placed, empty if it was not.
func (k Keys) End(run *recordv1.Run, mod int64, node string) Txn {
	id := run.GetId()
	const mostEnds = 4 // of a run without gates and task
	then := append(make([]Op, 0, mostEnds), put(k.Run(id), Encode(run)), del(k.Live(id)))
	if node != "" {
		then = append(then, del(k.Assignment(node, id)))
	}
	for _, gate := range run.GetGates() {
		then = append(then, del(k.Queue(gate, id)), del(k.Slot(gate, id)))
	}
	if run.GetTask() != "" {
		then = append(then, del(k.Overlap(run.GetApp(), run.GetTask(), id)))
	}
	history := Encode(&recordv1.History{Status: run.GetStatus(), Name: run.GetName()})
	class := ClassOfTrigger(run.GetTrigger())
	then = append(then, put(k.History(id, run.GetApp(), class, run.GetEndedAt()), history))
	return k.change(ChangeEnd, run, mod, then)
}

// Note changes a terminal run's record without touching anything else: a late
// exit.
func (k Keys) Note(run *recordv1.Run, mod int64) Txn {
	return k.change(ChangeNote, run, mod, []Op{put(k.Run(run.GetId()), Encode(run))})
}

// Lose ends the attempt of a run whose node's session is over: as End does, or as
// Unplace where another attempt follows, but only while the node has another session
// or none. Its Else answers the record and the node's session, in this order.
func (k Keys) Lose(run *recordv1.Run, mod, nextWakeMs int64, node string, session int64) Txn {
	txn := k.Unplace(run, mod, nextWakeMs, node)
	if Terminal(run.GetStatus()) {
		txn = k.End(run, mod, node)
	}
	txn.If = append(txn.If, Compare{Key: k.Node(node), Target: TargetCreate, Relation: NotEqual, Operand: session})
	txn.Else = append(txn.Else, Get(k.Node(node)))
	return txn
}

// putLive says whose session the run depends on, so that its end is noticed.
func (k Keys) putLive(run *recordv1.Run, nextWakeMs int64) Op {
	return put(k.Live(run.GetId()), Encode(&recordv1.Live{
		NextWake: nextWakeMs, Node: run.GetPlacement().GetNode(), Session: run.GetPlacement().GetSession(),
	}))
}

// change guards every write but a create: the record is as it was read, and it
// was read as existing, so that no actor brings a deleted run back.
func (k Keys) change(name Change, run *recordv1.Run, mod int64, then []Op) Txn {
	if mod <= 0 {
		panic("records: a change of run " + run.GetId() + " without the revision that was read")
	}
	key := k.Run(run.GetId())
	return Txn{Change: name, If: []Compare{unchanged(key, mod)}, Then: then, Else: []Op{Get(key)}}
}
