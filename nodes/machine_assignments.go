package nodes

import (
	"crypto/sha256"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// followed takes a batch of one of the prefixes that the node follows.
func (m *Machine) followed(in actors.Followed) {
	switch in.Prefix {
	case m.keys.AssignmentsOf(m.config.ID):
		m.applyAssignments(in.Batch)
	case m.keys.Drain(m.config.ID):
		m.applyDrain(in.Batch)
	case m.keys.Node(m.config.ID):
		m.applySession(in.Batch)
	}
	if m.climbing && m.phase+1 == PhaseReconciling && m.assignments.Revision() > 0 {
		m.reach(PhaseReconciling)
	}
}

// applyDrain looks at one key; the prefix also holds those of nodes whose names
// begin with this one's.
func (m *Machine) applyDrain(batch records.Batch) {
	if batch.Reset {
		m.draining = false
	}
	for _, event := range batch.Events {
		if event.KV.Key == m.keys.Drain(m.config.ID) {
			m.draining = !event.Deleted
		}
	}
}

func (m *Machine) applyAssignments(batch records.Batch) {
	if batch.Reset && m.wentBack(batch.Revision) {
		return
	}
	for _, event := range m.assignments.Apply(batch) {
		run := records.LastPart(event.KV.Key)
		if event.Deleted {
			m.withdrawBefore(run, event.KV.Mod+1)
			continue
		}
		m.withdrawBefore(run, event.KV.Create)
		assignment := &recordv1.Assignment{}
		if err := records.Decode(event.KV, assignment); err != nil || assignment.GetRun() != run {
			m.log(actors.LogError, "assignment can not be read", "run", run)
			continue
		}
		assignment.Run = run // whose text the mirror has already
		m.assigned(assignment, event.KV.Create)
	}
	m.caughtUp()
	for _, id := range sortedKeys(m.acknowledged) {
		m.forgetPerhaps(m.acknowledged[id])
	}
}

// withdrawBefore ends the run's placements that were committed before a revision:
// their assignment is gone by then.
func (m *Machine) withdrawBefore(run string, revision int64) {
	for _, p := range m.ofTheRun(run) {
		if p.entry.GetCommit() < revision {
			m.withdraw(p)
		}
	}
}

// withdraw ends a placement whose assignment is gone.
func (m *Machine) withdraw(p *placement) {
	m.stop(p, stopWish{cause: recordv1.StopCause_STOP_CAUSE_CANCEL, message: "the assignment was withdrawn"})
}

// caughtUp checks the placements that a Start brought before the watch: by now
// the watch must have shown their key, or it was deleted in between.
func (m *Machine) caughtUp() {
	var still []*placement
	for _, p := range m.ahead {
		if p.entry.GetCommit() > m.assignments.Revision() {
			still = append(still, p)
			continue
		}
		m.restLater(p)
		kv, ok := m.assignments.Get(m.keys.Assignment(m.config.ID, p.key.Run))
		if !ok || kv.Create != p.entry.GetCommit() {
			m.withdraw(p)
		}
	}
	m.ahead = still
}

// assigned takes what the watch says of a key that was committed at a revision.
func (m *Machine) assigned(a *recordv1.Assignment, commit int64) {
	p := m.placementOf(a.GetRun(), a.GetAttempt(), a.GetPlacement())
	switch {
	case p != nil && m.otherLife(p, a):
	case p != nil:
		m.desired(p, a.GetDesired(), a.GetStopReason(), a.GetStopForce())
	case a.GetSession() == m.session && !m.fenced():
		m.accept(a, commit)
	case m.fenced():
		// It is judged when the next session is opened: by then it is known whether the
		// store was restored.
	case a.GetSession() <= m.session:
		m.disown(a, commit)
	default:
		m.log(actors.LogWarn, "assignment of a session that is not this node's", "run", a.GetRun(), "session", a.GetSession())
	}
}

// toldToStart takes a Start: once, and only if it can not be one from before the
// entry of the same placement was forgotten. A forgotten placement's key was seen
// to be gone at or after its commit, so what is neither in the cache at exactly
// its commit nor ahead of it is old. A placement that is known is told again
// instead, for its run seems not to have heard.
func (m *Machine) toldToStart(start *actorv1.Start) {
	a, commit := start.GetAssignment(), start.GetCommit()
	if m.assignments.Revision() == 0 || a == nil {
		return
	}
	if p := m.placementOf(a.GetRun(), a.GetAttempt(), a.GetPlacement()); p != nil {
		if !m.otherLife(p, a) {
			m.remind(p)
		}
		return
	}
	if a.GetSession() != m.session || m.fenced() {
		return
	}
	if commit <= m.assignments.Revision() {
		kv, ok := m.assignments.Get(m.keys.Assignment(m.config.ID, a.GetRun()))
		if !ok || kv.Create != commit {
			return
		}
	}
	m.accept(a, commit)
}

func (m *Machine) toldToStop(stop *actorv1.Stop) {
	if p := m.placementOf(stop.GetRun(), stop.GetAttempt(), stop.GetPlacement()); p != nil {
		m.desired(p, stop.GetDesired(), stop.GetReason(), stop.GetForce())
	}
}

// entryOf makes the journal's form of an assignment.
func (m *Machine) entryOf(a *recordv1.Assignment, commit int64) *recordv1.JournalEntry {
	spec := a.GetSpec()
	hash := sha256.Sum256(records.Encode(spec))
	return &recordv1.JournalEntry{
		Run: a.GetRun(), Attempt: a.GetAttempt(), Placement: a.GetPlacement(),
		State:   recordv1.JournalState_JOURNAL_STATE_ACCEPTED,
		Sandbox: records.SandboxID(a.GetRun(), a.GetAttempt(), a.GetPlacement()),
		Commit:  commit, Session: a.GetSession(), BootId: m.config.BootID, Epoch: m.epoch,
		StartToken: a.GetStartToken(), SpecHash: hash[:], Driver: spec.GetDriver(), AcceptedAt: m.now.Milli(),
		TimeoutMs: spec.GetTimeoutMs(), StopGraceMs: spec.GetStopGraceMs(),
		CpuMillis: spec.GetCpuMillis(), MemoryBytes: spec.GetMemoryBytes(),
		Unfenced: spec.GetRetry().GetOnNodeLoss() == recordv1.OnNodeLoss_ON_NODE_LOSS_WAIT,
	}
}

// accept takes an assignment of this session that the journal does not know. It
// is held in memory only until the start: a crash before that finds it again in
// the store.
func (m *Machine) accept(a *recordv1.Assignment, commit int64) {
	entry := m.entryOf(a, commit)
	reserved := m.release(KeyOf(entry))
	m.expireReservations()
	if o, ok := m.orphans[entry.GetSandbox()]; ok && o.mayHaveRun() {
		// The journal lost what it knew of this placement.
		m.endUnknown(m.add(entry, a))
		return
	}
	refusal := ""
	var reason recordv1.Reason
	switch {
	case reserved:
	case m.journalErr != nil:
		refusal = "the node can not write its journal"
	default:
		refusal = m.noRoom(entry.GetCpuMillis(), entry.GetMemoryBytes())
	}
	if !m.enabled(entry.GetDriver()) {
		refusal, reason = m.notEnabled(entry.GetDriver()), recordv1.Reason_REASON_START_ERROR
	}
	p := m.add(entry, a)
	if refusal != "" {
		m.void(p, &recordv1.Void{Reason: reason, Message: refusal})
		return
	}
	m.stopOthers(p)
	m.desired(p, a.GetDesired(), a.GetStopReason(), a.GetStopForce())
	if !p.ended() {
		m.enqueue(p)
	}
}

// stopOthers ends the run's other placements here: two attempts never run at the
// same time (G3). The queue waits until they are gone.
func (m *Machine) stopOthers(p *placement) {
	for _, other := range m.ofTheRun(p.key.Run) {
		if other != p {
			m.withdraw(other)
		}
	}
}

// disown ends an assignment of an earlier session that the journal does not know:
// it never started, unless the journal itself went back in time.
func (m *Machine) disown(a *recordv1.Assignment, commit int64) {
	p := m.add(m.entryOf(a, commit), a)
	o, orphaned := m.orphans[p.id]
	if m.reverted || orphaned && o.mayHaveRun() {
		m.endUnknown(p)
		return
	}
	m.void(p, &recordv1.Void{Message: "the node's session ended before the start"})
}

func (m *Machine) endUnknown(p *placement) {
	m.exit(p, &recordv1.Exit{Reason: recordv1.Reason_REASON_START_UNKNOWN, Message: "the node's journal does not know whether the command was started"})
}

// desired follows what the run's actor wants of a placement.
func (m *Machine) desired(p *placement, desired recordv1.Desired, reason recordv1.Reason, force bool) {
	switch desired {
	case recordv1.Desired_DESIRED_STOP:
		m.stop(p, stopWish{cause: causeOf(reason), force: force, reason: reason, message: "stopped before the start"})
	case recordv1.Desired_DESIRED_STOP_IF_NOT_STARTED:
		m.stop(p, stopWish{cause: causeOf(reason), onlyBeforeStart: true, reason: reason, message: "stopped before the start"})
	default:
	}
}

func causeOf(reason recordv1.Reason) recordv1.StopCause {
	switch reason {
	case recordv1.Reason_REASON_TIMEOUT:
		return recordv1.StopCause_STOP_CAUSE_TIMEOUT
	case recordv1.Reason_REASON_START_DEADLINE:
		return recordv1.StopCause_STOP_CAUSE_START_DEADLINE
	case recordv1.Reason_REASON_DRAINED:
		return recordv1.StopCause_STOP_CAUSE_DRAIN
	default:
		return recordv1.StopCause_STOP_CAUSE_CANCEL
	}
}
