package nodes

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// startHeardMin is how long after a start the node tells it anew when it comes back.
const startHeardMin = time.Minute

// register resumes the session of before or opens a new one. In solo nobody else
// can start anything, so a session has no lease and lasts as long as the boot; else
// it lasts as long as its lease is renewed in time.
func (m *Machine) register() { m.registerTry(0) }

func (m *Machine) registerTry(try int) {
	m.commit(m.readIdentity(), func(result records.Result) {
		if result.Err != nil {
			m.registerAgain(try, fmt.Errorf("read session: %w", result.Err))
			return
		}
		m.judgeSession(result, try)
	})
}

// registerAgain starts over from a read, after any answer that is not a clear yes:
// what an unknown outcome left behind shows there.
func (m *Machine) registerAgain(try int, err error) {
	if err != nil {
		m.trouble = err.Error()
		m.warn(try, "registration is tried again", "error", err.Error())
	}
	m.after("register", backoff(try), func() { m.registerTry(try + 1) })
}

func (m *Machine) judgeSession(loaded records.Result, try int) {
	info, infoMod, err := m.judgeOwner(loaded)
	if err != nil {
		m.refuseSession(try, err)
		return
	}
	if m.foreign(info) || m.era.accepted {
		m.era.accepted = false
		m.leaveStore()
	}
	m.enterEra()
	m.hearWord(info.GetRemoved())
	_, m.draining = loaded.First(loadedDrain)
	if err := m.judgeOthers(loaded); err != nil {
		m.refuseSession(try, err)
		return
	}
	kv, exists := loaded.First(loadedSession)
	if !exists {
		open := func() {
			if !m.awaitsEra(try) {
				m.open(info, infoMod, loaded.Responses[loadedAssignments].KVs, try)
			}
		}
		if m.reopening && !m.reverted && m.removed == nil && m.epoch == m.meta.GetEpoch() {
			open()
		} else {
			m.evict(open)
		}
		return
	}
	session := &recordv1.NodeSession{}
	if err := records.Decode(kv, session); err != nil {
		m.refuseSession(try, err)
		return
	}
	switch {
	case !m.resumable(kv, session):
		m.evict(func() { m.endSession(kv, try) })
	case m.leased():
		m.resumeLeased(kv, session, info, infoMod, try)
	default:
		m.resume(kv, session, try)
	}
}

// judgeOthers makes sure that nobody else takes part where only one node may: a node whose
// session has ended while it was frozen may find that another one has come meanwhile, under
// a name of its own, or, where the loss of a journal was accepted that is not lost, under
// this one's. It registers when that one's session has ended.
func (m *Machine) judgeOthers(loaded records.Result) error {
	var others []records.KV
	if m.config.OnlyNode {
		others = loaded.Responses[loadedNodes].KVs
	} else if kv, exists := loaded.First(loadedSession); exists {
		others = []records.KV{kv}
	}
	for _, kv := range others {
		session, name := &recordv1.NodeSession{}, records.LastPart(kv.Key)
		if err := records.Decode(kv, session); err != nil {
			return err
		}
		var who string
		switch {
		case name != m.config.ID:
			who = fmt.Sprintf("node %q has this store", name)
		case m.phase >= PhaseRegistered && session.GetGeneration() > m.meta.GetGeneration():
			who = fmt.Sprintf("another daemon has this node's name, by registration %d, and the last of this one was %d", session.GetGeneration(), m.meta.GetGeneration())
		default:
			continue
		}
		return fmt.Errorf("%s, at %s, since %s: a cluster has one node so far, and what this one ran is stopped. Stop the one that should not be there; "+
			"this one registers again when the other's session has ended", who, session.GetAddress(), time.UnixMilli(session.GetRegisteredAt()).UTC().Format(time.RFC3339))
	}
	return nil
}

// hearWord takes note of what somebody has said of this machine since its last session:
// that it is dead. Its runs were given up by that, those too that wait for it, so nothing of
// before goes on. The session that follows takes the word back.
func (m *Machine) hearWord(removed *recordv1.Removal) {
	if removed != nil && m.removed == nil {
		m.log(actors.LogError, "this machine was said to be dead and is not: what it still runs is stopped, for its runs were given up by that",
			"by", removed.GetBy(), "at", time.UnixMilli(removed.GetAt()).UTC().Format(time.RFC3339))
	}
	m.removed = removed
}

// refuseSession gives the start up; a node that was up already waits for somebody to
// look at it.
func (m *Machine) refuseSession(try int, err error) {
	err = fmt.Errorf("register node %s: %w", m.config.ID, err)
	if m.phase >= PhaseRegistered {
		m.registerAgain(try, err)
		return
	}
	m.refuse(err)
}

// resumable tells whether a session is this journal's, of this boot. A session
// that was opened just before a crash is not in the journal yet, but its
// generation is: it was written first and is used once. One with a lease must also
// be that which the fence of this boot knows, and not be fenced. None is resumed by
// an older copy of the journal, which may have forgotten what runs in it.
func (m *Machine) resumable(kv records.KV, session *recordv1.NodeSession) bool {
	if m.reverted || m.removed != nil || session.GetUuid() != m.meta.GetUuid() || session.GetBootId() != m.config.BootID || m.meta.GetBootId() != m.config.BootID {
		return false
	}
	if m.leased() && (m.fenced() || m.tenure.fence.Session != kv.Create || !m.holds(kv)) {
		return false
	}
	if m.meta.GetSession() != 0 {
		return kv.Create == m.meta.GetSession()
	}
	return session.GetGeneration() == m.meta.GetGeneration() && m.meta.GetGeneration() > 0
}

