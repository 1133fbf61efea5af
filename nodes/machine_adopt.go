package nodes

import (
	"fmt"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// survivor is a sandbox that a driver found.
type survivor struct {
	driver string
	info   sandbox.Info
}

// adopt proves whose the journal is, asks every driver what there is, and joins
// that with what the journal says.
// A driver that does not answer is asked again: unavailable is never lost.
func (m *Machine) adopt() {
	for _, p := range m.everyone() {
		if driver := p.entry.GetDriver(); !m.enabled(driver) && !p.entry.GetTornDown() && p.entry.GetState() != recordv1.JournalState_JOURNAL_STATE_VOID {
			m.refuse(fmt.Errorf("adopt sandboxes: run %s was started with driver %q, which is not enabled any more: enable it until its runs are over", p.key.Run, driver))
			return
		}
	}
	m.identify(0, m.look)
}

// look asks every driver what there is.
func (m *Machine) look() {
	found, left := map[string]survivor{}, len(m.config.Drivers)
	for _, driver := range m.config.Drivers {
		m.list(driver, 0, func(infos []sandbox.Info) {
			for _, info := range infos {
				// Traces wait for the first sweep: it knows what each driver has.
				if !info.Trace {
					found[info.ID] = survivor{driver: driver, info: info}
				}
			}
			if left--; left == 0 {
				m.recheckFence(func() { m.adopted(found) })
			}
		})
	}
}

func (m *Machine) list(driver string, try int, then func([]sandbox.Info)) {
	m.do(SandboxOp{Verb: VerbList, Driver: driver}, func(result SandboxResult) {
		if result.Err == nil {
			then(result.Infos)
			return
		}
		m.trouble = fmt.Sprintf("list the sandboxes of driver %s: %v", driver, result.Err)
		m.warn(try, "sandboxes can not be listed; it is tried again", "driver", driver, "error", result.Err.Error())
		m.after("list/"+driver, backoff(try), func() { m.list(driver, try+1, then) })
	})
}

func (m *Machine) adopted(found map[string]survivor) {
	m.trouble = ""
	if m.refuseWithoutJournal(found) {
		return
	}
	for _, p := range m.everyone() {
		s, ok := take(found, p.id)
		if strange := strangeTo(p.entry, s.info); ok && strange != "" {
			// It is stopped with the others; what the journal speaks of is not there.
			m.addOrphan(s, strange)
			p.foreign, ok = true, false
		}
		m.adoptPlacement(p, s.info, ok)
		m.settle(p)
	}
	for _, id := range sortedKeys(found) {
		m.addOrphan(found[id], "")
	}
	if m.fenced() || m.overdue(0) {
		m.latch("its session ended while it was away")
	}
	m.sweepLater()
	m.reach(PhaseAdopted)
}

// adoptPlacement goes on where the journal says that it was left.
func (m *Machine) adoptPlacement(p *placement, info sandbox.Info, found bool) {
	p.startCalled, p.mayExist = true, true
	switch p.entry.GetState() {
	case recordv1.JournalState_JOURNAL_STATE_STARTING, recordv1.JournalState_JOURNAL_STATE_STARTED:
		m.adoptStarted(p, info, found)
	case recordv1.JournalState_JOURNAL_STATE_EXITED:
		p.durable, p.journaled = true, true
		if p.tornDown {
			m.report(p)
			return
		}
		m.empty(p, 0)
	case recordv1.JournalState_JOURNAL_STATE_VOID:
		m.report(p)
		m.adoptVoid(p)
	case recordv1.JournalState_JOURNAL_STATE_ACCEPTED:
		if m.reverted || p.foreign || found && info.State != sandbox.StateCreated {
			m.endUnknown(p)
			return
		}
		m.void(p, &recordv1.Void{Message: "the node was restarted before the start"})
	default:
	}
}

func (m *Machine) adoptVoid(p *placement) {
	if !m.enabled(p.entry.GetDriver()) {
		m.tornDown(p)
		return
	}
	m.tearDown(p)
}

// adoptStarted finds out about a command that may have been started. An exit that
// the driver still knows counts even after a reboot; a process does not outlive
// one.
func (m *Machine) adoptStarted(p *placement, info sandbox.Info, found bool) {
	sameBoot := p.entry.GetBootId() == m.config.BootID
	switch {
	case found && info.State == sandbox.StateExited:
		p.finished = !m.fenced()
		m.awaitExit(p)
		m.expectExit(p)
	case found && sameBoot && info.State == sandbox.StateRunning && p.started():
		// It is journaled with what the entry is written for next.
		p.entry.AdoptedAt = m.now.Milli()
		m.awaitExit(p)
		// A stop of before whose cause is on the disk; that of a timeout that has passed
		// meanwhile is not, yet.
		m.stopJournaled(p)
		m.watchTimeout(p)
	case found && sameBoot && info.State == sandbox.StateRunning:
		m.running(p, m.now.Wall)
	case p.foreign:
		m.exit(p, m.foreignEnd(p))
	default:
		m.missing(p)
	}
}

// missing ends a placement that the journal holds and no driver knows, or that no
// process of can have outlived the boot that it was started in.
func (m *Machine) missing(p *placement) {
	end := startUnknown()
	if p.started() {
		end = lost("the node was restarted and its sandbox is gone")
	}
	m.log(actors.LogWarn, "sandbox that the journal knows is not there", "run", p.key.Run, "attempt", p.key.Attempt, "sandbox", p.id,
		"driver", p.entry.GetDriver(), "started on boot", p.entry.GetBootId(), "told as", records.Word(end.GetReason()))
	m.exit(p, end)
}

// afterReboot says of an end that nobody saw that the machine went down with it, where
// it did: what an operator looks for first. Nothing that runs outlives a reboot.
func (m *Machine) afterReboot(p *placement, exit *recordv1.Exit) {
	before := p.entry.GetBootId()
	if exit.Code != nil || p.foreign || before == "" || before == m.config.BootID {
		return
	}
	boots := "the machine was restarted (its boot id was " + before + " and is " + m.config.BootID + ")"
	switch exit.GetReason() {
	case recordv1.Reason_REASON_SANDBOX_LOST:
		exit.Message = clip("the sandbox was lost: " + boots)
	case recordv1.Reason_REASON_START_UNKNOWN:
		exit.Message = clip(boots + " while the start was under way; the command may have run")
	default:
	}
}

// foreignEnd is that of a placement in whose name another sandbox was found.
func (m *Machine) foreignEnd(p *placement) *recordv1.Exit {
	end := startUnknown()
	if p.started() {
		end = lost("")
	}
	end.Message = "the node was restarted and found another sandbox under the name of its own: " + m.orphans[p.id].strange
	return end
}

// evict ends everything of an earlier session, and goes on when no process of it
// is left. The end is journaled before the kill: a kill of ours must not pass for
// the command's own end (G7).
func (m *Machine) evict(then func()) {
	cause, end := "its session ended while it was away", "the node's session ended"
	if m.reverted {
		cause, end = "its journal is an older copy", "the node's journal is an older copy, so its session was ended"
	}
	if by := m.removed.GetBy(); m.removed != nil {
		cause = by + " had said that its machine was dead"
		end = "the node's session ended, and " + cause
	}
	if m.meta.GetEpoch() < m.era.epoch {
		cause, end = "the store was restored from a copy", "the store was restored from a copy, so the node's session was ended"
	}
	if m.leased() {
		m.latch(cause)
	}
	for _, p := range m.everyone() {
		if !p.ended() && !p.finished && !m.outlives(p) {
			m.exit(p, lost(end))
		}
	}
	m.endOrphans()
	m.whenEmpty = then
	m.emptyPerhaps()
}
