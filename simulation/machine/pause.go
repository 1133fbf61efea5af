package machine

import "github.com/errand-run/errand/simulation/history"

// Pause is a way in which everything on a machine stands still.
type Pause uint8

// The ways. What a paused machine does not see, it sees when it is resumed.
const (
	// Running is no pause.
	Running Pause = iota
	// Stopped stops all processes; the clocks go on.
	Stopped
	// Suspended stops the monotonic clock too; boottime and the wall go on.
	Suspended
	// Frozen stops all clocks, as a virtual machine's that is halted and knows nothing
	// of it. Boottime does not count it, so it is outside the fencing model.
	Frozen
)

const frozenFault = "pause that boottime does not count"

// Pause pauses the machine, or changes the way in which it is paused. A machine
// that is off can not be.
func (m *Machine) Pause(how Pause) {
	if m.off || m.pause == how {
		return
	}
	if how == Running {
		m.Resume()
		return
	}
	was := m.pause
	m.change(func(o *oscillator) {
		o.monoStands = how == Suspended || how == Frozen
		o.bootStands, o.wallStands = how == Frozen, how == Frozen
	})
	m.pause = how
	m.note(history.KindMachine, pauseNames[how])
	if (was == Frozen) != (how == Frozen) {
		m.outside(frozenFault, how == Frozen)
	}
}

var pauseNames = [...]string{Running: "resumed", Stopped: "stopped", Suspended: "suspended", Frozen: "frozen"}

// String returns the pause in a word.
func (p Pause) String() string { return pauseNames[p] }

// Resume ends a pause. What it has kept back happens next, in order.
func (m *Machine) Resume() {
	if m.pause == Running {
		return
	}
	was := m.pause
	m.pause = Running
	if m.daemon != nil {
		m.daemon.clock.skip()
	}
	m.change(func(o *oscillator) { o.monoStands, o.bootStands, o.wallStands = false, false, false })
	m.note(history.KindMachine, pauseNames[Running])
	if was == Frozen {
		m.outside(frozenFault, false)
	}
	m.drain()
}

// Paused tells whether the machine stands still: its actors must take no turn.
func (m *Machine) Paused() bool { return m.pause != Running }

// admit lets something happen now, or when the machine is resumed, after what was
// held back before.
func (m *Machine) admit(happen func()) {
	if m.Paused() || len(m.held) > 0 {
		m.held = append(m.held, happen)
		return
	}
	happen()
}

// drain lets what was held back happen from the timeline.
func (m *Machine) drain() {
	if m.draining || len(m.held) == 0 {
		return
	}
	m.draining = true
	m.timeline.After(0, func() {
		m.draining = false
		for len(m.held) > 0 && !m.Paused() {
			happen := m.held[0]
			m.held[0] = nil
			m.held = m.held[1:]
			happen()
		}
	})
}
