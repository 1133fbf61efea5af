package world

import (
	"math/rand/v2"
	"time"

	"github.com/errand-run/errand/simulation/check"
	"github.com/errand-run/errand/simulation/plan"
)

// The bounds of what a healed core is asked.
const (
	// probeLatest is how long after the healing one of them is asked at the latest, and
	// probeAgain how long after a refusal it is asked again.
	probeLatest = 2 * time.Minute
	probeAgain  = 5 * time.Second
)

// probe is one more run that a node of the healed core is asked for until it has taken
// it. A core in which all has ended, and that takes nothing more or carries out nothing
// more, is not healed.
type probe struct {
	plan.Call
	since time.Duration
	// said is the last answer.
	said string
	// taken is set once the run is in the store.
	taken bool
}

// startProbes asks some nodes of the core. The run may wait as long as the world lasts:
// it must have its turn.
func (w *World) startProbes(core []string, random *rand.Rand) {
	for _, node := range core[:min(len(core), w.plan.Options.Probes)] {
		p := &probe{Call: plan.Call{
			Verb: plan.VerbSubmit, Node: node, Label: "probe-" + node, Key: "probe-" + node,
			Command: &plan.Command{
				Takes: plan.Duration(time.Second), Timeout: plan.Duration(8 * time.Hour), StartDeadline: plan.Duration(8 * time.Hour), StopGrace: plan.Duration(10 * time.Second),
			},
		}}
		w.clients.runs[p.Label] = runID(p.Call, random)
		w.clients.probes = append(w.clients.probes, p)
		wait := time.Duration(random.Int64N(int64(probeLatest))).Round(time.Millisecond)
		p.since = w.timeline.Now() + wait
		w.timeline.After(wait, func() { w.ask(p) })
	}
}

// ask submits the run of a probe, and again while it is not taken.
func (w *World) ask(p *probe) {
	w.clients.open++
	w.clients.beginThen(p.Call, func(outcome, text string) {
		p.said = text
		if p.taken = outcome == outcomeOK; !p.taken {
			w.timeline.After(probeAgain, func() { w.ask(p) })
		}
	})
}

// unserved are the probes that no node has taken.
func (c *clients) unserved() []check.Pending {
	var pending []check.Pending
	for _, p := range c.probes {
		if !p.taken {
			pending = append(pending, check.Pending{Run: c.runs[p.Label], Node: p.Node, What: "a submit that is not taken", Why: p.said, Since: p.since})
		}
	}
	return pending
}
