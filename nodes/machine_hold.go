package nodes

import "time"

// StartHold is how long the news of a start waits for the end at most.
const StartHold = 5 * time.Millisecond

// timerHeld is the one timer of all starts that are held.
const timerHeld = "held"

// heldStart is a start whose news waits.
type heldStart struct {
	placement *placement
	until     time.Duration
}

// holdStart keeps the news of a start for a moment: of a command that ends meanwhile
// only the end is journaled and told, which says when it has started. Until then the
// journal holds "starting", by which the command is never started again, and the
// driver knows the rest. Nothing but the news waits, an end least of all.
func (m *Machine) holdStart(p *placement) {
	p.held = true
	m.held = append(m.held, heldStart{p, m.now.Mono + StartHold})
	if len(m.held) == 1 {
		m.after(timerHeld, StartHold, m.heldDue)
	}
}

// heldDue journals and tells the starts that have waited. Those that have done so for
// half of the time go along, so that many starts are few writes and few turns.
func (m *Machine) heldDue() {
	passed := 0
	for _, h := range m.held {
		if p := h.placement; p.started() {
			if h.until > m.now.Mono+StartHold/2 {
				break
			}
			p.held = false
			m.persist(p, func() { m.tellStarted(p) })
		}
		passed++
	}
	left := copy(m.held, m.held[passed:])
	clear(m.held[left:])
	m.held = m.held[:left]
	if left > 0 {
		m.after(timerHeld, m.held[0].until-m.now.Mono, m.heldDue)
	}
}
