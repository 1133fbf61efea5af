package machine

import (
	"slices"
	"strconv"
	"strings"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/virtual"
)

const reasonLost = recordv1.Reason_REASON_SANDBOX_LOST

// runtime is what runs sandboxes on a machine: it outlives daemons.
type runtime struct {
	machine *Machine
	drivers []string
	boxes   map[boxKey]*box
	order   []*box
	// creating are the creates under way, by sandbox.
	creating map[boxKey]*operation
	images   images
}

type boxKey struct{ driver, id string }

func (r *runtime) init(m *Machine, drivers []string) {
	r.machine, r.drivers = m, slices.Clone(drivers)
	r.boxes, r.creating = map[boxKey]*box{}, map[boxKey]*operation{}
	r.images = images{runtime: r, there: map[string]bool{}}
}

// sorted returns the sandboxes in the order in which they came into being.
func (r *runtime) sorted() []*box { return slices.Clone(r.order) }

func (r *runtime) add(key boxKey, b *box) {
	r.boxes[key] = b
	r.order = append(r.order, b)
}

func (r *runtime) remove(b *box) {
	delete(r.boxes, boxKey{b.driver, b.info.ID})
	r.order = slices.DeleteFunc(r.order, func(other *box) bool { return other == b })
}

func (r *runtime) note(info sandbox.Info, text string) {
	m := r.machine
	m.history.Add(history.Event{
		Step: m.step(), At: m.now(), Kind: history.KindSandbox, Node: m.name,
		Run: info.Run, Attempt: info.Attempt, Placement: info.Placement, Text: text,
	})
}

// crash forgets who asked; what was asked may still happen.
func (r *runtime) crash() {
	clear(r.creating)
	r.images.crash()
	for _, b := range r.order {
		b.waiters = nil
	}
}

// powerOff ends all processes. A few sandboxes may be found after the boot.
func (r *runtime) powerOff() {
	m := r.machine
	for _, b := range r.sorted() {
		lost := b.info.State == sandbox.StateRunning
		b.waiters = nil
		b.lost = b.lost || lost
		b.die(causeReboot)
		b.logger, b.fencing = false, false
		if b.info.State == sandbox.StateCreated || !b.exit.Durable && !virtual.Chance(m.random, m.Faults.Runtime.KeepRate) {
			r.remove(b)
			continue
		}
		if lost {
			b.exit.Code, b.exit.Reason, b.exit.Message = nil, reasonLost, "the machine was rebooted"
			b.exited()
		}
	}
	clear(r.creating)
	r.images.crash()
}

// VanishSandbox removes a sandbox and all its processes without an exit, as if
// somebody had done so by hand. It reports false if it is not there.
func (m *Machine) VanishSandbox(id string) bool {
	b := m.runtime.find(id)
	if b == nil {
		return false
	}
	b.note("vanishes")
	waiters := b.waiters
	b.waiters, b.lost = nil, true
	b.die(causeVanished)
	m.runtime.remove(b)
	for _, w := range waiters {
		result := nodes.SandboxResult{Err: missing(nodes.VerbWait, id)}
		m.timers.after(m.Faults.Runtime.ExitDelay.Draw(m.random), false, func() {
			w.daemon.answer(func() { w.deliver(result) })
		})
	}
	return true
}

// BreakWaits fails everything that waits for an exit, as when the runtime is started
// again. What it runs goes on, and may be waited for anew.
func (m *Machine) BreakWaits() {
	for _, b := range m.runtime.sorted() {
		waiters := b.waiters
		b.waiters = nil
		for _, w := range waiters {
			result := nodes.SandboxResult{Err: records.Errorf(records.ClassUnavailable, "%s sandbox %s: the connection broke", nodes.VerbWait, b.info.ID)}
			m.timers.after(0, false, func() { w.daemon.answer(func() { w.deliver(result) }) })
		}
	}
}

// CrashShim ends whoever watches over a sandbox's command, so that the command's end
// is seen by nobody. The processes die with it, or live on until they are killed or
// end. It reports false if no command runs there.
func (m *Machine) CrashShim(id string, processesLive bool) bool {
	b := m.runtime.find(id)
	if b == nil || b.info.State != sandbox.StateRunning {
		return false
	}
	b.note("shim crashes")
	b.lose("the shim is gone: exit status 255")
	if !processesLive {
		b.die(causeVanished)
	}
	return true
}

// KillLog kills the log process of a sandbox: it no longer helps the guard, and the
// log is not complete. It reports false if there is none.
func (m *Machine) KillLog(id string) bool {
	b := m.runtime.find(id)
	if b == nil || !b.logger {
		return false
	}
	b.note("log process killed")
	b.logger = false
	m.fence.judge()
	return true
}

// find returns the sandbox of an id, with any driver.
func (r *runtime) find(id string) *box {
	for _, b := range r.order {
		if b.info.ID == id {
			return b
		}
	}
	return nil
}

// Sandbox is a sandbox as it really is.
type Sandbox struct {
	ID        string
	Run       string
	Attempt   int32
	Placement int32
	State     sandbox.State
	// Alive tells whether any process of it lives.
	Alive bool
	// Token is the fencing token of its command.
	Token uint64
}

// Sandboxes returns what there is, in the order in which it came into being.
func (m *Machine) Sandboxes() []Sandbox {
	var all []Sandbox
	for _, b := range m.runtime.order {
		all = append(all, Sandbox{
			ID: b.info.ID, Run: b.info.Run, Attempt: b.info.Attempt, Placement: b.info.Placement,
			State: b.info.State, Alive: b.alive(), Token: b.token,
		})
	}
	return all
}

// Left is what is left on a machine when all runs are over: nothing, if all is well.
type Left struct {
	Sandboxes []Sandbox
	// Entries are the journal's; Unacked those of them whose outcome no run has
	// acknowledged.
	Entries []*recordv1.JournalEntry
	Unacked int
}

// Empty tells whether nothing is left.
func (l Left) Empty() bool { return len(l.Sandboxes) == 0 && len(l.Entries) == 0 }

// Left tells what is left. The entries must not be changed.
func (m *Machine) Left() Left {
	left := Left{Sandboxes: m.Sandboxes(), Entries: m.disk.sorted()}
	for _, entry := range left.Entries {
		if entry.GetAckedAtRevision() == 0 {
			left.Unacked++
		}
	}
	return left
}

// tokenOf finds the fencing token in an environment, as the command would.
func tokenOf(env []string) uint64 {
	for _, variable := range env {
		if text, ok := strings.CutPrefix(variable, nodes.EnvFencingToken+"="); ok {
			token, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				return 0 // the command has none
			}
			return token
		}
	}
	return 0
}
