package nodes

import (
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// awaitExit asks for the exit until it is known.
func (m *Machine) awaitExit(p *placement) {
	if p.waiting || p.ended() {
		return
	}
	p.waiting = true
	m.awaitExitTry(p, 0)
}

func (m *Machine) awaitExitTry(p *placement, try int) {
	p.waitTag, p.waitTry = m.nextTag(), try
	m.emit(DoSandbox{Tag: p.waitTag, Op: SandboxOp{Verb: VerbWait, Driver: p.entry.GetDriver(), ID: p.id}})
}

// waited takes what a driver says of the end that was waited for: of a placement that
// may have been at rest all the while.
func (m *Machine) waited(in SandboxDone) {
	p := m.find(in.Op.ID)
	if p == nil || p.waitTag != in.Tag {
		return
	}
	p.waitTag = 0
	switch result := in.Result; {
	case p.ended():
	case result.Err == nil:
		seen := result.Exit
		p.seen = &seen
		m.observe(p, exitOf(result.Exit))
	case records.ClassOf(result.Err) == records.ClassNotFound:
		m.observe(p, lost("the sandbox is gone"))
	default:
		// Unavailable is never lost.
		try := p.waitTry
		m.after("wait/"+p.id, backoff(try), func() {
			if !p.ended() {
				m.awaitExitTry(p, try+1)
			}
		})
	}
	m.settle(p)
}

func exitOf(exit sandbox.Exit) *recordv1.Exit {
	out := &recordv1.Exit{
		Code: exit.Code, Signal: exit.Signal, OomKilled: exit.OOMKilled, Reason: exit.Reason,
		Message: clip(exit.Message), Source: exit.Source, MemoryPeakBytes: exit.MemoryPeakBytes,
	}
	if !exit.StartedAt.IsZero() {
		out.StartedAt = exit.StartedAt.UnixMilli()
	}
	if !exit.At.IsZero() {
		out.At = exit.At.UnixMilli()
	}
	if out.Code == nil && out.Reason == recordv1.Reason_REASON_UNSPECIFIED {
		out.Reason = recordv1.Reason_REASON_SANDBOX_LOST
	}
	return out
}

func lost(message string) *recordv1.Exit {
	return &recordv1.Exit{Reason: recordv1.Reason_REASON_SANDBOX_LOST, Message: message}
}

// slain is the end of a sandbox that somebody outside of it has killed: how its command
// would have ended, nobody knows.
func slain(seen *recordv1.Exit) *recordv1.Exit {
	end := lost("its sandbox was killed from outside, with all that ran in it: neither its command nor errand did that, nor the kernel for want of memory")
	end.StartedAt, end.At, end.Source = seen.GetStartedAt(), seen.GetAt(), seen.GetSource()
	return end
}

// observe takes an exit that the driver reports. While a signal of ours is under
// way it is not known yet whether that reached the process.
func (m *Machine) observe(p *placement, exit *recordv1.Exit) {
	if p.signals > 0 {
		p.observed = exit
		return
	}
	m.exit(p, exit)
}

// exit journals the end of a placement and sees to it that nothing is left; when
// both are done, it is told. What the command's own end has left may be cleared
// away while the disk is busy: the driver still knows that end after a crash. An
// end without a code is journaled first, for the kill must not pass for it (G7).
// An end that the driver has on its disk is told while the journal is written.
func (m *Machine) exit(p *placement, exit *recordv1.Exit) {
	if p.ended() {
		return
	}
	p.observed = nil
	exit = m.underFence(p, exit)
	if exit.Code != nil && p.seen.Slain && untouched(p) {
		exit = slain(exit)
	}
	m.afterReboot(p, exit)
	if exit.GetAt() == 0 {
		exit.At = m.now.Milli()
	}
	if exit.GetStartedAt() == 0 {
		exit.StartedAt = p.entry.GetStartedAt()
	}
	exit.AdoptedAt = p.entry.GetAdoptedAt()
	exit.StopCause = p.entry.GetStopCause()
	exit.StopDelivered = stopDelivered(p, exit)
	p.entry.State = recordv1.JournalState_JOURNAL_STATE_EXITED
	p.entry.Exit = exit
	m.endTimers(p)
	m.releaseSlot(p)
	m.dequeue(p)
	observed := exit.Code != nil
	// What the driver says later may be our kill where a session can be fenced, so there
	// only the journal counts.
	p.durable = observed && p.seen.Durable && untouched(p) && !m.leased()
	if observed && p.seen.Settled {
		exit.Leftover, exit.LogComplete, exit.LogUnwritten = p.seen.Leftover, p.seen.LogComplete, p.seen.LogUnwritten
		p.emptied, p.flushed = true, true
		m.warnOfLog(p)
	}
	m.persist(p, func() {
		p.durable, p.journaled = true, true
		if !observed {
			m.empty(p, 0)
		}
		m.tellEnd(p)
		m.emptyPerhaps()
	})
	if observed && !p.flushed {
		m.empty(p, 0)
	}
	m.tellEnd(p)
	m.settle(p)
}

// untouched tells whether no stop has to do with an end: what a life of the node knows
// of the signals that it has sent is in the journal only.
func untouched(p *placement) bool {
	return p.entry.GetStopCause() == recordv1.StopCause_STOP_CAUSE_UNSPECIFIED && !p.stopping && !p.delivered && !p.unsure && !p.killed
}

// tellEnd tells an end that is durable and of which nothing is left. The driver keeps
// what it knows of it until it is in the journal.
func (m *Machine) tellEnd(p *placement) {
	if !p.durable || !p.flushed {
		return
	}
	if !p.reporting {
		m.report(p)
	}
	if p.journaled {
		m.tearDown(p)
	}
}

// stopDelivered tells whether a stop of ours reached the command. Whoever saw the
// command end knows it best: a signal that the driver took may have come too late, and
// the answer to one that did not may be lost.
func stopDelivered(p *placement, exit *recordv1.Exit) bool {
	told := takeSignals(p.entry, exit) || p.delivered
	reached := p.seen.Reached
	if reached == nil || exit.Code == nil {
		return told || (p.recovered || p.unsure) && stoppedByUs(p.entry, exit) || p.killed && exit.Code == nil
	}
	if !*reached {
		for _, sent := range exit.GetSignals() {
			sent.Delivered = proto.Bool(false)
		}
	}
	return *reached && p.entry.GetStopCause() != recordv1.StopCause_STOP_CAUSE_UNSPECIFIED
}

// stoppedByUs infers, when the answer to a stop was lost in a crash or did not
// come, that an end by a stop signal was ours: the cause was on the disk before
// the signal was sent.
func stoppedByUs(entry *recordv1.JournalEntry, exit *recordv1.Exit) bool {
	const term, kill = 15, 9
	return entry.GetStopCause() != recordv1.StopCause_STOP_CAUSE_UNSPECIFIED && exit.Code != nil &&
		(exit.GetSignal() == term || exit.GetSignal() == kill)
}

func (m *Machine) endTimers(p *placement) {
	m.unwatchTimeout(p)
	for _, name := range []string{"grace/", "note/", "kill/", "exit/", "wait/", "inquire/", "overdue/"} {
		m.cancel(name + p.id)
	}
}

// empty kills what outlived the command: terminal means gone (G4), so nothing is
// told before that is sure.
func (m *Machine) empty(p *placement, try int) {
	if try == 0 && p.emptying {
		return
	}
	p.emptying = true
	// A start that is under way may come after the kill.
	early := p.starting
	m.do(SandboxOp{Verb: VerbKill, Driver: p.entry.GetDriver(), ID: p.id}, func(result SandboxResult) {
		if result.Err != nil {
			m.warn(try, "sandbox is not empty; it is tried again", "run", p.key.Run, "error", result.Err.Error())
		}
		if result.Err != nil || early {
			m.after("empty/"+p.id, m.killPause(try), func() { m.empty(p, try+1) })
			return
		}
		if !p.foreign {
			p.entry.Exit.Leftover = p.entry.GetExit().GetLeftover() || result.Leftover
		}
		if p.entry.GetExit().Code == nil {
			// Nobody saw the end: from here on it is sure that nothing of it runs.
			p.entry.Exit.EmptiedAt = m.now.Milli()
		}
		p.emptied = true
		m.settle(p)
		m.flush(p)
	})
}

// flush completes the log; a log that can not be is told as incomplete.
func (m *Machine) flush(p *placement) {
	if p.foreign {
		// What writes that log now is not its command.
		p.flushed = true
		m.tellEnd(p)
		return
	}
	m.do(SandboxOp{Verb: VerbFlush, Driver: p.entry.GetDriver(), ID: p.id}, func(result SandboxResult) {
		p.entry.Exit.LogComplete = result.Err == nil && result.Complete
		p.entry.Exit.LogUnwritten = errors.Is(result.Err, sandbox.ErrLogUnwritten)
		p.flushed = true
		m.warnOfLog(p)
		m.tellEnd(p)
	})
}

// warnOfLog says and counts that the log of a command whose end was seen is not all that
// it wrote: the disk is full or fails, which is trouble for all that run here, or it was
// more than the limit, or somebody has killed the logger.
func (m *Machine) warnOfLog(p *placement) {
	exit := p.entry.GetExit()
	if exit.Code == nil || exit.GetLogComplete() {
		return
	}
	level, cause := actors.LogWarn, "it is larger than its limit, its logger was killed, or its disk had no room for its last words"
	if m.logsIncomplete++; exit.GetLogUnwritten() {
		m.logsUnwritten++
		level, cause = actors.LogError, "the disk of the logs did not take all"
	}
	m.log(level, "log of a run is not complete", "run", p.key.Run, "attempt", p.key.Attempt, "cause", cause)
}

// void journals that a placement never started.
func (m *Machine) void(p *placement, v *recordv1.Void) {
	v.At = m.now.Milli()
	p.entry.State = recordv1.JournalState_JOURNAL_STATE_VOID
	p.entry.Void = v
	m.dequeue(p)
	m.cancel("overdue/" + p.id)
	if p.creating && p.overdue == nil {
		m.emit(AbandonCreate{Driver: p.entry.GetDriver(), ID: p.id})
	}
	m.persist(p, func() {
		m.report(p)
		m.tearDown(p)
	})
	m.settle(p)
}

// report tells the outcome until it is acknowledged, also past an owner that takes the
// reports and gets nowhere: this node may be that owner.
func (m *Machine) report(p *placement) {
	p.reporting = true
	if p.acked || p.quarantined || m.phase < PhaseRegistered {
		return
	}
	past := actors.Past(p.told)
	p.told++
	if state := p.entry.GetState(); state == recordv1.JournalState_JOURNAL_STATE_EXITED {
		m.tellPast(past, p.key.Run, &actorv1.Exited{
			Run: p.key.Run, Attempt: p.key.Attempt, Placement: p.key.Placement, Node: m.config.ID,
			Exit: proto.CloneOf(p.entry.GetExit()),
		})
	} else {
		m.tellPast(past, p.key.Run, &actorv1.Voided{
			Run: p.key.Run, Attempt: p.key.Attempt, Placement: p.key.Placement, Node: m.config.ID,
			Void: proto.CloneOf(p.entry.GetVoid()),
		})
	}
	m.after("report/"+p.id, backoff(p.reports), func() {
		if p.reports++; p.reports == 1 {
			// It may take long: remember what is done by now.
			m.persist(p, func() {})
		}
		m.report(p)
	})
}

// remind tells a run again what it seems not to have heard. What reminds is the
// activation that works, which need not be where the last word went: a start, which is
// not repeated otherwise, is told one rank further each time.
func (m *Machine) remind(p *placement) {
	if p.reporting && !p.acked {
		p.reports = 0
		m.report(p)
		return
	}
	if !p.writing && !p.held {
		p.reminders++
		m.tellStarted(p)
	}
}

// tearDown removes what the sandbox left, beside the report.
func (m *Machine) tearDown(p *placement) {
	if p.creating || p.tearing || p.tornDown {
		return
	}
	p.tearing = true
	if p.foreign {
		m.tornDown(p)
		return
	}
	if !p.mayExist && !p.recovered && !p.startCalled && p.entry.GetState() == recordv1.JournalState_JOURNAL_STATE_VOID {
		m.tornDown(p)
		return
	}
	m.removeTry(p, 0)
}

func (m *Machine) removeTry(p *placement, try int) {
	again := func(what string, err error) {
		m.warn(try, what+" failed; it is tried again", "run", p.key.Run, "sandbox", p.id, "error", err.Error())
		m.removeFailed(p.id, "remove/"+p.id, try, err, func() { m.removeTry(p, try+1) })
	}
	remove := func() {
		m.do(SandboxOp{Verb: VerbRemove, Driver: p.entry.GetDriver(), ID: p.id}, func(result SandboxResult) {
			if result.Err != nil {
				again("remove", result.Err)
				return
			}
			m.tornDown(p)
		})
	}
	if p.emptied {
		remove()
		return
	}
	m.do(SandboxOp{Verb: VerbKill, Driver: p.entry.GetDriver(), ID: p.id}, func(result SandboxResult) {
		if result.Err != nil {
			again("kill", result.Err)
			return
		}
		remove()
	})
}

func (m *Machine) tornDown(p *placement) {
	p.tornDown = true
	p.entry.TornDown = true
	delete(m.removals, p.id)
	m.forgetPerhaps(p)
}

// ack takes note that an outcome is durable, or that nobody knows the run.
func (m *Machine) ack(ack *actorv1.Ack) {
	p := m.placementOf(ack.GetRun(), ack.GetAttempt(), ack.GetPlacement())
	if p == nil || !p.reporting || p.acked {
		return
	}
	m.cancel("report/" + p.id)
	if ack.GetUnknown() {
		m.quarantine(p)
		return
	}
	p.acked, p.ackCommit = true, ack.GetCommit()
	p.entry.AckedAtRevision = ack.GetCommit()
	m.acknowledged[p.id] = p
	m.settle(p)
	m.forgetPerhaps(p)
}

// quarantine keeps an outcome that no run wants, for a day: the run may come back
// with a restored store.
func (m *Machine) quarantine(p *placement) {
	if p.quarantined {
		return
	}
	p.quarantined = true
	m.settle(p)
	m.log(actors.LogWarn, "run is not known; its outcome is kept for a while", "run", p.key.Run, "attempt", p.key.Attempt)
	m.persist(p, func() {})
	left := QuarantineHold - time.Duration(m.now.Milli()-endedAt(p.entry))*time.Millisecond
	m.after("quarantine/"+p.id, min(max(left, 0), QuarantineHold), func() {
		p.acked = true
		m.forgetPerhaps(p)
	})
}

// forgetPerhaps drops the entry when the outcome is acknowledged, the watch has
// passed the acknowledged revision, and nothing is left on the machine. Earlier, a
// watch that lags would bring the assignment back and start the command again.
func (m *Machine) forgetPerhaps(p *placement) {
	if m.placements[p.id] != p || !p.acked || !p.tornDown || p.writing || len(p.written) > 0 || m.assignments.Revision() < max(p.ackCommit, p.entry.GetCommit()) {
		return
	}
	m.drop(p)
	m.journal(JournalChange{Deletes: []PlacementKey{p.key}}, func() {})
}
