package nodes

import (
	"maps"
	"slices"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// labLease is a lease of the lab's store. It ends when the lab says so, never before
// its time.
type labLease struct {
	ttl     time.Duration
	expires time.Duration
}

// labLeases is the lease service: an honest leader, or one that was deposed and says
// yes to every KeepAlive.
type labLeases struct {
	next   int64
	leases map[int64]*labLease
	term   uint64
	// deposed answers in the term of before and renews nothing.
	deposed bool
	// full refuses every grant, as a store without space does, and answers all else.
	full bool
	err  error
}

// labFence is the fence's memory, which a reboot clears.
type labFence struct {
	state FenceState
	ok    bool
	arms  []FenceState
}

func (f *labFence) Load() (FenceState, bool) { return f.state, f.ok }

func (f *labFence) Arm(state FenceState) {
	if f.ok && f.state.Session == state.Session && f.state.FencedAt > 0 {
		state.FencedAt = f.state.FencedAt
	}
	f.state, f.ok = state, true
	f.arms = append(f.arms, state)
}

// newLeasedLab is a lab whose node is not alone.
func newLeasedLab() *lab {
	l := newLab()
	l.session = DefaultSession()
	return l
}

// answer carries a lease call out.
func (l *lab) answer(call CallLease) LeaseCalled {
	s := &l.lessor
	result := actors.LeaseResult{Lease: call.Op.Lease, Term: s.term}
	held := s.leases[call.Op.Lease]
	switch {
	case s.err != nil:
		result = actors.LeaseResult{Err: s.err}
	case call.Op.Verb == LeaseGrant && s.full:
		result = actors.LeaseResult{Err: records.Errorf(records.ClassUnavailable, "full")}
	case call.Op.Verb == LeaseGrant:
		s.next++
		result.Lease, result.TTL = s.next, call.Op.TTL
		s.leases[s.next] = &labLease{ttl: call.Op.TTL, expires: l.now.Boot + call.Op.TTL}
	case call.Op.Verb == LeaseKeepAlive && s.deposed:
		result.Term, result.TTL = s.term-1, l.session.Lease
	case held == nil:
		result = actors.LeaseResult{Err: records.Errorf(records.ClassNotFound, "no lease %d", call.Op.Lease)}
	case call.Op.Verb == LeaseKeepAlive:
		held.expires, result.TTL = l.now.Boot+held.ttl, held.ttl
	default:
		l.endLease(call.Op.Lease)
	}
	return LeaseCalled{Tag: call.Tag, Result: result}
}

// serve carries out a transaction of the node, unless that is cut off.
func (l *lab) serve(txn records.Txn) records.Result {
	if l.lessor.err != nil {
		return records.Result{Err: l.lessor.err}
	}
	return l.commit(txn)
}

// endLease ends a lease and what it holds.
func (l *lab) endLease(lease int64) {
	delete(l.lessor.leases, lease)
	for _, key := range slices.Sorted(maps.Keys(l.store.keys)) {
		if l.store.keys[key].Lease == lease {
			l.deleteKey(key)
		}
	}
}

func (l *lab) deleteKey(key string) {
	l.commit(records.Txn{Then: []records.Op{{Kind: records.OpDelete, Key: key}}})
}

// expire ends the leases whose time has come.
func (l *lab) expire() {
	for _, lease := range slices.Sorted(maps.Keys(l.lessor.leases)) {
		if l.now.Boot >= l.lessor.leases[lease].expires {
			l.endLease(lease)
		}
	}
}

// deadLease tells whether a transaction puts something under a lease that is gone,
// which the store refuses.
func (l *lab) deadLease(txn records.Txn) bool {
	return slices.ContainsFunc(txn.Then, func(op records.Op) bool {
		return op.Kind == records.OpPut && op.Lease != 0 && l.lessor.leases[op.Lease] == nil
	})
}

// guard is the process that kills in the daemon's stead when the deadline has come.
func (l *lab) guard() {
	f := &l.fence
	if !f.ok || l.now.Boot < f.state.Deadline {
		return
	}
	if f.state.FencedAt == 0 {
		f.state.FencedAt = l.now.Boot
	}
	for _, id := range slices.Sorted(maps.Keys(l.boxes)) {
		if l.boxes[id].alive && !l.boxes[id].unfenced {
			l.drive(SandboxOp{Verb: VerbKill, ID: id})
		}
	}
}

// window is how long others wait for the node by what nodeinfo says, less the kill and
// the drift.
func (l *lab) window() time.Duration {
	info := &recordv1.NodeInfo{}
	if err := records.Decode(l.store.keys[l.keys.NodeInfo("n1")], info); err != nil {
		panic(err)
	}
	return time.Duration(info.GetWindowMs()) * time.Millisecond
}

// beyond says by how much the fence reaches further than whoever saw the session's end
// now would wait. Nothing else keeps two attempts apart.
func (l *lab) beyond() time.Duration {
	kv, ok := l.key()
	if f := l.fence; ok && f.ok && f.state.Session == kv.Create && f.state.FencedAt == 0 {
		return f.state.Deadline - l.now.Boot - l.window()
	}
	return 0
}

// key is the node's session in the store.
func (l *lab) key() (records.KV, bool) {
	kv, ok := l.store.keys[l.keys.Node("n1")]
	return kv, ok
}
