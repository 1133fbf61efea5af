package machine

import (
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/simulation/history"
)

// Daemon is one life of the daemon on a machine, and the ports of that life.
type Daemon struct {
	// informed tells that it has read its journal.
	informed bool
	machine  *Machine
	life     int
	dead     bool
	// diedAt is when it ended, on the monotonic clock.
	diedAt time.Duration
	clock  clock
}

// Launch begins a daemon's life; one that lives ends. The machine must be on.
func (m *Machine) Launch() *Daemon {
	if m.daemon != nil {
		m.daemon.Crash()
	}
	m.lives++
	d := &Daemon{machine: m, life: m.lives}
	d.clock.daemon = d
	d.clock.skip()
	m.daemon = d
	m.note(history.KindDaemon, "launched")
	m.fence.judge()
	return d
}

// Crash ends the life at once, as a kill does: nothing is delivered to it any more,
// what the disk has not got is lost, sandboxes go on.
func (d *Daemon) Crash() {
	if d.dead {
		return
	}
	d.machine.note(history.KindDaemon, "crashed")
	d.end()
}

func (d *Daemon) end() {
	if d.dead {
		return
	}
	d.dead = true
	d.diedAt, _, _ = d.machine.oscillator.read(d.machine.now())
	d.machine.daemon = nil
	d.machine.disk.crash()
	d.machine.runtime.crash()
	d.machine.fence.judge()
}

// Dead tells whether the life has ended.
func (d *Daemon) Dead() bool { return d.dead }

// Life numbers the daemons of a machine.
func (d *Daemon) Life() int { return d.life }

// Machine is where it lives.
func (d *Daemon) Machine() *Machine { return d.machine }

// Deliver lets something from outside reach the daemon: now, or when the machine is
// resumed, or never if the daemon has ended by then. It is called from the
// timeline.
func (d *Daemon) Deliver(deliver func()) {
	if d.dead {
		return
	}
	if m := d.machine; !m.Paused() && len(m.held) == 0 {
		deliver()
		return
	}
	d.machine.admit(func() {
		if !d.dead {
			deliver()
		}
	})
}

// Clock is the machine's time as this life of the daemon knows it.
func (d *Daemon) Clock() actors.Clock { return &d.clock }

// Journal is the journal on the machine's disk.
func (d *Daemon) Journal() nodes.Journal { return journalPort{d} }

// Fence is the memory that keeps the fence.
func (d *Daemon) Fence() nodes.Fence { return fencePort{d} }

// Sandboxes are the machine's.
func (d *Daemon) Sandboxes() nodes.Sandboxes { return sandboxes{d} }

// answer delivers a result of the machine to this life.
func (d *Daemon) answer(deliver func()) {
	if !d.dead {
		deliver()
	}
}
