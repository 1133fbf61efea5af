package nodes

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// stopWish is why and how a placement shall end.
type stopWish struct {
	cause recordv1.StopCause
	force bool
	// onlyBeforeStart leaves alone what runs.
	onlyBeforeStart bool
	reason          recordv1.Reason
	message         string
}

// stop ends a placement. What provably has not started becomes a void; what is
// being started is stopped when that is decided; what runs gets TERM, the grace
// and KILL, after the cause is in the journal. Repeating a stop does no harm, and
// a later force shortens the grace.
func (m *Machine) stop(p *placement, wish stopWish) {
	defer m.settle(p)
	switch {
	case p.ended():
	case !p.startCalled && !p.started() && !p.recovered:
		m.giveUp(p, wish)
	case wish.onlyBeforeStart:
		// The run seems not to have heard that it has started.
		m.remind(p)
	case !p.started():
		if p.wish == nil || wish.force && !p.wish.force {
			p.wish = &wish
		}
	default:
		m.stopRunning(p, wish)
	}
}

// giveUp makes a void of a placement that has not come to its start. One that the
// start deadline ends says what held it up; a create is broken off and heard out
// for a moment, for it knows best.
func (m *Machine) giveUp(p *placement, wish stopWish) {
	void := &recordv1.Void{Reason: wish.reason, Message: wish.message}
	late := wish.reason == recordv1.Reason_REASON_START_DEADLINE
	switch {
	case late && p.overdue != nil:
	case late && p.creating:
		p.overdue = &recordv1.Void{Message: m.stillCreating(p)}
		m.emit(AbandonCreate{Driver: p.entry.GetDriver(), ID: p.id})
		m.after("overdue/"+p.id, LastWordMax, func() { m.void(p, p.overdue) })
	case late && p.queued:
		m.void(p, &recordv1.Void{Message: m.stillQueued(p)})
	default:
		m.voidUnstarted(p, void)
	}
}

// lastWord is the void of a placement whose create was broken off by the start
// deadline: the cause that the create gives, if it has one of its own.
func lastWord(p *placement, err error) *recordv1.Void {
	var start *sandbox.StartError
	brokenOff := errors.Is(err, context.Canceled) || records.ClassOf(err) == records.ClassDeadline
	if errors.As(err, &start) || err != nil && !brokenOff {
		return voidOf(p.id, err)
	}
	return p.overdue
}

func (m *Machine) stillCreating(p *placement) string {
	what := "sandbox"
	if image := p.assignment.GetSpec().GetImage(); image != "" {
		what += " of image " + image
	}
	return clip("still creating the " + what + " after " + (m.now.Mono - p.creatingFrom).Round(time.Second).String())
}

func (m *Machine) stillQueued(p *placement) string {
	if !m.startable(p) {
		return "an earlier sandbox of the run is not gone yet"
	}
	return "too many sandboxes are being created"
}

// voidUnstarted makes a void of a placement whose start was not called, or was
// refused for sure. A "starting" that is on its way to the disk gets there first.
func (m *Machine) voidUnstarted(p *placement, v *recordv1.Void) {
	if p.writing && p.entry.GetState() == recordv1.JournalState_JOURNAL_STATE_STARTING && !p.startCalled {
		p.withdrawn = v
		return
	}
	m.void(p, v)
}

func (m *Machine) stopRunning(p *placement, wish stopWish) {
	first := p.entry.GetStopCause() == recordv1.StopCause_STOP_CAUSE_UNSPECIFIED
	if first {
		p.entry.StopCause = wish.cause
		p.wish = &wish
		m.persist(p, func() { m.stopJournaled(p) })
		return
	}
	if p.wish == nil {
		p.wish = &wish
	}
	p.wish.force = p.wish.force || wish.force
	if p.stopping && wish.force {
		m.kill(p)
		return
	}
	if !p.writing {
		m.stopJournaled(p)
	}
}

// stopJournaled sends the signal of a stop whose cause is on the disk.
func (m *Machine) stopJournaled(p *placement) {
	if !p.started() || p.stopping || p.entry.GetStopCause() == recordv1.StopCause_STOP_CAUSE_UNSPECIFIED {
		return
	}
	p.stopping = true
	if p.wish != nil && p.wish.force {
		m.kill(p)
		return
	}
	m.log(actors.LogInfo, "stopping", "run", p.key.Run, "attempt", p.key.Attempt, "cause", records.Word(p.entry.GetStopCause()))
	m.signal(p, int32(syscall.SIGTERM), func() {})
	m.after("grace/"+p.id, time.Duration(p.entry.GetStopGraceMs())*time.Millisecond, func() { m.kill(p) })
}

// signal sends one and remembers whether it reached the process. An exit that is
// seen meanwhile waits for the answer.
func (m *Machine) signal(p *placement, signal int32, then func()) {
	p.signals++
	sent := m.note(p, signal)
	m.do(SandboxOp{Verb: VerbSignal, Driver: p.entry.GetDriver(), ID: p.id, Signal: int(signal)}, func(result SandboxResult) {
		p.signals--
		m.answered(p, sent, result)
		p.delivered = p.delivered || result.Err == nil && result.Delivered
		if result.Err != nil {
			p.unsure = p.unsure || records.ClassOf(result.Err) != records.ClassNotFound
			m.log(actors.LogWarn, "signal failed", "run", p.key.Run, "signal", signal, "error", result.Err.Error())
		}
		if p.observed != nil && p.signals == 0 {
			m.exit(p, p.observed)
		}
		then()
		m.settle(p)
	})
}

// kill ends the grace: KILL to the command, so that its exit is seen as one of a
// signal of ours, then to everything else.
func (m *Machine) kill(p *placement) {
	if p.killing || !p.started() {
		return
	}
	p.killing = true
	m.cancel("grace/" + p.id)
	m.signal(p, int32(syscall.SIGKILL), func() { m.killAll(p, 0) })
}

func (m *Machine) killAll(p *placement, try int) {
	if !p.started() {
		return
	}
	m.do(SandboxOp{Verb: VerbKill, Driver: p.entry.GetDriver(), ID: p.id}, func(result SandboxResult) {
		if !p.started() {
			return
		}
		if result.Err != nil {
			m.warn(try, "kill failed; it is tried again", "run", p.key.Run, "error", result.Err.Error())
			m.after("kill/"+p.id, backoff(try), func() { m.killAll(p, try+1) })
			return
		}
		p.killed = p.unsure || result.Leftover
		m.expectExit(p)
	})
}

// expectExit bounds the wait for an exit that must be there.
func (m *Machine) expectExit(p *placement) {
	p.expected = true
	m.after("exit/"+p.id, ExitAfterKillMax, func() {
		if !p.ended() {
			m.exit(p, lost("its processes are gone and the driver does not say how they ended"))
		}
	})
}
