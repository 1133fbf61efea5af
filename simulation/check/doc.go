// Package check judges a simulated world by the guarantees that Errand gives. It
// reads the history of what really happened, each start and end of a command in true
// time and each commit of the store, and never what an actor says or believes.
//
// Each checker is one small type with the number of its guarantee in its name. They
// share one Ledger, which decodes the history once and remembers what a checker has
// to compare with. A checker is told of every event that concerns it, and some look
// around from time to time (Expensive) or at the end (Finish).
//
// G5 (exact limits) and G6 (a tick fires once) are judged by checkers that come with
// gates and schedules. What is judged here of G5's sentence about slots is that what
// a run holds goes with the transaction that ends it (G4).
//
// The fencing of lost nodes is proven for a model: clocks that drift within a bound,
// pauses that boottime counts, kills within their budget. A world may leave it on
// purpose (history.Fault.Outside). A finding of G3 or G4 on a machine that had left
// it is kept and says so (Violation.Outside), and is no violation: there only the
// fencing token protects, and its checker makes no exception.
package check

import (
	"fmt"
	"strings"
	"time"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/simulation/history"
)

// Guarantee names what was promised.
type Guarantee string

// The guarantees that are judged, what a node is configured to take at most (Room), and
// two that are not promises of Errand's: the canary always fails, and Liveness says what
// is still pending at the end.
const (
	G1           Guarantee = "G1 one writer"
	G2           Guarantee = "G2 at most one start"
	G3           Guarantee = "G3 no two at once"
	G4           Guarantee = "G4 terminal means gone"
	G7           Guarantee = "G7 no invented outcome"
	G8           Guarantee = "G8 nothing lost"
	G9           Guarantee = "G9 bounded"
	G10          Guarantee = "G10 clean"
	G11          Guarantee = "G11 explained"
	G12          Guarantee = "G12 fencing token"
	Room         Guarantee = "room"
	Attempts     Guarantee = "attempts"
	Linearizable Guarantee = "linearizable"
	Together     Guarantee = "together"
	Liveness     Guarantee = "liveness"
	Canary       Guarantee = "canary"
)

// Violation is one guarantee that did not hold, once for each run and guarantee.
type Violation struct {
	Guarantee Guarantee
	Run       string
	// Node is the machine concerned, where there is one.
	Node string
	Step uint64
	At   time.Duration
	Text string
	// Outside says why this happened outside the model under which the guarantee is
	// given; it is empty for a true violation.
	Outside string
}

// String returns the violation in one line.
func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: step %d at %v", v.Guarantee, v.Step, v.At)
	if v.Run != "" {
		fmt.Fprintf(&b, " run %s", v.Run)
	}
	if v.Node != "" {
		fmt.Fprintf(&b, " node %s", v.Node)
	}
	fmt.Fprintf(&b, ": %s", v.Text)
	if v.Outside != "" {
		fmt.Fprintf(&b, " (outside the model: %s)", v.Outside)
	}
	return b.String()
}

// Config is what the checkers of a world must know of it.
type Config struct {
	Keys records.Keys
	// Session is that of the world's nodes; the zero value is solo.
	Session nodes.SessionConfig
	// Nodes is how many nodes there are; 0 means that nobody knows.
	Nodes int
	// Epoch is what a right wall clock shows at the true time 0, in milliseconds; 0 is not
	// judged.
	Epoch int64
	// SandboxesMax is how many commands a node may run at one time; 0 is not judged.
	SandboxesMax int64
	// Slack is how much later than promised something may happen on machines that
	// nothing disturbs, so that messages and turns may take their time. 0 means
	// SlackDefault.
	Slack time.Duration
	// Canary switches on a checker that fails at the first commit: who turns it on and
	// sees no violation has a harness that reports none.
	Canary bool
	// More are checkers of the world's own.
	More []Checker
}

// SlackDefault is the default of Config.Slack.
const SlackDefault = time.Minute

// Finding is what a checker reports; the set adds when it was.
type Finding struct {
	Run  string
	Node string
	Text string
	// Outside is that of Violation.
	Outside string
}

// Checker judges one guarantee. Its methods are called by one goroutine, with a
// ledger that holds the event already.
type Checker interface {
	Guarantee() Guarantee
	// Observe is called for each command, commit, answer, fault, daemon's and
	// machine's event. It must be cheap.
	Observe(l *Ledger, e history.Event, report func(Finding))
}

// Periodic is a Checker that also looks around every now and then.
type Periodic interface {
	Expensive(l *Ledger, report func(Finding))
}

// Final is a Checker that also judges the end.
type Final interface {
	Finish(l *Ledger, facts Facts, report func(Finding))
}