func (m *Machine) describe(generation, registeredAt int64) *recordv1.NodeSession {
	return &recordv1.NodeSession{
		Uuid: m.meta.GetUuid(), BootId: m.config.BootID, Generation: generation, Address: m.config.Address,
		Version: m.config.Version, Drivers: m.config.Drivers, CpuMillis: m.config.CPUMillis,
		MemoryBytes: m.config.MemoryBytes, SandboxesMax: m.config.SandboxesMax, RegisteredAt: registeredAt,
	}
}

// info is what nodeinfo says of this node: window is how long it may go on without a
// word.
func (m *Machine) info(generation int64, window time.Duration) *recordv1.NodeInfo {
	return &recordv1.NodeInfo{Uuid: m.meta.GetUuid(), Generation: generation, WindowMs: window.Milliseconds()}
}

func (m *Machine) resume(kv records.KV, session *recordv1.NodeSession, try int) {
	txn := m.keys.Resume(m.config.ID, kv.Mod, m.describe(session.GetGeneration(), session.GetRegisteredAt()), 0)
	m.commit(txn, func(result records.Result) {
		if result.Err != nil || !result.Succeeded {
			m.registerAgain(try, result.Err)
			return
		}
		m.opened(kv.Create)
	})
}

// open makes a session when no process of an earlier one is left: first the new
// generation and the fate of every assignment of before are in the journal, then
// the session may exist.
func (m *Machine) open(info *recordv1.NodeInfo, infoMod int64, assignments []records.KV, try int) {
	if m.fresh {
		// The owner comes before all else: a start that ends between an entry and the
		// generation, which waits for the store, must not leave entries of nobody.
		m.journal(JournalChange{Meta: proto.CloneOf(m.meta)}, func() {
			m.fresh = false
			m.open(info, infoMod, assignments, try)
		})
		return
	}
	if info.GetGeneration() > m.meta.GetGeneration() && !m.reverted {
		m.revert(fmt.Sprintf("it holds registration %d, the store %d", m.meta.GetGeneration(), info.GetGeneration()),
			func() { m.open(info, infoMod, assignments, try) })
		return
	}
	for _, kv := range assignments {
		assignment := &recordv1.Assignment{}
		if err := records.Decode(kv, assignment); err != nil {
			m.log(actors.LogError, "assignment can not be read", "run", records.LastPart(kv.Key))
			continue
		}
		id := records.SandboxID(assignment.GetRun(), assignment.GetAttempt(), assignment.GetPlacement())
		if _, known := m.placements[id]; !known {
			m.disown(assignment, kv.Create)
		}
	}
	m.grant(try, func(lease int64, deadline time.Duration) {
		m.meta.Generation = max(m.meta.GetGeneration(), info.GetGeneration()) + 1
		m.meta.Session, m.meta.BootId, m.meta.Epoch, m.meta.Cluster = 0, m.config.BootID, m.epoch, m.cluster
		m.meta.Lease, m.meta.RestartLease, m.meta.Reverted, m.meta.RestoredAt = lease, 0, false, m.era.cluster.GetRestoredAt()
		m.journal(JournalChange{Meta: proto.CloneOf(m.meta)}, func() { m.enter(infoMod, lease, deadline, try) })
	})
}

// enter puts the session into the store; its generation and its lease are in the
// journal.
func (m *Machine) enter(infoMod, lease int64, deadline time.Duration, try int) {
	generation := m.meta.GetGeneration()
	txn := m.keys.Register(m.config.ID, m.describe(generation, m.now.Milli()), lease, infoMod, m.info(generation, m.config.Session.Window()))
	if m.config.OnlyNode {
		txn = m.keys.Alone(txn)
	}
	m.commit(txn, func(result records.Result) {
		if result.Err != nil || !result.Succeeded {
			m.registerAgain(try, result.Err)
			return
		}
		m.hold(result.Revision, deadline)
		m.opened(result.Revision)
	})
}

// opened goes on with a session: what was held back is told now.
func (m *Machine) opened(session int64) {
	m.session, m.trouble, m.reverted, m.removed, m.reopening = session, "", false, nil, false
	done := func() {
		m.log(actors.LogInfo, "session", "node", m.config.ID, "session", m.session, "generation", m.meta.GetGeneration())
		if m.phase < PhaseRegistered {
			m.reach(PhaseRegistered)
		}
		m.endOrphans()
		m.journalQuarantine()
		for _, p := range m.everyone() {
			if m.unheardPerhaps(p) {
				m.remind(p)
			}
		}
	}
	if m.meta.GetSession() == session && m.meta.GetEpoch() == m.epoch && m.meta.GetCluster() == m.cluster {
		done()
		return
	}
	m.meta.Session, m.meta.Epoch, m.meta.Cluster, m.meta.RestoredAt = session, m.epoch, m.cluster, m.era.cluster.GetRestoredAt()
	m.journal(JournalChange{Meta: proto.CloneOf(m.meta)}, done)
}

// unheardPerhaps tells whether a run may not have heard what is to be told of a
// placement. A start that was not heard is asked for (waitingLook of package run) long
// before it is startHeardMin old; so a node that comes back with very many runs does not
// wake them all.
func (m *Machine) unheardPerhaps(p *placement) bool {
	if !p.started() {
		return true
	}
	return m.now.Boot-time.Duration(p.entry.GetStartedBoottimeNs()) < startHeardMin || p.entry.GetBootId() != m.config.BootID
}
