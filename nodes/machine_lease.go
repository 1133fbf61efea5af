package nodes

import (
	"fmt"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

func (m *Machine) call(op LeaseOp, then func(actors.LeaseResult)) {
	tag := m.nextTag()
	m.leases[tag] = then
	m.emit(CallLease{Tag: tag, Op: op})
}

// window is how long after a moment before a lease was granted or renewed its
// session may run sandboxes: never more than nodeinfo tells others to wait for.
func (m *Machine) window(ttl time.Duration) time.Duration {
	window := min(m.config.Session.Lease, ttl) - m.config.Session.Margin
	if m.tenure.windowMax > 0 {
		return min(window, m.tenure.windowMax)
	}
	return window
}

// grant makes the lease of a session to come and says until when that may run
// sandboxes; in solo there is none and no end.
func (m *Machine) grant(try int, then func(lease int64, deadline time.Duration)) {
	if !m.leased() {
		then(0, 0)
		return
	}
	m.tenure.windowMax = 0
	before := m.now.Boot
	m.call(LeaseOp{Verb: LeaseGrant, TTL: m.config.Session.Lease}, func(result actors.LeaseResult) {
		if result.Err != nil {
			m.registerAgain(try, fmt.Errorf("grant lease: %w", result.Err))
			return
		}
		then(result.Lease, before+m.window(result.TTL))
	})
}

// holds tells whether a session is held by a lease of this journal's.
func (m *Machine) holds(kv records.KV) bool {
	return kv.Lease != 0 && (kv.Lease == m.meta.GetLease() || kv.Lease == m.meta.GetRestartLease())
}

// hold takes a new session as this node's until a deadline, and renews it from then
// on. Nothing runs in it yet.
func (m *Machine) hold(session int64, deadline time.Duration) {
	if m.leased() {
		m.tenure.fence = FenceState{BootID: m.config.BootID, Session: session, Deadline: deadline}
		m.arm(m.tenure.fence)
		m.keep()
	}
}

// extend moves the deadline of the session on.
func (m *Machine) extend(deadline time.Duration) { m.extendThen(deadline, func() {}) }

// extendThen goes on when the fence has been moved, or is found to have fired.
func (m *Machine) extendThen(deadline time.Duration, then func()) {
	next := m.tenure.fence
	if deadline <= next.Deadline {
		then()
		return
	}
	next.Deadline = deadline
	m.armThen(next, then)
}

// shorten moves the deadline of the session nearer, and goes on when the fence holds
// it, or is found to have fired.
func (m *Machine) shorten(deadline time.Duration, then func()) {
	next := m.tenure.fence
	if deadline >= next.Deadline {
		then()
		return
	}
	next.Deadline = deadline
	m.tenure.fence = next
	m.armThen(next, then)
}

// keep begins to renew the session and to watch its deadline.
func (m *Machine) keep() {
	m.tenure.failures = 0
	m.cancel("fence/sync")
	m.cancel("fence/kill")
	m.watchFence()
	session := m.tenure.fence.Session
	m.after("renew", min(m.config.Session.Renew, (m.tenure.fence.Deadline-m.now.Boot)/3), func() { m.renew(session) })
}

// renew asks for the lease to be renewed, and then reads whether it was: a leader
// that was deposed may say yes to anything. The new deadline counts from before the
// request was sent, for the store may have taken it at once.
func (m *Machine) renew(session int64) {
	before := m.now.Boot
	ours := func() bool { return m.session == session && !m.fenced() && !m.leaving }
	if !ours() {
		return
	}
	m.call(LeaseOp{Verb: LeaseKeepAlive, Lease: m.meta.GetLease()}, func(kept actors.LeaseResult) {
		if !ours() {
			return
		}
		m.commit(records.Read(records.Get(m.keys.Node(m.config.ID))), func(read records.Result) {
			if !ours() {
				return
			}
			m.confirm(before, kept, read)
			if ours() {
				m.after("renew", before+m.config.Session.Renew-m.now.Boot, func() { m.renew(session) })
			}
		})
	})
}

// confirm judges a renewal by the read that was sent after it.
func (m *Machine) confirm(before time.Duration, kept actors.LeaseResult, read records.Result) {
	kv, exists := read.First(0)
	switch {
	case read.Err != nil:
		m.notRenewed(fmt.Errorf("confirm renewal: %w", read.Err))
	case !exists || kv.Create != m.session:
		m.latch("its session is gone from the store")
	case kept.Err != nil:
		m.notRenewed(fmt.Errorf("renew lease: %w", kept.Err))
	case !sameTerm(kept, read):
		m.notRenewed(fmt.Errorf("renew lease: answered in term %d and read in term %d: it may have renewed nothing", kept.Term, read.Term))
	case kv.Lease != m.meta.GetLease():
		m.notRenewed(fmt.Errorf("renew lease: the session's key is not held by it"))
	default:
		if m.tenure.failures > 0 {
			m.tenure.failures, m.trouble = 0, ""
			m.log(actors.LogInfo, "session is renewed again", "session", m.session)
		}
		m.extend(before + m.window(kept.TTL))
	}
}

// sameTerm tells whether a lease call and what was read or written after it were
// answered under one leader. An answer without a term proves nothing.
func sameTerm(call actors.LeaseResult, result records.Result) bool {
	return call.Term != 0 && call.Term == result.Term
}

func (m *Machine) notRenewed(err error) {
	left := m.tenure.fence.Deadline - m.now.Boot
	m.trouble = fmt.Sprintf("the session is not renewed and ends in %s: %v", left.Round(time.Second), err)
	if m.tenure.failures++; m.tenure.failures == 1 {
		m.log(actors.LogWarn, "session is not renewed", "left", left, "error", err.Error())
	}
}

// resumeLeased goes on with a session of before if its lease can be renewed before
// its deadline. The write that resumes it is the proof that it was.
//
// One that a planned restart has put under its longer lease goes back to the ordinary
// one.
func (m *Machine) resumeLeased(kv records.KV, session *recordv1.NodeSession, info *recordv1.NodeInfo, infoMod int64, try int) {
	if kv.Lease != m.meta.GetLease() {
		m.comeBack(kv, session, infoMod, try)
		return
	}
	m.tenure.windowMax = time.Duration(info.GetWindowMs()) * time.Millisecond
	before := m.now.Boot
	m.call(LeaseOp{Verb: LeaseKeepAlive, Lease: kv.Lease}, func(kept actors.LeaseResult) {
		if kept.Err != nil {
			m.registerAgain(try, fmt.Errorf("renew lease: %w", kept.Err))
			return
		}
		txn := m.keys.Resume(m.config.ID, kv.Mod, m.describe(session.GetGeneration(), session.GetRegisteredAt()), kv.Lease)
		m.commit(txn, func(result records.Result) {
			switch {
			case result.Err != nil || !result.Succeeded:
				m.registerAgain(try, result.Err)
			case m.fenced():
				m.registerTry(try + 1)
			case !sameTerm(kept, result):
				m.registerAgain(try, fmt.Errorf("renew lease: answered in term %d and confirmed in term %d", kept.Term, result.Term))
			default:
				m.extend(before + m.window(kept.TTL))
				m.keep()
				m.opened(kv.Create)
			}
		})
	})
}

// endSession takes a session of this node out of the store, when no process of it is
// left: by its lease, so that nothing of it stays, or by its key if the lease is not
// this journal's.
func (m *Machine) endSession(kv records.KV, try int) {
	ended := func(err error) {
		if err != nil && records.ClassOf(err) != records.ClassNotFound {
			m.registerAgain(try, fmt.Errorf("end the session of before: %w", err))
			return
		}
		m.registerTry(try + 1)
	}
	if m.leased() && m.holds(kv) {
		m.call(LeaseOp{Verb: LeaseRevoke, Lease: kv.Lease}, func(result actors.LeaseResult) { ended(result.Err) })
		return
	}
	m.commit(m.keys.Unregister(m.config.ID, kv.Mod), func(result records.Result) { ended(result.Err) })
}
