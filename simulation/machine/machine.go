// Package machine is the hardware of one simulated machine, and what lives on it
// beside the daemon: its clocks, the disk of its journal, the memory that keeps the
// fence, its sandboxes, and the processes that kill when the fence has passed.
//
// All of it outlives daemons. Launch begins a daemon's life and returns the ports
// that this one life uses; Crash ends it, and then nothing is delivered to it any
// more, while what it had asked of the sandboxes may still happen. PowerOff ends
// everything but the disk, PowerOn boots.
//
// A Machine that is paused does nothing at all: no timer fires, no command ends, no
// guard kills and no delivery arrives until Resume, which then lets all of it
// happen in the order in which it would have. What other models deliver to a daemon
// goes through Daemon.Deliver for that reason.
//
// The fields of Faults may be changed at any time. Everything here belongs to the
// one goroutine of the world.
package machine

import (
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/virtual"
)

// Epoch is what a right wall clock shows when the world begins.
var Epoch = time.Date(2026, 1, 5, 9, 0, 0, 0, time.UTC)

// Options are what a machine is made of.
type Options struct {
	// Name is the machine's own; the daemons on it may claim any node's name.
	Name     string
	Timeline *virtual.Timeline
	// Random is the machine's own stream.
	Random  *rand.Rand
	History *history.History
	// Step is how many turns the world has made; nil means none.
	Step func() uint64
	// Drivers are the sandbox drivers that it has; nil means "null".
	Drivers []string
	// Drift and KillBudget are the bounds of the fencing model: what goes beyond them
	// is noted in the history as outside of it. Zero means the node's defaults.
	Drift      float64
	KillBudget time.Duration
	// Faults are those of the beginning.
	Faults Faults
}

// Machine is one machine. See the package documentation.
type Machine struct {
	// Faults may be changed at any time; a change counts for what begins later.
	Faults Faults

	name       string
	timeline   *virtual.Timeline
	random     *rand.Rand
	history    *history.History
	step       func() uint64
	driftMax   int64
	killBudget time.Duration

	oscillator oscillator
	timers     timers
	pause      Pause
	// held is what a pause keeps back, in order.
	held     []func()
	draining bool

	boots   int
	off     bool
	daemon  *Daemon
	lives   int
	disk    Disk
	fence   fence
	runtime runtime
}

// New makes a machine that is on, with a fresh disk and no daemon.
func New(options Options) *Machine {
	session := nodes.DefaultSession()
	if options.Drift == 0 {
		options.Drift = session.Drift
	}
	if options.KillBudget == 0 {
		options.KillBudget = session.KillBudget
	}
	if options.Step == nil {
		options.Step = func() uint64 { return 0 }
	}
	if options.Drivers == nil {
		options.Drivers = []string{"null"}
	}
	m := &Machine{
		Faults: options.Faults, name: options.Name, timeline: options.Timeline, random: options.Random,
		history: options.History, step: options.Step, killBudget: options.KillBudget,
		driftMax: int64(options.Drift * million),
	}
	m.oscillator.wall = time.Duration(Epoch.UnixNano()) + m.timeline.Now()
	m.timers.machine = m
	m.disk.machine = m
	m.disk.content = m.disk.fresh()
	m.fence.machine = m
	m.runtime.init(m, options.Drivers)
	m.boot()
	return m
}

// Alter gives the machine other traits from now on.
func (m *Machine) Alter(faults Faults) {
	m.Faults = faults
	m.fence.judge()
}

// Name is the machine's name.
func (m *Machine) Name() string { return m.name }

// BootID changes with each boot.
func (m *Machine) BootID() string { return m.name + "-boot-" + strconv.Itoa(m.boots) }

// Disk is the disk of the journal.
func (m *Machine) Disk() *Disk { return &m.disk }

// Daemon is the daemon that lives here, nil when none does.
func (m *Machine) Daemon() *Daemon { return m.daemon }

// Off tells whether the machine is without power.
func (m *Machine) Off() bool { return m.off }

// boot begins a boot: fresh clocks, an empty memory, the guard.
func (m *Machine) boot() {
	m.boots++
	m.off = false
	m.oscillator.boot(m.timeline.Now(), virtual.Span{Min: bootMin, Max: bootMax}.Draw(m.random))
	m.fence.boot()
}

// PowerOff cuts the power: the daemon and all processes end, what is not on the
// disk is lost. A pause ends with it.
func (m *Machine) PowerOff() {
	if m.off {
		return
	}
	m.note(history.KindMachine, "power off")
	if m.daemon != nil {
		m.daemon.end()
	}
	if m.pause == Frozen {
		m.outside(frozenFault, false)
	}
	m.off, m.pause, m.held = true, Running, nil
	m.oscillator.base(m.now())
	m.oscillator.wallStands = false // it has a battery
	m.timers.clear()
	m.disk.powerOff()
	m.fence.powerOff()
	m.runtime.powerOff()
}

// PowerOn boots a machine that is off. It has no daemon until one is launched.
func (m *Machine) PowerOn() {
	if !m.off {
		return
	}
	m.boot()
	m.note(history.KindMachine, "power on")
}

func (m *Machine) now() time.Duration { return m.timeline.Now() }

func (m *Machine) note(kind history.Kind, text string) {
	m.history.Add(history.Event{Step: m.step(), At: m.now(), Kind: kind, Node: m.name, Text: text})
}

// outside notes that the fencing model does not hold from here on, or does again.
func (m *Machine) outside(name string, begin bool) {
	m.history.Add(history.Event{
		Step: m.step(), At: m.now(), Kind: history.KindFault, Node: m.name, Text: name,
		Detail: history.Fault{Name: name, Begin: begin, Outside: true},
	})
}
