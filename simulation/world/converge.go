package world

import (
	"slices"
	"strings"

	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/simulation/check"
	"github.com/errand-run/errand/simulation/history"
)

// beginConvergence ends the first phase: a random core is healed, and all others
// stay broken for good. The core must then end all that there is, and take more.
func (w *World) beginConvergence() {
	random := w.streams.Of("core")
	names := w.plan.Options.NodeNames()
	random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	size := 1 + random.IntN(len(names))
	core := slices.Clone(names[:size])
	slices.Sort(core)
	w.core = map[string]bool{}
	for _, name := range core {
		w.core[name] = true
	}
	w.tell(history.KindFault, "", "the core is healed: "+strings.Join(core, " "))
	w.faults.heal()
	words := w.streams.Of("words")
	for _, name := range w.plan.Options.NodeNames() {
		// Somebody gives some of those up that stay broken. What waits for the others does
		// so for good.
		if said := words.IntN(2) == 0; said && !w.core[name] {
			w.sayDead(name, core[0])
		}
	}
	w.startProbes(names[:size], random)
	w.timeline.After(convergePoll, w.lookForConvergence)
	w.timeline.After(w.plan.Options.Converge.D(), func() { w.over = true })
}

// lookForConvergence ends the world a while after all has come to rest.
func (w *World) lookForConvergence() {
	if w.checks.LiveRuns(w.broken) == 0 && w.clients.open == 0 && len(w.clients.unserved()) == 0 && w.checks.Settled(w.facts(true)) {
		w.converged = w.timeline.Now()
		w.timeline.After(settleTime, w.settled)
		return
	}
	w.timeline.After(convergePoll, w.lookForConvergence)
}

// settled ends the world, unless a run came late: a submit whose client waits no longer
// may still be done, and its run has its time like any other.
func (w *World) settled() {
	if w.checks.LiveRuns(w.broken) == 0 {
		w.over = true
		return
	}
	w.converged = 0
	w.lookForConvergence()
}

// broken tells whether a node stays as it is for good.
func (w *World) broken(node string) bool { return w.core != nil && !w.core[node] }

// facts are what the machines show now.
func (w *World) facts(settled bool) check.Facts {
	facts := check.Facts{Step: w.steps, At: w.timeline.Now(), Settled: settled, Waiting: w.clients.unserved()}
	for _, s := range w.sorted {
		m := check.Machine{Node: s.name, Broken: w.broken(s.name), JournalLost: s.forgot}
		if s.daemon == nil {
			m.Trouble = "no daemon runs"
		} else {
			status := s.daemon.assembled.Status()
			m.Ready, m.Trouble = status.Phase >= nodes.PhaseAnnounced, status.Trouble
			if refused := s.daemon.assembled.Refused(); refused != nil {
				m.Trouble = refused.Error()
			}
		}
		if m.Trouble == "" && !m.Ready {
			m.Trouble = "is starting"
		}
		m.Left, m.Journal = leftOn(s.Machine)
		facts.Machines = append(facts.Machines, m)
	}
	return facts
}
