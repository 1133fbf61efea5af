package nodes

import (
	"slices"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// tenure is how a node holds a session that has a lease (protocol.md section 6):
// until when it may run what it runs.
//
// The fence is a latch, not a shot. When the session's key is seen gone, or when the
// deadline has come by the boottime clock, the node is fenced for good in this
// session: nothing is taken, what never started is given back, everything else ends
// without a code, and is killed until it is gone. Only then the session is ended and
// another one opened.
type tenure struct {
	// fence is what the fence held when it was last read or written. Session is 0 when
	// it does not know of this journal's session; FencedAt may be set then too: that
	// nobody can tell whether somebody has begun to kill is taken for that he has.
	fence FenceState
	// restart is the window of a planned restart once its lease is in the journal.
	restart time.Duration
	// windowMax bounds the window by what nodeinfo promises to others.
	windowMax time.Duration
	// failures counts the renewals in a row that did not count.
	failures int
}

// leased tells whether the session has a lease; in solo nothing here happens.
func (m *Machine) leased() bool { return m.config.Session.Lease > 0 }

// fenced tells whether the session that the fence knows is over.
func (m *Machine) fenced() bool { return m.tenure.fence.FencedAt > 0 }

// overdue tells whether what is begun a margin before the deadline comes too late.
func (m *Machine) overdue(margin time.Duration) bool {
	return m.tenure.fence.Session != 0 && m.now.Boot+margin >= m.tenure.fence.Deadline
}

// recoverFence learns what the fence of this boot knows.
func (m *Machine) recoverFence() {
	m.readFence(func(state FenceState, ok bool) {
		known := ok && state.BootID == m.config.BootID && (m.meta.GetSession() == 0 || state.Session == m.meta.GetSession())
		switch {
		case known:
			m.tenure.fence = state
		case m.leased() && m.meta.GetGeneration() > 0:
			m.tenure.fence = FenceState{FencedAt: max(m.now.Boot, 1)}
		}
		m.reach(PhaseRecovered)
	})
}

// readFence goes on with what the fence holds; in solo there is nothing to read.
func (m *Machine) readFence(then func(state FenceState, ok bool)) {
	if !m.leased() {
		then(FenceState{}, false)
		return
	}
	tag := m.nextTag()
	m.fences[tag] = then
	m.emit(ReadFence{Tag: tag})
}

// recheckFence goes on when it is known whether somebody else had begun to kill when
// the sandboxes were looked at.
func (m *Machine) recheckFence(then func()) {
	m.readFence(func(state FenceState, ok bool) {
		if ok && state.Session == m.tenure.fence.Session {
			m.tenure.fence.FencedAt = state.FencedAt
		}
		then()
	})
}

// arm puts the fence to a deadline, which counts for this machine too once it is
// known that nobody has begun to kill by the one of before.
func (m *Machine) arm(state FenceState) { m.armThen(state, func() {}) }

// armThen goes on when it is known what the fence holds.
func (m *Machine) armThen(state FenceState, then func()) {
	if state.Session == 0 {
		then()
		return
	}
	state.Window = max(state.Window, m.config.Session.Window())
	tag := m.nextTag()
	m.fences[tag] = func(held FenceState, ok bool) {
		defer then()
		switch {
		case m.fenced() || m.tenure.fence.Session != state.Session:
		case !ok || held.Session != state.Session:
			m.latch("its fence can not be armed")
		case held.FencedAt > 0:
			m.latch("another process of this node has fenced it")
		default:
			m.tenure.fence = held
			m.watchFence()
		}
	}
	m.emit(ArmFence{Tag: tag, State: state})
}

// checkFence is the first thing of every turn: whatever has come in, after the
// deadline it is handled as by a node that is fenced. So it is also the check after
// a start.
func (m *Machine) checkFence() {
	if m.phase >= PhaseAdopted && !m.fenced() && m.overdue(0) {
		m.latch("its session could not be renewed in time")
	}
}

// watchFence makes sure that there is a turn when the deadline comes. Timers stand
// still while the machine is suspended, so it looks now and then.
func (m *Machine) watchFence() {
	if !m.fenced() {
		m.after("fence", min(m.tenure.fence.Deadline-m.now.Boot, m.config.Session.Renew), m.watchFence)
	}
}

// latch fences the session and ends everything of it. That it is fenced is on
// record before the first kill, and why each sandbox ends is in the journal before
// its kill, unless the journal takes too long. Repeated it ends what it missed.
func (m *Machine) latch(cause string) {
	first := !m.fenced()
	if first {
		m.tenure.fence.FencedAt = max(m.now.Boot, 1)
		m.arm(m.tenure.fence)
	}
	if occupied := m.counts[classStarting] + m.counts[classRunning]; first && (m.session != 0 || occupied > 0) {
		m.trouble = "the node is fenced: " + cause
		m.log(actors.LogError, "fenced: everything that runs is stopped, but for runs that wait for their node",
			"cause", cause, "session", m.tenure.fence.Session, "sandboxes", occupied, "of runs that wait", m.unfenced)
	}
	for _, key := range sortedPlacementKeys(m.reservations) {
		m.release(key)
	}
	for _, p := range m.everyone() {
		m.expel(p, cause)
	}
	m.endOrphans()
	if !first {
		return
	}
	m.after("fence/sync", FenceSyncMax, m.killUnsynced)
	m.after("fence/kill", m.config.Session.KillBudget, m.notEmpty)
	if m.session != 0 {
		m.whenEmpty = func() { m.registerTry(0) }
		m.emptyPerhaps()
	}
}

// expel ends a placement of a session that is over. What the driver had told before
// counts; what it tells later may be our kill.
func (m *Machine) expel(p *placement, cause string) {
	switch {
	case p.ended() || p.finished || m.outlives(p):
	case p.observed != nil:
		p.finished, p.unsure = true, true
		m.exit(p, p.observed)
	case !p.startCalled && !p.started() && !p.recovered:
		m.voidUnstarted(p, &recordv1.Void{Message: "the node's session ended before the start"})
	default:
		if p.entry.GetStopCause() == recordv1.StopCause_STOP_CAUSE_UNSPECIFIED {
			p.entry.StopCause = recordv1.StopCause_STOP_CAUSE_FENCE
		}
		m.exit(p, &recordv1.Exit{
			Fenced: true, Reason: recordv1.Reason_REASON_NODE_FENCED, Message: clip("the node stopped what it ran: " + cause),
		})
	}
}

// outlives tells whether a placement goes on though its session is over: nobody kills
// it, and its run waits for this node's word however long that takes. What has not
// come to its start has nothing to go on with. Where the journal or the store is an
// older copy, or somebody has said that this machine is dead, nothing goes on, for its run
// may be elsewhere.
func (m *Machine) outlives(p *placement) bool {
	return p.entry.GetUnfenced() && !p.ended() && (p.startCalled || p.startRecovered()) && !m.reverted && m.removed == nil && !m.era.regressed
}

// startRecovered tells whether an earlier daemon came to the start of a placement: its end
// may be seen, by a stop, before it is adopted.
func (p *placement) startRecovered() bool {
	return p.recovered && p.entry.GetState() != recordv1.JournalState_JOURNAL_STATE_ACCEPTED
}

// crowded tells whether something occupies the node that does not outlive its session.
func (m *Machine) crowded() bool {
	occupied := m.counts[classStarting] + m.counts[classRunning]
	if occupied > m.unfenced {
		return true
	}
	return occupied > 0 && slices.ContainsFunc(m.everyone(), func(p *placement) bool { return p.class.occupies() && !m.outlives(p) })
}

// underFence takes the code off an end that is seen when somebody may have killed
// because of the fence (G7). An end that was known before stays what it is, and so
// does one of which the journal knows no start.
func (m *Machine) underFence(p *placement, exit *recordv1.Exit) *recordv1.Exit {
	if !m.fenced() || p.finished || m.outlives(p) || exit.GetFenced() || p.entry.GetState() == recordv1.JournalState_JOURNAL_STATE_ACCEPTED {
		return exit
	}
	return &recordv1.Exit{
		Fenced: true, Reason: recordv1.Reason_REASON_NODE_FENCED, StartedAt: exit.GetStartedAt(),
		Message: "the node had lost its session when the end was seen",
	}
}

// killUnsynced does not let a stuck disk keep alive what may not run.
func (m *Machine) killUnsynced() {
	for _, p := range m.everyone() {
		if p.entry.GetState() == recordv1.JournalState_JOURNAL_STATE_EXITED && !p.durable {
			m.empty(p, 0)
		}
	}
}

// notEmpty says that the kill budget is used up. The node may not register before
// nothing is left, so it stays as it is and goes on killing.
func (m *Machine) notEmpty() {
	if m.whenEmpty == nil {
		return
	}
	m.trouble = "the node is fenced and can not be emptied: it may not register before nothing of its last session runs"
	m.log(actors.LogError, "fenced sandboxes outlive the kill budget", "budget", m.config.Session.KillBudget, "left", m.counts[classStarting]+m.counts[classRunning])
}

// killPause is the wait before another kill of what is left of a sandbox. Under the
// fence there is a budget for all of them.
func (m *Machine) killPause(try int) time.Duration {
	if m.fenced() {
		return min(backoff(try), FenceKillPause)
	}
	return backoff(try)
}

// reopen registers a node anew whose key somebody has taken away although it is alone.
// Its session has no end that anybody waits for, so what runs in it goes on.
func (m *Machine) reopen() {
	if m.reopening {
		return
	}
	m.reopening = true
	m.trouble = "the node's key was removed from the store"
	m.log(actors.LogError, "the node's key was removed from the store; it registers anew, and what runs goes on", "session", m.session)
	m.registerTry(0)
}

// applySession looks at the node's own key; the prefix also holds those of nodes
// whose names begin with this one's. What it was before the session began says
// nothing.
func (m *Machine) applySession(batch records.Batch) {
	if m.session == 0 || m.fenced() {
		return
	}
	gone := batch.Reset && batch.Revision >= m.session
	for _, event := range batch.Events {
		if event.KV.Key != m.keys.Node(m.config.ID) || event.KV.Mod < m.session {
			continue
		}
		gone = event.Deleted || event.KV.Create != m.session
	}
	switch {
	case gone && m.leased():
		m.latch("its session is gone from the store")
	case gone:
		m.reopen()
	}
}
