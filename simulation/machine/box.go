package machine

import (
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/virtual"
)

// Signals that mean something here.
const (
	sigkill = 9
	sigterm = 15
	// signalBase plus a signal is the code of a death by it.
	signalBase = 128
)

// Who ended a command, as the history names it.
const (
	causeItself   = "itself"
	causeSignal   = "signal"
	causeKill     = "kill"
	causeFence    = "fence"
	causeReboot   = "reboot"
	causeVanished = "vanished"
)

// box is a sandbox and its processes.
type box struct {
	runtime *runtime
	driver  string
	info    sandbox.Info
	program Program
	token   uint64

	// main and child tell which of its processes live.
	main, child bool
	// logger is its log process.
	logger bool
	// barred sandboxes start nothing any more: they were killed.
	barred bool
	// lost ends were seen by nobody: there is no code.
	lost bool
	// unfenced boxes are left alone by who kills at the fence.
	unfenced bool
	// fencing is set while a kill by the fence is under way.
	fencing bool
	// code and cause are the truth of the end of the main process.
	code  int32
	cause string
	exit  sandbox.Exit

	stopMain, stopChild func()
	waiters             []waiter
}

// waiter is a Wait that is not answered yet.
type waiter struct {
	daemon  *Daemon
	deliver func(nodes.SandboxResult)
}

func (b *box) alive() bool { return b.main || b.child }

// fenced tells whether something of it runs that may not outlive the session.
func (b *box) fenced() bool { return b.alive() && !b.unfenced }

// start starts the command.
func (b *box) start() {
	m := b.runtime.machine
	b.info.State, b.main = sandbox.StateRunning, true
	b.logger = !virtual.Chance(m.random, m.Faults.Runtime.LoglessRate)
	b.exit.StartedAt = m.wallNow()
	b.command(true)
	b.stopMain = m.timers.after(b.program.After, false, func() {
		if b.program.Signal != 0 {
			b.endMain(signalBase+b.program.Signal, b.program.Signal, b.program.OOM, causeItself)
		} else {
			b.endMain(b.program.Code, 0, false, causeItself)
		}
	})
	if b.program.Fork > 0 {
		b.child = true
		b.stopChild = m.timers.after(b.program.Fork, false, b.endChild)
	}
	m.fence.appeared()
}

// command tells the history of a start, or of the end of the last process.
func (b *box) command(started bool) {
	m := b.runtime.machine
	detail := history.Command{Sandbox: b.info.ID, Started: started, Token: b.token}
	text := "starts"
	if !started {
		detail.Code, detail.Cause = b.code, b.cause
		text = b.cause
	}
	m.history.Add(history.Event{
		Step: m.step(), At: m.now(), Kind: history.KindCommand, Node: m.name,
		Run: b.info.Run, Attempt: b.info.Attempt, Placement: b.info.Placement, Text: text, Detail: detail,
	})
}

// note tells the history of any other step.
func (b *box) note(text string) { b.runtime.note(b.info, text) }

// signal reaches the command, if it runs.
func (b *box) signal(signal int32) (delivered bool) {
	if !b.main {
		return false
	}
	switch {
	case signal == sigterm && b.program.OnTerm:
		b.stopMain()
		b.stopMain = b.runtime.machine.timers.after(b.program.TermAfter, false, func() {
			b.endMain(b.program.TermCode, 0, false, causeSignal)
		})
	case signal == sigterm && b.program.IgnoreTerm:
	default:
		b.endMain(signalBase+signal, signal, false, causeSignal)
	}
	return true
}

// endMain ends the main process. The runtime sees that, unless it is lost.
func (b *box) endMain(code, signal int32, oom bool, cause string) {
	if !b.main {
		return
	}
	b.stopMain()
	b.main, b.code, b.cause = false, code, cause
	if !b.lost {
		seen := code
		b.exit.Code, b.exit.Signal, b.exit.OOMKilled = &seen, signal, oom
		b.exit.Source = "machine"
		b.settle()
		b.exited()
	}
	b.gone()
}

// settle lets a supervisor see to all that is left to do, and put the exit on the
// disk, where that is so here.
func (b *box) settle() {
	m := b.runtime.machine
	if !virtual.Chance(m.random, m.Faults.Runtime.DurableRate) {
		return
	}
	b.exit.Durable, b.exit.Settled = true, true
	b.exit.Leftover, b.exit.LogComplete = b.child, b.completes()
	if b.child {
		b.stopChild()
		b.child = false
	}
}

// completes tells whether the log is complete when its process ends it.
func (b *box) completes() bool {
	m := b.runtime.machine
	return b.logger && !virtual.Chance(m.random, m.Faults.Runtime.IncompleteRate)
}

// exited makes the end known to the runtime.
func (b *box) exited() {
	b.exit.At = b.runtime.machine.wallNow()
	b.info.State = sandbox.StateExited
	waiters := b.waiters
	b.waiters = nil
	for _, w := range waiters {
		b.report(w)
	}
}

// report answers a Wait, later.
func (b *box) report(w waiter) {
	m := b.runtime.machine
	result := nodes.SandboxResult{Exit: b.exit}
	delay := m.Faults.Runtime.ExitDelay.Draw(m.random)
	answer := func() { w.daemon.answer(func() { w.deliver(result) }) }
	m.timers.after(delay, false, answer)
	if virtual.Chance(m.random, m.Faults.Runtime.DoubleRate) {
		m.timers.after(delay+m.Faults.Runtime.ExitDelay.Draw(m.random), false, answer)
	}
}

func (b *box) endChild() {
	if b.child {
		b.stopChild()
		b.child = false
		b.gone()
	}
}

// gone tells of the end of the last process.
func (b *box) gone() {
	if !b.alive() {
		b.command(false)
		b.runtime.machine.fence.judge()
	}
}

// die ends every process at once.
func (b *box) die(cause string) {
	b.endMain(signalBase+sigkill, sigkill, false, cause)
	b.endChild()
}

// lose makes the runtime lose sight of a command, whose end nobody will see.
func (b *box) lose(message string) {
	if b.lost || b.info.State != sandbox.StateRunning {
		return
	}
	b.lost = true
	m := b.runtime.machine
	b.exit.Code, b.exit.Reason, b.exit.Message = nil, reasonLost, message
	if virtual.Chance(m.random, m.Faults.Runtime.LieRate) {
		lie := []int32{signalBase + sigkill, 255}[m.random.IntN(2)]
		b.exit.Code, b.exit.Reason = &lie, 0
	}
	b.exited()
}
