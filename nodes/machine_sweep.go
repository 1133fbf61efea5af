package nodes

import (
	"slices"
	"time"

	"github.com/errand-run/errand/nodes/sandbox"
)

// SweepEvery is how often a node looks for sandboxes that nothing accounts for. One that
// two looks have found is stopped, and goes when its run is seen twice not to need it: so
// what lingers of a run that has ended is gone within five minutes.
const SweepEvery = 75 * time.Second

// A sandbox whose end was told and which was removed may come back all the same: the
// runtime is a process of its own, which may go on with what it was asked to do when
// whoever asked has given up, be started from an older copy, or be used by others. A
// start of the node finds what there is; so that nothing waits for that, it looks in
// between too. Light drivers keep nothing outside of the node's own process, so they are
// not asked.

// sweepLater sets the time of the next look, if any driver is to be asked.
func (m *Machine) sweepLater() {
	if slices.ContainsFunc(m.config.Drivers, m.heavy) {
		m.after("sweep", SweepEvery, m.sweep)
	}
}

func (m *Machine) heavy(driver string) bool { return !slices.Contains(m.config.LightDrivers, driver) }

// sweep asks each driver what there is.
func (m *Machine) sweep() {
	m.sweepLater()
	for _, driver := range m.config.Drivers {
		if !m.heavy(driver) {
			continue
		}
		m.do(SandboxOp{Verb: VerbList, Driver: driver}, func(result SandboxResult) {
			// One that does not answer is asked again by the next sweep.
			if result.Err == nil {
				m.swept(driver, result.Infos)
			}
		})
	}
}

// swept compares what a driver has with what is accounted for. The answer is older than
// what the node knows by now: what it has is not strange until another answer has it too.
func (m *Machine) swept(driver string, infos []sandbox.Info) {
	seen := map[string]bool{}
	for _, info := range infos {
		switch {
		case m.accounted(info.ID):
		case m.strays[driver][info.ID]:
			m.addOrphan(survivor{driver: driver, info: info}, "")
		default:
			seen[info.ID] = true
		}
	}
	m.strays[driver] = seen
	if m.phase >= PhaseRegistered {
		m.endOrphans()
		m.journalQuarantine()
	}
}

// accounted tells whether a sandbox is one of the node's own: of a run that it is to run
// or has run, and has not removed.
func (m *Machine) accounted(id string) bool {
	_, placed := m.placements[id]
	_, orphan := m.orphans[id]
	return placed || orphan
}
