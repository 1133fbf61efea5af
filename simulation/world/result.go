package world

import (
	"fmt"
	"strings"
	"time"

	"github.com/errand-run/errand/simulation/check"
	"github.com/errand-run/errand/simulation/plan"
)

// Result is what became of a world.
type Result struct {
	Plan plan.Plan
	// Hash is that of the whole history: two executions with the same hash were the
	// same.
	Hash   uint64
	Steps  uint64
	Events uint64
	// At is the true time of the end, Converged when all had come to rest, 0 if never.
	At        time.Duration
	Converged time.Duration
	// Cut says that the world was ended before its own end, so that what has not come to
	// rest was not judged.
	Cut bool
	// Violations are what the checkers found, what happened outside of the model among
	// it.
	Violations []check.Violation
	// Pending is what had not come to rest at the end.
	Pending []check.Pending
	// Panic is the value and the stack of a panic in the world; empty if there was none.
	Panic string
}

// Verdict sorts results.
type Verdict uint8

// The verdicts, the worst last.
const (
	Passed Verdict = iota
	// NotLive is a world that did not come to rest in time.
	NotLive
	// Violated is one in which a guarantee did not hold.
	Violated
	// Panicked is one that could not go on.
	Panicked
)

// String returns the verdict in words.
func (v Verdict) String() string {
	return [...]string{"passed", "not live", "violated", "panicked"}[v]
}

// Verdict is the worst of what was found.
func (r Result) Verdict() Verdict {
	verdict := Passed
	if r.Panic != "" {
		return Panicked
	}
	for _, v := range r.Violations {
		switch {
		case v.Outside != "":
		case v.Guarantee == check.Liveness:
			verdict = max(verdict, NotLive)
		default:
			verdict = max(verdict, Violated)
		}
	}
	return verdict
}

// First is the first finding that decides the verdict; ok is false for a world that
// passed or panicked.
func (r Result) First() (v check.Violation, ok bool) {
	verdict := r.Verdict()
	for _, found := range r.Violations {
		if found.Outside == "" && (verdict == NotLive) == (found.Guarantee == check.Liveness) {
			return found, verdict == NotLive || verdict == Violated
		}
	}
	return check.Violation{}, false
}

// Checker names what failed, so that two failures can be compared: the guarantee, or
// the place of a panic. It is empty for a world that passed.
func (r Result) Checker() string {
	switch r.Verdict() {
	case Panicked:
		first, _, _ := strings.Cut(r.Panic, "\n")
		return "panic: " + first
	case Passed:
		return ""
	default:
		v, _ := r.First()
		return string(v.Guarantee)
	}
}

// String returns the result in one line.
func (r Result) String() string {
	verdict := r.Verdict().String()
	if r.Cut {
		verdict += " so far"
	}
	return fmt.Sprintf("seed %d %s: hash %016x, %d steps, %d events, %s of virtual time", r.Plan.Seed, verdict, r.Hash, r.Steps, r.Events, r.At)
}

// result judges what has happened.
func (w *World) result() Result {
	r := Result{Plan: w.plan, Steps: w.steps, At: w.timeline.Now(), Converged: w.converged}
	r.Cut = w.cut
	facts := w.facts(!w.cut)
	r.Violations = w.checks.Finish(facts)
	if !w.cut {
		r.Pending = w.checks.Pending(facts)
	}
	r.Hash, r.Events = w.history.Hash(), w.history.Count()
	return r
}

// afterPanic is what was found before a panic; what has panicked once is not asked
// for more.
func (w *World) afterPanic() Result {
	return Result{
		Plan: w.plan, Steps: w.steps, At: w.timeline.Now(), Hash: w.history.Hash(), Events: w.history.Count(), Violations: w.checks.Violations(),
	}
}
