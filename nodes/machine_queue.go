package nodes

import (
	"slices"
	"time"
)

// lane is where the placements of like drivers wait for their start. What is light
// does not wait behind what keeps the processor busy.
type lane struct {
	// queue is what waits, oldest first.
	queue []*placement
	// slots are those under way that count against slotsMax, creating all creates under
	// way, which createsMax bounds.
	slots, slotsMax      int
	creating, createsMax int
	// patient lanes take the slot of a create back that takes long or waits for the network.
	patient bool
}

// starts are the lanes of a node.
type starts struct{ heavy, light lane }

func newStarts(startsMax int) starts {
	return starts{
		heavy: lane{slotsMax: startsMax, createsMax: CreatesMax, patient: true},
		light: lane{slotsMax: LightStartsMax, createsMax: LightStartsMax},
	}
}

func (s *starts) slots() int    { return s.heavy.slots + s.light.slots }
func (s *starts) creating() int { return s.heavy.creating + s.light.creating }

// laneOf returns where the placements of a driver wait.
func (m *Machine) laneOf(driver string) *lane {
	if slices.Contains(m.config.LightDrivers, driver) {
		return &m.starts.light
	}
	return &m.starts.heavy
}

func (m *Machine) enqueue(p *placement) {
	p.queued = true
	p.lane.queue = append(p.lane.queue, p)
	m.pump()
}

func (m *Machine) dequeue(p *placement) {
	if !p.queued {
		return
	}
	p.queued = false
	switch l, at := p.lane, slices.Index(p.lane.queue, p); at {
	case 0:
		l.queue[0] = nil
		l.queue = l.queue[1:]
	default:
		l.queue = slices.Delete(l.queue, at, at+1)
	}
}

// pump starts what waits, oldest first, as far as there are slots. One that must
// wait for an earlier attempt of its run lets the others pass.
func (m *Machine) pump() {
	m.pumpLane(&m.starts.heavy)
	m.pumpLane(&m.starts.light)
}

func (m *Machine) pumpLane(l *lane) {
	for l.slots < l.slotsMax && l.creating < l.createsMax {
		next := slices.IndexFunc(l.queue, m.startable)
		if next < 0 {
			return
		}
		p := l.queue[next]
		m.dequeue(p)
		m.create(p)
	}
}

func (m *Machine) startable(p *placement) bool {
	for other := m.ofRun[p.key.Run]; other != nil; other = other.next {
		if other != p && other.class.occupies() && (other.doing == nil || !other.queued) {
			return false
		}
	}
	for _, o := range m.orphans {
		if o.info.Run == p.key.Run && (!o.killed || o.info.ID == p.id) {
			return false
		}
	}
	return true
}

func (m *Machine) create(p *placement) {
	p.creating, p.mayExist, p.slot = true, true, true
	p.creatingFrom = m.now.Mono
	p.lane.creating++
	p.lane.slots++
	if p.lane.patient {
		m.after("slot/"+p.id, StartSlotPatience, func() {
			m.releaseSlot(p)
			m.pump()
		})
	}
	op := SandboxOp{
		Verb: VerbCreate, Driver: p.entry.GetDriver(), ID: p.id, Spec: m.sandboxSpec(p),
		Timeout: time.Duration(p.assignment.GetSpec().GetStartDeadlineMs()) * time.Millisecond,
	}
	m.do(op, func(result SandboxResult) {
		if result.Waiting {
			if p.creating && p.lane.patient {
				m.releaseSlot(p)
				m.pump()
			}
			return
		}
		p.creating = false
		p.lane.creating--
		m.createdOrNot(p, result.Err)
		m.settle(p)
		m.emptyPerhaps()
		m.pump()
	})
}

func (m *Machine) releaseSlot(p *placement) {
	if p.slot {
		p.slot = false
		p.lane.slots--
		if p.lane.patient {
			m.cancel("slot/" + p.id)
		}
	}
}
