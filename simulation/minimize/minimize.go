// Package minimize cuts a plan that fails down to what is needed to fail: first the
// time, then the faults, the calls, the nodes, and last the policy. At every step it
// asks one thing only, whether the same checker still fails, so that it does not
// wander off to another fault on the way.
package minimize

import (
	"slices"
	"time"

	"github.com/errand-run/errand/simulation/plan"
)

// Fails executes a plan and names the checker that failed, empty if none did.
type Fails func(plan.Plan) (checker string)

// Progress is told what is being tried; it may be nil.
type Progress func(what string, executions, faults, calls int)

// ExecutionsMax bounds how many plans are executed for one that is cut down.
const ExecutionsMax = 2000

// minimizer is one cutting down.
type minimizer struct {
	fails      Fails
	progress   Progress
	checker    string
	best       plan.Plan
	executions int
}

// Minimize cuts a plan down and returns what is left, with the checker that fails.
// A plan that does not fail comes back as it is, with an empty checker.
func Minimize(p plan.Plan, fails Fails, progress Progress) (plan.Plan, string) {
	m := &minimizer{fails: fails, progress: progress, best: p}
	if m.checker = fails(p); m.checker == "" {
		return p, ""
	}
	for {
		before := size(m.best)
		m.cutTime()
		m.cutFaults()
		m.cutCalls()
		m.cutNodes()
		m.simplify()
		if size(m.best) >= before || m.executions >= ExecutionsMax {
			return m.best, m.checker
		}
	}
}

// size orders plans: a smaller one is easier to read.
func size(p plan.Plan) int {
	n := len(p.Faults)*4 + len(p.Workload)*2 + p.Options.Nodes*8 + int(p.Options.Length.D()/time.Second)
	if p.Options.Policy.Kind != plan.PolicyFIFO {
		n++
	}
	return n + p.Options.Probes
}

// try keeps a plan if it fails as the first one did.
func (m *minimizer) try(what string, p plan.Plan) bool {
	if m.executions >= ExecutionsMax || p.Check() != nil {
		return false
	}
	m.executions++
	if m.progress != nil {
		m.progress(what, m.executions, len(m.best.Faults), len(m.best.Workload))
	}
	if m.fails(p) != m.checker {
		return false
	}
	m.best = p
	return true
}

// cutTime finds by bisection how long the faults must go on, to a second.
func (m *minimizer) cutTime() {
	low, high := time.Duration(0), m.best.Options.Length.D()
	for high-low > time.Second {
		middle := (low + (high-low)/2).Round(time.Second)
		if middle <= low || middle >= high {
			return
		}
		if m.try("time", until(m.best, plan.Duration(middle))) {
			high = middle
		} else {
			low = middle
		}
	}
}

// until is a plan of which only what begins before a moment is left.
func until(p plan.Plan, end plan.Duration) plan.Plan {
	p.Options.Length = end
	p.Faults = slices.DeleteFunc(slices.Clone(p.Faults), func(f plan.Fault) bool { return f.Begin >= end })
	p.Workload = slices.DeleteFunc(slices.Clone(p.Workload), func(c plan.Call) bool { return c.At >= end })
	return p
}

func (m *minimizer) cutFaults() {
	reduce(m.best.Faults, func(kept []plan.Fault) bool {
		p := m.best
		p.Faults = kept
		return m.try("faults", p)
	})
}

func (m *minimizer) cutCalls() {
	reduce(m.best.Workload, func(kept []plan.Call) bool {
		p := m.best
		p.Workload = kept
		return m.try("calls", p)
	})
}

// cutNodes takes the nodes away one by one, from the last on. Faults of a node that
// is gone do nothing, calls to it are made to another.
func (m *minimizer) cutNodes() {
	for m.best.Options.Nodes > 1 {
		p := m.best
		p.Options.Nodes--
		gone := plan.NodeName(p.Options.Nodes)
		p.Faults = slices.DeleteFunc(slices.Clone(p.Faults), func(f plan.Fault) bool { return f.What.On() == gone })
		p.Workload = slices.Clone(p.Workload)
		for i := range p.Workload {
			if p.Workload[i].Node == gone {
				p.Workload[i].Node = plan.NodeName(0)
			}
		}
		if p.Options.Policy.Starved == gone {
			p.Options.Policy = plan.Policy{Kind: plan.PolicyUniform}
		}
		if !m.try("nodes", p) {
			return
		}
	}
}

// simplify sets what is easier to follow, where it fails all the same.
func (m *minimizer) simplify() {
	if m.best.Options.Policy.Kind != plan.PolicyFIFO {
		p := m.best
		p.Options.Policy = plan.Policy{Kind: plan.PolicyFIFO}
		m.try("policy", p)
	}
	if m.best.Options.Members > 1 {
		p := m.best
		p.Options.Members = 1
		m.try("store members", p)
	}
	if m.best.Options.Probes > 0 {
		p := m.best
		p.Options.Probes = 0
		m.try("probes", p)
	}
}

// reduce is delta debugging: it takes away parts of a list, in ever smaller ones,
// while the rest still fails.
func reduce[T any](list []T, fails func(kept []T) bool) {
	if len(list) > 0 && fails(nil) {
		return
	}
	for parts := 2; len(list) >= 1; {
		length := (len(list) + parts - 1) / parts
		cut := false
		for at := 0; at < len(list); {
			end := min(at+length, len(list))
			kept := slices.Concat(list[:at:at], list[end:])
			if len(kept) < len(list) && fails(kept) {
				list, cut = kept, true
				continue
			}
			at = end
		}
		switch {
		case length == 1 && !cut:
			return
		case length > 1:
			parts = min(parts*2, max(len(list), 1))
		}
	}
}
