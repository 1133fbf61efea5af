package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/history"
)

// Facts are what a world shows of its machines at one moment. The store's content
// need not be told: the ledger has it from the commits.
type Facts struct {
	Step uint64
	At   time.Duration
	// Settled says that the faults have stopped and that the world had the time in
	// which it must have come to rest: what is pending now is pending for good.
	Settled bool
	// Machines are in order.
	Machines []Machine
	// Waiting is what clients wait for that must be served by the end.
	Waiting []Pending
}

// Machine is what one machine shows.
type Machine struct {
	Node string
	// Broken machines stay as they are for good: nothing is expected of them.
	Broken bool
	// JournalLost says that the machine has lost its journal, or writes of it, at some
	// time: what it has forgotten nobody can tell.
	JournalLost bool
	// Ready says that the daemon accepts runs; Trouble why it does not.
	Ready   bool
	Trouble string
	Left    []Leftover
	Journal []*recordv1.JournalEntry
}

// Leftover is one thing of a run that a machine still has.
type Leftover struct {
	// What is "sandbox", "cgroup", "log writer" and the like.
	What string
	Run  string
	// Running says that a process of it is alive.
	Running bool
	Since   time.Duration
}

func (f Facts) machine(node string) *Machine {
	i := slices.IndexFunc(f.Machines, func(m Machine) bool { return m.Node == node })
	if i < 0 {
		return nil
	}
	return &f.Machines[i]
}

// Pending is one thing that has not come to rest.
type Pending struct {
	Run  string
	Node string
	// What is pending, why as far as anything says, and since when.
	What  string
	Why   string
	Since time.Duration
}

func (p Pending) text() string {
	why := p.Why
	if why == "" {
		why = "nothing says why"
	}
	return fmt.Sprintf("%s since %v: %s", p.What, p.Since, why)
}

// String returns it in one line.
func (p Pending) String() string {
	var where []string
	if p.Run != "" {
		where = append(where, "run "+p.Run)
	}
	if p.Node != "" {
		where = append(where, "node "+p.Node)
	}
	return strings.Join(where, " ") + ": " + p.text()
}

// Settled tells whether nothing is pending. It is cheap while runs are live.
func (s *Set) Settled(facts Facts) bool {
	return s.LiveRuns(facts.broken) == 0 && len(s.Pending(facts)) == 0
}

// LiveRuns is how many runs are not terminal, but for those that wait for a broken
// machine: they do so for good.
func (s *Set) LiveRuns(broken func(node string) bool) (n int) {
	for _, r := range s.ledger.live {
		if !s.ledger.stranded(r, broken) {
			n++
		}
	}
	return n
}

// stranded tells whether a run waits for the word of a machine that stays broken, and that
// nobody has said to be dead.
func (l *Ledger) stranded(r *Run, broken func(node string) bool) bool {
	return waitsForNode(r.Record) && r.Record.GetPlacement() != nil && broken(r.Record.GetPlacement().GetNode()) && !l.Dead(r.Record.GetPlacement().GetNode())
}

func (f Facts) broken(node string) bool {
	m := f.machine(node)
	return m != nil && m.Broken
}

// Pending returns what has not come to rest: runs that are not terminal, commands
// that run, and what the machines that are not broken still have of ended runs.
func (s *Set) Pending(facts Facts) []Pending {
	var pending []Pending
	for _, r := range s.ledger.order {
		pending = append(pending, pendingRun(s.ledger, facts, r)...)
	}
	for _, m := range facts.Machines {
		if !m.Broken {
			pending = append(pending, pendingMachine(s.ledger, m)...)
		}
	}
	return append(pending, facts.Waiting...)
}

func pendingRun(l *Ledger, facts Facts, r *Run) []Pending {
	var pending []Pending
	if r.Record != nil && !r.Terminal() && !l.stranded(r, facts.broken) {
		p := Pending{Run: r.ID, What: records.Word(r.Record.GetStatus()), Why: Why(r.Record), Since: r.Queued, Node: r.Record.GetPlacement().GetNode()}
		if m := facts.machine(p.Node); m != nil && m.Trouble != "" {
			p.Why += "; the node: " + m.Trouble
		}
		pending = append(pending, p)
	}
	for _, c := range r.Alive() {
		if m := facts.machine(c.Node); (r.Record == nil || r.Terminal()) && (m == nil || !m.Broken) {
			pending = append(pending, Pending{Run: r.ID, Node: c.Node, What: "a command that runs", Why: "the run has ended", Since: c.Started})
		}
	}
	return pending
}

func pendingMachine(l *Ledger, m Machine) []Pending {
	var pending []Pending
	if !m.Ready {
		pending = append(pending, Pending{Node: m.Node, What: "not ready", Why: m.Trouble})
	}
	for _, entry := range m.Journal {
		why := "the run knows its outcome"
		if entry.GetAckedAtRevision() == 0 {
			why = "its outcome is not acknowledged"
		}
		r := l.Run(entry.GetRun())
		if r == nil || r.Record == nil || entry.GetEpoch() < l.epoch && r.Created > l.restoredAt {
			continue // in quarantine for a day: its run was deleted, or lost with a restore
		}
		pending = append(pending, Pending{
			Run: entry.GetRun(), Node: m.Node, What: "a journal entry " + records.Word(entry.GetState()), Why: why, Since: l.now,
		})
	}
	return pending
}

// g10Clean: when all has come to rest, the machines that work have nothing of an
// ended run.
type g10Clean struct{}

func (g10Clean) Guarantee() Guarantee { return G10 }

func (g10Clean) Observe(*Ledger, history.Event, func(Finding)) {}

func (g10Clean) Finish(l *Ledger, facts Facts, report func(Finding)) {
	if !facts.Settled {
		return
	}
	for _, m := range facts.Machines {
		if m.Broken {
			continue
		}
		for _, left := range m.Left {
			if r := l.Run(left.Run); left.Run == "" || r == nil || r.Record == nil || r.Terminal() {
				running := ""
				if left.Running {
					running = " that runs"
				}
				report(Finding{Run: left.Run, Node: m.Node, Text: fmt.Sprintf("a %s%s is left since %v", left.What, running, left.Since)})
			}
		}
	}
	for _, r := range l.Runs() {
		if r.Record == nil && (r.Live || len(r.Assignments) > 0) {
			report(Finding{Run: r.ID, Text: "keys are left of a run that has no record"})
		}
	}
}
