package mutation

import (
	"strings"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes"
)

// store changes what passes between a node and its store. Each function may be nil.
type store struct {
	actors.Store
	// before changes a transaction on its way out.
	before func(records.Txn) records.Txn
	// after changes its result.
	after func(sent records.Txn, result records.Result) records.Result
	// batch changes what a follower hears; false keeps it from him.
	batch func(prefix string, batch records.Batch) (records.Batch, bool)
}

func (s store) Txn(txn records.Txn, deliver func(records.Result)) {
	if s.before != nil {
		txn = s.before(txn)
	}
	if s.after != nil {
		then := deliver
		deliver = func(result records.Result) { then(s.after(txn, result)) }
	}
	s.Store.Txn(txn, deliver)
}

func (s store) Follow(prefix string, deliver func(records.Batch)) (stop func()) {
	if s.batch == nil {
		return s.Store.Follow(prefix, deliver)
	}
	return s.Store.Follow(prefix, func(batch records.Batch) {
		if changed, ok := s.batch(prefix, batch); ok {
			deliver(changed)
		}
	})
}

// kindOf is the first part of a key: runs, live, nodes, assignments.
func kindOf(key string) string {
	kind, _, _ := strings.Cut(strings.TrimPrefix(key, records.RootDefault), "/")
	return kind
}

// withoutCompares leaves out the conditions that drop tells.
func withoutCompares(txn records.Txn, drop func(records.Compare) bool) records.Txn {
	kept := make([]records.Compare, 0, len(txn.If))
	for _, compare := range txn.If {
		if !drop(compare) {
			kept = append(kept, compare)
		}
	}
	txn.If = kept
	return txn
}

// withOps changes the operations of the successful branch; false leaves one out.
func withOps(txn records.Txn, change func(records.Op) (records.Op, bool)) records.Txn {
	kept := make([]records.Op, 0, len(txn.Then))
	for _, op := range txn.Then {
		if changed, ok := change(op); ok {
			kept = append(kept, changed)
		}
	}
	txn.Then = kept
	return txn
}

// ends tells whether a transaction makes a run terminal.
func ends(txn records.Txn) bool {
	for _, op := range txn.Then {
		if op.Kind == records.OpDelete && kindOf(op.Key) == "live" {
			return true
		}
	}
	return false
}

// sandboxes changes what passes between a node and its drivers.
type sandboxes struct {
	nodes.Sandboxes
	// do is called instead of the driver; it may call next.
	do func(op nodes.SandboxOp, deliver func(nodes.SandboxResult), next func(nodes.SandboxOp, func(nodes.SandboxResult)))
}

func (s sandboxes) Do(op nodes.SandboxOp, deliver func(nodes.SandboxResult)) {
	s.do(op, deliver, s.Sandboxes.Do)
}

// journal changes what passes between a node and its disk.
type journal struct {
	nodes.Journal
	write func(change nodes.JournalChange, deliver func(error), next func(nodes.JournalChange, func(error)))
}

func (j journal) Write(change nodes.JournalChange, deliver func(error)) {
	j.write(change, deliver, j.Journal.Write)
}

// leases changes what the lease service answers.
type leases struct {
	actors.Leases
	keepAlive func(lease int64, deliver func(actors.LeaseResult), next func(int64, func(actors.LeaseResult)))
}

func (l leases) KeepAlive(lease int64, deliver func(actors.LeaseResult)) {
	l.keepAlive(lease, deliver, l.Leases.KeepAlive)
}

// fence changes what the fence's memory is told and says.
type fence struct {
	nodes.Fence
	arm  func(nodes.FenceState) nodes.FenceState
	load func(nodes.FenceState) nodes.FenceState
}

func (f fence) Arm(state nodes.FenceState) {
	if f.arm != nil {
		state = f.arm(state)
	}
	f.Fence.Arm(state)
}

func (f fence) Load() (nodes.FenceState, bool) {
	state, ok := f.Fence.Load()
	if f.load != nil && ok {
		state = f.load(state)
	}
	return state, ok
}
