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
	for _, id := range sortedKeys(m.placements) {
		p := m.placements[id]
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
				found[info.ID] = survivor{driver: driver, info: info}
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
		m.log(actors.LogWarn, "sandboxes can not be listed; it is tried again", "driver", driver, "error", result.Err.Error())
		m.after("list/"+driver, backoff(try), func() { m.list(driver, try+1, then) })
	})
}

func (m *Machine) adopted(found map[string]survivor) {
	m.trouble = ""
	if m.refuseWithoutJournal(found) {
		return
	}
	for _, id := range sortedKeys(m.placements) {
		p := m.placements[id]
		s, ok := take(found, id)
		m.adoptPlacement(p, s.info, ok)
		m.settle(p)
	}
	for _, id := range sortedKeys(found) {
		m.orphans[id] = &orphan{driver: found[id].driver, info: found[id].info}
	}
	if m.fenced() || m.overdue(0) {
		m.latch("its session ended while it was away")
	}
	m.reach(PhaseAdopted)
}

// adoptPlacement goes on where the journal says that it was left.
func (m *Machine) adoptPlacement(p *placement, info sandbox.Info, found bool) {
	p.startCalled, p.mayExist = true, true
	switch p.entry.GetState() {
	case recordv1.JournalState_JOURNAL_STATE_STARTING, recordv1.JournalState_JOURNAL_STATE_STARTED:
		m.adoptStarted(p, info, found)
	case recordv1.JournalState_JOURNAL_STATE_EXITED:
		if p.tornDown {
			m.report(p)
			return
		}
		p.durable, p.journaled = true, true
		m.empty(p, 0)
	case recordv1.JournalState_JOURNAL_STATE_VOID:
		m.report(p)
		m.adoptVoid(p)
	case recordv1.JournalState_JOURNAL_STATE_ACCEPTED:
		if m.reverted {
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
		m.watchTimeout(p)
		m.awaitExit(p)
		m.stopJournaled(p)
	case found && sameBoot && info.State == sandbox.StateRunning:
		m.running(p, m.now.Wall)
	case p.started():
		m.exit(p, lost("the node was restarted and its sandbox is gone"))
	default:
		m.exit(p, startUnknown())
	}
}

// evict ends everything of an earlier session, and goes on when no process of it
// is left. The end is journaled before the kill: a kill of ours must not pass for
// the command's own end (G7).
func (m *Machine) evict(then func()) {
	cause, end := "its session ended while it was away", "the node's session ended"
	if m.reverted {
		cause, end = "its journal is an older copy", "the node's journal is an older copy, so its session was ended"
	}
	if m.meta.GetEpoch() < m.era.epoch {
		cause, end = "the store was restored from a copy", "the store was restored from a copy, so the node's session was ended"
	}
	if m.leased() {
		m.latch(cause)
	}
	for _, id := range sortedKeys(m.placements) {
		p := m.placements[id]
		if !p.ended() && !p.finished {
			m.exit(p, lost(end))
		}
	}
	m.endOrphans()
	m.whenEmpty = then
	m.emptyPerhaps()
}

// orphan is a sandbox of this node that its journal does not know. Its processes
// are killed, for nobody would tell how they end. What is left of it goes when its
// run is seen twice not to need it, and else after a day.
type orphan struct {
	driver  string
	info    sandbox.Info
	ending  bool
	killed  bool
	looks   int
	removes int
	// kept: its run lives.
	kept bool
}

// mayHaveRun tells whether its command may have been started.
func (o *orphan) mayHaveRun() bool { return o.info.State != sandbox.StateCreated }

// endOrphans kills them: when the node has its session, or before it opens
// another one, for which no process of an earlier one may be left.
func (m *Machine) endOrphans() {
	for _, id := range sortedKeys(m.orphans) {
		o := m.orphans[id]
		if o.ending {
			continue
		}
		o.ending = true
		m.log(actors.LogWarn, "sandbox is not in the journal; it is stopped", "sandbox", o.info.ID, "run", o.info.Run, "driver", o.driver)
		m.killOrphan(o, 0)
	}
}

func (m *Machine) killOrphan(o *orphan, try int) {
	m.do(SandboxOp{Verb: VerbKill, Driver: o.driver, ID: o.info.ID}, func(result SandboxResult) {
		if result.Err != nil {
			m.log(actors.LogWarn, "kill failed; it is tried again", "sandbox", o.info.ID, "error", result.Err.Error())
			m.after("orphan/"+o.info.ID, backoff(try), func() { m.killOrphan(o, try+1) })
			return
		}
		o.killed = true
		m.emptyPerhaps()
		m.pump()
		if !o.mayHaveRun() {
			// A create that a crash cut short: there is nothing to learn from it.
			m.removeOrphan(o)
			return
		}
		m.after("orphan/"+o.info.ID+"/hold", QuarantineHold, func() { m.removeOrphan(o) })
		m.lookAfterOrphan(o)
	})
}

// lookAfterOrphan reads the orphan's run, twice.
func (m *Machine) lookAfterOrphan(o *orphan) {
	if _, err := records.AppOfRun(o.info.Run); err != nil {
		return
	}
	m.commit(records.Read(records.Get(m.keys.Run(o.info.Run))), func(result records.Result) {
		again := func() { m.after("orphan/"+o.info.ID, OrphanConfirm, func() { m.lookAfterOrphan(o) }) }
		if result.Err != nil {
			again()
			return
		}
		if kv, ok := result.First(0); ok {
			if run, err := records.DecodeRun(kv); err != nil || !records.Terminal(run.GetStatus()) {
				if !o.kept {
					m.log(actors.LogWarn, "sandbox of a live run is not in the journal; it is kept until that has ended, or for a day", "sandbox", o.info.ID, "run", o.info.Run)
				}
				o.kept, o.looks = true, 0
				again()
				return
			}
		}
		if o.looks++; o.looks < 2 {
			again()
			return
		}
		m.cancel("orphan/" + o.info.ID + "/hold")
		m.removeOrphan(o)
	})
}

func (m *Machine) removeOrphan(o *orphan) {
	m.do(SandboxOp{Verb: VerbRemove, Driver: o.driver, ID: o.info.ID}, func(result SandboxResult) {
		if result.Err != nil {
			m.after("orphan/"+o.info.ID, backoff(o.removes), func() { m.removeOrphan(o) })
			o.removes++
			return
		}
		m.log(actors.LogInfo, "sandbox that was not in the journal is removed", "sandbox", o.info.ID, "run", o.info.Run)
		delete(m.orphans, o.info.ID)
		m.pump()
	})
}
