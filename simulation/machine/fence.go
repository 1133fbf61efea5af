package machine

import (
	"slices"

	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/simulation/history"
)

// fence is the memory that keeps the fence's state, and the processes that kill
// when its deadline has passed: the guard, and the log process of each sandbox.
// They work while the daemon is dead. When no state is armed they do nothing.
type fence struct {
	machine *Machine
	state   nodes.FenceState
	armed   bool
	guard   bool
	// unset stops the timer of the deadline, stopLook that of the next look at what
	// there is to kill.
	unset    func()
	stopLook func()
	// unkilled is set while something runs behind the deadline and nobody is left who
	// would kill it.
	unkilled bool
}

const (
	slowKillFault = "kill slower than its budget"
	unkilledFault = "nobody left to kill at the fence"
)

type fencePort struct{ daemon *Daemon }

var _ nodes.Fence = fencePort{}

// Load returns the state that was last armed.
func (p fencePort) Load() (nodes.FenceState, bool) {
	f := &p.daemon.machine.fence
	return f.state, f.armed
}

// Arm replaces the state. One of the same session keeps the FencedAt that it has.
func (p fencePort) Arm(state nodes.FenceState) {
	if p.daemon.dead {
		return
	}
	f := &p.daemon.machine.fence
	if f.armed && f.state.Session == state.Session && f.state.BootID == state.BootID && f.state.FencedAt != 0 {
		state.FencedAt = f.state.FencedAt
	}
	f.state, f.armed = state, true
	f.watch()
}

// FenceState returns what is armed; ok is false when nothing is.
func (m *Machine) FenceState() (state nodes.FenceState, ok bool) { return m.fence.state, m.fence.armed }

// KillGuard kills the guard process; StartGuard starts it again, as a boot does.
func (m *Machine) KillGuard() {
	if m.fence.guard {
		m.fence.guard = false
		m.note(history.KindMachine, "guard killed")
		m.fence.judge()
	}
}

// StartGuard starts the guard process if it does not run.
func (m *Machine) StartGuard() {
	if !m.fence.guard && !m.off {
		m.fence.guard = true
		m.note(history.KindMachine, "guard started")
		m.fence.watch()
	}
}

func (f *fence) boot() { f.guard = true }

func (f *fence) powerOff() {
	f.guard, f.armed, f.state = false, false, nodes.FenceState{}
	f.unset, f.stopLook = nil, nil // the timers went with the power
	f.judge()
}

// watch sets the timer of the deadline.
func (f *fence) watch() {
	if f.unset != nil {
		f.unset()
		f.unset = nil
	}
	if f.armed {
		f.unset = f.machine.timers.after(f.state.Deadline-f.machine.boottime(), true, f.look)
	}
}

// passed tells whether nothing may run any more.
func (f *fence) passed() bool {
	return f.armed && (f.state.FencedAt != 0 || f.machine.boottime() >= f.state.Deadline)
}

// look is one look of the guard and the log processes at what there is to kill:
// at the deadline, and again as long as something is left or comes up.
func (f *fence) look() {
	f.judge()
	m := f.machine
	who := f.enforcer()
	if !f.passed() || who == "" {
		return
	}
	if f.state.FencedAt == 0 {
		f.state.FencedAt = m.boottime()
		m.note(history.KindMachine, who)
	}
	for _, b := range m.runtime.sorted() {
		if b.fenced() && !b.fencing {
			b.fencing = true
			took := m.Faults.Fence.Kill.Draw(m.random)
			slow := took > m.killBudget
			if slow {
				m.outside(slowKillFault, true)
			}
			m.timers.after(took, false, func() {
				b.fencing = false
				b.die(causeFence)
				if slow {
					m.outside(slowKillFault, false)
				}
			})
		}
	}
}

// judge notes whether something runs behind the deadline that nobody will kill: with
// the guard, the log processes and the daemon all dead the fence is only a number, which
// is outside the fencing model.
func (f *fence) judge() {
	m := f.machine
	// A daemon that has not read its journal yet knows of nothing that it would kill, and
	// it kills by the runtime.
	able := m.daemon != nil && m.daemon.informed && m.Faults.Runtime.UnavailableRate < 1
	unkilled := !able && f.passed() && f.enforcer() == "" && slices.ContainsFunc(m.runtime.sorted(), (*box).fenced)
	if unkilled != f.unkilled {
		f.unkilled = unkilled
		m.outside(unkilledFault, unkilled)
	}
}

// enforcer says who of them is there to kill; empty when nobody is.
func (f *fence) enforcer() string {
	if f.guard {
		return "guard fences"
	}
	for _, b := range f.machine.runtime.sorted() {
		if b.logger && !b.unfenced {
			return "log process fences"
		}
	}
	return ""
}

// appeared is called when a command starts: behind the deadline it is killed too.
func (f *fence) appeared() {
	f.judge()
	if !f.passed() || f.stopLook != nil {
		return
	}
	f.stopLook = f.machine.timers.after(f.machine.Faults.Fence.Look.Draw(f.machine.random), false, func() {
		f.stopLook = nil
		f.look()
	})
}
