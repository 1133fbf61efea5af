package nodes

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// A planned restart (protocol.md section 6): what runs here goes on while there is no
// daemon, for longer than the node may be silent otherwise.
//
// Whoever sees the session's end waits for as long as nodeinfo says before he takes for
// gone what ran in it. So the fence never reaches further than that: on the way out the
// store is told of the longer window first and the fence is moved by it then; on the
// way back the fence is moved nearer first and the store is told then. What is cut in
// between leaves a fence that comes earlier than others believe.

// leave asks for the time of a planned restart. It gives nothing up: when that can not
// be had, what runs has the time that it would have without a word.
func (m *Machine) leave() {
	if m.leaving {
		if m.left {
			m.emit(Left{})
		}
		return
	}
	m.leaving = true
	m.cancel("renew")
	if !m.leaves() || m.config.Session.WindowMax() <= m.config.Session.Window() {
		m.mayEnd()
		return
	}
	m.leaveTry(0)
}

// leaves tells whether the node has a session to leave.
func (m *Machine) leaves() bool {
	return m.leased() && m.session != 0 && m.phase >= PhaseRegistered && !m.fenced() && m.tenure.fence.Session == m.session
}

// mayEnd says that the daemon may end.
func (m *Machine) mayEnd() {
	m.left = true
	m.emit(Left{})
}

// leaveAgain tries once more, for as long as somebody waits for it.
func (m *Machine) leaveAgain(try int, err error) {
	if try == 0 {
		m.log(actors.LogWarn, "more time for a restart can not be had; it is tried again", "error", err.Error())
	}
	m.after("leave", backoff(try), func() { m.leaveTry(try + 1) })
}

// leaveTry makes the longer lease, if there is none yet. The journal knows it before
// the store does: the next daemon resumes no session that is held by another's.
func (m *Machine) leaveTry(try int) {
	if !m.leaves() {
		m.mayEnd()
		return
	}
	if m.tenure.restart > 0 {
		m.lengthen(try)
		return
	}
	m.call(LeaseOp{Verb: LeaseGrant, TTL: m.config.Session.RestartMax}, func(granted actors.LeaseResult) {
		if granted.Err != nil {
			m.leaveAgain(try, fmt.Errorf("grant lease: %w", granted.Err))
			return
		}
		window := (min(m.config.Session.RestartMax, granted.TTL) - m.config.Session.Margin).Truncate(time.Millisecond)
		m.meta.RestartLease = granted.Lease
		m.journal(JournalChange{Meta: proto.CloneOf(m.meta)}, func() {
			m.tenure.restart = window
			m.leaveTry(try)
		})
	})
}

// lengthen puts the session under the longer lease and says so in nodeinfo, in one
// transaction, and then moves the fence: by a moment before what showed that the store
// has it. An outcome that is not known shows in the read of the next try.
func (m *Machine) lengthen(try int) {
	before := m.now.Boot
	m.commit(m.keys.LoadSession(m.config.ID), func(loaded records.Result) {
		kv, exists := loaded.First(loadedSession)
		session, info := &recordv1.NodeSession{}, &recordv1.NodeInfo{}
		infoKV, known := loaded.First(loadedInfo)
		switch {
		case !m.leaves():
			m.mayEnd()
			return
		case loaded.Err != nil:
			m.leaveAgain(try, fmt.Errorf("read session: %w", loaded.Err))
			return
		case !exists || kv.Create != m.session || !m.holds(kv) || !known || records.Decode(kv, session) != nil || records.Decode(infoKV, info) != nil:
			// The session is over, or not as this node has put it: it is left as it is.
			m.mayEnd()
			return
		case kv.Lease == m.meta.GetRestartLease():
			m.extendThen(before+m.tenure.restart, m.mayEnd)
			return
		}
		before = m.now.Boot
		txn := m.keys.Relet(m.config.ID, kv.Mod, session, m.meta.GetRestartLease(), infoKV.Mod, m.info(info.GetGeneration(), m.tenure.restart))
		m.commit(txn, func(result records.Result) {
			switch {
			case !m.leaves():
				m.mayEnd()
			case result.Err != nil || !result.Succeeded:
				m.leaveAgain(try, fmt.Errorf("put the session under the lease of a restart: %w", orMoved(result.Err)))
			default:
				m.extendThen(before+m.tenure.restart, m.mayEnd)
			}
		})
	})
}

// orMoved is the error of a transaction that was not carried out.
func orMoved(err error) error {
	if err != nil {
		return err
	}
	return records.Errorf(records.ClassConflict, "somebody else has written it")
}

// comeBack resumes a session that a planned restart has left: under a lease of the
// ordinary length, that of before if it still lives, and with the ordinary window.
func (m *Machine) comeBack(kv records.KV, session *recordv1.NodeSession, infoMod int64, try int) {
	m.tenure.windowMax = 0
	back := func(ttl time.Duration) {
		window := max(m.window(ttl), m.tenure.fence.Window)
		m.shorten(m.now.Boot+window, func() { m.takeBack(kv, session, infoMod, window, try) })
	}
	m.call(LeaseOp{Verb: LeaseKeepAlive, Lease: m.meta.GetLease()}, func(kept actors.LeaseResult) {
		switch {
		case kept.Err == nil:
			back(kept.TTL)
			return
		case records.ClassOf(kept.Err) != records.ClassNotFound:
			m.registerAgain(try, fmt.Errorf("renew lease: %w", kept.Err))
			return
		}
		m.call(LeaseOp{Verb: LeaseGrant, TTL: m.config.Session.Lease}, func(granted actors.LeaseResult) {
			if granted.Err != nil {
				m.registerAgain(try, fmt.Errorf("grant lease: %w", granted.Err))
				return
			}
			m.meta.Lease = granted.Lease
			m.journal(JournalChange{Meta: proto.CloneOf(m.meta)}, func() { back(granted.TTL) })
		})
	})
}

// takeBack puts the session under the journal's ordinary lease and says so in nodeinfo;
// its fence has been moved nearer. That the transaction finds the key as it was read is
// the proof that the session goes on.
func (m *Machine) takeBack(kv records.KV, session *recordv1.NodeSession, infoMod int64, window time.Duration, try int) {
	if m.fenced() {
		m.registerTry(try + 1)
		return
	}
	before := m.now.Boot
	generation := session.GetGeneration()
	txn := m.keys.Relet(m.config.ID, kv.Mod, m.describe(generation, session.GetRegisteredAt()), m.meta.GetLease(),
		infoMod, m.info(generation, max(window, m.config.Session.Window())))
	m.commit(txn, func(result records.Result) {
		switch {
		case result.Err != nil || !result.Succeeded:
			m.registerAgain(try, result.Err)
		case m.fenced():
			m.registerTry(try + 1)
		default:
			m.extend(before + window)
			m.keep()
			m.opened(kv.Create)
		}
	})
}
